"""A consumer reads in each turn what its producer loads in that turn.

The reads of one role are compared with the loads of another, turn by turn (see `bulk_turns`):
each element that is read lies in a box that is loaded in the same turn, and no turn's load is
left unread, for then the turns of the two roles would shift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.async_ops import RemoteStore
from tilewright.lower.obligations.accesses import Access, overlap, points
from tilewright.lower.obligations.bulk_boxes import unboxed
from tilewright.lower.obligations.bulk_turns import WRITER, Turns, apart, sent, turns
from tilewright.lower.obligations.domains import Domain
from tilewright.lower.obligations.scope import Program
from tilewright.lower.obligations.writers import writes_to
from tilewright.poly.expr import Constraint, Expr, equal, less
from tilewright.poly.prove import (
    Kind,
    Obligation,
    Piece,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    image,
    instance_text,
)
from tilewright.poly.sets import Dim, Point

_BLOCK = frozenset(("block",))


def loaded_by_others(program: Program, found: Sequence[Access], read: Access) -> list[Access]:
    """The writes of what is read that other roles do."""
    shared = {b.name for b in program.kernel.shared}
    if not program.kernel.phases or read.ref.name not in shared:
        return []
    return [
        w for w in found
        if w.writes and w.ref.name == read.ref.name and apart(program, read.site, w.site)
    ]  # fmt: skip


def sent_by_others(found: Sequence[Access], read: Access) -> list[Access]:
    """The stores by which other blocks of the cluster fill what is read."""
    stores = (a for a in found if isinstance(a.site.statement, RemoteStore))
    return [] if read.writes else [a for a in stores if a.ref.name == read.ref.name]


def untraced(program: Program, name: str) -> Unknown | None:
    """Why it is open what a buffer holds, where some write to it cannot be followed."""
    sent_to = [s for s in program.sites if writes_to(s, name)]
    remote = [s for s in sent_to if isinstance(s.statement, RemoteStore)]
    if remote and len(remote) < len(sent_to):
        return Unknown(f"{name} is filled by the block that reads it and by others")
    if any(other == name for _, other in unboxed(program)):
        return Unknown(f"a box does not follow the axes of {name}")
    return None


def loaded_before_read(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """One obligation for each read of shared memory that another role fills."""
    done: set[str] = set()
    for read in (a for a in found if not a.writes):
        if sent_by_others(found, read):
            result = attempt(program.world, lambda r=read: _sent(program, found, r))
            yield Obligation(Kind.UNWRITTEN, read.ref.name, result, read.span, read.label)
            continue
        loads = loaded_by_others(program, found, read)
        if not loads:
            continue
        name = read.ref.name
        result = attempt(program.world, lambda r=read, w=loads: _loaded(program, found, r, w))
        yield Obligation(Kind.UNWRITTEN, name, result, read.span, read.label)
        if name not in done:
            done.add(name)
            for load in loads:
                result = attempt(program.world, lambda w=load: _read(program, found, w))
                yield Obligation(Kind.UNWRITTEN, name, result, load.span, load.label)


def loaded_in_turn(program: Program, found: Sequence[Access], read: Access) -> bool:
    """Whether all that is read is what other roles load in the same turn."""
    loads = loaded_by_others(program, found, read)
    program.world.fresh()
    return isinstance(_loaded(program, found, read, loads), Proved)


def _loaded(
    program: Program, found: Sequence[Access], read: Access, loads: Sequence[Access]
) -> Result:
    """Each element that is read lies in a box of the same turn."""
    name = read.ref.name
    if reason := untraced(program, name):
        return reason
    own = program.kernel.shared_buffer(name)
    for other in program.kernel.shared:
        meets = own is not None and other is not own and overlap(own, other)
        if meets and any(a.writes and a.ref.name == other.name for a in found):
            return Unknown(f"{other.name} lies in the same memory as {name}")
    mixed = [a for a in found if a.writes and a.ref.name == name and a not in loads]
    if mixed:
        return Unknown(f"{name} is filled by the role that reads it and by another one")
    compared: list[_Compared] = []
    for load in loads:
        link = turns(program, read.site, load.site)
        if isinstance(link, str):
            return Unknown(f"the turns of the roles do not correspond: {link}")
        compared.append(_Compared.of(program, read, load, link))
    fixed = compared[0].alike().intersection(*(c.alike() for c in compared))
    context = tuple(dict.fromkeys(n for c in compared for n in c.context))
    needed = compared[0].needed(context, fixed)
    loaded = [piece for c in compared for piece in c.written(context, fixed)]
    if _rest(program, needed, loaded) is None:
        return Proved("loaded in the turn in which it is read")
    needed = compared[0].needed(context, frozenset())
    loaded = [piece for c in compared for piece in c.written(context, frozenset())]
    before = [piece for c in compared for piece in c.before(context)]
    inexact = next((p.inexact for p in (needed, *loaded, *before) if p.inexact), "")
    point = None if inexact else _rest(program, needed, [*loaded, *before])
    if point is None:
        return Unknown(inexact or f"{name} is read in a turn that does not load it")
    return _unloaded(name, context, point, "any turn has loaded it")


def _sent(program: Program, found: Sequence[Access], read: Access) -> Result:
    """Each element that is read was stored before by some block of the cluster."""
    if reason := untraced(program, read.ref.name):
        return reason
    compared: list[_Compared] = []
    for store in sent_by_others(found, read):
        link = sent(program, read.site, store.site)
        if isinstance(link, str):
            return Unknown(link)
        compared.append(_Compared.of(program, read, store, link))
    context = tuple(dict.fromkeys(n for c in compared for n in c.context))
    needed = compared[0].needed(context, frozenset())
    stored = [piece for c in compared for piece in c.written(context, frozenset())]
    point = _rest(program, needed, stored)
    if point is None:
        return Proved("stored by other blocks before it is read")
    inexact = next((p.inexact for p in (needed, *stored) if p.inexact), "")
    frames = (c.load.site.frame for c in compared)
    again = any(read.site.frame.common_loops(f) for f in frames)  # earlier turns may serve
    if inexact or again:
        return Unknown(inexact or f"{read.ref.name} is read in a turn in which nothing stores it")
    return _unloaded(read.ref.name, context, point, "any block has stored it")


def _unloaded(name: str, context: Sequence[str], point: Point, what: str) -> Refuted:
    values = tuple(v for _, v in point.values)
    here, element = tuple(zip(context, values, strict=False)), values[len(context) :]
    text = f"{name}[{', '.join(map(str, element))}] is read before {what}"
    note = (instance_text(here, point.symbols),) if here or point.symbols else ()
    return Refuted(text, Witness(element, point.symbols, (here,)), note)


def _rest(program: Program, needed: Piece, loaded: Sequence[Piece]) -> Point | None:
    """A point that is needed and not loaded; None where there is none."""
    rest = image(program.world, needed)
    for piece in loaded:
        if not piece.inexact:
            rest = rest.subtract(image(program.world, piece))
    return rest.first()


def _read(program: Program, found: Sequence[Access], load: Access) -> Result:
    """No turn is loaded that no read belongs to."""
    reads = [
        a for a in found
        if not a.writes and a.ref.name == load.ref.name and apart(program, a.site, load.site)
    ]  # fmt: skip
    compared: list[_Compared] = []
    for read in reads:
        link = turns(program, read.site, load.site)
        if isinstance(link, str):
            return Unknown(f"the turns of the roles do not correspond: {link}")
        compared.append(_Compared.of(program, read, load, link))
    context = tuple(dict.fromkeys(n for c in compared for n in c.context))
    inexact = ""
    for loaded in compared[0].written(context, None):
        rest = image(program.world, loaded)
        for one in compared:
            needed = one.needed(context, None)
            inexact = inexact or needed.inexact or loaded.inexact
            rest = rest.subtract(image(program.world, needed))
        point = rest.first()
        if point is not None:
            here = tuple(zip(context, (v for _, v in point.values), strict=True))
            where = instance_text(here, point.symbols)
            return Unknown(inexact or f"a turn is loaded that is not read, {where}")
    return Proved("each turn that is loaded is read")


def _counters(read: Access, load: Access, link: Turns) -> tuple[str, ...]:
    """What counts the read's turns, outermost first: for each loop of the load its counter in the
    read's names, then the read's further loops, over the parts of a turn."""
    own = tuple(loop.var for loop in read.site.frame.loops)
    theirs = tuple(link.names[v] for loop in load.site.frame.loops if (v := loop.var) in link.names)
    return (*theirs, *own[len(theirs) :])


@dataclass(frozen=True, slots=True)
class _Compared:
    """A read and a load of another role, the load in the reader's names.

    `context` are the counters and the block's digits that tell one turn from another.
    """

    read: Access
    load: Access
    link: Turns
    mine: Domain
    theirs: Domain
    names: dict[str, Expr | int | str]
    context: tuple[str, ...]

    @staticmethod
    def of(program: Program, read: Access, load: Access, link: Turns) -> _Compared:
        to, rank = link.to or Expr.of(0), link.rank or Expr.of(0)
        turning = _counters(read, load, link)
        mine = points(program, read, (), (*rank.variables(), *turning))
        theirs = points(program, load, (), tuple(to.variables()))
        names: dict[str, Expr | int | str] = {}
        for d in theirs.dims:
            names[d.name] = link.names.get(d.name, d.name + WRITER)
        digits = {n for n, roots in mine.roots.items() if roots == _BLOCK}
        theirs_too = (n for n, roots in theirs.roots.items() if roots == _BLOCK)
        digits |= {link.names[n] for n in theirs_too if n in link.names}
        digits |= {n for c in link.copies for x in c for n in x.expr.variables()}
        digits |= rank.variables()
        context = (*sorted(digits), *turning)
        return _Compared(read, load, link, mine, theirs, names, context)

    def alike(self) -> frozenset[int]:
        """The axes on which read and load have the same index, one and the same throughout."""
        found: set[int] = set()
        pairs = zip(self.read.index, self.load.index, self.load.ref.index, strict=True)
        for axis, (one, two, corner) in enumerate(pairs):
            names = one.variables()
            if two == corner and two.substitute(self.names) == one and names <= set(self.context):
                found.add(axis)
        return frozenset(found)

    def needed(self, context: Sequence[str], fixed: frozenset[int] | None) -> Piece:
        """(context.., element..) of what is read; the turn alone where `fixed` is None."""
        read, where = self.read, self.mine
        dims = self._with((*where.dims, *read.elements), context)
        guard = (*where.guard, *read.guard, *read.clip)
        return self._piece(dims, guard, read.index, context, fixed, where.inexact)

    def written(self, context: Sequence[str], fixed: frozenset[int] | None) -> Iterator[Piece]:
        """(context.., element..) of what is loaded, for each block that gets it."""
        load, where, names = self.load, self.theirs, self.names
        own = tuple(Dim(str(names.get(d.name, d.name)), d.extent.substitute(names))
                    for d in where.dims)  # fmt: skip
        guard: tuple[Constraint, ...] = tuple(c.substitute(names) for c in where.guard)
        if self.link.to is not None and self.link.rank is not None:
            guard = (*guard, equal(self.link.to.substitute(names), self.link.rank))
        index = tuple(e.substitute(names) for e in load.index)
        dims = self._with((*own, *load.elements), context)
        for copy in self.link.copies:
            yield self._piece(dims, (*guard, *copy), index, context, fixed, where.inexact)

    def before(self, context: Sequence[str]) -> Iterator[Piece]:
        """What is loaded in earlier turns, as `written`: what they leave may be read later."""
        there = {own: name for name, own in self.link.names.items()}
        loops = [v for v in _counters(self.read, self.load, self.link) if v in there]
        for depth, turn in enumerate(loops):
            own = {there[v]: v + WRITER for v in loops[depth:]}
            digits = {n: n + WRITER for n, roots in self.theirs.roots.items()
                      if roots & own.keys()}  # fmt: skip
            earlier = replace(self, names={**self.names, **digits, **own})
            for piece in earlier.written(context, frozenset()):
                yield replace(piece, guard=(*piece.guard, less(turn + WRITER, turn)))

    def _with(self, dims: Sequence[Dim], context: Sequence[str]) -> tuple[Dim, ...]:
        present = {d.name for d in dims}
        around = {d.name: d for d in (*self.theirs.dims, *self.mine.dims)}
        missing = (around[n] for n in context if n not in present and n in around)
        return (*dims, *missing)

    def _piece(
        self, dims: tuple[Dim, ...], guard: tuple[Constraint, ...], index: tuple[Expr, ...],
        context: Sequence[str], fixed: frozenset[int] | None, inexact: str,
    ) -> Piece:  # fmt: skip
        kept = () if fixed is None else tuple(e for i, e in enumerate(index) if i not in fixed)
        return Piece(dims, guard, (*(Expr.of(n) for n in context), *kept), inexact=inexact)
