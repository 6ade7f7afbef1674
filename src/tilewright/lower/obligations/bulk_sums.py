"""Sums of warpgroup instructions: begun afresh by the first instruction alone, each term once.

Where the guard `accumulate` of a warpgroup instruction fails, its product replaces the sum. In
the turns between two reads of the sum that has to be so at the first instruction on each
accumulator, in program order, and at no other: without it the sum goes on from what the
registers held, with another one the terms before are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import Loop
from tilewright.lower.obligations.carrying import carrying_loops, resets_family
from tilewright.lower.obligations.domains import Domain
from tilewright.lower.obligations.reductions import (
    RUN,
    Term,
    counted_once,
    element_text,
    grouped,
    missing_terms,
    piece_of,
    place_of,
    shared_context,
    values_read,
)
from tilewright.lower.obligations.registers import span_of, uses
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Constraint, Expr, Guard, equal, less
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
    find,
    image,
    instance_text,
)
from tilewright.poly.sets import Dim

BEFORE = "'"


def warpgroup_sums(program: Program) -> Iterator[Obligation]:
    """One obligation for each accumulator that a guard begins: each term counts, once."""
    for (fragment, axis), terms in _begun_by_guard(program).items():
        sums = _sums(program, terms)
        result = sums if isinstance(sums, Unknown) else attempt(program.world, sums.complete)
        if isinstance(result, Proved) and isinstance(sums, Sums):
            result = attempt(program.world, sums.kept)
        span = span_of(terms[0].statement)
        yield Obligation(Kind.REDUCTION, f"{axis} into {fragment}", result, span, "reduction")
    yield from (_untold(Kind.REDUCTION, s) for s in _silent(program))


def warpgroup_starts(program: Program) -> Iterator[Obligation]:
    """One obligation for each accumulator that a guard begins: it is begun before it is used."""
    for (fragment, _), terms in _begun_by_guard(program).items():
        sums = _sums(program, terms)
        result = sums if isinstance(sums, Unknown) else attempt(program.world, sums.begun)
        span = span_of(terms[0].statement)
        yield Obligation(Kind.UNWRITTEN, fragment, result, span, "start of the sum")
    yield from (_untold(Kind.UNWRITTEN, s) for s in _silent(program))


def _begun_by_guard(program: Program) -> dict[tuple[str, str], list[Term]]:
    groups = grouped(program).items()
    return {name: terms for name, terms in groups if any(t.accumulate for t in terms)}


def _silent(program: Program) -> Iterator[WarpgroupMma]:
    """The instructions that begin a sum by a guard and do not say what they count."""
    for site in program.sites:
        s = site.statement
        if isinstance(s, WarpgroupMma) and s.accumulate and not s.reduces:
            yield s


def _untold(kind: Kind, s: WarpgroupMma) -> Obligation:
    result = Unknown("the instruction does not say which terms it counts")
    return Obligation(kind, s.d.name, result, s.span, "start of the sum")


def _sums(program: Program, terms: Sequence[Term]) -> Sums | Unknown:
    """The sums of one fragment along one axis, or why they are not plain."""
    fragment, axis = terms[0].fragment, terms[0].reduced.axis
    if any(t.reduced.extent != terms[0].reduced.extent for t in terms):
        return Unknown(f"the statements state different extents of {axis}")
    if any(resets_family(s.statement, frozenset((fragment,))) for s in program.sites):
        return Unknown(f"{fragment} is set by statements as well as by a guard")
    if any(not isinstance(t.statement, WarpgroupMma) for t in terms):
        return Unknown(f"{fragment} is also summed up by other statements")
    if any(t.site.frame.conditions for t in terms):
        return Unknown(f"conditions that are data decide what {fragment} sums up")
    readers = [s for s in program.sites if _reads(program, s, fragment)]
    if not readers:
        return Unknown(f"nothing reads {fragment}")
    summing: list[tuple[Loop, ...]] = []
    for term in terms:
        outer = max((term.site.frame.common_loops(r.frame) for r in readers), key=len)
        summing.append(term.site.frame.loops[len(outer) :])
    places = tuple(place_of(program, t) for t in terms)
    family = frozenset((fragment,))
    counting = [
        carrying_loops(program, t.site, t.reduced.coordinate, loops, family)
        for t, loops in zip(terms, summing, strict=True)
    ]
    return Sums(program, tuple(terms), places, tuple(summing), tuple(counting))


def _reads(program: Program, site: Site, fragment: str) -> bool:
    """Whether the statement reads the sum, other than to go on with it."""
    if fragment not in values_read(site.statement, program):
        return False
    return all(u.ref.name != fragment for u in uses(site.statement, program.target) if u.writes)


@dataclass(frozen=True, slots=True)
class Sums:
    """The instructions of one accumulator; `summing` are the loops of one sum of each, and
    `counting` those over which sums are added up in what a loop carries."""

    program: Program
    terms: tuple[Term, ...]
    places: tuple[Domain, ...]
    summing: tuple[tuple[Loop, ...], ...]
    counting: tuple[tuple[Loop, ...], ...]

    @property
    def context(self) -> dict[str, Dim]:
        return shared_context(self.terms, self.places, self.summing)

    @property
    def inexact(self) -> str:
        return next((p.inexact for p in self.places if p.inexact), "")

    def complete(self) -> Result:
        """Each term of each sum is counted once."""
        context = shared_context(self.terms, self.places, self.counting)
        pieces = [piece_of(t, p, context) for t, p in zip(self.terms, self.places, strict=True)]
        once = counted_once(self.program, pieces, self.terms[0], context)
        if not isinstance(once, Proved):
            return once
        return missing_terms(self.program, pieces, [], context, self.terms[0])

    def begun(self) -> Result:
        """Some instruction on each accumulator begins its sum."""
        whole = [self._accumulators(t, p, ()) for t, p in self._pairs()]
        begins = [
            self._accumulators(t, p, fails) for t, p in self._pairs() for fails in _negated(t)
        ]
        for piece in whole:
            rest = image(self.program.world, piece)
            for one in begins:
                rest = rest.subtract(image(self.program.world, one))
            point = rest.first()
            if point is None:
                continue
            if self.inexact:
                return Unknown(self.inexact)
            values = [v for _, v in point.values]
            here = tuple(zip(self.context, values, strict=False))
            element = tuple(values[len(here) :])
            place = element_text(self.terms[0].fragment, element)
            text = f"{place} is added to before anything begins its sum"
            notes = (instance_text(here, point.symbols),) if here or point.symbols else ()
            return Refuted(text, Witness(element, point.symbols, (here,)), notes)
        return Proved("an instruction begins each sum")

    def kept(self) -> Result:
        """No instruction that begins a sum comes after another one on its accumulator."""
        for late, place in self._pairs():
            for early, other in self._pairs():
                for fails in _negated(late):
                    fault = self._lost(early, other, late, place, fails)
                    if fault is not None:
                        return fault
        return Proved(f"each of {self.terms[0].reduced.extent} terms is counted once")

    def _pairs(self) -> Iterator[tuple[Term, Domain]]:
        return zip(self.terms, self.places, strict=True)

    def _accumulators(self, term: Term, place: Domain, where: Guard) -> Piece:
        """(context.., accumulator element..) of the instances with these facts."""
        context = self.context
        piece = piece_of(term, place, context)
        return replace(piece, index=piece.index[:-1], guard=(*place.guard, *where))

    def _lost(
        self, early: Term, other: Domain, late: Term, place: Domain, fails: Guard
    ) -> Result | None:
        """A fault where `late` begins the sum that `early` has added to before."""
        kept = self.context.keys()
        names: dict[str, Expr | int | str] = {
            d.name: d.name + BEFORE for d in other.dims if d.name not in kept
        }
        mine = [d for d in place.dims if d.name != RUN]
        theirs = [
            Dim(d.name if d.name in kept else d.name + BEFORE, d.extent.substitute(names))
            for d in other.dims
        ]
        known = {d.name for d in mine}
        dims = (*mine, *(d for d in theirs if d.name not in known and d.name != RUN + BEFORE))
        rows = [*place.guard, *fails, *(c.substitute(names) for c in other.guard)]
        pairs = zip(early.accumulator, late.accumulator, strict=True)
        rows += [equal(a.substitute(names), b) for a, b in pairs]
        for order in self._before(early, late, names):
            point = find(self.program.world, dims, (*rows, *order))
            if point is None:
                continue
            if self.inexact:
                return Unknown(self.inexact)
            values = point.bindings()
            element = tuple(e.evaluate(values) for e in late.accumulator)
            now = tuple(p for p in point.values if not p[0].endswith(BEFORE))
            text = (
                f"the sum in {element_text(late.fragment, element)} is begun again: "
                f"its terms of {late.reduced.axis} before are lost"
            )
            note = instance_text([p for p in now if p[0] in _order(late)], point.symbols)
            return Refuted(text, Witness(element, point.symbols, (now,)), (note,))
        return None

    def _before(
        self, early: Term, late: Term, names: dict[str, Expr | int | str]
    ) -> Iterator[Guard]:
        """The ways in which an instance of `early` comes before one of `late` in one sum."""
        outer = {loop.var for loop in late.site.frame.loops} & self.context.keys()
        shared = [
            x.var for x in early.site.frame.common_loops(late.site.frame) if x.var not in outer
        ]
        order = shared
        if early.statement is late.statement:
            order = [*shared, *(n for n, _ in late.over)]
        rows: list[Constraint] = []
        for name in order:
            was = Expr.of(name).substitute(names)
            yield (*rows, less(was, name))
            rows.append(equal(was, name))
        if early.statement is not late.statement and early.site.frame.path < late.site.frame.path:
            yield tuple(rows)


def _order(term: Term) -> frozenset[str]:
    """The names that tell the instances of an instruction in one block and thread."""
    return frozenset(x.var for x in term.site.frame.loops) | {n for n, _ in term.over}


def _negated(term: Term) -> Iterator[Guard]:
    """The ways in which the instruction's guard fails; none where it has no guard."""
    for c in term.accumulate:
        yield (less(c.expr, 0),)
        if c.equality:
            yield (less(0, c.expr),)
