"""What a thread can still meet before everybody meets at a barrier.

`ahead(program, site)` walks the structured program forward from a statement instance x and
yields each instance y that may run while x is not yet ordered before it: with a synchronous x up
to the next barrier; with an asynchronous copy up to the first barrier after the wait that
completes its group. Two accesses of two threads are unordered exactly if one meets the other so.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tilewright.kernel.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Body,
    If,
    Kernel,
    Loop,
    Statement,
    When,
    walk,
)
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Constraint, Expr, Guard, equal, less

_MOST_TURNS = 24  # of one loop, before its barriers are given up on
_MOST_PATHS = 8  # that differ in their conditions alone, before these are forgotten
_MOST_STEPS = 5_000  # statements met in one walk
LATER = "'"  # suffix of what belongs to the later instance


class EndlessError(Exception):
    """A walk met no barrier in many turns of a loop, or was too long for another reason."""


class Stage(Enum):
    """How far x is: its effect is done, or its asynchronous copy is on the way."""

    DONE = "done"
    UNCOMMITTED = "uncommitted"
    COMMITTED = "committed"

    @property
    def in_flight(self) -> bool:
        return self is not Stage.DONE


@dataclass(frozen=True, slots=True)
class Path:
    """One way to go on: the conditions on loop counters, and the stage that x has reached.

    `newer` counts the groups committed after that of x. A path that is not `exact` has lost
    conditions: it may be one that the program never takes.
    """

    stage: Stage
    newer: int = 0
    conditions: Guard = ()
    exact: bool = True

    @property
    def progress(self) -> tuple[Stage, int]:
        return self.stage, self.newer

    def when(self, *conditions: Constraint) -> Path | None:
        """The path under further conditions; None where one plainly fails."""
        if any(_fails(c) for c in conditions):
            return None
        kept = tuple(c for c in conditions if not c.expr.is_const)
        return replace(self, conditions=self.conditions + kept)


def _fails(condition: Constraint) -> bool:
    """Whether no values of the names, all of them counters and so not negative, satisfy it."""
    expr = condition.expr
    signs = {c > 0 for t, c in expr.terms if isinstance(t, str)}
    if any(not isinstance(t, str) for t, _ in expr.terms):
        return False
    never_positive, never_negative = True not in signs, False not in signs
    low = expr.const > 0 and never_negative
    return (expr.const < 0 and never_positive) or (condition.equality and low)


@dataclass(frozen=True, slots=True)
class Meeting:
    """A later statement; `turns` gives its loop counters in those of x, or as later names.

    `same` marks x itself, met by another thread in the same turn of every loop.
    """

    site: Site
    turns: Mapping[str, Expr]
    path: Path
    same: bool = False


_Walk = Generator[Meeting, None, list[Path]]
_Turns = dict[str, Expr]


def ahead(program: Program, site: Site, asynchronous: bool) -> Iterator[Meeting]:
    """Every instance that is not ordered after the instance of `site`, itself included.

    Raises `EndlessError` where no barrier ends the walk.
    """
    walker = _Walker({s.frame.path: s for s in program.sites})
    turns = {loop.var: Expr.of(loop.var) for loop in site.frame.loops}
    start = Path(Stage.UNCOMMITTED if asynchronous else Stage.DONE)
    yield Meeting(site, turns, start, same=True)
    yield from walker.climb(program.kernel, site, turns, start)


class _Walker:
    def __init__(self, sites: Mapping[tuple[int, ...], Site]) -> None:
        self.sites = sites
        self.steps = 0

    def climb(self, kernel: Kernel, site: Site, turns: _Turns, start: Path) -> Iterator[Meeting]:
        """Finish the body that holds the site, then the further turns of each loop around it."""
        bodies: list[Body] = [kernel.body, *(s.body for s in site.frame.around)]
        paths = [start]
        for depth in range(len(bodies) - 1, -1, -1):
            prefix, position = site.frame.path[:depth], site.frame.path[depth]
            inside = {x.var: turns[x.var] for x in site.frame.around[:depth] if isinstance(x, Loop)}
            after: list[Path] = []
            for path in paths:
                after += yield from self.body(bodies[depth], position + 1, prefix, inside, path)
            paths = _merged(after)
            if depth and isinstance(loop := site.frame.around[depth - 1], Loop):
                outer = {n: e for n, e in inside.items() if n != loop.var}
                left: list[Path] = []
                for path in paths:
                    left += yield from self.turns(loop, prefix, outer, path, Expr.of(loop.var) + 1)
                paths = _merged(left)
            if not paths:
                return

    def body(
        self, body: Body, start: int, prefix: tuple[int, ...], turns: _Turns, path: Path
    ) -> _Walk:
        paths = [path]
        for position in range(start, len(body)):
            after: list[Path] = []
            for one in paths:
                here = (*prefix, position)
                after += yield from self.statement(body[position], here, turns, one)
            paths = _merged(after)
            if not paths:
                break
        return paths

    def statement(
        self, statement: Statement, here: tuple[int, ...], turns: _Turns, path: Path
    ) -> _Walk:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise EndlessError(f"more than {_MOST_STEPS} statements may follow with no barrier")
        match statement:
            case Barrier():
                return [] if path.stage is Stage.DONE else [path]
            case AsyncCommit():
                return [_committed(path)]
            case AsyncWait(pending=pending):
                done = path.stage is Stage.COMMITTED and path.newer >= pending
                return [replace(path, stage=Stage.DONE) if done else path]
            case Loop():
                return (yield from self.turns(statement, here, turns, path, Expr.of(0)))
            case If() | When():
                inside = yield from self.body(statement.body, 0, here, turns, path)
                if not _matters(statement.body, path):
                    return [path]
                return _branches(statement, turns, path, inside)
            case _:
                yield Meeting(self.sites[here], dict(turns), path)
                return [path]

    def turns(
        self, loop: Loop, here: tuple[int, ...], turns: _Turns, path: Path, first: Expr
    ) -> _Walk:
        """The turns `first`, `first + 1`, .. of a loop, and what follows it."""
        extent = loop.extent.substitute(turns)
        if not _matters(loop.body, path):
            later = Expr.of(loop.var + LATER)
            free = path.when(Constraint(later - first), less(later, extent))
            if free is not None:
                yield from self.body(loop.body, 0, here, {**turns, loop.var: later}, free)
            return [path]
        left: list[Path] = []
        entering = [path]
        for step in range(_MOST_TURNS):
            turn = first + step
            left += _under(
                entering, equal(turn, extent) if step or first.terms else less(extent, 1)
            )
            after: list[Path] = []
            known = {p.progress for p in entering}
            stuck: dict[tuple[Stage, int], bool] = {}
            for one in _under(entering, less(turn, extent)):
                inside = {**turns, loop.var: turn}
                for p in (yield from self.body(loop.body, 0, here, inside, one)):
                    if p.progress in known:
                        plain = p.exact and p.conditions == one.conditions
                        stuck[p.progress] = plain or stuck.get(p.progress, False)
                    after.append(p)
            if stuck:
                some = [replace(path, stage=s, newer=n, exact=e) for (s, n), e in stuck.items()]
                left += yield from self.some_turn(loop, here, turns, some, turn + 1)
            entering = _merged(p for p in after if p.progress not in stuck)
            if not entering:
                return left
        raise EndlessError(f"the loop over {loop.var} may run {_MOST_TURNS} turns with no barrier")

    def some_turn(
        self, loop: Loop, here: tuple[int, ...], turns: _Turns, pending: list[Path], first: Expr
    ) -> _Walk:
        """Some turn from `first` on, after turns that changed nothing.

        Which one is forgotten, with the conditions of the turns between: that only adds
        meetings, and ends where the paths repeat.
        """
        later = Expr.of(loop.var + LATER)
        seen: dict[Path, None] = {}
        while pending:
            path = pending.pop()
            if path in seen:
                continue
            if len(seen) > _MOST_TURNS:
                raise EndlessError(f"the loop over {loop.var} may go on with no barrier")
            seen[path] = None
            free = path.when(Constraint(later - first), less(later, loop.extent.substitute(turns)))
            if free is not None:
                inside = {**turns, loop.var: later}
                for p in (yield from self.body(loop.body, 0, here, inside, free)):
                    plain = p.exact and p.conditions == free.conditions
                    pending.append(replace(p, conditions=path.conditions, exact=plain))
        return list(seen)


def _merged(paths: Iterable[Path]) -> list[Path]:
    """The paths without repetitions; of too many that have come equally far, what they share."""
    groups: dict[tuple[Stage, int], dict[Path, None]] = {}
    for path in paths:
        groups.setdefault(path.progress, {})[path] = None
    left: list[Path] = []
    for own in groups.values():
        first = next(iter(own))
        if len(own) <= _MOST_PATHS:
            left += own
            continue
        common = [c for c in first.conditions if all(c in p.conditions for p in own)]
        left.append(replace(first, conditions=tuple(common), exact=False))
    return left


def _under(paths: list[Path], condition: Constraint) -> list[Path]:
    return [p for p in (path.when(condition) for path in paths) if p is not None]


def _committed(path: Path) -> Path:
    match path.stage:
        case Stage.UNCOMMITTED:
            return replace(path, stage=Stage.COMMITTED)
        case Stage.COMMITTED:
            return replace(path, newer=path.newer + 1)
        case Stage.DONE:
            return path


def _matters(body: Body, path: Path) -> bool:
    """Whether the body has a statement that can change how far the path is."""
    kinds = (Barrier, AsyncCommit, AsyncWait) if path.stage.in_flight else (Barrier,)
    return any(isinstance(s, kinds) for s in walk(body))


def _branches(statement: If | When, turns: _Turns, path: Path, inside: list[Path]) -> list[Path]:
    """The paths after a branch: through its body, and past it where its guard fails."""
    if inside == [path]:
        return inside
    if isinstance(statement, When):
        return [*inside, path]
    guard = tuple(c.substitute(turns) for c in statement.guard)
    left = [p for p in (one.when(*guard) for one in inside) if p is not None]
    for c in guard:
        failing = (less(c.expr, 0), less(0, c.expr)) if c.equality else (less(c.expr, 0),)
        left += [p for p in (path.when(f) for f in failing) if p is not None]
    return left
