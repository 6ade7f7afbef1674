"""Accesses of shared memory and of registers by threads and agents: each is checked against those
that nothing orders before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.lower.obligations.async_footprints import Footprint, Memory
from tilewright.lower.obligations.async_state import (
    Does,
    Event,
    FaultError,
    Groups,
    Held,
    Log,
    Phase,
    State,
    Unit,
    Warpgroup,
)
from tilewright.lower.obligations.async_steps import (
    BoxStep,
    MatrixStep,
    PlainStep,
    Registers,
    RemoteStep,
    Taken,
)
from tilewright.lower.obligations.async_values import Env, OpenError
from tilewright.lower.obligations.async_words import Words
from tilewright.poly.results import Kind

_ENDED_WITH = {
    Does.READ: "a phase or barrier between the two",
    Does.WRITE: "a phase or barrier between the two",
    Does.COPY: "an AsyncWait that covers the copy, then a barrier",
    Does.LOAD: "a PhaseWait for the phase that the load completes",
    Does.REMOTE: "a PhaseWait for the phase that the store completes",
    Does.STORE: "a BulkWait that covers the store, then a barrier",
    Does.MATRIX: "a WarpgroupWait that covers the instruction, then a phase or barrier",
}


class Accesses:
    """Accesses in one execution."""

    def __init__(self, state: State, memory: Memory, words: Words, taken: Taken) -> None:
        self.state = state
        self.memory = memory
        self.words = words
        self.taken = taken
        self.looks = 0  # at other accesses

    # ------------------------------------------------------------ threads

    def plain(self, unit: Unit, step: PlainStep, env: Env, mask: int, group: Warpgroup) -> None:
        """A statement of threads: its registers, then its shared memory."""
        for registers in step.registers:
            self._registers(unit, step, registers, env, mask, group)
        for touch in step.touches:
            active = mask & touch.guard(env)
            if not active:
                continue
            print_ = touch.footprint(env, active)
            if not touch.writes and self._read_on(unit, print_, active, touch.whole, step):
                continue
            made = self._thread_event(unit, step, env, active)
            made.does, made.writes = (Does.WRITE, True) if touch.writes else (Does.READ, False)
            self._in_turn(made, print_)
            self._thread_access(unit, made, print_, touch.whole)
            unit.reading = None if touch.writes or step.wide else made
            if step.wide and not touch.writes:
                unit.know |= made.bit  # the warp reads as one
            else:
                unit.dirty.append(made)
            if touch.writes:
                unit.unfenced.append(made)

    def _read_on(
        self, unit: Unit, print_: Footprint, mask: int, whole: bool, step: PlainStep
    ) -> bool:  # fmt: skip
        """Let a read be part of the one before, where nothing came between that others may see."""
        made = unit.reading
        if made is None or made.lanes != mask or step.wide:
            return False
        (own,) = made.prints
        if (own.arena, own.buffer, own.exact) != (print_.arena, print_.buffer, print_.exact):
            return False
        self._check(made, print_, unit.knows(mask), whole)
        lanes = tuple([a | b for a, b in zip(own.lanes, print_.lanes, strict=True)])
        bits, twice = own.bits | print_.bits, own.twice | print_.twice | own.bits & print_.bits
        made.prints = (Footprint(own.arena, bits, own.buffer, lanes, own.exact, twice),)
        return True

    def copy(self, unit: Unit, step: PlainStep, env: Env, mask: int) -> None:
        """A copy of threads to shared memory, in flight until they wait for its group."""
        for touch in step.touches:
            made = self._thread_event(unit, step, env, mask)
            made.does, made.writes = Does.COPY, True
            self._thread_access(unit, made, touch.footprint(env, mask), touch.whole)
            unit.copies.open.append(made)

    def _thread_event(self, unit: Unit, step: PlainStep, env: Env, mask: int) -> Event:
        made = self.state.event(Does.READ, unit.number)
        made.lanes, made.step, made.env, made.blocks = mask, step, env, (unit.block,)
        return made

    def _thread_access(self, unit: Unit, made: Event, print_: Footprint, whole: bool) -> None:
        made.prints = (print_,)
        if made.writes and print_.twice:
            self._fault_or_open(
                Kind.RACE, made, print_, print_.twice, whole,
                f"{self.memory.element(print_, print_.twice)} is written by two threads of "
                f"{self.words.of(made)} at once",
            )  # fmt: skip
        known = unit.knows(made.lanes)
        self._check(made, print_, known, whole)
        log = self.state.log(unit.block, print_.arena)
        if made.writes and whole and print_.exact:
            _cover(log, print_, known)
        log.add(made)

    def _registers(
        self,
        unit: Unit,
        step: PlainStep | RemoteStep,
        own: Registers,
        env: Env,
        mask: int,
        group: Warpgroup,
    ) -> None:
        if not mask:
            return
        bits = own.bits(env)
        name = own.fragment
        unit.touched[name] = unit.touched.get(name, 0) | bits
        for event in group.matrix.all():
            for held in event.held:
                both = held.bits & bits
                if held.fragment == name and both and (held.written or own.use.writes):
                    verb = "written" if own.use.writes else "read"
                    raise FaultError(
                        Kind.FLIGHT, name,
                        f"register {both.bit_length() - 1} of {name} is {verb} by "
                        f"{self.words.unit(unit, mask)} while a matrix instruction "
                        f"{'writes' if held.written else 'reads'} it",
                        step,
                        (f"{verb}: {self.words.where(step, env)}", self.words.note(event)),
                    )  # fmt: skip

    # ------------------------------------------------------------ agents

    def load(self, unit: Unit, step: BoxStep, env: Env, mask: int, phases: Sequence[Phase]) -> None:
        """One copy for each lane and instance, to the block of each phase."""
        for lane in _lanes(mask):
            for index in step.boxes:
                at = tuple(c.active(env, lane, "where a box lies") for c in index)
                print_ = self.memory.box(step.buffer, at, step.elements)
                for phase in phases:
                    made = self._agent_event(Does.LOAD, unit, step, env, lane, print_)
                    made.writes, made.blocks = True, (phase.block,)
                    known = unit.knows(lane)
                    self._agent_access(made, known)
                    phase.loads.append(made)
                    phase.issued += step.size
                    # The phase cannot end before the load has begun.
                    phase.gathered |= self.state.lasting(known)

    def remote(self, unit: Unit, step: RemoteStep, env: Env, mask: int, phase: Phase) -> None:
        """A warp's stores to the block of the phase, which they signal. No proxy is changed."""
        group = self._group_of(unit)
        for registers in step.registers:
            self._registers(unit, step, registers, env, mask, group)
        if step.footprint is None:
            return
        made = self.state.event(Does.REMOTE, unit.number)
        made.lanes, made.step, made.env = mask, step, env
        made.writes, made.blocks = True, (phase.block,)
        print_ = step.footprint(env, mask)
        made.prints = (print_,)
        if print_.twice:
            self._fault_or_open(
                Kind.RACE, made, print_, print_.twice, True,
                f"{self.memory.element(print_, print_.twice)} is written by two threads of "
                f"{self.words.of(made)} at once",
            )  # fmt: skip
        known = unit.knows(mask)
        self._check(made, print_, known, True)
        log = self.state.log(phase.block, print_.arena)
        _cover(log, print_, known)
        log.add(made)
        phase.loads.append(made)
        phase.issued += step.size * mask.bit_count()
        # The phase cannot end before the stores have begun.
        phase.gathered |= self.state.lasting(known)

    def _group_of(self, unit: Unit) -> Warpgroup:
        return next(g for g in self.state.groups if unit in g.units)

    def store(self, unit: Unit, step: BoxStep, env: Env, mask: int) -> None:
        for lane in _lanes(mask):
            groups = unit.stores.setdefault(lane, Groups())
            for index in step.boxes:
                at = tuple(c.active(env, lane, "where a box lies") for c in index)
                print_ = self.memory.box(step.buffer, at, step.elements)
                made = self._agent_event(Does.STORE, unit, step, env, lane, print_)
                self._agent_access(made, unit.knows(lane))
                groups.open.append(made)

    def _agent_event(
        self, does: Does, unit: Unit, step: BoxStep, env: Env, lane: int, print_: Footprint
    ) -> Event:
        made = self.state.event(does, unit.number)
        made.lanes, made.step, made.env = lane, step, env
        made.prints, made.blocks = (print_,), (unit.block,)
        return made

    def matrix(self, group: Warpgroup, step: MatrixStep, env: Env) -> None:
        """The instructions of one statement, as one event."""
        held = self._operands(group, step, env)
        prints = [tile.footprint(self.memory, env) for tile in step.tiles]
        made = self.state.event(Does.MATRIX, group.units[0].number)
        made.step, made.env, made.held, made.blocks = step, env, held, (group.block,)
        made.prints = tuple(prints)
        known, given = -1, 0
        for unit in group.units:
            known &= unit.know
            given |= unit.know
        made.given = self.state.lasting(given)
        for print_ in made.prints:
            self._in_turn(made, print_)
        self._agent_access(made, known)
        group.matrix.open.append(made)

    def _operands(self, group: Warpgroup, step: MatrixStep, env: Env) -> tuple[Held, ...]:
        held: dict[tuple[str, bool], int] = {}
        for own in step.registers:
            key = (own.fragment, own.use.writes)
            held[key] = held.get(key, 0) | own.bits(env)
        found: list[Held] = []
        for (name, written), bits in held.items():
            self._settled(group, step, env, name, bits)
            if not written:  # an accumulator is read and written
                bits &= ~held.get((name, True), 0)
            if bits:
                found.append(Held(name, bits, written))
        for own in found:
            for event in group.matrix.all():
                self._apart(group, step, env, event, own)
        return tuple(found)

    def _settled(self, group: Warpgroup, step: MatrixStep, env: Env, name: str, bits: int) -> None:
        """No access of the registers since the last fence."""
        for unit in group.units:
            bad = unit.touched.get(name, 0) & bits
            if bad:
                raise FaultError(
                    Kind.FLIGHT, name,
                    f"register {(bad & -bad).bit_length() - 1} of {name} was accessed by "
                    f"{self.words.unit(unit)} with no WarpgroupFence since, before a matrix "
                    "instruction uses it",
                    step,
                    (f"the instruction: {self.words.where(step, env)}",),
                )  # fmt: skip

    def _apart(self, group: Warpgroup, step: MatrixStep, env: Env, event: Event, own: Held) -> None:
        """Instructions on one accumulator follow one another; others may not share registers."""
        for held in event.held:
            both = held.bits & own.bits
            if held.fragment != own.fragment or not both or held.written == own.written:
                continue
            raise FaultError(
                Kind.FLIGHT, own.fragment,
                f"register {(both & -both).bit_length() - 1} of {own.fragment} is "
                f"{'written' if own.written else 'read'} by a matrix instruction of "
                f"{self.words.unit(group.units[0])} while another "
                f"{'writes' if held.written else 'reads'} it",
                step,
                (f"the later: {self.words.where(step, env)}", self.words.note(event)),
            )  # fmt: skip

    def _agent_access(self, made: Event, known: int) -> None:
        for print_ in made.prints:
            for block in made.blocks:
                log = self.state.log(block, print_.arena)
                self._check(made, print_, known, True)
                if log.plain & known:
                    self._fenced(made, print_, known, log.events)
                if made.writes:
                    _cover(log, print_, known)
                log.add(made)

    def _in_turn(self, made: Event, print_: Footprint) -> None:
        """What is read was loaded in the turn of its reader, where several share turns out."""
        step, env = made.step, made.env
        loads = self.taken.get(id(step.statement)) if step is not None else None
        if loads is None or step is None or env is None:
            return
        (block,) = made.blocks
        rest = print_.bits
        for event in reversed(self.state.log(block, print_.arena).events):
            found = loads.get(id(event.step.statement)) if event.step is not None else None
            if found is None or event.env is None:
                continue
            counter, turn = found
            wanted = turn.number(env, "the turn of a read")
            for theirs in event.prints:
                both = theirs.bits & rest if theirs.arena == print_.arena else 0
                rest &= ~both
                if both and event.env[counter] != wanted:
                    raise FaultError(
                        Kind.RELEASE, print_.buffer,
                        f"{self.memory.element(print_, both)} is read in turn {wanted}, and holds "
                        f"what was loaded in turn {event.env[counter]}",
                        step,
                        (self.words.note(made), self.words.note(event)),
                    )  # fmt: skip

    # ------------------------------------------------------------ conflicts

    def _check(self, made: Event, print_: Footprint, known: int, whole: bool) -> None:
        (block,) = made.blocks
        log = self.state.log(block, print_.arena)
        unknown = (log.bits if made.writes else log.writes) & ~known
        if not unknown:
            return
        self.looks += len(log.events)
        for other in log.events:
            if not (made.writes or other.writes) or not other.bit & unknown:
                continue
            for theirs in other.prints:
                if theirs.arena != print_.arena:
                    continue
                both = theirs.bits & print_.bits
                if both and other.unit == made.unit and other.does.by_thread:
                    both = self._other_lanes(made, print_, other, theirs)
                if both:
                    self._conflict(made, print_, other, theirs, both, whole)

    def _other_lanes(self, made: Event, print_: Footprint, other: Event, theirs: Footprint) -> int:
        """What two lanes of one warp touch: one in the one access, one in the other."""
        if other.does is Does.COPY or not (print_.lanes and theirs.lanes):
            return theirs.bits & print_.bits
        both = 0
        for lane, own in enumerate(print_.lanes):
            rest = 0
            for i, bits in enumerate(theirs.lanes):
                rest |= bits if i != lane else 0
            both |= own & rest
        return both

    def _conflict(
        self, made: Event, print_: Footprint, other: Event, theirs: Footprint, both: int,
        whole: bool,
    ) -> None:  # fmt: skip
        # An element of each footprint's own buffer; where they overlap, of the later one's.
        element = self.memory.element(print_, both)
        agent = made.does in (Does.LOAD, Does.REMOTE)
        verb = "overwritten" if agent else "written" if made.writes else "read"
        doing = "writes" if other.writes else "reads"
        threads = made.does.by_thread and other.does in (Does.READ, Does.WRITE)
        who = self.words.of(made)
        if made.does.by_thread and not threads:
            text = f"{element} is {verb} by {who} while a {other.does.value} {doing} it"
        elif other.does in (Does.READ, Does.WRITE):
            by = who if threads else f"a {made.does.value} of {who}"
            done = "write" if other.writes else "read"
            text = f"{element} is {verb} by {by} with no order after the {done} by " + (
                self.words.of(other)
            )
        else:
            text = (
                f"{element} is {verb} by a {made.does.value} while a {other.does.value} {doing} it"
            )
        self._fault_or_open(
            Kind.RACE if threads else Kind.RELEASE, made, print_, both, whole and theirs.exact,
            text, (self.words.note(made), self.words.note(other),
                   f"it takes {_ENDED_WITH[other.does]}"),
        )  # fmt: skip

    def _fenced(self, made: Event, print_: Footprint, known: int, events: Iterable[Event]) -> None:
        """Threads' writes before an agent's access are followed by their proxy fence."""
        for other in events:
            if other.does not in (Does.WRITE, Does.COPY) or not other.bit & known:
                continue
            if other.fence is not None and other.fence.bit & known:
                continue
            for theirs in other.prints:
                both = theirs.bits & print_.bits if theirs.arena == print_.arena else 0
                if not both:
                    continue
                verb = "overwritten" if made.writes else "read"
                self._fault_or_open(
                    Kind.PROXY, made, print_, both, theirs.exact,
                    f"{self.memory.element(print_, both)} is {verb} by a {made.does.value}, but "
                    f"{self.words.of(other)} wrote it with no ProxyFence before the barrier",
                    (self.words.note(made), self.words.note(other)),
                )  # fmt: skip

    def _fault_or_open(
        self, kind: Kind, made: Event, print_: Footprint, bits: int, sure: bool, text: str,
        notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        if not (sure and print_.exact):
            raise OpenError(f"maybe {text}")
        raise FaultError(kind, print_.buffer, text, made.step, notes)


def _lanes(mask: int) -> Iterable[int]:
    """The lanes of a mask, each as a mask of its own."""
    while mask:
        lane = mask & -mask
        yield lane
        mask ^= lane


def _cover(log: Log, print_: Footprint, known: int) -> None:
    """A write stands for what it covers of the accesses that it comes after.

    Whoever is not ordered after such an access is not ordered after the write either.
    """
    if not log.bits & known:
        return
    kept: list[Event] = []
    for event in log.events:
        if event.bit & known:
            event.prints = tuple(
                [p for p in (_rest(p, print_) for p in event.prints) if p is not None]
            )
        if event.prints:
            kept.append(event)
    if len(kept) < len(log.events):
        log.keep(kept)


def _rest(old: Footprint, new: Footprint) -> Footprint | None:
    """What the newer footprint leaves of the older; None where that is nothing."""
    if old.arena != new.arena or not old.bits & new.bits:
        return old
    rest = old.bits & ~new.bits
    if not rest:
        return None
    lanes = tuple(bits & ~new.bits for bits in old.lanes)
    return Footprint(old.arena, rest, old.buffer, lanes, old.exact, old.twice & ~new.bits)
