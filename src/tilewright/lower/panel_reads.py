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
    BulkWait,
    PhaseRef,
    Phases,
    PhaseWait,
    TensorMap,
)
from tilewright.kernel.ops import If, Load, MemRef, Shared, Statement
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.panels import (
    PanelPlace,
    Panels,
    one_thread,
    panel_box,
    panel_corner,
    panel_place,
    panels_of,
    piece_access,
)
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr, less
from tilewright.schedule.boxes import bulk_problem, contiguous_position
from tilewright.schedule.pipelined import ring_problem
from tilewright.schedule.plan import Staging
from tilewright.schedule.role_products import made_of

V = Expr.of


@dataclass(frozen=True, slots=True)
class PanelRead:
    """A tile that is brought panel by panel: its registers, its box, and `flights` phases for each
    warpgroup, which its panels take in turn."""

    read: ops.ReadOp
    made: Fragment
    box: TensorMap
    landed: str
    flights: int

    @property
    def places(self) -> int:
        """The panels of a warpgroup in shared memory."""
        return self.flights + 1

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
    read, flights = next(_reads(b, op), None), _flights(b, panels)
    if op.type.dtype.bytes != 2 or read is None or not flights:
        return None
    own = tiled.project(read.type.axes)
    made = b.fragment(read.memory, read.type.dtype, own, read.span)
    b.scopes[-1].memo[read.id, own] = made
    landed = b.name(f"{read.memory}_landed")
    b.phases.append(Phases(landed, roles.consumers * flights, 1, span=read.span))
    box = panel_box(b, read.memory, read.type.axes, panels, read.span)
    return PanelRead(read, made, box, landed, flights)


def _flights(b: Builder, panels: Panels) -> int:
    """How many panels are on their way at a time, the first tried being the most that fit: while
    one is computed, the one before it may still be leaving. 0 where phases cannot be told."""
    return next(
        (
            n for n in range(b.plan.panels - 1, 0, -1)
            if panels.whole % n == 0 and not ring_problem(b.plan.grid, V(panels.whole), n)
        ),
        0,
    )  # fmt: skip


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


def bring_first(b: Builder, brought: PanelRead, panels: Panels, buffer: Shared) -> None:
    """Start the copies of a tile's first panels, one fewer than are on their way at a time, when
    those of the tile before have left.

    Where nothing is to be started, panels that fill all places leave as the next tile needs them.
    """
    copies = [
        statement
        for number in range(brought.flights - 1)
        for statement in _copy(b, brought, panels, buffer, V(number))
    ]
    if copies or panels.whole % buffer.shape[1]:
        b.emit(If(one_thread(b), (BulkWait(0, read=True), *copies)))


def bring_next(
    b: Builder, brought: PanelRead, panels: Panels, buffer: Shared, number: Expr
) -> None:
    """Start the copy of the panel that comes as many after this one as are on their way.

    Its place is free when at most the panel before this one has not left.
    """
    coming = number + (brought.flights - 1)
    inside = (less(coming, panels.whole),) if brought.flights > 1 else ()
    copy = _copy(b, brought, panels, buffer, coming)
    b.emit(If((*inside, *one_thread(b)), (BulkWait(1, read=True), *copy)))


def _copy(
    b: Builder, brought: PanelRead, panels: Panels, buffer: Shared, number: Expr
) -> tuple[Statement, ...]:
    read, phase = brought.read, _flight(b, brought, number)
    size = panels.rows[0] * panels.rows[1] * read.type.dtype.bytes
    at = (number // panels.count, number % panels.count)
    coordinates = panel_corner(b, read.type.axes, brought.made.layout, panels, brought.box, at)
    place = panel_place(b, buffer, number)
    copy = BulkLoad((), place, brought.box.name, coordinates, phase, span=read.span)
    return (ArriveExpect(phase, size), copy)


def await_panel(b: Builder, brought: PanelRead, panels: Panels, number: Expr) -> None:
    """All wait until a panel has landed."""
    roles = b.plan.roles
    count = roles.consumers if roles is not None else 1
    before = b.turn // count * (panels.whole // brought.flights) + number // brought.flights
    phase = _flight(b, brought, number)
    b.emit(PhaseWait(phase, before, brought.read.span, note="the panel has landed"))


def _flight(b: Builder, brought: PanelRead, number: Expr) -> PhaseRef:
    return PhaseRef(brought.landed, V(b.role) * brought.flights + number % brought.flights)


def load_piece(
    b: Builder, brought: PanelRead, panels: Panels, place: PanelPlace, corner: MemRef
) -> Load:
    """A piece of the panel to registers, by matrix loads where there are any."""
    found = piece_access(b, brought.made, panels, place, corner, b.target.matrix_loads)
    return Load(
        found.over, place.register(found.registers), found.memory, 2, found.axis,
        matrix=found.matrix, span=brought.read.span,
    )  # fmt: skip
