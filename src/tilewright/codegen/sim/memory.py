"""Global tensors and shared memory: where an element lies, and moving its bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from tilewright.base.diagnostics import LegalityError
from tilewright.codegen.sim.index import Affine
from tilewright.codegen.sim.numeric import (
    NUMPY,
    Array,
    BoolArray,
    IntArray,
    bits_type,
    poison,
)
from tilewright.codegen.sim.shadow import AccessLog
from tilewright.kernel.ops import Mode, Shared, Tensor


def linear(axes: Sequence[Affine], strides: Sequence[int]) -> tuple[IntArray, int]:
    """``sum(axis * stride)``, as an array and a number to add."""
    base = np.zeros((1, 1), np.int64)
    shift = 0
    for axis, stride in zip(axes, strides, strict=True):
        base = base + axis.base * stride
        shift += axis.shift * stride
    return base, shift


def steps(width: int, stride: int) -> IntArray:
    """Offsets of the elements of a vector, along the axis next to the threads."""
    return (np.arange(width, dtype=np.int64) * stride).reshape(width, 1, 1)


class GlobalTensor:
    """A global tensor: its elements in row-major order, whatever the caller's strides are.

    `written` and `log` are there where checks need them: `written` for what the kernel
    produces, `log` for what it both reads and writes.
    """

    def __init__(
        self, declared: Tensor, array: Array, *, checks: bool, read: bool, written: bool
    ) -> None:
        self.declared = declared
        self.name = declared.name
        self.dtype = declared.dtype
        self.mode = declared.mode
        self.shape = array.shape
        self.strides = tuple(prod(array.shape[i + 1 :]) for i in range(array.ndim))
        self._array = array
        self._copied = not array.flags.c_contiguous or declared.mode is Mode.OUT
        flat = np.array(array, order="C", copy=self._copied).reshape(-1)
        self.bits: Array = flat.view(bits_type(declared.dtype))
        self.bits.flags.writeable = declared.mode is not Mode.IN
        if declared.mode is Mode.OUT:
            self.bits[...] = poison(declared.dtype)
        size = flat.size
        produced = checks and declared.mode is Mode.OUT
        self.written: BoolArray | None = np.zeros(size, np.bool_) if produced else None
        self.log = AccessLog(size) if checks and read and written else None
        self._scratch: IntArray | None = None

    def scratch(self) -> IntArray:
        """One number per element, of any value."""
        if self._scratch is None:
            self._scratch = np.empty(self.bits.size, np.int64)
        return self._scratch

    def give_back(self) -> None:
        """Write the elements to the caller's array."""
        if self._copied and self.mode is not Mode.IN:
            self._array[...] = self.bits.view(NUMPY[self.dtype]).reshape(self.shape)

    def gather(self, at: IntArray, mask: BoolArray | None) -> Array:
        """Bits at element offsets; anything where the mask fails."""
        if self.bits.size == 0:
            return np.zeros(at.shape, self.bits.dtype)
        return self.bits.take(at, mode="raise" if mask is None else "clip")

    def scatter(
        self, at: IntArray, bits: Array, chosen: BoolArray | None, full: tuple[int, ...]
    ) -> None:
        """Set elements. `full` is the shape of all instances, threads and blocks."""
        at, bits = np.broadcast_to(at, full), np.broadcast_to(bits, full)
        if chosen is None:
            self.bits[at] = bits
        else:
            chosen = np.broadcast_to(chosen, full)
            self.bits[at[chosen]] = bits[chosen]


class Arena:
    """Shared memory that one or several overlapping buffers use: ``bits[granule, block]``.

    A granule is as wide as the narrowest element, `width` bytes. Shadow arrays are flat; they
    keep one entry per granule as long as all blocks do the same (`apart` is 1), else one for
    each granule and block.
    """

    def __init__(self, base: int, granules: int, width: int, blocks: int, fill: Array) -> None:
        self.base = base
        self.width = width
        self.blocks = blocks
        self.apart = 1
        self.bits: Array = np.full((granules, blocks), fill, fill.dtype)
        self.written: BoolArray = np.zeros(granules, np.bool_)
        self.flying: IntArray = np.zeros(granules, np.int64)  # 1 + thread of the copy under way
        self.log: AccessLog = AccessLog(granules)

    def spread(self) -> None:
        """Give each block shadow state of its own."""
        if self.apart != self.blocks:
            self.apart = self.blocks
            self.written = np.repeat(self.written, self.blocks)
            self.flying = np.repeat(self.flying, self.blocks)
            self.log.spread(self.blocks)


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A declared buffer in its arena. Element e covers granules first + e * ratio, .. ."""

    declared: Shared
    arena: Arena
    first: int
    ratio: int

    @property
    def name(self) -> str:
        return self.declared.name

    def physical(self, offset: IntArray) -> IntArray:
        """Element offsets with the swizzle applied."""
        swizzle = self.declared.swizzle
        if swizzle is None:
            return offset
        mask = (1 << swizzle.bits) - 1
        return offset ^ (((offset >> (swizzle.base + swizzle.shift)) & mask) << swizzle.base)

    def granules(self, at: IntArray) -> IntArray:
        """Granules of elements, with one more axis in front, of extent `ratio`."""
        part = np.arange(self.ratio, dtype=np.int64).reshape(self.ratio, *(1,) * at.ndim)
        return at * self.ratio + (self.first + part)

    def element(self, granule: int) -> str:
        """The element that covers a granule of the arena, as `name[i, j]`."""
        # A swizzle is its own inverse.
        offset = int(self.physical(np.array((granule - self.first) // self.ratio)))
        index: list[str] = []
        for stride in self.declared.strides:
            digit, offset = divmod(offset, stride)
            index.append(str(digit))
        return f"`{self.name}[{', '.join(index)}]`"

    def get(self, at: IntArray, block: int) -> Array:
        """The bits ``[n]`` of one block at (swizzled) offsets ``[n]``."""
        parts = self.arena.bits[self.granules(at), block]
        return np.ascontiguousarray(parts.T).view(bits_type(self.declared.dtype))[:, 0]

    def put(self, at: IntArray, bits: Array, block: int) -> None:
        """The mirror of `get`."""
        parts = np.ascontiguousarray(bits)[:, None].view(self.arena.bits.dtype)
        self.arena.bits[self.granules(at), block] = parts.T

    def gather(self, at: IntArray) -> Array:
        """Bits ``[*instances, threads | 1, blocks]``; anything at offsets outside the buffer."""
        raw = bits_type(self.declared.dtype)
        rows = self.granules(at)
        if at.shape[-1] == 1:
            parts = self.arena.bits.take(rows[..., 0], axis=0, mode="clip")
        else:
            rows = rows.clip(0, len(self.arena.bits) - 1)
            parts = self.arena.bits[rows, np.arange(self.arena.blocks)]
        if self.ratio == 1:
            return parts[0]
        return np.ascontiguousarray(np.moveaxis(parts, 0, -1)).view(raw)[..., 0]

    def scatter(
        self, at: IntArray, bits: Array, chosen: BoolArray | None, full: tuple[int, ...]
    ) -> None:
        """Set elements. `full` is the shape of all instances, threads and blocks."""
        bits = np.broadcast_to(bits, full)
        parts = bits[None]
        if self.ratio > 1:
            split = np.ascontiguousarray(bits)[..., None].view(self.arena.bits.dtype)
            parts = np.moveaxis(split, -1, 0)
        store = self.arena.bits
        if at.shape[-1] == 1 and (chosen is None or chosen.shape[-1] == 1):
            rows = self.granules(np.broadcast_to(at, (*full[:-1], 1)))[..., 0]
            if chosen is None:
                store[rows] = parts
            else:
                some = np.broadcast_to(chosen, (*full[:-1], 1))[..., 0]
                store[rows[:, some]] = parts[:, some]
            return
        rows = self.granules(np.broadcast_to(at, full))
        columns = np.broadcast_to(np.arange(self.arena.blocks), full)
        if chosen is None:
            store[rows, columns] = parts
        else:
            some = np.broadcast_to(chosen, full)
            store[rows[:, some], columns[some]] = parts[:, some]


def lay_out(buffers: Iterable[Shared], blocks: int) -> dict[str, SharedBuffer]:
    """The buffers by name. Those whose bytes overlap share an arena."""
    placed: dict[str, SharedBuffer] = {}
    for group in _overlapping(sorted(buffers, key=lambda b: b.offset)):
        width = gcd(*(b.dtype.bytes for b in group))
        base = group[0].offset
        for buffer in group:
            if buffer.offset % buffer.dtype.bytes:
                raise LegalityError(
                    f"shared buffer `{buffer.name}` begins at byte {buffer.offset}",
                    span=buffer.span,
                    expected=f"a multiple of its element's {buffer.dtype.bytes} bytes",
                )
        end = max(_end(b) for b in group)
        narrow = min(group, key=lambda b: b.dtype.bytes)
        arena = Arena(base, -(-(end - base) // width), width, blocks, poison(narrow.dtype))
        for buffer in group:
            first = (buffer.offset - base) // width
            placed[buffer.name] = SharedBuffer(buffer, arena, first, buffer.dtype.bytes // width)
    return placed


def _end(buffer: Shared) -> int:
    return buffer.offset + buffer.elements * buffer.dtype.bytes


def _overlapping(ordered: list[Shared]) -> list[list[Shared]]:
    groups: list[list[Shared]] = []
    end = -1
    for buffer in ordered:
        if groups and buffer.offset < end:
            groups[-1].append(buffer)
        else:
            groups.append([buffer])
            end = buffer.offset
        end = max(end, _end(buffer))
    return groups
