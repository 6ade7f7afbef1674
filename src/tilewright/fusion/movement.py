"""Operations that move, repeat and make elements, none of which computes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from tilewright.base.diagnostics import ShapeError
from tilewright.base.dtypes import DType, f32, i64
from tilewright.fusion import shapes
from tilewright.fusion.elementwise import Table, cast
from tilewright.fusion.emit import Emitter, Operand, Value, operand_type
from tilewright.fusion.promotion import Number, promote, working


def _refuse(e: Emitter, message: str, expected: str, mend: str) -> NoReturn:
    raise ShapeError(message, span=e.span, expected=expected, mend=mend)


def broadcast(e: Emitter, x: Value, is_broadcast_dim: Sequence[bool]) -> Value:
    """New dimensions of size 1 where `is_broadcast_dim` is set."""
    old = [i for i, new in enumerate(is_broadcast_dim) if not new]
    if len(old) != x.rank:
        _refuse(
            e, f"is_broadcast_dim keeps {len(old)} dimensions of {x.rank}",
            "one False for each dimension of the tensor", "check is_broadcast_dim",
        )  # fmt: skip
    left = iter(range(x.rank))
    dims = [None if new else next(left) for new in is_broadcast_dim]
    return e.view(x, dims, [1 if d is None else x.shape[d] for d in dims])


def broadcast_in_dim(
    e: Emitter, x: Value, shape: Sequence[int], broadcast_dims: Sequence[int]
) -> Value:
    """Dimension i of the tensor becomes `broadcast_dims[i]` of the result, of this shape."""
    if len(broadcast_dims) != x.rank or list(broadcast_dims) != sorted(set(broadcast_dims)):
        _refuse(
            e, f"broadcast_dims {list(broadcast_dims)} for a tensor of {x.rank} dimensions",
            "one rising number for each dimension of the tensor", "check broadcast_dims",
        )  # fmt: skip
    dims: list[int | None] = [None] * len(shape)
    sizes = [max(n, 1) if n == -1 else n for n in shape]
    for source, dim in enumerate(broadcast_dims):
        dim = shapes.dimension(dim, len(shape), e.span)
        dims[dim] = source
        sizes[dim] = shapes.spread(x.shape[source], shape[dim], dim, e.span)
    return e.view(x, dims, sizes)


def expand(e: Emitter, x: Value, shape: Sequence[int]) -> Value:
    """Repeat along dimensions of size 1; -1 keeps a size. New dimensions come in front."""
    new = len(shape) - x.rank
    if new < 0:
        _refuse(
            e, f"a tensor of {x.rank} dimensions is expanded to {len(shape)}",
            f"at least {x.rank} sizes", "list every dimension",
        )  # fmt: skip
    sizes = [
        shapes.spread(1 if d < new else x.shape[d - new], n, d, e.span) for d, n in enumerate(shape)
    ]
    return e.expand(x, sizes)


def expand_as(e: Emitter, x: Value, other: Value) -> Value:
    return expand(e, x, other.shape)


def reshape(e: Emitter, x: Value, new_shape: Sequence[int]) -> Value:
    return e.reshape(x, shapes.reshaped(x.shape, new_shape, e.span))


def permute(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    order = [shapes.dimension(d, x.rank, e.span) for d in dims]
    if sorted(order) != list(range(x.rank)):
        _refuse(
            e, f"{list(dims)} is no order of {x.rank} dimensions",
            "each dimension once", "list every dimension of the tensor",
        )  # fmt: skip
    return e.view(x, order, [x.shape[d] for d in order])


def transpose(e: Emitter, x: Value, dim0: int = -2, dim1: int = -1) -> Value:
    a, b = (shapes.dimension(d, x.rank, e.span) for d in (dim0, dim1))
    order = list(range(x.rank))
    order[a], order[b] = b, a
    return permute(e, x, order)


def squeeze(e: Emitter, x: Value, dims: Sequence[int] | int | None = None) -> Value:
    """Drop the named dimensions, which must have size 1; for None all that have."""
    if dims is None:
        if -1 in x.shape:
            _refuse(
                e, "which dimensions have size 1 is not known", "dimensions to drop by number",
                "name them: squeeze(x, dims=[..])",
            )  # fmt: skip
        dims = [d for d, n in enumerate(x.shape) if n == 1]
    listed = (dims,) if isinstance(dims, int) else dims
    named = {shapes.dimension(d, x.rank, e.span) for d in listed}
    for d in named:
        if d < x.rank and x.shape[d] not in (1, -1):
            _refuse(
                e, f"dimension {d} has {x.shape[d]} elements and cannot be dropped",
                "a dimension of size 1", "select one of its elements, or reduce it",
            )  # fmt: skip
    kept = [d for d in range(x.rank) if d not in named]
    return e.view(x, kept, [x.shape[d] for d in kept])


def unsqueeze(e: Emitter, x: Value, dim: int) -> Value:
    dim = shapes.dimension(dim, x.rank + 1, e.span)
    return broadcast(e, x, [d == dim for d in range(x.rank + 1)])


def slice_(
    e: Emitter, x: Value, start_indices: Sequence[int], end_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """Elements start, start + stride, .. below end; negative ends count from the back."""
    strides = strides or [1] * x.rank
    if not len(start_indices) == len(end_indices) == len(strides) == x.rank:
        _refuse(
            e, f"a slice of {len(start_indices)} dimensions of a tensor of {x.rank}",
            "a start, an end and a stride for each dimension", "list every dimension",
        )  # fmt: skip
    if any(s < 1 for s in strides):
        _refuse(e, f"slice strides {list(strides)}", "strides of at least 1", "use flip")
    starts: list[int] = []
    sizes: list[int] = []
    for size, start, end, step in zip(x.shape, start_indices, end_indices, strides, strict=True):
        if size == -1:
            starts.append(start)
            sizes.append(-1)
            continue
        start, end = (min(max(i + size if i < 0 else i, 0), size) for i in (start, end))
        starts.append(start if start < end else 0)
        sizes.append(max(0, -(-(end - start) // step)))
    return e.move(x, starts, list(strides), sizes)


def narrow(e: Emitter, x: Value, dim: int, start: int, length: int) -> Value:
    """`length` elements of one dimension from `start`."""
    dim = shapes.dimension(dim, x.rank, e.span)
    starts = [start if d == dim else 0 for d in range(x.rank)]
    ends = [start + length if d == dim else max(n, 2**31 if n < 0 else n)
            for d, n in enumerate(x.shape)]  # fmt: skip
    return slice_(e, x, starts, ends)


def _with(shape: Sequence[int], dim: int, size: int) -> list[int]:
    return [size if d == dim else n for d, n in enumerate(shape)]


def pad(e: Emitter, x: Value, widths: Sequence[int], value: Number = 0) -> Value:
    """Pairs (before, after), the last dimension's first; negative widths cut off."""
    if len(widths) % 2 or len(widths) // 2 > x.rank:
        _refuse(
            e, f"{len(widths)} pad widths for {x.rank} dimensions",
            "two for each padded dimension, the last dimension first", "check widths",
        )  # fmt: skip
    before, after = [0] * x.rank, [0] * x.rank
    for number in range(len(widths) // 2):
        before[-1 - number], after[-1 - number] = widths[2 * number : 2 * number + 2]
    sizes = [n if n < 0 else n + a + b for n, a, b in zip(x.shape, before, after, strict=True)]
    if any(n < -1 or (n < 0 <= old) for n, old in zip(sizes, x.shape, strict=True)):
        _refuse(e, f"pad widths {list(widths)} cut off more than there is",
                "a size of at least 0", "check widths")  # fmt: skip
    return e.move(x, [-a for a in before], [1] * x.rank, sizes, value)


def cat(e: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    """One after the other along a dimension: at each element one of them is read."""
    if not tensors:
        _refuse(e, "a concatenation of nothing", "at least one tensor", "pass the tensors")
    dtype = promote([t.type for t in tensors], e.span)
    # torch lets an empty vector stand beside tensors of any rank.
    rank = max(t.rank for t in tensors)
    void = [t.shape == (0,) or (t.shape == (-1,) and rank > 1) for t in tensors]
    parts = [e.cast(t, dtype) for t, skip in zip(tensors, void, strict=True) if not skip]
    parts = parts or [e.cast(tensors[0], dtype)]
    dim = shapes.dimension(dim, parts[0].rank, e.span)
    shape = parts[0].shape
    for part in parts[1:]:
        if part.rank != len(shape):
            _refuse(e, f"tensors of {len(shape)} and {part.rank} dimensions are joined",
                    "tensors of one rank", "reshape one of them")  # fmt: skip
        shape = tuple(
            n if d == dim else shapes.same(n, part.shape[d], f"dimension {d}", e.span)
            for d, n in enumerate(shape)
        )
    sizes = [p.shape[dim] for p in parts]
    total = -1 if -1 in sizes else sum(sizes)
    shape = tuple(_with(shape, dim, total))
    parts = [p for p in parts if p.shape[dim] != 0] or parts[:1]
    result, end = _placed(e, parts[-1], dim, total - parts[-1].shape[dim], shape), total
    end -= parts[-1].shape[dim]
    place = e.view(e.iota(total), [0 if d == dim else None for d in range(len(shape))],
                   [total if d == dim else 1 for d in range(len(shape))])  # fmt: skip
    for part in reversed(parts[:-1]):
        here = e.map("lt", place, e.constant(end, i64))
        end -= part.shape[dim]
        result = e.map("select", here, _placed(e, part, dim, end, shape), result)
    return result


def _placed(e: Emitter, part: Value, dim: int, start: int, shape: Sequence[int]) -> Value:
    starts = [-start if d == dim else 0 for d in range(len(shape))]
    return e.move(part, starts, [1] * len(shape), shape, 0)


def stack(e: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = shapes.dimension(dim, tensors[0].rank + 1 if tensors else 1, e.span)
    return cat(e, [unsqueeze(e, t, dim) for t in tensors], dim)


def flip(e: Emitter, x: Value, dims: Sequence[int] | int) -> Value:
    turned = shapes.dimensions(dims, x.rank, e.span) if not isinstance(dims, int) else (
        shapes.dimension(dims, x.rank, e.span),)  # fmt: skip
    if not isinstance(dims, int) and not dims:
        turned = ()
    starts = [n - 1 if d in turned else 0 for d, n in enumerate(x.shape)]
    if x.type.is_empty:
        return x
    return e.move(x, starts, [-1 if d in turned else 1 for d in range(x.rank)], x.shape)


def full(
    e: Emitter, shape: Sequence[int], fill_value: Operand, dtype: DType | None = None
) -> Value:
    kind = dtype or (operand_type(fill_value).dtype)
    if dtype is None and isinstance(fill_value, float):
        kind = f32
    if isinstance(fill_value, Value):
        return e.expand(e.cast(fill_value, kind), shape)
    return e.constant(fill_value, kind, shape)


def zeros(e: Emitter, shape: Sequence[int], dtype: DType = f32) -> Value:
    return e.constant(0, dtype, shape)


def ones(e: Emitter, shape: Sequence[int], dtype: DType = f32) -> Value:
    return e.constant(1, dtype, shape)


def full_like(e: Emitter, x: Value, fill_value: Operand, dtype: DType | None = None) -> Value:
    return full(e, x.shape, fill_value, dtype or x.dtype)


def iota(e: Emitter, length: int, start: Number = 0, step: Number = 1, dtype: DType = i64) -> Value:
    """start, start + step, .., of this length."""
    if length < 0:
        _refuse(e, f"an iota of {length} elements", "at least 0", "check the length")
    whole = not isinstance(start, float) and not isinstance(step, float)
    if whole and not dtype.is_float:
        count = e.iota(length)
        scaled = count if step == 1 else e.map("mul", count, e.number(count, step))
        moved = scaled if start == 0 else e.map("add", scaled, e.number(count, start))
        return cast(e, moved, dtype)
    kind = working(dtype) if dtype.is_float else f32
    count = e.iota(length, kind)
    value = e.map("add", e.map("mul", count, e.number(count, step)), e.number(count, start))
    return e.cast(value, dtype)


def arange(e: Emitter, end: int, dtype: DType = i64) -> Value:
    return iota(e, end, dtype=dtype)


TABLE: Table = {
    "broadcast": broadcast,
    "broadcast_in_dim": broadcast_in_dim,
    "expand": expand,
    "expand_as": expand_as,
    "reshape": reshape,
    "permute": permute,
    "transpose": transpose,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "slice": slice_,
    "narrow": narrow,
    "pad": pad,
    "cat": cat,
    "stack": stack,
    "flip": flip,
    "full": full,
    "zeros": zeros,
    "ones": ones,
    "full_like": full_like,
    "iota": iota,
    "arange": arange,
}  # fmt: skip
