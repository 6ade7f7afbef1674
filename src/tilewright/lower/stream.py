"""Sums of tiles whose steps several blocks of the grid share.

A block has the last steps of one tile, perhaps all steps of others, and the first steps of one
more. It leaves its sums of a tile that another block has begun where that block finds them; of a
tile that it has begun it takes the others' sums, block by block, and adds them to its own.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod

from tilewright.graph import ops
from tilewright.kernel.async_ops import Announce, Await, Collect, Deposit
from tilewright.kernel.declared import EXCHANGE_PIECE, Exchange
from tilewright.kernel.ops import Apply, Assign, If, Loop, Read, Registers, RegRef
from tilewright.lower.builder import Builder, Fragment, Share
from tilewright.lower.role_loops import emit_pipeline
from tilewright.poly.expr import Expr, at_least, less
from tilewright.schedule.plan import Roles

V = Expr.of
MOST_TAKEN = 64  # registers of another block's sums at once
SCRATCH = 40  # that a thread needs beside sums


def emit_streamed(b: Builder, op: ops.Iterate, roles: Roles) -> Fragment:
    """The sums over all steps of a tile, in the block that owns it."""
    (sums,) = emit_pipeline(b, op, roles)
    share, span = b.share, op.span
    if share is None:
        raise ValueError("no block shares steps with others")
    if not share.stream.parts_tiles:
        return sums
    exchange = Exchange(b.name("sums_left"), sums.dtype, prod(sums.shape), span)
    b.exchanges.append(exchange)
    width = EXCHANGE_PIECE // sums.dtype.bytes
    outer = tuple((b.name(f"row{i}"), n) for i, n in enumerate(sums.shape[:-1]))
    piece = b.name("piece")
    place = RegRef(sums.name, (*(V(n) for n, _ in outer), V(piece) * width))
    over = (*outer, (piece, sums.shape[-1] // width))
    note = "sums of a tile of another block"
    deposit = Deposit(over, exchange.name, _flat(sums, place), place, width, span, note)
    b.emit(If((less(share.count(0), 0),), (deposit, Announce(exchange.name, span))))
    b.owned = len(b.scopes[0].body), share.owns
    room = roles.consumer_registers - prod(sums.shape) - SCRATCH
    _take(b, exchange, sums, share, min(MOST_TAKEN, max(width, room)))
    return sums


def _flat(sums: Fragment, place: RegRef) -> Expr:
    """The number of a register of the fragment."""
    total = V(0)
    for index, extent in zip(place.index, sums.shape, strict=True):
        total = total * extent + index
    return total


def _take(b: Builder, exchange: Exchange, sums: Fragment, share: Share, most: int) -> None:
    """Add the sums of the blocks with later steps of the tile, in their order, `most` at once."""
    stream, span = share.stream, exchange.span
    number = V(b.name("sharer"))
    width = EXCHANGE_PIECE // sums.dtype.bytes
    pieces = sums.shape[-1] // width
    taken = max(n for n in range(1, most // width + 1) if pieces % n == 0)
    other = b.name("sums_taken")
    b.registers.append(Registers(other, sums.dtype, (taken * width,), "another block's sums"))
    piece, word = b.name("piece"), b.name("word")
    source = share.block(number)
    with b.aside() as body:
        b.emit(Await(exchange.name, source, span))
        with ExitStack() as stack:
            rows = [
                stack.enter_context(b.unrolled(f"taken_row{i}", n, span))
                for i, n in enumerate(sums.shape[:-1])
            ]
            part = stack.enter_context(b.unrolled("taken_part", pieces // taken, span))
            first = part * (taken * width)
            to = RegRef(other, (V(piece) * width,))
            place = RegRef(sums.name, (*rows, first + V(piece) * width))
            b.emit(Collect(((piece, taken),), to, exchange.name, _flat(sums, place), source, width,
                           span))  # fmt: skip
            total = RegRef(sums.name, (*rows, first + word))
            terms = (Read(total, sums.dtype), Read(RegRef(other, (V(word),)), sums.dtype))
            added = Apply("add", terms, sums.dtype)
            b.emit(Assign(((word, taken * width),), total, added, span))
    later = (at_least(number, share.number + 1),
             less(number * stream.steps, (share.tile + 1) * stream.whole))  # fmt: skip
    b.emit(Loop(str(number), V(stream.blocks), (If(later, tuple(body)),), span=span))
