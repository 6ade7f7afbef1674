"""Constraints: how an author hands axes to blocks, loops and warps. Wave's vocabulary.

Sizes are numbers once bound; `lang` evaluates symbolic sizes before a plan is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.spans import Span


@dataclass(frozen=True, slots=True)
class Workgroup:
    """Axis `axis` is cut into tiles of `tile`, one per block; None: the whole axis in one block."""

    axis: str
    tile: int | None
    dim: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Tiling:
    """`iterate` over `axis` takes `tile` at a time."""

    axis: str
    tile: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Wave:
    """Each warp computes `tile` of the block's part of `axis`."""

    axis: str
    tile: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """Warp width and count, and the MMA atom; None leaves the choice to the policy."""

    threads_per_wave: int | None = None
    waves_per_block: tuple[int, ...] | None = None
    mma_type: str | None = None
    stages: int | None = None
    span: Span | None = None


Constraint = Workgroup | Tiling | Wave | Hardware
