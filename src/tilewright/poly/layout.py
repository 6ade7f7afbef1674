"""Register layouts: which thread holds which element of a tile, in which register.

A layout writes each hardware number (warp of the block, lane of the warp, register of the
thread) as a mixed-radix number of digits, and gives each digit a stride on one tile axis:
``coordinate[axis] = sum(digit * stride)``. A digit with no axis replicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod


class Place(Enum):
    """Where a digit of a layout runs."""

    WARP = "warp"
    LANE = "lane"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class LayoutDigit:
    """One digit: `extent` values at `place`, each step moving `stride` along `axis`."""

    place: Place
    extent: int
    axis: str | None
    stride: int = 1

    def __str__(self) -> str:
        target = "*" if self.axis is None else f"{self.stride}{self.axis}"
        return f"{self.place.value}:{self.extent}->{target}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Digits of one place are ordered from the most significant to the least.

    `shape` gives the tile: pairs of axis and extent. The order of the axes has no meaning
    for the layout, so a permutation of a tile keeps its layout.
    """

    shape: tuple[tuple[str, int], ...]
    digits: tuple[LayoutDigit, ...]

    def at(self, place: Place) -> tuple[LayoutDigit, ...]:
        return tuple(d for d in self.digits if d.place is place)

    def count(self, place: Place) -> int:
        """How many values the place's number takes: lanes, warps, or registers per thread."""
        return prod(d.extent for d in self.at(place))

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis, _ in self.shape)

    def extent(self, axis: str) -> int:
        return dict(self.shape)[axis]

    def rename(self, names: Mapping[str, str]) -> Layout:
        """The same layout over axes of other names."""
        return Layout(
            tuple((names.get(a, a), n) for a, n in self.shape),
            tuple(
                d if d.axis is None else replace(d, axis=names.get(d.axis, d.axis))
                for d in self.digits
            ),
        )

    def drop(self, axis: str) -> Layout:
        """Forget an axis: its registers vanish, its lanes and warps replicate."""
        digits: list[LayoutDigit] = []
        for d in self.digits:
            if d.axis != axis:
                digits.append(d)
            elif d.place is not Place.REGISTER:
                digits.append(replace(d, axis=None, stride=0))
        return Layout(tuple(s for s in self.shape if s[0] != axis), tuple(digits))

    def coordinates(self, warp: int, lane: int, register: int) -> dict[str, int]:
        """The element that one register of one thread holds."""
        numbers = {Place.WARP: warp, Place.LANE: lane, Place.REGISTER: register}
        result = {axis: 0 for axis, _ in self.shape}
        for d in reversed(self.digits):
            numbers[d.place], value = divmod(numbers[d.place], d.extent)
            if d.axis is not None:
                result[d.axis] += value * d.stride
        return result

    def fault(self) -> str | None:
        """Why the layout does not hold each element of the tile once (up to replication).

        For every axis the digits must chain: strides 1, e0, e0*e1, ... up to the extent.
        That is exact: such a chain is a mixed-radix number, hence a bijection; and where the
        chain breaks, the element named by the fault is a witness.
        """
        for d in self.digits:
            if d.axis is not None and d.axis not in self.axes:
                return f"axis {d.axis}: the tile has no such axis"
        for axis, extent in self.shape:
            reach = 1
            chain = sorted(
                (d for d in self.digits if d.axis == axis and d.extent > 1),
                key=lambda d: d.stride,
            )
            for d in chain:
                if not 0 <= d.stride < extent:
                    return f"axis {axis}: element {d.stride} is held, which is outside the tile"
                if d.stride < reach:
                    return f"axis {axis}: element {d.stride} is held twice"
                if d.stride > reach:
                    return f"axis {axis}: element {reach} is missing"
                reach *= d.extent
            if reach < extent:
                return f"axis {axis}: element {reach} is missing ({reach} of {extent} are held)"
            if reach > extent:
                return f"axis {axis}: element {extent} is held, which is outside the tile"
        return None

    def __str__(self) -> str:
        shape = ", ".join(f"{a}:{n}" for a, n in self.shape)
        return f"[{shape}] {' '.join(str(d) for d in self.digits)}"
