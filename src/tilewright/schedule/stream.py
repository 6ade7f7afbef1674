"""Stream-K: blocks share all steps of the products of several tiles evenly.

A group of blocks goes through the steps of some tiles, one tile after the other. Each block has the
same number of them in a row, wherever tiles begin and end. The block with a tile's first step owns
the tile. Those with later steps of it leave their sums in global memory; the owner adds them in the
order of the steps, so the result does not depend on which block is first. All blocks are busy for
the same time, where whole tiles would leave some of them idle.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.graph.ops import Graph
from tilewright.poly.expr import Expr
from tilewright.schedule.grid import SHARER, GridPlace, GridPlan, Split
from tilewright.schedule.parts import sum_problem
from tilewright.schedule.plan import Plan, Stream
from tilewright.schedule.role_products import Multiplied
from tilewright.target.model import Target

MOST_SHARERS = 64  # blocks of a group: each is proved by itself


def streamed(
    plan: Plan, graph: Graph, found: Multiplied, shares: tuple[int, int], target: Target
) -> Plan | str:
    """The plan with each ``(tiles, blocks) = shares`` a group, or why they cannot be."""
    tiles, blocks = shares
    roles, steps = plan.roles, plan.axes[found.k].steps
    if roles is None:
        return "warps have no roles"
    if problem := sum_problem(graph, roles) or _problem(plan, steps, blocks):
        return problem
    if found.computed is not None:
        return "an operand is computed, not read"
    grid = in_groups(plan.grid, tiles, blocks)
    extents = grid.all_extents()
    count = prod(extents[d].const for d in grid.order if grid.place(d) is GridPlace.BLOCK)
    if count > target.multiprocessors:
        return f"{count} blocks wait for one another, but {target.multiprocessors} run at once"
    whole = steps.const
    stream = Stream(tiles, blocks, -(-tiles * whole // blocks), whole)
    contract = plan.contracts[roles.product]
    contracts = {roles.product: replace(contract, reason=f"{contract.reason}; {stream}")}
    return replace(plan, grid=grid, contracts=contracts, roles=replace(roles, stream=stream))


def _problem(plan: Plan, steps: Expr, blocks: int) -> str | None:
    if plan.roles is not None and plan.roles.pingpong:
        return "the warpgroups have tiles of their own"
    if (plan.roles is not None and plan.roles.parts > 1) or plan.grid.cluster > 1:
        return "the blocks of a cluster work together already"
    if any(plan.grid.place(leaf) is GridPlace.LOOP for leaf in plan.grid.order):
        return "blocks go on to further tiles already"
    if not all(e.is_const for e in (*plan.grid.extents.values(), steps)):
        return "the number of tiles, or of their steps, is not known"
    if not plan.grid.order:
        return "the output is not divided into tiles"
    if (split := plan.grid.uneven()) is not None:
        return empty_turns(split)
    if blocks > MOST_SHARERS:
        return f"groups of {blocks} blocks are larger than {MOST_SHARERS}"
    return None


def empty_turns(split: Split) -> str:
    """Why slots and phases cannot be told from a counter of turns and steps: some do nothing."""
    return f"{split.factor} does not divide the tiles of {split.source}: turns are empty"


def in_groups(grid: GridPlan, tiles: int, blocks: int) -> GridPlan:
    """All tiles in one counter, `tiles` of which a group of `blocks` blocks has in turn."""
    grid, whole = grid.merged()
    grid = grid.split(whole, tiles, "group", "turn").bind("turn", GridPlace.LOOP)
    rest = tuple(d for d in grid.order if d != "turn")
    return replace(
        grid,
        extents={**grid.extents, SHARER: Expr.of(blocks)},
        order=("turn", *rest, SHARER),
    )
