"""The default policy: from a graph, its constraints and a target to a plan, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod

from tilewright.base.diagnostics import AtomError, ConstraintError
from tilewright.base.rounding import round_up
from tilewright.base.spaces import Space
from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.poly.expr import Expr
from tilewright.schedule.atoms import plan_contracts
from tilewright.schedule.blocks import refuse_block_reductions
from tilewright.schedule.constraints import Constraint, Hardware, Tiling, Wave, Workgroup
from tilewright.schedule.contiguity import contiguity_order
from tilewright.schedule.grid import GridPlan
from tilewright.schedule.held import held_axes, held_values
from tilewright.schedule.pipelined import plan_roles
from tilewright.schedule.plan import AxisPlan, ContractPlan, Plan, Staging
from tilewright.schedule.roles import Shape
from tilewright.schedule.tensors import Declared, declare
from tilewright.target.model import Target

UNPLACED_TILE = 32  # elements of an axis that nobody placed, per step of a contraction
TERMS_BYTES = 64  # bytes of each operand row per step of a contraction
ELEMENTS_PER_THREAD = 32  # of the largest value, where the policy is free
GENERIC_TERMS = 8  # terms per step of a contraction without an atom
RASTER_GROUP = 8  # rows of tiles visited together, so that operands stay in L2


@dataclass(frozen=True)
class _Given:
    """The constraints, sorted by kind."""

    workgroups: Mapping[str, Workgroup]
    tilings: Mapping[str, Tiling]
    waves: Mapping[str, Wave]
    hardware: Hardware


def make_plan(
    graph: Graph,
    constraints: Sequence[Constraint],
    target: Target,
    multiples: Mapping[str, int] | None = None,
    arrange: Callable[[GridPlan], GridPlan] | None = None,
    staged: frozenset[str] = frozenset(),
    declared: Declared | None = None,
) -> Plan:
    """Choose digits and places. `multiples` states what symbolic extents are multiples of.

    `arrange` orders the tiles; left to the policy, those of a contraction are visited in groups.
    `staged` names tensors that go through shared memory in any case; `declared` has the tensors'
    strides and alignments, which decide what the copy engine can move.
    """
    given = _sort(constraints, graph)
    _check_warp_size(given.hardware, target)
    refuse_block_reductions(graph, given.workgroups)
    declared = declared or declare(graph, multiples=multiples)
    tiles_given = {w.axis: w.tile for w in _by_dimension(given) if w.tile is not None}
    shape = Shape(
        tiles_given, {a: t.tile for a, t in given.tilings.items()}, shared_out=bool(given.waves)
    )
    with_roles = plan_roles(graph, shape, given.hardware, target, declared, arrange)
    if isinstance(with_roles, Plan):
        return with_roles
    contracts = plan_contracts(graph, given.hardware, target, _shares(given))
    order = contiguity_order(graph)
    grains = _grains(contracts, target)
    warps = _warps_per_axis(graph, given, grains, target)
    warp_count = prod(warps.values())
    tiles = _tiles(graph, given, contracts, grains, warps, order, target)
    if not contracts and not warps:
        warp_count = _warps_for(graph, tiles, target)
        if given.hardware.waves_per_block is not None:
            warp_count = prod(given.hardware.waves_per_block)
    axes: dict[str, AxisPlan] = {}
    for axis, extent in graph.axes.items():
        workgroup = given.workgroups.get(axis)
        tile, reason = tiles[axis]
        block_tile = workgroup.tile if workgroup else None
        axes[axis] = AxisPlan(
            axis, extent, block_tile, tile, warps.get(axis, 1), reason,
            extent.const if extent.is_const else (multiples or {}).get(axis, 1),
        )  # fmt: skip
    return Plan(
        axes=axes,
        warps=warp_count,
        warp_size=target.warp_size,
        order=order,
        grid=_grid(given, axes, arrange, grouped=bool(contracts)),
        contracts=contracts,
        staging=_staging(graph, warp_count, staged),
        stages=given.hardware.stages or (4 if target.async_copy_bytes else 1),
        notes=(f"no warp roles: {with_roles}",) if contracts and target.bulk_swizzles else (),
    )


def _grid(
    given: _Given,
    axes: Mapping[str, AxisPlan],
    arrange: Callable[[GridPlan], GridPlan] | None,
    *,
    grouped: bool,
) -> GridPlan:
    """The order of the tiles: by block dimension, dimension 0 fastest, or as arranged."""
    blocks = {w.axis: axes[w.axis].blocks for w in _by_dimension(given) if w.tile is not None}
    plain = GridPlan.plain(blocks)
    if arrange is not None:
        return arrange(plain)
    if grouped and len(plain.extents) > 1:
        first, second = tuple(plain.extents)[:2]
        count = plain.extents[first]
        if not count.is_const or count.const > RASTER_GROUP:
            return plain.swizzled(first, second, RASTER_GROUP)
    return plain


def _by_dimension(given: _Given) -> list[Workgroup]:
    return sorted(given.workgroups.values(), key=lambda w: w.dim)


def _sort(constraints: Sequence[Constraint], graph: Graph) -> _Given:
    for c in constraints:
        if not isinstance(c, Hardware) and c.axis not in graph.axes:
            raise ConstraintError(
                f"no tensor of {graph.name} has the axis {c.axis}",
                span=c.span,
                expected=f"one of {', '.join(graph.axes)}",
                mend="remove the constraint, or name an axis of the program",
            )
    hardware = next((c for c in constraints if isinstance(c, Hardware)), Hardware())
    return _Given(
        {c.axis: c for c in constraints if isinstance(c, Workgroup)},
        {c.axis: c for c in constraints if isinstance(c, Tiling)},
        {c.axis: c for c in constraints if isinstance(c, Wave)},
        hardware,
    )


def _shares(given: _Given) -> dict[str, int]:
    """One warp's elements of each axis whose tile the author sets."""
    waves = given.hardware.waves_per_block or ()
    shares: dict[str, int] = {}
    for axis, workgroup in given.workgroups.items():
        if workgroup.tile is not None:
            warps = waves[workgroup.dim] if workgroup.dim < len(waves) else 1
            shares[axis] = workgroup.tile // warps if workgroup.tile % warps == 0 else 1
    shares |= {axis: tiling.tile for axis, tiling in given.tilings.items()}
    return shares | {axis: wave.tile for axis, wave in given.waves.items()}


def _check_warp_size(hardware: Hardware, target: Target) -> None:
    asked = hardware.threads_per_wave
    if asked is not None and asked != target.warp_size:
        raise ConstraintError(
            f"threads_per_wave is {asked}, but a warp of {target.name} has {target.warp_size} "
            "lanes",
            span=hardware.span,
            expected=f"threads_per_wave={target.warp_size}, or none",
            mend="leave threads_per_wave out to take the target's",
        )


def _grains(contracts: Mapping[int, ContractPlan], target: Target) -> dict[str, int]:
    """For each axis of a contraction, what its tile must be a multiple of."""
    grains: dict[str, int] = {}
    for contract in contracts.values():
        atom = target.atom(contract.atom) if contract.atom else None
        for axis, size in ((contract.m, atom.m if atom else 1), (contract.n, atom.n if atom else 1),
                           (contract.k, atom.k if atom else 1)):  # fmt: skip
            if axis is not None:
                grains[axis] = lcm(grains.get(axis, 1), size)
    return grains


def _warps_per_axis(
    graph: Graph, given: _Given, grains: Mapping[str, int], target: Target
) -> dict[str, int]:
    """How many warps share each axis: from Wave constraints, else from waves_per_block."""
    warps: dict[str, int] = {}
    for axis, wave in given.waves.items():
        workgroup = given.workgroups.get(axis)
        whole = workgroup.tile if workgroup and workgroup.tile else _const(graph.axes[axis])
        if whole is None or whole % wave.tile:
            raise ConstraintError(
                f"{axis} is shared by warps, but how much of it a block has is not known"
                if whole is None
                else f"a warp's {wave.tile} elements of {axis} do not divide the block's {whole}",
                span=wave.span,
                expected="a wave tile that divides the workgroup tile",
                mend=f"give {axis} a WorkgroupConstraint whose tile is a multiple of {wave.tile}",
            )
        warps[axis] = whole // wave.tile
    asked = given.hardware.waves_per_block
    if asked is not None:
        warps = _match_waves(warps, asked, given)
        _check_threads(prod(asked), target, given.hardware.span)
        if not grains and not given.waves and _uneven(graph, warps, given):
            return {}  # the warps spread over whatever there is
    elif not warps:
        warps = _default_warps(given, grains)
    given_at = given.hardware.span if asked else None
    spans = (given_at, *(c.span for c in (*given.waves.values(), *given.workgroups.values())))
    _check_threads(prod(warps.values()), target, next((s for s in spans if s), None))
    return {a: n for a, n in warps.items() if n > 1}


def _default_warps(given: _Given, grains: Mapping[str, int]) -> dict[str, int]:
    """Share the block's tile of a contraction among warps, up to 64 elements of an axis each."""
    warps: dict[str, int] = {}
    for axis, workgroup in given.workgroups.items():
        if axis in grains and workgroup.tile is not None:
            count = 1
            while workgroup.tile // count > 64 and workgroup.tile % (2 * count * grains[axis]) == 0:
                count *= 2
            warps[axis] = count
    return warps


def _match_waves(warps: dict[str, int], asked: tuple[int, ...], given: _Given) -> dict[str, int]:
    by_dim = {w.dim: w.axis for w in given.workgroups.values()}
    result = dict(warps)
    for dim, count in enumerate(asked):
        axis = by_dim.get(dim)
        if count > 1 and axis is None:
            raise ConstraintError(
                f"waves_per_block asks for {count} warps along block dimension {dim}, "
                "which no axis has",
                span=given.hardware.span,
                expected="warps along dimensions that a WorkgroupConstraint gives to an axis",
                mend=f"write 1 in place {dim} of waves_per_block",
            )
        if axis is not None:
            if axis in warps and warps[axis] != count:
                raise ConstraintError(
                    f"{axis} has {warps[axis]} warps by its WaveConstraint and {count} by "
                    "waves_per_block",
                    span=given.hardware.span,
                    expected="one number of warps per axis",
                    mend="leave waves_per_block out",
                )
            result[axis] = count
    return result


def _uneven(graph: Graph, warps: Mapping[str, int], given: _Given) -> bool:
    """Whether the warps of some axis cannot have equal shares of its tile."""
    tiles = {a: given.workgroups[a].tile or _const(graph.axes[a]) or 1 for a in warps}
    return any(tiles[a] % count for a, count in warps.items())


def _check_threads(warps: int, target: Target, span: Span | None) -> None:
    if warps * target.warp_size > target.max_threads:
        raise ConstraintError(
            f"{warps} warps of {target.warp_size} lanes in a block",
            span=span,
            expected=f"at most {target.max_threads} threads on {target.name}",
            mend="use larger wave tiles or smaller workgroup tiles",
        )


def _const(extent: Expr) -> int | None:
    return extent.const if extent.is_const else None


def _power_of_two(value: int) -> int:
    """The smallest power of two not below `value`."""
    return 1 << (value - 1).bit_length()


def _tiles(
    graph: Graph,
    given: _Given,
    contracts: Mapping[int, ContractPlan],
    grains: Mapping[str, int],
    warps: Mapping[str, int],
    order: Sequence[str],
    target: Target,
) -> dict[str, tuple[int, str]]:
    """The tile of each axis and the reason for its size."""
    iterated = {op.axis for op in ops.walk(graph.body) if isinstance(op, ops.Iterate)}
    asked = given.hardware.waves_per_block
    count = prod(asked) if asked is not None else prod(warps.values())
    if not contracts and asked is None and not warps:
        count = 4  # the policy takes as many warps as the largest value needs
    free = ELEMENTS_PER_THREAD * target.warp_size * count
    tiles: dict[str, tuple[int, str]] = {}
    held = held_axes(graph) | given.workgroups.keys() | given.tilings.keys() | warps.keys()
    for axis in order:
        if axis not in held and axis not in grains:
            size = 1, "no value is held along it: reached by other coordinates"
        elif axis in grains:
            size = _contraction_tile(axis, graph, given, contracts, grains, warps)
        else:
            size = _free_tile(
                axis, graph, given, axis in iterated, contracts, free, warps.get(axis, 1)
            )
            free = max(1, free // size[0])
        tiles[axis] = size
    return tiles


def _contraction_tile(
    axis: str,
    graph: Graph,
    given: _Given,
    contracts: Mapping[int, ContractPlan],
    grains: Mapping[str, int],
    warps: Mapping[str, int],
) -> tuple[int, str]:
    grain = grains[axis] * warps.get(axis, 1)
    extent = _const(graph.axes[axis])
    workgroup, tiling = given.workgroups.get(axis), given.tilings.get(axis)
    for given_one, what in ((tiling, "TilingConstraint"), (workgroup, "WorkgroupConstraint")):
        if given_one is not None and given_one.tile is not None:
            size = given_one.tile
            if size % grain:
                atoms = sorted({c.atom for c in contracts.values() if c.atom and
                                axis in (c.m, c.n, c.k)})  # fmt: skip
                raise AtomError(
                    f"the tile of {size} elements of {axis} is not a multiple of {grain}",
                    span=given_one.span,
                    expected=f"a multiple of {grain}: {' and '.join(atoms) or 'a term'} takes "
                    f"{grains[axis]} of {axis}" + _for_warps(warps.get(axis, 1)),
                    mend=f"use a tile of {round_up(size, grain)}",
                )
            return size, f"{what} of {size}"
    atomless = all(c.atom is None for c in contracts.values() if axis in (c.m, c.n, c.k))
    only_terms = all(axis not in (c.m, c.n) for c in contracts.values())
    if only_terms and atomless:
        limit = GENERIC_TERMS
    elif only_terms:
        width = min(op.type.dtype.bytes for op in ops.walk(graph.body)
                    if isinstance(op, ops.ReadOp) and axis in op.type.axes) if any(
            isinstance(op, ops.ReadOp) and axis in op.type.axes for op in ops.walk(graph.body)
        ) else 2  # fmt: skip
        limit = max(grain, TERMS_BYTES // width)
    else:
        limit = max(grain, UNPLACED_TILE // grain * grain)
    if extent is not None and extent <= limit:
        tile = round_up(extent, grain)
        if atomless:
            tile = _power_of_two(tile)
        return tile, "nobody placed it: its whole extent is unrolled"
    return limit, f"nobody placed it: a serial loop over steps of {limit}"


def _for_warps(count: int) -> str:
    return f", for each of {count} warps" if count > 1 else ""


def _free_tile(
    axis: str,
    graph: Graph,
    given: _Given,
    iterated: bool,
    contracts: Mapping[int, ContractPlan],
    free: int,
    warps: int,
) -> tuple[int, str]:
    """The tile of an axis that no atom touches: for each of its warps a power of two, all within
    the register budget."""
    extent = _const(graph.axes[axis])
    workgroup, tiling = given.workgroups.get(axis), given.tilings.get(axis)
    given_one = tiling or workgroup
    if contracts and not iterated and given_one is None:
        return 1, "nobody placed it: a serial loop"  # a batch axis of a contraction
    size = given_one.tile if given_one is not None else None
    if size is None:
        size, what = extent, "nobody placed it"
    else:
        what = f"{type(given_one).__name__}Constraint of {size}"
    budget = 1 << (max(1, free // warps).bit_length() - 1)
    if size is None or (share := _power_of_two(-(-size // warps))) > budget:
        return budget * warps, f"{what}: a serial loop over steps of {budget * warps}"
    return share * warps, what + (": its whole extent" if given_one is None else "")


def _warps_for(graph: Graph, tiles: Mapping[str, tuple[int, str]], target: Target) -> int:
    """Warps for a kernel without contractions: about eight elements to a thread."""
    held = held_values(graph)
    largest = max(
        (prod(tiles[a][0] for a in op.type.axes) for op in ops.walk(graph.body) if op.id in held),
        default=1,
    )
    wanted = largest // (8 * target.warp_size)
    limit = min(target.max_threads // target.warp_size, 256 // target.warp_size * 2)
    return max(1, min(_power_of_two(max(1, wanted)), limit))


def _staging(graph: Graph, warps: int, staged: frozenset[str]) -> dict[int, Staging]:
    """Stage reads that feed a contraction inside `iterate`, where asked or where warps share."""
    staging: dict[int, Staging] = {}
    for op in ops.walk(graph.body):
        if isinstance(op, ops.ReadOp | ops.WriteOp) and op.memory in staged:
            staging[op.id] = Staging.SHARED
        if not isinstance(op, ops.Iterate):
            continue
        for inner in op.body:
            if isinstance(inner, ops.ReadOp) and op.axis in inner.type.axes:
                memory = graph.memory(inner.memory)
                shared = not memory.allocated and (
                    memory.space is Space.SHARED or (warps > 1 and _feeds_contract(graph, inner.id))
                )
                staging[inner.id] = Staging.SHARED if shared else Staging.DIRECT
    return staging


def _feeds_contract(graph: Graph, value: int) -> bool:
    for user in graph.uses.get(value, ()):
        op = graph.by_id[user]
        if isinstance(op, ops.Contract) and value in (op.lhs, op.rhs):
            return True
        if isinstance(op, ops.View | ops.CastOp | ops.Elementwise) and _feeds_contract(graph, user):
            return True
    return False
