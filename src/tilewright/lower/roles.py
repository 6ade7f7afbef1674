"""Warp roles: one warpgroup copies operands ahead by the copy engine, the others multiply.

The warpgroup that copies keeps a ring of slots filled. Slot `c % stages` holds the tiles of step
`c`, a counter that runs on over all tiles of a block, so both roles agree on slot and parity
without a word. A slot is *full* when its bytes have landed, *empty* when every warp that
multiplies has released it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    BulkLoad,
    BulkWait,
    InitPhases,
    NamedBarrier,
    PhaseRef,
    Phases,
    PhaseWait,
    SetRegisters,
    TensorMap,
    TileRef,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import (
    Assign,
    Barrier,
    Body,
    Decode,
    If,
    Loop,
    MemRef,
    Over,
    ReducedAxis,
    Shared,
)
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.bulk import EXCHANGE, swizzle_of
from tilewright.lower.dependencies import contract_layouts
from tilewright.lower.grid import Grid
from tilewright.lower.reductions import atom_ref
from tilewright.lower.values import expression
from tilewright.poly.expr import Expr, Guard, at_least, equal, less
from tilewright.poly.layout import Place
from tilewright.schedule.plan import Roles
from tilewright.schedule.roles import GROUP_WARPS, contiguous_position, source_of
from tilewright.target.model import MmaAtom

V = Expr.of
ROW_BYTES = 128  # of an operand in shared memory, at the most


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand's ring: `panels` of rows of `width` elements, contiguous in the tensor.

    `across`: these rows run along the operand's own axis `rows`, not along the terms.
    """

    ring: Shared
    box: TensorMap
    read: ops.ReadOp
    rows: str
    across: bool
    panels: int
    width: int

    @property
    def slot_bytes(self) -> int:
        return self.ring.elements // self.ring.shape[0] * self.ring.dtype.bytes

    def tile(self, slot: Expr, row: Expr, panel: Expr, depth: Expr) -> TileRef:
        """The part that one instruction reads, from its first row and term on.

        The term is `depth` in the panel; `panel` is 0 where rows run across.
        """
        if self.across:
            index = (slot, row // self.width, depth, row % self.width)
            return TileRef(self.ring.name, index, 3, 2, 1)
        index = (slot, panel, row, depth)
        return TileRef(self.ring.name, index, 2, 3, 1 if self.panels > 1 else -1)


@dataclass(frozen=True, slots=True)
class _Ring:
    """The counter's slots: phases for both directions, and the loop's axis."""

    full: str
    empty: str
    stages: int
    axis: str

    def slot(self, count: Expr) -> Expr:
        return count % self.stages

    def round(self, count: Expr) -> Expr:
        return count // self.stages


# ---------------------------------------------------------------- the kernel's frame


def frame(b: Builder, roles: Roles, grid: Grid, body: Body) -> Body:
    """The kernel's statements: the roles' work, each in the block's tile loops."""
    one = (equal(b.role_warp, 0), equal(b.role_lane, 0))
    drain = (If(one, (BulkWait(0),)),) if any(_stores(b)) else ()
    total = roles.consumers + 1
    return (
        *grid.head,
        Decode(V("warp"), ((b.role, V(total)), (b.role_warp, V(GROUP_WARPS)))),
        Decode(V("lane"), ((b.role_lane, V(b.plan.warp_size)),)),
        *b.decodes,
        InitPhases(tuple(p.name for p in b.phases)),
        Barrier("the phases are set up"),
        If(
            (equal(b.role, roles.consumers),),
            (*_registers(roles, copies=True), If(one, grid.wrap(b.copies))),
        ),
        If(
            (less(b.role, roles.consumers),),
            (*_registers(roles, copies=False), *b.computing, *grid.wrap(body), *drain),
        ),
    )


def meeting(roles: Roles, warp_size: int) -> Callable[[str], NamedBarrier]:
    """Barriers of the warps that compute."""
    threads = roles.consumers * GROUP_WARPS * warp_size
    return lambda note: NamedBarrier(V(EXCHANGE), threads, note=note)


def _stores(b: Builder) -> list[str]:
    """Outputs that the copy engine writes."""
    return [m.name for m in b.maps if m.tensor in b.written]


def _registers(roles: Roles, *, copies: bool) -> Body:
    """Registers move from the warpgroup that copies to the others, where those need more."""
    if roles.consumers == 1:
        return ()  # two warpgroups have as many as instructions can name
    count = roles.producer_registers if copies else roles.consumer_registers
    return (SetRegisters(count, grow=not copies),)


# ---------------------------------------------------------------- the loop


def emit_pipeline(b: Builder, op: ops.Iterate, roles: Roles) -> Fragment:
    """The product of a tile: the copies of one role, and the arithmetic of the others."""
    product = b.graph.by_id[roles.product]
    contract = b.plan.contracts[roles.product]
    atom = b.target.atom(contract.atom or "")
    if not isinstance(product, ops.Contract) or atom is None:
        raise TypeError(f"%{roles.product} has no warpgroup instruction")
    pair = (product.lhs, product.rhs) if contract.lhs_is_a else (product.rhs, product.lhs)
    axes = (contract.m or "", contract.n or "")
    operands = [_operand(b, n, axis, op.axis) for n, axis in zip(pair, axes, strict=True)]
    ring = _declare_ring(b, op, roles)
    b.copies = (*b.copies, _copies(b, ring, operands))
    made = b.fragment(f"v{product.id}_acc", product.type.dtype, contract_layouts(b, product)[2],
                      product.span)  # fmt: skip
    starts_at_zero = _is_zero(b, op.inits[0])
    if not starts_at_zero:
        placed = b.place(made.layout)
        start = expression(b, op.inits[0], placed, made.tiled)
        b.emit(Assign(placed.over, made.ref(placed.registers()), start, product.span))
    released = (equal(b.role_lane, 0),)
    with b.loop(op.axis, op.span) as step:
        count = b.turn * _steps(b, op.axis) + step
        b.emit(PhaseWait(PhaseRef(ring.full, ring.slot(count)), ring.round(count), op.span))
        b.emit(WarpgroupFence())
        b.emit(_multiply(b, product, atom, made, operands, ring.slot(count), step, starts_at_zero))
        b.emit(WarpgroupCommit())
        b.emit(WarpgroupWait(1))
        before = PhaseRef(ring.empty, ring.slot(count + (ring.stages - 1)))
        note = "the products before have read their slot"
        b.emit(If((*released, at_least(step, 1)), (Arrive(before, note=note),)))
    b.emit(WarpgroupWait(0))
    last = b.turn * _steps(b, op.axis) + (b.plan.axes[op.axis].steps - 1)
    b.emit(If(released, (Arrive(PhaseRef(ring.empty, ring.slot(last))),)))
    return made


def _steps(b: Builder, axis: str) -> int:
    """Steps of a tile; a kernel whose blocks go on to further tiles knows their number."""
    steps = b.plan.axes[axis].steps
    return steps.const if b.persistent else 0


def _is_zero(b: Builder, number: int) -> bool:
    op = b.graph.by_id[number]
    return isinstance(op, ops.Constant) and op.value == 0


def _declare_ring(b: Builder, op: ops.Iterate, roles: Roles) -> _Ring:
    stages = b.plan.stages
    full, empty = b.name("full"), b.name("empty")
    b.phases += [
        Phases(full, stages, 1, span=op.span),
        Phases(empty, stages, GROUP_WARPS * roles.consumers, span=op.span),
    ]
    return _Ring(full, empty, stages, op.axis)


def _operand(b: Builder, number: int, rows: str, terms: str) -> Operand:
    """Declare an operand's ring and its box."""
    read = source_of(b.graph, number)
    if read is None:
        raise TypeError(f"%{number} is not read from a tensor")
    tensor, size = b.tensors[read.memory], read.type.dtype.bytes
    last = contiguous_position(tensor)
    along = read.type.axes[last or 0]
    across = along == rows
    other = terms if across else rows
    tile = b.plan.axes[along].tile
    width = min(ROW_BYTES, max(32, 1 << (tile * size - 1).bit_length())) // size
    panels = -(-tile // width)
    shape = (b.plan.stages, panels, b.plan.axes[other].tile, width)
    ring = b.buffer(f"{read.memory}_ring", read.type.dtype, shape,
                    swizzle=swizzle_of(width, size), managed=True, span=read.span)  # fmt: skip
    order = (*(a for a in read.type.axes if a not in (along, other)), other, along)
    extents = {other: b.plan.axes[other].tile, along: width}
    box = TensorMap(
        b.name(f"{read.memory}_box"), read.memory, tuple(extents.get(a, 1) for a in order),
        width * size, tuple(read.type.axes.index(a) for a in order), read.span,
    )  # fmt: skip
    b.maps.append(box)
    return Operand(ring, box, read, rows, across, panels, width)


def _copies(b: Builder, ring: _Ring, operands: Sequence[Operand]) -> Loop:
    """Fill the ring's slots with the tiles of one step after the other."""
    step = V(b.name(f"{ring.axis.lower()}_ahead"))
    count = b.turn * _steps(b, ring.axis) + step
    full, empty = (PhaseRef(name, ring.slot(count)) for name in (ring.full, ring.empty))
    size = sum(o.slot_bytes for o in operands)
    body: Body = (
        PhaseWait(empty, ring.round(count) + 1, note="the slot's readers have released it"),
        ArriveExpect(full, size),
        *(_copy(b, o, ring.axis, full, step) for o in operands),
    )
    return Loop(str(step), b.plan.axes[ring.axis].steps, body, span=operands[0].read.span)


def _copy(b: Builder, operand: Operand, terms: str, full: PhaseRef, step: Expr) -> BulkLoad:
    """One step's box of each panel."""
    read = operand.read
    along = operand.rows if operand.across else terms
    panel = b.register_digit("box_panel") if operand.panels > 1 else V(0)
    over: Over = ((str(panel), operand.panels),) if operand.panels > 1 else ()
    start = {a: b.base(a) for a in read.type.axes}
    start[terms] = step * b.plan.axes[terms].tile
    start[along] = start[along] + panel * operand.width
    coordinates = tuple(start[read.type.axes[i]] for i in operand.box.order)
    corner = MemRef(operand.ring.name, (full.index, panel, V(0), V(0)))
    return BulkLoad(over, corner, operand.box.name, coordinates, full, span=read.span)


def _multiply(
    b: Builder, product: ops.Contract, atom: MmaAtom, made: Fragment,
    operands: Sequence[Operand], slot: Expr, step: Expr, starts_at_zero: bool,
) -> WarpgroupMma:  # fmt: skip
    """All instructions of one step."""
    contract = b.plan.contracts[product.id]
    placed = b.place(made.layout)
    first, second = operands
    repeats = {
        d.axis: b.register_digit(f"{d.axis.lower()}_atom")
        for d in made.layout.at(Place.REGISTER)[: -made.tiled.inner] if d.axis
    }  # fmt: skip
    counts = {
        d.axis: d.extent for d in made.layout.at(Place.REGISTER)[: -made.tiled.inner] if d.axis
    }

    def row(operand: Operand, size: int) -> Expr:
        """The first row of the warpgroup's instruction."""
        total = repeats.get(operand.rows, V(0)) * size
        for digit, value in zip(placed.layout.digits, placed.variables, strict=True):
            if digit.place is Place.WARP and digit.axis == operand.rows and digit.stride >= size:
                total = total + value * digit.stride
        return total

    tile = b.plan.axes[contract.k].tile
    panel_terms = min([tile, *(o.width for o in operands if not o.across)])
    panel, depth = b.register_digit("k_panel"), b.register_digit("k_atom")
    digits: list[tuple[Expr, int]] = [
        (panel, tile // panel_terms), (depth, panel_terms // atom.k),
        *((repeats[a], n) for a, n in counts.items()),
    ]  # fmt: skip
    over: Over = tuple((str(v), n) for v, n in digits if n > 1)
    unit: dict[str, Expr | int | str] = {str(v): 0 for v, n in digits if n == 1}
    within = (depth * atom.k).substitute(unit)
    outer = panel.substitute(unit)
    term = outer * panel_terms + within
    tiles = [
        o.tile(slot, row(o, size).substitute(unit), outer, term if o.across else within)
        for o, size in ((first, atom.m), (second, atom.n))
    ]
    chosen = {axis or "": value.substitute(unit) for axis, value in repeats.items()}
    accumulate: Guard = (at_least(step * tile + term, 1),) if starts_at_zero else ()
    coordinate = step * tile + term
    reduces = (ReducedAxis(contract.k, b.plan.axes[contract.k].extent, coordinate),)
    return WarpgroupMma(over, atom.name, atom_ref(made, chosen), tiles[0], tiles[1],
                        accumulate, reduces, product.span)  # fmt: skip
