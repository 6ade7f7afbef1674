"""The loop of the warps that multiply: they wait for a slot, multiply, release it, go on.

Where the loop only accumulates, the products of two steps are under way at once. Otherwise each
step's product has registers of its own; it is complete, and its slot released, before what the
author computes with it. A computed operand is made in registers, of tiles in the slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.kernel.async_ops import (
    Arrive,
    PhaseRef,
    PhaseWait,
    TileRef,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import Assign, If, Over, ReducedAxis, RegRef
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.carried import advance, carry, remember_params
from tilewright.lower.dependencies import contract_layouts
from tilewright.lower.reductions import atom_ref, operand_fragment
from tilewright.lower.rings import (
    Operand,
    Ring,
    copies,
    counter,
    declare_operand,
    declare_ring,
)
from tilewright.lower.role_tiles import load_tile
from tilewright.lower.values import INLINE, demand, expression
from tilewright.poly.expr import Expr, Guard, at_least, equal
from tilewright.poly.layout import Place
from tilewright.schedule.plan import ContractPlan, Roles
from tilewright.schedule.role_products import Factor, Multiplied, find_product
from tilewright.target.model import MmaAtom

V = Expr.of


@dataclass(frozen=True, slots=True)
class _Work:
    """What the loop multiplies: rows from tiles, columns from one, into registers."""

    found: Multiplied
    contract: ContractPlan
    atom: MmaAtom
    ring: Ring
    rows_from: Factor
    rows: tuple[Operand, ...]
    columns: Operand
    made: Fragment


def emit_pipeline(b: Builder, op: ops.Iterate, roles: Roles) -> tuple[Fragment, ...]:
    """The values that the loop carries: the copies of one role, the arithmetic of the others."""
    work = _work(b, op, roles)
    b.copies = (*b.copies, copies(b, work.ring, (*work.rows, work.columns)))
    if work.found.in_place:
        start = op.inits[0]
        if not _is_zero(b, start):
            _set(b, work, start)
        if work.rows_from.computed:
            _one_at_a_time(b, op, work)
        else:
            _overlapped(b, op, work)
        return (work.made,)
    return _with_arithmetic(b, op, work)


def _work(b: Builder, op: ops.Iterate, roles: Roles) -> _Work:
    found = find_product(b.graph, b.declared)
    contract = b.plan.contracts[roles.product]
    atom = b.target.atom(contract.atom or "")
    if isinstance(found, str) or atom is None:
        raise TypeError(f"%{roles.product} has no warpgroup instruction")
    first, second = (found.lhs, found.rhs) if contract.lhs_is_a else (found.rhs, found.lhs)
    m, n, k = contract.m or "", contract.n or "", contract.k
    rows = tuple(declare_operand(b, read, m, k) for read in first.reads)
    columns = declare_operand(b, second.reads[0], n, k)
    ring = declare_ring(b, op, roles)
    product = found.product
    made = b.fragment(f"v{product.id}_acc", product.type.dtype, contract_layouts(b, product)[2],
                      product.span)  # fmt: skip
    return _Work(found, contract, atom, ring, first, rows, columns, made)


def _is_zero(b: Builder, number: int) -> bool:
    op = b.graph.by_id[number]
    return isinstance(op, ops.Constant) and op.value == 0


def _set(b: Builder, work: _Work, number: int) -> None:
    """Set the product's registers to what it starts at."""
    placed = b.place(work.made.layout)
    value = expression(b, number, placed, work.made.tiled)
    b.emit(Assign(placed.over, work.made.ref(placed.registers()), value, work.found.product.span))


# ---------------------------------------------------------------- the three kinds of loops


def _overlapped(b: Builder, op: ops.Iterate, work: _Work) -> None:
    """Add each step's product onto the same registers; two steps' are under way at once."""
    ring = work.ring
    with b.loop(op.axis, op.span) as step:
        count = counter(b, op.axis, step)
        _await_slot(b, work, count, op)
        b.emit(WarpgroupFence())
        b.emit(_multiply(b, work, ring.slot(count), step, None))
        b.emit(WarpgroupCommit())
        b.emit(WarpgroupWait(1))
        before = PhaseRef(ring.empty, ring.slot(count + (ring.stages - 1)))
        note = "the products before have read their slot"
        released = (equal(b.role_lane, 0), at_least(step, 1))
        b.emit(If(released, (Arrive(before, note=note),)))
    b.emit(WarpgroupWait(0))
    _release(b, work, counter(b, op.axis, b.plan.axes[op.axis].steps - 1))


def _one_at_a_time(b: Builder, op: ops.Iterate, work: _Work) -> None:
    """Make the row operand of the slot's tiles, and add its product onto the same registers."""
    with b.loop(op.axis, op.span) as step:
        count = counter(b, op.axis, step)
        _await_slot(b, work, count, op)
        _product(b, work, count, step)


def _with_arithmetic(b: Builder, op: ops.Iterate, work: _Work) -> tuple[Fragment, ...]:
    """Complete each step's product, then compute with it what the loop carries on."""
    carried = [carry(b, op, i) for i in range(len(op.inits))]
    product, made = work.found.product, work.made
    with b.loop(op.axis, op.span) as step:
        remember_params(b, op, carried)
        count = counter(b, op.axis, step)
        _prefetch(b, work, op)
        if not _is_zero(b, product.acc):
            _set(b, work, product.acc)
        _await_slot(b, work, count, op)
        _product(b, work, count, step)
        b.scopes[-1].memo[product.id, None] = made
        b.scopes[-1].memo[product.id, made.tiled] = made
        advance(b, op, carried)
    return tuple(carried)


def _await_slot(b: Builder, work: _Work, count: Expr, op: ops.Iterate) -> None:
    ring = work.ring
    b.emit(PhaseWait(PhaseRef(ring.full, ring.slot(count)), ring.round(count), op.span))


def _release(b: Builder, work: _Work, count: Expr) -> None:
    arrive = Arrive(PhaseRef(work.ring.empty, work.ring.slot(count)))
    b.emit(If((equal(b.role_lane, 0),), (arrive,)))


def _product(b: Builder, work: _Work, count: Expr, step: Expr) -> None:
    """A step's whole product, from the moment that its slot is full until it is released."""
    slot = work.ring.slot(count)
    rows = _computed_rows(b, work, slot) if work.rows_from.computed else None
    b.emit(WarpgroupFence())
    b.emit(_multiply(b, work, slot, step, rows))
    b.emit(WarpgroupCommit())
    b.emit(WarpgroupWait(0))
    _release(b, work, count)


def _computed_rows(b: Builder, work: _Work, slot: Expr) -> Fragment:
    """The row operand in the instruction's registers."""
    product = work.found.product
    tiled = contract_layouts(b, product)[0]
    for operand in work.rows:
        load_tile(b, operand, slot, tiled.project(operand.read.type.axes))
    return operand_fragment(b, product, work.rows_from.value, tiled)


def _prefetch(b: Builder, work: _Work, op: ops.Iterate) -> None:
    """Start to read what a step needs of tensors before its tiles and its product are there."""
    product, tiled = work.found.product, work.made.tiled
    for number in _outside(b, op, product):
        axes = b.graph.by_id[number].type.axes
        extra = [a for a in axes if a not in tiled.layout.axes]
        if all(b.plan.axes[a].tile == 1 for a in extra):
            demand(b, number, tiled.project(axes).with_units(extra))


def _outside(b: Builder, op: ops.Iterate, product: ops.Contract) -> list[int]:
    """The values of the step that depend on neither product nor carried values, but that what
    does depends on."""
    depends = {product.id, *op.params}
    found: dict[int, None] = {}
    for inner in op.body:
        operands = (product.acc,) if inner is product else ops.operands(inner)
        if inner.id in depends or any(n in depends for n in operands):
            depends.add(inner.id)
            found.update(dict.fromkeys(n for n in operands if n not in depends))
    body = {inner.id for inner in op.body}
    return [n for n in found if n in body and not isinstance(b.graph.by_id[n], INLINE)]


# ---------------------------------------------------------------- instructions


def _multiply(
    b: Builder, work: _Work, slot: Expr, step: Expr, rows: Fragment | None
) -> WarpgroupMma:
    """All instructions of one step; the row operand is in registers where given."""
    product, contract, made, atom = work.found.product, work.contract, work.made, work.atom
    looped, k = work.ring.axis, contract.k
    outer = made.layout.at(Place.REGISTER)[: -made.tiled.inner]
    counts = {d.axis: d.extent for d in outer if d.axis}
    repeats = {axis: b.register_digit(f"{axis.lower()}_atom") for axis in counts}
    tile = b.plan.axes[k].tile
    shared = (work.columns, *(work.rows if rows is None else ()))
    panel_terms = min([tile, *(o.width for o in shared if not o.across)])
    panel, depth = b.register_digit("k_panel"), b.register_digit("k_atom")
    digits: list[tuple[Expr, int]] = [
        (panel, tile // panel_terms), (depth, panel_terms // atom.k),
        *((repeats[a], n) for a, n in counts.items()),
    ]  # fmt: skip
    over: Over = tuple((str(v), n) for v, n in digits if n > 1)
    unit: dict[str, Expr | int | str] = {str(v): 0 for v, n in digits if n == 1}
    within, panel = (depth * atom.k).substitute(unit), panel.substitute(unit)
    term = panel * panel_terms + within
    chosen = {axis: value.substitute(unit) for axis, value in repeats.items()}

    def shared_tile(operand: Operand, size: int) -> TileRef:
        row = _first_row(b, made, operand.rows, size, chosen)
        return operand.tile(slot, row, panel, term if operand.across else within)

    a: TileRef | RegRef
    if rows is None:
        a = shared_tile(work.rows[0], atom.m)
    else:
        atoms = (panel * panel_terms + within) // atom.k
        a = atom_ref(rows, {**chosen, k: atoms})
    begun = step * tile + term  # zero in the first product of all
    coordinate = b.step_start(k, step) + term if looped == k else term
    reduces = [ReducedAxis(k, b.plan.axes[k].extent, coordinate)]
    if looped != k and looped in product.contracted:
        reduces.append(ReducedAxis(looped, b.plan.axes[looped].extent, step))
    start = work.found.loop.inits[0] if work.found.in_place else product.acc
    first: Guard = (at_least(begun if work.found.in_place else term, 1),)
    return WarpgroupMma(
        over, atom.name, atom_ref(made, chosen), a, shared_tile(work.columns, atom.n),
        first if _is_zero(b, start) else (), tuple(reduces), product.span,
    )  # fmt: skip


def _first_row(
    b: Builder, made: Fragment, axis: str, size: int, chosen: Mapping[str, Expr]
) -> Expr:
    """The first row (or column) of the warpgroup's instruction, `size` of them each."""
    placed = b.place(made.layout)
    total = chosen.get(axis, V(0)) * size
    for digit, value in zip(placed.layout.digits, placed.variables, strict=True):
        if digit.place is Place.WARP and digit.axis == axis and digit.stride >= size:
            total = total + value * digit.stride
    return total
