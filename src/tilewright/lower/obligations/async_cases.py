"""Which executions stand for all executions of a kernel.

Blocks. Only the loops, guards and places that depend on a block's number tell blocks apart; all
else is the same program. Clusters whose `_signature` of these is the same are one case.

Sizes. What is known at launch only stands in the skeleton as variables, each with a least value;
each is given every value from there up to a bound, in every combination. (Values that no launch
can have together prove more than is needed; a fault among them has to be found again at real
sizes.) The bound: let a state repeat (see `async_repeats`, `stable`) in each loop that such a
variable ends, in the execution with value n, after rounds of q turns, q a multiple of the period
of the variable itself. The execution with n + q turns begins alike, for no decision up to the
repeated state depends on the end; from there it can leave out one round more, and ends alike. So
from where q values in a row have done so, all larger values are proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm, prod

from tilewright.base.rounding import round_up
from tilewright.kernel.ops import Decode
from tilewright.kernel.ranges import Interval, interval
from tilewright.lower.obligations.async_periods import Periods, walked
from tilewright.lower.obligations.async_repeats import Repeats, constant
from tilewright.lower.obligations.async_run import Run, decode
from tilewright.lower.obligations.async_skeleton import Skeleton
from tilewright.lower.obligations.async_state import FaultError
from tilewright.lower.obligations.async_steps import (
    DecodeStep,
    IfStep,
    LoopStep,
    PlainStep,
    Step,
    cells_of,
)
from tilewright.lower.obligations.async_values import Cell, Condition, Env, Lanes, OpenError
from tilewright.poly.expr import Expr

_MOST_RUNS = 400
_MOST_WORK = 400_000  # steps of all executions
_MOST_KINDS = 64  # of blocks
_MOST_CLUSTERS = 4096
_MOST_TRACE = 20_000


@dataclass(eq=False, slots=True)
class Findings:
    """What the executions showed. `counts` are the arrivals and bytes of the phases of an array."""

    runs: int = 0
    work: int = 0
    counts: dict[str, set[tuple[int, int]]] = field(default_factory=dict[str, set[tuple[int, int]]])

    def add(self, run: Run) -> None:
        self.runs += 1
        self.work += run.work
        if self.runs > _MOST_RUNS or self.work > _MOST_WORK:
            raise OpenError(f"more than {self.runs} executions would have to be looked at")
        for name, counts in run.barriers.counts.items():
            self.counts.setdefault(name, set()).update(counts)


class CaseError(Exception):
    """A fault, and the sizes and the first block of the execution that shows it."""

    def __init__(self, fault: FaultError, sizes: Mapping[str, int], first: int) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.sizes = dict(sizes)
        self.first = first


def execute(skeleton: Skeleton) -> Findings:
    """Execute what stands for all executions. CaseError at a fault; OpenError where none does."""
    periods = Periods.in_(skeleton)
    findings = Findings()
    for first in _first_blocks(skeleton):
        _Sizes(skeleton, periods, findings, first).settle(tuple(sorted(skeleton.sizes)), {})
    return findings


# ---------------------------------------------------------------- sizes


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a set of executions showed: loops executed wholly, and rounds that were left out."""

    whole: frozenset[str]
    jumped: Mapping[str, frozenset[int]]

    def join(self, other: _Seen) -> _Seen:
        names = self.jumped.keys() | other.jumped.keys()
        none = frozenset[int]()
        jumped = {n: self.jumped.get(n, none) | other.jumped.get(n, none) for n in names}
        return _Seen(self.whole | other.whole, jumped)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The executions of one cluster, for all sizes."""

    skeleton: Skeleton
    periods: Periods
    findings: Findings
    first: int

    def settle(self, open_: Sequence[str], known: Mapping[str, int]) -> _Seen:
        if not open_:
            return self._run(known)
        name, rest = open_[0], open_[1:]
        bounds = self._bounds(name)
        value = max(bounds.low or 0, 0)
        settled = 0
        result = _Seen(frozenset(), {})
        while bounds.high is None or value <= bounds.high:
            seen = self.settle(rest, {**known, name: value})
            result = result.join(seen)
            round_ = self._round(name, seen)
            settled = settled + 1 if round_ else 0
            if round_ and settled >= round_ and self._stays(name, value):
                break
            value += 1
        return result

    def _run(self, known: Mapping[str, int]) -> _Seen:
        run = Run(self.skeleton, self.first, known)
        repeats = Repeats(self.periods, stable=bool(known))
        try:
            run.run(repeats.after_round)
        except FaultError as fault:
            raise CaseError(fault, known, self.first) from fault
        self.findings.add(run)
        jumped = {name: frozenset(turns) for name, turns in repeats.jumped.items()}
        return _Seen(frozenset(run.whole), jumped)

    def _bounds(self, name: str) -> Interval:
        ranges = {
            s.name: Interval(round_up(s.low, s.multiple), None)
            for s in self.skeleton.kernel.symbols
        }
        size = self.skeleton.sizes[name]
        return Interval(0, size.high) if size.expr is None else interval(size.expr, ranges)

    def _ended(self, name: str) -> list[LoopStep]:
        """The loops whose number of turns the value decides."""
        return [
            s for s in walked(self.skeleton.body)
            if isinstance(s, LoopStep) and name in s.values["extent"].names
        ]  # fmt: skip

    def _round(self, name: str, seen: _Seen) -> int:
        """By how much the value may grow with the same outcome; 0 where nothing says so."""
        round_ = self.periods.of.get(name, 0)
        for loop in self._ended(name):
            extent = loop.values["extent"].expr
            if loop.var in seen.whole or (extent - name).variables():
                return 0
            for turns in seen.jumped.get(loop.var, frozenset()):
                round_ = lcm(round_, turns)
        return round_

    def _stays(self, name: str, value: int) -> bool:
        """Whether guards on the value are the same for all larger ones.

        Those that compare it with the counter of a loop that it ends are looked at where that
        loop repeats.
        """
        counters = {loop.var for loop in self._ended(name)}
        ranges = {**self.periods.counters, name: Interval(value, None)}
        return all(
            constant(c, ranges)
            for c in self.periods.guards.get(name, ())
            if not c.expr.variables() & counters
        )


# ---------------------------------------------------------------- blocks


def _first_blocks(skeleton: Skeleton) -> Iterator[int]:
    """The first block of one cluster of each kind."""
    kernel = skeleton.kernel
    apart = _apart(skeleton)
    if not apart.names:
        yield 0
        return
    if not all(extent.is_const for extent in kernel.grid) or skeleton.sizes:
        raise OpenError(f"blocks differ in {', '.join(sorted(apart.names))}")
    clusters = prod(extent.const for extent in kernel.grid) // kernel.cluster
    if clusters > _MOST_CLUSTERS:
        raise OpenError(f"{clusters} clusters of blocks may all differ")
    kinds: dict[object, int] = {}
    for cluster in range(clusters):
        first = cluster * kernel.cluster
        kinds.setdefault(_signature(skeleton, first, apart), first)
    for number, first in enumerate(kinds.values()):
        if number >= _MOST_KINDS:
            raise OpenError(f"blocks do {len(kinds)} different things")
        yield first


@dataclass(frozen=True, slots=True)
class _Apart:
    """What may tell clusters apart; steps by their identity.

    `names` are the variables, `inside` the loops and guards with such a step in them, `values`
    what a step has of it, and `warps` one warp for each way in which that depends on the warp too.
    """

    names: frozenset[str]
    inside: frozenset[int]
    values: Mapping[int, tuple[Cell | Condition, ...]]
    warps: tuple[int, ...]


def _apart(skeleton: Skeleton) -> _Apart:
    marked = _by_block(skeleton)
    steps = list(walked(skeleton.body))
    values = {
        id(step): found
        for step in steps
        if (found := tuple(v for v in _values(step) if marked.intersection(v.names)))
    }
    inside = frozenset(
        id(step)
        for step in steps
        if isinstance(step, LoopStep | IfStep) and any(id(s) in values for s in walked((step,)))
    )
    names = frozenset(n for found in values.values() for v in found for n in v.names)
    return _Apart(names & marked, inside, values, _warps(skeleton, marked, names))


def _by_block(skeleton: Skeleton) -> frozenset[str]:
    """Variables that may differ from cluster to cluster."""
    marked = {"block"}
    for step in walked(skeleton.body):
        if isinstance(step, DecodeStep) and isinstance(step.statement, Decode):
            source, digits = step.statement.source, step.statement.digits
            if not source.variables() & marked:
                continue
            below = 1 if source == Expr.of("block") else 0
            for name, extent in reversed(digits):
                below = below * extent.const if extent.is_const else 0
                if not below or skeleton.kernel.cluster % below:
                    marked.add(name)
    return frozenset(marked)


def _values(step: Step) -> Iterator[Cell | Condition]:
    """Every expression and guard that says what a step does."""
    if isinstance(step, DecodeStep):
        return
    yield from cells_of(step)
    if isinstance(step, IfStep):
        yield step.condition
    if isinstance(step, PlainStep):
        yield from (touch.guard for touch in step.touches)


def _signature(skeleton: Skeleton, first: int, apart: _Apart) -> object:
    """What a cluster does otherwise than others: its turns, guards and places."""
    found: list[object] = []

    def trace(body: tuple[Step, ...], env: Env) -> None:
        for step in body:
            if len(found) > _MOST_TRACE:
                raise OpenError("blocks differ in too many turns")
            match step:
                case DecodeStep():
                    decode(step, env)
                case LoopStep() if id(step) in apart.inside:
                    turns = step.values["extent"].number(env, "the extent of a loop")
                    found.append(turns)
                    for turn in range(turns):
                        trace(step.body, Env({**env, step.var: turn}))
                case IfStep() if id(step) in apart.inside:
                    # A guard that is the same for all clusters may choose among warps: those of
                    # `apart` stand for the others inside too.
                    holds = step.condition(env) if id(step) in apart.values else None
                    found.append(holds)
                    if holds != 0:
                        trace(step.body, Env(env))
                case _:
                    for value in apart.values.get(id(step), ()):
                        seen = value(env)
                        found.extend(seen.values if isinstance(seen, Lanes) else (seen,))

    for rank in range(skeleton.kernel.cluster):
        for warp in apart.warps:
            try:
                trace(skeleton.body, skeleton.env(first + rank, warp))
            except OpenError:
                return first
    return tuple(found)


def _warps(skeleton: Skeleton, marked: frozenset[str], names: frozenset[str]) -> tuple[int, ...]:
    """One warp for each way in which what depends on the block depends on the warp too.

    `names` are the variables of the expressions that depend on the block.
    """
    sources = (s.values["source"].names for s in walked(skeleton.body) if isinstance(s, DecodeStep))
    others = names.union(*(s for s in sources if marked.intersection(s))) - marked
    kinds: dict[tuple[object, ...], int] = {}
    for warp in range(skeleton.kernel.warps):
        env = skeleton.env(0, warp)
        for step in skeleton.body:
            if isinstance(step, DecodeStep):
                decode(step, env)
        kinds.setdefault(tuple(env.get(name) for name in sorted(others)), warp)
    return tuple(kinds.values())
