"""Every term of a reduction is counted exactly once.

A `ReducedAxis` says which coordinate of its axis a `Reduce` or `Mma` counts. All statements that
accumulate one axis into one fragment are taken together. For each context (block, thread, outer
loops) and each accumulator element that was set, the coordinates must hit [0, extent) once each.
Warpgroup instructions that start their sum by a guard are left to `bulk_sums`, sums that blocks
share to `stream_sums`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import (
    Assign,
    Load,
    Loop,
    Mma,
    Over,
    Reduce,
    ReducedAxis,
    RegRef,
    Statement,
)
from tilewright.lower.obligations.carrying import (
    Families,
    counting_loops,
    families,
    resets_family,
)
from tilewright.lower.obligations.domains import Domain, domain
from tilewright.lower.obligations.registers import RUN, deposited, registers_read, span_of, uses
from tilewright.lower.obligations.scope import BUILTINS, Frame, Program, Site
from tilewright.poly.expr import Expr, Guard, at_least, less
from tilewright.poly.layout import Place
from tilewright.poly.prove import (
    Assumed,
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
    prove_at_most_once,
)
from tilewright.poly.sets import Dim
from tilewright.target.model import MmaAtom

INNER = "k of the atom"


@dataclass(frozen=True, slots=True)
class Term:
    """One statement that counts terms of one axis."""

    site: Site
    statement: Reduce | Mma | WarpgroupMma
    reduced: ReducedAxis

    @property
    def _target(self) -> RegRef:
        statement = self.statement
        return statement.dst if isinstance(statement, Reduce) else statement.d

    @property
    def fragment(self) -> str:
        return self._target.name

    @property
    def accumulator(self) -> tuple[Expr, ...]:
        return self._target.index

    @property
    def over(self) -> Over:
        statement = self.statement
        return statement.over + (statement.along if isinstance(statement, Reduce) else ())

    @property
    def accumulate(self) -> Guard:
        """Where a term is added to the sum; elsewhere it begins the sum."""
        return self.statement.accumulate if isinstance(self.statement, WarpgroupMma) else ()

    @property
    def exprs(self) -> tuple[Expr, ...]:
        guard = (c.expr for c in self.accumulate)
        return (*self.accumulator, self.reduced.coordinate, *guard)

    def atom(self, program: Program) -> MmaAtom | None:
        name = "" if isinstance(self.statement, Reduce) else self.statement.atom
        return program.target.atom(name)


def reductions(program: Program) -> Iterator[Obligation]:
    """One obligation for each accumulator and axis."""
    classes, shared = families(program), deposited(program)
    for (fragment, axis), terms in grouped(program).items():
        if fragment in shared or any(t.accumulate for t in terms):
            continue
        family = classes.get(fragment, frozenset((fragment,)))
        result = attempt(program.world, lambda t=terms, f=family: _complete(program, t, f, classes))
        if isinstance(result, Proved):
            past = (attempt(program.world, lambda t=t: _past(program, t)) for t in terms)
            result = next((r for r in past if not isinstance(r, Proved)), result)
        span = span_of(terms[0].statement)
        yield Obligation(Kind.REDUCTION, f"{axis} into {fragment}", result, span, "reduction")


def grouped(program: Program) -> dict[tuple[str, str], list[Term]]:
    """The statements that count terms, by fragment and axis, in program order."""
    groups: dict[tuple[str, str], list[Term]] = {}
    for site in program.sites:
        if isinstance(site.statement, Reduce | Mma | WarpgroupMma):
            for reduced in site.statement.reduces:
                term = Term(site, site.statement, reduced)
                groups.setdefault((term.fragment, reduced.axis), []).append(term)
    return groups


def _past(program: Program, term: Term) -> Result:
    """No turn of a loop has terms past the extent only: its operands may be an old tile's.

    In a turn with some terms on the axis the operands' others are fills, which count nothing.
    """
    if not isinstance(term.statement, Mma):
        return Proved()
    turns = {loop.var for loop in term.site.frame.loops if not loop.unroll}
    coordinate = term.reduced.coordinate
    where = domain(program.kernel, term.site.frame, (coordinate,), term.over, hardware=())
    others = {d.name for d in where.dims if not where.roots[d.name] & turns}
    first = coordinate.substitute(dict.fromkeys(others & coordinate.variables(), 0))
    if not first.variables() & turns:
        return Proved()
    point = find(program.world, where.dims, (*where.guard, at_least(first, term.reduced.extent)))
    if point is None:
        return Proved()
    at = first.evaluate(point.bindings())
    axis = term.reduced.axis
    return Unknown(f"a turn counts {axis} from {at} on, past its end: what it reads is not known")


# ---------------------------------------------------------------- completeness


def _complete(
    program: Program, terms: Sequence[Term], family: frozenset[str], classes: Families
) -> Result:
    axis, fragment = terms[0].reduced.axis, terms[0].fragment
    extent = terms[0].reduced.extent
    if any(t.reduced.extent != extent for t in terms):
        return Unknown(f"the statements state different extents of {axis}")
    resets = [s for s in program.sites if resets_family(s.statement, family)]
    summing = [
        counting_loops(program, t.site, t.reduced.coordinate, family, classes) for t in terms
    ]
    places = [place_of(program, t) for t in terms]
    context = shared_context(terms, places, summing)
    pieces = [piece_of(t, p, context) for t, p in zip(terms, places, strict=True)]
    once = counted_once(program, pieces, terms[0], context)
    if not isinstance(once, Proved):
        return once
    own = [s for s in resets if _target(s.statement) == fragment]
    guards = _reader_guards(program, terms, summing)
    required = [
        _required(program, s, terms[0], context, extent, guard) for s in own for guard in guards
    ]
    return missing_terms(program, pieces, required, context, terms[0])


def shared_context(
    terms: Sequence[Term], places: Sequence[Domain], summing: Sequence[Sequence[Loop]]
) -> dict[str, Dim]:
    """The dims that tell one sum from another, where `summing` are the loops of one sum."""
    counted = frozenset[str]().union(
        *(_counted(t, loops) for t, loops in zip(terms, summing, strict=True))
    )
    return {d.name: d for place in places for d in place.dims if d.name not in counted}


def counted_once(
    program: Program, pieces: Sequence[Piece], term: Term, context: Mapping[str, Dim]
) -> Result:
    """No coordinate is counted twice into one element of one sum."""
    axis = term.reduced.axis
    once = prove_at_most_once(program.world, pieces, axis)
    if isinstance(once, Refuted):
        *where, k = once.witness.element
        place = element_text(term.fragment, where[len(context) :])
        return replace(once, message=f"{axis} = {k} is counted more than once into {place}")
    return once


def _target(statement: Statement) -> str:
    return statement.dst.name if isinstance(statement, Assign | Load) else ""


def place_of(program: Program, term: Term) -> Domain:
    """The points of a term, with the registers of the accumulator and the atom's own k."""
    where = domain(program.kernel, term.site.frame, term.exprs, term.over, hardware=())
    atom = term.atom(program)
    if atom is None:
        return where
    extra = (Dim.of(INNER, atom.k), Dim.of(RUN, atom.d.count(Place.REGISTER)))
    return replace(where, dims=(*where.dims, *extra))


def _counted(term: Term, loops: Sequence[Loop]) -> frozenset[str]:
    """Dims over which a term runs, or that name its element; the others are context."""
    outer = {loop.var for loop in term.site.frame.loops} - {loop.var for loop in loops}
    own = term.reduced.coordinate.variables() | {n for n, _ in term.over}
    return (own | {INNER, RUN} | {loop.var for loop in loops}) - outer


def piece_of(term: Term, place: Domain, context: Mapping[str, Dim]) -> Piece:
    """(context.., accumulator element.., coordinate) for each counted term."""
    index, coordinate = term.accumulator, term.reduced.coordinate
    if not isinstance(term.statement, Reduce):
        index = (*index[:-1], index[-1] + RUN)
        coordinate = coordinate + INNER
    present = {d.name for d in place.dims}
    missing = tuple(d for n, d in context.items() if n not in present)
    counted = (at_least(coordinate, 0), less(coordinate, term.reduced.extent))
    return Piece(
        (*place.dims, *missing),
        (*place.guard, *counted),
        (*(Expr.of(n) for n in context), *index, coordinate),
        type(term.statement).__name__.lower(),
        place.inexact,
        bool(term.site.frame.conditions),
    )


def _reader_guards(
    program: Program, terms: Sequence[Term], summing: Sequence[tuple[Loop, ...]]
) -> list[Guard]:
    """The guards under which the complete accumulator is read: it must be complete there.

    A part of a guard that uses names unknown to the terms is left out: more is required then.
    """
    frame = terms[0].site.frame
    known = {n for _, d in frame.decodes for n, _ in d.digits}
    known |= {x.var for x in frame.loops} - {x.var for loops in summing for x in loops}
    known |= {s.name for s in program.kernel.symbols} | set(BUILTINS)
    partial = {id(x) for loops in summing for x in loops}
    found: list[Guard] = []
    for site in program.sites:
        if terms[0].fragment in values_read(site.statement, program) and not any(
            id(x) in partial for x in site.frame.loops
        ):
            guard = tuple(c for c in site.frame.guard if c.expr.variables() <= known)
            found.append(guard)
    return list(dict.fromkeys(found)) if found and () not in found else [()]


def values_read(statement: Statement, program: Program) -> frozenset[str]:
    """Fragments that a statement reads, but for the accumulator that it goes on with."""
    match statement:
        case Mma(a=a, b=b):
            return frozenset((a.name, b.name))
        case WarpgroupMma(a=a):
            return frozenset((a.name,) if isinstance(a, RegRef) else ())
        case Reduce(value=value):
            return frozenset(r.name for r in registers_read(value))
        case _:
            found = uses(statement, program.target)
            return frozenset(u.ref.name for u in found if not u.writes)


def _required(
    program: Program,
    reset: Site,
    term: Term,
    context: Mapping[str, Dim],
    extent: Expr,
    guard: Guard,
) -> Piece:
    """All terms of every element that `reset` sets, in every context where `guard` holds."""
    statement = reset.statement
    index, over = (), ()
    extra: tuple[Dim, ...] = ()
    if isinstance(statement, Assign | Load):
        index, over = statement.dst.index, statement.over
        if isinstance(statement, Load) and statement.width > 1:
            index = (*index[:-1], index[-1] + RUN)
            extra = (Dim.of(RUN, statement.width),)
    frame = replace(reset.frame, decodes=term.site.frame.decodes)
    # Digits of the context are tied to the counters that they are digits of.
    tied = (Expr.of(n) for n in sorted(context.keys() & bound_names(program, frame)))
    exprs = (*(e.substitute({RUN: 0}) for e in index), *(c.expr for c in guard), *tied)
    where = domain(program.kernel, frame, exprs, over, hardware=())
    present = {d.name for d in where.dims}
    dims = (*where.dims, *extra, *(d for n, d in context.items() if n not in present))
    shape = next(r.shape for r in program.kernel.registers if r.name == term.fragment)
    inside = [c for i, n in zip(index, shape, strict=True) for c in (at_least(i, 0), less(i, n))]
    term_dim = Dim(INNER, extent)
    whole = (*(Expr.of(n) for n in context), *index, Expr.of(INNER))
    return Piece((*dims, term_dim), (*where.guard, *guard, *inside), whole, inexact=where.inexact)


def bound_names(program: Program, frame: Frame) -> frozenset[str]:
    """The counters and digits that have values where the loops of the frame stand."""
    known = {*BUILTINS, *(s.name for s in program.kernel.symbols), *(x.var for x in frame.loops)}
    for _, decode in frame.decodes:
        if decode.source.variables() <= known:
            known |= {n for n, _ in decode.digits}
    return frozenset(known)


def missing_terms(
    program: Program,
    pieces: Sequence[Piece],
    required: Sequence[Piece],
    context: Mapping[str, Dim],
    term: Term,
) -> Result:
    axis, fragment = term.reduced.axis, term.fragment
    counted = [p for p in pieces if not p.optional and not p.inexact]
    images = [image(program.world, p) for p in counted]
    needed = [image(program.world, p) for p in required] or [
        image(program.world, every_term(p, term.reduced.extent)) for p in counted
    ]
    for one in needed:
        rest = one
        for reached in images:
            rest = rest.subtract(reached)
        point = rest.first()
        if point is None:
            continue
        inexact = next((p.inexact for p in (*pieces, *required) if p.inexact), "")
        if inexact:
            return Unknown(inexact)
        if len(counted) < len(pieces):
            return Assumed(f"the conditions under which {axis} is reduced hold")
        values = [v for _, v in point.values]
        here = dict(zip(context, values, strict=False))
        place = element_text(fragment, values[len(context) : -1])
        low, high = rest.at(point).spread()[-1]
        terms = f"{axis} = {low} to {high}" if high > low else f"{axis} = {low}"
        witness = Witness(tuple(values), point.symbols, (tuple(here.items()),))
        notes = (f"the first is {axis} = {values[-1]} into {place}",)
        if here or point.symbols:
            notes += (instance_text(tuple(here.items()), point.symbols),)
        return Refuted(f"{terms} is never counted into {fragment}", witness, notes)
    return Proved(f"each of {term.reduced.extent} terms is counted once")


def every_term(piece: Piece, extent: Expr) -> Piece:
    """Every coordinate, for each context and element that the piece reaches."""
    return replace(
        piece,
        dims=(*piece.dims, Dim("any term", extent)),
        index=(*piece.index[:-1], Expr.of("any term")),
    )


def element_text(fragment: str, index: Sequence[int]) -> str:
    return f"{fragment}[{', '.join(str(v) for v in index)}]"
