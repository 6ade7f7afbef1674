"""Shadow state of memory: what was written, and who touched each element last.

Accesses are ordered by barrier epochs: within one block, an access of an earlier epoch happens
before one of a later epoch. Accesses of one thread are ordered; all others are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.codegen.sim.numeric import BoolArray, IntArray

NOBODY = -1
SEVERAL_BLOCKS = 1 << 62


@dataclass(frozen=True, slots=True)
class Stamps:
    """When and by whom an access is done: ``stamp = (block * epochs + epoch) * width + thread``.

    `width` is the number of threads of a block plus 2; thread number `width` - 2 stands for
    several threads of the block. `first` is the least stamp of the block, `now` the least of its
    present epoch. Arrays broadcast to the accesses.
    """

    own: IntArray
    now: IntArray
    first: IntArray
    width: int

    def unordered(self, last: IntArray) -> BoolArray:
        """Which of the last accesses have no order to ours."""
        before = (last >= self.first) & (last < self.now)
        return ~before & (last != self.own) & (last != NOBODY)

    def mapped(self, change: Callable[[IntArray], IntArray]) -> Stamps:
        """The stamps with another shape."""
        return Stamps(change(self.own), change(self.now), change(self.first), self.width)

    def elsewhere(self, last: IntArray) -> BoolArray:
        """Which of the accesses were done by other blocks."""
        return (last < self.first) | (last >= self.now + self.width)


class AccessLog:
    """The last writer and the last reader (or readers) of each element."""

    def __init__(self, size: int) -> None:
        self.writer: IntArray = np.full(size, NOBODY, np.int64)
        self.reader: IntArray = np.full(size, NOBODY, np.int64)

    def spread(self, blocks: int) -> None:
        """Keep each of `blocks` blocks apart: element ``e`` of block ``b`` at e * blocks + b."""
        self.writer = np.repeat(self.writer, blocks)
        self.reader = np.repeat(self.reader, blocks)

    def read(self, at: IntArray, by: Stamps) -> tuple[BoolArray, IntArray] | None:
        """Record reads. Where a race is found: which accesses, and the stamps they race with."""
        writer = self.writer[at]
        bad = by.unordered(writer)
        if bad.any():
            return bad, writer
        last = self.reader[at]
        several = by.now + (by.width - 2)
        crowd = np.where(by.elsewhere(last), SEVERAL_BLOCKS, several)
        kept = np.where(by.unordered(last), crowd, by.own)
        self.reader[at] = kept
        # Several threads may have read one element just now: the last one overwrote the others.
        stored = self.reader[at]
        lost = stored != kept
        if lost.any():
            abroad = lost & by.elsewhere(stored)
            near = lost & ~abroad
            self.reader[at[near]] = np.broadcast_to(several, at.shape)[near]
            self.reader[at[abroad]] = SEVERAL_BLOCKS
        return None

    def may_write(self, at: IntArray, by: Stamps) -> tuple[BoolArray, IntArray] | None:
        """Where a write now would race, and the stamps it races with."""
        for last in (self.writer[at], self.reader[at]):
            bad = by.unordered(last)
            if bad.any():
                return bad, last
        return None

    def write(self, at: IntArray, by: Stamps) -> tuple[BoolArray, IntArray] | None:
        """Record writes. Where two threads write one element: which accesses, and the other."""
        own = np.broadcast_to(by.own, at.shape)
        self.writer[at] = own
        kept = self.writer[at]
        bad = kept != own
        return (bad, kept) if bad.any() else None
