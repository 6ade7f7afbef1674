"""Warp roles: one warpgroup copies operands ahead by the copy engine, the others multiply.

The warpgroup that copies keeps a ring of slots filled. Slot `c % stages` holds the tiles of step
`c`, a counter that runs on over all tiles of a block, so both roles agree on slot and parity
without a word. A slot is *full* when its bytes have landed, *empty* when every warp that
multiplies has released it.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernel.async_ops import (
    BulkWait,
    ClusterArrive,
    ClusterWait,
    InitPhases,
    NamedBarrier,
    SetRegisters,
)
from tilewright.kernel.ops import (
    Barrier,
    Body,
    Decode,
    If,
)
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.builder import Builder
from tilewright.lower.bulk import EXCHANGE
from tilewright.lower.grid import Grid
from tilewright.lower.panels import one_thread
from tilewright.lower.turns import first_turn
from tilewright.poly.expr import Expr, Guard, equal, less
from tilewright.schedule.plan import Roles

V = Expr.of


# ---------------------------------------------------------------- the kernel's frame


def frame(b: Builder, roles: Roles, grid: Grid, body: Body) -> Body:
    """The kernel's statements: the roles' work, each in the block's tile loops."""
    one = one_thread(b)
    drain = (If(one, (BulkWait(0),)),) if any(_stores(b)) else ()
    total = roles.consumers + 1
    work = grid.alternate(body, b.role, roles.consumers) if roles.pingpong else grid.wrap(body)
    return (
        *grid.head,
        Decode(V("warp"), ((b.role, V(total)), (b.role_warp, V(WARPGROUP_WARPS)))),
        Decode(V("lane"), ((b.role_lane, V(b.plan.warp_size)),)),
        *b.decodes,
        InitPhases(tuple(p.name for p in b.phases)),
        *_ready(b),
        If(
            (equal(b.role, roles.consumers),),
            (*_registers(roles, copies=True), *_copying(b, grid, one)),
        ),
        If(
            (less(b.role, roles.consumers),),
            (
                *_registers(roles, copies=False), *b.computing, *first_turn(b, roles), *work,
                *drain,
            ),
        ),
        *((ClusterArrive("the peers' phases live until here"), ClusterWait()) if b.shares else ()),
    )  # fmt: skip


def _copying(b: Builder, grid: Grid, one: Guard) -> Body:
    """One thread's copies; where data says which, its warp looks it up together."""
    if b.plan.ragged is None:
        return (If(one, grid.wrap(b.copies)),)
    return (If(one[:1], grid.wrap((If(one[1:], b.copies),))),)


def _ready(b: Builder) -> Body:
    """All threads that use the phases wait until they are set up."""
    note = "the phases are set up"
    if b.plan.grid.cluster == 1:
        return (Barrier(note),)
    return ClusterArrive(note), ClusterWait()


def meeting(b: Builder) -> Callable[[str], NamedBarrier]:
    """Barriers of the warps that compute a tile."""
    threads = b.plan.warps * b.plan.warp_size
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
