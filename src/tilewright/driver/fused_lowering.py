"""A kernel of a fusion, planned by the policy and lowered, with fewer registers where it must."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.diagnostics import ResourceError
from tilewright.driver.kept import Proven
from tilewright.driver.pipeline import proved
from tilewright.graph.ops import Graph
from tilewright.kernel.ops import Kernel
from tilewright.kernel.pressure import register_estimate
from tilewright.lower.lowering import lower
from tilewright.lower.obligations import raise_first_refuted
from tilewright.mapping.obligations import tile_obligations
from tilewright.schedule.auto import MOST_RELIEF, Automatic, choose_constraints
from tilewright.schedule.plan import Plan
from tilewright.schedule.policy import make_plan
from tilewright.schedule.tensors import declare
from tilewright.target.model import Target

Strides = Mapping[str, tuple[int, ...]]


def proven(
    graph: Graph, target: Target, strides: Strides, alignments: Mapping[str, int]
) -> tuple[Proven, tuple[Automatic, Plan]]:
    """The kernel with its proofs, and how it was planned. Refuted obligations are raised."""
    automatic, plan, lowered = lowered_with_relief(graph, target, strides, alignments)
    planned = tile_obligations(graph, plan, target)
    raise_first_refuted(planned)
    kernel, proofs = proved(graph, lowered, target)
    return Proven(kernel, (*planned, *proofs)), (automatic, plan)


def lowered_with_relief(
    graph: Graph, target: Target, strides: Strides, alignments: Mapping[str, int]
) -> tuple[Automatic, Plan, Kernel]:
    """Plan and lower, with smaller shares of a thread where the first choice fills it up."""
    declared = declare(graph, strides, alignments)
    for relief in range(MOST_RELIEF + 1):
        automatic = choose_constraints(graph, target, relief, declared)
        plan = make_plan(graph, automatic.constraints, target, declared=declared)
        try:
            lowered = lower(graph, plan, target, strides, alignments)
        except ResourceError:
            if relief == MOST_RELIEF:
                raise
            continue
        room = target.registers_per_thread * 7 // 8  # addresses and scratch take the rest
        if relief == MOST_RELIEF or register_estimate(lowered) <= room:
            return automatic, plan, lowered
    raise RuntimeError("no attempt was made")
