"""Rules about exchanges: what blocks of the grid leave for one another."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.kernel.async_ops import Announce, Await, Collect, Deposit
from tilewright.kernel.declared import EXCHANGE_PIECE
from tilewright.kernel.fault import Fault, Rule, View
from tilewright.kernel.ops import Body, Kernel, Loop, children
from tilewright.kernel.ranges import divisor, interval
from tilewright.kernel.scopes import Scope
from tilewright.poly.expr import Expr

_Awaited = frozenset[tuple[str, Expr]]


def _exchanges(view: View) -> Iterator[Fault]:
    kernel = view.kernel
    blocks = prod(e.const for e in kernel.grid) if all(e.is_const for e in kernel.grid) else None
    for exchange in kernel.exchanges:
        if exchange.count < 1 or exchange.count * exchange.dtype.bytes % EXCHANGE_PIECE:
            found = f"{exchange.name} has {exchange.count} elements of {exchange.dtype}"
            yield Fault(found, span=exchange.span, expected="whole pieces of 16 bytes")
        if blocks is None:
            found = f"{exchange.name} is for a number of blocks that only a launch knows"
            yield Fault(found, span=exchange.span, mend="give the grid constant extents")
    for scope, s in view.statements:
        if not isinstance(s, Deposit | Announce | Await | Collect):
            continue
        declared = kernel.exchange(s.exchange)
        if declared is None:
            yield Fault(f"no exchange {s.exchange} is declared", s)
            continue
        if isinstance(s, Await | Collect) and blocks is not None:
            found = interval(s.block, scope.ranges)
            if not found.within(0, blocks - 1):
                text = f"block {found.low}..{found.high} of a grid of {blocks}"
                yield Fault(text, s, expected=f"0..{blocks - 1}")
        if isinstance(s, Deposit | Collect):
            yield from (Fault(text, s) for text in _piece(view, scope, s))


def _piece(view: View, scope: Scope, s: Deposit | Collect) -> Iterator[str]:
    declared = view.kernel.exchange(s.exchange)
    ref = s.src if isinstance(s, Deposit) else s.dst
    if declared is None:
        return
    if view.types[ref.name] != declared.dtype:
        yield f"{ref.name} holds {view.types[ref.name]}, {declared.name} {declared.dtype}"
    if s.width * declared.dtype.bytes != EXCHANGE_PIECE:
        yield f"moves {s.width * declared.dtype.bytes} bytes together, not {EXCHANGE_PIECE}"
    elif divisor(s.index, {}) % s.width:
        yield f"{declared.name} is not indexed in steps of {s.width}"
    if not interval(s.index, scope.ranges).within(0, declared.count - s.width):
        yield f"{declared.name} is indexed outside its {declared.count} elements"


def _collected(view: View) -> Iterator[Fault]:
    yield from _awaited(view.kernel, view.kernel.body, frozenset())


def _awaited(kernel: Kernel, body: Body, known: _Awaited) -> Iterator[Fault]:
    """Each `Collect` stands after an `Await` for its block, in its body or in one around it."""
    for s in body:
        if isinstance(s, Await):
            known = known | {(s.exchange, s.block)}
        elif isinstance(s, Collect) and (s.exchange, s.block) not in known:
            yield Fault(f"{s.exchange} of block {s.block} is collected before it is awaited", s)
        inner = known
        if isinstance(s, Loop):
            inner = frozenset(a for a in known if s.var not in a[1].variables())
        yield from _awaited(kernel, children(s), inner)


EXCHANGE: tuple[Rule, ...] = (
    Rule("exchange", "an exchange moves pieces of 16 bytes between blocks of the grid", _exchanges),
    Rule("collect", "what is collected has been awaited", _collected),
)
