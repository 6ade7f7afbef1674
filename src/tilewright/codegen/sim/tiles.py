"""Between fragments and tiles: the layouts of a matrix instruction as axes of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.codegen.sim.numeric import Array
from tilewright.poly.layout import Layout, Place


@dataclass(frozen=True, slots=True)
class TileAxes:
    """``[register, thread, block]`` with the first two cut into digits, as array axes.

    The axes are the register digits, then groups of threads that execute the instruction side
    by side (axis number `group`), then the warp and lane digits. `rows` and `columns` are the
    axes that write the tile's two coordinates, most significant first; `replicas` write none.
    """

    extents: tuple[int, ...]
    group: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    replicas: tuple[int, ...]

    @staticmethod
    def of(layout: Layout, row: str, column: str, groups: int) -> TileAxes:
        registers = layout.at(Place.REGISTER)
        threads = (*layout.at(Place.WARP), *layout.at(Place.LANE))
        digits = [*registers, None, *threads]

        def along(axis: str | None) -> tuple[int, ...]:
            found = ((d.stride, i) for i, d in enumerate(digits) if d and d.axis == axis)
            return tuple(i for _, i in sorted(found, reverse=True))

        extents = tuple(d.extent if d else groups for d in digits)
        return TileAxes(extents, len(registers), along(row), along(column), along(None))

    @property
    def _kept(self) -> list[int]:
        return [i for i in range(len(self.extents)) if i not in self.replicas]

    def gather(self, data: Array) -> Array:
        """``[*lead, register, thread, block]`` -> ``[*lead, block, group, row, column]``."""
        *leading, _, _, blocks = data.shape
        parts = data.reshape(*leading, *self.extents, blocks)
        first = tuple(0 if i in self.replicas else slice(None) for i in range(len(self.extents)))
        parts = parts[(..., *first, slice(None))]
        lead = len(leading)
        place = {axis: lead + n for n, axis in enumerate(self._kept)}
        inner = (place[i] for i in (self.group, *self.rows, *self.columns))
        shape = (blocks, self.extents[self.group], self._size(self.rows), self._size(self.columns))
        return parts.transpose(*range(lead), lead + len(place), *inner).reshape(*leading, *shape)

    def scatter(self, tiles: Array) -> Array:
        """The inverse of `gather`; replicas get equal values."""
        *leading, blocks, groups, _, _ = tiles.shape
        lead = len(leading)
        axes = (self.group, *self.rows, *self.columns)
        inner = (self.extents[i] for i in axes[1:])
        parts = tiles.reshape(*leading, blocks, groups, *inner)
        place = {axis: lead + 1 + n for n, axis in enumerate(axes)}
        parts = parts.transpose(*range(lead), *(place[i] for i in self._kept), lead)
        parts = np.expand_dims(parts, tuple(lead + i for i in self.replicas))
        full = np.broadcast_to(parts, (*leading, *self.extents, blocks))
        registers = prod(self.extents[: self.group])
        return full.reshape(*leading, registers, prod(self.extents[self.group :]), blocks)

    def _size(self, axes: tuple[int, ...]) -> int:
        return prod(self.extents[i] for i in axes)
