"""Reductions, statistics and products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.base.diagnostics import DTypeError, ShapeError
from tilewright.base.dtypes import DType, boolean, i32, i64
from tilewright.fusion import shapes
from tilewright.fusion.elementwise import Expander, Table
from tilewright.fusion.emit import Emitter, Operand, Value
from tilewright.fusion.promotion import Number, accumulator, join, summed, working

Dims = Sequence[int] | int | None


def _sum(name: str) -> Expander:
    def expand(
        e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False, dtype: DType | None = None
    ) -> Value:
        result = dtype or summed(x.dtype)
        over = shapes.dimensions(dims, x.rank, e.span)
        wide = e.cast(x, working(result))
        return e.cast(e.reduce(name, wide, over, keepdim), result)

    return expand


def _extremum(name: str) -> Expander:
    def expand(e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
        over = shapes.dimensions(dims, x.rank, e.span)
        if any(x.shape[d] == 0 for d in over):
            raise ShapeError(
                f"the {name} over no elements",
                span=e.span,
                expected="at least one element to reduce",
                mend="check the shape of the operand",
            )
        if x.dtype == boolean:
            return e.cast(e.reduce(name, e.cast(x, i32), over, keepdim), boolean)
        return e.cast(e.reduce(name, e.wide(x), over, keepdim), x.dtype)

    return expand


def any_(e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    over = shapes.dimensions(dims, x.rank, e.span)
    if any(x.shape[d] == 0 for d in over):
        return _identity(e, x, over, keepdim, value=False)
    found = e.reduce("max", e.cast(e.cast(x, boolean), i32), over, keepdim)
    return e.cast(found, boolean)


def all_(e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    over = shapes.dimensions(dims, x.rank, e.span)
    if any(x.shape[d] == 0 for d in over):
        return _identity(e, x, over, keepdim, value=True)
    found = e.reduce("min", e.cast(e.cast(x, boolean), i32), over, keepdim)
    return e.cast(found, boolean)


def _identity(e: Emitter, x: Value, dims: Sequence[int], keepdim: bool, *, value: bool) -> Value:
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    return e.constant(value, boolean, shape)


# ---------------------------------------------------------------- statistics


def _float(e: Emitter, x: Value, what: str) -> Value:
    if not x.dtype.is_float:
        raise DTypeError(
            f"the {what} of {x.dtype.name}",
            span=e.span,
            expected="a float type",
            mend="cast the operand first",
        )
    return e.wide(x)


def _count(x: Value, dims: Sequence[int]) -> int:
    return prod(x.shape[d] for d in dims)


def _scaled(e: Emitter, total: Value, count: Number) -> Value:
    return e.map("div", total, e.number(total, float(count)))


def mean(e: Emitter, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    over = shapes.dimensions(dims, x.rank, e.span)
    wide = _float(e, x, "mean")
    return e.cast(_scaled(e, e.reduce("add", wide, over, keepdim), _count(x, over)), x.dtype)


def _moments(
    e: Emitter, x: Value, dims: Dims, keepdim: bool, what: str
) -> tuple[Value, Value, int]:
    """Mean, sum of squared distances from it, and count, in the working type.

    In two passes: the first finds the mean, so that no digits cancel.
    """
    over = shapes.dimensions(dims, x.rank, e.span)
    wide = _float(e, x, what)
    count = _count(x, over)
    centre = _scaled(e, e.reduce("add", wide, over, keepdim=True), count)
    distance = e.map("sub", wide, centre)
    squares = e.reduce("add", e.map("mul", distance, distance), over, keepdim)
    if not keepdim:
        kept = [d for d in range(x.rank) if d not in over]
        centre = e.view(centre, kept, [x.shape[d] for d in kept])
    return centre, squares, count


def var(
    e: Emitter, x: Value, dims: Dims = None, correction: Number = 1, keepdim: bool = False
) -> Value:
    _, squares, count = _moments(e, x, dims, keepdim, "variance")
    return e.cast(_scaled(e, squares, max(count - correction, 0)), x.dtype)


def std(
    e: Emitter, x: Value, dims: Dims = None, correction: Number = 1, keepdim: bool = False
) -> Value:
    _, squares, count = _moments(e, x, dims, keepdim, "standard deviation")
    return e.cast(e.map("sqrt", _scaled(e, squares, max(count - correction, 0))), x.dtype)


def var_mean(
    e: Emitter, x: Value, dims: Dims = None, correction: Number = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    centre, squares, count = _moments(e, x, dims, keepdim, "variance")
    variance = _scaled(e, squares, max(count - correction, 0))
    return e.cast(variance, x.dtype), e.cast(centre, x.dtype)


def welford(e: Emitter, x: Value, dims: Dims = None) -> tuple[Value, Value, Value]:
    """Mean, sum of squared distances from it, and the number of elements."""
    centre, squares, count = _moments(e, x, dims, keepdim=False, what="moments")
    number = e.constant(count, i64, centre.shape)
    return e.cast(centre, x.dtype), e.cast(squares, x.dtype), number


# ---------------------------------------------------------------- products


def matmul(e: Emitter, a: Value, b: Value) -> Value:
    """Matrix product with torch's rules for vectors and batches."""
    product = _product(e, a, b)
    return e.cast(product, join(a.dtype, b.dtype, e.span))


def _product(e: Emitter, a: Value, b: Value) -> Value:
    """The product in the type that sums are kept in."""
    if not a.rank or not b.rank:
        raise ShapeError("a matrix product of a tensor without dimensions", span=e.span,
                         expected="vectors or matrices", mend="use mul")  # fmt: skip
    dtype = _operand_type(e, a, b)
    batch = shapes.broadcast([a.shape[:-2], b.shape[:-2]], e.span)
    count = len(batch)
    m, n, k = count, count + 1, count + 2
    left = [*_batch_labels(a, count), *((m,) if a.rank > 1 else ()), k]
    right = [*_batch_labels(b, count), k, *((n,) if b.rank > 1 else ())]
    rows = b.shape[-2 if b.rank > 1 else -1]
    shapes.same(a.shape[-1], rows, "the columns of the left operand and the rows of the right",
                e.span)  # fmt: skip
    labels, shape = list(range(count)), list(batch)
    if a.rank > 1:
        labels.append(m)
        shape.append(a.shape[-2])
    if b.rank > 1:
        labels.append(n)
        shape.append(b.shape[-1])
    return e.contract(a, b, left, right, labels, shape, dtype)


def _batch_labels(x: Value, count: int) -> list[int]:
    return list(range(count - max(x.rank - 2, 0), count))


def _operand_type(e: Emitter, a: Value, b: Value) -> DType:
    if a.dtype != b.dtype or a.dtype == boolean:
        raise DTypeError(
            f"a matrix product of {a.dtype.name} and {b.dtype.name}",
            span=e.span,
            expected="operands of one element type, floats or integers",
            mend=f"cast one of them to {a.dtype.name}",
        )
    return accumulator(a.dtype)


def linear(e: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x · weightᵀ + bias, for a weight of shape (out, in) or (in,)."""
    turned = weight if weight.rank < 2 else e.view(
        weight, [*range(weight.rank - 2), weight.rank - 1, weight.rank - 2],
        [*weight.shape[:-2], weight.shape[-1], weight.shape[-2]],
    )  # fmt: skip
    product = _product(e, x, turned)
    if bias is not None:
        product = e.map("add", product, e.cast(bias, product.dtype))
    return e.cast(product, join(x.dtype, weight.dtype, e.span))


def softmax(e: Emitter, x: Value, dim: int = -1) -> Value:
    axis = (shapes.dimension(dim, x.rank, e.span),)
    wide = _float(e, x, "softmax")
    high = e.reduce("max", wide, axis, keepdim=True)
    powers = e.map("exp", e.map("sub", wide, high))
    return e.cast(e.map("div", powers, e.reduce("add", powers, axis, keepdim=True)), x.dtype)


def rms_norm(e: Emitter, x: Value, weight: Value | None = None, eps: Operand = 1e-5) -> Value:
    """x / sqrt(mean(x²) + eps) over the last dimension, times weight."""
    wide = _float(e, x, "norm")
    last = (x.rank - 1,)
    square = _scaled(e, e.reduce("add", e.map("mul", wide, wide), last, keepdim=True), x.shape[-1])
    scale = e.map("rsqrt", e.map("add", square, e.operand(eps, wide.dtype)))
    result = e.map("mul", wide, scale)
    if weight is not None:
        result = e.map("mul", result, e.cast(weight, wide.dtype))
    return e.cast(result, x.dtype)


def layer_norm(
    e: Emitter, x: Value, weight: Value | None = None, bias: Value | None = None,
    eps: Operand = 1e-5,
) -> Value:  # fmt: skip
    """(x - mean) / sqrt(var + eps) over the last dimension, times weight, plus bias."""
    centre, squares, count = _moments(e, x, [x.rank - 1], keepdim=True, what="norm")
    variance = _scaled(e, squares, count)
    scale = e.map("rsqrt", e.map("add", variance, e.operand(eps, variance.dtype)))
    result = e.map("mul", e.map("sub", e.wide(x), centre), scale)
    if weight is not None:
        result = e.map("mul", result, e.cast(weight, result.dtype))
    if bias is not None:
        result = e.map("add", result, e.cast(bias, result.dtype))
    return e.cast(result, x.dtype)


TABLE: Table = {
    "sum": _sum("add"),
    "prod": _sum("mul"),
    "max": _extremum("max"),
    "min": _extremum("min"),
    "amax": _extremum("max"),
    "amin": _extremum("min"),
    "any": any_,
    "all": all_,
    "mean": mean,
    "var": var,
    "std": std,
    "var_mean": var_mean,
    "welford": welford,
    "matmul": matmul,
    "linear": linear,
    "softmax": softmax,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
}
