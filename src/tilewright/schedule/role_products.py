"""The loop over one product that warp roles can run: its operands, its terms, its arithmetic.

The loop may do more than multiply: values that are read, and values that it carries, go into
element-by-element arithmetic with the product. The product may start at the carried value, at
zero in each step, or at anything else. One operand may be computed from tiles that are copied
ahead; it then reaches the instruction through registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.boxes import bulk_problem
from tilewright.schedule.own_terms import masked_by_group
from tilewright.schedule.ragged import group_gather, unpermuted
from tilewright.schedule.splits import split_of, split_read
from tilewright.schedule.tensors import Declared


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of the product. `reads` are the tiles that are copied ahead for it: the operand
    itself, or (where it is `computed`) what threads make it of."""

    value: int
    reads: tuple[ops.ReadOp, ...]
    computed: bool


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A loop with one product, summed over `k` in each step.

    `in_place`: the loop does nothing else but add the product onto what it carries.
    """

    loop: ops.Iterate
    product: ops.Contract
    k: str
    in_place: bool
    lhs: Factor
    rhs: Factor

    @property
    def computed(self) -> Factor | None:
        return next((f for f in (self.lhs, self.rhs) if f.computed), None)


VALUES = (
    ops.ReadOp, ops.View, ops.Param, ops.Constant, ops.ScalarRead, ops.Index, ops.Extent,
    ops.Elementwise, ops.CastOp, ops.ReduceOp, ops.Contract, ops.Reshape, ops.Remap, ops.Gather,
)  # fmt: skip


def find_product(graph: Graph, declared: Declared) -> Multiplied | str:
    """The graph's loop over a product, or why warp roles do not suit it."""
    loops = [op for op in ops.walk(graph.body) if isinstance(op, ops.Iterate)]
    products = [op for op in ops.walk(graph.body) if isinstance(op, ops.Contract)]
    if len(loops) != 1 or len(products) != 1 or loops[0] not in graph.body:
        return "the program is not one loop over one product"
    loop, product = loops[0], products[0]
    if product not in loop.body:
        return "the product is not in the loop"
    if not all(isinstance(op, VALUES) for op in loop.body):
        return "the loop does more than compute values"
    k = _terms(graph, loop, product)
    if k is None:
        return f"the product is not summed over {loop.axis} alone"
    both = [_factor(graph, loop, product, n, declared) for n in (product.lhs, product.rhs)]
    lhs, rhs = both
    if isinstance(lhs, str) or isinstance(rhs, str):
        return lhs if isinstance(lhs, str) else str(rhs)
    if lhs.computed and rhs.computed:
        return "both operands are computed, not read"
    return Multiplied(loop, product, k, _in_place(graph, loop, product), lhs, rhs)


def _terms(graph: Graph, loop: ops.Iterate, product: ops.Contract) -> str | None:
    """The axis that instructions sum over: the loop's, or one that lies within its steps."""
    if loop.axis not in graph.by_id[product.lhs].type.axes:
        return None
    if loop.axis not in graph.by_id[product.rhs].type.axes:
        return None
    inner = [a for a in product.contracted if a != loop.axis]
    if len(inner) > 1:
        return None
    return inner[0] if inner else loop.axis


def _in_place(graph: Graph, loop: ops.Iterate, product: ops.Contract) -> bool:
    return (
        loop.results == (product.id,)
        and loop.params == (product.acc,)
        and graph.uses.get(product.acc) == (product.id,)
        and graph.uses.get(product.id) == (loop.id,)
    )


# ---------------------------------------------------------------- operands


def source_of(graph: Graph, number: int) -> ops.ReadOp | None:
    """The read that a value is, with its axes in another order or split perhaps, or of a row's
    group."""
    op = unpermuted(graph, number)
    if split := split_read(graph, op):
        return split
    if isinstance(op, ops.Gather) and group_gather(graph, number):
        op = unpermuted(graph, op.value)
    elif masked := masked_by_group(graph, number):
        op = unpermuted(graph, masked.value)
    return op if isinstance(op, ops.ReadOp) else None


def _factor(
    graph: Graph, loop: ops.Iterate, product: ops.Contract, number: int, declared: Declared
) -> Factor | str:
    """How an operand reaches the instructions, or why the copy engine cannot fetch it."""
    alone = source_of(graph, number)
    made = list(made_of(graph, number))
    plain = (isinstance(op, _COMPUTED) or split_read(graph, op) for op in made)
    if alone is None and not all(plain):
        return "an operand is neither read nor computed element by element"
    axes = graph.by_id[number].type.axes
    reads = [
        op for op in made
        if isinstance(op, ops.ReadOp)
        and (op is alone or set(split_of(graph, op).axes) == set(axes))
    ]  # fmt: skip
    if not reads:
        return "no tile of a tensor is behind an operand"
    written = {op.memory for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)}
    readers = {product.id, *(op.id for op in made)}
    for read in reads:
        if read not in loop.body:
            return f"the tile of {read.memory} is not read in the loop"
        if graph.memory(read.memory).allocated or read.memory in written:
            return f"{read.memory} is also written"
        if problem := bulk_problem(declared.tensors[read.memory], declared):
            return problem
        if not set(graph.uses[read.id]) <= readers:
            return f"the tile of {read.memory} has other readers"
    if len({product.lhs, product.rhs}) == 1:
        return "both operands are one tile"
    return Factor(number, tuple(dict.fromkeys(reads)), alone is None)


_COMPUTED = (
    ops.ReadOp, ops.View, ops.Constant, ops.ScalarRead, ops.Index, ops.Extent, ops.Elementwise,
    ops.CastOp,
)  # fmt: skip


def made_of(graph: Graph, number: int) -> Iterator[ops.Op]:
    """A value and everything that it is computed from, each once."""
    pending, seen = [number], set[int]()
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            yield graph.by_id[current]
            pending.extend(ops.operands(graph.by_id[current]))
