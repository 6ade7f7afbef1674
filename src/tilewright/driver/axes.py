"""The named axes of a kernel's tensors, as far as a coordinate keeps its meaning throughout."""

from __future__ import annotations

from tilewright.graph.ops import Gather, Graph, Remap, Reshape, Scan, walk

_MOVING = (Gather, Remap, Reshape, Scan)  # an element is not at the coordinates of its operand


def named_axes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The axes of each tensor argument by its name; none where an operation moves elements."""
    if any(isinstance(op, _MOVING) for op in walk(graph.body)):
        return {}
    return {m.name: tuple(m.type.axes) for m in graph.memories if not m.allocated}
