"""Configs for a matrix product whose tile sizes are symbols: those that the model ranks first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.base.diagnostics import CallError, UnsupportedError
from tilewright.driver.tuning.config import Config
from tilewright.graph import ops
from tilewright.graph.ops import Contract, Graph
from tilewright.lang.constraints import HardwareConstraint, WaveConstraint
from tilewright.lang.program import Program, trace_program
from tilewright.lang.symbols import Size
from tilewright.schedule.forecast import problem_of
from tilewright.schedule.model import Problem, candidates, rank
from tilewright.target.model import Target

if TYPE_CHECKING:
    from tilewright.driver.kernel import TileKernel

Tiles = tuple[int, int, int, int]  # of rows, columns and terms; the blocks that share the terms
MOST = 16  # of the model's tiles
PANEL = 32  # columns: wider tiles are multiples of them
# For any instruction. The first one is trusted.
PLAIN = tuple((*tile, 32, 1) for tile in ((64, 64), (128, 128), (128, 64), (64, 128), (32, 64)))


def suggested(kernel: TileKernel, sizes: Mapping[str, int], target: Target) -> tuple[Config, ...]:
    """Configs for these sizes of the axes, a modest one first.

    CallError where the kernel is not one matrix product, or where its tile sizes are no symbols.
    """
    graph = _traced(kernel, sizes, target)
    found = [op for op in ops.walk(graph.body) if isinstance(op, Contract)]
    if len(found) != 1:
        raise _refused(kernel, f"it has {len(found)} matrix products")
    op = found[0]
    axes = _axes(graph, op)
    if axes is None:
        raise _refused(kernel, "an operand has no axis of its own, or several")
    symbols = _tile_symbols(kernel.program)
    missing = [axis for axis in axes if axis not in symbols]
    if missing:
        raise _refused(kernel, f"no symbol is the tile size of {' and '.join(missing)}")
    names = [symbols[axis] for axis in axes]
    plans = dict.fromkeys((*PLAIN, *_ranked(problem_of(graph, op, *axes[:2]), target)))
    return tuple(_config(names, plan) for plan in plans)


def _config(names: Sequence[str], plan: Tiles) -> Config:
    *tiles, split = plan
    symbols = dict(zip(names, tiles, strict=True))
    return Config(symbols, split_k=split) if split > 1 else Config(symbols)


def _ranked(problem: Problem, target: Target) -> list[Tiles]:
    """The model's tiles of the problem's rows, columns and terms, and how many share the terms."""
    try:
        ranked = rank(problem, candidates(problem, target), target)
    except UnsupportedError:  # a target without figures, or without such instructions
        return []
    found: dict[Tiles, None] = {}
    for one in (r.candidate for r in ranked):
        if one.cluster == 1 and (one.tile_n % PANEL == 0 or one.tile_n < PANEL):
            down, across = (one.tile_n, one.tile_m) if one.swapped else (one.tile_m, one.tile_n)
            found.setdefault((down, across, one.tile_k, one.split_k))
    return list(found)[:MOST]


def _axes(graph: Graph, op: Contract) -> tuple[str, str, str] | None:
    """Rows, columns and terms of a product."""
    lhs, rhs = graph.by_id[op.lhs].type.axes, graph.by_id[op.rhs].type.axes
    rows, columns = [a for a in lhs if a not in rhs], [a for a in rhs if a not in lhs]
    if len(rows) != 1 or len(columns) != 1 or len(op.contracted) != 1:
        return None
    return rows[0], columns[0], op.contracted[0]


def _tile_symbols(program: Program) -> dict[str, str]:
    """The symbol that is the tile size of each axis, where it is one."""
    return {
        c.axis.name: c.tile.name
        for c in program.constraints
        if not isinstance(c, HardwareConstraint | WaveConstraint)
        and isinstance(c.tile, Size)
        and c.tile.op == "symbol"
        and c.tile != c.axis
    }


def _traced(kernel: TileKernel, sizes: Mapping[str, int], target: Target) -> Graph:
    given = kernel.specialisation(target.name, {**sizes})
    return trace_program(kernel.program, given.sizes, given.spaces)


def _refused(kernel: TileKernel, why: str) -> CallError:
    return CallError(
        f"no configs can be suggested for {kernel.program.name}: {why}",
        span=kernel.program.span,
        expected="a matrix product with symbols as tile sizes: WorkgroupConstraint(M, BLOCK_M, 0)",
        mend="give configs=[tw.Config({BLOCK_M: 128}), ..]",
    )
