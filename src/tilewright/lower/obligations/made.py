"""Whether the lowered program combines terms at all, where the tile program asks for it.

The other obligations read the kernel alone: where every sum is missing as a whole, they find
nothing to look at.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph import ops
from tilewright.graph.ops import Graph, Op
from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import Kernel, Mma, Reduce, walk
from tilewright.poly.results import Kind, Obligation, Proved, Refuted


def sums_made(graph: Graph, kernel: Kernel) -> Iterator[Obligation]:
    """One obligation, where what is written needs sums or products of terms."""
    asked = next((op for op in _needed(graph) if isinstance(op, ops.Contract | ops.ReduceOp)), None)
    if asked is None:
        return
    made = any(isinstance(s, Mma | WarpgroupMma | Reduce) for s in walk(kernel.body))
    axis = asked.axis if isinstance(asked, ops.ReduceOp) else asked.contracted[-1]
    result = Proved() if made else Refuted(f"no term of {axis} is ever counted")
    yield Obligation(Kind.REDUCTION, axis, result, asked.span, "sums of the program")


def _needed(graph: Graph) -> Iterator[Op]:
    """The operations that what is written depends on."""
    pending = [
        op.id for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp | ops.Conditional)
    ]
    seen: set[int] = set()
    while pending:
        number = pending.pop()
        if number not in seen:
            seen.add(number)
            yield graph.by_id[number]
            pending += ops.operands(graph.by_id[number])
