"""Outputs through shared memory and the copy engine, one panel of a warpgroup after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph import ops
from tilewright.kernel.async_ops import BulkCommit, BulkStore, BulkWait, ProxyFence
from tilewright.kernel.ops import Assign, If, Load, MemRef, Over, Shared, Statement, Store
from tilewright.kernel.rewrite import substitute
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.panel_reads import PanelRead, bring_panel, load_piece, of_first_piece
from tilewright.lower.panels import (
    PanelPlace,
    Panels,
    meeting_of_one,
    panel_box,
    panel_corner,
    panel_digits,
    panels_of,
    piece_access,
    swizzle_of,
)
from tilewright.poly.expr import Expr, Guard, equal
from tilewright.schedule.boxes import PANELS

V = Expr.of
EXCHANGE = 1  # the named barrier of all warps that compute
ORDER = 5  # the first of the named barriers at which warpgroups wait for their turn


def store_bulk(
    b: Builder, op: ops.WriteOp, value: Fragment, making: Sequence[Statement],
    brought: PanelRead | None = None,
) -> bool:  # fmt: skip
    """Store a tile by the copy engine; False where it cannot, and only `making` is emitted.

    `making` are the statements that make the value. What they do element by element happens piece
    by piece of a panel, so that few of its registers are in use at once; so is what is `brought`
    for them. A tile whose last rows are not its own is left out.
    """
    panels = panels_of(b, op, value.layout)
    if panels is None or b.plan.ragged is not None:
        first, each = tuple(making), ()
    else:
        first, each = _by_panel(b, value, panels, making)
    for statement in first:
        b.emit(statement)
    if panels is None:
        return False
    box = panel_box(b, op.memory, op.type.axes, panels, op.span)
    buffer = _buffer(b, op, panels)
    with (
        b.guarded(b.whole_tile(), None, op.span),
        b.unrolled("strip", panels.strips, op.span) as strip,
        b.unrolled("panel", panels.count, op.span) as panel,
    ):
        slot = (strip * panels.count + panel) % PANELS
        corner = MemRef(buffer.name, (V(b.role), slot, V(0), V(0)))
        _free_slot(b, panels, strip, panel)
        if brought is None:
            b.emit(meeting_of_one(b))
        else:
            bring_panel(b, brought, panels, corner, (strip, panel))
        with b.unrolled("piece", panels.pieces, op.span) as piece:
            place = PanelPlace(strip, panel, piece, _is_alone(b, op, each))
            if brought is not None:
                b.emit(load_piece(b, brought, panels, place, buffer, slot))
            for statement in each:
                b.emit(_in_piece(b, statement, value, panels, place, brought))
            b.emit(_store(b, op, value, panels, place, buffer, slot))
        coordinates = panel_corner(b, op.type.axes, value.layout, panels, box, (strip, panel))
        _start_copy(b, BulkStore((), box.name, coordinates, corner, op.span))
    if _is_alone(b, op, each):
        _keep_one_piece(b, value, panels)
    if brought is not None:
        _keep_one_piece(b, brought.made, panels)
    return True


def _is_alone(b: Builder, op: ops.WriteOp, each: Sequence[Statement]) -> bool:
    """Whether a value that is made piece by piece has no other reader."""
    return bool(each) and b.graph.uses[op.value] == (op.id,)


def _by_panel(
    b: Builder, value: Fragment, panels: Panels, making: Sequence[Statement]
) -> tuple[tuple[Statement, ...], tuple[Assign | Load, ...]]:
    """What comes first, and the elementwise statements at the end that count along the panels."""
    if panels.count == 1:
        return tuple(making), ()
    columns, _ = panel_digits(b, value.layout, panels)
    last = max((i for i, s in enumerate(making) if not isinstance(s, Assign | Load)), default=-1)
    first, each = list(making[: last + 1]), list[Assign | Load]()
    for statement in making[last + 1 :]:
        if isinstance(statement, Assign | Load) and columns in dict(statement.over):
            each.append(statement)
        else:
            first.append(statement)
    return tuple(first), tuple(each)


def _keep_one_piece(b: Builder, value: Fragment, panels: Panels) -> None:
    """Give a value that nothing else reads the registers of one piece, used again for each."""
    count = 4 * panels.tiles  # of a thread: 64 rows of them for 128 threads
    shape = (*(1 for _ in value.shape[:-1]), count)
    at = next(i for i, r in enumerate(b.registers) if r.name == value.name)
    b.registers[at] = replace(b.registers[at], shape=shape, holds=f"a piece of {value.layout}")


def _in_piece(
    b: Builder, statement: Assign | Load, value: Fragment, panels: Panels, place: PanelPlace,
    brought: PanelRead | None,
) -> Statement:  # fmt: skip
    """The instances of a statement that belong to one piece."""
    columns, strips = panel_digits(b, value.layout, panels)
    within = b.register_digit("panel_tile")
    over: Over = tuple(
        (str(within), panels.tiles) if name == columns else (name, extent)
        for name, extent in statement.over if name != strips
    )  # fmt: skip
    chosen: dict[str, Expr | int | str] = {columns: place.column(panels, within)}
    (made,) = substitute((statement,), chosen | {strips: place.strip})
    if not isinstance(made, Assign | Load):
        return made
    if isinstance(made, Assign) and brought is not None:
        made = replace(made, value=of_first_piece(made.value, brought, place))
    dst = place.register(made.dst) if made.dst.name == value.name else made.dst
    return replace(made, over=over, dst=dst)


def _buffer(b: Builder, op: ops.WriteOp, panels: Panels) -> Shared:
    """Two panels for each warpgroup; outputs of one kind share them."""
    roles = b.plan.roles
    shape = (roles.consumers if roles else 1, PANELS, *panels.rows)
    for shared in b.shared:
        if shared.name in b.panels and (shared.shape, shared.dtype) == (shape, op.type.dtype):
            return shared
    swizzle = swizzle_of(panels.rows[1], op.type.dtype.bytes)
    made = b.buffer(f"{op.memory}_panels", op.type.dtype, shape, swizzle=swizzle, managed=True,
                    span=op.span)  # fmt: skip
    b.panels.add(made.name)
    return made


def _free_slot(b: Builder, panels: Panels, strip: Expr, panel: Expr) -> None:
    """Let one thread wait until the copy engine has read what was in a panel's slot."""
    one = (equal(b.role_warp, 0), equal(b.role_lane, 0))
    whole = panels.strips * panels.count
    if whole > 1 and whole % PANELS:  # the tile before ended on the same slot
        first: Guard = (equal(strip, 0), equal(panel, 0))
        b.emit(If((*first, *one), (BulkWait(0, read=True),)))
    b.emit(If(one, (BulkWait(PANELS - 1 if whole > 1 else 0, read=True),)))


def _start_copy(b: Builder, copy: BulkStore) -> None:
    """When all have stored their part of a panel, one thread starts its copy."""
    b.emit(ProxyFence())
    b.emit(meeting_of_one(b))
    one = (equal(b.role_warp, 0), equal(b.role_lane, 0))
    b.emit(If(one, (copy, BulkCommit())))


def _store(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, place: PanelPlace,
    buffer: Shared, slot: Expr,
) -> Store:  # fmt: skip
    """A piece's registers to shared memory, by matrix stores where there are any."""
    found = piece_access(b, value, panels, place, buffer, slot, b.target.matrix_stores)
    return Store(
        found.over, found.memory, place.register(found.registers), 2, found.axis, span=op.span,
        matrix=found.matrix,
    )  # fmt: skip
