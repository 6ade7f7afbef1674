"""Buffers read in place: a value that only moves elements of a buffer, as an offset and strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.fusion import ops


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a buffer. `buffer` is the node that fills it; strides count elements.

    A stride of 0 stands at a dimension along which nothing changes, and at those of size 1.
    """

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def dense(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides of dense memory. `order` ranks the dimensions, 0 the innermost; else row-major."""
    rank = order if order is not None else range(len(shape) - 1, -1, -1)
    return tuple(
        prod(max(n, 1) for n, r in zip(shape, rank, strict=True) if r < own) for own in rank
    )


def whole(buffer: int, shape: Sequence[int], strides: Sequence[int]) -> Access:
    steps = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    return Access(buffer, 0, tuple(shape), steps)


def through(access: Access, node: ops.Node) -> Access | None:
    """The access of a View, Move or Reshape of an accessed value; None where it is none."""
    match node:
        case ops.View():
            return _view(access, node)
        case ops.Move(fill=None) if all(s > 0 for s in node.steps):
            return _move(access, node)
        case ops.Reshape():
            return _reshape(access, node)
        case _:
            return None


def _view(access: Access, node: ops.View) -> Access:
    steps = tuple(0 if d is None else access.strides[d] for d in node.dims)
    steps = tuple(0 if n == 1 else s for n, s in zip(node.type.shape, steps, strict=True))
    return Access(access.buffer, access.offset, node.type.shape, steps)


def _move(access: Access, node: ops.Move) -> Access:
    offset = access.offset + sum(a * s for a, s in zip(node.starts, access.strides, strict=True))
    steps = tuple(
        0 if n == 1 else s * k
        for n, s, k in zip(node.type.shape, access.strides, node.steps, strict=True)
    )
    return Access(access.buffer, offset, node.type.shape, steps)


def _reshape(access: Access, node: ops.Reshape) -> Access | None:
    """Possible where each run of old dimensions that is regrouped is dense in itself."""
    steps = [0] * node.type.rank
    for old, new in groups(access.shape, node.type.shape):
        inner = access.strides[old[-1]]
        reach = inner
        for d in reversed(old):
            if access.strides[d] != reach:
                return None
            reach *= access.shape[d]
        step = inner
        for d in reversed(new):
            steps[d] = step
            step *= node.type.shape[d]
    return Access(access.buffer, access.offset, node.type.shape, tuple(steps))


def groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of old and new dimensions of equal sizes, size 1 left out.

    >>> groups([6, 4], [2, 3, 4])
    [([0], [0, 1]), ([1], [2])]
    """
    before = [d for d, n in enumerate(old) if n != 1]
    after = [d for d, n in enumerate(new) if n != 1]
    found: list[tuple[list[int], list[int]]] = []
    while before and after:
        left, right = [before.pop(0)], [after.pop(0)]
        while (a := prod(old[d] for d in left)) != (b := prod(new[d] for d in right)):
            if a < b:
                left.append(before.pop(0))
            else:
                right.append(after.pop(0))
        found.append((left, right))
    return found
