"""Operands at other coordinates: reshapes, slices, pads, gathers and the like.

An operand is evaluated at coordinates that follow from the new axes. Splitting an axis makes an
affine coordinate, merging axes a division and a remainder by a number. A gather makes one that
is data: it has the name of the register that holds it, and other coordinates may be computed
from it in turn. Nothing moves: reads simply go to other addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.base.diagnostics import ShapeError, UnsupportedError
from tilewright.base.dtypes import DType, Kind, boolean, i32, i64
from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Cast,
    Const,
    Holds,
    IndexValue,
    Indirect,
    Load,
    MemRef,
    Read,
    ScalarValue,
    Value,
)  # fmt: skip
from tilewright.lower.access import contiguous, vectorise, widest
from tilewright.lower.builder import Builder, Fragment, Placed
from tilewright.lower.values import demand, index_value, is_zero_outside
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Constraint, Div, Expr, Guard, at_least, less

Coordinates = Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class _Where:
    """The fragment under construction, the guard that its elements exist, and the coordinates
    that are data, by the names that they have in expressions."""

    placed: Placed
    tiled: Tiled
    guard: Guard
    data: Mapping[str, Read]


def remapped(b: Builder, op: ops.Reshape | ops.Remap | ops.Gather, tiled: Tiled) -> Fragment:
    """The value's fragment: its operand, element by element, at the operand's coordinates."""
    if isinstance(op, ops.Gather):
        read = _read_through(b, op.value)
        if read is not None:
            return _gathered_read(b, op, read, tiled)
    placed = b.place(tiled.layout)
    new = _coordinates(b, placed, op.type.axes)
    value = _at(b, op, new, _Where(placed, tiled, _exists(b, new), {}))
    made = b.fragment(f"v{op.id}_remapped", op.type.dtype, tiled, op.span)
    b.emit(Assign(placed.over, made.ref(placed.registers()), value, op.span))
    return made


def _coordinates(b: Builder, placed: Placed, axes: Sequence[str]) -> dict[str, Expr]:
    return {a: b.base(a) + placed.position(a) for a in axes}


def _exists(b: Builder, at: Coordinates) -> Guard:
    guard: Guard = ()
    for axis, coordinate in at.items():
        guard += b.extent_guard(axis, coordinate)
    return guard


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
        case ops.Gather():
            return _gather(b, op, at, where)
        case ops.ReadOp() if not b.graph.memory(op.memory).allocated:
            return _load(b, op, at, where)
        case ops.Constant():
            return Const(op.value, op.type.dtype)
        case ops.ScalarRead():
            return ScalarValue(op.name, op.type.dtype)
        case ops.Index():
            coordinate = at[op.type.axes[0]]
            if coordinate.variables() & where.data.keys():
                return Cast(_number(coordinate, where.data), op.type.dtype)
            return index_value(coordinate, op.type.dtype)
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
                "the result of a reduction, a contraction or a loop is reshaped, sliced or "
                "gathered from",
                span=op.span,
                expected="an operand that is read, cast or computed element by element",
                mend="rearrange the operands, or write the result and rearrange the tensor",
            )


def _load(b: Builder, op: ops.ReadOp, at: Coordinates, where: _Where) -> Value:
    """A tensor's elements; coordinates that are data go to registers of their own."""
    index: list[Expr] = []
    indirect: list[Indirect] = []
    for position, axis in enumerate(op.type.axes):
        used = at[axis].variables() & where.data.keys()
        if used:
            indirect.append(Indirect(position, _register(b, op, at[axis], where).ref))
        index.append(Expr.of(0) if used else at[axis])
    if indirect:
        _refuse_written(b, op)
    made = b.fragment(op.memory, op.type.dtype, where.tiled, op.span)
    target = made.ref(where.placed.registers())
    b.emit(
        Load(
            where.placed.over, target, MemRef(op.memory, tuple(index)), guard=where.guard,
            span=op.span, indirect=tuple(indirect),
        )
    )  # fmt: skip
    return Read(target, op.type.dtype)


def _refuse_written(b: Builder, op: ops.ReadOp) -> None:
    if op.memory in b.written:
        raise UnsupportedError(
            f"{op.memory} is gathered from and written by the same kernel",
            span=op.span,
            expected="a tensor that the kernel only reads: where data point is known to nobody",
            mend="write to another tensor",
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
    affine = tuple(c for c in inside if not c.expr.variables() & where.data.keys())
    value = _at(b, source, moved, replace(where, guard=where.guard + affine))
    fill = Const(op.fill, op.type.dtype)
    return Apply("select", (_holds(inside, where.data), value, fill), op.type.dtype)


# ---------------------------------------------------------------- gathers


def _gather(b: Builder, op: ops.Gather, at: Coordinates, where: _Where) -> Value:
    source, index = b.graph.by_id[op.value], b.graph.by_id[op.index]
    own = _coordinates(b, where.placed, index.type.axes)
    if all(at[a] == coordinate for a, coordinate in own.items()):
        part = _index_fragment(b, op, where.tiled)
        held = Read(part.ref(where.placed.registers(index.type.axes)), part.dtype)
    else:
        found = _at(b, index, {a: at[a] for a in index.type.axes}, where)
        held = _kept(b, op, found, where)
    name = held.ref.name
    inner = replace(where, data={**where.data, name: held})
    moved = {a: Expr.of(name) if a == op.axis else at[a] for a in source.type.axes}
    value = _at(b, source, moved, inner)
    if is_zero_outside(b, op.value):
        return value
    extent = b.plan.axes[op.axis].extent
    inside = (at_least(name, 0), less(name, extent))
    zero = Const(False if op.type.dtype.kind is Kind.BOOL else 0, op.type.dtype)
    return Apply("select", (_holds(inside, inner.data), value, zero), op.type.dtype)


def _gathered_read(b: Builder, op: ops.Gather, read: ops.ReadOp, tiled: Tiled) -> Fragment:
    """Rows of a tensor by index: vectors run along its contiguous axis, past no index."""
    _refuse_written(b, read)
    tensor, axes = b.tensors[read.memory], read.type.axes
    along = b.graph.by_id[op.index].type.axes
    part = _index_fragment(b, op, tiled)
    axis = contiguous(tensor, axes)
    free = axis is not None and axis != op.axis and axis not in along
    limit = widest(b, tensor, axes, axis, read.elements_per_thread) if axis and free else 1
    vector = vectorise(b.place(tiled.layout), tiled.inner, axes, axis if free else None, limit)
    at = _coordinates(b, vector.placed, op.type.axes)
    index = tuple(Expr.of(0) if a == op.axis else at[a] for a in axes)
    chosen = Indirect(axes.index(op.axis), part.ref(vector.placed.registers(along)))
    made = b.fragment(f"{read.memory}_gathered", op.type.dtype, tiled, op.span)
    b.emit(
        Load(
            vector.over, made.ref(vector.placed.registers()), MemRef(read.memory, index),
            vector.width, vector.axis, _exists(b, at), span=op.span, indirect=(chosen,),
        )
    )  # fmt: skip
    return made


def _read_through(b: Builder, number: int) -> ops.ReadOp | None:
    """The read of a global tensor that a value is, but for the order of its axes."""
    op = b.graph.by_id[number]
    match op:
        case ops.ReadOp() if not b.graph.memory(op.memory).allocated:
            return op
        case ops.View():
            return _read_through(b, op.value)
        case _:
            return None


def _index_fragment(b: Builder, op: ops.Gather, tiled: Tiled) -> Fragment:
    """A gather's indices in the layout of its result, as i32 or i64."""
    index = b.graph.by_id[op.index]
    layout = tiled.project(index.type.axes)
    part = demand(b, op.index, layout)
    if index.type.dtype.bits >= 32:
        return part
    placed = b.place(layout.layout)
    made = b.fragment(f"{part.name}_wide", i32, layout, op.span)
    value = Cast(Read(part.ref(placed.registers()), part.dtype), i32)
    b.emit(Assign(placed.over, made.ref(placed.registers()), value, op.span))
    return made


def _register(b: Builder, op: ops.Op, coordinate: Expr, where: _Where) -> Read:
    """A coordinate that is data, in a register."""
    alone = where.data.get(str(coordinate))
    return alone or _kept(b, op, _number(coordinate, where.data), where)


def _kept(b: Builder, op: ops.Op, value: Value, where: _Where) -> Read:
    """An integer value in a register of its own."""
    dtype: DType = i64 if value.dtype.bits > 32 else i32
    made = b.fragment(f"v{op.id}_index", dtype, where.tiled, op.span)
    target = made.ref(where.placed.registers())
    value = value if value.dtype == dtype else Cast(value, dtype)
    b.emit(Assign(where.placed.over, target, value, op.span))
    return Read(target, dtype)


def _number(expr: Expr, data: Mapping[str, Read]) -> Value:
    """A coordinate that is computed from data, in 64 bits."""
    affine = Expr(
        tuple((t, c) for t, c in expr.terms if not Expr(((t, c),)).variables() & data.keys()),
        expr.const,
    )
    total: Value | None = IndexValue(affine, i64) if affine != Expr.of(0) else None
    for term, coefficient in (expr - affine).terms:
        match term:
            case str():
                value: Value = Cast(data[term], i64)
            case Div(num, den):
                value = Apply("floordiv", (_number(num, data), Const(den, i64)), i64)
            case _:
                value = Apply("mod", (_number(term.num, data), Const(term.den, i64)), i64)
        if coefficient != 1:
            value = Apply("mul", (value, Const(coefficient, i64)), i64)
        total = value if total is None else Apply("add", (total, value), i64)
    return total or Const(0, i64)


def _holds(guard: Guard, data: Mapping[str, Read]) -> Value:
    """Whether a guard holds that may read data."""
    affine = tuple(c for c in guard if not c.expr.variables() & data.keys())
    parts = [_compared(c, data) for c in guard if c not in affine]
    if affine or not parts:
        parts.insert(0, Holds(affine, boolean))
    total = parts[0]
    for part in parts[1:]:
        total = Apply("and", (total, part), boolean)
    return total


def _compared(constraint: Constraint, data: Mapping[str, Read]) -> Value:
    sign = "eq" if constraint.equality else "ge"
    return Apply(sign, (_number(constraint.expr, data), Const(0, i64)), boolean)


# ---------------------------------------------------------------- reshapes


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
