"""Which axes run along memory."""

from __future__ import annotations

from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.poly.expr import Expr


def contiguity_order(graph: Graph) -> tuple[str, ...]:
    """Axes from the most often contiguous in memory to the least. Writes count double."""
    writes = {op.memory for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)}
    score = dict.fromkeys(graph.axes, 0)
    for memory in graph.memories:
        if memory.type.axes:
            weight = (2 if memory.name in writes else 1) * len(memory.type.axes)
            score[contiguous_axis(memory)] += weight
    return tuple(sorted(score, key=lambda a: -score[a]))


def contiguous_axis(memory: ops.Memory) -> str:
    """The axis of stride 1; the last where none is known to be."""
    if memory.strides is not None:
        for axis, stride in zip(memory.type.axes, memory.strides, strict=True):
            if stride == Expr.of(1):
                return axis
    return memory.type.axes[-1]
