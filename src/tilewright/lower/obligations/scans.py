"""Every element of a scan combines exactly the terms that its place asks for, each once.

The statements between the terms and the result are run on sets of terms (see `terms`), for all
threads of a block, so that the order of registers, the lane steps, the exchange between warps and
the carried total are all checked as they are written. A loop over the tiles is an induction: the
carried registers start empty; with all earlier tiles in them, one turn gives every element its
terms and leaves all tiles so far in them.

That a term is the operand's element at its coordinate, and the identity past the end, is the
lowering's word, as it is for reductions; tests compare the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.kernel.ops import Assign, Body, Load, Loop, Part, Reduce, Scanned, Store
from tilewright.lower.obligations.domains import domain
from tilewright.lower.obligations.registers import registers_read, span_of
from tilewright.lower.obligations.scope import Program, Site
from tilewright.lower.obligations.terms import (
    NOTHING,
    Claim,
    Held,
    Key,
    Lost,
    State,
    StuckError,
    TermMachine,
    Terms,
    alike,
    common,
    identities,
)
from tilewright.poly.expr import less
from tilewright.poly.prove import (
    Kind,
    Obligation,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    find,
)

_FORWARD = (Part.BEFORE, Part.THROUGH)


def scans(program: Program) -> Iterator[Obligation]:
    """One obligation for each scan."""
    for site in program.sites:
        statement = site.statement
        if not isinstance(statement, Assign) or statement.scans is None:
            continue
        if statement.scans.part is not Part.TERM:
            result = attempt(program.world, lambda s=site: _followed(program, s))
            subject = f"{statement.scans.axis} scanned into {statement.dst.name}"
            yield Obligation(Kind.REDUCTION, subject, result, span_of(statement), "scan")


def _followed(program: Program, site: Site) -> Result:
    try:
        return _Proof.of(program, site).result()
    except StuckError as stuck:
        return Unknown(str(stuck))
    except _WrongError as wrong:
        return wrong.result


class _WrongError(Exception):
    """A fault that ends the run."""

    def __init__(self, result: Refuted) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass(frozen=True, slots=True)
class _Proof:
    """One scan: the statement that claims it, and the loop over its tiles.

    `size` counts the positions of a tile where there is such a loop, and `step` is by how much
    the tile moves in one turn: backwards where it is negative.
    """

    program: Program
    site: Site
    scan: Scanned
    machine: TermMachine
    loop: Loop | None
    step: int

    @staticmethod
    def of(program: Program, site: Site) -> _Proof:
        statement = site.statement
        if not isinstance(statement, Assign) or statement.scans is None:
            raise StuckError("it claims nothing")
        scan = statement.scans
        names, terms = _between(program, statement)
        dtype = program.kernel.fragment(statement.dst.name).dtype
        around = site.frame.around
        place = common(scan.coordinate, alike(program.kernel))
        loops = [x for x in around if isinstance(x, Loop) and x.var in place.variables()]
        machine = TermMachine(
            program.kernel, scan.op, names, identities(scan.op, dtype),
            frozenset(id(x) for x in around), loops[0] if loops else None,
        )  # fmt: skip
        for term in terms:
            if not _agree(machine, term, scan):
                raise StuckError("the terms and the result are counted differently")
        if len(loops) > 1:
            raise StuckError(f"{scan.axis} is walked by more than one loop")
        loop = loops[0] if loops else None
        step = dict(place.terms).get(loop.var, 0) if loop is not None else 0
        if loop is not None and (step > 0) is not (scan.part in _FORWARD):
            raise StuckError(f"the loop over {loop.var} runs against the scan")
        return _Proof(program, site, scan, machine, loop, step)

    def result(self) -> Result:
        claims: list[Claim] = []
        self._run(self.program.kernel.body, State(), claims)
        if not claims:
            return Unknown("the scan is never reached")
        size = abs(self.step) or 1 + max(p for c in claims for p in c.positions)
        fault = self._misplaced(size)
        if fault is not None:
            return fault
        for claim in claims:
            result = self._check(claim, size)
            if not isinstance(result, Proved):
                return result
        return Proved(f"each element combines the terms {self.scan.part.value} its own, each once")

    # ------------------------------------------------------------ the run

    def _run(self, body: Body, state: State, claims: list[Claim]) -> None:
        def enter(loop: Loop, state: State) -> None:
            if loop is self.loop:
                self._induct(loop, state, claims)
            else:
                self._pass(loop, state, claims)

        self.machine.run(body, state, {}, enter, claims.append)

    def _pass(self, loop: Loop, state: State, claims: list[Claim]) -> None:
        """Another serial loop: each turn must begin anew, so that one stands for all."""
        before = dict(state.registers)
        self._run(loop.body, state, claims)
        for key in _changed(before, state):
            raise StuckError(f"{key[0]} goes on through the loop over {loop.var}")

    def _induct(self, loop: Loop, state: State, claims: list[Claim]) -> None:
        """From all earlier tiles in the carried registers to all tiles so far."""
        size = abs(self.step)
        first = state.copy()
        self._run(loop.body, first, [])
        carried = _changed(state.registers, first)
        for key in carried:
            if any(held != NOTHING for held in state.registers[key]):
                message = f"{key[0]} is not empty before the first step of {self.scan.axis}"
                raise _WrongError(Refuted(message))
        second = state.copy()
        for key in carried:
            second.registers[key] = [_earlier(h, size) for h in first.registers[key]]
        self._run(loop.body, second, claims)
        whole = (1 << (size + 1)) - 1
        for key in carried:
            pairs = zip(first.registers[key], second.registers[key], strict=True)
            for thread, (one, two) in enumerate(pairs):
                if not isinstance(one, Terms) or two != Terms(one.line, whole):
                    raise _WrongError(_bad_carry(self.scan, key, thread, one, two, whole))

    # ------------------------------------------------------------ checks

    def _misplaced(self, size: int) -> Result | None:
        """The first tile must be where the scan begins: at 0, or past the end if reverse."""
        scan = self.scan
        start = self.machine.common(scan.coordinate)
        if self.loop is not None:
            start = start.substitute({self.loop.var: 0})
        where = domain(self.program.kernel, self.site.frame, (start, scan.extent), (), ())
        if scan.part in _FORWARD:
            bad = [less(start, 0), less(0, start)]
            text = f"the first tile of the scan does not begin at {scan.axis} = 0"
        else:
            bad = [less(start + size, scan.extent)]
            text = f"the first tile of the scan does not reach the end of {scan.axis}"
        for fault in bad:
            point = find(self.program.world, where.dims, (*where.guard, fault))
            if point is not None:
                witness = Witness((), point.symbols, (point.values,))
                return Unknown(where.inexact) if where.inexact else Refuted(text, witness)
        return None

    def _check(self, claim: Claim, size: int) -> Result:
        past = 1 << size if self.loop is not None else 0
        for thread, position in enumerate(claim.positions):
            if not 0 <= position < size:
                return Unknown(f"position {position} is outside the tile of {size}")
            wanted = past | _wanted(claim.scan.part, position, size)
            held, line = claim.held[thread], claim.lines[thread]
            if held != Terms(line, wanted) and not (held == NOTHING and not wanted):
                return _bad_element(self.scan, thread, position, line, held, wanted, size)
        return Proved()


def _wanted(part: Part, position: int, size: int) -> int:
    """The terms of a tile of `size` that an element at a position has to combine."""
    through = (2 << position) - 1
    match part:
        case Part.TERM:
            return 1 << position
        case Part.BEFORE:
            return through >> 1
        case Part.THROUGH:
            return through
        case Part.AFTER:
            return ((1 << size) - 1) ^ through
        case Part.FROM:
            return ((1 << size) - 1) ^ (through >> 1)


def _bad_element(
    scan: Scanned, thread: int, position: int, line: tuple[int, ...], held: Held, wanted: int,
    size: int,
) -> Result:  # fmt: skip
    at = f"in thread {thread}, at {scan.axis} = {position} of the tile"
    if isinstance(held, Lost):
        return Refuted(f"{held.reason} {at}") if held.wrong else Unknown(f"{held.reason} {at}")
    if held.mask and held.line != line:
        return Refuted(f"the terms of another line are combined {at}")
    missing, extra = wanted & ~held.mask, held.mask & ~wanted
    bit = ((missing or extra) & -(missing or extra)).bit_length() - 1
    term = "the total of earlier tiles" if bit == size else f"{scan.axis} = {bit}"
    what = "is never counted" if missing else "is counted too"
    return Refuted(f"{term} {what} {at}", Witness((position,)), (f"a scan by {scan.op}",))


def _bad_carry(scan: Scanned, key: Key, thread: int, one: Held, two: Held, whole: int) -> Refuted:
    for held in (one, two):
        if isinstance(held, Lost):
            return Refuted(f"{held.reason}, carried in {key[0]} of thread {thread}")
    left = whole & ~(two.mask if isinstance(two, Terms) else 0)
    term = (left & -left).bit_length() - 1
    what = f"{scan.axis} = {term} of a tile" if left else "a term of another line"
    how = "never reaches" if left else "reaches"
    return Refuted(f"{what} {how} the total that {key[0]} of thread {thread} carries on")


def _earlier(held: Held, size: int) -> Held:
    """All earlier tiles, of the line that the register turned out to hold."""
    return Terms(held.line, 1 << size) if isinstance(held, Terms) and held.mask else held


def _changed(before: dict[Key, list[Held]], after: State) -> list[Key]:
    return [key for key, held in before.items() if after.registers[key] is not held]


def _agree(machine: TermMachine, term: Scanned, scan: Scanned) -> bool:
    """Whether a term's place is counted from where the result's is."""
    same = replace(term, part=scan.part, coordinate=scan.coordinate, others=scan.others) == scan
    pairs = zip((term.coordinate, *term.others), (scan.coordinate, *scan.others), strict=False)
    return same and len(term.others) == len(scan.others) and all(
        machine.common(a) == machine.common(b) for a, b in pairs
    )  # fmt: skip


def _between(program: Program, claim: Assign) -> tuple[frozenset[str], list[Scanned]]:
    """The fragments and buffers through which terms come to the claim, and those terms."""
    names, terms = {claim.dst.name}, list[Scanned]()
    known: set[str] = set()
    while names - known:
        known |= names
        terms.clear()
        for site in program.sites:
            statement = site.statement
            match statement:
                case Assign(dst=dst) if dst.name in names:
                    if statement.scans is not None and statement.scans.part is Part.TERM:
                        terms.append(statement.scans)
                    else:
                        names |= {r.name for r in registers_read(statement.value)}
                case Reduce(dst=dst, value=value) if dst.name in names:
                    names |= {r.name for r in registers_read(value)}
                case Load(dst=dst, src=src) if dst.name in names:
                    names.add(src.name)
                case Store(dst=dst, src=src) if dst.name in names:
                    names.add(src.name)
                case _:
                    pass
    return frozenset(names), terms
