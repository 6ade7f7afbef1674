"""Operations whose reads follow data, and running sums.

An index that is out of range gives zero, where torch would raise an error; negative ones do not
count from the end.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.diagnostics import ShapeError
from tilewright.base.dtypes import DType
from tilewright.fusion import shapes
from tilewright.fusion.elementwise import Table
from tilewright.fusion.emit import Emitter, Operand, Value
from tilewright.fusion.movement import narrow, squeeze
from tilewright.fusion.promotion import summed, working


def _spread(e: Emitter, index: Value, dim: int, rank: int) -> Value:
    """A vector of indices along one dimension of a result."""
    dims = [0 if d == dim else None for d in range(rank)]
    return e.view(index, dims, [index.shape[0] if d == dim else 1 for d in range(rank)])


def index_select(e: Emitter, x: Value, index: Value, dim: int) -> Value:
    """The slices of `x` along `dim` that a vector of indices names."""
    dim = shapes.dimension(dim, x.rank, e.span)
    if index.rank > 1:
        raise ShapeError(
            f"an index of {index.rank} dimensions", span=e.span, expected="a vector",
            mend="use gather or take_along_axis",
        )  # fmt: skip
    if not index.rank:
        index = e.view(index, [None], [1])
    shape = [index.shape[0] if d == dim else n for d, n in enumerate(x.shape)]
    dims = [None if d == dim else d for d in range(x.rank)]
    return e.gather(x, _spread(e, index, dim, x.rank), dim, dims, shape)


def select(e: Emitter, x: Value, index: Operand, dim: int) -> Value:
    """The elements at one place of a dimension, which the result lacks."""
    dim = shapes.dimension(dim, x.rank, e.span)
    if isinstance(index, Value):
        if index.type.elements not in (1, -1):
            raise ShapeError(
                f"a place of shape {shapes.show(index.shape)}", span=e.span,
                expected="one number", mend="use index_select",
            )  # fmt: skip
        place = e.view(index, [], [])
        shape = shapes.reduced(x.shape, [dim])
        dims = [None if d == dim else d - (d > dim) for d in range(x.rank)]
        return e.gather(x, place, dim, dims, shape)
    size, place = x.shape[dim], int(index)
    if size >= 0 and not -size <= place < size:
        raise ShapeError(
            f"dimension {dim} has no place {place}", span=e.span,
            expected=f"{-size} to {size - 1}", mend="check the index",
        )  # fmt: skip
    part = narrow(e, x, dim, place + size if place < 0 else place, 1)
    one = [1 if d == dim else n for d, n in enumerate(part.shape)]
    return squeeze(e, e.view(part, range(x.rank), one), [dim])


def gather(e: Emitter, x: Value, index: Value, dim: int) -> Value:
    """Element i is x's at i, but for `dim`, where it is index[i]; the index may be smaller."""
    dim = shapes.dimension(dim, x.rank, e.span)
    fits = x.rank == index.rank and all(
        d == dim or -1 in (n, m) or n <= m
        for d, (n, m) in enumerate(zip(index.shape, x.shape, strict=False))
    )
    if not fits:
        raise ShapeError(
            f"a tensor {x.type} is gathered from with an index {index.type}",
            span=e.span,
            expected="as many dimensions, none but the gathered one larger than the tensor's",
            mend="broadcast the index, or use take_along_axis",
        )
    shape = [x.shape[d] if d == dim else n for d, n in enumerate(index.shape)]
    part = e.move(x, [0] * x.rank, [1] * x.rank, shape)
    dims = [None if d == dim else d for d in range(x.rank)]
    return e.gather(part, index, dim, dims, index.shape)


def take_along_axis(e: Emitter, x: Value, index: Value, dim: int) -> Value:
    """As gather, the other dimensions of both broadcast."""
    dim = shapes.dimension(dim, x.rank, e.span)
    if x.rank != index.rank:
        raise ShapeError(
            f"a tensor {x.type} is taken from with an index {index.type}", span=e.span,
            expected="as many dimensions", mend="broadcast the index",
        )  # fmt: skip
    rest = [shapes.reduced(v.shape, [dim]) for v in (x, index)]
    shape = list(shapes.broadcast(rest, e.span))
    shape.insert(dim, index.shape[dim])
    dims = [None if d == dim else d for d in range(x.rank)]
    return e.gather(x, index, dim, dims, shape)


def embedding(e: Emitter, index: Value, weight: Value) -> Value:
    """Rows of a table: the index's shape, then the row's."""
    shape = (*index.shape, *weight.shape[1:])
    places = [None, *range(index.rank, len(shape))]
    spread = e.view(
        index, [*range(index.rank), *(None for _ in weight.shape[1:])],
        [*index.shape, *(1 for _ in weight.shape[1:])],
    )  # fmt: skip
    return e.gather(weight, spread, 0, places, shape)


# ---------------------------------------------------------------- running sums


def _running(name: str) -> Callable[..., Value]:
    def expand(e: Emitter, x: Value, dim: int, dtype: DType | None = None) -> Value:
        result = dtype or summed(x.dtype)
        dim = shapes.dimension(dim, x.rank, e.span)
        if not x.rank or x.type.is_empty:
            return e.cast(x, result)
        wide = e.cast(x, working(result))
        return e.cast(e.scan(name, wide, dim), result)

    return expand


TABLE: Table = {
    "select": select,
    "index_select": index_select,
    "gather": gather,
    "take_along_axis": take_along_axis,
    "embedding": embedding,
    "cumsum": _running("add"),
    "cumprod": _running("mul"),
}
