"""The loop of the warps that multiply: they wait for a slot, multiply, release it, go on.

Where the loop only accumulates, the products of two steps are under way at once. Otherwise each
step's product has registers of its own; it is complete, and its slot released, before what the
author computes with it. A computed operand is made in registers, of tiles in the slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.graph import ops
from tilewright.kernel.async_ops import (
    PhaseRef,
    PhaseWait,
    TileRef,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import (
    Assign,
    Body,
    If,
    Load,
    Loop,
    Over,
    ReducedAxis,
    RegRef,
    Statement,
)  # fmt: skip
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.carried import advance, carry, remember_params
from tilewright.lower.dependencies import contract_layouts
from tilewright.lower.own_terms import clear_others
from tilewright.lower.reductions import atom_ref, operand_fragment
from tilewright.lower.rings import (
    Operand,
    Ring,
    copies,
    counter,
    declare_operand,
    declare_ring,
    released,
)
from tilewright.lower.role_strips import StripRing, declare_strip, load_strip
from tilewright.lower.role_tiles import load_tile
from tilewright.lower.turns import await_turn, pass_turn
from tilewright.lower.values import INLINE, demand, expression
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr, Guard, at_least, equal, less
from tilewright.poly.layout import Place
from tilewright.schedule.plan import ContractPlan, Roles
from tilewright.schedule.role_products import Factor, Multiplied, find_product, made_of
from tilewright.schedule.strips import strips_of
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
    strips: tuple[StripRing, ...]
    made: Fragment


def emit_pipeline(b: Builder, op: ops.Iterate, roles: Roles) -> tuple[Fragment, ...]:
    """The values that the loop carries: the copies of one role, the arithmetic of the others."""
    work = _work(b, op, roles)
    await_turn(b, roles)
    b.copies = (*b.copies, copies(b, work.ring, (*work.rows, work.columns), work.strips))
    if work.found.in_place:
        start = op.inits[0]
        if not _begun_by_guard(b, start):
            _set(b, work, start)
        if work.rows_from.computed:
            whole = _branches(b, work) or b.plan.axes[work.contract.k].tile == work.atom.k
            (_one_at_a_time if whole else _rolling)(b, op, work, roles)
        else:
            _overlapped(b, op, work, roles)
        return (work.made,)
    return _with_arithmetic(b, op, work, roles)


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
    copied = {read.id for read in (*first.reads, *second.reads)}
    found_strips = strips_of(b.graph, op, copied, b.plan.axes, b.declared)
    strips = tuple(declare_strip(b, strip) for strip in found_strips)
    ring = declare_ring(b, op)
    product = found.product
    made = b.fragment(f"v{product.id}_acc", product.type.dtype, contract_layouts(b, product)[2],
                      product.span)  # fmt: skip
    return _Work(found, contract, atom, ring, first, rows, columns, strips, made)


def _is_zero(b: Builder, number: int) -> bool:
    op = b.graph.by_id[number]
    return isinstance(op, ops.Constant) and op.value == 0


def _begun_by_guard(b: Builder, start: int) -> bool:
    """Whether the first instruction of a sum can tell that it is: it replaces the registers.

    Who has no steps, or some of them, sets them to zero. (Else ptxas lets no two instructions
    overlap: to it the registers may be read without having been written.)
    """
    return _is_zero(b, start) and b.plan.own_terms is None and b.share is None


def _set(b: Builder, work: _Work, number: int) -> None:
    """Set the product's registers to what it starts at."""
    placed = b.place(work.made.layout)
    value = expression(b, number, placed, work.made.tiled)
    b.emit(Assign(placed.over, work.made.ref(placed.registers()), value, work.found.product.span))


# ---------------------------------------------------------------- the three kinds of loops


def _overlapped(b: Builder, op: ops.Iterate, work: _Work, roles: Roles) -> None:
    """Add each step's product onto the same registers; two steps' are under way at once."""
    ring = work.ring
    with b.loop(op.axis, op.span) as step, b.guarded(_own_step(b, step), None, op.span):
        count = counter(b, op.axis, step)
        _await_slot(b, work, count, op)
        clear_others(b, (*work.rows, work.columns), ring.slot(count), step)
        b.emit(WarpgroupFence())
        b.emit(_multiply(b, work, ring.slot(count), step, _Terms.all(b, work)))
        b.emit(WarpgroupCommit())
        pass_turn(b, roles, step, b.plan.axes[op.axis].steps)
        b.emit(WarpgroupWait(1))
        before = PhaseRef(ring.empty, ring.slot(count + (ring.stages - 1)))
        note = "the products before have read their slot"
        b.emit(If((equal(b.role_lane, 0), *_later(b, step)), released(b, before, note)))
    b.emit(WarpgroupWait(0))
    _release(b, work, counter(b, op.axis, b.plan.axes[op.axis].steps - 1))


def _own_step(b: Builder, step: Expr) -> Guard:
    """Holds in the block's steps of the tile; empty where it has all."""
    return b.share.has(step) if b.share is not None else ()


def _later(b: Builder, step: Expr) -> Guard:
    """Holds where the block has had a step before in this tile."""
    first: Guard = (at_least(step, 1),)
    return first if b.share is None else (*first, at_least(b.share.count(step), 1))


def _one_at_a_time(b: Builder, op: ops.Iterate, work: _Work, roles: Roles) -> None:
    """Make each step's whole row operand, and add its product onto the same registers."""
    with b.loop(op.axis, op.span) as step:
        count = counter(b, op.axis, step)
        _await_slot(b, work, count, op)
        _start_product(b, work, count, step)
        pass_turn(b, roles, step, b.plan.axes[op.axis].steps)
        _end_product(b, work, count)


def _rolling(b: Builder, op: ops.Iterate, work: _Work, roles: Roles) -> None:
    """Make the row operand part by part, and add each part's product onto the same registers.

    A part's registers are made anew when the instructions that read them a step ago are done.
    """
    ring = work.ring
    with b.loop(op.axis, op.span) as step:
        count = counter(b, op.axis, step)
        _await_slot(b, work, count, op)
        before = PhaseRef(ring.empty, ring.slot(count + (ring.stages - 1)))
        note = "the products before have read their slot"
        one = (equal(b.role_lane, 0), at_least(step, 1))
        _computed_product(b, work, count, step, (If(one, released(b, before, note)),))
        pass_turn(b, roles, step, b.plan.axes[op.axis].steps)
    b.emit(WarpgroupWait(0))
    _release(b, work, counter(b, op.axis, b.plan.axes[op.axis].steps - 1))


def _with_arithmetic(
    b: Builder, op: ops.Iterate, work: _Work, roles: Roles
) -> tuple[Fragment, ...]:
    """Complete each step's product, then compute with it what the loop carries on."""
    carried = [carry(b, op, i) for i in range(len(op.inits))]
    product, made = work.found.product, work.made
    with b.loop(op.axis, op.span) as step:
        remember_params(b, op, carried)
        count = counter(b, op.axis, step)
        if not _is_zero(b, product.acc):
            _set(b, work, product.acc)
        _await_slot(b, work, count, op)
        _start_product(b, work, count, step)
        _read_beside(b, work, op, work.ring.slot(count))
        _end_product(b, work, count)
        b.scopes[-1].memo[product.id, None] = made
        b.scopes[-1].memo[product.id, made.tiled] = made
        pass_turn(b, roles, step, b.plan.axes[op.axis].steps)
        advance(b, op, carried)
    return tuple(carried)


def _await_slot(b: Builder, work: _Work, count: Expr, op: ops.Iterate) -> None:
    ring = work.ring
    b.emit(PhaseWait(PhaseRef(ring.full, ring.slot(count)), ring.round(count), op.span))


def _release(b: Builder, work: _Work, count: Expr) -> None:
    phase = PhaseRef(work.ring.empty, work.ring.slot(count))
    steps = b.plan.axes[work.ring.axis].steps
    some: Guard = () if b.plan.own_terms is None else (at_least(steps, 1),)
    if b.share is not None:  # who has the last step needs its slot no more
        some = (less(count, b.share.stream.steps),)
    b.emit(If((equal(b.role_lane, 0), *some), released(b, phase)))


def _start_product(b: Builder, work: _Work, count: Expr, step: Expr) -> None:
    """Start all instructions of a step, whose slot is full."""
    if work.rows_from.computed:
        _computed_product(b, work, count, step, ())
    else:
        b.emit(WarpgroupFence())
        b.emit(_multiply(b, work, work.ring.slot(count), step, _Terms.all(b, work)))
        b.emit(WarpgroupCommit())


def _end_product(b: Builder, work: _Work, count: Expr) -> None:
    b.emit(WarpgroupWait(0))
    _release(b, work, count)


# Operations whose exact results take a branch: instructions under way would wait at it.
BRANCHING = frozenset((
    "div", "floordiv", "mod", "pow", "reciprocal", "log", "log2", "sqrt", "rsqrt", "tanh", "sin",
    "cos", "erf",
))  # fmt: skip


def _branches(b: Builder, work: _Work) -> bool:
    made = made_of(b.graph, work.rows_from.value)
    return any(isinstance(op, ops.Elementwise) and op.name in BRANCHING for op in made)


def _computed_product(b: Builder, work: _Work, count: Expr, step: Expr, released: Body) -> None:
    """The row operand in the instruction's registers, and its products, one instruction's terms
    after the other. `released` follows when the products of the step before are done."""
    slot, k, size = work.ring.slot(count), work.contract.k, work.atom.k
    tiled = contract_layouts(b, work.found.product)[0]
    with b.aside() as making:
        for operand in work.rows:
            axes = b.graph.by_id[operand.split.value].type.axes
            load_tile(b, operand, slot, tiled.project(axes))
        made = {o.id for o in made_of(b.graph, work.rows_from.value)}
        for held in work.strips:
            if held.strip.read.id in made:
                load_strip(b, held, slot, tiled.project(held.strip.read.type.axes))
        rows = operand_fragment(b, work.found.product, work.rows_from.value, tiled)
    parts = b.plan.axes[k].tile // size
    part = _part_digit(b, tiled, k) if parts > 1 else V(0)
    over: Over = ((str(part), parts),) if parts > 1 else ()
    if not over or _branches(b, work):
        terms = _Terms(part * size, over, rows)
        multiply = _multiply(b, work, slot, step, terms)
        for statement in (*making, WarpgroupFence(), multiply, WarpgroupCommit()):
            b.emit(statement)
        return
    first, each = _split(making, str(part))
    body: Body = (
        WarpgroupWait(parts - 1),
        *((If((at_least(part, parts - 1),), released),) if released else ()),
        *each, WarpgroupFence(),
        _multiply(b, work, slot, step, _Terms(part * size, (), rows)), WarpgroupCommit(),
    )  # fmt: skip
    for statement in first:
        b.emit(statement)
    b.emit(Loop(str(part), V(parts), body, unroll=True, span=work.found.product.span))


def _part_digit(b: Builder, tiled: Tiled, k: str) -> Expr:
    """The variable that counts an operand's atoms along its terms."""
    placed = b.place(tiled.layout)
    digits = zip(placed.layout.digits, placed.variables, strict=True)
    return next(v for d, v in digits if d.place is Place.REGISTER and d.axis == k)


def _split(making: Sequence[Statement], digit: str) -> tuple[Body, Body]:
    """Statements that do not count along a digit, and those that do, for one value of it."""
    first: list[Statement] = []
    each: list[Statement] = []
    for statement in making:
        match statement:
            case Load() | Assign() if any(name == digit for name, _ in statement.over):
                over = tuple(o for o in statement.over if o[0] != digit)
                each.append(replace(statement, over=over))
            case _:
                first.append(statement)
    return tuple(first), tuple(each)


def _read_beside(b: Builder, work: _Work, op: ops.Iterate, slot: Expr) -> None:
    """Read and compute what goes with the product while the instructions run."""
    product, tiled = work.found.product, work.made.tiled
    made = {o.id for o in made_of(b.graph, work.rows_from.value)}
    for held in work.strips:
        read = held.strip.read
        if not set(b.graph.uses[read.id]) <= made:
            load_strip(b, held, slot, _with_product(tiled, read.type.axes))
    for number in _outside(b, op, product):
        axes = b.graph.by_id[number].type.axes
        if all(b.plan.axes[a].tile == 1 for a in axes if a not in tiled.layout.axes):
            demand(b, number, _with_product(tiled, axes))


def _with_product(tiled: Tiled, axes: Sequence[str]) -> Tiled:
    """The layout of a value that goes with the product, element by element."""
    return tiled.project(axes).with_units([a for a in axes if a not in tiled.layout.axes])


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


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of a step that one statement sums: the first of each instruction, counted by
    `over`, and the row operand where it is in registers."""

    term: Expr
    over: Over
    rows: Fragment | None = None

    @staticmethod
    def all(b: Builder, work: _Work) -> _Terms:
        """All terms of a step, panel by panel of shared memory."""
        tile, size = b.plan.axes[work.contract.k].tile, work.atom.k
        shared = (*work.rows, work.columns)
        panel_terms = min([tile, *(o.width for o in shared if not o.across)])
        panel, depth = b.register_digit("k_panel"), b.register_digit("k_atom")
        digits = ((panel, tile // panel_terms), (depth, panel_terms // size))
        unit: dict[str, Expr | int | str] = {str(v): 0 for v, n in digits if n == 1}
        term = (panel * panel_terms + depth * size).substitute(unit)
        return _Terms(term, tuple((str(v), n) for v, n in digits if n > 1))


def _multiply(b: Builder, work: _Work, slot: Expr, step: Expr, terms: _Terms) -> WarpgroupMma:
    """The instructions of a step that sum the given terms."""
    product, made, atom = work.found.product, work.made, work.atom
    looped, k, term = work.ring.axis, work.contract.k, terms.term
    outer = made.layout.at(Place.REGISTER)[: -made.tiled.inner]
    repeats = {d.axis: (b.register_digit(f"{d.axis.lower()}_atom"), d.extent)
               for d in outer if d.axis}  # fmt: skip
    chosen = {axis: digit for axis, (digit, _) in repeats.items()}
    over: Over = (*terms.over, *((str(digit), n) for digit, n in repeats.values()))

    def tile(operand: Operand, size: int) -> TileRef:
        row = _first_row(b, made, operand.rows, size, chosen)
        if operand.across or operand.panels == 1:
            return operand.tile(slot, row, V(0), term)
        return operand.tile(slot, row, term // operand.width, term % operand.width)

    a: TileRef | RegRef
    if terms.rows is None:
        a = tile(work.rows[0], atom.m)
    else:
        a = atom_ref(terms.rows, {**chosen, k: term // atom.k})
    coordinate = b.step_start(k, step) + term if looped == k else term
    by_data = b.plan.own_terms is not None
    extent = b.last_term - b.starts[k] if by_data else b.plan.axes[k].extent
    counted = ReducedAxis(k, extent, coordinate)
    if looped != k and work.found.in_place:  # the terms of both axes, as one number
        size = b.plan.axes[k].tile
        whole = b.plan.axes[looped].extent * size
        counted = ReducedAxis(f"{looped}_{k}", whole, step * size + term)
    start = work.found.loop.inits[0] if work.found.in_place else product.acc
    begun = step * b.plan.axes[looped].tile + term if work.found.in_place else term
    first: Guard = (at_least(begun, 1),) if _begun_by_guard(b, start) else ()
    return WarpgroupMma(
        over, atom.name, atom_ref(made, chosen), a, tile(work.columns, atom.n),
        first, (counted,), product.span,
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
