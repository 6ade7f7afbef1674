"""The plan of a contraction with warp roles: digits, slots of the ring, and the tiles' order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.base.diagnostics import ConstraintError
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.poly.expr import Expr
from tilewright.schedule.constraints import Hardware
from tilewright.schedule.contiguity import contiguity_order
from tilewright.schedule.grid import GridPlace, GridPlan, Split
from tilewright.schedule.plan import AxisPlan, Plan, Staging
from tilewright.schedule.roles import Pipelined, Shape, choose_roles
from tilewright.schedule.tensors import Declared
from tilewright.target.model import Target

PANEL_BYTES = 128 * 64  # of 64 rows of an output on their way through shared memory
PANELS = 2  # of each consumer: one is filled while the copy engine reads the other
RESERVED = 1024  # bytes for barriers and alignment
MOST_STAGES = 8

Arrange = Callable[[GridPlan], GridPlan]


def plan_roles(
    graph: Graph,
    shape: Shape,
    hardware: Hardware,
    target: Target,
    declared: Declared,
    arrange: Arrange | None,
) -> Plan | str:
    """The plan of a graph that suits warp roles, or why it does not suit them.

    ConstraintError where the author asked for roles and there can be none.
    """
    found = choose_roles(graph, shape, hardware, target, declared)
    if isinstance(found, Pipelined):
        plan = _plan(graph, shape, hardware, target, declared, arrange, found)
    else:
        plan = found
    if isinstance(plan, str) and hardware.specialize:
        raise ConstraintError(
            f"warps cannot have roles: {plan}",
            span=hardware.span,
            expected="a loop that multiplies tiles of two tensors, which the copy engine can move",
            mend="leave specialize out",
        )
    return plan


def _plan(
    graph: Graph,
    shape: Shape,
    hardware: Hardware,
    target: Target,
    declared: Declared,
    arrange: Arrange | None,
    found: Pipelined,
) -> Plan | str:
    contract, roles = found.contract, found.roles
    axes = {
        axis: _axis(axis, extent, shape, declared, found) for axis, extent in graph.axes.items()
    }
    rows, columns = contract.m or "", contract.n or ""
    slot = sum(
        axes[a].tile * found.tile_k * graph.by_id[n].type.dtype.bytes
        for a, n in zip((rows, columns), _operands(graph, found), strict=True)
    )
    room = target.shared_bytes - RESERVED - roles.consumers * PANELS * PANEL_BYTES
    stages = hardware.stages or min(MOST_STAGES, room // slot)
    if stages < 2:
        return f"shared memory holds {stages} slots of {slot} bytes"
    plain = GridPlan.plain({axis: axes[axis].blocks for axis in shape.tiles})
    grid = arrange(plain) if arrange else _raster(plain, axes, rows, columns, target)
    if problem := _ring_problem(grid, axes[contract.k].steps, stages):
        if arrange:
            return problem
        grid = plain
    reads = [op for op in ops.walk(graph.body) if isinstance(op, ops.ReadOp)]
    loop = graph.by_id[roles.loop]
    inside = loop.body if isinstance(loop, ops.Iterate) else ()
    return Plan(
        axes=axes,
        warps=4 * roles.consumers,
        warp_size=target.warp_size,
        order=contiguity_order(graph),
        grid=grid,
        contracts={roles.product: contract},
        staging={r.id: Staging.SHARED if r in inside else Staging.DIRECT for r in reads},
        stages=stages,
        roles=roles,
    )


def _operands(graph: Graph, found: Pipelined) -> tuple[int, int]:
    """The values that give rows and columns."""
    product = graph.by_id[found.roles.product]
    if not isinstance(product, ops.Contract):
        raise TypeError(f"%{product.id} is no contraction")
    pair = product.lhs, product.rhs
    return pair if found.contract.lhs_is_a else (pair[1], pair[0])


def _axis(axis: str, extent: Expr, shape: Shape, declared: Declared, found: Pipelined) -> AxisPlan:
    tile = shape.tiles.get(axis)
    symbol = declared.symbols.get(axis)
    multiple = extent.const if extent.is_const else symbol.multiple if symbol else 1
    if tile is None:
        reason = f"copied ahead in steps of {found.tile_k}"
        return AxisPlan(axis, extent, None, found.tile_k, 1, reason, multiple)
    reason = f"tiles of {tile}"
    return AxisPlan(axis, extent, tile, tile, found.warps.get(axis, 1), reason, multiple)


# ---------------------------------------------------------------- the order of the tiles


def _raster(
    plain: GridPlan, axes: Mapping[str, AxisPlan], rows: str, columns: str, target: Target
) -> GridPlan:
    """Persistent blocks through groups of rows or columns of tiles, so that operands stay in L2."""
    grid = plain
    best = _best_group(plain, axes, rows, columns, target.multiprocessors)
    if best is not None and best.factor > 1:
        grid = grid.swizzled(best.axis, best.over, best.factor)
    extents = plain.extents.values()
    if not all(e.is_const for e in (*extents, axes_steps(axes))):
        return grid
    count = 1
    for extent in extents:
        count *= extent.const
    if count <= target.multiprocessors:
        return grid
    return persistent(grid, target.multiprocessors)


def axes_steps(axes: Mapping[str, AxisPlan]) -> Expr:
    """The steps of the axis that no block divides."""
    return next(a.steps for a in axes.values() if a.block_tile is None)


def persistent(grid: GridPlan, blocks: int) -> GridPlan:
    """All tiles in one counter, which `blocks` blocks go through in turns."""
    whole = grid.order[0]
    for leaf in grid.order[1:]:
        merged = f"{whole}*{leaf}"
        grid = grid.merge(whole, leaf, merged)
        whole = merged
    return grid.split(whole, blocks, "turn", "rank").bind("turn", GridPlace.LOOP)


@dataclass(frozen=True, slots=True)
class _Group:
    """Visit `factor` tiles of `axis` for each tile of `over`."""

    axis: str
    over: str
    factor: int


def _best_group(
    plain: GridPlan, axes: Mapping[str, AxisPlan], rows: str, columns: str, blocks: int
) -> _Group | None:
    """The group for which the blocks that run together read the fewest rows and columns.

    It divides the tiles, so that no turn is empty; open extents are grouped with guards.
    """
    best: tuple[int, _Group] | None = None
    for axis, over in ((rows, columns), (columns, rows)):
        count = plain.extents[axis]
        factors = range(1, blocks + 1) if count.is_const else (8,)
        for factor in factors:
            if count.is_const and count.const % factor:
                continue
            cost = factor * axes[axis].tile + -(-blocks // factor) * axes[over].tile
            if best is None or cost < best[0]:
                best = cost, _Group(axis, over, factor)
    return best[1] if best else None


def _ring_problem(grid: GridPlan, steps: Expr, stages: int) -> str | None:
    """Why slots and phases cannot be told from a counter of turns and steps."""
    if all(grid.place(leaf) is not GridPlace.LOOP for leaf in grid.order):
        return None
    if not steps.is_const:
        return "a persistent kernel needs a known number of steps in a tile"
    if steps.const % (2 * stages) == 0:
        return None  # every tile leaves slots and phases as it found them
    extents = grid.all_extents()
    for step in grid.steps:
        if isinstance(step, Split) and grid.place(step.outer) is not GridPlace.LOOP:
            whole = extents[step.source]
            if not (whole.is_const and whole.const % step.factor == 0):
                return f"{step.factor} does not divide the tiles of {step.source}: turns are empty"
    return None
