"""Which tiles a product with warp roles gets, where nobody says.

A product with more tiles than multiprocessors takes one of a few forms that measured best on
Hopper; which one, an estimate of cycles decides. Smaller products take what the model ranks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, log, prod

from tilewright.base.diagnostics import ConstraintError
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.boxes import BOX, ROW_BYTES
from tilewright.schedule.constraints import Constraint, Hardware, Tiling, Workgroup, hardware_of
from tilewright.schedule.model import (
    MOST_ACCUMULATORS,
    WARPGROUP,
    Candidate,
    Problem,
    Ranked,
    candidates,
    rank,
)
from tilewright.schedule.pipelined import plan_roles
from tilewright.schedule.plan import Plan
from tilewright.schedule.roles import Shape
from tilewright.schedule.tensors import Declared
from tilewright.target.model import Target

PANEL = 32  # columns that leave a block together: wider tiles are multiples of them
STEP_AREA = 32  # elements of a tile that the tensor cores serve in a cycle, 128 bytes of terms deep
FETCHED = 56  # bytes that a multiprocessor gets from the L2 cache in a cycle
END = 1100 / 32768  # cycles of an element of a tile, from its product to the next tile
LANES = 128  # of a multiprocessor, for arithmetic
TURN_LOSS = 1.01  # of consumers that take turns
QUICK = frozenset("add sub mul max min neg abs select lt le gt ge eq ne and or xor not".split())
SLOW = 24  # instructions of an elementwise function that is none of these
SPLIT_GAIN = 0.94  # of the time, at the most, that blocks which share terms must be seen to take


@dataclass(frozen=True, slots=True)
class Form:
    """A tile, and how a block's consumers work: together, or in turns with a tile each."""

    tile_m: int
    tile_n: int
    pingpong: bool = False
    cluster: int = 1

    def __str__(self) -> str:
        how = "by two warpgroups in turns" if self.pingpong else "by two warpgroups together"
        shared = f", in clusters of {self.cluster}" if self.cluster > 1 else ""
        return f"tiles of {self.tile_m} by {self.tile_n} {how}{shared}"


FORMS = (
    Form(128, 256, cluster=2),
    Form(128, 256),
    Form(128, 192, pingpong=True),
    Form(128, 128, pingpong=True),
)


@dataclass(frozen=True, slots=True)
class _Product:
    """The product's axes and sizes, and the instructions for each element of its epilogue.

    `alone`: a tile's epilogue needs no other warpgroup's values.
    """

    rows: str
    columns: str
    terms: str
    batch: tuple[str, ...]
    problem: Problem
    work: int
    alone: bool


def choose_product(
    graph: Graph, op: ops.Contract, target: Target, relief: int, declared: Declared,
    asked: Hardware | None = None,
) -> tuple[tuple[Constraint, ...], str] | None:  # fmt: skip
    """Constraints and the reason; None where warp roles do not suit the product.

    With each step of `relief` a thread holds half as much. Blocks share terms unasked only where
    the author has `asked` nothing of the hardware.
    """
    product = _product(graph, op, target)
    if product is None:
        return None
    forms = _forms(product, target) if relief == 0 else ()
    for form, reason in forms:
        if asked is not None and _refused(form, asked):
            continue
        tiles = {product.rows: form.tile_m, product.columns: form.tile_n}
        terms = ROW_BYTES // product.problem.operand_bytes
        chosen = Hardware(
            cluster=form.cluster if form.cluster > 1 else None, pingpong=form.pingpong or None
        )
        hardware = hardware_of((chosen, asked or chosen))
        found = _tried(graph, product, tiles, terms, hardware, target, declared)
        if found is not None:
            return found[0], reason
    for ranked in _ranked(product.problem, target, relief, split=asked is None):
        best = ranked.candidate
        m, n = (best.tile_n, best.tile_m) if best.swapped else (best.tile_m, best.tile_n)
        chosen = Hardware(split_k=best.split_k if best.split_k > 1 else None, stream_k=best.stream)
        hardware = hardware_of((chosen, asked or chosen))
        tiles = {product.rows: m, product.columns: n}
        found = _tried(graph, product, tiles, best.tile_k, hardware, target, declared)
        if found is not None and found[1].roles and found[1].roles.consumers == best.consumers:
            return found[0], ranked.reason
    return None


def _refused(form: Form, asked: Hardware) -> bool:
    """Whether the author wants other clusters, or no turns."""
    turns = form.pingpong and asked.pingpong is False
    return turns or (form.cluster > 1 and asked.cluster not in (None, form.cluster))


def _product(graph: Graph, op: ops.Contract, target: Target) -> _Product | None:
    lhs, rhs = graph.by_id[op.lhs].type, graph.by_id[op.rhs].type
    own = [[a for a in t.axes if a not in o.axes] for t, o in ((lhs, rhs), (rhs, lhs))]
    if len(own[0]) != 1 or len(own[1]) != 1 or len(op.contracted) != 1 or not target.bulk_swizzles:
        return None
    row, column, k = own[0][0], own[1][0], op.contracted[0]
    batch = tuple(a for a in op.type.axes if a not in (row, column))
    sizes = {a: n.const for a, n in graph.axes.items()}
    written = [o.type.dtype.bytes for o in ops.walk(graph.body) if isinstance(o, ops.WriteOp)]
    problem = Problem(
        sizes[row], sizes[column], sizes[k], prod(sizes[a] for a in batch),
        lhs.dtype.bytes, max(written, default=2),
    )  # fmt: skip
    apart = ops.ReduceOp | ops.Scan | ops.Reshape | ops.Remap | ops.Gather
    alone = not any(isinstance(o, apart) for o in ops.walk(graph.body))
    return _Product(row, column, k, batch, problem, _work(graph), alone)


def _work(graph: Graph) -> int:
    """Instructions for each element of what surrounds the loop, roughly."""
    total = 0
    for op in graph.body:
        match op:
            case ops.Elementwise():
                total += 1 if op.name in QUICK else SLOW
            case ops.CastOp():
                total += 1
            case ops.ReadOp():
                total += 4
            case _:
                pass
    return total


def _forms(product: _Product, target: Target) -> list[tuple[Form, str]]:
    """The forms with more tiles than multiprocessors, those of the least cycles first."""
    problem, found = product.problem, list[tuple[float, Form, str]]()
    if problem.operand_bytes > 2 or _tiles(FORMS[0], problem) <= target.multiprocessors:
        return []
    for form in FORMS:
        tiles = _tiles(form, problem)
        turns = ceil(tiles / target.multiprocessors)
        if form.pingpong and not product.alone:
            continue
        cycles = _cycles(form, problem, turns, product.work)
        reason = f"{form}: {tiles} in {turns} turns, about {cycles / 1000:.0f} thousand cycles"
        found.append((cycles, form, reason))
    return [(form, reason) for _, form, reason in sorted(found, key=lambda f: f[0])]


def _tiles(form: Form, problem: Problem) -> int:
    return ceil(problem.m / form.tile_m) * ceil(problem.n / form.tile_n) * problem.batch


def _cycles(form: Form, problem: Problem, turns: int, work: int) -> float:
    area = form.tile_m * form.tile_n
    steps = ceil(problem.k * problem.operand_bytes / ROW_BYTES)
    step = area / STEP_AREA
    if steps > 4:  # more than the slots hold: the ring is as fast as what fills it
        shared, own = max(form.tile_m, form.tile_n), min(form.tile_m, form.tile_n)
        step = max(step, (shared / form.cluster + own) * ROW_BYTES / FETCHED)
    end = area * (END + work / LANES)
    if not form.pingpong:
        return turns * (steps * step + end)
    return TURN_LOSS * (turns * max(steps * step, (steps * step + end) / 2) + end)


def _tried(
    graph: Graph, product: _Product, tiles: Mapping[str, int], terms: int, hardware: Hardware,
    target: Target, declared: Declared,
) -> tuple[tuple[Constraint, ...], Plan] | None:  # fmt: skip
    """The constraints and their plan, if it has roles."""
    blocks = {**tiles, **dict.fromkeys(product.batch, 1)}
    try:
        shape = Shape(blocks, {product.terms: terms})
        plan = plan_roles(graph, shape, hardware, target, declared, None)
    except ConstraintError:  # tiles that make no clusters, terms that cannot be shared
        return None
    if not isinstance(plan, Plan):
        return None
    asked = (hardware,) if hardware != Hardware() else ()
    return (*_workgroups(blocks), Tiling(product.terms, terms), *asked), plan


def _workgroups(blocks: Mapping[str, int]) -> Iterator[Workgroup]:
    return (Workgroup(axis, tile, i) for i, (axis, tile) in enumerate(blocks.items()))


def _ranked(
    problem: Problem, target: Target, relief: int, *, split: bool
) -> tuple[Ranked, ...]:  # fmt: skip
    """Plans without shared operands, the fastest first; narrower ones with each relief."""
    bits = 8 * problem.operand_bytes
    if bits >= 32 or target.machine is None or target.machine.rate(bits) is None:
        return ()
    most = MOST_ACCUMULATORS >> relief
    found = [
        c for c in candidates(problem, target)
        if c.cluster == 1 and (split or not _shared(c))
        and (c.tile_n % PANEL == 0 or c.tile_n <= PANEL)
        and c.tile_m * c.tile_n <= most * WARPGROUP * c.consumers
    ]  # fmt: skip
    ranked = sorted(rank(problem, found, target), key=lambda r: _nearly(r, problem))
    whole = [r for r in ranked if not _shared(r.candidate)]
    if whole and ranked[0].seconds > SPLIT_GAIN * whole[0].seconds:
        return (*whole, *(r for r in ranked if r not in whole))
    return tuple(ranked)


def _shared(plan: Candidate) -> bool:
    """Whether blocks share the terms of a tile."""
    return plan.split_k > 1 or plan.stream is not None


def _nearly(ranked: Ranked, problem: Problem) -> tuple[float, int]:
    """The time in steps of 3%, then how often the operand of the long side is read."""
    found, short = ranked.candidate, min(problem.m, problem.n)
    rows = found.tile_n if found.swapped == (problem.m <= problem.n) else found.tile_m
    again = ceil(short / rows) if short <= BOX else 0
    return round(log(ranked.seconds) / 0.03), again
