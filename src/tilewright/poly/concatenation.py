"""Concatenation: block numbers of several grids, one after the other, as one range.

Kept apart from the other lemmas: launches check it too, and need no isl for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def starts_of(blocks: Sequence[int]) -> tuple[int, ...]:
    """The first block number of each grid."""
    return tuple(accumulate(blocks[:-1], initial=0)) if blocks else ()


def located(starts: Sequence[int], block: int) -> tuple[int, int]:
    """The grid that a block belongs to, the last one that starts at or before it, and its number
    there."""
    grid = max(i for i, start in enumerate(starts) if start <= block)
    return grid, block - starts[grid]


def concatenation_fault(starts: Sequence[int], blocks: Sequence[int], total: int) -> str | None:
    """Concatenation: ``block = starts[i] + own``, where i is the last grid with starts[i] <= block.

    Over block in [0, total) it gives each (i, own) with 0 <= own < blocks[i] exactly once. Side
    conditions: each grid has at least one block, the first starts at 0, each other one where the
    one before ends, and the last ends at `total`. What fails is said of one block.
    """
    if len(starts) != len(blocks):
        return f"{len(starts)} starts for {len(blocks)} grids"
    end = 0
    for grid, (start, count) in enumerate(zip(starts, blocks, strict=True)):
        if count < 1:
            return f"grid {grid} has {count} blocks"
        if start < end:
            last = blocks[grid - 1] - (end - start)
            return f"block {last} of grid {grid - 1} is run by nobody: grid {grid} starts there"
        if start > end:
            return _beyond(grid - 1, end, blocks)
        end = start + count
    if total > end:
        return _beyond(len(blocks) - 1, end, blocks)
    if total < end:
        return f"block {blocks[-1] - (end - total)} of grid {len(blocks) - 1} is run by nobody"
    return None


def _beyond(grid: int, block: int, blocks: Sequence[int]) -> str:
    if grid < 0:
        return f"block {block} belongs to no grid"
    return f"block {block} is block {blocks[grid]} of grid {grid}, which has {blocks[grid]}"
