"""Rings of shared memory that the copying warpgroup keeps filled with the tiles of coming steps.

Slot `c % stages` holds the tiles of step `c`, a counter that runs on over all tiles of a block,
so both roles agree on slot and parity without a word. A slot is *full* when its bytes have
landed, *empty* when every warp that multiplies has released it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    BulkLoad,
    PhaseRef,
    Phases,
    PhaseWait,
    TensorMap,
    TileRef,
)
from tilewright.kernel.ops import Body, If, Loop, MemRef, Over, Shared
from tilewright.lower.builder import Builder
from tilewright.lower.panels import swizzle_of
from tilewright.lower.role_strips import StripRing, copy_strip
from tilewright.poly.expr import Expr
from tilewright.schedule.boxes import contiguous_position, row_panels
from tilewright.schedule.splits import Split, split_of

V = Expr.of
SWIZZLE_ROWS = 8  # after so many rows of shared memory a swizzle repeats


@dataclass(frozen=True, slots=True)
class Operand:
    """One tile's ring: `panels` of rows of `width` elements, contiguous in the tensor.

    `split` says how the program uses the tile; axes are those of that value. `rows` is the one
    that becomes rows or columns of the result, `terms` the one that is summed over. `across`:
    rows of shared memory run along `rows`, not along the terms.
    """

    ring: Shared
    box: TensorMap
    read: ops.ReadOp
    split: Split
    rows: str
    terms: str
    across: bool
    panels: int
    width: int
    shares: int  # blocks that load a part each, for all of them

    @property
    def slot_bytes(self) -> int:
        return self.ring.elements // self.ring.shape[0] * self.ring.dtype.bytes

    @property
    def along(self) -> str:
        """The axis that is contiguous in the tensor."""
        return self.rows if self.across else self.terms

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
class Ring:
    """The counter's slots: phases for both directions, and the loop's axis."""

    full: str
    empty: str
    stages: int
    axis: str

    def slot(self, count: Expr) -> Expr:
        return count % self.stages

    def round(self, count: Expr) -> Expr:
        return count // self.stages


def counter(b: Builder, axis: str, step: Expr) -> Expr:
    """The number of a step, over all tiles of a block; one that goes on knows a tile's steps,
    or counts them."""
    if b.counted is not None:
        return b.counted + step
    if b.share is not None:
        return b.share.count(step)
    return b.turn * (b.plan.axes[axis].steps.const if b.persistent else 0) + step


def declare_ring(b: Builder, op: ops.Iterate) -> Ring:
    """The ring of a loop whose operands are declared."""
    stages = b.plan.stages
    full, empty = b.name("full"), b.name("empty")
    b.phases += [
        Phases(full, stages, 1, span=op.span),
        Phases(empty, stages, b.plan.warps * len(readers(b)), span=op.span),
    ]
    return Ring(full, empty, stages, op.axis)


def readers(b: Builder) -> tuple[Expr | None, ...]:
    """The blocks whose copies wait for a slot that this one has read: None for its own."""
    return tuple(V(rank) for rank in range(b.plan.grid.cluster)) if b.shares else (None,)


def released(b: Builder, phase: PhaseRef, note: str = "") -> Body:
    """Arrivals that tell every block that fills the slot that it has been read."""
    return tuple(Arrive(phase, block, note=note) for block in readers(b))


def declare_operand(b: Builder, read: ops.ReadOp, rows: str, terms: str) -> Operand:
    """Declare the ring of a tile and its box."""
    tensor, size = b.tensors[read.memory], read.type.dtype.bytes
    split = split_of(b.graph, read)
    inner = read.type.axes[contiguous_position(tensor) or 0]
    along = split.digits[inner][-1]
    across = along == rows
    other = terms if across else rows
    outer = split.of(other) or other
    tile = b.plan.axes[along].tile
    panels, width = row_panels(tile, size)
    shape = (b.plan.stages, panels, b.plan.axes[other].tile, width)
    ring = b.buffer(f"{read.memory}_ring", read.type.dtype, shape,
                    swizzle=swizzle_of(width, size), managed=True, span=read.span)  # fmt: skip
    order = (*(a for a in read.type.axes if a not in (inner, outer)), outer, inner)
    shares = _shares(b, split, b.plan.axes[other].tile)
    b.shares = b.shares or shares > 1
    extents = {outer: b.plan.axes[other].tile // shares, inner: width}
    box = TensorMap(
        b.name(f"{read.memory}_box"), read.memory, tuple(extents.get(a, 1) for a in order),
        width * size, tuple(read.type.axes.index(a) for a in order), read.span,
    )  # fmt: skip
    b.maps.append(box)
    return Operand(ring, box, read, split, rows, terms, across, panels, width, shares)


def _shares(b: Builder, split: Split, size: int) -> int:
    """How many blocks load a part of the tile each: all of the cluster, where all need it."""
    count = b.plan.grid.cluster
    if b.plan.roles is None or b.plan.roles.parts > 1 or b.plan.ragged is not None:
        return 1
    varies = any(b.blocks[a].variables() & b.peers for a in split.axes if a in b.blocks)
    whole = size % count == 0 and size // count % SWIZZLE_ROWS == 0
    return 1 if varies or not whole else count


def copies(
    b: Builder, ring: Ring, operands: Sequence[Operand], strips: Sequence[StripRing]
) -> Loop:
    """Fill the ring's slots with the tiles of one step after the other."""
    step = V(b.name(f"{ring.axis.lower()}_ahead"))
    count = counter(b, ring.axis, step)
    full, empty = (PhaseRef(name, ring.slot(count)) for name in (ring.full, ring.empty))
    size = sum(o.slot_bytes for o in operands) + sum(s.strip.bytes for s in strips)
    body: Body = (
        PhaseWait(empty, ring.round(count) + 1, note="the slot's readers have released it"),
        ArriveExpect(full, size),
        *(_copy(b, o, ring.axis, full, step) for o in operands),
        *(copy_strip(b, s, ring.axis, full, step) for s in strips),
    )
    if b.share is not None:
        body = (If(b.share.has(step), body),)
    return Loop(str(step), b.plan.axes[ring.axis].steps, body, span=operands[0].read.span)


def _copy(b: Builder, operand: Operand, looped: str, full: PhaseRef, step: Expr) -> BulkLoad:
    """One step's box of each panel."""
    read = operand.read
    panel = b.register_digit("box_panel") if operand.panels > 1 else V(0)
    over: Over = ((str(panel), operand.panels),) if operand.panels > 1 else ()
    start = {a: b.base(a) for a in operand.split.axes}
    start[looped] = b.step_start(looped, step) + b.starts.get(looped, 0)
    start[operand.along] = start[operand.along] + panel * operand.width
    other = operand.terms if operand.across else operand.rows
    shares = operand.shares
    first = b.rank * (operand.ring.shape[2] // shares) if shares > 1 else V(0)
    start[other] = start[other] + first
    at = {axis: _number(b, digits, start) for axis, digits in operand.split.digits.items()}
    coordinates = tuple(at[read.type.axes[i]] for i in operand.box.order)
    corner = MemRef(operand.ring.name, (full.index, panel, first, V(0)))
    everybody = V((1 << shares) - 1) if shares > 1 else None
    return BulkLoad(over, corner, operand.box.name, coordinates, full, everybody, read.span)


def _number(b: Builder, digits: Sequence[str], start: Mapping[str, Expr]) -> Expr:
    """The number that digits make."""
    total = V(0)
    for digit in digits:
        extent = b.plan.axes[digit].extent
        total = total * (extent.const if len(digits) > 1 else 1) + start[digit]
    return total
