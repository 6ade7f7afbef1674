"""The register file: fragments of all threads of all blocks of a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.codegen.sim.numeric import NUMPY, Array, BoolArray, IntArray, bits_type, poison
from tilewright.kernel.ops import Registers


@dataclass(frozen=True, slots=True)
class Selection:
    """Registers that a reference names, one per instance: rows of `Fragment.data`.

    `index` has the shape of the instances, or ``[*instances, threads, blocks]`` where threads
    choose different registers. `start` is the first row where the rows follow each other.
    `distinct`: no two instances of the domain name one register.
    """

    index: IntArray
    by_thread: bool
    start: int | None
    distinct: bool

    @staticmethod
    def of(flat: IntArray, domain: tuple[int, ...]) -> Selection:
        if flat.shape[-2:] != (1, 1):
            rows = np.sort(flat.reshape(-1, *flat.shape[-2:]), axis=0)
            apart = len(rows) == prod(domain) and bool((rows[1:] != rows[:-1]).all())
            return Selection(flat, by_thread=True, start=None, distinct=apart)
        index = flat[..., 0, 0]
        rows = index.ravel()
        start = int(rows[0])
        dense = bool(np.array_equal(rows, np.arange(start, start + rows.size)))
        distinct = index.size == prod(domain) and (dense or np.unique(rows).size == rows.size)
        return Selection(index, False, start if dense else None, bool(distinct))


class Fragment:
    """One fragment: ``data[register, thread, block]``, and which registers have been written.

    `written` has the same axes; the last two have extent 1 as long as all threads agree.
    """

    def __init__(self, declared: Registers, threads: int, blocks: int) -> None:
        rows = prod(declared.shape)
        self.declared = declared
        self.bits: Array = np.full(
            (rows, threads, blocks), poison(declared.dtype), bits_type(declared.dtype)
        )
        self.data: Array = self.bits.view(NUMPY[declared.dtype])
        self.written: BoolArray = np.zeros((rows, 1, 1), np.bool_)
        self.complete = False

    def read(self, at: Selection) -> Array:
        """``[*instances, threads, blocks]``, a view where the rows follow each other."""
        return self._rows(self.data, at)

    def read_bits(self, at: Selection) -> Array:
        return self._rows(self.bits, at)

    def _rows(self, array: Array, at: Selection) -> Array:
        if at.by_thread:
            threads, blocks = self._grid()
            return array[at.index, threads, blocks]
        if at.start is not None:
            rows = array[at.start : at.start + at.index.size]
            return rows.reshape(*at.index.shape, *array.shape[1:])
        return array[at.index]

    def _grid(self) -> tuple[IntArray, IntArray]:
        _, threads, blocks = self.bits.shape
        return np.arange(threads, dtype=np.int64)[:, None], np.arange(blocks, dtype=np.int64)

    def write(self, at: Selection, bits: Array, mask: BoolArray | None) -> None:
        """Set registers where the mask holds, which has no instance axes."""
        if at.by_thread:
            threads, blocks = self._grid()
            if mask is not None:
                bits = np.where(mask, bits, self.bits[at.index, threads, blocks])
            self.bits[at.index, threads, blocks] = bits
        elif at.start is not None:
            view = self._rows(self.bits, at)
            np.copyto(view, bits, where=True if mask is None else mask)
        elif mask is None:
            self.bits[at.index] = bits
        else:
            self.bits[at.index] = np.where(mask, bits, self.bits[at.index])
        if not self.complete:
            self.mark(at, mask)

    def mark(self, at: Selection, mask: BoolArray | None) -> None:
        """Take the registers as written."""
        threads, blocks = self.bits.shape[1:]
        if at.by_thread or (mask is not None and mask.shape != (1, 1)):
            shape = (self.written.shape[0], threads, blocks)
            if self.written.shape != shape:
                self.written = np.broadcast_to(self.written, shape).copy()
        if at.by_thread:
            where = (at.index, *self._grid())
            self.written[where] |= True if mask is None else mask
        else:
            self.written[at.index] |= True if mask is None else mask
        self.complete = bool(self.written.all())

    def unwritten(self, at: Selection, mask: BoolArray | None) -> BoolArray | None:
        """Where the mask holds and the register was never written; None: nowhere."""
        if self.complete:
            return None
        if at.by_thread:
            full = np.broadcast_to(self.written, self.bits.shape)
            bad = ~full[(at.index, *self._grid())]
        else:
            bad = ~self.written[at.index]
        if mask is not None:
            bad = bad & mask
        return bad if bad.any() else None
