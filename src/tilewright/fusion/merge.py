"""One axis for several that lie side by side in every buffer, so that vectors are wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.fusion import ops
from tilewright.fusion.access import Access, dense
from tilewright.fusion.domains import Element
from tilewright.fusion.nests import real
from tilewright.fusion.ops import Program
from tilewright.fusion.segment import Segment


def merge_axes(
    program: Program, segment: Segment, orders: Mapping[int, Sequence[int]]
) -> dict[Element, int]:
    """The axes that remain, with their sizes. A merged axis goes by its innermost part.

    Two become one where every buffer and value has both or neither, the outer one steps over
    exactly the inner one's extent in every buffer, and no operation tells them apart.
    """
    sizes = dict(segment.sizes)
    tensors = list(_tensors(program, segment, orders))
    fixed, sums = _told_apart(program, segment)
    together = [*sums, *(real(axes) for axes in segment.axes.values()), *map(set, tensors)]

    def mergeable(inner: Element, outer: Element) -> bool:
        return (
            not {inner, outer} & fixed
            and all((inner in s) == (outer in s) for s in together)
            and all(t[outer] == t[inner] * sizes[inner] for t in tensors if inner in t)
        )

    for steps in tensors:
        order = sorted((e for e in steps if e in sizes), key=lambda e: steps[e])
        inner = order[0] if order else None
        for outer in order[1:]:
            if inner is not None and mergeable(inner, outer):
                sizes[inner] *= sizes.pop(outer)
            else:
                inner = outer
    return sizes


def _tensors(
    program: Program, segment: Segment, orders: Mapping[int, Sequence[int]]
) -> Iterator[dict[Element, int]]:
    """For each buffer that the kernel reads or writes, the stride along each axis."""
    for instance in segment.reads.values():
        if isinstance(instance.source, Access):
            axes = segment.axes[instance.carrier]
            steps = zip(axes, instance.source.strides, strict=True)
            yield {e: s for e, s in steps if e is not None}
    for number in segment.writes:
        shape = program.nodes[number].type.shape
        axes = segment.axes[number][: len(shape)]
        steps = zip(axes, dense(shape, orders.get(number)), strict=True)
        yield {e: s for e, s in steps if e is not None}


def _told_apart(program: Program, segment: Segment) -> tuple[set[Element], list[set[Element]]]:
    """Axes that coordinates are computed from, and the sets of axes that are reduced together."""
    fixed: set[Element] = set()
    sums: list[set[Element]] = []
    for number in segment.nodes:
        node = program.nodes[number]
        axes = segment.axes[number]
        sums.append(real(axes[node.type.rank :]))
        if isinstance(node, ops.Scan):
            fixed |= real((axes[node.dim],))
        if ops.moves(node):
            fixed |= real(axes)
    for instance in segment.reads.values():
        if not isinstance(instance.source, Access):
            fixed |= real(segment.axes[instance.carrier])
    return fixed, sums
