"""Two warpgroups that multiply in turns: each has whole tiles, and one's epilogue runs meanwhile.

The turn is handed on when every slot of a tile was seen full. That order is needed: a phase's
parity tells rounds of the ring apart only for who is at most one round behind.
"""

from __future__ import annotations

from tilewright.base.diagnostics import ResourceError
from tilewright.kernel.async_ops import NamedBarrier
from tilewright.kernel.ops import Body, If
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.builder import Builder
from tilewright.lower.bulk import ORDER
from tilewright.poly.expr import Expr, equal
from tilewright.schedule.plan import Roles
from tilewright.schedule.roles import PINGPONG

V = Expr.of


def await_turn(b: Builder, roles: Roles) -> None:
    """Wait until the other warpgroup is done with the ring."""
    if roles.pingpong:
        note = "the other warpgroup has seen its last slot"
        b.emit(NamedBarrier(V(b.role) + ORDER, _both(b), note=note))


def pass_turn(b: Builder, roles: Roles, step: Expr, steps: Expr) -> None:
    """Let the other warpgroup use the ring, in the last step."""
    if roles.pingpong:
        hand = NamedBarrier(V(ORDER + 1) - b.role, _both(b), arrive=True)
        b.emit(If((equal(step, steps - 1),), (hand,)))


def first_turn(b: Builder, roles: Roles) -> Body:
    """The second warpgroup lets the first one begin."""
    if not roles.pingpong:
        return ()
    if exchanged := [s.name for s in b.shared if s.name not in b.managed]:
        raise ResourceError(
            f"warpgroups that take turns would both use the shared memory of {exchanged[0]}",
            span=b.graph.span,
            expected="an epilogue that works element by element",
            mend="leave pingpong out",
        )
    hand = NamedBarrier(V(ORDER), _both(b), arrive=True)
    return (If((equal(b.role, 1),), (hand,)),)


def _both(b: Builder) -> int:
    """Threads of both warpgroups."""
    return PINGPONG * WARPGROUP_WARPS * b.plan.warp_size
