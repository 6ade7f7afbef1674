"""States of an execution that repeat, and the turns of loops that need not be executed.

Where every unit waits, the *signature* of the state has all that the rest of the execution
depends on, but for two things: events are named by their order of creation, and of a loop counter
with a period only the remainder counts, not the turn. Let the signature of a state be that of an
earlier one, and let each unit have gone on in at most one loop, by a number d of turns that the
loop's period divides, with no other counter changed. Then the execution goes on from the later
state as it did from the earlier one, with that counter d further, as long as each decision is the
same: loops do not end, and guards that compare the counter keep their truth. So whole rounds of
it can be left out. `Repeats` leaves out as many as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.kernel.ranges import Interval, interval
from tilewright.lower.obligations.async_periods import Periods
from tilewright.lower.obligations.async_run import Run
from tilewright.lower.obligations.async_state import (
    Does,
    Event,
    Frame,
    Groups,
    Log,
    Phase,
    State,
    Unit,
)
from tilewright.lower.obligations.async_steps import LoopStep
from tilewright.lower.obligations.async_values import Env
from tilewright.poly.expr import Constraint, Expr

_LEFT = "turns left"  # a space: no variable has this name

_Counters = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Move:
    """A unit's loop that has gone on: which frame, and by how many turns."""

    unit: Unit
    depth: int
    turns: int

    @property
    def frame(self) -> Frame:
        return self.unit.frames[self.depth]


class Repeats:
    """Watches one execution; call `after_round` when every unit waits.

    `stable`: what is left out must be so for any larger number of turns too; then it is enough
    that a state repeats, though no turns are left to leave out. `jumped` has the turns by which
    loops have repeated, by variable.
    """

    def __init__(self, periods: Periods, stable: bool = False) -> None:
        self.periods = periods
        self.stable = stable
        self.jumped: dict[str, set[int]] = {}
        self._seen: dict[object, list[_Counters]] = {}
        self._begun: dict[LoopStep, int] = {}  # the turn in which a loop was seen last

    def after_round(self, run: Run) -> None:
        if not self._due(run.state):
            return
        _forget(run.state)
        signature = self._signature(run.state)
        now = _counters(run.state)
        for before in reversed(self._seen.get(signature, [])):
            moves = self._moves(run.state, before, now)
            if moves and self._jump(run, moves):
                return
        self._seen.setdefault(signature, []).append(now)

    def _due(self, state: State) -> bool:
        """Whether a loop that might leave turns out has begun a turn, the first of a period.

        Signatures take time; where all bounds are numbers, one in a period is enough.
        """
        due = False
        met: set[LoopStep] = set()
        for unit in state.units:
            for frame in unit.frames:
                loop = frame.loop
                if loop is None or frame.jumped or loop in met:
                    continue
                period = self.periods.of.get(loop.var)
                if period is None or frame.value + (0 if self.stable else period) >= frame.extent:
                    continue
                met.add(loop)
                begun = self._begun.get(loop) != frame.value
                self._begun[loop] = frame.value
                due |= begun and (self.stable or frame.value % period == 0)
        return due

    # ------------------------------------------------------------ signatures

    def _place(self, unit: Unit) -> tuple[object, ...]:
        return tuple([(id(f.body), f.at, f.mask, self._turn(f)) for f in unit.frames])

    def _turn(self, frame: Frame) -> int:
        if frame.loop is None:
            return 0
        period = self.periods.of.get(frame.loop.var)
        return frame.value if period is None else frame.value % period

    def _signature(self, state: State) -> object:
        units = [
            (
                self._place(u), u.know, tuple(sorted(u.parts.items())),
                tuple([_apart(e) for e in (*u.dirty, *u.copies.all())]),
                tuple([e.number for e in u.unfenced]),
                tuple(sorted(u.touched.items())),
                tuple(sorted((lane, _groups(g)) for lane, g in u.stores.items())),
                _groups(u.copies),
                None if u.waits is None else (id(u.waits.phase), u.waits.mark.number),
                id(u.arrived), u.granted, u.cluster, u.cluster_granted,
            )
            for u in state.units
        ]  # fmt: skip
        meetings = [
            (
                m.threads,
                m.arrived,
                m.gathered,
                _number(m.last),
                tuple([u.number for u in m.waiting]),
            )
            for m in state.meetings.values()
        ]
        groups = [(len(g.here), _groups(g.matrix)) for g in state.groups]
        pools = [(p.free, tuple(sorted(p.counts.items()))) for p in state.pools]
        logs = [(key, tuple([_event(e) for e in log.events])) for key, log in state.logs.items()]
        visits = [(rank, e.number) for rank, e in state.visits]
        phases = [_phase(p) for p in state.phases.values()]
        return tuple(
            map(tuple, (units, meetings, groups, pools, logs, visits, phases))
        )  # fmt: skip

    # ------------------------------------------------------------ leaving turns out

    def _moves(self, state: State, before: _Counters, now: _Counters) -> list[_Move]:
        """How each unit has gone on; empty where one did so in no single periodic loop."""
        moves: list[_Move] = []
        for unit, old, new in zip(state.units, before, now, strict=True):
            changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            if not changed:
                continue
            depth = changed[0]
            loop, turns = unit.frames[depth].loop, new[depth] - old[depth]
            if len(changed) > 1 or loop is None or turns < 0:
                return []
            period = self.periods.of.get(loop.var)
            if period is None or turns % period:
                return []
            moves.append(_Move(unit, depth, turns))
        return moves

    def _jump(self, run: Run, moves: list[_Move]) -> bool:
        rounds = min((m.frame.extent - 1 - m.frame.value) // m.turns for m in moves)
        least = 0 if self.stable else 1
        while rounds >= least and not all(self._same_decisions(m, rounds) for m in moves):
            rounds = rounds // 2 if rounds > 4 else rounds - 1
        if rounds < least:
            return False
        shifts: dict[int, tuple[str, int]] = {}
        for move in moves:
            frame, further = move.frame, rounds * move.turns
            var = frame.loop.var if frame.loop is not None else ""
            frame.value += further
            frame.jumped = True
            self.jumped.setdefault(var, set()).add(move.turns)
            for inner in move.unit.frames[move.depth :]:
                inner.env = _shifted(inner.env, var, further)
            shifts[move.unit.number] = (var, further)
        for group in run.state.groups:
            group.here = {}
        for log in run.state.logs.values():
            for event in log.events:
                if event.unit in shifts and event.env is not None:
                    event.env = _shifted(event.env, *shifts[event.unit])
        return True

    def _same_decisions(self, move: _Move, rounds: int) -> bool:
        """Whether the guards that compare the counter hold or fail all along.

        Where more turns are to be `stable`, also for any later turn, or any number of turns
        before the last, whichever the guard is about.
        """
        frame = move.frame
        if frame.loop is None:
            return False
        var, extent = frame.loop.var, frame.loop.values["extent"].expr
        last = frame.value + rounds * move.turns
        ranges = {**self.periods.counters, **_ranges(frame.env)}
        ranges[var] = Interval(frame.value - move.turns, None if self.stable else last)
        ranges[_LEFT] = Interval(frame.extent - 1 - last, None)
        for constraint in self.periods.guards.get(var, ()):
            if self.stable and constraint.expr.variables() & extent.variables():
                constraint = constraint.substitute({var: extent - 1 - Expr.of(_LEFT)})
                if constraint.expr.variables() & extent.variables():
                    return False
            if not constant(constraint, ranges):
                return False
        return True


def constant(constraint: Constraint, ranges: Mapping[str, Interval]) -> bool:
    """Whether the constraint plainly holds, or plainly fails, for all values in the ranges."""
    found = interval(constraint.expr, ranges)
    below = found.high is not None and found.high < 0
    if constraint.equality:
        return below or (found.low is not None and found.low > 0)
    return below or (found.low is not None and found.low >= 0)


def _ranges(env: Env) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    for name, value in env.items():
        if isinstance(value, int):
            found[name] = Interval.of(value)
        else:
            found[name] = Interval(min(value.values), max(value.values))
    return found


def _shifted(env: Env, var: str, further: int) -> Env:
    value = env.get(var)
    if not isinstance(value, int):
        return env
    made = Env(env)
    made[var] = value + further
    return made


def _counters(state: State) -> _Counters:
    return tuple([tuple([f.value for f in u.frames]) for u in state.units])


def _number(event: Event | None) -> int:
    return -1 if event is None else event.number


def _groups(groups: Groups) -> tuple[object, ...]:
    return (
        tuple([e.number for e in groups.open]),
        *[tuple([e.number for e in group]) for group in groups.closed],
    )


def _apart(e: Event) -> tuple[object, ...]:
    """An access that the lanes of its own warp have still to be told apart in."""
    return (e.number, tuple([p.lanes for p in e.prints]))


def _event(e: Event) -> tuple[object, ...]:
    touched = tuple([(p.arena, p.bits, p.exact) for p in e.prints])
    held = tuple([(h.fragment, h.bits, h.written) for h in e.held])
    return (e.number, e.does, e.unit, e.lanes, id(e.step), touched, held, _number(e.fence),
            e.given)  # fmt: skip


def _phase(p: Phase) -> tuple[object, ...]:
    return (
        p.ended % 2, p.pending, p.expected, p.issued, p.gathered, p.over, _number(p.last),
        _number(p.previous), tuple([e.number for e in p.loads]),
        tuple([(w.phases - p.ended, w.mark.number) for w in p.waits]),
        tuple([(a.mark.number, a.given, a.visits, a.size) for a in (*p.arrivers, *p.earlier)]),
        len(p.arrivers),
    )  # fmt: skip


# ---------------------------------------------------------------- forgetting


def _forget(state: State) -> None:
    """Drop the events that no later step can ask for, and number the others anew, in order."""
    _drop_known(state)
    live = sorted({e.number: e for e in _live(state)}.items())
    move = _renumbering([number for number, _ in live])
    for _, event in live:
        event.given = move(event.given)
    _renumber(state, move)
    for new, (_, event) in enumerate(live):
        event.renumber(new)
    state.count = len(live)
    for log in state.logs.values():
        log.again()


def _drop_known(state: State) -> None:
    """What every unit that goes on knows cannot conflict with anything any more."""
    going = [u for u in state.units if u.frames]
    common = -1 if going else 0
    for unit in going:
        common &= unit.know
    for log in state.logs.values():
        if log.bits & common:
            log.keep([e for e in log.events if not _is_past(e, common)])
    known: dict[int, int] = {}
    for unit in state.units:
        known[unit.block] = known.get(unit.block, 0) | unit.know
    state.visits = [(rank, e) for rank, e in state.visits if not e.bit & known[rank]]


def _is_past(event: Event, common: int) -> bool:
    if not event.bit & common:
        return False
    return event.does is not Does.WRITE or (
        event.fence is not None and bool(event.fence.bit & common)
    )


def _live(state: State) -> Iterator[Event]:
    for log in state.logs.values():
        yield from _with_fences(log)
    for unit in state.units:
        yield from (*unit.dirty, *unit.unfenced, *unit.copies.all())
        for groups in unit.stores.values():
            yield from groups.all()
        if unit.waits is not None:
            yield unit.waits.mark
    for group in state.groups:
        yield from group.matrix.all()
    for phase in state.phases.values():
        yield from (e for e in (phase.begun, phase.last, phase.previous) if e is not None)
        yield from phase.loads
        yield from (w.mark for w in phase.waits)
        yield from (a.mark for a in (*phase.arrivers, *phase.earlier))
    for meeting in state.meetings.values():
        if meeting.last is not None:
            yield meeting.last
    yield from (e for _, e in state.visits)


def _with_fences(log: Log) -> Iterator[Event]:
    for event in log.events:
        yield event
        if event.fence is not None:
            yield event.fence


def _renumber(state: State, move: Callable[[int], int]) -> None:
    for unit in state.units:
        unit.know = move(unit.know)
        unit.parts = {lanes: move(bits) for lanes, bits in unit.parts.items()}
        unit.granted = None if unit.granted is None else move(unit.granted)
        if unit.cluster_granted is not None:
            unit.cluster_granted = move(unit.cluster_granted)
    for phase in state.phases.values():
        phase.gathered, phase.over = move(phase.gathered), move(phase.over)
        for arrival in (*phase.arrivers, *phase.earlier):
            arrival.given = move(arrival.given)
    for meeting in state.meetings.values():
        meeting.gathered = move(meeting.gathered)


def _renumbering(live: list[int]) -> Callable[[int], int]:
    """Sets of old numbers to sets of new ones: runs of numbers that stay together move at once."""
    runs: list[tuple[int, int, int]] = []  # first, mask, new first
    start = 0
    while start < len(live):
        end = start
        while end + 1 < len(live) and live[end + 1] == live[end] + 1:
            end += 1
        runs.append((live[start], (1 << (end - start + 1)) - 1, start))
        start = end + 1
    kept: dict[int, int] = {}

    def move(bits: int) -> int:
        found = kept.get(bits)
        if found is None:
            found = 0
            for first, mask, new in runs:
                found |= (bits >> first & mask) << new
            kept[bits] = found
        return found

    return move
