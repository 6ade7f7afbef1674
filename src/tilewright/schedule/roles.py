"""Whether a contraction runs with warp roles: one warpgroup copies ahead, the others multiply.

It needs a loop whose body does nothing but multiply tiles that come straight from tensors, a
copy engine that can move these tiles, and warpgroup instructions that fit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.base.dtypes import f32
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.kernel.ops import Tensor
from tilewright.poly.expr import Expr
from tilewright.schedule.constraints import Hardware
from tilewright.schedule.plan import ContractPlan, Roles
from tilewright.schedule.tensors import Declared
from tilewright.target.model import MmaAtom, Scope, Source, Target

GROUP_WARPS = 4  # warps of a warpgroup
MOST_CONSUMERS = 3
ACCUMULATORS = {1: 128, 2: 200, 3: 120}  # 32-bit registers of a thread, by consumer warpgroups
PRODUCER_REGISTERS = {1: 56, 2: 40, 3: 32}
CONSUMER_REGISTERS = {1: 240, 2: 232, 3: 160}
BULK_ALIGN = 16  # bytes; of a tensor and of its strides, for the copy engine
BOX = 256  # elements along one axis of a box, at the most
ROW_BYTES = 128  # of an operand in shared memory, by default: the widest swizzle


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A contraction with roles: its plan, warps and tile along each axis."""

    roles: Roles
    contract: ContractPlan
    warps: Mapping[str, int]
    tile_k: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What the author fixed: elements of a block along each axis, of a step along reduced axes,
    and whether the tile is shared out among warps."""

    tiles: Mapping[str, int]
    steps: Mapping[str, int]
    shared_out: bool = False


def choose_roles(
    graph: Graph, shape: Shape, hardware: Hardware, target: Target, declared: Declared
) -> Pipelined | str:
    """Roles for the graph's contraction, or why there are none."""
    if hardware.specialize is False:
        return "turned off"
    if not target.bulk_swizzles:
        return f"{target.name} has no copy engine"
    if shape.shared_out or hardware.waves_per_block is not None:
        return "the author shares the tile among warps"
    found = _product(graph)
    if isinstance(found, str):
        return found
    loop, contract = found
    if problem := _operands(graph, loop, contract, declared):
        return problem
    return _fit(graph, loop, contract, shape, hardware, target, declared)


def _product(graph: Graph) -> tuple[ops.Iterate, ops.Contract] | str:
    """The loop that does nothing but accumulate one product."""
    loops = [op for op in ops.walk(graph.body) if isinstance(op, ops.Iterate)]
    products = [op for op in ops.walk(graph.body) if isinstance(op, ops.Contract)]
    if len(loops) != 1 or len(products) != 1 or loops[0] not in graph.body:
        return "the program is not one loop over one product"
    loop, product = loops[0], products[0]
    rest = [op for op in loop.body if not isinstance(op, ops.ReadOp | ops.View | ops.Param)]
    if rest != [product] or loop.results != (product.id,) or product.acc not in loop.params:
        return "the loop does more than accumulate a product"
    if product.contracted != (loop.axis,):
        return f"the product is not summed over {loop.axis} alone"
    return loop, product


def source_of(graph: Graph, number: int) -> ops.ReadOp | None:
    """The read that an operand is, with its axes in another order perhaps."""
    op = graph.by_id[number]
    while isinstance(op, ops.View) and set(op.type.axes) == set(graph.by_id[op.value].type.axes):
        op = graph.by_id[op.value]
    return op if isinstance(op, ops.ReadOp) else None


def _operands(
    graph: Graph, loop: ops.Iterate, contract: ops.Contract, declared: Declared
) -> str | None:
    """Why the copy engine cannot fetch the operands; None where it can."""
    written = {op.memory for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)}
    for number in (contract.lhs, contract.rhs):
        read = source_of(graph, number)
        if read is None or read not in loop.body:
            return "an operand is computed, not read"
        if graph.memory(read.memory).allocated or read.memory in written:
            return f"{read.memory} is also written"
        tensor = declared.tensors[read.memory]
        if problem := bulk_problem(tensor, declared):
            return problem
        if len(graph.uses[read.id]) != 1:
            return f"the tile of {read.memory} has other readers"
    return None


def bulk_problem(tensor: Tensor, declared: Declared) -> str | None:
    """Why the copy engine cannot move boxes of a tensor; None where it can."""
    size = tensor.dtype.bytes
    if tensor.align % BULK_ALIGN:
        return f"{tensor.name} is aligned to {tensor.align} bytes, not {BULK_ALIGN}"
    if not 1 <= len(tensor.shape) <= 5:
        return f"{tensor.name} has {len(tensor.shape)} axes"
    last = contiguous_position(tensor)
    if last is None:
        return f"no axis of {tensor.name} has stride 1"
    for position, stride in enumerate(tensor.strides):
        if position != last and (_multiple(stride, declared) * size) % BULK_ALIGN:
            return f"rows of {tensor.name} do not start at multiples of {BULK_ALIGN} bytes"
    return None


def contiguous_position(tensor: Tensor) -> int | None:
    """The position of the axis of stride 1; of several, the last with more than one element."""
    ones = [i for i, s in enumerate(tensor.strides) if s == Expr.of(1)]
    wide = [i for i in ones if tensor.shape[i] != Expr.of(1)]
    return (wide or ones or [None])[-1]


def _multiple(value: Expr, declared: Declared) -> int:
    """A number that divides a stride; 0 where it is zero, which no box can walk."""
    if value.is_const:
        return value.const or 1
    found = value.const
    for term, coefficient in value.terms:
        known = declared.symbols[term].multiple if isinstance(term, str) else 1
        step = abs(coefficient) * known
        while found % step if step else False:
            step, found = found % step, step
        found = step
    return found


# ---------------------------------------------------------------- which instruction, how shared


def _fit(
    graph: Graph,
    loop: ops.Iterate,
    contract: ops.Contract,
    shape: Shape,
    hardware: Hardware,
    target: Target,
    declared: Declared,
) -> Pipelined | str:
    placed = {*contract.type.axes, loop.axis}
    for axis in graph.axes:
        if axis not in placed:
            return f"the product has no axis {axis}"
        if (axis in shape.tiles) == (axis == loop.axis) or (
            axis in shape.steps and axis != loop.axis
        ):
            return f"{axis} is not cut into tiles of blocks alone"
    problem = "no warpgroup instruction fits"
    for lhs_is_a in (True, False):
        first, second = (contract.lhs, contract.rhs)
        if not lhs_is_a:
            first, second = second, first
        found = _roles(graph, loop, contract, (first, second), shape, hardware, target)
        if isinstance(found, str):
            problem = found
            continue
        atom = target.atom(found.contract.atom or "")
        if atom is not None and atom.a_dtype.bytes != 2:
            across = [
                n for n in (first, second)
                if not _runs_along(graph, n, loop.axis, declared)
            ]  # fmt: skip
            if across:
                return f"operands of {atom.a_dtype} must be contiguous along {loop.axis}"
        return found
    return problem


def _runs_along(graph: Graph, number: int, axis: str, declared: Declared) -> bool:
    read = source_of(graph, number)
    if read is None:
        return False
    last = contiguous_position(declared.tensors[read.memory])
    return last is not None and read.type.axes[last] == axis


def _roles(
    graph: Graph,
    loop: ops.Iterate,
    contract: ops.Contract,
    operands: tuple[int, int],
    shape: Shape,
    hardware: Hardware,
    target: Target,
) -> Pipelined | str:
    """With the first operand's axis as rows of the instruction."""
    first, second = (graph.by_id[n].type for n in operands)
    rows = [a for a in first.axes if a not in second.axes]
    columns = [a for a in second.axes if a not in first.axes]
    if len(rows) != 1 or len(columns) != 1:
        return "an operand has several axes of its own"
    m, n, k = rows[0], columns[0], loop.axis
    if any(shape.tiles[a] != 1 for a in contract.type.axes if a not in (m, n)):
        return "a batch axis has tiles of several elements"
    groups = _consumers(shape.tiles[m], shape.tiles[n])
    if groups is None:
        return f"tiles of {shape.tiles[m]} by {shape.tiles[n]} do not suit warpgroups"
    down, along = groups
    asked = contract.atom or hardware.mma_type
    atom = _atom(first.dtype.name, contract.type.dtype.name, shape.tiles[n] // along, asked, target)
    if atom is None:
        instruction = asked or "no warpgroup instruction"
        tile = f"{shape.tiles[m]} by {shape.tiles[n]}"
        return f"{instruction} multiplies {first.dtype} tiles of {tile}"
    size = first.dtype.bytes
    step = shape.steps.get(k, ROW_BYTES // size)
    if step % atom.k or (step * size not in (32, 64) and (step * size) % ROW_BYTES):
        return f"steps of {step} terms do not fill rows of shared memory"
    count = down * along
    what = "one warpgroup copies, " + (
        "one multiplies" if count == 1 else f"{count} multiply, {down} by {along} of them"
    )
    plan = ContractPlan(atom.name, m, n, k, operands[0] == contract.lhs, f"{atom.name}; {what}")
    roles = Roles(loop.id, contract.id, count, PRODUCER_REGISTERS[count], CONSUMER_REGISTERS[count])
    warps = {a: w for a, w in ((m, GROUP_WARPS * down), (n, along)) if w > 1}
    return Pipelined(roles, plan, warps, step)


def _consumers(m: int, n: int) -> tuple[int, int] | None:
    """How many consumer warpgroups share rows and columns; None where none can."""
    if m % 64 or n % 8 or n > BOX or m > BOX:
        return None
    strips = m // 64
    for down in sorted((d for d in range(1, MOST_CONSUMERS + 1) if strips % d == 0), reverse=True):
        if strips // down * (n // 2) <= ACCUMULATORS[down]:
            return down, 1
    return None


def _atom(
    operand: str, result: str, columns: int, asked: str | None, target: Target
) -> MmaAtom | None:
    """The widest warpgroup instruction that divides the columns; with A from shared memory."""
    fitting = [
        a for a in target.mma_atoms
        if a.scope is Scope.WARPGROUP and a.a_source is Source.SHARED
        and (a.a_dtype.name, a.b_dtype.name, a.d_dtype.name) == (operand, operand, result)
        and columns % a.n == 0 and (asked is None or a.name == asked)
    ]  # fmt: skip
    # Single precision operands are rounded (tf32): only on request.
    usable = [a for a in fitting if a.a_dtype != f32 or asked is not None]
    return max(usable, key=lambda a: a.n, default=None)
