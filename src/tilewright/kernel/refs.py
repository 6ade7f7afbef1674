"""References of the kernel IR to registers and memory, and what statements say of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.poly.expr import Expr

Over = tuple[tuple[str, int], ...]  # unrolled digits: name and extent


@dataclass(frozen=True, slots=True)
class RegRef:
    """An element of a fragment. Vector statements and MMA atoms go on along its last axis."""

    name: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class MemRef:
    """An element of a tensor or of a shared buffer, by logical coordinates."""

    name: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class ReducedAxis:
    """Which terms of a reduction an accumulation counts: `coordinate` on `axis`, of `extent`.

    The coordinate is written in the digits in scope. Terms at or past the extent count as the
    identity. The reduction proof reads it: over all digits in it and all loops since the
    accumulator was set, each coordinate in [0, extent) must occur exactly once.
    """

    axis: str
    extent: Expr
    coordinate: Expr
