"""Blocks of a cluster that share the terms of one tile of a product.

Each multiplies its turns of the steps for the whole tile; then every block that owns a part of the
columns gets, from all others, their sums of it, adds them in the order of their ranks, and goes on
with that part as with a tile of its own. All blocks own one where the columns suffice. There are
more blocks than tiles, so few tiles keep the device busy; the result does not depend on which
block is first.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.blocks import combined_axes
from tilewright.schedule.grid import GridPlace
from tilewright.schedule.owners import owners_of
from tilewright.schedule.plan import ContractPlan, Plan, Roles
from tilewright.target.model import MmaAtom, Target

WORD = 4  # bytes of a sum
# What needs an operand's elements at the same coordinates only, or along the axes it combines.
_LOCAL = (
    ops.Constant, ops.ScalarRead, ops.Index, ops.Extent, ops.ReadOp, ops.WriteOp, ops.Elementwise,
    ops.CastOp, ops.View, ops.Contract, ops.ReduceOp, ops.Param, ops.Iterate, ops.Result,
)  # fmt: skip


def in_parts(
    plan: Plan, graph: Graph, count: int, space: tuple[int, int], target: Target
) -> Plan | str:
    """The plan with `count` blocks to each tile, or why they cannot share it.

    `space` are the bytes of shared memory for the ring and for the parts of the sums, and those
    of one slot of the ring.
    """
    roles = plan.roles
    if roles is None:
        return "warps have no roles"
    if roles.pingpong:
        return "the warpgroups have tiles of their own"
    contract = plan.contracts[roles.product]
    problem = sum_problem(graph, roles) or _program_problem(graph, contract.n or "")
    if problem := problem or _grid_problem(plan, count, target):
        return problem
    columns = plan.axes[contract.n or ""]
    owners = owners_of(columns.tile, count)
    atom = _narrow(contract, columns.tile // owners, target)
    if atom is None:
        return f"no instruction has {columns.tile // owners} columns"
    part = prod(plan.axes[a].tile for a in (contract.m or "", columns.axis)) // owners * WORD
    room, slot = space
    stages = min(plan.stages, (room - (count - 1) * part) // slot)
    if stages < 2:
        return f"shared memory holds no ring beside {count - 1} parts of {part} bytes"
    terms = plan.axes[contract.k]
    axes = {
        **plan.axes,
        columns.axis: replace(columns, tile=columns.tile // owners, parts=owners),
        terms.axis: replace(terms, parts=count),
    }
    reason = f"{contract.reason}; {count} blocks share the terms of a tile"
    if owners < count:
        reason += f", {owners} own a part of it"
    return replace(
        plan,
        axes=axes,
        grid=plan.grid.in_parts(count, owners),
        contracts={roles.product: replace(contract, atom=atom.name, reason=reason)},
        roles=replace(roles, parts=count, owners=owners, instruction=contract.atom or ""),
        stages=stages,
    )


def whole(plan: Plan) -> Plan:
    """The plan of the loop: for the tile that the blocks of a cluster share."""
    roles = plan.roles
    if roles is None or roles.parts == 1:
        return plan
    contract = plan.contracts[roles.product]
    columns = plan.axes[contract.n or ""]
    tile = columns.tile * columns.parts
    return replace(
        plan,
        axes={**plan.axes, columns.axis: replace(columns, tile=tile, parts=1)},
        contracts={roles.product: replace(contract, atom=roles.instruction)},
    )


def sum_problem(graph: Graph, roles: Roles) -> str | None:
    """Sums of parts are sums of the whole where the loop adds products onto zero, and no more."""
    loop, product = graph.by_id[roles.loop], graph.by_id[roles.product]
    if not isinstance(loop, ops.Iterate) or not isinstance(product, ops.Contract):
        return "there is no loop over a product"
    alone = loop.results == (product.id,) and product.acc in loop.params
    if not alone or product.contracted != (loop.axis,):
        return "the loop does more than add up a product"
    start = graph.by_id[loop.inits[0]]
    if not (isinstance(start, ops.Constant) and start.value == 0):
        return "the sum does not start at zero"
    if product.type.dtype.bytes != WORD:
        return f"sums of {product.type.dtype} have not {WORD} bytes"
    return None


def _program_problem(graph: Graph, columns: str) -> str | None:
    """Why a block cannot go on with its part of the columns alone."""
    if other := next((op for op in ops.walk(graph.body) if not isinstance(op, _LOCAL)), None):
        return f"{type(other).__name__.lower()} %{other.id} may need elements of other blocks"
    if columns in combined_axes(graph):
        return f"the program combines elements along {columns}, of which each block gets a part"
    return None


def _grid_problem(plan: Plan, count: int, target: Target) -> str | None:
    if count > target.max_cluster:
        return f"{target.name} has clusters of {target.max_cluster} blocks, not {count}"
    places = {plan.grid.place(leaf) for leaf in plan.grid.order}
    if GridPlace.CLUSTER in places:
        return "the cluster's blocks have tiles of their own"
    if GridPlace.LOOP in places:
        return "blocks go on to further tiles"
    return None


def _narrow(contract: ContractPlan, columns: int, target: Target) -> MmaAtom | None:
    """The instruction with so many columns whose results are laid out like the wide one's."""
    wide = target.atom(contract.atom or "")
    return next(
        (
            a for a in target.mma_atoms
            if wide is not None and a.n == columns
            and (a.scope, a.a_source, a.m, a.k) == (wide.scope, wide.a_source, wide.m, wide.k)
            and (a.a_dtype, a.b_dtype, a.d_dtype) == (wide.a_dtype, wide.b_dtype, wide.d_dtype)
        ),
        None,
    )  # fmt: skip
