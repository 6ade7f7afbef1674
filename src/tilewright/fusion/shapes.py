"""Shapes of results. A size of -1 is not known yet: it fits every size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.base.diagnostics import ShapeError
from tilewright.base.spans import Span

Shape = tuple[int, ...]


def show(shape: Sequence[int]) -> str:
    return "[" + ", ".join("?" if n < 0 else str(n) for n in shape) + "]"


def broadcast(shapes: Sequence[Sequence[int]], span: Span | None) -> Shape:
    """The shape that all operands spread to: the last dimensions meet, 1 fits every size."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for back in range(1, len(shape) + 1):
            size, known = shape[-back], result[-back]
            if size in (known, 1):
                continue
            if known in (1, -1):
                result[-back] = size
            elif size != -1:
                raise ShapeError(
                    f"operands of shapes {' and '.join(show(s) for s in shapes)}: {known} and "
                    f"{size} elements meet in dimension {rank - back}",
                    span=span,
                    expected="equal sizes, or 1 where an operand does not change",
                    mend="broadcast or reshape one of them",
                )
    return tuple(result)


def dimension(dim: int, rank: int, span: Span | None) -> int:
    """A dimension counted from the front. ShapeError where there is none such."""
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise ShapeError(
            f"there is no dimension {dim}",
            span=span,
            expected=f"{-limit} to {limit - 1}, for a tensor of {rank} dimensions",
            mend="check the dimension's number",
        )
    return dim % limit


def dimensions(dims: Sequence[int] | int | None, rank: int, span: Span | None) -> Shape:
    """Distinct dimensions in order, all of them for None or none given."""
    if isinstance(dims, int):
        dims = (dims,)
    if not dims:
        return tuple(range(rank))
    found = [dimension(d, rank, span) for d in dims]
    if len(set(found)) != len(found):
        raise ShapeError(
            f"the dimensions {list(dims)} name one twice",
            span=span,
            expected="each dimension at most once",
            mend="leave the second one out",
        )
    return tuple(sorted(d for d in found if d < rank))


def reduced(shape: Sequence[int], dims: Sequence[int]) -> Shape:
    """The shape without these dimensions."""
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def reshaped(shape: Sequence[int], wanted: Sequence[int], span: Span | None) -> Shape:
    """`wanted` with its one -1 derived. ShapeError where the numbers of elements differ."""
    if sum(n == -1 for n in wanted) > 1 or any(n < -1 for n in wanted):
        raise ShapeError(
            f"the new shape {list(wanted)} leaves more than one size open",
            span=span,
            expected="at most one -1",
            mend="write the other sizes",
        )
    if any(n < 0 for n in shape):
        return tuple(wanted)
    total, rest = prod(shape), prod(n for n in wanted if n != -1)
    if -1 in wanted and rest and total % rest == 0:
        return tuple(total // rest if n == -1 else n for n in wanted)
    if -1 in wanted or total != rest:
        raise ShapeError(
            f"a tensor of shape {show(shape)} is reshaped to {list(wanted)}",
            span=span,
            expected=f"{total} elements",
            mend="check the new sizes",
        )
    return tuple(wanted)


def spread(size: int, wanted: int, dim: int, span: Span | None) -> int:
    """A size that becomes `wanted` (-1: stays) by repeating one element."""
    if wanted in (-1, size):
        return size
    if size in (1, -1):
        return wanted
    raise ShapeError(
        f"dimension {dim} has {size} elements and cannot become {wanted}",
        span=span,
        expected="1 element, or the same number",
        mend="check the expanded sizes",
    )


def same(left: int, right: int, what: str, span: Span | None) -> int:
    """Two sizes that must agree, as the one that is known."""
    if left == -1:
        return right
    if right not in (-1, left):
        raise ShapeError(
            f"{what}: {left} and {right} elements",
            span=span,
            expected="one size",
            mend="check the shapes of the operands",
        )
    return left
