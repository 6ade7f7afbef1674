"""Constraints for graphs that come without any: which axes go to blocks, in tiles of what size.

The result is the data that authors write, so nothing below knows the difference. The family of
a graph decides: contractions, reductions along or across memory, transposes, pointwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod

from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.constraints import Constraint, Tiling, Wave, Workgroup
from tilewright.schedule.policy import contiguous_axis
from tilewright.target.model import Target

BLOCK_ELEMENTS = 2048  # of a pointwise kernel's block: four vectors of f32 for each of 128 threads
SIDE = 32  # of a transposing tile: both sides then fill whole memory sectors
ROW_ELEMENTS = 2048  # reduced elements of a block: short rows share one
COLUMNS = 64  # columns of a block that reduces across memory
MATRIX, DEEP = 128, 32  # tile of a contraction: rows, columns; terms
GENERIC = (16, 32, 8)  # the same without an instruction


@dataclass(frozen=True)
class Automatic:
    """Constraints, and why each of them."""

    constraints: tuple[Constraint, ...]
    reasons: tuple[str, ...]


def choose_constraints(
    graph: Graph, target: Target, coordinates: AbstractSet[str] = frozenset()
) -> Automatic:
    """Constraints for a graph of known sizes.

    `coordinates` are axes that only reads at other coordinates go along: no loop runs on them.
    """
    along = [Tiling(a, 1) for a in sorted(coordinates)]
    axes = [a for a in graph.axes if a not in coordinates]
    sizes = {a: graph.axes[a].const for a in axes}
    contracts = [op for op in ops.walk(graph.body) if isinstance(op, ops.Contract)]
    reduced = {op.axis for op in ops.walk(graph.body) if isinstance(op, ops.ReduceOp)}
    if contracts:
        found = _contraction(graph, contracts[0], sizes, target)
    elif reduced:
        found = _reduction(graph, reduced, sizes)
    else:
        found = _pointwise(graph, sizes)
    return Automatic((*along, *found.constraints), found.reasons)


# ---------------------------------------------------------------- contractions


def _contraction(
    graph: Graph, op: ops.Contract, sizes: Mapping[str, int], target: Target
) -> Automatic:
    lhs, rhs = graph.by_id[op.lhs].type, graph.by_id[op.rhs].type
    row = [a for a in lhs.axes if a not in rhs.axes][-1]
    column = [a for a in rhs.axes if a not in lhs.axes][-1]
    has_atom = any(
        (a.a_dtype, a.b_dtype, a.d_dtype) == (lhs.dtype, rhs.dtype, op.type.dtype)
        for a in target.mma_atoms
    ) and lhs.dtype.bits < 32  # fmt: skip
    k = op.contracted[-1]
    constraints: list[Constraint]
    if has_atom:
        m, n = (_matrix_tile(sizes[a]) for a in (row, column))
        constraints = [Workgroup(row, m, 0), Workgroup(column, n, 1), Tiling(k, DEEP)]
        constraints += [Wave(a, t // 2) for a, t in ((row, m), (column, n))]
        reason = (
            f"tiles of {m} by {n} by {DEEP}, four warps: the operands' rows fill an instruction"
        )
    else:
        m, n, deep = GENERIC
        constraints = [Workgroup(row, m, 0), Workgroup(column, n, 1), Tiling(k, deep)]
        reason = f"tiles of {m} by {n}: products in registers, no instruction fits"
    others = [a for a in op.type.axes if a not in (row, column)]
    constraints += [Workgroup(a, 1, 2 + i) for i, a in enumerate(others)]
    reasons = [f"contraction: {reason}"]
    reasons += [f"{a} is a batch: one element of it a block" for a in others]
    return Automatic(tuple(constraints), tuple(reasons))


def _matrix_tile(size: int) -> int:
    """128, or the next smaller tile that a short side fills."""
    for tile in (32, 64):
        if size <= tile:
            return tile
    return MATRIX


# ---------------------------------------------------------------- reductions


def _reduction(graph: Graph, reduced: AbstractSet[str], sizes: Mapping[str, int]) -> Automatic:
    kept = [a for a in sizes if a not in reduced]
    fast = _fastest(graph, sizes)
    terms = prod(sizes[a] for a in reduced)
    if fast is None or fast in reduced or not kept:
        rows = max(1, ROW_ELEMENTS // terms) if terms < ROW_ELEMENTS else 1
        inner = _by_stride(graph, kept)
        tiles = _fill(inner, sizes, rows)
        reason = f"reduction along memory: {prod(tiles.values())} rows of {terms} a block"
    else:
        tiles = dict.fromkeys(kept, 1)
        tiles[fast] = min(COLUMNS, _power_of_two(sizes[fast]))
        reason = f"reduction across memory: {tiles[fast]} neighbouring columns a block"
    return Automatic(_blocks(tiles), (reason,))


# ---------------------------------------------------------------- element by element


def _pointwise(graph: Graph, sizes: Mapping[str, int]) -> Automatic:
    fast = _fastest(graph, sizes)
    others = {
        contiguous_axis(m) for m in graph.memories if m.type.axes
    } - {fast}  # fmt: skip
    crossing = [a for a in others if sizes.get(a, 1) > 1 and _crosses(graph, a, fast)]
    if fast is not None and crossing:
        across = max(crossing, key=lambda a: sizes[a])
        tiles = dict.fromkeys(sizes, 1)
        tiles[fast] = min(SIDE, _power_of_two(sizes[fast]))
        tiles[across] = min(SIDE, _power_of_two(sizes[across]))
        reason = f"transpose: square tiles of {fast} and {across}, each contiguous somewhere"
    else:
        tiles = _fill(_by_stride(graph, list(sizes)), sizes, BLOCK_ELEMENTS)
        reason = f"pointwise: {prod(tiles.values())} neighbouring elements a block"
    return Automatic(_blocks(tiles), (reason,))


def _crosses(graph: Graph, axis: str, fast: str | None) -> bool:
    """Whether a tensor that has both axes is contiguous along the other one."""
    return any(
        fast in m.type.axes and axis in m.type.axes and contiguous_axis(m) == axis
        for m in graph.memories
    )


def _fill(axes: Sequence[str], sizes: Mapping[str, int], elements: int) -> dict[str, int]:
    """Powers of two whose product is about `elements`, the first axes first."""
    tiles: dict[str, int] = {}
    left = elements
    for axis in axes:
        tiles[axis] = min(_power_of_two(sizes[axis]), 1 << (max(1, left).bit_length() - 1))
        left //= tiles[axis]
    return tiles


def _blocks(tiles: Mapping[str, int]) -> tuple[Constraint, ...]:
    return tuple(Workgroup(axis, tile, i) for i, (axis, tile) in enumerate(tiles.items()))


def _by_stride(graph: Graph, axes: Sequence[str]) -> list[str]:
    """From the axis whose elements lie closest in memory to the one farthest apart."""
    steps = {a: [1 << 62] for a in axes}
    for memory in graph.memories:
        for axis, stride in zip(memory.type.axes, memory.strides or (), strict=False):
            if axis in steps and stride.is_const:
                steps[axis].append(stride.const)
    return sorted(axes, key=lambda a: min(steps[a]))


def _fastest(graph: Graph, sizes: Mapping[str, int]) -> str | None:
    """The axis that is contiguous in most of the elements that the kernel moves."""
    weight = dict.fromkeys(sizes, 0)
    for memory in graph.memories:
        axis = contiguous_axis(memory) if memory.type.axes else None
        if axis in weight:
            weight[axis] += prod(sizes.get(a, 1) for a in memory.type.axes)
    return max(weight, key=lambda a: weight[a], default=None)


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()
