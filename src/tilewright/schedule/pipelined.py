"""The plan of a contraction with warp roles: digits, slots of the ring, and the tiles' order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from tilewright.base.diagnostics import ConstraintError
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.poly.expr import Expr
from tilewright.schedule.boxes import (
    MOST_PANELS,
    PANELS,
    ROW_BYTES,
    STRIP,
    contiguous_position,
    row_panels,
)
from tilewright.schedule.constraints import Hardware
from tilewright.schedule.contiguity import contiguity_order
from tilewright.schedule.grid import GridPlace, GridPlan, alternates
from tilewright.schedule.model import read_together
from tilewright.schedule.owners import owners_of
from tilewright.schedule.parts import in_parts
from tilewright.schedule.plan import AxisPlan, Plan, Roles, Staging
from tilewright.schedule.ragged import Ragged
from tilewright.schedule.roles import Pipelined, Shape, choose_roles
from tilewright.schedule.stream import empty_turns, streamed
from tilewright.schedule.strips import strips_of
from tilewright.schedule.tensors import Declared
from tilewright.target.model import Target

PANEL_BYTES = ROW_BYTES * STRIP  # of such rows on their way through shared memory, at the most
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
    if isinstance(plan, str) and (asked := _asked(hardware)):
        cannot, mend = asked
        raise ConstraintError(
            f"{cannot}: {plan}",
            span=hardware.span,
            expected="a loop that adds up a product of two tensors that the copy engine can move",
            mend=mend,
        )
    return plan


def _asked(hardware: Hardware) -> tuple[str, str] | None:
    """What an author who asked for roles cannot have without them, and how to mend that."""
    parts, streams = hardware.split_k or 1, hardware.stream_k
    if parts > 1:
        cannot = f"{parts} blocks cannot share the terms of a tile"
        return cannot, "leave split_k out, or change the tiles"
    if streams:
        cannot = f"{streams[1]} blocks cannot share the steps of {streams[0]} tiles"
        return cannot, "leave stream_k out, or change the tiles"
    if hardware.specialize:
        return "warps cannot have roles", "leave specialize out"
    return None


def _plan(
    graph: Graph,
    shape: Shape,
    hardware: Hardware,
    target: Target,
    declared: Declared,
    arrange: Arrange | None,
    found: Pipelined,
) -> Plan | str:
    roles, parts = found.roles, hardware.split_k or 1
    loop = _loop(graph, roles)
    axes = {
        axis: _axis(axis, extent, shape, declared, found) for axis, extent in graph.axes.items()
    }
    copied = {read.id for read, _ in found.copied}
    slot = sum(_tile_bytes(read, own, axes, found, declared) for read, own in found.copied)
    slot += sum(s.slot_bytes for s in strips_of(graph, loop, copied, axes, declared))
    panel = _panel_bytes(graph, axes, found, parts)
    kept = PANELS * panel * _output_kinds(graph) + _exchanged(graph, axes)
    room = target.shared_bytes - RESERVED - kept
    stages = hardware.stages or min(MOST_STAGES, room // slot)
    if stages < 2:
        return f"shared memory holds {stages} slots of {slot} bytes"
    grid = _grid(graph, shape, hardware, target, arrange, found, axes, stages)
    if isinstance(grid, str):
        return grid
    reads = [op for op in ops.walk(graph.body) if isinstance(op, ops.ReadOp)]
    plan = Plan(
        axes=axes,
        warps=WARPGROUP_WARPS * (1 if roles.pingpong else roles.consumers),
        warp_size=target.warp_size,
        order=contiguity_order(graph),
        grid=grid,
        contracts={roles.product: found.contract},
        staging={r.id: Staging.SHARED if r.id in copied else Staging.DIRECT for r in reads},
        stages=stages,
        roles=roles,
        ragged=found.ragged,
        own_terms=found.own_terms,
        panels=_panels(graph, roles, room - stages * slot, panel),
    )
    if hardware.stream_k:
        return streamed(plan, graph, found.found, hardware.stream_k, target)
    if parts == 1:
        return plan
    shared = in_parts(plan, graph, parts, (room, slot), target)
    if isinstance(shared, Plan) and shared.stages < (hardware.stages or 0):
        return f"shared memory holds {shared.stages} slots beside parts, not {hardware.stages}"
    return shared


def _panel_bytes(graph: Graph, axes: Mapping[str, AxisPlan], found: Pipelined, parts: int) -> int:
    """Shared memory of a panel of an output for each warpgroup."""
    columns = axes[found.contract.n or ""].tile
    widest = max(op.type.dtype.bytes for op in _writes(graph))
    panel = min(PANEL_BYTES, STRIP * (columns // owners_of(columns, parts)) * widest)
    return found.roles.consumers * panel


def _panels(graph: Graph, roles: Roles, left: int, panel: int) -> int:
    """Panels that there is room for. What the ring leaves makes room for more where an epilogue
    reads a tile of its own, which is then brought earlier."""
    writes = _writes(graph)
    reads = [op.type.axes for op in graph.body if isinstance(op, ops.ReadOp)]
    if not roles.pingpong or len(writes) > 1 or writes[0].type.axes not in reads:
        return PANELS
    return max(PANELS, min(MOST_PANELS, PANELS + left // panel))


def _loop(graph: Graph, roles: Roles) -> ops.Iterate:
    loop = graph.by_id[roles.loop]
    if not isinstance(loop, ops.Iterate):
        raise TypeError(f"%{loop.id} is no loop")
    return loop


def _tile_bytes(
    read: ops.ReadOp, own: str, axes: Mapping[str, AxisPlan], found: Pipelined, declared: Declared
) -> int:
    """Of a tile in the ring, whose rows are along `own` or along the terms."""
    tensor, size = declared.tensors[read.memory], read.type.dtype.bytes
    across = read.type.axes[contiguous_position(tensor) or 0] == own
    along, other = axes[own].tile, found.tile_k
    panels, width = row_panels(along if across else other, size)
    return panels * width * (other if across else along) * size


def _output_kinds(graph: Graph) -> int:
    """Kinds of panels that outputs leave through: those of one kind share them."""
    return max(1, len({(w.type.dtype.name, w.type.axes[-1]) for w in _writes(graph)}))


def _writes(graph: Graph) -> list[ops.WriteOp]:
    return [op for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)]


def _exchanged(graph: Graph, axes: Mapping[str, AxisPlan]) -> int:
    """Bytes through which warps exchange the partial results of reductions along what they share.

    Each has a place of its own, with a vector's room at the end of each row.
    """
    total = 0
    for op in ops.walk(graph.body):
        if isinstance(op, ops.ReduceOp) and axes[op.axis].warps > 1:
            kept = prod(axes[a].tile for a in op.type.axes)
            total += 2 * axes[op.axis].warps * (kept + 16) * max(4, op.type.dtype.bytes)
    return total


def _axis(axis: str, extent: Expr, shape: Shape, declared: Declared, found: Pipelined) -> AxisPlan:
    if found.ragged is not None and axis == found.ragged.groups:
        return AxisPlan(axis, extent, 1, 1, 1, "a tile belongs to one group", 1)
    tile = shape.tiles.get(axis)
    symbol = declared.symbols.get(axis)
    multiple = extent.const if extent.is_const else symbol.multiple if symbol else 1
    if tile is None and axis in found.inside:
        whole = found.inside[axis]
        reason = "the whole of it in a step" if whole > 1 else "one element in a step"
        return AxisPlan(axis, extent, None, whole, found.warps.get(axis, 1), reason, multiple)
    if tile is None:
        reason = f"copied ahead in steps of {found.tile_k}"
        return AxisPlan(axis, extent, None, found.tile_k, 1, reason, multiple)
    reason = f"tiles of {tile}"
    if found.ragged is not None and axis == found.ragged.axis:
        reason, multiple = f"{reason}, from the start of each group on", 1
    return AxisPlan(axis, extent, tile, tile, found.warps.get(axis, 1), reason, multiple)


# ---------------------------------------------------------------- the order of the tiles


def _grid(
    graph: Graph,
    shape: Shape,
    hardware: Hardware,
    target: Target,
    arrange: Arrange | None,
    found: Pipelined,
    axes: Mapping[str, AxisPlan],
    stages: int,
) -> GridPlan | str:
    """The order in which blocks go through the tiles, or why tiles cannot be shared so."""
    parts, cluster, streams = hardware.split_k or 1, hardware.cluster or 1, hardware.stream_k
    if parts > 1 and cluster > 1:
        return "the blocks of a cluster load operands for each other"
    by_data = found.ragged or found.own_terms
    if by_data and (found.roles.pingpong or streams or parts * cluster > 1):
        return f"data says what tiles {by_data.groups} has: they are neither shared nor paired"
    # Where data says how many terms a group has, each tile counts its own.
    steps = Expr.of(1) if found.own_terms else axes[_loop(graph, found.roles).axis].steps
    plain = GridPlan.plain({axis: axes[axis].blocks for axis in shape.tiles})
    if found.ragged is not None:
        plain = _slots(plain, found.ragged, axes, graph)
        arrange = arrange or (lambda grid: _in_turns(grid, steps, target))
    if arrange or parts > 1:
        grid = arrange(plain) if arrange else plain
    else:
        sides = found.contract.m or "", found.contract.n or ""
        grid = _raster(plain, axes, sides, hardware, target)
        grid = grid if streams else _in_turns(grid, steps, target)
    if found.roles.pingpong and parts == 1 and not streams and not _has_turns(grid):
        raise ConstraintError(
            "warpgroups cannot take turns: each block has one tile",
            span=hardware.span,
            expected="with pingpong, more tiles than blocks that run at once, and known sizes",
            mend="leave pingpong out, or let fewer blocks go through the tiles (persistent)",
        )
    split, consumers = grid.uneven(), found.roles.consumers
    if found.roles.pingpong and split is not None and not alternates(grid, consumers):
        raise ConstraintError(
            f"warpgroups cannot take turns: {empty_turns(split)}",
            span=hardware.span,
            expected="with pingpong, a block's tiles fall to its warpgroups one after the other",
            mend=f"use a group that divides the tiles of {split.source}, or leave pingpong out",
        )
    if found.own_terms is None and (problem := ring_problem(grid, steps, stages)):
        return problem if arrange else plain
    return grid


def _slots(plain: GridPlan, ragged: Ragged, axes: Mapping[str, AxisPlan], graph: Graph) -> GridPlan:
    """As many tiles of rows as groups can need, the slowest counter: those that the data has come
    first, and one group's follow one another."""
    tile = axes[ragged.axis].tile
    count = ragged.slots(graph.axes[ragged.axis], graph.axes[ragged.counted], tile)
    rest = tuple(leaf for leaf in plain.order if leaf != ragged.axis)
    return replace(plain, extents={**plain.extents, ragged.axis: count}, order=(ragged.axis, *rest))


def _raster(
    plain: GridPlan, axes: Mapping[str, AxisPlan], sides: tuple[str, str], hardware: Hardware,
    target: Target,
) -> GridPlan:  # fmt: skip
    """Tiles in groups of rows or columns of them, so that operands stay in L2."""
    first = _walked(plain, *sides)
    walked = first, _walked(plain, sides[1], first)
    if not set(walked) <= plain.extents.keys():
        return plain
    tiles = {counter: axes[axis].tile for counter, axis in zip(walked, sides, strict=True)}
    grid = plain
    if (hardware.cluster or 1) > 1:
        grid, tiles = _clustered(plain, tiles, hardware)
    best = _best_group(grid, tiles, target.multiprocessors // grid.cluster)
    if best is not None and best.factor > 1:
        grid = _clusters_last(grid.swizzled(best.axis, best.over, best.factor))
    return grid


def _clustered(
    plain: GridPlan, tiles: Mapping[str, int], hardware: Hardware
) -> tuple[GridPlan, Mapping[str, int]]:
    """Neighbours along the side of the smaller tiles run together, and share the larger operand.

    Also the tiles' sizes by the counters that are left of both sides.
    """
    cluster = hardware.cluster or 1
    by_size = sorted(tiles, key=lambda counter: tiles[counter])
    whole = [c for c in by_size if plain.extents[c].is_const]
    along = next((c for c in whole if plain.extents[c].const % cluster == 0), None)
    if along is None:
        counts = " and ".join(f"{plain.extents[c]} along {c}" for c in tiles)
        raise ConstraintError(
            f"tiles of {counts} do not make clusters of {cluster}",
            span=hardware.span,
            expected=f"along one side a number of tiles that {cluster} divides",
            mend="leave cluster out, or change the tiles",
        )
    pack = f"{along}_pack"
    grid = plain.split(along, cluster, pack, f"{along}_peer")
    grid = _clusters_last(grid.bind(f"{along}_peer", GridPlace.CLUSTER))
    return grid, {pack if c == along else c: n * (cluster if c == along else 1)
                  for c, n in tiles.items()}  # fmt: skip


def _clusters_last(grid: GridPlan) -> GridPlan:
    peers = tuple(d for d in grid.order if grid.place(d) is GridPlace.CLUSTER)
    return grid.reorder((*(d for d in grid.order if d not in peers), *peers))


def _in_turns(grid: GridPlan, steps: Expr, target: Target) -> GridPlan:
    """The tiles by as many blocks as run at once, where their number and `steps` are known."""
    extents = grid.extents.values()
    if not all(e.is_const for e in (*extents, steps)):
        return grid
    blocks = max(1, target.multiprocessors // grid.cluster)
    if prod(e.const for e in extents) <= blocks * grid.cluster:
        return grid
    return persistent(grid, blocks)


def persistent(grid: GridPlan, blocks: int) -> GridPlan:
    """All tiles in one counter, which `blocks` blocks (or clusters) go through in turns."""
    grid, whole = grid.merged()
    return grid.split(whole, blocks, "turn", "rank").bind("turn", GridPlace.LOOP)


@dataclass(frozen=True, slots=True)
class _Group:
    """Visit `factor` tiles of `axis` for each tile of `over`."""

    axis: str
    over: str
    factor: int


def _best_group(grid: GridPlan, tiles: Mapping[str, int], blocks: int) -> _Group | None:
    """The group for which the blocks that run together read the fewest rows and columns.

    `tiles` gives the size of a tile along the counters of both sides. The group divides the
    tiles, so that no turn is empty; open extents are grouped with guards.
    """
    best: tuple[int, _Group] | None = None
    extents = grid.all_extents()
    for axis, over in (tuple(tiles), tuple(tiles)[::-1]):
        count = extents[axis]
        factors = range(1, blocks + 1) if count.is_const else (8,)
        for factor in factors:
            if count.is_const and count.const % factor:
                continue
            cost = read_together(factor, tiles[axis], tiles[over], blocks)
            if best is None or cost < best[0]:
                best = cost, _Group(axis, over, factor)
    return best[1] if best else None


def _walked(plain: GridPlan, axis: str, other: str) -> str:
    """The counter along an operand's rows: another digit of them where one tile has `axis`."""
    if plain.extents.get(axis, Expr.of(1)) != Expr.of(1):
        return axis
    rest = (a for a, n in plain.extents.items() if a not in (axis, other) and n != Expr.of(1))
    return next(rest, axis)


def _has_turns(grid: GridPlan) -> bool:
    """Whether blocks go on to further tiles."""
    extents = grid.all_extents()
    turns = (extents[leaf] for leaf in grid.order if grid.place(leaf) is GridPlace.LOOP)
    return any(extent != Expr.of(1) for extent in turns)


def ring_problem(grid: GridPlan, steps: Expr, stages: int) -> str | None:
    """Why slots and phases cannot be told from a counter of turns and steps."""
    if not _has_turns(grid):
        return None
    if not steps.is_const:
        return "a persistent kernel needs a known number of steps in a tile"
    if steps.const % (2 * stages) == 0:
        return None  # every tile leaves slots and phases as it found them
    split = grid.uneven()
    return empty_turns(split) if split else None
