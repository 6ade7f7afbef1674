"""How long a planned kernel takes, where it is one matrix product."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from tilewright.graph import ops
from tilewright.graph.ops import Contract, Graph
from tilewright.schedule.grid import GridPlace, GridPlan, Split
from tilewright.schedule.model import WARPGROUP, Candidate, Problem, Ranked, predict
from tilewright.schedule.plan import AxisPlan, ContractPlan, Plan
from tilewright.target.model import Target


def forecast(graph: Graph, plan: Plan, target: Target) -> Ranked | None:
    """The predicted time of a plan.

    None where the model does not apply: no product or several, one without an instruction, open
    sizes, or a target that has no figures for the operands.
    """
    found = [op for op in ops.walk(graph.body) if isinstance(op, Contract)]
    if len(found) != 1 or not all(extent.is_const for extent in graph.axes.values()):
        return None
    op = found[0]
    how = plan.contracts[op.id]
    operand = graph.by_id[op.lhs].type.dtype
    known = target.machine is not None and target.machine.rate(operand.bits) is not None
    if not known or how.m is None or how.n is None or how.atom is None:
        return None
    problem = problem_of(graph, op, how.m, how.n)
    return predict(problem, _candidate(plan, how, how.m, how.n, target), target)


def problem_of(graph: Graph, op: Contract, rows: str, columns: str) -> Problem:
    """A product of known sizes, in numbers."""
    sizes = {axis: extent.const for axis, extent in graph.axes.items()}
    memories = {memory.name: memory for memory in graph.memories}
    written = (memories[w.memory].type for w in ops.walk(graph.body) if isinstance(w, ops.WriteOp))
    result = next((t.dtype for t in written if {rows, columns} <= set(t.axes)), op.type.dtype)
    return Problem(
        sizes[rows],
        sizes[columns],
        prod(sizes[axis] for axis in op.contracted),
        prod(sizes[axis] for axis in op.type.axes if axis not in (rows, columns)),
        graph.by_id[op.lhs].type.dtype.bytes,
        result.bytes,
    )


def _candidate(
    plan: Plan, how: ContractPlan, rows: str, columns: str, target: Target
) -> Candidate:  # fmt: skip
    down, across = plan.axes[rows], plan.axes[columns]
    atom = target.atom(how.atom or "")
    parts = plan.roles.parts if plan.roles else 1
    made = Candidate(
        _tile(down),
        _tile(across),
        plan.axes[how.k].tile,
        plan.stages,
        max(1, plan.warps * plan.warp_size // WARPGROUP),
        plan.grid.cluster // parts,
        any(plan.grid.place(leaf) is GridPlace.LOOP for leaf in plan.grid.order),
        _group(plan.grid, rows, columns, target.multiprocessors),
        parts,
    )
    return made if atom is None else replace(made, scope=atom.scope)


def _tile(axis: AxisPlan) -> int:
    return axis.block_tile or axis.tile


def _group(grid: GridPlan, rows: str, columns: str, blocks: int) -> int:
    """How many rows of tiles are visited together."""
    for step in grid.steps:
        if isinstance(step, Split) and step.source == rows:
            return step.factor
        if isinstance(step, Split) and step.source == columns:
            return ceil(blocks / step.factor)
    fastest = next((leaf for leaf in reversed(grid.order) if leaf in (rows, columns)), columns)
    return max(1, grid.extents[rows].const) if fastest == rows else 1
