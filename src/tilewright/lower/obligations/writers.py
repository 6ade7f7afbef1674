"""Which writes of a shared buffer a read may find, as far as that is plain.

Either each slot along the buffer's first axis is filled by one write, in the same turn of all its
loops but for unrolled ones, whose turns write elements of their own; or the buffer is a ring of
`den` slots: one write in the loop over t fills slot ``(t + c) % den`` in turn t, and further ones
fill fixed slots before the loop. The last write of a slot before turn t is then in one of the
last `den` turns, or before the loop where no turn has filled it yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.kernel.async_ops import BulkLoad, RemoteStore
from tilewright.kernel.ops import AsyncCopy, Loop, Store
from tilewright.lower.obligations.accesses import Access
from tilewright.lower.obligations.scope import Site
from tilewright.lower.obligations.tracing import Names
from tilewright.poly.expr import Constraint, Expr, Guard, Mod, at_least, less

_WRITES = Store | AsyncCopy | BulkLoad | RemoteStore


@dataclass(frozen=True, slots=True)
class Write:
    """A write; `turn` is the loop of a ring that it is in. It is not the last one but for reads
    in turns before `until`, or, in a ring's loop, up to `slots` turns after it."""

    site: Site
    turn: Loop | None = None
    loop: Loop | None = None
    until: int = 0
    slots: int = 0
    before: bool = True  # it stands before the read

    def last(self, read: Names, write: Names) -> Guard:
        """Under which conditions on the turns it is the last write of its slot."""
        if self.loop is None:
            return ()
        here = Expr.of(self.loop.var).substitute(read)
        if self.turn is None:
            return (less(here, self.until),)
        there = Expr.of(self.loop.var).substitute(write)
        not_later: Constraint = at_least(here, there) if self.before else less(there, here)
        return (not_later, less(here, there + self.slots))


def writers(sites: Sequence[Site], read: Site, name: str) -> Iterator[Write]:
    """The writes that a read of the buffer may find; none where that is not plain."""
    found = [s for s in sites if writes_to(s, name)]
    loops = read.frame.loops
    slots = [slot for s in found if (slot := _slot(s)) is not None]
    apart = len(found) == 1 or (
        all(slot.is_const for slot in slots) and len(set(slots)) == len(found)
    )
    if apart and all(_in_turn(s, read) for s in found):
        yield from (Write(s) for s in found)
        return
    turning = [(s, ring) for s in found for loop in loops if (ring := _ring(s, loop))]
    if len(turning) != 1:
        return
    (site, (loop, shift, slots)) = turning[0]
    before = site.frame.path < read.frame.path
    fixed: list[Write] = []
    for other in found:
        slot = _slot(other)
        if other is site:
            continue
        if slot is None or not slot.is_const or any(a is loop for a in other.frame.loops):
            return
        if other.frame.path >= read.frame.path:
            return
        first = (slot.const - shift) % slots
        fixed.append(Write(other, None, loop, first if before else first + 1))
    yield Write(site, loop, loop, 0, slots, before)
    yield from fixed


def _in_turn(write: Site, read: Site) -> bool:
    """Whether the write stands before the read, in loops around both or in unrolled ones."""
    around = {id(loop) for loop in read.frame.loops}
    return write.frame.path < read.frame.path and all(
        loop.unroll or id(loop) in around for loop in write.frame.loops
    )


def newest(sites: Sequence[Site], found: Sequence[Access], read: Site, name: str) -> list[Write]:
    """The last write before a read to places that it may be at, in the loops around it and in
    unrolled ones that have no other such write: the one that is read if it writes all of that.

    `found` are the accesses of all sites."""
    reads = [a for a in found if a.site is read and a.ref.name == name and not a.writes]

    def meets(site: Site) -> bool:
        writes = [a for a in found if a.site is site and a.ref.name == name and a.writes]
        return not writes or any(not _apart(w, r) for w in writes for r in reads)

    before = [s for s in sites if writes_to(s, name) and s.frame.path < read.frame.path]
    near = [s for s in before if meets(s)]
    if not near:
        return []
    *others, last = near
    outer = len(last.frame.common(read.frame))
    shared = [x for s in others for x in s.frame.common(last.frame)[outer:]]
    mixed = any(isinstance(x, Loop) for x in shared)
    own = [x for x in last.frame.around[outer:] if isinstance(x, Loop)]
    return [] if mixed or not all(x.unroll for x in own) else [Write(last)]


def _apart(one: Access, other: Access) -> bool:
    """Whether plain numbers in their indices keep two accesses of a buffer apart."""
    pairs = zip(one.index, other.index, strict=True)
    return any(a.is_const and b.is_const and a != b for a, b in pairs)


def writes_to(site: Site, name: str) -> bool:
    statement = site.statement
    return isinstance(statement, _WRITES) and statement.dst.name == name


def _slot(site: Site) -> Expr | None:
    statement = site.statement
    return statement.dst.index[0] if isinstance(statement, _WRITES) else None


def _ring(site: Site, loop: Loop) -> tuple[Loop, int, int] | None:
    """The loop, c and den of a write to slot ``(t + c) % den`` in it."""
    slot = _slot(site)
    if slot is None or not any(a is loop for a in site.frame.loops):
        return None
    match slot.terms:
        case ((Mod(num, den), 1),) if not slot.const and num - num.const == Expr.of(loop.var):
            return loop, num.const, den
        case _:
            return None
