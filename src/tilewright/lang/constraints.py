"""The author's constraints, with symbolic sizes; `bind` turns them into the plan's numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tilewright.base.diagnostics import ConstraintError
from tilewright.base.spans import Span, user_span
from tilewright.lang.symbols import Size, evaluate, size_of
from tilewright.schedule import constraints as bound


def _here() -> Span | None:
    return user_span(sys._getframe(1))


class MMAType(Enum):
    """Matrix instructions by their vocabulary names; the target's table has the rest."""

    F32_16x16x16_F16 = "F32_16x16x16_F16"
    F32_32x32x8_F16 = "F32_32x32x8_F16"
    F32_16x16x16_BF16 = "F32_16x16x16_BF16"
    F32_32x32x8_BF16 = "F32_32x32x8_BF16"
    F32_16x16x32_F8 = "F32_16x16x32_F8"
    F32_32x32x16_F8 = "F32_32x32x16_F8"
    I32_16x16x32_I8 = "I32_16x16x32_I8"
    I32_32x32x16_I8 = "I32_32x32x16_I8"


@dataclass(frozen=True, slots=True)
class WorkgroupConstraint:
    """Give tiles of `tile` elements of `axis` to blocks, along block dimension `dim`.

    Dimensions fold into one block counter, so there may be more than three.
    """

    axis: Size
    tile: Size | int
    dim: int
    span: Span | None = field(default_factory=_here, compare=False)


@dataclass(frozen=True, slots=True)
class TilingConstraint:
    """Let `iterate` over `axis` take `tile` elements at a time."""

    axis: Size
    tile: Size | int
    span: Span | None = field(default_factory=_here, compare=False)


@dataclass(frozen=True, slots=True)
class WaveConstraint:
    """Let each warp compute `tile` elements of the block's part of `axis`."""

    axis: Size
    tile: Size | int
    span: Span | None = field(default_factory=_here, compare=False)


@dataclass(frozen=True, slots=True)
class HardwareConstraint:
    """Warp width, warps per block along block dimensions 0, 1, 2, the MMA atom, pipeline stages.

    Whatever is left out is chosen by the policy for the target.
    """

    threads_per_wave: int | None = None
    waves_per_block: tuple[int, ...] | None = None
    mma_type: MMAType | str | None = None
    stages: int | None = None
    span: Span | None = field(default_factory=_here, compare=False)


Constraint = WorkgroupConstraint | TilingConstraint | WaveConstraint | HardwareConstraint


def bind(
    constraints: Sequence[Constraint], bindings: Mapping[str, int]
) -> tuple[bound.Constraint, ...]:
    """Evaluate symbolic sizes. Two constraints of one kind on one axis are an error."""
    _refuse_doubles(constraints)
    return tuple(_bind(c, bindings) for c in constraints)


def _bind(constraint: Constraint, bindings: Mapping[str, int]) -> bound.Constraint:
    match constraint:
        case HardwareConstraint():
            mma = constraint.mma_type
            return bound.Hardware(
                constraint.threads_per_wave,
                constraint.waves_per_block,
                mma.value if isinstance(mma, MMAType) else mma,
                constraint.stages,
                constraint.span,
            )
        case WorkgroupConstraint(axis, tile, dim, span):
            # A tile that is the axis itself means the whole axis, also where its size is open.
            whole = tile == axis
            size = None if whole else _positive(constraint, bindings)
            return bound.Workgroup(axis.name, size, dim, span)
        case TilingConstraint(axis, _, span):
            return bound.Tiling(axis.name, _positive(constraint, bindings), span)
        case WaveConstraint(axis, _, span):
            return bound.Wave(axis.name, _positive(constraint, bindings), span)


def _positive(
    constraint: WorkgroupConstraint | TilingConstraint | WaveConstraint, bindings: Mapping[str, int]
) -> int:
    size = evaluate(size_of(constraint.tile), bindings, constraint.span)
    if size < 1:
        raise ConstraintError(
            f"the tile of {constraint.axis} is {size}",
            span=constraint.span,
            expected="a tile of at least one element",
            mend="check the symbols in the tile size and their bindings",
        )
    return size


def _refuse_doubles(constraints: Sequence[Constraint]) -> None:
    seen: dict[tuple[type, str], Constraint] = {}
    for constraint in constraints:
        axis = "" if isinstance(constraint, HardwareConstraint) else constraint.axis.name
        key = (type(constraint), axis)
        if key in seen:
            what = f"the axis {axis} has two" if axis else "the kernel has two"
            first = seen[key].span
            raise ConstraintError(
                f"{what} {type(constraint).__name__}s",
                span=constraint.span,
                expected="at most one of a kind",
                mend="remove one of them",
                notes=(f"the first is at {first.file}:{first.line}",) if first else (),
            )
        seen[key] = constraint
