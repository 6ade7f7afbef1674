"""Operands at other coordinates: reshapes, slices, pads and the like.

An operand is evaluated at coordinates that follow from the new axes. Splitting an axis makes an
affine coordinate, merging axes a division and a remainder by a number. Nothing moves: reads
simply go to other addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.base.diagnostics import ShapeError, UnsupportedError
from tilewright.base.dtypes import boolean
from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Cast,
    Const,
    Holds,
    Load,
    MemRef,
    Read,
    ScalarValue,
    Value,
)  # fmt: skip
from tilewright.lower.builder import Builder, Fragment, Placed
from tilewright.lower.values import index_value
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr, Guard, at_least, less

Coordinates = Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class _Where:
    """The fragment under construction, and the guard that its elements exist."""

    placed: Placed
    tiled: Tiled
    guard: Guard


def remapped(b: Builder, op: ops.Reshape | ops.Remap, tiled: Tiled) -> Fragment:
    """The value's fragment: its operand, element by element, at the operand's coordinates."""
    placed = b.place(tiled.layout)
    new = {a: b.base(a) + placed.position(a) for a in op.type.axes}
    guard: Guard = ()
    for axis, coordinate in new.items():
        guard += b.extent_guard(axis, coordinate)
    value = _at(b, op, new, _Where(placed, tiled, guard))
    made = b.fragment(f"v{op.id}_remapped", op.type.dtype, tiled, op.span)
    b.emit(Assign(placed.over, made.ref(placed.registers()), value, op.span))
    return made


def _at(b: Builder, op: ops.Op, at: Coordinates, where: _Where) -> Value:
    """A value at coordinates on its own axes."""

    def operand(number: int) -> Value:
        return _at(b, b.graph.by_id[number], at, where)

    match op:
        case ops.Reshape():
            source = b.graph.by_id[op.value]
            old = old_coordinates(b, source.type.axes, op.type.axes, at, op.span)
            return _at(b, source, old, where)
        case ops.Remap():
            return _remap(b, op, at, where)
        case ops.ReadOp() if not b.graph.memory(op.memory).allocated:
            made = b.fragment(op.memory, op.type.dtype, where.tiled, op.span)
            target = made.ref(where.placed.registers())
            source = MemRef(op.memory, tuple(at[a] for a in op.type.axes))
            b.emit(Load(where.placed.over, target, source, guard=where.guard, span=op.span))
            return Read(target, op.type.dtype)
        case ops.Constant():
            return Const(op.value, op.type.dtype)
        case ops.ScalarRead():
            return ScalarValue(op.name, op.type.dtype)
        case ops.Index():
            return index_value(at[op.type.axes[0]], op.type.dtype)
        case ops.Extent():
            return index_value(b.plan.axes[op.axis].extent, op.type.dtype)
        case ops.View():
            return operand(op.value)
        case ops.CastOp():
            return Cast(operand(op.value), op.type.dtype)
        case ops.Elementwise():
            return Apply(op.name, tuple(operand(a) for a in op.args), op.type.dtype)
        case _:
            raise UnsupportedError(
                "the result of a reduction, a contraction or a loop is reshaped or sliced",
                span=op.span,
                expected="a reshape of what is read, cast or computed element by element",
                mend="reshape the operands, or write the result and reshape the tensor",
            )


def _remap(b: Builder, op: ops.Remap, at: Coordinates, where: _Where) -> Value:
    source = b.graph.by_id[op.value]
    moved = {
        axis: expr.substitute(at)
        for axis, expr in zip(source.type.axes, op.coordinates, strict=True)
    }
    if op.fill is None:
        return _at(b, source, moved, where)
    inside: Guard = ()
    for axis, coordinate in moved.items():
        inside += (at_least(coordinate, 0), less(coordinate, b.plan.axes[axis].extent))
    value = _at(b, source, moved, replace(where, guard=where.guard + inside))
    fill = Const(op.fill, op.type.dtype)
    return Apply("select", (Holds(inside, boolean), value, fill), op.type.dtype)


def old_coordinates(
    b: Builder, old: Sequence[str], new: Sequence[str], at: Coordinates, span: Span | None
) -> dict[str, Expr]:
    """Coordinates on the old axes from those on the new ones, group by group of equal size."""
    result: dict[str, Expr] = {}
    for before, after in _groups(b, list(old), list(new), span):
        if before == after:
            result.update({a: at[a] for a in before})
            continue
        linear = Expr.of(0)
        for axis in after:
            linear = linear * _size(b, axis, span) + at[axis]
        rest = 1
        for axis in reversed(before):
            size = _size(b, axis, span)
            shifted = linear // rest
            result[axis] = shifted if axis == before[0] else shifted % size
            rest *= size
    return result


def _groups(
    b: Builder, old: list[str], new: list[str], span: Span | None
) -> list[tuple[list[str], list[str]]]:
    """Pair the shortest runs of old and new axes with the same number of elements."""
    groups: list[tuple[list[str], list[str]]] = []
    while old or new:
        if old and new and old[0] == new[0]:
            groups.append(([old.pop(0)], [new.pop(0)]))
            continue
        before, after = [old.pop(0)] if old else [], [new.pop(0)] if new else []
        sizes = [_product(b, before, span), _product(b, after, span)]
        while sizes[0] != sizes[1]:
            side, rest = (before, old) if sizes[0] < sizes[1] else (after, new)
            if not rest:
                raise ShapeError(
                    f"a value of {sizes[0]} elements along {', '.join(before)} is reshaped to "
                    f"{sizes[1]} along {', '.join(after)}",
                    span=span,
                    expected="axes whose sizes multiply to the same number",
                    mend="check the sizes of the axes",
                )
            side.append(rest.pop(0))
            sizes = [_product(b, before, span), _product(b, after, span)]
        groups.append((before, after))
    return groups


def _product(b: Builder, axes: Sequence[str], span: Span | None) -> int:
    total = 1
    for axis in axes:
        total *= _size(b, axis, span)
    return total


def _size(b: Builder, axis: str, span: Span | None) -> int:
    extent = b.plan.axes[axis].extent
    if not extent.is_const:
        raise ShapeError(
            f"a reshape needs the size of {axis}",
            span=span,
            expected="sizes that are known when compiling, for the axes that are split or merged",
            mend=f"bind {axis} when compiling",
        )
    return extent.const
