"""Tiles of tensors whose axes the program splits: ``a[m, k]`` used as ``a[m, kb, ki]``.

A reshape that only splits axes moves nothing: a coordinate of the tensor is a number whose
digits are the new axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.graph.ops import Graph


@dataclass(frozen=True, slots=True)
class Split:
    """A read as the program uses it. `value` is the read or its reshape; `digits` gives the
    value's axes that make up each axis of the tensor, the outermost first."""

    value: int
    digits: Mapping[str, tuple[str, ...]]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(d for digits in self.digits.values() for d in digits)

    def of(self, axis: str) -> str | None:
        """The axis of the tensor whose last digit an axis of the value is."""
        return next((a for a, digits in self.digits.items() if digits[-1] == axis), None)


def split_of(graph: Graph, read: ops.ReadOp) -> Split:
    """How the program uses a read; one that it does not reshape is used as it is."""
    users = {graph.by_id[n].id for n in graph.uses.get(read.id, ())}
    only = graph.by_id[users.pop()] if len(users) == 1 else None
    if isinstance(only, ops.Reshape):
        digits = _digits(graph, read.type.axes, only.type.axes)
        if digits is not None:
            return Split(only.id, digits)
    return Split(read.id, {axis: (axis,) for axis in read.type.axes})


def split_read(graph: Graph, op: ops.Op) -> ops.ReadOp | None:
    """The read of which an operation only splits axes."""
    source = graph.by_id[op.value] if isinstance(op, ops.Reshape) else None
    if not isinstance(source, ops.ReadOp) or split_of(graph, source).value != op.id:
        return None
    return source


def _digits(
    graph: Graph, old: tuple[str, ...], new: tuple[str, ...]
) -> dict[str, tuple[str, ...]] | None:
    """The new axes that make up each old one; None where some are merged."""
    rest, found = list(new), dict[str, tuple[str, ...]]()
    for axis in old:
        group: list[str] = []
        left = graph.axes[axis].const
        if rest and rest[0] == axis:
            found[axis] = (rest.pop(0),)
            continue
        if not graph.axes[axis].is_const:
            return None
        while left > 1 and rest and graph.axes[rest[0]].is_const:
            size = graph.axes[rest[0]].const
            if left % size:
                return None
            left //= size
            group.append(rest.pop(0))
        if left != 1 or not group:
            return None
        found[axis] = tuple(group)
    return None if rest else found
