"""Where threads meet: transaction barriers, barriers of threads, the pool of registers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tilewright.base.diagnostics import BarrierError, BoundsError
from tilewright.base.spans import Span
from tilewright.codegen.sim.clocks import Clocks, Knowledge
from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.codegen.sim.site import Site
from tilewright.kernel.ops import Kernel

REGISTER_FILE = 1 << 16  # registers of a multiprocessor
REGISTER_STEP = 8  # a thread has a multiple of this


@dataclass(frozen=True, slots=True)
class Waiter:
    """Threads that wait for a phase."""

    phase: int
    who: str
    span: Span | None


@dataclass(slots=True)
class PhaseBarrier:
    """One transaction barrier. `waiting` maps a waiting fiber to the phase it waits for."""

    name: str
    block: int
    arrivals: int
    born: tuple[int, int]  # unit and time of its beginning
    gathered: Knowledge
    over: Knowledge  # what the arrivals of the phase that ended last released
    pending: int
    bytes: int = 0
    phase: int = 0
    waiting: dict[int, Waiter] = field(default_factory=dict[int, "Waiter"])

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def arrive(self, count: int, given: Knowledge, site: Site, position: tuple[int, ...]) -> None:
        if count > self.pending:
            raise site.fault(
                BarrierError,
                f"{self.name} gets {count} arrival{'s' * (count > 1)}, but its phase {self.phase} "
                f"takes {self.pending} of {self.arrivals} more",
                position,
                expected="as many arrivals in each phase as the barrier is declared with",
            )
        self.pending -= count
        self.gathered = self.gathered.join(given)
        self._end()

    def expect(self, size: int) -> None:
        self.bytes += size

    def deliver(self, size: int, bit: int) -> None:
        """A copy of `size` bytes has completed."""
        self.bytes -= size
        self.gathered = Knowledge(self.gathered.seen, self.gathered.known | bit)
        self._end()

    def _end(self) -> None:
        if self.pending or self.bytes:
            return
        late = [waiter for waiter in self.waiting.values() if waiter.phase < self.phase]
        if late:
            raise BarrierError(
                f"phase {self.phase} of {self.name} ends while a wait for phase "
                f"{self.phase - 1} may not have passed yet",
                span=late[0].span,
                expected="a phase ends only after every wait for the one before it has passed",
                notes=(f"the waiting threads: {late[0].who}",),
            )
        self.over = self.gathered
        self.gathered = Knowledge(np.zeros_like(self.over.seen), 0)
        self.pending = self.arrivals
        self.phase += 1

    def state(self) -> str:
        missing: list[str] = []
        if self.pending:
            missing.append(f"{self.pending} of {self.arrivals} arrivals are missing")
        if self.bytes > 0:
            missing.append(f"{self.bytes} bytes are missing")
        if self.bytes < 0:
            missing.append(f"{-self.bytes} bytes came that nobody expected")
        return f"phase {self.phase} of {self.name}: " + " and ".join(missing)


@dataclass(eq=False, slots=True)
class Meeting:
    """A barrier of `threads` threads. `over` has what each generation's arrivals released."""

    name: str
    threads: int
    gathered: Knowledge
    arrived: int = 0
    over: list[Knowledge] = field(default_factory=list[Knowledge])

    @property
    def generation(self) -> int:
        return len(self.over)

    def arrive(self, count: int, given: Knowledge, site: Site, position: tuple[int, ...]) -> None:
        if self.arrived + count > self.threads:
            raise site.fault(
                BarrierError,
                f"{self.arrived + count} threads arrive at {self.name}, which takes {self.threads}",
                position,
                expected="as many threads as the barrier's statements say",
            )
        self.arrived += count
        self.gathered = self.gathered.join(given)
        if self.arrived == self.threads:
            self.over.append(self.gathered)
            self.gathered = Knowledge(np.zeros_like(self.gathered.seen), 0)
            self.arrived = 0


@dataclass(slots=True)
class RegisterPool:
    """The registers of one block: what its warpgroups have, and what is free."""

    launched: int
    free: int = 0
    counts: dict[int, int] = field(default_factory=dict[int, int])

    @staticmethod
    def of(threads: int, most: int) -> RegisterPool:
        each = min(REGISTER_FILE // threads, most)
        return RegisterPool(each // REGISTER_STEP * REGISTER_STEP)

    def of_group(self, group: int) -> int:
        return self.counts.get(group, self.launched)


class Meetings:
    """All places where the threads of a crew meet."""

    def __init__(self, kernel: Kernel, clocks: Clocks, most_registers: int) -> None:
        self._declared = {phases.name: phases for phases in kernel.phases}
        self._clocks = clocks
        self._barriers: dict[tuple[str, int, int], PhaseBarrier] = {}
        self._meetings: dict[Hashable, Meeting] = {}
        # Remote arrivals: the block arrived at, and the unit and time that did it.
        self.visits: list[tuple[int, int, int, Site]] = []
        self.pools = [
            RegisterPool.of(kernel.threads, most_registers) for _ in range(clocks.crew.blocks)
        ]
        # The generation of the cluster's barrier at which each unit arrived last.
        self.cluster_arrivals: dict[int, int] = {}

    def begin(self, name: str, block: int, site: Site) -> None:
        """Begin phase 0 of every barrier of an array, by the first warp of the block."""
        clocks = self._clocks
        unit = block * clocks.crew.warps
        declared = self._declared[name]
        for index in range(declared.count):
            if (name, index, block) in self._barriers:
                raise site.fault(
                    BarrierError,
                    f"`{name}[{index}]` is begun for the second time",
                    (0, block),
                    expected="one InitPhases for each array",
                )
            nothing = clocks.nothing()
            self._barriers[name, index, block] = PhaseBarrier(
                f"`{name}[{index}]`", block, declared.arrivals,
                (unit, int(clocks.seen[unit, unit])), nothing, nothing, declared.arrivals,
            )  # fmt: skip

    def barrier(
        self, name: str, index: int, block: int, site: Site, position: tuple[int, ...]
    ) -> PhaseBarrier:
        """The barrier, which must be ready for the warp at `position`."""
        count = self._declared[name].count
        if not 0 <= index < count:
            raise site.fault(
                BoundsError, f"`{name}[{index}]` does not exist", position,
                expected=f"0 <= index < {count}",
            )  # fmt: skip
        found = self._barriers.get((name, index, block))
        if found is not None:
            crew = self._clocks.crew
            unit = position[-1] * crew.warps + position[-2] // crew.warp_size
            born, time = found.born
            if time < self._clocks.seen[unit, born]:
                return found
        raise site.fault(
            BarrierError,
            f"`{name}[{index}]` of block {crew_block(site, block)} is used before it has begun "
            "for this warp",
            position,
            expected="InitPhases and a Barrier before (for other blocks, a ClusterWait)",
        )

    def meeting(self, key: Hashable, name: str, threads: int) -> Meeting:
        if key not in self._meetings:
            self._meetings[key] = Meeting(name, threads, self._clocks.nothing())
        return self._meetings[key]

    @property
    def waited_for(self) -> list[PhaseBarrier]:
        return [barrier for barrier in self._barriers.values() if barrier.waiting]


def crew_block(site: Site, block: int) -> int:
    return site.crew.first_block + block


def parties(
    mask: BoolArray, *values: int | IntArray
) -> Iterator[tuple[int, tuple[int, ...], BoolArray]]:
    """For each block and each distinct tuple of values in it: both, and the threads."""
    blocks = np.arange(mask.shape[1], dtype=np.int64)
    full = [np.broadcast_to(value, mask.shape) for value in (blocks, *values)]
    rows = np.stack([value[mask] for value in full], axis=1)
    for row in np.unique(rows, axis=0):
        who = mask
        for value, wanted in zip(full, row, strict=True):
            who = who & (value == wanted)
        block, *found = (int(v) for v in row)
        yield block, tuple(found), who


def first_of(mask: BoolArray) -> tuple[int, int]:
    """The first thread of a mask, and its block."""
    thread, block = (int(i) for i in np.argwhere(mask)[0])
    return thread, block
