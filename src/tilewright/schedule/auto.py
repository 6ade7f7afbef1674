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
from tilewright.schedule.auto_grouped import choose_grouped
from tilewright.schedule.auto_products import choose_product
from tilewright.schedule.auto_stepped import choose_stepped
from tilewright.schedule.constraints import (
    Constraint,
    Hardware,
    Tiling,
    Wave,
    Workgroup,
    hardware_of,
    merged,
)  # fmt: skip
from tilewright.schedule.contiguity import contiguous_axis
from tilewright.schedule.held import held_axes
from tilewright.schedule.ragged import ragged_of
from tilewright.schedule.tensors import Declared, declare
from tilewright.target.model import Target

BLOCK_ELEMENTS = 2048  # of a pointwise kernel's block: four vectors of f32 for each of 128 threads
SIDE = 32  # of a transposing tile: both sides then fill whole memory sectors
ROW_ELEMENTS = 2048  # reduced elements of a block: short rows share one
COLUMNS = 64  # columns of a block that reduces across memory
DEEP = 32  # terms of a contraction's step
# A contraction's tile and warps, by rows and columns: with each relief a warp has half as much.
MATRIX = ((128, 128, 2, 2), (128, 128, 4, 2), (128, 64, 4, 2), (64, 64, 4, 2))
NARROWEST = 16  # rows and columns of a warp: no instruction takes more of either
GENERIC = (16, 32, 8)  # the same without an instruction
MOST_WARPS = 16  # of a block that is relieved
MOST_RELIEF = 3  # how often a thread's share may be halved


@dataclass(frozen=True)
class Automatic:
    """Constraints, and why each of them."""

    constraints: tuple[Constraint, ...]
    reasons: tuple[str, ...]


def choose_constraints(
    graph: Graph, target: Target, relief: int = 0, declared: Declared | None = None, *,
    asked: Hardware | None = None,
) -> Automatic:  # fmt: skip
    """Constraints for a graph of known sizes.

    With each step of `relief`, up to `MOST_RELIEF`, a thread holds about half as much. `declared`
    has the tensors' strides and alignments, which decide what the copy engine can move. A
    product's tiles suit what the author `asked` of the hardware.
    """
    held = held_axes(graph)  # no loop runs along others: reads go there by coordinates
    sizes = {a: n.const for a, n in graph.axes.items() if a in held}
    contracts = [op for op in ops.walk(graph.body) if isinstance(op, ops.Contract)]
    reduced = {op.axis for op in ops.walk(graph.body) if isinstance(op, ops.ReduceOp | ops.Scan)}
    if contracts:
        known = declared or declare(graph)
        stepped = choose_stepped(graph, contracts[0], sizes, target, known)
        found = stepped and Automatic(stepped[0], (stepped[1],))
        found = found or _pipelined(graph, contracts[0], target, relief, known, asked)
        found = found or _grouped(graph, contracts[0], target, known)
        found = found or _contraction(graph, contracts[0], sizes, target, relief)
    elif reduced:
        found = _reduction(graph, reduced, sizes, relief)
    else:
        found = _pointwise(graph, sizes, relief)
    why = (f"a thread's share is halved {relief} times: registers",) if relief else ()
    return Automatic(found.constraints, (*found.reasons, *why))


def completed(
    graph: Graph, constraints: Sequence[Constraint], target: Target, declared: Declared
) -> tuple[Constraint, ...]:
    """An author's constraints, with chosen ones where a product of known sizes has none at all."""
    found = [op for op in ops.walk(graph.body) if isinstance(op, ops.Contract)]
    products = bool(found) and all(_multiplies_matrices(graph, op) for op in found)
    known = all(extent.is_const for extent in graph.axes.values())
    if not products or not known or any(not isinstance(c, Hardware) for c in constraints):
        return tuple(constraints)
    asked = hardware_of(constraints) if constraints else None
    chosen = choose_constraints(graph, target, declared=declared, asked=asked)
    counted = asked is not None and asked.waves_per_block is not None  # the author's warps
    kept = tuple(c for c in chosen.constraints if not (counted and isinstance(c, Wave)))
    return merged(kept, constraints)


def _multiplies_matrices(graph: Graph, op: ops.Contract) -> bool:
    """Whether each operand has an axis that the other lacks, or rows that groups have of it."""
    lhs, rhs = (set(graph.by_id[n].type.axes) for n in (op.lhs, op.rhs))
    return bool(lhs - rhs and rhs - lhs) or ragged_of(graph, op) is not None


# ---------------------------------------------------------------- contractions


def _pipelined(
    graph: Graph, op: ops.Contract, target: Target, relief: int, declared: Declared,
    asked: Hardware | None,
) -> Automatic | None:  # fmt: skip
    found = choose_product(graph, op, target, relief, declared, asked)
    return None if found is None else Automatic(found[0], (f"contraction: {found[1]}",))


def _grouped(
    graph: Graph, op: ops.Contract, target: Target, declared: Declared
) -> Automatic | None:
    found = choose_grouped(graph, op, target, declared)
    return None if found is None else Automatic(found[0], (found[1],))


def _contraction(
    graph: Graph, op: ops.Contract, sizes: Mapping[str, int], target: Target, relief: int
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
        rows, columns, down, along = MATRIX[relief]
        m, n = _fitting(sizes[row], rows), _fitting(sizes[column], columns)
        down, along = min(down, m // NARROWEST), min(along, n // NARROWEST)
        constraints = [Workgroup(row, m, 0), Workgroup(column, n, 1), Tiling(k, DEEP)]
        constraints += [Wave(row, m // down), Wave(column, n // along)]
        reason = f"tiles of {m} by {n} by {DEEP} for {down} by {along} warps"
    else:
        m, n, deep = GENERIC
        constraints = [Workgroup(row, m, 0), Workgroup(column, n, 1), Tiling(k, deep)]
        reason = f"tiles of {m} by {n}: products in registers, no instruction fits"
    others = [a for a in op.type.axes if a not in (row, column)]
    constraints += [Workgroup(a, 1, 2 + i) for i, a in enumerate(others)]
    reasons = [f"contraction: {reason}"]
    reasons += [f"{a} is a batch: one element of it a block" for a in others]
    return Automatic(tuple(constraints), tuple(reasons))


def _fitting(size: int, most: int) -> int:
    """The largest tile, or the next smaller one that a short side fills."""
    return min(most, max(32, _power_of_two(size)))


# ---------------------------------------------------------------- reductions


def _reduction(
    graph: Graph, reduced: AbstractSet[str], sizes: Mapping[str, int], relief: int
) -> Automatic:
    kept = [a for a in sizes if a not in reduced]
    fast = _fastest(graph, sizes)
    terms = prod(sizes[a] for a in reduced)
    step = ROW_ELEMENTS >> relief
    if fast is None or fast in reduced or not kept:
        tiles = _fill(_by_stride(graph, kept), sizes, max(1, step // terms))
        reason = f"reduction along memory: {prod(tiles.values())} rows of {terms} a block"
    else:
        tiles = dict.fromkeys(kept, 1)
        tiles[fast] = min(COLUMNS, _power_of_two(sizes[fast]))
        reason = f"reduction across memory: {tiles[fast]} neighbouring columns a block"
    longest = max(reduced, key=lambda a: sizes[a])
    steps = (Tiling(longest, step),) if relief and sizes[longest] > step else ()
    return Automatic((*_blocks(tiles), *steps), (reason,))


# ---------------------------------------------------------------- element by element


def _pointwise(graph: Graph, sizes: Mapping[str, int], relief: int) -> Automatic:
    fast = _fastest(graph, sizes)
    others = {contiguous_axis(m) for m in graph.memories if m.type.axes} - {fast}
    crossing = [a for a in others if sizes.get(a, 1) > 1 and _crosses(graph, a, fast)]
    if fast is not None and crossing:
        across = max(crossing, key=lambda a: sizes[a])
        tiles = {fast: min(SIDE, _power_of_two(sizes[fast]))}
        tiles[across] = min(SIDE, _power_of_two(sizes[across]))
        tiles |= {a: 1 for a in sizes if a not in tiles}
        reason = f"transpose: square tiles of {fast} and {across}, each contiguous somewhere"
    else:
        elements = BLOCK_ELEMENTS >> max(0, relief - 1)
        tiles = _fill(_by_stride(graph, list(sizes)), sizes, elements)
        reason = f"pointwise: {prod(tiles.values())} neighbouring elements a block"
    first = next(iter(tiles.values()), 1)
    warps = (Hardware(waves_per_block=(min(MOST_WARPS, first),)),) if relief and first > 1 else ()
    return Automatic((*_blocks(tiles), *warps), (reason,))


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
