"""The author's constraints, with symbolic sizes; `bind` turns them into the plan's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tilewright.base.diagnostics import ConstraintError, TilewrightError
from tilewright.base.spans import Span, here
from tilewright.lang.symbols import Size, axis_name, evaluate, size_of
from tilewright.schedule import constraints as bound


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
    span: Span | None = field(default_factory=here, compare=False)

    def __post_init__(self) -> None:
        _check_tile(self)
        if not _is_count(self.dim, 0):
            raise _malformed(
                f"the block dimension of {self.axis} is {self.dim!r}",
                self.span,
                "a number from 0",
                "number the dimensions 0, 1, 2, .. as the grid has them",
            )


@dataclass(frozen=True, slots=True)
class TilingConstraint:
    """Let `iterate` over `axis` take `tile` elements at a time."""

    axis: Size
    tile: Size | int
    span: Span | None = field(default_factory=here, compare=False)

    def __post_init__(self) -> None:
        _check_tile(self)


@dataclass(frozen=True, slots=True)
class WaveConstraint:
    """Let each warp compute `tile` elements of the block's part of `axis`."""

    axis: Size
    tile: Size | int
    span: Span | None = field(default_factory=here, compare=False)

    def __post_init__(self) -> None:
        _check_tile(self)


@dataclass(frozen=True, slots=True)
class HardwareConstraint:
    """Warp width, warps per block along block dimensions 0, 1, 2, the MMA atom, pipeline stages.

    With `specialize` one warpgroup copies operands ahead and the others multiply (Hopper).
    Of such kernels, `cluster` blocks with neighbouring tiles load the operand that they share for
    each other; with `pingpong` two warpgroups compute whole tiles in turns, so that one's epilogue
    runs while the other multiplies; `split_k` blocks of a cluster share the terms of each tile;
    with ``stream_k=(tiles, blocks)`` each `blocks` blocks share the steps of `tiles` tiles evenly.
    Whatever is left out is chosen by the policy for the target.
    """

    threads_per_wave: int | None = None
    waves_per_block: tuple[int, ...] | None = None
    mma_type: MMAType | str | None = None
    stages: int | None = None
    specialize: bool | None = None
    cluster: int | None = None
    pingpong: bool | None = None
    split_k: int | None = None
    stream_k: tuple[int, int] | None = None
    span: Span | None = field(default_factory=here, compare=False)

    def __post_init__(self) -> None:
        waves = self.waves_per_block
        if waves is not None and not (
            isinstance(waves, tuple | list)  # pyright: ignore[reportUnnecessaryIsInstance]
            and all(_is_count(n, 1) for n in waves)
        ):
            raise _malformed(
                f"waves_per_block is {waves!r}",
                self.span,
                "a tuple of positive numbers, one for each block dimension",
                "for example waves_per_block=(2, 2, 1)",
            )
        if self.stages is not None and not _is_count(self.stages, 1):
            raise _malformed(
                f"stages is {self.stages!r}",
                self.span,
                "a positive number of pipeline stages",
                "leave stages out to have it chosen",
            )
        for name in ("cluster", "split_k"):
            value = getattr(self, name)
            if value is not None and not _is_count(value, 1):
                raise _malformed(
                    f"{name} is {value!r}",
                    self.span,
                    "a positive number of blocks",
                    f"for example {name}=2, or leave it out",
                )
        if self.stream_k is not None and not (
            isinstance(self.stream_k, tuple)  # pyright: ignore[reportUnnecessaryIsInstance]
            and _is_pair(self.stream_k)
        ):
            raise _malformed(
                f"stream_k is {self.stream_k!r}",
                self.span,
                "a number of tiles, and one of blocks that share their steps",
                "for example stream_k=(2, 5), or leave it out",
            )


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_pair(value: Sequence[object]) -> bool:
    return len(value) == 2 and all(_is_count(n, 1) for n in value)


def _malformed(message: str, span: Span | None, expected: str, mend: str) -> TilewrightError:
    return ConstraintError(message, span=span, expected=expected, mend=mend)


def _check_tile(constraint: WorkgroupConstraint | TilingConstraint | WaveConstraint) -> None:
    axis_name(constraint.axis, constraint.span)
    if not isinstance(constraint.tile, Size) and not _is_count(constraint.tile, 1):
        raise _malformed(
            f"the tile of {constraint.axis} is {constraint.tile!r}",
            constraint.span,
            "a positive number of elements, or an expression of symbols",
            "give a whole number, or a symbol that the bindings set",
        )


Constraint = WorkgroupConstraint | TilingConstraint | WaveConstraint | HardwareConstraint


def bind(
    constraints: Sequence[Constraint], bindings: Mapping[str, int]
) -> tuple[bound.Constraint, ...]:
    """Evaluate symbolic sizes. Two constraints of one kind on one axis are an error."""
    _refuse_doubles(constraints)
    _refuse_shared_dimensions(constraints)
    return tuple(_bind(c, bindings) for c in constraints)


def _bind(constraint: Constraint, bindings: Mapping[str, int]) -> bound.Constraint:
    match constraint:
        case HardwareConstraint():
            mma = constraint.mma_type
            return bound.Hardware(
                constraint.threads_per_wave,
                None if constraint.waves_per_block is None else tuple(constraint.waves_per_block),
                mma.value if isinstance(mma, MMAType) else mma,
                constraint.stages,
                constraint.specialize,
                constraint.cluster,
                constraint.pingpong,
                constraint.split_k,
                constraint.stream_k,
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


def _refuse_shared_dimensions(constraints: Sequence[Constraint]) -> None:
    taken: dict[int, WorkgroupConstraint] = {}
    for constraint in constraints:
        if not isinstance(constraint, WorkgroupConstraint):
            continue
        first = taken.setdefault(constraint.dim, constraint)
        if first is not constraint:
            raise ConstraintError(
                f"{first.axis} and {constraint.axis} both have block dimension {constraint.dim}",
                span=constraint.span,
                expected="a dimension of its own for each axis; there may be more than three",
                mend=f"give {constraint.axis} another number, for example {len(taken)}",
            )
