"""Where threads wait for each other: transaction barriers, barriers of threads, the cluster's."""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernel.async_ops import ArriveExpect, BulkLoad, NamedBarrier, RemoteStore
from tilewright.kernel.ops import Kernel
from tilewright.kernel.scopes import phase_ref
from tilewright.lower.obligations.async_state import (
    Arrival,
    Does,
    Event,
    FaultError,
    Meeting,
    Phase,
    State,
    Unit,
    Wait,
)
from tilewright.lower.obligations.async_steps import (
    Step,
)
from tilewright.lower.obligations.async_values import Env
from tilewright.lower.obligations.async_words import Words
from tilewright.poly.results import Kind

_CLUSTER = -1  # the key of the cluster's barrier
_BEGINNING = "it takes InitPhases, then a Barrier (other blocks: ClusterArrive and ClusterWait)"


class Barriers:
    """All barriers of one execution."""

    def __init__(self, state: State, kernel: Kernel, words: Words) -> None:
        self.state = state
        self.kernel = kernel
        self.words = words
        self.counts: dict[str, set[tuple[int, int]]] = {}  # arrivals and bytes of ended phases

    # ------------------------------------------------------------ transaction barriers

    def begin(self, unit: Unit, step: Step, names: tuple[str, ...]) -> None:
        """One thread of a block's first warp begins the barriers for it, whichever it is."""
        if unit.warp:
            return
        mark = self._mark(unit)
        mark.lanes = unit.full
        unit.dirty.append(mark)
        for name in names:
            if (name, 0, unit.block) in self.state.phases:
                text = f"{name} of {self.words.block(unit.block)} is begun for the second time"
                raise FaultError(Kind.PHASE, name, text, step)
            declared = next(p for p in self.kernel.phases if p.name == name)
            for index in range(declared.count):
                self.state.phases[name, index, unit.block] = Phase(
                    name, index, unit.block, declared.arrivals, mark, declared.arrivals, last=mark
                )

    def _mark(self, unit: Unit) -> Event:
        return self.state.event(Does.MARK, unit.number)

    def _phase(self, unit: Unit, step: Step, env: Env, mask: int, rank: int) -> Phase:
        """The barrier that a statement names, in the block of that rank."""
        ref = phase_ref(step.statement)
        name = "" if ref is None else ref.name
        index = step.values["phase"].active(env, mask, "which barrier it is")
        found = self.state.phases.get((name, index, rank))
        if found is None or (not found.ended and not unit.knows(mask) & found.begun.bit):
            raise FaultError(
                Kind.PHASE, name,
                f"{name}[{index}] of {self.words.block(rank)} is used by "
                f"{self.words.unit(unit, mask)}, to which nothing says that it has begun",
                step,
                (self.words.where(step, env), _BEGINNING),
            )  # fmt: skip
        return found

    def arrive(self, unit: Unit, step: Step, env: Env, mask: int) -> None:
        s = step.statement
        remote = step.values.get("block")
        rank = unit.block if remote is None else remote.active(env, mask, "which block it is")
        phase = self._phase(unit, step, env, mask, rank)
        count = mask.bit_count()
        if isinstance(s, ArriveExpect) and count > 1:
            raise FaultError(
                Kind.PHASE, phase.name,
                f"ArriveExpect at {phase.label} is executed by {count} threads of "
                f"{self.words.unit(unit)}, where one expects the bytes of all",
                step, (self.words.where(step, env),),
            )  # fmt: skip
        given = unit.releases(mask)
        if rank != unit.block:
            given = self._remote(unit, rank, given)
        known = unit.knows(mask)
        if isinstance(s, ArriveExpect) or not self._counts(phase, known, given):
            self._in_turn(unit, step, env, mask, phase)
        if isinstance(s, ArriveExpect):
            phase.expected += s.size
        if count > phase.pending:
            arrivals = "arrival" if count == 1 else "arrivals"
            raise FaultError(
                Kind.PHASE, phase.name,
                f"{phase.label} gets {count} {arrivals} from {self.words.unit(unit, mask)}, but "
                f"its phase {phase.ended} takes {phase.pending} of {phase.arrivals} more",
                step, (self.words.where(step, env),),
            )  # fmt: skip
        if self.kernel.cluster > 1:
            mark = self._arrival(unit, step, env, mask)
            visits = rank != unit.block
            if visits:
                self._visit(mark, rank)
            size = s.size if isinstance(s, ArriveExpect) else 0
            phase.arrivers.append(Arrival(mark, given, visits, size))
            given |= mark.bit
        phase.gathered |= given
        phase.pending -= count
        alone = count == phase.arrivals and not phase.expected and not phase.issued
        self.settle(phase, step)
        if alone and phase.last is not None:
            unit.learn(mask, phase.last.bit)  # its arrival has ended the phase at once

    def _counts(self, phase: Phase, known: int, given: int) -> bool:
        """Whether the arrival counts for this phase, or may count for the one before without harm.

        In the second case another arrival of that phase counts for this one: one that is not
        known here, and that hands on nothing that this one does not.
        """
        if phase.last is None or known & phase.last.bit:
            return True
        if phase.previous is None or not known & phase.previous.bit:
            return False
        missing = [a for a in phase.earlier if not a.mark.bit & known]
        relevant = self._relevant()
        if not missing or any(a.size or a.given & relevant & ~given for a in missing):
            return False
        for arrival in missing:
            if arrival.visits:  # the end of the phase does not say that it is done
                unit = self.state.units[arrival.mark.unit]
                again = replace(arrival.mark)
                again.renumber(self._mark(unit).number)
                unit.learn(again.lanes, again.bit)
                self._visit(again, phase.block)
        return True

    def _relevant(self) -> int:
        """The events that a later step may ask for."""
        bits = 0
        for log in self.state.logs.values():
            bits |= log.bits
        for phase in self.state.phases.values():
            for event in (phase.last, phase.previous, *(w.mark for w in phase.waits)):
                bits |= event.bit if event is not None else 0
        for meeting in self.state.meetings.values():
            bits |= meeting.last.bit if meeting.last is not None else 0
        for _, visit in self.state.visits:
            bits |= visit.bit
        return bits

    def _remote(self, unit: Unit, rank: int, given: int) -> int:
        """An arrival at another block hands on no plain writes."""
        for log in self.state.logs.values():
            given &= ~log.plain
        return given

    def _arrival(self, unit: Unit, step: Step, env: Env, mask: int) -> Event:
        mark = self._mark(unit)
        mark.lanes, mark.step, mark.env = mask, step, env
        unit.learn(mask, mark.bit)
        return mark

    def _visit(self, mark: Event, rank: int) -> None:
        """Another block's barrier is used: that block must not have ended."""
        if not any(u.frames for u in self.state.units if u.block == rank):
            raise self._gone(mark, rank)
        self.state.visits.append((rank, mark))

    def _gone(self, mark: Event, rank: int) -> FaultError:
        return FaultError(
            Kind.DRAIN, self.words.block(rank),
            f"{self.words.block(rank)} may have ended when {self.words.of(mark)} uses its shared "
            "memory",
            mark.step,
            (self.words.note(mark),
             "it takes a ClusterArrive and ClusterWait of all blocks before the end"),
        )  # fmt: skip

    def check_visits(self, block: int, known: int) -> None:
        """A block must stay until the arrivals of others at its barriers are done."""
        for rank, visit in self.state.visits:
            if rank == block and not visit.bit & known:
                raise self._gone(visit, rank)

    def of_load(self, unit: Unit, step: Step, env: Env, mask: int) -> list[Phase]:
        """The barriers that a load or a remote store signals: one in each block that it writes."""
        s = step.statement
        ranks = [unit.block]
        if isinstance(s, RemoteStore):
            ranks = [step.values["block"].active(env, mask, "which block it is")]
        if isinstance(s, BulkLoad) and "multicast" in step.values:
            chosen = step.values["multicast"].active(env, mask, "the mask of blocks")
            ranks = [rank for rank in range(self.kernel.cluster) if chosen >> rank & 1]
        phases = [self._phase(unit, step, env, mask, rank) for rank in ranks]
        for phase in phases:
            self._in_turn(unit, step, env, mask, phase)
            if phase.block != unit.block:
                self._present(unit, step, env, mask, phase.block)
            if not phase.pending and phase.issued >= phase.expected:
                raise self._too_many(phase, step)
        return phases

    def _present(self, unit: Unit, step: Step, env: Env, mask: int, rank: int) -> None:
        if not any(u.frames for u in self.state.units if u.block == rank):
            raise self._gone(self._arrival(unit, step, env, mask), rank)

    def _in_turn(self, unit: Unit, step: Step, env: Env, mask: int, phase: Phase) -> None:
        """The thread knows that the phase before has ended, so it counts for this one."""
        last = phase.last
        if last is None or unit.knows(mask) & last.bit:
            return
        raise FaultError(
            Kind.PHASE, phase.name,
            f"{step.title} of {self.words.unit(unit, mask)} may count for phase {phase.ended - 1} "
            f"or {phase.ended} of {phase.label}: nothing tells the thread that the former is over",
            step, (self.words.where(step, env),),
        )  # fmt: skip

    def settle(self, phase: Phase, step: Step) -> None:
        """End the phase where its arrivals are complete and its bytes are on the way."""
        if phase.pending or phase.issued < phase.expected:
            return
        if phase.issued > phase.expected:
            raise self._too_many(phase, step)
        ends = phase.gathered
        for wait in phase.waits:
            if wait.phases == phase.ended and not wait.mark.bit & ends:
                raise self._overtaken(phase, wait.mark)
        mark = self.state.event(Does.MARK)
        phase.over |= phase.gathered | mark.bit
        for event in phase.loads:
            phase.over |= event.bit
        self.counts.setdefault(phase.name, set()).add((phase.arrivals, phase.expected))
        phase.ended += 1
        phase.waits = [w for w in phase.waits if w.phases >= phase.ended]
        phase.previous, phase.last = phase.last, mark
        phase.pending = phase.arrivals
        phase.expected = phase.issued = phase.gathered = 0
        phase.earlier, phase.arrivers = phase.arrivers, []
        phase.loads = []

    def _too_many(self, phase: Phase, step: Step) -> FaultError:
        return FaultError(
            Kind.PHASE, phase.name,
            f"the loads of phase {phase.ended} of {phase.label} in {self.words.block(phase.block)} "
            f"bring {phase.issued} bytes, but {phase.expected} are expected",
            step, tuple(self.words.note(e) for e in phase.loads),
        )  # fmt: skip

    def _overtaken(self, phase: Phase, event: Event) -> FaultError:
        return FaultError(
            Kind.PHASE, phase.name,
            f"phase {phase.ended} of {phase.label} ends while a wait for phase {phase.ended - 1} "
            "may not have passed yet: the wait sees another phase, or none",
            event.step, (self.words.note(event),),
        )  # fmt: skip

    def wait(self, unit: Unit, step: Step, env: Env, mask: int) -> bool:
        if unit.waits is None:
            phase = self._phase(unit, step, env, mask, unit.block)
            parity = step.values["parity"].active(env, mask, "the parity") % 2
            target = self._meant(unit, step, env, mask, phase, parity)
            mark = self._mark(unit)
            mark.lanes, mark.step, mark.env = mask, step, env
            unit.waits = Wait(phase, target, mark)
            phase.waits.append(unit.waits)
        wait = unit.waits
        if wait.phase.ended < wait.phases:
            return False
        unit.learn(mask, wait.phase.over | wait.mark.bit)
        unit.waits = None
        return True

    def _meant(self, unit: Unit, step: Step, env: Env, mask: int, phase: Phase, parity: int) -> int:
        """How many phases must have ended for the wait to pass, in every execution."""
        passes = phase.ended % 2 != parity
        known = unit.knows(mask)
        if phase.last is None or known & phase.last.bit:
            return phase.ended if passes else phase.ended + 1
        if passes and phase.previous is not None and known & phase.previous.bit:
            return phase.ended
        raise FaultError(
            Kind.PHASE, phase.name,
            f"{self.words.unit(unit, mask)} waits for parity {parity} of {phase.label}, but phase "
            f"{phase.ended - 1} may have ended before the wait: it may see either parity",
            step, (self.words.where(step, env),),
        )  # fmt: skip

    # ------------------------------------------------------------ barriers of threads

    def meet(self, unit: Unit, step: Step, env: Env, mask: int) -> bool:
        s = step.statement
        if unit.arrived is not None:
            return self._pass(unit)
        named = isinstance(s, NamedBarrier)
        name = step.values["barrier"].active(env, mask, "which barrier it is") if named else 0
        threads = s.threads if named else self.kernel.threads
        title = f"named barrier {name}" if name else "the block's barrier"
        meeting = self._meeting((unit.block, name), title, threads)
        self._whole(unit, step, env, mask, meeting)
        if meeting.threads != threads:
            if meeting.arrived:
                raise FaultError(
                    Kind.BARRIER, title,
                    f"{title} takes {threads} threads for {self.words.unit(unit)}, and "
                    f"{meeting.threads} where {meeting.arrived} have arrived already",
                    step, (self.words.where(step, env),),
                )  # fmt: skip
            meeting.threads = threads
        silent = isinstance(s, NamedBarrier) and s.arrive
        if not silent:
            unit.arrived = meeting
            meeting.waiting.append(unit)
        self._arrive_at(unit, step, env, meeting)
        return True if silent else self._pass(unit)

    def _meeting(self, key: tuple[int, int], name: str, threads: int) -> Meeting:
        found = self.state.meetings.get(key)
        if found is None:
            found = self.state.meetings[key] = Meeting(name, threads)
        return found

    def _whole(self, unit: Unit, step: Step, env: Env, mask: int, meeting: Meeting) -> None:
        if mask == unit.full:
            unit.converge()
            return
        absent = unit.full & ~mask
        raise FaultError(
            Kind.BARRIER, meeting.name,
            f"{self.words.unit(unit, absent & -absent)} does not reach {meeting.name} that other "
            "threads of its warp reach",
            step, (self.words.where(step, env),),
        )  # fmt: skip

    def _arrive_at(self, unit: Unit, step: Step, env: Env, meeting: Meeting) -> None:
        if meeting.last is not None and not unit.know & meeting.last.bit:
            raise FaultError(
                Kind.BARRIER, meeting.name,
                f"{self.words.unit(unit)} arrives at {meeting.name}, but may count for its round "
                f"{meeting.rounds - 1}: nothing tells it that this one is complete",
                step, (self.words.where(step, env),),
            )  # fmt: skip
        if meeting.arrived + len(self._lanes) > meeting.threads:
            raise FaultError(
                Kind.BARRIER, meeting.name,
                f"{meeting.arrived + len(self._lanes)} threads arrive at {meeting.name}, which "
                f"takes {meeting.threads}",
                step, (self.words.where(step, env),),
            )  # fmt: skip
        meeting.gathered |= unit.releases(unit.full)
        meeting.arrived += len(self._lanes)
        if meeting.arrived == meeting.threads:
            mark = self.state.event(Does.MARK)
            for other in meeting.waiting:
                if meeting.cluster:
                    other.cluster_granted = meeting.gathered | mark.bit
                else:
                    other.granted = meeting.gathered | mark.bit
            meeting.last = mark
            meeting.rounds += 1
            meeting.arrived = meeting.gathered = 0
            meeting.waiting = []

    @property
    def _lanes(self) -> range:
        return range(self.kernel.warp_size)

    def _pass(self, unit: Unit) -> bool:
        if unit.granted is None:
            return False
        unit.know |= unit.granted
        unit.arrived = unit.granted = None
        return True

    def cluster_arrive(self, unit: Unit, step: Step, env: Env, mask: int) -> None:
        threads = self.kernel.threads * self.kernel.cluster
        meeting = self._meeting((_CLUSTER, 0), "the cluster's barrier", threads)
        meeting.cluster = True
        self._whole(unit, step, env, mask, meeting)
        if unit.cluster:
            raise FaultError(
                Kind.BARRIER, meeting.name,
                f"{self.words.unit(unit)} arrives twice at {meeting.name} without a wait between",
                step, (self.words.where(step, env),),
            )  # fmt: skip
        unit.cluster = True
        meeting.waiting.append(unit)
        self._arrive_at(unit, step, env, meeting)

    def cluster_wait(self, unit: Unit, step: Step, env: Env, mask: int) -> bool:
        meeting = self._meeting((_CLUSTER, 0), "the cluster's barrier", 0)
        if not unit.cluster:
            raise FaultError(
                Kind.BARRIER, meeting.name,
                f"{self.words.unit(unit)} waits at {meeting.name}, where it has not arrived",
                step, (self.words.where(step, env),),
            )  # fmt: skip
        if unit.cluster_granted is None:
            unit.arrived = meeting
            return False
        self._whole(unit, step, env, mask, meeting)
        unit.know |= unit.cluster_granted
        unit.arrived = unit.cluster_granted = None
        unit.cluster = False
        return True

    # ------------------------------------------------------------ the end

    def deadlock(self) -> FaultError:
        """All units that have not ended wait: the fault, with the place of each."""
        waiting = [u for u in self.state.units if u.frames]
        first = min(waiting, key=_rank)
        stuck = _rank(first) == _PARTIAL
        notes: list[str] = []
        for unit in waiting:
            frame = unit.frames[-1]
            where = self.words.where(frame.body[frame.at], frame.env)
            notes.append(f"{self.words.unit(unit)}, {where}: {_why(unit)}")
        phase = first.waits.phase.name if first.waits is not None else self.kernel.name
        return FaultError(
            Kind.PHASE if stuck else Kind.DEADLOCK, phase,
            f"deadlock: {self.words.unit(first)} {_why(first)}",
            first.frames[-1].body[first.frames[-1].at], tuple(notes),
        )  # fmt: skip


_PARTIAL = 1


def _rank(unit: Unit) -> int:
    """Which of the units that wait tells most of why: the lowest."""
    if unit.waits is not None:
        phase = unit.waits.phase
        return _PARTIAL if phase.pending < phase.arrivals or phase.expected > 0 else 3
    if unit.arrived is not None:
        return 4 if unit.arrived.cluster else 2
    return 0 if "registers" in unit.why else 5


def _why(unit: Unit) -> str:
    """What a unit waits for."""
    if unit.waits is not None:
        return f"waits for {unit.waits.phase.state()}"
    if unit.arrived is not None:
        meeting = unit.arrived
        missing = meeting.threads - meeting.arrived
        return f"waits where {missing} of {meeting.threads} threads are missing at {meeting.name}"
    return unit.why
