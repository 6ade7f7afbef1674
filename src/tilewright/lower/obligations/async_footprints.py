"""What statements touch in shared memory, as sets of grains: bits of Python integers.

Shared buffers that overlap lie in one *arena*; a *grain* is the largest piece of bytes that
every buffer's elements and beginning are whole numbers of. Swizzles are dropped: they permute
their buffer. Where buffers overlap, what a swizzled one touches is widened to whole swizzle
blocks, which the swizzle maps to themselves; such a footprint is not `exact`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from tilewright.kernel.ops import Kernel, MemRef, Over, Shared
from tilewright.lower.obligations.async_values import Cell, Env, OpenError, lanes_of
from tilewright.poly.expr import Expr


@dataclass(eq=False, slots=True)
class Footprint:
    """Grains of an arena. `lanes` has those of each lane, where lanes touch them apart."""

    arena: int
    bits: int
    buffer: str
    lanes: tuple[int, ...] = ()
    exact: bool = True
    twice: int = 0  # grains that several lanes touch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies: its first grain in the arena, and the grains of an element."""

    buffer: Shared
    arena: int
    first: int
    unit: int
    block: int  # grains that a swizzle permutes; 0 where footprints need no widening


def spread(bits: int, count: int, step: int) -> int:
    """The union of the bits moved by 0, step, .., (count - 1) * step."""
    done = 1
    while done < count:
        more = min(done, count - done)
        bits |= bits << more * step
        done += more
    return bits


class Memory:
    """The arenas of a kernel's shared memory."""

    def __init__(self, kernel: Kernel) -> None:
        self.places: dict[str, Place] = {}
        self.grains: list[int] = []  # of each arena
        self._boxes: dict[object, Footprint] = {}
        for arena, group in enumerate(_overlapping(kernel.shared)):
            start = min(b.offset for b in group)
            grain = gcd(*(b.dtype.bytes for b in group), *(b.offset - start for b in group))
            end = max(b.offset + b.elements * b.dtype.bytes for b in group)
            self.grains.append((end - start) // grain)
            for b in group:
                unit = b.dtype.bytes // grain
                swizzle = b.swizzle if len(group) > 1 else None
                width = 0 if swizzle is None else swizzle.bits + swizzle.base + swizzle.shift
                self.places[b.name] = Place(
                    b, arena, (b.offset - start) // grain, unit, unit << width if width else 0
                )

    def place(self, name: str) -> Place:
        return self.places[name]

    def footprint(self, place: Place, offsets: int, lanes: Sequence[int] = ()) -> Footprint:
        """The grains of the elements at these offsets, each one's first grain given as a bit."""
        apart = tuple(self._grains(place, bits) for bits in lanes)
        if not apart:
            return Footprint(place.arena, self._grains(place, offsets), place.buffer.name,
                             exact=not place.block)  # fmt: skip
        bits = twice = 0
        for own in apart:
            twice |= bits & own
            bits |= own
        return Footprint(place.arena, bits, place.buffer.name, apart, not place.block, twice)

    def _grains(self, place: Place, firsts: int) -> int:
        bits = spread(firsts, place.unit, 1) << place.first
        if bits.bit_length() > self.grains[place.arena]:
            raise OpenError(f"an access leaves {place.buffer.name}")
        return _widened(bits, place) if place.block else bits

    def box(self, name: str, index: tuple[int, ...], count: int) -> Footprint:
        """A box of `count` elements that lies densely from the index on."""
        key = (name, index, count)
        if key not in self._boxes:
            self._boxes[key] = self._box(name, index, count)
        return self._boxes[key]

    def _box(self, name: str, index: tuple[int, ...], count: int) -> Footprint:
        place = self.places[name]
        first = sum(i * s for i, s in zip(index, place.buffer.strides, strict=True))
        if first < 0:
            raise OpenError(f"a box leaves {name}")
        return self.footprint(place, spread(1 << first * place.unit, count, place.unit))

    def tiles(
        self, name: str, corners: tuple[tuple[int, ...], ...], runs: Mapping[int, int], panel: int
    ) -> Footprint:
        """The tiles with these corners together: `runs[axis]` elements along each axis.

        Past the extent of the last axis they go on at its beginning, one further on `panel`.
        """
        key = (name, corners, *runs.items(), panel)
        found = self._boxes.get(key)
        if found is None:
            parts = [self._tile(name, corner, runs, panel) for corner in corners]
            found = parts[0]
            for part in parts[1:]:
                found.bits |= part.bits
            self._boxes[key] = found
        return found

    def _tile(
        self, name: str, index: tuple[int, ...], runs: Mapping[int, int], panel: int
    ) -> Footprint:
        place = self.places[name]
        buffer = place.buffer
        first = sum(i * s for i, s in zip(index, buffer.strides, strict=True))
        if first < 0:
            raise OpenError(f"a tile leaves {name}")
        last, width = len(buffer.shape) - 1, buffer.shape[-1]
        bits = 1 << first * place.unit
        for axis, count in runs.items():
            step = buffer.strides[axis] * place.unit
            if axis != last or panel < 0 or index[-1] + count <= width:
                bits = spread(bits, count, step)
                continue
            if index[-1] % width == 0 and count % width == 0:
                beyond = (buffer.strides[panel]) * place.unit
                bits = spread(spread(bits, width, step), count // width, beyond)
                continue
            whole = 0
            for j in range(count):
                beyond, at = divmod(index[-1] + j, width)
                moved = at - index[-1] + beyond * buffer.strides[panel]
                whole |= bits << moved * place.unit if moved >= 0 else bits >> -moved * place.unit
            bits = whole
        return self.footprint(place, bits)

    def element(self, print_: Footprint, bits: int) -> str:
        """The element of the footprint's buffer that holds the lowest of the grains."""
        place = self.places[print_.buffer]
        grain = (bits & -bits).bit_length() - 1
        offset = (grain - place.first) // place.unit
        index: list[int] = []
        for stride in place.buffer.strides:
            coordinate, offset = divmod(offset, stride)
            index.append(coordinate)
        return f"{print_.buffer}[{', '.join(map(str, index))}]"


def _overlapping(buffers: Sequence[Shared]) -> list[list[Shared]]:
    """Buffers in groups that have bytes in common, directly or through others."""
    groups: list[list[Shared]] = []
    end = -1
    for b in sorted(buffers, key=lambda b: (b.offset, b.name)):
        if not groups or b.offset >= end:
            groups.append([])
        groups[-1].append(b)
        end = max(end, b.offset + b.elements * b.dtype.bytes)
    return groups


def _widened(bits: int, place: Place) -> int:
    """The swizzle blocks of the buffer that have one of the grains."""
    result, block = 0, place.block
    whole = (1 << block) - 1
    rest, at = bits >> place.first, place.first
    while rest:
        if rest & whole:
            result |= whole << at
        rest >>= block
        at += block
    return result


class ThreadFootprint:
    """The footprint of a plain access: over its instances, its vector and the lanes of a warp."""

    def __init__(
        self, memory: Memory, ref: MemRef, over: Over, width: int, axis: int,
        gathered: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.memory = memory
        self.place = memory.places[ref.name]
        strides = self.place.buffer.strides
        offset = sum((i * s for i, s in zip(ref.index, strides, strict=True)), Expr.of(0))
        linear = {t: c for t, c in offset.terms if isinstance(t, str)}
        nested = {n for t, _ in offset.terms if not isinstance(t, str) for n in t.num.variables()}
        self._runs: list[tuple[int, int]] = [(width, strides[axis])]
        self._runs += [(self.place.buffer.shape[a], strides[a]) for a in gathered]
        self._runs += [(n, linear.get(d, 0)) for d, n in over if d not in nested]
        self._exact = not gathered
        free: dict[str, Expr | int | str] = {d: 0 for d, _ in over if d not in nested}
        offset = offset.substitute(free)
        bound = [(d, n) for d, n in over if d in nested]
        self.cells = [
            Cell(offset.substitute(dict(zip((d for d, _ in bound), values, strict=True))))
            for values in product(*(range(n) for _, n in bound))
        ]
        self.names = frozenset(n for cell in self.cells for n in cell.names)
        self._kept: dict[object, Footprint] = {}

    def __call__(self, env: Env, mask: int) -> Footprint:
        values = tuple([cell(env) for cell in self.cells])
        key = (mask, *(v if isinstance(v, int) else v.values for v in values))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._made(values, mask)
        return found

    def _made(self, values: tuple[object, ...], mask: int) -> Footprint:
        unit = self.place.unit
        pattern, before = 1, 0
        for count, stride in self._runs:
            pattern = spread(pattern, count, abs(stride) * unit)
            before += min(0, stride * (count - 1))
        lanes: list[int] = []
        for lane in range(mask.bit_length()):
            bits = 0
            if mask >> lane & 1:
                for value in values:
                    at = lanes_of(value, lane) + before  # type: ignore[arg-type]
                    if at < 0:
                        raise OpenError(f"an access leaves {self.place.buffer.name}")
                    bits |= pattern << at * unit
            lanes.append(bits)
        found = self.memory.footprint(self.place, 0, lanes)
        found.exact = found.exact and self._exact
        return found


def instances(over: Over) -> Iterator[dict[str, Expr | int | str]]:
    """The values of the unrolled digits, one instance after the other."""
    names = [name for name, _ in over]
    for values in product(*(range(extent) for _, extent in over)):
        yield dict(zip(names, values, strict=True))
