"""Partial results of warps that are summed through shared memory.

Each thread stores its partial result, some thread loads all of them and reduces again. The three
statements together relate a term of the second reduction to the thread whose partial it is:
for each total, every value of the digits that the partials differ by must occur once, and the
partial must be one of the same result: same element, same digits otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.kernel.ops import Cast, Load, Loop, Mma, Over, Read, Reduce, RegRef, Store, Value
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.carrying import summing_loops
from tilewright.lower.obligations.domains import Domain, domain
from tilewright.lower.obligations.scope import Frame, Program, Site
from tilewright.lower.obligations.variation import digit_bits, varying
from tilewright.poly.expr import Constraint, Expr, equal, less
from tilewright.poly.prove import (
    Piece,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    find,
    image,
    prove_at_most_once,
)
from tilewright.poly.sets import Dim

WRITER, LOADER = "'", '"'  # suffixes of the storing thread's names, and of the load's own


@dataclass(frozen=True, slots=True)
class Route:
    """Store of a partial result, load of all, and the reduction that combines them."""

    store: Site
    load: Site
    reduce: Site
    partial: Store
    loaded: Load
    combined: Reduce


def routes(program: Program, names: set[str], op: str, last: Site) -> Iterator[Route]:
    """Every way from a fragment of `names` through shared memory into a reduction by `op`."""
    shared = {b.name for b in program.kernel.shared}
    after = [s for s in program.sites if s.frame.path > last.frame.path]
    for store in after:
        partial = store.statement
        if not isinstance(partial, Store) or partial.src.name not in names:
            continue
        if partial.dst.name not in shared:
            continue
        for load in after:
            loaded = load.statement
            if not isinstance(loaded, Load) or loaded.src.name != partial.dst.name:
                continue
            for site in after:
                combined = site.statement
                if isinstance(combined, Reduce) and combined.op == op:
                    read = _read(combined.value)
                    if read is not None and read.name == loaded.dst.name:
                        yield Route(store, load, site, partial, loaded, combined)


def _read(value: Value) -> RegRef | None:
    match value:
        case Read(ref=ref):
            return ref
        case Cast(value=inner):
            return _read(inner)
        case _:
            return None


def prove_exchange(
    program: Program,
    found: Sequence[Route],
    partial: frozenset[str],
    fragment: str,
    terms: Sequence[Site],
) -> Result:
    """The routes combine the partial results of all values of the digits `partial`, once each.

    `terms` are the reductions that left them: each element they wrote needs its total.
    """
    links: list[_Link] = []
    pieces: list[Piece] = []
    needed: list[Piece] = []
    for route in found:
        link = _Link.of(program, route, partial)
        if isinstance(link, Unknown):
            return link
        fault = link.mixes(program)
        if fault is not None:
            return fault
        links.append(link)
        pieces.append(link.piece())
        needed += [link.needed(term) for term in terms]
    once = prove_at_most_once(program.world, pieces, fragment)
    if isinstance(once, Refuted) and not all(link.counts_once(program) for link in links):
        which = _digits(partial, once.witness.element[-len(partial) :])
        message = f"the partial result of {fragment} at {which} is counted again"
        return Refuted(message, once.witness)
    if isinstance(once, Refuted) and len(links) > 1:
        return Unknown(f"the partial results of {fragment} take several ways that may overlap")
    if isinstance(once, Unknown):
        return once
    reached = [image(program.world, piece) for piece in pieces]
    for every in needed:
        rest = image(program.world, every)
        for one in reached:
            rest = rest.subtract(one)
        point = rest.first()
        if point is not None:
            values = tuple(v for _, v in point.values)
            which = _digits(partial, values[-len(partial) :])
            witness = Witness(values, point.symbols)
            message = f"the partial result of {fragment} at {which} is never combined"
            return Refuted(message, witness)
    return Proved("the partial results of all warps combined, each once")


def _digits(partial: frozenset[str], values: Sequence[int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in zip(sorted(partial), values, strict=True))


@dataclass(frozen=True, slots=True)
class _Link:
    """All (thread, term of its second reduction, storing thread) that one route relates."""

    route: Route
    partial: frozenset[str]
    reader: Domain
    writer: Domain
    dims: tuple[Dim, ...]
    guard: tuple[Constraint, ...]
    renamed: dict[str, Expr | int | str]
    summed: frozenset[str]  # dims of the reader over which its reduction adds up

    @staticmethod
    def of(program: Program, route: Route, partial: frozenset[str]) -> _Link | Unknown:
        kernel = program.kernel
        stored, loaded, combined = route.partial, route.loaded, route.combined
        read = _read(combined.value)
        if read is None:
            return Unknown("the second reduction computes with the partial results")
        source = (*stored.dst.index, *(c.expr for c in stored.guard))
        target = (*loaded.src.index, *(c.expr for c in loaded.guard))
        private = _thread_digits(route.store.frame) & (_used(source, target) | partial)
        if not private <= _thread_digits(route.reduce.frame):
            return Unknown("the threads that store and load partial results differ in digits")
        extra = tuple(Expr.of(n) for n in sorted(private))
        writer = domain(kernel, route.store.frame, (*source, *extra), stored.over, ("thread",))
        over = (*combined.over, *combined.along)
        own = (*combined.dst.index, *read.index, *extra)
        reader = domain(kernel, route.reduce.frame, own, over, ("thread",))
        together = _loops(route.store.frame) & _loops(route.reduce.frame)
        same = set(writer.fixed(together)) | together
        renamed: dict[str, Expr | int | str] = {
            d.name: d.name + WRITER for d in writer.dims if d.name not in same
        }
        alone = _loops(route.load.frame) - _loops(route.reduce.frame)
        mine = {n for n, _ in loaded.over} | alone
        names: dict[str, Expr | int | str] = {n: n + LOADER for n in mine}
        dims = {d.name: d for d in reader.dims}
        for d in writer.dims:
            name = d.name if d.name in same else d.name + WRITER
            dims.setdefault(name, Dim(name, d.extent.substitute(renamed)))
        dims |= {n + LOADER: Dim.of(n + LOADER, size) for n, size in loaded.over}
        for loop in route.load.frame.loops:
            if loop.var in alone:
                dims[loop.var + LOADER] = Dim(loop.var + LOADER, loop.extent.substitute(names))
        known = dims.keys() | {s.name for s in kernel.symbols}
        at_load = [e.substitute(names) for e in _vector(loaded.src.index, loaded, LOADER)]
        at_store = [e.substitute(renamed) for e in _vector(stored.dst.index, stored, WRITER)]
        register = [e.substitute(names) for e in loaded.dst.index]
        register[-1] = register[-1] + (VECTOR + LOADER)
        guard = [*reader.guard, *(c.substitute(renamed) for c in (*writer.guard, *stored.guard))]
        guard += [c.substitute(names) for c in loaded.guard]
        guard += [equal(a, b) for a, b in zip(at_load, at_store, strict=True)]
        guard += [equal(a, b) for a, b in zip(register, read.index, strict=True)]
        for suffix, width in ((LOADER, loaded.width), (WRITER, stored.width)):
            dims[VECTOR + suffix] = Dim.of(VECTOR + suffix, width)
        if any(not c.expr.variables() <= known | dims.keys() for c in guard):
            return Unknown("the threads that store and load partial results differ in digits")
        total = frozenset((combined.dst.name,))
        summed = {loop.var for loop in summing_loops(route.reduce, total)}
        summed |= {n for n, _ in combined.along}
        return _Link(
            route, partial, reader, writer, tuple(dims.values()), tuple(guard), renamed,
            frozenset(summed),
        )  # fmt: skip

    def mixes(self, program: Program) -> Unknown | None:
        """A partial result of another element, or of threads that hold another result."""
        stored, combined = self.route.partial, self.route.combined
        element = [e.substitute(self.renamed) for e in stored.src.index]
        element[-1] = element[-1] + (VECTOR + WRITER)
        if len(element) != len(combined.dst.index):
            return Unknown("the partial and the combined fragments have different axes")
        apart = list(zip(element, combined.dst.index, strict=True))
        bits = varying(program.kernel).stored[id(stored)]
        digits = _bits(program, self.route.store.frame)
        for name in sorted(self.writer.private):
            if digits.get(name, ~0) & bits and name not in self.partial:
                if name not in self.reader.private:
                    return Unknown(f"the combining thread has no digit {name}")
                apart.append((Expr.of(name + WRITER), Expr.of(name)))
        for one, two in apart:
            for different in (less(one, two), less(two, one)):
                if find(program.world, self.dims, (*self.guard, different)) is not None:
                    return Unknown(
                        f"partial results may be combined with those of another element: {one} "
                        f"of the storing thread, {two} of the combining one"
                    )
        return None

    def piece(self) -> Piece:
        """(reading thread.., element.., partial digits..) for each term of the reduction."""
        index = (*self._context(), *(Expr.of(n + WRITER) for n in sorted(self.partial)))
        inexact = self.reader.inexact or self.writer.inexact
        return Piece(self.dims, self.guard, index, "combining", inexact)

    def counts_once(self, program: Program) -> bool:
        """Whether no total has two terms of one thread's partial result.

        Several threads may have stored the same partial result: the race proof speaks of these.
        """
        summed = tuple(sorted(self.summed))
        index = (*self._context(), *(Expr.of(n + WRITER) for n in sorted(self.partial)))
        terms = program.world.image(self.dims, self.guard, index, keep=summed)
        return terms.injective_from(summed)

    def needed(self, term: Site) -> Piece:
        """Every value of the partial digits, for every element that `term` accumulates."""
        index, over = _accumulator(term)
        names: dict[str, Expr | int | str] = {n: n + WRITER for n, _ in over}
        element = tuple(e.substitute(names) for e in index)
        mine = tuple(Dim.of(n + WRITER, size) for n, size in over)
        kept = {n for n, _ in self.route.combined.over} | self.summed
        outer = tuple(d for d in self.reader.dims if d.name not in kept)
        extents = {d.name: d.extent for d in self.writer.dims}
        every = tuple(Dim(n + WRITER, extents[n]) for n in sorted(self.partial))
        whole = (*self._outer(), *element, *(Expr.of(d.name) for d in every))
        theirs: dict[str, Expr | int | str] = {n: n + WRITER for n in self.partial}
        has_terms = [c for c in term.frame.guard if c.expr.variables() <= self.partial]
        rows = (*self.reader.guard, *(c.substitute(theirs) for c in has_terms))
        return Piece((*outer, *mine, *every), rows, whole)

    def _outer(self) -> tuple[Expr, ...]:
        kept = {n for n, _ in self.route.combined.over} | self.summed
        return tuple(Expr.of(d.name) for d in self.reader.dims if d.name not in kept)

    def _context(self) -> tuple[Expr, ...]:
        return (*self._outer(), *self.route.combined.dst.index)


def _accumulator(term: Site) -> tuple[tuple[Expr, ...], Over]:
    match term.statement:
        case Reduce(dst=dst, over=over):
            return dst.index, over
        case Mma(d=d, over=over):
            return d.index, over
        case _:
            raise TypeError(type(term.statement).__name__)


def _vector(index: tuple[Expr, ...], statement: Load | Store, suffix: str) -> list[Expr]:
    axis = statement.axis % len(index)
    return [e + (VECTOR + suffix) if i == axis else e for i, e in enumerate(index)]


def _used(*exprs: tuple[Expr, ...]) -> frozenset[str]:
    return frozenset[str]().union(*(e.variables() for group in exprs for e in group))


def _loops(frame: Frame) -> set[str]:
    return {s.var for s in frame.around if isinstance(s, Loop)}


def _bits(program: Program, frame: Frame) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, decode in frame.decodes:
        found |= digit_bits(program.kernel, decode)
    return found


def _thread_digits(frame: Frame) -> frozenset[str]:
    counters = ("thread", "warp", "lane")
    return frozenset(n for _, d in frame.decodes if str(d.source) in counters for n, _ in d.digits)
