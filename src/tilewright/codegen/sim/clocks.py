"""The order between warps that meet at barriers and phases, as vector clocks.

A *unit* is one warp of one block of the crew. Its accesses carry its own time, which ticks when
it releases. `Clocks.seen[u, w]` is the first time of unit w that does not happen before what u
does next. An asynchronous operation is one bit; `known` says which completions happen before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.codegen.sim.shadow import NOBODY, AccessLog, Stamps
from tilewright.codegen.sim.site import Crew

TIMES = 1 << 20  # releases of one warp


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a release hands on: `seen[unit]`, and the bits of completed operations."""

    seen: IntArray
    known: int

    def join(self, other: Knowledge) -> Knowledge:
        return Knowledge(np.maximum(self.seen, other.seen), self.known | other.known)


class Clocks:
    """What every unit knows."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.units = crew.blocks * crew.warps
        self.seen: IntArray = np.zeros((self.units, self.units), np.int64)
        self.known = [0] * self.units
        self.fences: IntArray = np.zeros((crew.threads, crew.blocks), np.int64)

    def nothing(self) -> Knowledge:
        return Knowledge(np.zeros(self.units, np.int64), 0)

    def units_of(self, mask: BoolArray) -> list[int]:
        """The units with an active thread; `mask` is ``[threads, blocks]``."""
        crew = self.crew
        warps = mask.reshape(crew.warps, crew.warp_size, crew.blocks).any(axis=1)
        return [int(block * crew.warps + warp) for warp, block in np.argwhere(warps)]

    def release(self, units: Iterable[int]) -> Knowledge:
        """All that the units did and know; what they do next is not part of it."""
        given = self.nothing()
        for unit in units:
            self.seen[unit, unit] += 1
            given = given.join(Knowledge(self.seen[unit], self.known[unit]))
        return given

    def acquire(self, units: Iterable[int], given: Knowledge) -> None:
        for unit in units:
            np.maximum(self.seen[unit], given.seen, out=self.seen[unit])
            self.known[unit] |= given.known

    def learn(self, units: Iterable[int], operations: int) -> None:
        """The units know from now on that these operations are complete."""
        for unit in units:
            self.known[unit] |= operations

    def common(self, units: Iterable[int]) -> int:
        """The operations that all of the units know."""
        known = -1
        for unit in units:
            known &= self.known[unit]
        return known

    def stamps(self, first_block: int = 0) -> ClockStamps:
        """Stamps of all threads now, ``[threads, blocks]``, with units counted from there on."""
        crew = self.crew
        width = crew.threads + 2
        threads = np.arange(crew.threads, dtype=np.int64)[:, None]
        unit = np.arange(crew.blocks, dtype=np.int64) * crew.warps + threads // crew.warp_size
        base = first_block * crew.warps
        first = (base + unit) * TIMES * width
        now = first + np.diagonal(self.seen)[unit] * width
        return ClockStamps(now + threads, now, first, width, self.seen, base, crew.warps)


@dataclass(frozen=True, slots=True)
class ClockStamps(Stamps):
    """``stamp = (unit * TIMES + time) * width + thread``; `base` is the crew's first unit."""

    seen: IntArray
    base: int
    warps: int

    @property
    def unit(self) -> IntArray:
        """The units of the crew that access."""
        return self.own // (TIMES * self.width) - self.base

    def unordered(self, last: IntArray) -> BoolArray:
        other = last // (TIMES * self.width) - self.base
        ours = (other >= 0) & (other < len(self.seen))
        time = last // self.width % TIMES
        before = ours & (time < self.seen[self.unit, other * ours])
        return ~before & (last != self.own) & (last != NOBODY)

    def elsewhere(self, last: IntArray) -> BoolArray:
        per_block = TIMES * self.width * self.warps
        return (last != NOBODY) & (last // per_block != self.own // per_block)

    def mapped(self, change: Callable[[IntArray], IntArray]) -> ClockStamps:
        own, now, first = (change(values) for values in (self.own, self.now, self.first))
        return ClockStamps(own, now, first, self.width, self.seen, self.base, self.warps)


class ClockLog(AccessLog):
    """The last writer of each element, and the last reader of each unit.

    `fenced` counts the writer's proxy fences before its write.
    """

    def __init__(self, size: int, clocks: Clocks) -> None:
        self.clocks = clocks
        self.writer: IntArray = np.full(size, NOBODY, np.int64)
        self.readers: IntArray = np.full((clocks.units, size), NOBODY, np.int64)
        self.fenced: IntArray = np.zeros(size, np.int64)

    def spread(self, blocks: int) -> None:
        """Keep each of `blocks` blocks apart: element ``e`` of block ``b`` at e * blocks + b."""
        self.writer = np.repeat(self.writer, blocks)
        self.readers = np.repeat(self.readers, blocks, axis=1)
        self.fenced = np.repeat(self.fenced, blocks)

    def read(self, at: IntArray, by: Stamps) -> tuple[BoolArray, IntArray] | None:
        """Record reads. Where a race is found: which accesses, and the stamps they race with."""
        found = self.may_read(at, by)
        if found is not None:
            return found
        unit = np.broadcast_to(by.own // (TIMES * by.width), at.shape)
        last = self.readers[unit, at]
        several = np.broadcast_to(by.now + (by.width - 2), at.shape)
        again = (last >= by.now) & (last != by.own)
        kept = np.where(again, several, by.own)
        self.readers[unit, at] = kept
        lost = self.readers[unit, at] != kept
        if lost.any():
            self.readers[unit[lost], at[lost]] = several[lost]
        return None

    def may_read(self, at: IntArray, by: Stamps) -> tuple[BoolArray, IntArray] | None:
        """Where a read now would race, and the stamps it races with."""
        writer = self.writer[at]
        bad = by.unordered(writer)
        return (bad, writer) if bad.any() else None

    def may_write(self, at: IntArray, by: Stamps) -> tuple[BoolArray, IntArray] | None:
        """Where a write now would race, and the stamps it races with."""
        for last in (self.writer[at], *(readers[at] for readers in self.readers)):
            bad = by.unordered(last)
            if bad.any():
                return bad, last
        return None

    def write(self, at: IntArray, by: Stamps) -> tuple[BoolArray, IntArray] | None:
        """Record writes. Where two threads write one element: which accesses, and the other."""
        own = np.broadcast_to(by.own, at.shape)
        self.writer[at] = own
        kept = self.writer[at]
        self.fenced[at] = self._fences(own, by.width)
        bad = kept != own
        return (bad, kept) if bad.any() else None

    def unfenced(self, at: IntArray, width: int) -> BoolArray:
        """Elements that a thread wrote, with no proxy fence of its own since."""
        writer = self.writer[at]
        return (writer != NOBODY) & (self._fences(writer, width) == self.fenced[at])

    def _fences(self, stamps: IntArray, width: int) -> IntArray:
        """How many proxy fences the threads of the stamps have executed."""
        block = stamps // (TIMES * width) // self.clocks.crew.warps
        return self.clocks.fences[stamps % width % self.clocks.crew.threads, block]

    def forget(self, at: IntArray) -> None:
        """An asynchronous write has come after all accesses: only its completion matters now."""
        self.writer[at] = NOBODY
        self.readers[:, at] = NOBODY
