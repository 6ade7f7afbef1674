"""Results of two runs compared: how far apart, where the most, and what was never written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CHUNK = 1 << 22  # elements that are compared at once: they are widened to eight bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """`error` is the largest, over the largest finite magnitude wanted; infinite where NaNs differ.

    `index` is the element with the largest error, `found` and `wanted` its values.
    """

    error: float
    index: tuple[int, ...]
    found: float
    wanted: float


def difference(found: Array, wanted: Array) -> Difference:
    """How far two arrays of one shape, with at least one element, are apart."""
    if found.dtype == wanted.dtype and (_words(found) == _words(wanted)).all():
        first = (0,) * found.ndim  # the usual case, and by far the quickest to see
        return Difference(0.0, first, float(found[first]), float(wanted[first]))
    scale = _largest(wanted)
    worst, place = -1.0, 0
    for start, one, other in _chunks(found, wanted):
        gap = _distance(one, other) / scale
        at = int(gap.argmax())
        if gap[at] > worst:
            worst, place = float(gap[at]), start + at
    index = tuple(int(i) for i in np.unravel_index(place, found.shape))
    return Difference(worst, index, float(found[index]), float(wanted[index]))


def unwritten(first: Array, low: int, second: Array, high: int) -> tuple[int, ...] | None:
    """An element that still has all of its bytes as they were set before each of two runs.

    None where each element was written in one of them: a written one may look like one byte,
    but not like both.
    """
    untouched = _still(first, low) & _still(second, high)
    if not untouched.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(untouched.argmax()), first.shape))


def poisons(array_kind: np.dtype[Any]) -> tuple[int, int]:
    """Two bytes to fill outputs with: first a NaN of nearly every float type."""
    return (1, 0) if array_kind.kind == "b" else (0xFF, 0x5A)


def any_still(array: Array, byte: int) -> bool:
    """Whether an element has the byte throughout."""
    return bool(_still(array, byte).any())


def _still(array: Array, byte: int) -> NDArray[np.bool_]:
    return _words(array) == int.from_bytes(bytes([byte]) * array.itemsize, "little")


def _words(array: Array) -> Array:
    """The elements' bits as unsigned numbers."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}").reshape(array.shape)


def _chunks(one: Array, other: Array) -> Iterator[tuple[int, Array, Array]]:
    left, right = one.reshape(-1), other.reshape(-1)
    for start in range(0, left.size, CHUNK):
        yield start, left[start : start + CHUNK], right[start : start + CHUNK]


def _largest(array: Array) -> float:
    largest = 0.0
    for _, part, _ in _chunks(array, array):
        wide = np.abs(_wide(part))
        largest = max(largest, float(wide[np.isfinite(wide)].max(initial=0.0)))
    return largest or 1.0


def _distance(one: Array, other: Array) -> Array:
    a, b = _wide(one), _wide(other)
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
    gap[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    gap[np.isnan(gap)] = np.inf
    return gap


def _wide(array: Array) -> Array:
    """As a type that holds all values of the array's, and differences of them well enough."""
    return array.astype(np.float32 if array.itemsize <= 2 else np.float64)
