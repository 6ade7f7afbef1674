"""Sums over the blocks of a cluster that share the terms of one tile.

Each block has sums of its own terms for the whole tile. It stores the columns that belong to
another block in that block's shared memory; the stores land there while it waits for those that
come to it. Then it adds the others' sums of its own columns to its own, in the order of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.graph import ops
from tilewright.kernel.async_ops import ArriveExpect, PhaseRef, Phases, PhaseWait, RemoteStore
from tilewright.kernel.ops import Apply, Assign, Body, If, Load, MemRef, Over, Read, RegRef, Shared
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.dependencies import contract_layouts
from tilewright.lower.panels import one_thread
from tilewright.lower.role_loops import emit_pipeline
from tilewright.poly.expr import Expr, at_least, equal, less
from tilewright.poly.layout import Place
from tilewright.schedule.boxes import STRIP
from tilewright.schedule.owners import COLUMNS
from tilewright.schedule.parts import WORD, whole
from tilewright.schedule.plan import Roles

V = Expr.of
PIECE = 4  # sums that a thread has of 8 columns of a strip: what it stores together


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A block's shared memory for what comes from the others: ``[group, from, piece, thread, 4]``.

    A thread's sums have `strips` of 64 rows; of the columns, `pieces` belong to each block.
    `digits` count strips, pieces, and rows and columns of a piece.
    """

    buffer: Shared
    landed: str
    rows: str
    columns: str
    strips: int
    pieces: int
    digits: tuple[Expr, ...]

    @property
    def over(self) -> Over:
        return self.each[:2]

    @property
    def each(self) -> Over:
        """Register by register."""
        names = (str(digit) for digit in self.digits)
        return tuple(zip(names, (self.strips, self.pieces, 2, 2), strict=True))

    def index(self, b: Builder, sender: Expr) -> tuple[Expr, ...]:
        """Where a thread's piece lies that comes from a block."""
        lanes = b.plan.warp_size
        strip, piece, _, _ = self.digits
        return (V(b.role), sender, strip * self.pieces + piece,
                V(b.role_warp) * lanes + b.role_lane, V(0))  # fmt: skip

    def register(self, sums: Fragment, first: Expr, *, whole: bool) -> RegRef:
        """A register of a piece, of the pieces from `first` on; the first one of a `whole` one."""
        strip, piece, low, high = self.digits
        digits = {
            (self.rows, STRIP): strip, (self.columns, COLUMNS): first + piece,
            (self.rows, 8): V(0) if whole else low, (self.columns, 1): V(0) if whole else high,
        }  # fmt: skip
        return sums.ref([digits[d.axis or "", d.stride] for d in sums.layout.at(Place.REGISTER)])


def emit_in_parts(b: Builder, op: ops.Iterate, roles: Roles) -> Fragment:
    """The block's part of the sums over all terms."""
    with b.planned(whole(b.plan)):
        (sums,) = emit_pipeline(b, op, roles)
    product = b.graph.by_id[roles.product]
    if not isinstance(product, ops.Contract):
        raise TypeError(f"%{product.id} is no product")
    part = b.fragment(f"v{product.id}_part", product.type.dtype, contract_layouts(b, product)[2],
                      product.span)  # fmt: skip
    exchange = _declare(b, product, part, roles)
    _send(b, exchange, sums, roles, product)
    if roles.owners < roles.parts:  # what follows is for the owners alone
        b.owned = len(b.scopes[0].body), (equal(b.helper, 0),)
    _keep(b, exchange, sums, part, roles, product)
    _add(b, exchange, part, roles, product)
    return part


def owned(b: Builder, body: Body) -> Body:
    """A block's work, of which only who owns the tile, or a part of it, does what follows."""
    if b.owned is None:
        return body
    first, guard = b.owned
    return (*body[:first], If(guard, body[first:]))


def _declare(b: Builder, product: ops.Contract, part: Fragment, roles: Roles) -> _Exchange:
    contract = b.plan.contracts[product.id]
    rows, columns = contract.m or "", contract.n or ""
    extents = {(d.axis, d.stride): d.extent for d in part.layout.at(Place.REGISTER)}
    strips, pieces = extents.get((rows, STRIP), 1), extents.get((columns, COLUMNS), 1)
    threads = WARPGROUP_WARPS * b.plan.warp_size
    shape = (roles.consumers, roles.parts - 1, strips * pieces, threads, PIECE)
    buffer = b.buffer("parts", part.dtype, shape, managed=True, span=product.span)
    landed = b.name("landed")
    b.phases.append(Phases(landed, roles.consumers, 1, span=product.span))
    digits = tuple(b.register_digit(f"part_{d}") for d in ("m", "n", "row", "column"))
    return _Exchange(buffer, landed, rows, columns, strips, pieces, digits)


def _send(
    b: Builder, exchange: _Exchange, sums: Fragment, roles: Roles, product: ops.Contract
) -> None:
    """Store each other block's columns where they belong."""
    phase = PhaseRef(exchange.landed, V(b.role))
    size = prod(exchange.buffer.shape[1:]) * WORD
    one = one_thread(b)
    if roles.owners < roles.parts:
        one = (*one, equal(b.helper, 0))
    b.emit(If(one, (ArriveExpect(phase, size, product.span, "the others' sums"),)))
    with b.unrolled("owner", roles.owners, product.span) as owner:
        first = owner * exchange.pieces
        source = exchange.register(sums, first, whole=True)
        for guard, sender, which in (
            (less(b.rank, owner), b.rank, "a later"),
            (at_least(b.rank, owner + 1), b.rank - 1, "an earlier"),
        ):
            place = MemRef(exchange.buffer.name, exchange.index(b, sender))
            store = RemoteStore(exchange.over, place, source, PIECE, owner, phase, product.span,
                                f"the columns of {which} one")  # fmt: skip
            b.emit(If((guard,), (store,)))


def _keep(
    b: Builder, exchange: _Exchange, sums: Fragment, part: Fragment, roles: Roles,
    product: ops.Contract,
) -> None:  # fmt: skip
    """The block's own columns: which registers these are depends on its rank."""
    with b.unrolled("rank", roles.owners, product.span) as rank:
        first = rank * exchange.pieces
        own = Read(exchange.register(sums, first, whole=False), part.dtype)
        kept = Assign(
            exchange.each, exchange.register(part, V(0), whole=False), own, product.span,
            "the block's own columns",
        )  # fmt: skip
        b.emit(If((equal(b.part, rank),), (kept,)))


def _add(
    b: Builder, exchange: _Exchange, part: Fragment, roles: Roles, product: ops.Contract
) -> None:
    """Wait for the others' sums and add them in the order of their ranks."""
    b.emit(PhaseWait(PhaseRef(exchange.landed, V(b.role)), V(0), product.span))
    more = b.fragment(f"v{product.id}_other", part.dtype, part.tiled, product.span)
    with b.unrolled("sender", roles.parts - 1, product.span) as sender:
        place = MemRef(exchange.buffer.name, exchange.index(b, sender))
        to = exchange.register(more, V(0), whole=True)
        b.emit(Load(exchange.over, to, place, PIECE, span=product.span))
        left = exchange.register(part, V(0), whole=False)
        other = exchange.register(more, V(0), whole=False)
        terms = (Read(left, part.dtype), Read(other, part.dtype))
        b.emit(Assign(exchange.each, left, Apply("add", terms, part.dtype), product.span))
