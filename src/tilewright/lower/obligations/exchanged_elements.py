"""What a thread collects, back to the registers that a thread of another block deposited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.kernel.async_ops import Collect, Deposit
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.bulk_turns import Turns
from tilewright.lower.obligations.exchanges import block_number
from tilewright.lower.obligations.scope import Program, Site
from tilewright.lower.obligations.tracing import Wanted
from tilewright.poly.expr import equal


def deposits_of(
    program: Program, wanted: Wanted, site: Site, collect: Collect, suffix: str
) -> Iterator[tuple[Wanted, str] | None]:
    """What is wanted of the source of each deposit that may be collected; None where the block
    that makes one is not known."""
    dst = (*collect.dst.index[:-1], collect.dst.index[-1] + VECTOR)
    over = (*collect.over, (VECTOR, collect.width))
    exprs = (collect.index, collect.block)
    there = wanted.at(program, site, over, dst, exprs, suffix=suffix)
    place = there.mapped((collect.index + VECTOR,))
    for left in program.sites:
        s = left.statement
        if not isinstance(s, Deposit) or s.exchange != collect.exchange:
            continue
        number = block_number(left.frame)
        if number is None or there.thread is None:
            yield None
            continue
        link = Turns({}, to=number, rank=collect.block)
        ways = replace(there, ref=place).across(
            program, left, (*s.over, (VECTOR, s.width)), (s.index + VECTOR,), s.src.index, link,
            suffix=f"{suffix}left",
        )  # fmt: skip
        for way in ways:
            if way.thread is None:
                yield None
                continue
            same = way.under(equal(way.thread, way.resolved(there.thread)))
            held = same.mapped((*s.src.index[:-1], s.src.index[-1] + VECTOR))
            yield replace(same, ref=held), s.src.name
