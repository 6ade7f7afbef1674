"""Readers that share turns out: whether what one reads was loaded in the turn that it is in.

One role's own turns come in their order, so the n-th time that it comes by is the n-th time of
the role that loads (see `bulk_turns`). Where several roles share the turns, what orders them has
to keep to the order of the loads; the executions of a kernel's synchronisation show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.kernel.async_ops import BulkLoad, TileRef, WarpgroupMma
from tilewright.kernel.ops import Load
from tilewright.lower.obligations.bulk_turns import apart, turns
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Expr


@dataclass(frozen=True, slots=True)
class SharedTurn:
    """A read and a load of the same turns: the load's is its loop's counter, the read's `turn`."""

    read: Site
    load: Site
    counter: str
    turn: Expr


def shared_turns(program: Program) -> Iterator[SharedTurn]:
    """Of each read in a role that has only some of the turns of the loads it reads."""
    loads = [(s, s.statement.dst.name) for s in program.sites if isinstance(s.statement, BulkLoad)]
    for read in program.sites:
        names = set(_buffers(read))
        for load, name in loads:
            if name in names and apart(program, read, load):
                yield from _shared(program, read, load)


def _shared(program: Program, read: Site, load: Site) -> Iterator[SharedTurn]:
    link = turns(program, read, load)
    if isinstance(link, str):
        return
    own = {loop.var for loop in read.frame.loops}
    sources = {d.digits[0][0]: d.source for _, d in read.frame.decodes if len(d.digits) == 1}
    for loop in load.frame.loops:
        turn = link.names.get(loop.var)
        if turn is not None and turn not in own and turn in sources:
            yield SharedTurn(read, load, loop.var, sources[turn])


def _buffers(site: Site) -> Iterator[str]:
    """Shared buffers that a matrix instruction or a load of threads reads."""
    match site.statement:
        case WarpgroupMma(a=a, b=b):
            yield from (ref.name for ref in (a, b) if isinstance(ref, TileRef))
        case Load(src=src):
            yield src.name
        case _:
            pass
