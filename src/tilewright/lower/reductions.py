"""Reductions and contractions: over registers, serial steps, lanes and warps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tilewright.base.dtypes import DType, Kind, f32, f64, i32
from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Cast,
    Const,
    LaneXor,
    Mma,
    Read,
    Reduce,
    ReducedAxis,
    RegRef,
    Value,
)  # fmt: skip
from tilewright.lower.access import load_shared, store_shared
from tilewright.lower.builder import Builder, Fragment, Placed
from tilewright.lower.convert import sorted_axes, through_shared
from tilewright.lower.dependencies import contract_layouts, layout_of, runs_backwards
from tilewright.lower.values import (
    demand,
    expression,
    is_zero_outside,
    masked,
    read_ring,
)  # fmt: skip
from tilewright.mapping.layouts import Tiled, registers_per_thread
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Layout, LayoutDigit, Place
from tilewright.target.model import MmaAtom

MOST_PARTS = 128  # registers for the partial results of all warps at once


def identity(name: str, dtype: DType) -> float | int:
    """The value that changes nothing under a reduction."""
    if name in ("add", "mul"):
        return int(name == "mul")
    if dtype.kind is Kind.FLOAT:
        return float("-inf") if name == "max" else float("inf")
    top = (1 << (dtype.bits - 1)) - 1
    return -top - 1 if name == "max" else top


def accumulated(dtype: DType) -> DType:
    """The element type in which a reduction or a scan of `dtype` is carried out."""
    if dtype.kind is Kind.FLOAT:
        return dtype if dtype == f64 else f32
    return dtype if dtype.bits >= 32 else i32


def emit_reduce(b: Builder, op: ops.ReduceOp) -> Fragment:
    """Sum registers within each thread and step, then lanes by shuffles, then warps."""
    axis = op.axis
    tiled = layout_of(b, op.value)
    rest = tiled.project(op.type.axes)
    wide = accumulated(op.type.dtype)
    neutral = identity(op.name, wide)
    made = b.fragment(f"v{op.id}_{op.name}", wide, rest, op.span)
    placed = b.place(rest.layout)
    start = Const(neutral, wide)
    b.emit(Assign(placed.over, made.ref(placed.registers()), start, op.span))
    with ExitStack() as stack:
        if b.is_serial(axis) and axis not in b.enclosing[op.id]:
            backwards = runs_backwards(b, axis, (op.value,))
            stack.enter_context(b.loop(axis, op.span, backwards=backwards))
        whole = b.place(tiled.layout)
        value = masked(b, op.value, whole, tiled, (axis,), neutral, wide)
        coordinate = b.base(axis) + whole.position(axis)
        b.emit(
            Reduce(
                op.name, whole.over_on(op.type.axes), whole.over_on((axis,)),
                made.ref(whole.registers(op.type.axes)), value,
                (ReducedAxis(axis, b.plan.axes[axis].extent, coordinate),), op.span,
            )
        )  # fmt: skip
    _combine_lanes(b, op, made, tiled.layout)
    made = _combine_warps(b, op, made, tiled.layout)
    return _finish(b, op, made)


def _combine_lanes(b: Builder, op: ops.ReduceOp, made: Fragment, layout: Layout) -> None:
    """A butterfly over each lane digit of the reduced axis: all lanes get the result."""
    placed = b.place(made.layout)
    ref = made.ref(placed.registers())
    weight = 1
    for digit in reversed(layout.at(Place.LANE)):
        if digit.axis == op.axis:
            step = weight
            while step < weight * digit.extent:
                other = LaneXor(ref, step, made.dtype)
                value = Apply(op.name, (Read(ref, made.dtype), other), made.dtype)
                b.emit(Assign(placed.over, ref, value, op.span, note=f"lanes of {op.axis}"))
                step *= 2
        weight *= digit.extent


@dataclass(frozen=True, slots=True)
class WarpParts:
    """The partial results of all warps that share an axis, in every thread.

    `digit` names them, in the order of what the warps hold; `own` is the thread's own.
    """

    parts: Fragment
    digit: str
    own: Expr


def share_warps(
    b: Builder, axis: str, made: Fragment, layout: Layout, span: Span | None
) -> WarpParts | None:
    """Exchange the warps' partial results along an axis through shared memory."""
    spread = _spread_warps(axis, made, layout)
    if spread is None:
        return None
    partial = f"{axis}_warps"
    gathered = Tiled(
        Layout(
            spread.layout.shape,
            (
                *(d for d in made.layout.digits if d.place is not Place.REGISTER),
                LayoutDigit(Place.REGISTER, spread.layout.extent(partial), partial, 1),
                *made.layout.at(Place.REGISTER),
            ),
        ),
        made.tiled.inner,
    )
    parts = through_shared(b, spread, gathered, span, f"warps share {axis}")
    return WarpParts(parts, partial, b.place(spread.layout).position(partial))


def _spread_warps(axis: str, made: Fragment, layout: Layout) -> Fragment | None:
    """The partial results as one value, with an axis that counts the warps that have them."""
    ours = [d for d in layout.at(Place.WARP) if d.axis == axis]
    if not ours:
        return None
    partial = f"{axis}_warps"
    count = 1
    places: dict[LayoutDigit, int] = {}
    for d in sorted(ours, key=lambda d: d.stride):
        places[d] = count
        count *= d.extent
    digits: list[LayoutDigit] = []
    for d in layout.digits:
        if d in places:
            digits.append(LayoutDigit(Place.WARP, d.extent, partial, places[d]))
        elif d.axis != axis:
            digits.append(d)
        elif d.place is Place.LANE:
            digits.append(replace(d, axis=None, stride=0))
    shape = (*made.layout.shape, (partial, count))
    return replace(made, tiled=Tiled(Layout(shape, tuple(digits)), made.tiled.inner))


def _combine_warps(b: Builder, op: ops.ReduceOp, made: Fragment, layout: Layout) -> Fragment:
    """Every warp combines the partial results of all."""
    spread = _spread_warps(op.axis, made, layout)
    if spread is not None:
        count = spread.layout.extent(f"{op.axis}_warps")
        if count * registers_per_thread(made.layout) > MOST_PARTS:
            return _combine_one_by_one(b, op, made, spread)
    shared = share_warps(b, op.axis, made, layout, op.span)
    if shared is None:
        return made
    total = b.fragment(f"v{op.id}_total", made.dtype, made.tiled, op.span)
    whole = b.place(shared.parts.layout)
    kept = made.layout.axes
    target = total.ref(whole.registers(kept))
    start = Const(identity(op.name, made.dtype), made.dtype)
    b.emit(Assign(whole.over_on(kept), target, start, op.span))
    value = Read(shared.parts.ref(whole.registers()), made.dtype)
    over, along = whole.over_on(kept), whole.over_on((shared.digit,))
    note = f"warps of {op.axis}"
    b.emit(Reduce(op.name, over, along, target, value, (), op.span, note))
    return total


def _combine_one_by_one(b: Builder, op: ops.ReduceOp, made: Fragment, spread: Fragment) -> Fragment:
    """The same for many results: a warp's at a time comes from shared memory."""
    partial = f"{op.axis}_warps"
    count, kept = spread.layout.extent(partial), sorted_axes(made.layout)
    shape = (count, *(made.layout.extent(a) for a in kept))
    buffer = b.buffer(f"{made.name}_exchange", made.dtype, shape, span=op.span)
    note = f"exchange: warps share {op.axis}"
    store_shared(b, buffer, (partial, *kept), (), spread, span=op.span, note=note)
    total = b.fragment(f"v{op.id}_total", made.dtype, made.tiled, op.span)
    part = b.fragment(f"v{op.id}_part", made.dtype, made.tiled, op.span)
    placed = b.place(made.layout)
    registers = placed.registers()
    start = Const(identity(op.name, made.dtype), made.dtype)
    b.emit(Assign(placed.over, total.ref(registers), start, op.span))
    value = Read(part.ref(registers), made.dtype)
    with b.unrolled(partial.lower(), count, op.span) as warp:
        load_shared(b, buffer, kept, (warp,), part, span=op.span, note=note)
        note = f"warps of {op.axis}"
        ref = total.ref(registers)
        b.emit(Reduce(op.name, placed.over, (), ref, value, (), op.span, note))
    return total


def _finish(b: Builder, op: ops.ReduceOp, made: Fragment) -> Fragment:
    """Combine with the initial value and round to the result's element type."""
    if op.init is None and made.dtype == op.type.dtype:
        return made
    placed = b.place(made.layout)
    value: Value = Read(made.ref(placed.registers()), made.dtype)
    if op.init is not None:
        init = expression(b, op.init, placed, made.tiled)
        if made.dtype != op.type.dtype:
            init = Cast(init, made.dtype)
        value = Apply(op.name, (init, value), made.dtype)
    if made.dtype != op.type.dtype:
        value = Cast(value, op.type.dtype)
    done = b.fragment(f"v{op.id}", op.type.dtype, made.tiled, op.span)
    b.emit(Assign(placed.over, done.ref(placed.registers()), value, op.span))
    return done


def emit_contract(b: Builder, op: ops.Contract, into: Fragment | None) -> Fragment:
    """``acc + lhs * rhs``; `into` holds the accumulator already and may be overwritten."""
    row, column, result = contract_layouts(b, op)
    made = into or _accumulator(b, op, result)
    contract = b.plan.contracts[op.id]
    atom = b.target.atom(contract.atom) if contract.atom else None
    first, second = (op.lhs, op.rhs) if contract.lhs_is_a else (op.rhs, op.lhs)
    with ExitStack() as stack:
        for axis in op.contracted:
            if b.is_serial(axis) and axis not in b.enclosing[op.id]:
                backwards = runs_backwards(b, axis, (op.lhs, op.rhs))
                stack.enter_context(b.loop(axis, op.span, backwards=backwards))
        if atom is not None:
            _emit_atoms(b, op, atom, made, (first, row), (second, column))
        else:
            _emit_products(b, op, made, (first, row), (second, column))
    return made


def _accumulator(b: Builder, op: ops.Contract, result: Tiled) -> Fragment:
    made = b.fragment(f"v{op.id}_acc", op.type.dtype, result, op.span)
    placed = b.place(result.layout)
    start = expression(b, op.acc, placed, result)
    b.emit(Assign(placed.over, made.ref(placed.registers()), start, op.span))
    return made


def operand_fragment(b: Builder, op: ops.Contract, number: int, tiled: Tiled) -> Fragment:
    """An operand's fragment, zero past the end of the contracted axes."""
    part = demand(b, number, tiled)
    if is_zero_outside(b, number) or not any(b.plan.axes[a].guard_extent for a in op.contracted):
        return part
    placed = b.place(tiled.layout)
    value = masked(b, number, placed, tiled, op.contracted, 0, part.dtype)
    made = b.fragment(f"{part.name}_masked", part.dtype, tiled, op.span)
    note = "terms past the end of the axis count nothing"
    b.emit(Assign(placed.over, made.ref(placed.registers()), value, op.span, note))
    return made


def _emit_atoms(
    b: Builder, op: ops.Contract, atom: MmaAtom, made: Fragment, first: tuple[int, Tiled],
    second: tuple[int, Tiled],
) -> None:  # fmt: skip
    """One tile's atoms; staged operands are loaded atom by atom along the terms."""
    k = b.plan.contracts[op.id].k
    repeats = b.plan.axes[k].tile // atom.k
    reads = [b.graph.by_id[number] for number in (first[0], second[0])]
    if repeats > 1 and all(r.id in b.rings for r in reads):
        with b.unrolled(f"{k.lower()}_chunk", repeats, op.span) as chunk:
            offset = {k: chunk * atom.k}
            row, column = (
                read_ring(b, r, _one_atom(tiled, k, atom.k), offset)
                for r, (_, tiled) in zip(reads, (first, second), strict=True)
                if isinstance(r, ops.ReadOp)
            )
            _emit_mma(b, op, atom, (made, row, column), 1, chunk)
        return
    row, column = operand_fragment(b, op, *first), operand_fragment(b, op, *second)
    _emit_mma(b, op, atom, (made, row, column), repeats, Expr.of(0))


def _one_atom(tiled: Tiled, axis: str, size: int) -> Tiled:
    """The part of an operand's layout that lies in one atom along an axis."""
    layout = tiled.layout
    shape = tuple((a, size if a == axis else n) for a, n in layout.shape)
    outer = layout.at(Place.REGISTER)[: len(layout.at(Place.REGISTER)) - tiled.inner]
    repeat = next((d for d in outer if d.axis == axis), None)
    return Tiled(Layout(shape, tuple(d for d in layout.digits if d is not repeat)), tiled.inner)


def _emit_mma(
    b: Builder, op: ops.Contract, atom: MmaAtom, parts: tuple[Fragment, Fragment, Fragment],
    repeats_k: int, chunk: Expr,
) -> None:  # fmt: skip
    """The atoms of a tile: `repeats_k` of them along the terms, the first at `chunk`."""
    contract = b.plan.contracts[op.id]
    sizes = {contract.m: atom.m, contract.n: atom.n}
    k = contract.k
    batch = [a for a in op.type.axes if a not in sizes]
    repeats = {a: b.plan.axes[a].tile // b.plan.axes[a].warps for a in batch} | {k: repeats_k}
    for axis in (contract.m, contract.n):
        if axis is not None:
            repeats[axis] = b.plan.axes[axis].tile // sizes[axis] // b.plan.axes[axis].warps
    digits = {
        axis: b.register_digit(f"{axis.lower()}_atom") if count > 1 else Expr.of(0)
        for axis, count in repeats.items()
    }
    over = tuple((str(digits[a]), count) for a, count in repeats.items() if count > 1)
    coordinate = b.base(k) + (digits[k] + chunk) * atom.k
    term = ReducedAxis(k, b.plan.axes[k].extent, coordinate)
    d, a, c = (atom_ref(part, digits) for part in parts)
    b.emit(Mma(over, atom.name, d, a, c, (term,), op.span))


def atom_ref(part: Fragment, digits: Mapping[str, Expr]) -> RegRef:
    """The first register of the atom that the digits select."""
    registers = part.layout.at(Place.REGISTER)
    outer = len(registers) - part.tiled.inner
    index = [digits[d.axis or ""] for d in registers[:outer]]
    return part.ref([*index, *(Expr.of(0) for _ in registers[outer:])])


def _emit_products(
    b: Builder, op: ops.Contract, made: Fragment, first: tuple[int, Tiled],
    second: tuple[int, Tiled],
) -> None:  # fmt: skip
    """Multiply and add, each thread for its own elements of the result."""
    row, column = operand_fragment(b, op, *first), operand_fragment(b, op, *second)
    terms = Tiled(_with_terms(made.layout, row.layout, op), made.tiled.inner)
    whole: Placed = b.place(terms.layout)
    product: Value = Apply(
        "mul",
        (_widened(row, whole, made.dtype), _widened(column, whole, made.dtype)),
        made.dtype,
    )
    reduces = tuple(
        ReducedAxis(k, b.plan.axes[k].extent, b.base(k) + whole.position(k)) for k in op.contracted
    )
    b.emit(
        Reduce(
            "add", whole.over_on(op.type.axes), whole.over_on(op.contracted),
            made.ref(whole.registers(op.type.axes)), product, reduces, op.span,
        )
    )  # fmt: skip


def _with_terms(result: Layout, operand: Layout, op: ops.Contract) -> Layout:
    extra = tuple(d for d in operand.at(Place.REGISTER) if d.axis in op.contracted)
    shape = tuple((a, n) for a, n in operand.shape if a in op.contracted)
    return Layout((*result.shape, *shape), (*result.digits, *extra))


def _widened(part: Fragment, whole: Placed, dtype: DType) -> Value:
    value = Read(part.ref(whole.registers(part.layout.axes)), part.dtype)
    return value if part.dtype == dtype else Cast(value, dtype)
