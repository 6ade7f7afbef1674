"""Asynchronous operations under way: what they touch, who knows that they are complete.

An operation conflicts with every access of the same memory that comes neither before its start
nor after its completion, in the order that `Clocks` keeps; at least one of the two must write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.base.diagnostics import RaceError, TilewrightError, UnwrittenReadError
from tilewright.base.spans import Span
from tilewright.codegen.sim.clocks import ClockLog, Clocks, ClockStamps
from tilewright.codegen.sim.meeting import PhaseBarrier
from tilewright.codegen.sim.memory import SharedBuffer
from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.codegen.sim.shadow import NOBODY
from tilewright.codegen.sim.site import Crew, Site


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operation, and how to wait for it."""

    name: str
    expected: str
    own_proxy: bool = True  # not that of the threads: what these wrote needs a ProxyFence before


REMOTE = Kind("remote store", "a PhaseWait for the phase that the store completes", own_proxy=False)
LOAD = Kind("bulk load", "a PhaseWait for the phase that the load completes")
STORE = Kind("bulk store", "a BulkWait that covers the store, then a barrier")
MATRIX = Kind(
    "matrix instruction",
    "a WarpgroupWait that covers the instruction, then a phase or barrier between",
)


@dataclass(frozen=True, slots=True)
class Region:
    """Elements of a shared buffer, of one block, as flat entries of its arena's shadow arrays."""

    buffer: SharedBuffer
    entries: IntArray
    mask: BoolArray
    writes: bool

    @staticmethod
    def of(buffer: SharedBuffer, at: IntArray, block: int, *, writes: bool) -> Region:
        """The elements at (swizzled) offsets `at` of block `block` of the crew."""
        arena = buffer.arena
        entries = (buffer.granules(at) * arena.apart + block).reshape(-1)
        mask = np.zeros(arena.written.size, np.bool_)
        mask[entries] = True
        return Region(buffer, entries, mask, writes)

    def within(self, other: Region) -> bool:
        return self.buffer.arena is other.buffer.arena and bool(other.mask[self.entries].all())

    def element(self, entry: int) -> str:
        return self.buffer.element(entry // self.buffer.arena.apart)


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of a fragment that belong to an operation in flight, in some threads of a block."""

    name: str
    rows: IntArray
    threads: slice
    block: int
    written: bool


@dataclass(eq=False, slots=True)
class Operation:
    """One asynchronous operation. `bit` stands for it in `Clocks.known`.

    `act` does what it does to memory and registers; it is called once.
    """

    kind: Kind
    bit: int
    by: tuple[tuple[int, int], ...]  # block and thread that start it, one of each warp
    who: str
    span: Span | None
    regions: Sequence[Region]
    act: Callable[[], None]
    held: Sequence[Held] = ()
    acted: bool = False

    def run(self) -> None:
        if not self.acted:
            self.acted = True
            self.act()

    @property
    def note(self) -> str:
        line = "" if self.span is None else f", {self.span.file}:{self.span.line}"
        return f"the {self.kind.name} was started {self.who}{line}"


@dataclass(frozen=True, slots=True)
class Landing:
    """A bulk load or a remote store under way, and the barrier that its `size` bytes count for."""

    operation: Operation
    barrier: PhaseBarrier
    size: int

    def land(self) -> None:
        self.operation.run()
        self.barrier.deliver(self.size, self.operation.bit)


@dataclass(slots=True)
class Groups:
    """Operations of one thread or warpgroup, in groups; the last is still open."""

    open: list[Operation] = field(default_factory=list[Operation])
    closed: list[list[Operation]] = field(default_factory=list[list[Operation]])

    def commit(self) -> None:
        self.closed.append(self.open)
        self.open = []

    def covered(self, pending: int) -> list[Operation]:
        """The operations of all groups but the newest `pending`."""
        return [op for group in self.closed[: len(self.closed) - pending] for op in group]

    def drop(self, pending: int) -> None:
        del self.closed[: max(0, len(self.closed) - pending)]

    def all(self) -> Iterator[Operation]:
        for group in (*self.closed, self.open):
            yield from group


class Agents:
    """The operations of one crew that are under way."""

    def __init__(self, crew: Crew, clocks: Clocks, fragments: Mapping[str, int]) -> None:
        """`fragments` are those that matrix instructions use, with their numbers of registers."""
        self.crew = crew
        self.clocks = clocks
        self.live: list[Operation] = []
        self.matrix: dict[tuple[int, int], Groups] = {}  # by block and warpgroup
        self.stores: dict[tuple[int, int], Groups] = {}  # by block and thread
        self._count = 0
        # Which registers a warp has accessed since its last WarpgroupFence.
        self.touched: dict[str, BoolArray] = {
            name: np.ones((rows, clocks.units), np.bool_) for name, rows in fragments.items()
        }

    def next_bit(self) -> int:
        self._count += 1
        return 1 << self._count

    def begin(self, operation: Operation, site: Site, checks: bool) -> None:
        """The operation is under way from now on, after all that its threads' warps know."""
        crew = self.crew
        units = [block * crew.warps + thread // crew.warp_size for block, thread in operation.by]
        if checks:
            for region in operation.regions:
                self._check_others(operation, region, site, units)
                self._check_threads(operation, region, site)
        self._forget_older(operation, units)
        self.live.append(operation)

    def _forget_older(self, operation: Operation, units: Sequence[int]) -> None:
        """Whoever conflicts with what a write comes after conflicts with the write too."""
        writes = [region for region in operation.regions if region.writes]
        for region in writes:
            log = region.buffer.arena.log
            if isinstance(log, ClockLog):
                log.forget(region.entries)
        ours, everywhere = self.clocks.common(units), self.clocks.common(range(self.clocks.units))
        self.live = [
            old
            for old in self.live
            if not (everywhere & old.bit)
            and not (ours & old.bit and writes and _covered(old.regions, writes))
        ]

    def _check_others(
        self, operation: Operation, region: Region, site: Site, units: Sequence[int]
    ) -> None:
        known = self.clocks.common(units)
        for other in self.live:
            if known & other.bit:
                continue
            for touched in other.regions:
                if touched.buffer.arena is not region.buffer.arena:
                    continue
                if not (touched.writes or region.writes):
                    continue
                bad = touched.mask[region.entries]
                if bad.any():
                    element = region.element(int(region.entries[np.argmax(bad)]))
                    verb = "overwritten" if region.writes else "read"
                    doing = "writes" if touched.writes else "reads"
                    raise _fault(
                        site, operation,
                        f"{element} is {verb} by a {operation.kind.name} while a "
                        f"{other.kind.name} {doing} it",
                        other.kind.expected, other.note,
                    )  # fmt: skip

    def _check_threads(self, operation: Operation, region: Region, site: Site) -> None:
        """Threads' accesses must come before, written elements be fenced, read ones written."""
        arena, entries = region.buffer.arena, region.entries
        log = arena.log
        if not isinstance(log, ClockLog):
            return
        what = f"by a {operation.kind.name}"
        if not region.writes:
            bad = ~arena.written[entries]
            if bad.any():
                element = region.element(int(entries[np.argmax(bad)]))
                raise site.fault(
                    UnwrittenReadError,
                    f"{element} is read {what}, but nothing has written it",
                    _position(site, operation), mend="write the element before",
                )  # fmt: skip
        found = self._unordered(log, region, operation.by)
        if found is not None:
            entry, thread = found
            verb = "overwritten" if region.writes else "read"
            raise _fault(
                site, operation,
                f"{region.element(entry)} is {verb} {what}, with no order after the access of "
                f"{thread}", "a phase or a barrier between the two", "",
            )  # fmt: skip
        if not operation.kind.own_proxy:
            return
        bad = log.unfenced(entries, self.crew.threads + 2)
        if bad.any():
            number = int(np.argmax(bad))
            thread = int(log.writer[entries[number]]) % (self.crew.threads + 2)
            verb = "overwritten" if region.writes else "read"
            raise _fault(
                site, operation,
                f"{region.element(int(entries[number]))} is {verb} {what}, but thread {thread} "
                "wrote it with no ProxyFence since",
                "a ProxyFence in the writing threads, before the barrier", "",
            )  # fmt: skip

    def _unordered(
        self, log: ClockLog, region: Region, by: Sequence[tuple[int, int]]
    ) -> tuple[int, str] | None:
        stamps = self.clocks.stamps()
        entries = region.entries
        accesses = [log.writer[entries]]
        if region.writes:
            accesses += [readers[entries] for readers in log.readers]
        for block, thread in by:
            own = stamps.own[thread, block].reshape(1)
            mine = ClockStamps(own, own, own, stamps.width, stamps.seen, 0, self.crew.warps)
            for last in accesses:
                if not (last != NOBODY).any():
                    continue
                bad = mine.unordered(last)
                if bad.any():
                    number = int(np.argmax(bad))
                    other = int(last[number]) % stamps.width
                    several = other >= self.crew.threads
                    return int(entries[number]), (
                        "several threads" if several else f"thread {other}"
                    )
        return None

    def conflict(
        self, buffer: SharedBuffer, at: IntArray, stamps: ClockStamps, write: bool
    ) -> tuple[Operation, str, BoolArray] | None:
        """An operation in flight that accesses of threads at entries `at` conflict with."""
        if not self.live:
            return None
        units = [int(unit) for unit in np.unique(stamps.unit)]
        known = self.clocks.common(units)
        for other in self.live:
            if known & other.bit:
                continue
            for touched in other.regions:
                if touched.buffer.arena is not buffer.arena or not (write or touched.writes):
                    continue
                ignorant = np.array([not known & other.bit for known in self.clocks.known])
                bad = touched.mask[at] & ignorant[stamps.unit]
                if bad.any():
                    return other, "writes" if touched.writes else "reads", bad
        return None

    def held(self, name: str) -> Iterator[tuple[Operation, Held]]:
        """Registers of a fragment that matrix instructions in flight use."""
        for groups in self.matrix.values():
            for operation in groups.all():
                for held in operation.held:
                    if held.name == name:
                        yield operation, held


def _covered(regions: Sequence[Region], by: Sequence[Region]) -> bool:
    return all(any(region.within(other) for other in by) for region in regions)


def _position(site: Site, operation: Operation) -> tuple[int, ...]:
    block, thread = operation.by[0]
    return (*(0 for _ in site.digits), thread, block)


def _fault(
    site: Site, operation: Operation, message: str, expected: str, note: str
) -> TilewrightError:
    notes = (note,) if note else ()
    return site.fault(
        RaceError, message, _position(site, operation), expected=expected, notes=notes
    )
