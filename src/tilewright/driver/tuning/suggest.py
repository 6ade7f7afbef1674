"""Configs for a matrix product whose tile sizes are symbols: those that the model ranks first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.base.diagnostics import CallError, UnsupportedError
from tilewright.driver.tuning.config import Config
from tilewright.graph import ops
from tilewright.graph.ops import Contract, Graph
from tilewright.lang.constraints import HardwareConstraint, WaveConstraint
from tilewright.lang.program import Program, trace_program
from tilewright.lang.symbols import Size
from tilewright.schedule.forecast import problem_of
from tilewright.schedule.model import Candidate, Problem, candidates, rank
from tilewright.target.model import Target

if TYPE_CHECKING:
    from tilewright.driver.kernel import TileKernel

MOST = 16  # of the model's tiles
PANEL = 32  # columns: wider tiles are multiples of them
Tiles = tuple[int, int, int]  # of rows, columns and terms
Options = tuple[tuple[str, Any], ...]  # of HardwareConstraint
# For any instruction. The first one is trusted.
PLAIN: tuple[Tiles, ...] = (
    (64, 64, 32), (128, 128, 32), (128, 64, 32), (64, 128, 32), (32, 64, 32),
)  # fmt: skip


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
    plain = [(tile, ()) for tile in PLAIN]
    plans = dict.fromkeys((*plain, *_ranked(problem_of(graph, op, *axes[:2]), target)))
    return tuple(
        Config(dict(zip(names, tile, strict=True)), **dict(options)) for tile, options in plans
    )


def _ranked(problem: Problem, target: Target) -> list[tuple[Tiles, Options]]:
    """The model's tiles, and what else makes its plans."""
    try:
        ranked = rank(problem, candidates(problem, target, pingpong=True), target)
    except UnsupportedError:  # a target without figures, or without such instructions
        return []
    found: dict[tuple[Tiles, Options], None] = {}
    for one in (r.candidate for r in ranked):
        if one.tile_n % PANEL == 0 or one.tile_n < PANEL:
            down, across = (one.tile_n, one.tile_m) if one.swapped else (one.tile_m, one.tile_n)
            found.setdefault(((down, across, one.tile_k), _options(one)))
    return list(found)[:MOST]


def _options(plan: Candidate) -> Options:
    """What differs from the policy's own choice."""
    found: list[tuple[str, Any]] = []
    if plan.cluster > 1:
        found.append(("cluster", plan.cluster))
    if plan.pingpong:
        found.append(("pingpong", True))
    if plan.split_k > 1:
        found.append(("split_k", plan.split_k))
    if plan.stream is not None:
        found.append(("stream_k", plan.stream))
    return tuple(found)


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
