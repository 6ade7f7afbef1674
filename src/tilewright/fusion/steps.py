"""Sums over a batch of a contraction: the batch becomes the steps of the contraction's loop.

``sum((a @ b) * scale, batch)``: each step's product is scaled and added to one sum.
"""

from __future__ import annotations

from tilewright.fusion import ops
from tilewright.fusion.nests import real
from tilewright.fusion.ops import Program
from tilewright.fusion.segment import Segment


def steps_of(program: Program, segment: Segment) -> dict[int, tuple[int, ...]]:
    """For each such sum of a segment, the nodes that a step computes, in order."""
    kinds = {n: program.nodes[n] for n in segment.nodes}
    products = [n for n, node in kinds.items() if isinstance(node, ops.Contract)]
    found: dict[int, tuple[int, ...]] = {}
    for number, node in kinds.items():
        if not products or not isinstance(node, ops.Reduce):
            continue
        steps = real(segment.axes[number][node.type.rank :])
        found[number] = tuple(
            n for n in segment.nodes if n != number and real(segment.axes[n]) & steps
        )
    return found
