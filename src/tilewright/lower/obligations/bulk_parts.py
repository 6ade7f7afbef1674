"""Sums whose terms the blocks of a cluster share: every block's part is added once.

A sum whose coordinate has digits of the block is a part of the whole. The parts come together
where each block copies its own, adds what the others store to it (`RemoteStore`), and uses the
total instead. Each element of the total has to get the part of every rank, once. That the parts
are of the same element is a matter of the proofs of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.async_ops import RemoteStore
from tilewright.kernel.ops import Apply, Assign, Load, Over, Read, RegRef
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.bulk_turns import (
    WRITER,
    Names,
    Turns,
    rank_digits,
    sent,
)
from tilewright.lower.obligations.domains import Domain, domain
from tilewright.lower.obligations.holdings import vector, written
from tilewright.lower.obligations.reductions import (
    Term,
    element_text,
    grouped,
    place_of,
    values_read,
)
from tilewright.lower.obligations.registers import span_of
from tilewright.lower.obligations.scope import Program, Site
from tilewright.lower.obligations.tracing import solve
from tilewright.poly.expr import Expr, Guard, equal
from tilewright.poly.prove import Piece, attempt, image, instance_text, prove_at_most_once
from tilewright.poly.results import Kind, Obligation, Proved, Refuted, Result, Unknown, Witness
from tilewright.poly.sets import Dim

# A statement that adds, what it adds, the load of that, and the stores that the load reads.
_Sum = tuple[Site, RegRef, Site, tuple[Site, ...]]
LOADER = '"'  # of names that are the load's own
_ANY = "any part "


def parts(program: Program) -> Iterator[Obligation]:
    """One obligation for each sum of which a block counts a part of the terms only."""
    for (fragment, axis), terms in grouped(program).items():
        digits = tuple(sorted({n for t in terms for n in _own_digits(program, t)}))
        if digits:
            result = attempt(program.world, lambda f=fragment, d=digits: _whole(program, f, d))
            span = span_of(terms[0].statement)
            yield Obligation(Kind.REDUCTION, f"{axis} into {fragment}", result, span, "parts")


def _own_digits(program: Program, term: Term) -> list[str]:
    """The digits of the block, of several values, that a term's coordinate has."""
    place = place_of(program, term)
    names = term.reduced.coordinate.variables()
    several = (d.name for d in place.dims if d.extent != Expr.of(1) and d.name in names)
    return [n for n in several if "block" in place.roots.get(n, ())]


def _whole(program: Program, fragment: str, digits: tuple[str, ...]) -> Result:
    found = _Parts.of(program, fragment, digits)
    if isinstance(found, Unknown):
        return found
    pieces = [*found.own(), *found.added()]
    inexact = next((p.inexact for p in pieces if p.inexact), "")
    if inexact:
        return Unknown(inexact)
    once = prove_at_most_once(program.world, pieces, fragment)
    if isinstance(once, Refuted):
        which = found.which(once.witness.element)
        return replace(once, message=f"{which} is counted again into {found.total}")
    if not isinstance(once, Proved):
        return once
    reached = [image(program.world, p) for p in pieces]
    for piece in pieces:
        rest = image(program.world, found.every(piece))
        for one in reached:
            rest = rest.subtract(one)
        point = rest.first()
        if point is not None:
            element = tuple(v for _, v in point.values)
            here = tuple(zip(found.context, element, strict=False))
            place = element_text(found.total, element[len(here) + 1 : -len(digits)])
            text = f"{found.which(element)} is never counted into {place}"
            witness = Witness(element, point.symbols, (here,))
            return Refuted(text, witness, (instance_text(here, point.symbols),))
    if found.is_used_early():
        return Refuted(f"{found.total} is used before the parts of all blocks are added")
    return Proved("the parts of all blocks of a cluster added, each once")


@dataclass(frozen=True, slots=True)
class _Parts:
    """The statements that bring the parts of `fragment` together in `total`.

    `copies` set it from a block's own part, `sums` add what a load got that others stored.
    `context` tells one total of a thread from another; `digits` are the rank's, of extents `dims`.
    """

    program: Program
    fragment: str
    total: str
    digits: tuple[str, ...]
    copies: tuple[Site, ...]
    sums: tuple[_Sum, ...]
    context: tuple[str, ...]
    dims: Mapping[str, Dim]

    @staticmethod
    def of(program: Program, fragment: str, digits: tuple[str, ...]) -> _Parts | Unknown:
        copies: list[Site] = []
        sends: list[Site] = []
        for site in program.sites:
            s = site.statement
            if isinstance(s, RemoteStore) and s.src.name == fragment:
                sends.append(site)
            elif isinstance(s, Assign) and isinstance(s.value, Read) and (
                s.value.ref.name == fragment
            ):  # fmt: skip
                copies.append(site)
            elif fragment in values_read(s, program):
                return Unknown(f"{fragment} is a part of its sum, and is used as it is")
        totals = {s.statement.dst.name for s in copies if isinstance(s.statement, Assign)}
        if len(totals) != 1 or not sends:
            return Unknown(f"how the parts of {fragment} come together is not plain")
        (total,) = totals
        ranks = rank_digits(program.kernel, sends[0].frame)
        if ranks is None or not set(digits) <= {n for n, _ in ranks}:
            return Unknown(f"blocks of several clusters hold parts of {fragment}")
        sums: list[_Sum] = []
        for site in program.sites:
            s = site.statement
            if not isinstance(s, Assign) or s.dst.name != total or site in copies:
                continue
            other = _addend(s)
            way = None if other is None else _way(program, other, sends)
            if other is None or way is None or site.frame.path < copies[-1].frame.path:
                return Unknown(f"{total} is also set by other statements")
            sums.append((site, other, *way))
        return _placed(program, fragment, total, digits, tuple(copies), tuple(sums), dict(ranks))

    def is_used_early(self) -> bool:
        """Whether a statement reads the total before the last part is added in the same turn."""
        if not self.sums:
            return False
        last = self.sums[-1][0]
        around = {id(loop) for loop in self.copies[0].frame.common_loops(last.frame)}
        adding = {id(loop) for loop in last.frame.loops} - around
        others = (s for s in self.program.sites if all(s is not one for one, *_ in self.sums))
        return any(
            s.frame.path < last.frame.path or any(id(x) in adding for x in s.frame.loops)
            for s in others
            if self.total in values_read(s.statement, self.program)
        )

    def own(self) -> Iterator[Piece]:
        """(context.., thread, element of the total.., rank) for each copy of a block's own part."""
        for site in self.copies:
            where = self._domain(site, ())
            digits = (Expr.of(n) for n in self.digits)
            yield self._piece(site, where, where.dims, where.guard, digits)

    def added(self) -> Iterator[Piece]:
        """The same for each part that a block gets from another one."""
        for site, other, load, stores in self.sums:
            for store in stores:
                link = sent(self.program, load, store)
                if isinstance(link, str):
                    yield Piece((), (), (), inexact=link)
                else:
                    yield self._added(site, other, (load, store), link)

    def _added(self, site: Site, other: RegRef, way: tuple[Site, Site], link: Turns) -> Piece:
        """The thread that adds, the load of the same thread and turn, the store of any thread."""
        kernel = self.program.kernel
        load, store = way
        to, rank = link.to or Expr.of(0), link.rank or Expr.of(0)
        got, index, register, over = _loaded(load)
        there = domain(kernel, load.frame, (*got, *register), over, ())
        shared = {"block", "thread", *(loop.var for loop in site.frame.common_loops(load.frame))}
        alike = [n for n, roots in there.roots.items() if roots and roots <= shared]
        mine: Names = {n: n + LOADER for n in (VECTOR, *there.roots) if n not in alike}
        here = self._domain(site, (*(Expr.of(n) for n in alike), *rank.variables(), *other.index))
        place, exprs, over = written(kernel, store)
        digits = tuple(Expr.of(n) for n in self.digits)
        away = domain(kernel, store.frame, (*place, *exprs, to, *digits), over, ())
        theirs: Names = {n: link.names.get(n, n + WRITER) for n in away.roots}
        rows = [*here.guard, *_renamed(there.guard, mine), *_renamed(away.guard, theirs)]
        rows += [
            equal(a.substitute(mine), b.substitute(theirs))
            for a, b in zip(index, place, strict=True)
        ]
        rows += [equal(a, b.substitute(mine)) for a, b in zip(other.index, register, strict=True)]
        rows.append(equal(to.substitute(theirs), rank))
        dims = {d.name: d for d in here.dims}
        for names, more in ((mine, there.dims), (theirs, away.dims)):
            for d in more:
                name = str(names.get(d.name, d.name))
                dims.setdefault(name, Dim(name, d.extent.substitute(names)))
        where = replace(here, inexact=here.inexact or there.inexact or away.inexact)
        return self._piece(
            site, where, tuple(dims.values()), tuple(rows), (e.substitute(theirs) for e in digits)
        )

    def every(self, piece: Piece) -> Piece:
        """All ranks, for each total that the piece reaches."""
        count = len(self.digits)
        free = tuple(Dim(_ANY + n, self.dims[n].extent) for n in self.digits)
        index = (*piece.index[:-count], *(Expr.of(d.name) for d in free))
        return replace(piece, dims=(*piece.dims, *free), index=index)

    def which(self, element: Sequence[int]) -> str:
        ranks = zip(self.digits, element[-len(self.digits) :], strict=True)
        return f"the part of {self.fragment} at {', '.join(f'{n} = {v}' for n, v in ranks)}"

    def _domain(self, site: Site, exprs: Iterable[Expr | str]) -> Domain:
        """The points of a statement that sets the total, with its thread."""
        index, over = _target(site)
        names = (*self.context, *self.digits, *exprs)
        wide = (*index, *(Expr.of(n) for n in names))
        return domain(self.program.kernel, site.frame, wide, over, ("thread",))

    def _piece(
        self, site: Site, where: Domain, dims: tuple[Dim, ...], guard: Guard,
        digits: Iterable[Expr],
    ) -> Piece:  # fmt: skip
        context = (Expr.of(n) for n in self.context)
        thread = where.thread or Expr.of(0)
        inexact = where.inexact or ("" if where.thread else "which thread adds is not known")
        element, _ = _target(site)
        left, rows, values = solve({d.name: d for d in dims}, guard)
        index = (e.substitute(values) for e in (*context, thread, *element, *digits))
        return Piece(tuple(left.values()), tuple(rows), tuple(index), "", inexact)


def _target(site: Site) -> tuple[tuple[Expr, ...], Over]:
    s = site.statement
    return (s.dst.index, s.over) if isinstance(s, Assign) else ((), ())


def _loaded(
    site: Site,
) -> tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Expr, ...], Over]:
    """Of a load: its memory's index, that of each element, its registers, and its digits."""
    s = site.statement
    if not isinstance(s, Load):
        return (), (), (), ()
    memory, registers = vector(s.src.index, s.axis, s.width), vector(s.dst.index, -1, s.width)
    return s.src.index, memory, registers, (*s.over, (VECTOR, s.width))


def _renamed(guard: Guard, names: Names) -> Guard:
    return tuple(c.substitute(names) for c in guard)


def _addend(s: Assign) -> RegRef | None:
    """What the statement adds to its own register."""
    if isinstance(s.value, Apply) and s.value.op == "add" and len(s.value.args) == 2:
        one, two = s.value.args
        if isinstance(one, Read) and isinstance(two, Read):
            if one.ref == s.dst:
                return two.ref
            return one.ref if two.ref == s.dst else None
    return None


def _way(
    program: Program, other: RegRef, sends: Sequence[Site]
) -> tuple[Site, tuple[Site, ...]] | None:
    """The load that got these registers, and the stores of other blocks that it reads."""
    made = [s for s in program.sites if _sets(s, other.name)]
    if len(made) != 1 or not isinstance(made[0].statement, Load):
        return None
    name = made[0].statement.src.name
    stores = tuple(
        s for s in sends if isinstance(s.statement, RemoteStore) and s.statement.dst.name == name
    )
    return (made[0], stores) if stores else None


def _sets(site: Site, name: str) -> bool:
    return isinstance(site.statement, Load | Assign) and site.statement.dst.name == name


def _placed(
    program: Program, fragment: str, total: str, digits: tuple[str, ...],
    copies: tuple[Site, ...], sums: tuple[_Sum, ...], ranks: Mapping[str, Expr],
) -> _Parts:  # fmt: skip
    """With what tells one total of a thread from another: the block, and the turns of the loops
    around all of its statements."""
    sites = (*copies, *(site for site, *_ in sums))
    loops = {loop.var for loop in sites[0].frame.common_loops(sites[-1].frame)}
    names = tuple(Expr.of(n) for n in (*ranks, *sorted(loops)))
    where = domain(program.kernel, sites[0].frame, names, (), ("block",))
    context = tuple(n for n, roots in where.roots.items() if roots and roots <= {"block", *loops})
    extents = {n: Dim(n, e) for n, e in ranks.items()}
    return _Parts(program, fragment, total, digits, copies, sums, context, extents)
