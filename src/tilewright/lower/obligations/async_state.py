"""What an execution of a kernel's synchronisation keeps: events, and who knows of them.

A *unit* is one warp of one block of the cluster. An *event* is an access of memory, or a mark
such as the end of a phase; it is one bit. What a unit *knows* is a set of bits: the events that
happen before what it does next. An asynchronous event is known when its completion is. Barriers
hand knowledge on. Two accesses are ordered exactly if the later one's unit knows the earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from tilewright.base.spans import Span
from tilewright.lower.obligations.async_footprints import Footprint
from tilewright.lower.obligations.async_steps import (
    LoopStep,
    Step,
)
from tilewright.lower.obligations.async_values import Env
from tilewright.poly.results import Kind


class FaultError(Exception):
    """The execution shows a fault."""

    def __init__(
        self, kind: Kind, subject: str, message: str, step: Step | None, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.subject = subject
        self.message = message
        self.step = step
        self.notes = notes

    @property
    def span(self) -> Span | None:
        return self.step.span if self.step else None


class Does(Enum):
    """What an event is. The value names the agent for readers."""

    READ = "read by a thread"
    WRITE = "write by a thread"
    COPY = "asynchronous copy"
    LOAD = "bulk load"
    REMOTE = "remote store"
    STORE = "bulk store"
    MATRIX = "matrix instruction"
    MARK = "mark"

    @property
    def by_thread(self) -> bool:
        return self in (Does.READ, Does.WRITE, Does.COPY)


@dataclass(frozen=True, slots=True)
class Held:
    """Registers of a fragment that an instruction uses, as bits."""

    fragment: str
    bits: int
    written: bool


@dataclass(eq=False, slots=True)
class Event:
    """`number` is its bit. `fence` marks the proxy fence of its threads that follows a write."""

    does: Does
    number: int
    unit: int
    lanes: int = 0
    step: Step | None = None
    env: Env | None = None
    prints: tuple[Footprint, ...] = ()
    held: tuple[Held, ...] = ()
    blocks: tuple[int, ...] = ()  # whose memory
    writes: bool = False
    fence: Event | None = None
    given: int = 0  # what was over before a matrix instruction began, in any of its warps
    bit: int = 0

    def renumber(self, number: int) -> None:
        self.number, self.bit = number, 1 << number


@dataclass(eq=False, slots=True)
class Log:
    """The accesses of one arena of one block that later ones may conflict with."""

    events: list[Event] = field(default_factory=list[Event])
    bits: int = 0
    threads: int = 0  # those by threads
    plain: int = 0  # those that are writes of threads
    writes: int = 0  # those that are writes of anyone

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.bits |= event.bit
        if event.does.by_thread:
            self.threads |= event.bit
        if event.does in (Does.WRITE, Does.COPY):
            self.plain |= event.bit
        if event.writes:
            self.writes |= event.bit

    def keep(self, events: list[Event]) -> None:
        """Only these of the events are left."""
        dropped = self.bits
        for event in events:
            dropped &= ~event.bit
        self.events = events
        self.bits &= ~dropped
        self.threads &= ~dropped
        self.plain &= ~dropped
        self.writes &= ~dropped

    def again(self) -> None:
        """The events have new numbers."""
        events, self.events = self.events, []
        self.bits = self.threads = self.plain = self.writes = 0
        for event in events:
            self.add(event)


@dataclass(eq=False, slots=True)
class Groups:
    """Operations in groups, the last of them still open."""

    open: list[Event] = field(default_factory=list[Event])
    closed: list[list[Event]] = field(default_factory=list[list[Event]])

    def commit(self) -> None:
        self.closed.append(self.open)
        self.open = []

    def covered(self, pending: int) -> list[Event]:
        """The operations of all groups but the newest `pending`; they are dropped."""
        cut = max(0, len(self.closed) - pending)
        found = [event for group in self.closed[:cut] for event in group]
        del self.closed[:cut]
        return found

    def all(self) -> Iterator[Event]:
        for group in (*self.closed, self.open):
            yield from group


@dataclass(eq=False, slots=True)
class Frame:
    """A body being executed by some lanes, and where it is a loop's, the turn."""

    body: tuple[Step, ...]
    env: Env
    mask: int
    at: int = 0
    loop: LoopStep | None = None
    value: int = 0
    extent: int = 0
    jumped: bool = False  # whether turns were left out
    unrolled: bool = False


@dataclass(eq=False, slots=True)
class Unit:
    """One warp. `parts` is what some of its lanes know alone; `dirty` are accesses of its own
    that only the lanes that made them know, until the warp converges."""

    number: int
    block: int
    warp: int
    frames: list[Frame]
    full: int
    know: int = 0
    parts: dict[int, int] = field(default_factory=dict[int, int])
    dirty: list[Event] = field(default_factory=list[Event])
    unfenced: list[Event] = field(default_factory=list[Event])
    touched: dict[str, int] = field(default_factory=dict[str, int])
    stores: dict[int, Groups] = field(default_factory=dict[int, Groups])
    copies: Groups = field(default_factory=Groups)
    waits: Wait | None = None
    arrived: Meeting | None = None  # where it waits
    granted: int | None = None  # what the others handed on there, once the round is complete
    cluster: bool = False  # whether it has arrived at the cluster's barrier
    cluster_granted: int | None = None
    why: str = ""
    paused: bool = False
    reading: Event | None = None  # its last read, while nothing that could order others followed

    def knows(self, mask: int) -> int:
        """What happens before the next access by the lanes of `mask`."""
        known = self.know
        for lanes, bits in self.parts.items():
            if not mask & ~lanes:
                known |= bits
        if mask & (mask - 1) == 0:
            for event in self.dirty:
                if event.lanes == mask:
                    known |= event.bit
        return known

    def releases(self, mask: int) -> int:
        """What an arrival of each lane of `mask` hands on."""
        known = self.know
        for lanes, bits in self.parts.items():
            if lanes & mask:
                known |= bits
        for event in self.dirty:
            if not event.lanes & ~mask:
                known |= event.bit
        return known

    def learn(self, mask: int, bits: int) -> None:
        if mask == self.full:
            self.know |= bits
        elif bits & ~self.know:
            self.parts[mask] = self.parts.get(mask, 0) | bits

    def converge(self) -> None:
        """All lanes act together: each then knows what any of them did and knew."""
        if self.dirty:
            for event in self.dirty:
                self.know |= event.bit
            self.dirty = []
        if self.parts:
            for bits in self.parts.values():
                self.know |= bits
            self.parts = {}


@dataclass(eq=False, slots=True)
class Wait:
    """A wait that passes once `phases` have ended; the phase after comes after its `mark`."""

    phase: Phase
    phases: int
    mark: Event


@dataclass(eq=False, slots=True)
class Arrival:
    """An arrival, and what it handed on. `mark` is known to whoever comes after it.

    `visits`: from another block; `size`: the bytes that it made the phase expect.
    """

    mark: Event
    given: int
    visits: bool = False
    size: int = 0


@dataclass(eq=False, slots=True)
class Phase:
    """One transaction barrier. `over` is what the phase that ended last hands on."""

    name: str
    index: int
    block: int
    arrivals: int
    begun: Event
    pending: int
    ended: int = 0
    expected: int = 0
    issued: int = 0
    gathered: int = 0
    arrivers: list[Arrival] = field(default_factory=list["Arrival"])
    earlier: list[Arrival] = field(default_factory=list["Arrival"])  # of the phase before
    over: int = 0
    last: Event | None = None  # the end of the latest phase, or the beginning
    previous: Event | None = None
    loads: list[Event] = field(default_factory=list[Event])
    waits: list[Wait] = field(default_factory=list[Wait])

    @property
    def label(self) -> str:
        return f"{self.name}[{self.index}]"

    def state(self) -> str:
        missing: list[str] = []
        if self.pending:
            missing.append(f"{self.pending} of {self.arrivals} arrivals are missing")
        if self.issued < self.expected:
            missing.append(f"{self.expected - self.issued} bytes are missing")
        return f"phase {self.ended} of {self.label}: " + " and ".join(missing or ["nothing"])


@dataclass(eq=False, slots=True)
class Meeting:
    """A barrier of `threads` threads. `last` marks that its latest round is complete."""

    name: str
    threads: int
    arrived: int = 0
    gathered: int = 0
    rounds: int = 0
    cluster: bool = False
    last: Event | None = None
    waiting: list[Unit] = field(default_factory=list[Unit])


@dataclass(eq=False, slots=True)
class Warpgroup:
    """Four warps that execute matrix instructions together; `here` are those at one."""

    number: int
    block: int
    units: tuple[Unit, ...]
    here: dict[int, tuple[object, ...]] = field(default_factory=dict[int, "tuple[object, ...]"])
    matrix: Groups = field(default_factory=Groups)


@dataclass(eq=False, slots=True)
class Pool:
    """A block's registers: what its warpgroups have for each thread, and what is free."""

    launched: int
    free: int = 0
    counts: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(eq=False, slots=True)
class State:
    """Everything that the rest of an execution depends on."""

    units: list[Unit]
    groups: list[Warpgroup]
    pools: list[Pool]
    logs: dict[tuple[int, int], Log] = field(default_factory=dict[tuple[int, int], Log])
    phases: dict[tuple[str, int, int], Phase] = field(
        default_factory=dict[tuple[str, int, int], Phase]
    )
    meetings: dict[tuple[int, int], Meeting] = field(default_factory=dict[tuple[int, int], Meeting])
    visits: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    count: int = 0  # bits given out

    def event(self, does: Does, unit: int = -1) -> Event:
        made = Event(does, self.count, unit, bit=1 << self.count)
        self.count += 1
        return made

    def lasting(self, bits: int) -> int:
        """The part that does not depend on memory order: all but the accesses of threads."""
        for log in self.logs.values():
            bits &= ~log.threads
        return bits

    def log(self, block: int, arena: int) -> Log:
        key = (block, arena)
        found = self.logs.get(key)
        if found is None:
            found = self.logs[key] = Log()
        return found
