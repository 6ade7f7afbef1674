"""Constraints: how an author hands axes to blocks, loops and warps. Wave's vocabulary.

Sizes are numbers once bound; `lang` evaluates symbolic sizes before a plan is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from tilewright.base.diagnostics import ConstraintError
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
    """Warp width and count, the MMA atom, pipeline slots; None leaves the choice to the policy.

    `specialize` gives warps roles (a warpgroup that copies, others that multiply) or does not.
    `cluster` neighbouring blocks load the operand that they share for each other; in `pingpong`
    two warpgroups have tiles of their own, in turns. `split_k` blocks of a cluster share the terms
    of each tile. With ``stream_k = (tiles, blocks)`` each so many blocks share the steps of so many
    tiles.
    """

    threads_per_wave: int | None = None
    waves_per_block: tuple[int, ...] | None = None
    mma_type: str | None = None
    stages: int | None = None
    specialize: bool | None = None
    cluster: int | None = None
    pingpong: bool | None = None
    split_k: int | None = None
    stream_k: tuple[int, int] | None = None
    span: Span | None = None


Constraint = Workgroup | Tiling | Wave | Hardware


def merged(own: Sequence[Constraint], scheduled: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """A program's constraints with a schedule's. Both may not speak of one axis."""
    for given in own:
        if isinstance(given, Hardware):
            continue
        twin = next(
            (s for s in scheduled if not isinstance(s, Hardware) and s.axis == given.axis), None
        )
        if twin is not None:
            raise ConstraintError(
                f"the schedule splits {given.axis}, which a constraint has placed",
                span=twin.span,
                expected="an axis placed by a constraint or by the schedule",
                mend=f"remove the constraint on {given.axis}",
            )
    both = (*own, *scheduled)
    rest = [c for c in both if not isinstance(c, Hardware)]
    return (*rest, hardware_of(both))


def hardware_of(constraints: Sequence[Constraint]) -> Hardware:
    """All that constraints say of the hardware; of two words on one thing, the later."""
    joined = Hardware()
    for part in constraints:
        if isinstance(part, Hardware):
            values = {f.name: v for f in fields(part) if (v := getattr(part, f.name)) is not None}
            joined = replace(joined, **values)
    return joined
