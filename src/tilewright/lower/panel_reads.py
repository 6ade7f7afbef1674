"""Tiles that an epilogue reads, brought by the copy engine into the panels of its output.

Where warpgroups take turns, one's epilogue has time while the other multiplies. Each panel of its
output first holds the same panel of a tensor that the output is made of: one thread starts the
copy, all wait for it, and each piece is read, computed and written in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.kernel.async_ops import (
    ArriveExpect,
    BulkLoad,
    PhaseRef,
    Phases,
    PhaseWait,
    TensorMap,
)
from tilewright.kernel.ops import If, Load, MemRef, Shared
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.panels import (
    PanelPlace,
    Panels,
    panel_box,
    panel_corner,
    panels_of,
    piece_access,
)
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr, equal
from tilewright.schedule.boxes import bulk_problem, contiguous_position
from tilewright.schedule.pipelined import ring_problem
from tilewright.schedule.plan import Staging
from tilewright.schedule.role_products import made_of

V = Expr.of


@dataclass(frozen=True, slots=True)
class PanelRead:
    """A tile that is brought panel by panel: its registers, its box, and the phases of the panels
    of each warpgroup."""

    read: ops.ReadOp
    made: Fragment
    box: TensorMap
    landed: str

    def piece(self, panels: Panels) -> tuple[int, ...]:
        """The shape of a thread's registers for one piece: 64 rows of it for 128 threads."""
        return (*(1 for _ in self.made.shape[:-1]), 4 * panels.tiles)


def bring_for(b: Builder, op: ops.WriteOp, tiled: Tiled) -> PanelRead | None:
    """Declare how a tile that a written value is made of is brought; None where none can be.

    The open scope remembers the fragment that will hold it as the value of its read.
    """
    roles = b.plan.roles
    if roles is None or not roles.pingpong or roles.parts > 1 or op not in b.graph.body:
        return None  # the phases of the panels are counted, so no tile may leave any out
    panels = panels_of(b, op, tiled.layout)
    if panels is None or panels.count == 1 or len(b.scopes) > 1:
        return None
    if op.type.dtype.bytes != 2 or ring_problem(b.plan.grid, V(panels.strips * panels.count), 1):
        return None
    read = next(_reads(b, op), None)
    if read is None:
        return None
    own = tiled.project(read.type.axes)
    made = b.fragment(read.memory, read.type.dtype, own, read.span)
    b.scopes[-1].memo[read.id, own] = made
    landed = b.name(f"{read.memory}_landed")
    b.phases.append(Phases(landed, roles.consumers, 1, span=read.span))
    return PanelRead(
        read, made, panel_box(b, read.memory, read.type.axes, panels, read.span), landed
    )


def _reads(b: Builder, op: ops.WriteOp) -> Iterator[ops.ReadOp]:
    """Reads of tiles that lie as the output does, and are used once, for its value."""
    place = contiguous_position(b.tensors[op.memory])
    for read in made_of(b.graph, op.value):
        if not isinstance(read, ops.ReadOp) or read not in b.graph.body:
            continue
        if (read.type.axes, read.type.dtype) != (op.type.axes, op.type.dtype):
            continue
        if read.memory in b.written or b.graph.memory(read.memory).allocated:
            continue
        tensor = b.tensors[read.memory]
        movable = bulk_problem(tensor, b.declared) is None and contiguous_position(tensor) == place
        if movable and b.plan.staging[read.id] is Staging.DIRECT and _once(b, read.id, op):
            yield read


def _once(b: Builder, number: int, op: ops.WriteOp) -> bool:
    """Whether a value goes into the written one by elementwise operations, and nowhere else."""
    while number != op.value:
        users = b.graph.uses.get(number, ())
        if len(users) != 1 or not isinstance(b.graph.by_id[users[0]], ops.Elementwise | ops.CastOp):
            return False
        (number,) = users
    return True


def bring_panel(
    b: Builder, brought: PanelRead, panels: Panels, corner: MemRef, at: tuple[Expr, Expr]
) -> None:
    """Start the copy of a panel, whose slot is free, and wait until it has landed."""
    read, roles = brought.read, b.plan.roles
    count = roles.consumers if roles is not None else 1
    strip, panel = at
    number = b.turn // count * (panels.strips * panels.count) + strip * panels.count + panel
    phase = PhaseRef(brought.landed, V(b.role))
    size = panels.rows[0] * panels.rows[1] * read.type.dtype.bytes
    coordinates = panel_corner(b, read.type.axes, brought.made.layout, panels, brought.box, at)
    copy = BulkLoad((), corner, brought.box.name, coordinates, phase, span=read.span)
    one = (equal(b.role_warp, 0), equal(b.role_lane, 0))
    b.emit(If(one, (ArriveExpect(phase, size), copy)))
    b.emit(PhaseWait(phase, number, read.span, note="the panel has landed"))


def load_piece(
    b: Builder, brought: PanelRead, panels: Panels, place: PanelPlace, buffer: Shared, slot: Expr
) -> Load:
    """A piece of the panel to registers, by matrix loads where there are any."""
    found = piece_access(b, brought.made, panels, place, buffer, slot, b.target.matrix_loads)
    return Load(
        found.over, place.register(found.registers), found.memory, 2, found.axis,
        matrix=found.matrix, span=brought.read.span,
    )  # fmt: skip
