"""From a graph and a plan to kernel IR."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.ops import Graph
from tilewright.kernel.interleave import interleave
from tilewright.kernel.ops import Barrier, Kernel, Scalar
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.barriers import insert_barriers
from tilewright.lower.builder import Builder
from tilewright.lower.grid import place_grid
from tilewright.lower.loops import emit_effects
from tilewright.lower.own_terms import place_own_terms
from tilewright.lower.parts import owned
from tilewright.lower.ragged import place_ragged
from tilewright.lower.roles import frame, meeting
from tilewright.lower.shared import place_shared
from tilewright.schedule.plan import Plan
from tilewright.schedule.tensors import declare
from tilewright.target.model import Target


def lower(
    graph: Graph,
    plan: Plan,
    target: Target,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    alignments: Mapping[str, int] | None = None,
    multiples: Mapping[str, int] | None = None,
) -> Kernel:
    """Build the kernel. `strides` (elements) and `alignments` (bytes) specialise tensors."""
    declared = declare(graph, strides, alignments, multiples)
    b = Builder(graph, plan, target, declared)
    grid = place_grid(b)
    if plan.ragged is not None:
        grid = place_ragged(b, grid, plan.ragged)
    if plan.own_terms is not None:
        grid = place_own_terms(b, grid, plan.own_terms)
    emit_effects(b, graph.body)
    body, roles = owned(b, tuple(b.scopes[0].body)), plan.roles
    if roles is None:
        whole = (*b.decodes, *grid.head, *grid.wrap(body))
    else:
        whole = frame(b, roles, grid, body)
    kernel = Kernel(
        name=graph.name,
        target=target.name,
        warp_size=plan.warp_size,
        warps=WARPGROUP_WARPS * (roles.consumers + 1) if roles else plan.warps,
        grid=grid.factors,
        symbols=tuple(b.symbols.values()),
        tensors=tuple(b.tensors.values()),
        scalars=tuple(Scalar(s.name, s.dtype) for s in graph.scalars),
        shared=tuple(b.shared),
        registers=tuple(b.registers),
        body=whole,
        cluster=grid.cluster,
        phases=tuple(b.phases),
        maps=tuple(b.maps),
        exchanges=tuple(b.exchanges),
    )
    meet = Barrier if roles is None else meeting(b)
    ordered = insert_barriers(kernel, frozenset(b.managed), meet)
    return interleave(place_shared(ordered, target, graph.span))
