"""How long a planned kernel takes, where it is one matrix product."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from math import prod

from tilewright.graph import ops
from tilewright.graph.ops import Contract, Graph
from tilewright.schedule.grid import GridPlace, GridPlan, visits
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
    roles = plan.roles
    parts = roles.parts if roles else 1
    stream = roles.stream if roles else None
    consumers = roles.consumers if roles else max(1, plan.warps * plan.warp_size // WARPGROUP)
    made = Candidate(
        _tile(down),
        _tile(across),
        plan.axes[how.k].tile,
        plan.stages,
        consumers,
        plan.grid.cluster // parts,
        stream is None and any(plan.grid.place(leaf) is GridPlace.LOOP for leaf in plan.grid.order),
        _group(plan.grid, rows, target.multiprocessors),
        parts,
        stream=None if stream is None else (stream.tiles, stream.blocks),
    )
    pingpong = roles is not None and roles.pingpong
    return made if atom is None else replace(made, scope=atom.scope, pingpong=pingpong)


def _tile(axis: AxisPlan) -> int:
    return axis.block_tile or axis.tile


def _group(grid: GridPlan, rows: str, blocks: int) -> int:
    """How many rows of tiles the blocks that run first visit."""
    first = islice(visits(grid), blocks)
    return max(1, len({visit.tile[rows] for visit in first if rows in visit.tile}))
