"""Sums whose steps several blocks of the grid share: each term reaches the tile's owner, once.

A block that has some of a tile's steps either owns the tile or deposits what it has summed. The
owner adds to its own sums what it collects. The terms of a tile are its owner's, and those of each
block that it collects from, in the turn in which that block deposits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.async_ops import Collect, Deposit
from tilewright.kernel.ops import Apply, Assign, Const, If, Loop, Read, RegRef, Value, When
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.carrying import resets_family, summing_loops
from tilewright.lower.obligations.domains import Domain, domain
from tilewright.lower.obligations.exchanges import OTHER, block_number
from tilewright.lower.obligations.reductions import (
    Term,
    bound_names,
    counted_once,
    element_text,
    every_term,
    grouped,
    missing_terms,
    piece_of,
    place_of,
    shared_context,
)
from tilewright.lower.obligations.registers import deposited, span_of, uses
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Expr, Guard, equal
from tilewright.poly.prove import Piece, attempt, image
from tilewright.poly.results import Kind, Obligation, Proved, Refuted, Result, Unknown, Witness
from tilewright.poly.sets import Dim

TAKEN = '"'  # of names that are the collecting statement's own
_Use = tuple[Guard, tuple[Term, ...], tuple[int, ...]]


def stream_sums(program: Program) -> Iterator[Obligation]:
    """Two obligations for each sum that is deposited: complete where it is used, from zero on."""
    shared = deposited(program)
    for (fragment, axis), terms in grouped(program).items():
        if fragment in shared:
            made = _Shared.of(program, terms)
            span = span_of(terms[0].statement)
            for kind, what, question in (
                (Kind.REDUCTION, "shared sums", made.complete),
                (Kind.UNWRITTEN, "start of the shared sums", made.begun),
            ):
                result = attempt(program.world, question)
                yield Obligation(kind, f"{axis} into {fragment}", result, span, what)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The sums of one fragment; `context` tells one from another, `summing` are one's loops."""

    program: Program
    terms: tuple[Term, ...]
    places: tuple[Domain, ...]
    summing: tuple[tuple[Loop, ...], ...]
    context: dict[str, Dim]

    @staticmethod
    def of(program: Program, terms: Sequence[Term]) -> _Shared:
        family = frozenset((terms[0].fragment,))
        places = tuple(place_of(program, t) for t in terms)
        summing = tuple(summing_loops(t.site, family) for t in terms)
        return _Shared(
            program, tuple(terms), places, summing, shared_context(terms, places, summing)
        )

    @property
    def fragment(self) -> str:
        return self.terms[0].fragment

    @property
    def local(self) -> frozenset[str]:
        """The parts of the context that tell the threads of a block apart."""
        return frozenset[str]().union(*(p.private for p in self.places)) & self.context.keys()

    def complete(self) -> Result:
        """Each term is counted once in every sum that is used."""
        term, used = self.terms[0], self._used()
        if not used:
            return Unknown(f"nothing uses the sums in {self.fragment}")
        if any(t.reduced.extent != term.reduced.extent for t in self.terms):
            return Unknown(f"the statements state different extents of {term.reduced.axis}")
        collected: list[list[Piece]] = []
        for site in self._adding():
            found = self._collected(site)
            if isinstance(found, str):
                return Unknown(found)
            collected.append(found)
        for guard, summed, added in used:
            own = [replace(p, guard=(*p.guard, *guard)) for p in self._pieces(summed)]
            pieces = [*own, *(p for i in added for p in collected[i])]
            if reason := next((p.inexact for p in pieces if p.inexact), ""):
                return Unknown(reason)
            once = counted_once(self.program, pieces, term, self.context)
            if not isinstance(once, Proved):
                return once
            every = [
                every_term(replace(p, guard=(*p.guard, *guard)), term.reduced.extent)
                for p in self._pieces(self.terms)
            ]
            result = missing_terms(self.program, pieces, every, self.context, term)
            if not isinstance(result, Proved):
                return result
        return Proved(f"each of {term.reduced.extent} terms is counted once, by all blocks")

    def begun(self) -> Result:
        """All registers are set to zero before each sum, in the body around its loops."""
        shape = next(r.shape for r in self.program.kernel.registers if r.name == self.fragment)
        rest = self.program.world.box(tuple(Expr.of(n) for n in shape))
        first = min(t.site.frame.path for t in self.terms)
        around = self._around()
        for site in self.program.sites:
            s = site.statement
            if not resets_family(s, frozenset((self.fragment,))):
                continue
            inner = [a for a in site.frame.around[len(around) :] if isinstance(a, Loop)]
            alone = site.frame.around == (*around, *inner) and site.frame.path < first
            if not alone or not isinstance(s, Assign) or not _is_zero(s.value):
                return Unknown(f"{self.fragment} is set otherwise than to zero before each sum")
            loops = (Dim(x.var, x.extent) for x in inner)
            dims = (*loops, *(Dim.of(n, e) for n, e in s.over))
            rest = rest.subtract(image(self.program.world, Piece(dims, (), s.dst.index)))
        point = rest.first()
        if point is not None:
            element = tuple(v for _, v in point.values)
            text = f"{element_text(self.fragment, element)} goes on from the sum of another tile"
            return Refuted(text, Witness(element, point.symbols))
        return Proved("set to zero before each sum")

    def _around(self) -> tuple[Loop | If | When, ...]:
        """What is around the loops of a sum."""
        around, loops = self.terms[0].site.frame.around, self.summing[0]
        return around[: next((i for i, a in enumerate(around) if a in loops), len(around))]

    def _follows(self, site: Site, other: Site) -> bool:
        """Whether a statement runs after all turns of another one, within one sum."""
        shared = len([a for a in self._around() if isinstance(a, Loop)])
        return (
            other.frame.path < site.frame.path
            and len(other.frame.common_loops(site.frame)) == shared
        )

    # ------------------------------------------------------------ the owner's own terms

    def _pieces(self, summed: Sequence[Term]) -> list[Piece]:
        pairs = zip(self.terms, self.places, strict=True)
        return [piece_of(t, p, self.context) for t, p in pairs if t in summed]

    def _summed(self, site: Site) -> tuple[Term, ...]:
        """The terms that are counted before a statement."""
        return tuple(t for t in self.terms if self._follows(site, t.site))

    def _used(self) -> list[_Use]:
        """Where the sums are used as they are: the guard, on the context, and the terms and the
        additions (by their numbers) that come before."""
        found: dict[_Use, None] = {}
        adding = self._adding()
        known = self.context.keys()
        for site in self.program.sites:
            s = site.statement
            added = any(s is a.statement for a in adding)
            if isinstance(s, Deposit) or added or _sums_up(site):
                continue
            reads = (u for u in uses(s, self.program.target) if not u.writes)
            if any(u.ref.name == self.fragment for u in reads):
                guard = tuple(c for c in site.frame.guard if c.expr.variables() <= known)
                before = tuple(i for i, a in enumerate(adding) if self._follows(site, a))
                found[guard, self._summed(site), before] = None
        return list(found)

    # ------------------------------------------------------------ others' terms

    def _adding(self) -> list[Site]:
        """The statements that add what is collected."""
        return [s for s in self.program.sites if self._addend(s) is not None]

    def _addend(self, site: Site) -> RegRef | None:
        s = site.statement
        match s:
            case Assign(dst=dst, value=Apply(op="add", args=(Read(ref=one), Read(ref=two)))):
                if dst.name != self.fragment or dst not in (one, two):
                    return None
                return two if one == dst else one
            case _:
                return None

    def _collected(self, site: Site) -> list[Piece] | str:
        """(context.., element, coordinate) of each term that an addition brings."""
        s, other = site.statement, self._addend(site)
        takes = [t for t in self.program.sites if isinstance(t.statement, Collect)
                 and other is not None and t.statement.dst.name == other.name]  # fmt: skip
        if len(takes) != 1 or not isinstance(s, Assign) or other is None:
            return f"what is added to {self.fragment} is collected in {len(takes)} places"
        if any(self._sets(x, other.name) for x in self.program.sites):
            return f"{other.name} is set to other values than those that are collected"
        (take,) = takes
        t = take.statement
        apart = take.frame.around != site.frame.around or take.frame.path > site.frame.path
        if apart or not isinstance(t, Collect):
            return f"what is added to {self.fragment} is collected elsewhere"
        if not self.context.keys() <= bound_names(self.program, site.frame):
            return f"sums of other turns are added to {self.fragment}"
        context = tuple(Expr.of(n) for n in self.context)
        own = {name: name + TAKEN for name, _ in t.over}
        got = tuple(e.substitute(own) for e in (*t.dst.index[:-1], t.dst.index[-1] + VECTOR))
        rows = [equal(a, b) for a, b in zip(other.index, got, strict=True)]
        exprs = (*context, *s.dst.index, *other.index, t.block, t.index.substitute(own))
        over = (*s.over, *((own[n], e) for n, e in t.over))
        where = domain(self.program.kernel, site.frame, exprs, over, ())
        if where.inexact:
            return where.inexact
        dims = (*where.dims, Dim.of(VECTOR, t.width))
        element = t.index.substitute(own) + VECTOR
        found: list[Piece] = []
        for left in self.program.sites:
            if isinstance(left.statement, Deposit) and left.statement.exchange == t.exchange:
                if site.frame.path < left.frame.path:
                    return f"what {t.exchange} gets may have been collected"
                for piece in self._pieces(self._summed(left)):
                    link = self._left(left, left.statement, piece, element, t.block)
                    if isinstance(link, str):
                        return link
                    more, guard, coordinate = link
                    index = (*context, *s.dst.index, coordinate)
                    found.append(
                        Piece((*dims, *more), (*where.guard, *rows, *guard), index, "collected")
                    )
        return found

    def _sets(self, site: Site, name: str) -> bool:
        """Whether anything but what is collected gets into a fragment."""
        written = (u for u in uses(site.statement, self.program.target) if u.writes)
        collects = isinstance(site.statement, Collect)
        return not collects and any(u.ref.name == name for u in written)

    def _left(
        self, site: Site, s: Deposit, term: Piece, element: Expr, block: Expr
    ) -> tuple[tuple[Dim, ...], Guard, Expr] | str:
        """The terms behind an element that a block has deposited: dims, guard, coordinate."""
        number = block_number(site.frame)
        known = bound_names(self.program, site.frame)
        if number is None or not self.context.keys() <= known or s.src.name != self.fragment:
            return f"what {s.exchange} gets is not the sum of one turn"
        kernel = self.program.kernel
        context = tuple(Expr.of(n) for n in self.context)
        exprs = (*context, *s.src.index, s.index, number)
        where = domain(kernel, site.frame, exprs, s.over, ())
        if where.inexact:
            return where.inexact
        names: dict[str, Expr | int | str] = {
            d.name: d.name + OTHER
            for d in (*where.dims, *term.dims, Dim.of(VECTOR, s.width))
            if d.name not in self.local
        }
        held = (*s.src.index[:-1], s.src.index[-1] + VECTOR)
        inner = term.index[len(context) : -1]
        rows = (
            *where.guard, *term.guard, *(equal(a, b) for a, b in zip(held, inner, strict=True))
        )  # fmt: skip
        guard = tuple(c.substitute(names) for c in rows)
        link = (
            equal(number.substitute(names), block),
            equal((s.index + VECTOR).substitute(names), element),
        )
        every = {d.name: d for d in (*where.dims, *term.dims, Dim.of(VECTOR, s.width))}
        dims = tuple(
            Dim(str(names[n]), d.extent.substitute(names))
            for n, d in every.items() if n in names
        )  # fmt: skip
        return dims, (*guard, *link), term.index[-1].substitute(names)


def _sums_up(site: Site) -> bool:
    return hasattr(site.statement, "accumulate")


def _is_zero(value: Value) -> bool:
    return isinstance(value, Const) and value.value == 0
