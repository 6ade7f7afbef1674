"""Whether a contraction runs with warp roles: one warpgroup copies ahead, the others multiply.

It needs a loop over one product of tiles that come from tensors, a copy engine that can move
these tiles, and warpgroup instructions that fit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.base.dtypes import f32
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.poly.expr import Expr
from tilewright.schedule.boxes import BOX, ROW_BYTES, contiguous_position
from tilewright.schedule.constraints import Hardware
from tilewright.schedule.held import held_axes
from tilewright.schedule.own_terms import OwnTerms, own_terms_of, terms_problem
from tilewright.schedule.plan import ContractPlan, Roles
from tilewright.schedule.ragged import Ragged, ragged_of, ragged_problem, unpermuted
from tilewright.schedule.role_products import Factor, Multiplied, find_product, source_of
from tilewright.schedule.splits import split_of
from tilewright.schedule.tensors import Declared
from tilewright.target.model import MmaAtom, Scope, Source, Target

MOST_CONSUMERS = 3
PINGPONG = 2  # consumers that take turns
ACCUMULATORS = {1: 128, 2: 200, 3: 104}  # 32-bit registers of a thread, by consumer warpgroups
HELD = {1: 208, 2: 200, 3: 128}  # the same, of all values that the loop holds
PRODUCER_REGISTERS = {1: 56, 2: 40, 3: 32}
CONSUMER_REGISTERS = {1: 240, 2: 232, 3: 160}
MOST_TERMS = 512  # of a step along an axis that is not looped over


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A contraction with roles: its plan, warps along each axis, and terms of a step.

    `inside` has the tiles of the axes that no block divides. `copied` are the reads that are
    copied ahead, each with the axis of its rows.
    """

    roles: Roles
    contract: ContractPlan
    warps: Mapping[str, int]
    tile_k: int
    inside: Mapping[str, int]
    copied: tuple[tuple[ops.ReadOp, str], ...]
    found: Multiplied
    ragged: Ragged | None = None
    own_terms: OwnTerms | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What the author fixed: elements of a block along each axis, of a step along reduced axes,
    and whether the tile is shared out among warps."""

    tiles: Mapping[str, int]
    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    shared_out: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """What roles are to be found for."""

    graph: Graph
    found: Multiplied
    shape: Shape
    inside: Mapping[str, int]
    hardware: Hardware
    target: Target
    declared: Declared
    ragged: Ragged | None
    own_terms: OwnTerms | None

    def tile(self, axis: str) -> int:
        return self.shape.tiles.get(axis) or self.inside[axis]


def choose_roles(
    graph: Graph, shape: Shape, hardware: Hardware, target: Target, declared: Declared
) -> Pipelined | str:
    """Roles for the graph's contraction, or why there are none."""
    if hardware.specialize is False:
        return "turned off"
    if not target.bulk_swizzles:
        return f"{target.name} has no copy engine"
    if shape.shared_out or hardware.waves_per_block is not None:
        return "constraints share the tile among warps"
    found = find_product(graph, declared)
    if isinstance(found, str):
        return found
    ragged = ragged_of(graph, found.product)
    if ragged is not None and (problem := ragged_problem(graph, ragged)):
        return problem
    own_terms = own_terms_of(graph, found.product)
    if own_terms is not None and (problem := _terms_problem(graph, found, own_terms)):
        return problem
    by_data = own_terms or ragged
    if by_data is not None and (problem := _begins_within(found, by_data.axis, declared)):
        return problem
    inside = _inside(graph, found, shape, by_data)
    if isinstance(inside, str):
        return inside
    return _fit(_Case(graph, found, shape, inside, hardware, target, declared, ragged, own_terms))


def _begins_within(found: Multiplied, axis: str, declared: Declared) -> str | None:
    """Whether groups along an axis may begin where the copy engine cannot begin a box."""
    for read in (*found.lhs.reads, *found.rhs.reads):
        last = contiguous_position(declared.tensors[read.memory])
        if last is not None and read.type.axes[last] == axis:
            return f"groups may begin within 16 bytes of {read.memory}, contiguous along {axis}"
    return None


def _terms_problem(graph: Graph, found: Multiplied, own_terms: OwnTerms) -> str | None:
    if not found.in_place or found.computed:
        return f"the loop over the terms of {own_terms.groups} does more than add a product"
    return terms_problem(graph, own_terms)


def _inside(
    graph: Graph, found: Multiplied, shape: Shape, by_data: Ragged | OwnTerms | None
) -> Mapping[str, int] | str:
    """The tile of each axis that no block divides, but for the loop's where it is free."""
    product, loop = found.product.type.axes, found.loop.axis
    inside: dict[str, int] = {}
    held = held_axes(graph)
    for axis, extent in graph.axes.items():
        uncut = f"{axis} is not cut into tiles of blocks alone"
        if axis == loop:
            if axis in shape.tiles:
                return uncut
            if found.k != loop and shape.steps.get(axis, 1) != 1:
                return f"a step over {axis} has several elements of it"
            if found.k != loop:
                inside[axis] = 1
        elif axis == found.k:
            if axis in shape.tiles or not extent.is_const or extent.const > MOST_TERMS:
                return f"the terms along {axis} are too many for a step"
            if shape.steps.get(axis, extent.const) != extent.const:
                return f"a step has not the whole of {axis}"
            inside[axis] = extent.const
        elif axis in product:
            if axis in shape.steps or (axis not in shape.tiles and not extent.is_const):
                return uncut
            if axis not in shape.tiles:
                inside[axis] = extent.const
        elif by_data is not None and axis not in shape.tiles and axis in (
            by_data.groups, *graph.memory(by_data.ends).type.axes
        ):  # fmt: skip
            inside[axis] = 1  # a tile belongs to one group
        elif axis in held and extent != Expr.of(1):
            return f"the product has no axis {axis}"
        else:
            inside[axis] = 1
    return inside


# ---------------------------------------------------------------- which instruction, how shared


def _fit(case: _Case) -> Pipelined | str:
    found = case.found
    problem = "no warpgroup instruction fits"
    for lhs_is_a in (True, False):
        first, second = (found.lhs, found.rhs) if lhs_is_a else (found.rhs, found.lhs)
        if second.computed:
            problem = _column_problem(case, second) if not lhs_is_a else problem
            continue
        fitted = _roles(case, first, second)
        if isinstance(fitted, str):
            problem = fitted
            continue
        atom = case.target.atom(fitted.contract.atom or "")
        if atom is not None and atom.a_dtype.bytes != 2:
            across = [
                f for f in (first, second)
                if not f.computed and not _runs_along(case, f, found.k)
            ]  # fmt: skip
            if across:
                return f"operands of {atom.a_dtype} must be contiguous along {found.k}"
        return fitted
    return problem


def _column_problem(case: _Case, computed: Factor) -> str:
    axes = ", ".join(case.graph.by_id[computed.value].type.axes)
    return f"the operand over {axes} is computed, and gives columns: those come from shared memory"


def _runs_along(case: _Case, factor: Factor, axis: str) -> bool:
    read = source_of(case.graph, factor.value)
    if read is None:
        return False
    last = contiguous_position(case.declared.tensors[read.memory])
    return last is not None and read.type.axes[last] == split_of(case.graph, read).of(axis)


def _roles(case: _Case, rows_from: Factor, columns_from: Factor) -> Pipelined | str:
    """With the first operand's axis as rows of the instruction."""
    found = case.found
    first = case.graph.by_id[rows_from.value].type
    one, two = (_matrix_axes(case, f) for f in (rows_from, columns_from))
    m, n = _own_axis(case, one, two), _own_axis(case, two, one)
    if m is None or n is None:
        return "an operand has several axes of its own"
    tile_m, tile_n, k = case.tile(m), case.tile(n), found.k
    if any(case.tile(a) != 1 for a in found.product.type.axes if a not in (m, n)):
        return "a batch axis has tiles of several elements"
    reads = (*rows_from.reads, *columns_from.reads)
    for read in reads:
        for axis, digits in split_of(case.graph, read).digits.items():
            if any(case.tile(d) != 1 for d in digits[:-1]):
                return f"a tile has several of the parts into which {axis} is split"
    step = case.inside.get(k) or case.shape.steps.get(
        k, ROW_BYTES // max(r.type.dtype.bytes for r in reads)
    )
    sets = _sets(case, m, n)
    words = _operand_words(rows_from, step, first.dtype.bytes) + _column_words(case, m, n)
    alone = bool(case.hardware.pingpong)
    groups = _consumers(tile_m, tile_n, sets, words, alone=alone)
    if groups is None:
        held = f", {sets} at once" if sets > 1 else ""
        return f"tiles of {tile_m} by {tile_n}{held} do not suit warpgroups"
    down, along = groups
    asked = found.product.atom or case.hardware.mma_type
    source = Source.REGISTER if rows_from.computed else Source.SHARED
    atom = _atom(first.dtype.name, found.product.type.dtype.name, tile_n // along, asked,
                 source, case.target)  # fmt: skip
    if atom is None:
        instruction = asked or "no warpgroup instruction"
        return f"{instruction} multiplies {first.dtype} tiles of {tile_m} by {tile_n}"
    if step % atom.k or not all(_fills_rows(step * r.type.dtype.bytes) for r in reads):
        return f"steps of {step} terms do not fill rows of shared memory"
    count = PINGPONG if alone else down * along
    what = "one warpgroup copies, " + _shared_work(count, down, along, alone=alone)
    lhs_is_a = rows_from is found.lhs
    plan = ContractPlan(atom.name, m, n, k, lhs_is_a, f"{atom.name}; {what}")
    roles = Roles(
        found.loop.id, found.product.id, count, PRODUCER_REGISTERS[count],
        CONSUMER_REGISTERS[count], pingpong=alone,
    )  # fmt: skip
    warps = {a: w for a, w in ((m, WARPGROUP_WARPS * down), (n, along)) if w > 1}
    copied = (*((r, m) for r in rows_from.reads), *((r, n) for r in columns_from.reads))
    return Pipelined(
        roles, plan, warps, step, case.inside, copied, found, case.ragged, case.own_terms
    )


def _matrix_axes(case: _Case, factor: Factor) -> tuple[str, ...]:
    """An operand's axes; those of the matrix alone where each group has one."""
    axes, ragged = case.graph.by_id[factor.value].type.axes, case.ragged
    if ragged is None or unpermuted(case.graph, factor.value).id != ragged.matrix:
        return axes
    return tuple(a for a in axes if a != ragged.axis)


def _own_axis(case: _Case, axes: tuple[str, ...], others: tuple[str, ...]) -> str | None:
    """The one axis, of those that the other operand lacks, with more than one element in a tile."""
    own = [a for a in axes if a not in others]
    wide = [a for a in own if case.tile(a) != 1] or own[-1:]
    return wide[0] if len(wide) == 1 else None


def _fills_rows(size: int) -> bool:
    return size in (32, 64) or size % ROW_BYTES == 0


def _sets(case: _Case, m: str, n: str) -> int:
    """How many values of the size of a result a consumer holds in the loop."""
    if case.found.in_place:
        return 1
    carried = (case.graph.by_id[p].type.axes for p in case.found.loop.params)
    return 1 + sum(m in axes and n in axes for axes in carried)


def _operand_words(factor: Factor, step: int, size: int) -> int:
    """Registers of a thread for 64 rows of a computed operand and the tiles it is made of."""
    if not factor.computed:
        return 0
    sizes = size + sum(read.type.dtype.bytes for read in factor.reads)
    return step * 64 * sizes // (WARPGROUP_WARPS * 32 * 4)


def _column_words(case: _Case, m: str, n: str) -> int:
    """Registers of a thread for what the loop reads along the columns of the result alone."""
    copied = {read.id for f in (case.found.lhs, case.found.rhs) for read in f.reads}
    reads = [op for op in case.found.loop.body if isinstance(op, ops.ReadOp)]
    beside = [r for r in reads if r.id not in copied and n in r.type.axes and m not in r.type.axes]
    return len(beside) * (case.tile(n) // 4)


def _shared_work(count: int, down: int, along: int, *, alone: bool) -> str:
    if alone:
        return f"{count} multiply, a tile each in turns"
    return "one multiplies" if count == 1 else f"{count} multiply, {down} by {along} of them"


def _consumers(m: int, n: int, sets: int, operand: int, *, alone: bool) -> tuple[int, int] | None:
    """How many consumer warpgroups share rows and columns, one where each is `alone` with a tile;
    None where none can."""
    if m % 64 or n % 8 or n > BOX or m > BOX:
        return None
    strips = m // 64
    budget = ACCUMULATORS if sets == 1 and not operand else HELD
    if alone:
        return (1, 1) if strips * (sets * (n // 2) + operand) <= budget[PINGPONG] else None
    for down in sorted((d for d in range(1, MOST_CONSUMERS + 1) if strips % d == 0), reverse=True):
        if strips // down * (sets * (n // 2) + operand) <= budget[down]:
            return down, 1
    return None


def _atom(
    operand: str, result: str, columns: int, asked: str | None, source: Source, target: Target
) -> MmaAtom | None:
    """The widest warpgroup instruction that divides the columns, with A from `source`."""
    fitting = [
        a for a in target.mma_atoms
        if a.scope is Scope.WARPGROUP and a.a_source is source
        and (a.a_dtype.name, a.b_dtype.name, a.d_dtype.name) == (operand, operand, result)
        and columns % a.n == 0 and (asked is None or asked in (a.name, _shared_name(a)))
    ]  # fmt: skip
    # Single precision operands are rounded (tf32): only on request.
    usable = [a for a in fitting if a.a_dtype != f32 or asked is not None]
    return max(usable, key=lambda a: a.n, default=None)


def _shared_name(atom: MmaAtom) -> str:
    """The name of the instruction that reads a from shared memory."""
    return atom.name.removesuffix(".rs")
