"""Outputs through shared memory and the copy engine, one panel of a warpgroup after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.graph import ops
from tilewright.kernel.async_ops import BulkCommit, BulkStore, BulkWait, ProxyFence
from tilewright.kernel.ops import If, MemRef, Shared, Statement, Store
from tilewright.lower.access import store_global
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.panel_reads import (
    PanelRead,
    await_panel,
    bring_first,
    bring_next,
    load_piece,
)
from tilewright.lower.panel_work import (
    Elementwise,
    by_panel,
    in_piece,
    keep_one_piece,
    piece_shapes,
)
from tilewright.lower.panels import (
    PanelPlace,
    Panels,
    meeting_of_one,
    one_thread,
    panel_box,
    panel_corner,
    panel_place,
    panels_of,
    piece_access,
    swizzle_of,
)
from tilewright.poly.expr import Expr, equal
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
    for them. The rows of a tile whose last ones are not its own are stored by the threads.
    """
    panels = panels_of(b, op, value.layout)
    if panels is None:
        for statement in making:
            b.emit(statement)
        return False
    first, each = by_panel(b, value, panels, making)
    for statement in first:
        b.emit(statement)
    own = piece_shapes(b, op, value, panels, first, each)
    if brought is not None:
        own = {**own, brought.made.name: brought.piece(panels)}
    box = panel_box(b, op.memory, op.type.axes, panels, op.span)
    buffer = _buffer(b, op, panels, PANELS if brought is None else brought.places)
    with b.guarded(b.whole_tile(), None, op.span):
        if brought is not None:
            bring_first(b, brought, panels, buffer)
        with (
            b.unrolled("strip", panels.strips, op.span) as strip,
            b.unrolled("panel", panels.count, op.span) as panel,
        ):
            number = strip * panels.count + panel
            corner = panel_place(b, buffer, number)
            if brought is None:
                _free_place(b, panels, number)
                b.emit(meeting_of_one(b))
            else:
                bring_next(b, brought, panels, buffer, number)
                await_panel(b, brought, panels, number)
            with b.unrolled("piece", panels.pieces, op.span) as piece:
                place = PanelPlace(strip, panel, piece, own)
                if brought is not None:
                    b.emit(load_piece(b, brought, panels, place, corner))
                for statement in each:
                    b.emit(in_piece(b, statement, value, panels, place))
                b.emit(_store(b, op, value, panels, place, corner))
            at = panel_corner(b, op.type.axes, value.layout, panels, box, (strip, panel))
            _start_copy(b, BulkStore((), box.name, at, corner, op.span))
    if rest := b.whole_tile(whole=False):
        with b.guarded(rest, None, op.span):
            _store_rows(b, op, value, panels, each, own)
    keep_one_piece(b, own)
    return True


def _store_rows(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, each: Sequence[Elementwise],
    own: Mapping[str, tuple[int, ...]],
) -> None:  # fmt: skip
    """A tile by the threads, which may store some of its rows only."""
    if not each:
        store_global(b, op, value)
        return
    with b.aside() as storing:
        store_global(b, op, value)
    with (
        b.unrolled("strip", panels.strips, op.span) as strip,
        b.unrolled("panel", panels.count, op.span) as panel,
        b.unrolled("piece", panels.pieces, op.span) as piece,
    ):
        place = PanelPlace(strip, panel, piece, own)
        for statement in (*each, *storing):
            b.emit(in_piece(b, statement, value, panels, place))


def _buffer(b: Builder, op: ops.WriteOp, panels: Panels, places: int) -> Shared:
    """So many panels for each warpgroup; outputs of one kind share them."""
    roles = b.plan.roles
    shape = (roles.consumers if roles else 1, places, *panels.rows)
    for shared in b.shared:
        if shared.name in b.panels and (shared.shape, shared.dtype) == (shape, op.type.dtype):
            return shared
    swizzle = swizzle_of(panels.rows[1], op.type.dtype.bytes)
    made = b.buffer(f"{op.memory}_panels", op.type.dtype, shape, swizzle=swizzle, managed=True,
                    span=op.span)  # fmt: skip
    b.panels.add(made.name)
    return made


def _free_place(b: Builder, panels: Panels, number: Expr) -> None:
    """Let one thread wait until the copy engine has read what was in a panel's place."""
    one = one_thread(b)
    if panels.whole > 1 and panels.whole % PANELS:  # the tile before ended on the same place
        b.emit(If((equal(number, 0), *one), (BulkWait(0, read=True),)))
    b.emit(If(one, (BulkWait(PANELS - 1 if panels.whole > 1 else 0, read=True),)))


def _start_copy(b: Builder, copy: BulkStore) -> None:
    """When all have stored their part of a panel, one thread starts its copy."""
    b.emit(ProxyFence())
    b.emit(meeting_of_one(b))
    b.emit(If(one_thread(b), (copy, BulkCommit())))


def _store(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, place: PanelPlace,
    corner: MemRef,
) -> Store:  # fmt: skip
    """A piece's registers to shared memory, by matrix stores where there are any."""
    found = piece_access(b, value, panels, place, corner, b.target.matrix_stores)
    return Store(
        found.over, found.memory, place.register(found.registers), 2, found.axis, span=op.span,
        matrix=found.matrix,
    )  # fmt: skip
