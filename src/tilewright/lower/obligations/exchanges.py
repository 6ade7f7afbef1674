"""Exchanges between blocks of the grid: each announcement is awaited once, and every wait ends.

A launch demands that all blocks run at once. Then no wait lasts where each warp announces its own
deposit before it awaits another's, and announces what is awaited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tilewright.kernel.async_ops import Announce, Await, Deposit
from tilewright.kernel.declared import Exchange
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.domains import Domain, domain
from tilewright.lower.obligations.scope import Frame, Program, Site
from tilewright.poly.expr import Constraint, Expr, Guard, equal, less
from tilewright.poly.lemmas import radix
from tilewright.poly.prove import Piece, attempt, find, image, prove_at_most_once
from tilewright.poly.results import Kind, Obligation, Proved, Refuted, Result, Unknown, Witness
from tilewright.poly.sets import Dim, IntSet

OTHER = "'"
Names = Mapping[str, Expr | int | str]


def exchanges(program: Program) -> Iterator[Obligation]:
    """Three obligations for each exchange."""
    every = [(e, _Exchanged.of(program, e)) for e in program.kernel.exchanges]
    plain = [f for _, f in every if isinstance(f, _Exchanged)]

    def ends(found: _Exchanged) -> Result:
        if len(plain) < len(every):
            return Unknown("which blocks use another exchange is not plain")
        return found.ends(plain)

    for declared, found in every:
        questions = (
            (Kind.PHASE, "announced and awaited once each", _Exchanged.once),
            (Kind.DEADLOCK, "waits for other blocks end", ends),
            (Kind.UNWRITTEN, "deposited before it is announced", _Exchanged.deposited),
        )
        for kind, what, question in questions:
            result = found
            if isinstance(found, _Exchanged):
                result = attempt(program.world, lambda q=question, f=found: q(f))
            if not isinstance(result, _Exchanged):
                yield Obligation(kind, declared.name, result, declared.span, what)


def block_number(frame: Frame) -> Expr | None:
    """The block's number in its digits."""
    for _, decode in frame.decodes:
        if str(decode.source) == "block":
            return radix(decode.digits)
    return None


@dataclass(frozen=True, slots=True)
class _Visits:
    """Where a statement runs, by which block and thread, and the block that it speaks of."""

    site: Site
    where: Domain
    block: Expr
    thread: Expr
    about: Expr

    @staticmethod
    def of(program: Program, site: Site, about: Expr | None = None) -> _Visits | None:
        number = block_number(site.frame)
        if number is None:
            return None
        exprs = (number, number if about is None else about)
        loops = tuple(Expr.of(loop.var) for loop in site.frame.loops)
        where = domain(program.kernel, site.frame, (*exprs, *loops), (), ("block", "thread"))
        if where.thread is None or where.inexact:
            return None
        return _Visits(site, where, number, where.thread, exprs[1])

    @property
    def piece(self) -> Piece:
        """(block spoken of, thread)."""
        return Piece(self.where.dims, self.where.guard, (self.about, self.thread))


@dataclass(frozen=True, slots=True)
class _Exchanged:
    program: Program
    declared: Exchange
    announced: _Visits
    awaited: tuple[_Visits, ...]
    deposits: tuple[Site, ...]

    @staticmethod
    def of(program: Program, declared: Exchange) -> _Exchanged | Refuted | Unknown:
        own = [s for s in program.sites if getattr(s.statement, "exchange", "") == declared.name]
        announces = [s for s in own if isinstance(s.statement, Announce)]
        if not announces and any(isinstance(s.statement, Await) for s in own):
            text = f"{declared.name} is awaited, and no block announces a deposit"
            return Refuted(text, Witness((), ()))
        if len(announces) != 1:
            return Unknown(f"{declared.name} is announced in {len(announces)} places")
        announced = _Visits.of(program, announces[0])
        awaited = [
            _Visits.of(program, s, s.statement.block)
            for s in own if isinstance(s.statement, Await)
        ]  # fmt: skip
        if announced is None or None in awaited or any(s.frame.conditions for s in own):
            return Unknown(f"which blocks use {declared.name} is not plain")
        deposits = tuple(s for s in own if isinstance(s.statement, Deposit))
        return _Exchanged(
            program, declared, announced, tuple(v for v in awaited if v is not None), deposits
        )

    def once(self) -> Result:
        world, name = self.program.world, self.declared.name
        for pieces, what in (
            ((self.announced.piece,), "announced"), ([v.piece for v in self.awaited], "awaited"),
        ):  # fmt: skip
            result = prove_at_most_once(world, pieces, name)
            if isinstance(result, Refuted):
                block, thread = result.witness.element
                text = f"what thread {thread} of block {block} leaves in {name} is {what} twice"
                return Refuted(text, result.witness, result.notes)
            if not isinstance(result, Proved):
                return result
        rest = image(world, self.announced.piece)
        for one in self._awaits():
            rest = rest.subtract(one)
        return self._pair(rest, "announces in {name} is never awaited") or Proved(
            "each announcement is awaited once"
        )

    def ends(self, every: Sequence[_Exchanged]) -> Result:
        """No wait lasts; `every` are all exchanges: a block that waits keeps all that it has not
        announced from others."""
        told = image(self.program.world, self.announced.piece)
        for one in self._awaits():
            fault = self._pair(one.subtract(told), "never announces in {name} is awaited")
            if fault is not None:
                return fault
        for visit, other in product(self.awaited, every):
            if (fault := self._early(visit, other)) is not None:
                return fault
        return Proved("each block announces before it waits, and all blocks run at once")

    def deposited(self) -> Result:
        """The deposits of the body in which the announcement stands fill the exchange."""
        *outer, last = self.announced.site.frame.path
        rest = self.program.world.box((Expr.of(self.declared.count),))
        for site in self.deposits:
            *around, at = site.frame.path
            s = site.statement
            if around == outer and at > last:
                text = f"a deposit in {self.declared.name} comes after it is announced"
                return Refuted(text, Witness((), ()))
            if around != outer or not isinstance(s, Deposit):
                return Unknown(f"deposits in {self.declared.name} stand apart from what announces")
            dims = (*(Dim.of(n, e) for n, e in s.over), Dim.of(VECTOR, s.width))
            if not s.index.variables() <= {d.name for d in dims}:
                return Unknown(f"deposits in {self.declared.name} depend on more than their digits")
            rest = rest.subtract(image(self.program.world, Piece(dims, (), (s.index + VECTOR,))))
        point = rest.first()
        if point is not None:
            element = point.values[0][1]
            text = f"{self.declared.name}[{element}] is announced and never deposited"
            return Refuted(text, Witness((element,), point.symbols))
        return Proved(f"all {self.declared.count} elements of a thread are deposited")

    def _awaits(self) -> list[IntSet]:
        return [image(self.program.world, v.piece) for v in self.awaited]

    def _pair(self, rest: IntSet, text: str) -> Refuted | None:
        """The first block and thread of a set, as a fault."""
        point = rest.first()
        if point is None:
            return None
        block, thread = (v for _, v in point.values)
        words = text.format(name=self.declared.name)
        message = f"what thread {thread} of block {block} {words}"
        return Refuted(message, Witness((block, thread), point.symbols))

    def _early(self, visit: _Visits, other: _Exchanged) -> Refuted | Unknown | None:
        """A wait of a thread that has yet to announce its own deposit. Another exchange, or another
        thread of the block, for which the thread may wait in turn, makes it one that may last."""
        told = other.announced
        dims, guard, names = renamed(told.where, OTHER)
        rows = (*visit.where.guard, *guard, equal(visit.block, told.block.substitute(names)))
        own = equal(visit.thread, told.thread.substitute(names))
        every = (*visit.where.dims, *dims)
        for order in _before(visit.site, told.site):
            if find(self.program.world, every, (*rows, *order)) is None:
                continue
            alone = other is self
            point = find(self.program.world, every, (*rows, own, *order)) if alone else None
            if point is None:
                return Unknown(
                    f"a thread waits for what {self.declared.name} gets from another block before "
                    f"all threads of its own block have announced theirs in {other.declared.name}"
                )
            block = visit.block.evaluate(point.bindings())
            text = f"block {block} waits for another's deposit before it announces its own"
            return Refuted(text, Witness((block,), point.symbols, (point.values,)))
        return None


def renamed(where: Domain, suffix: str) -> tuple[tuple[Dim, ...], Guard, Names]:
    """A domain in names of its own."""
    names: Names = {d.name: d.name + suffix for d in where.dims}
    dims = tuple(Dim(d.name + suffix, d.extent.substitute(names)) for d in where.dims)
    return dims, tuple(c.substitute(names) for c in where.guard), names


def _before(first: Site, second: Site) -> Iterator[Guard]:
    """The ways in which the first statement runs before the second, whose names are renamed."""
    rows: list[Constraint] = []
    for loop in first.frame.common_loops(second.frame):
        yield (*rows, less(loop.var, loop.var + OTHER))
        rows.append(equal(loop.var, loop.var + OTHER))
    if first.frame.path < second.frame.path:
        yield tuple(rows)
