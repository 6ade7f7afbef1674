"""Products of matrices in groups, as mixtures of experts need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tilewright.base.diagnostics import DTypeError, ShapeError
from tilewright.base.dtypes import Kind, boolean, i32
from tilewright.fusion import shapes
from tilewright.fusion.elementwise import Table
from tilewright.fusion.emit import Emitter, Value
from tilewright.fusion.promotion import accumulator

_FORMS = "[rows, k] and [groups, k, n], [groups, m, k] and [k, columns], or [m, k] and [k, n]"


def grouped_mm(
    e: Emitter, a: Value | Sequence[Value], b: Value | Sequence[Value], offsets: Value | None = None
) -> Value | tuple[Value, ...]:
    """A product for each group; which part of a dimension a group has is data.

    With lists of matrices instead: the list of their products, of any sizes, in one launch where
    they do not depend on each other and what follows them is alike.

    ``[rows, k]`` and ``[groups, k, n]``: each row times the matrix of its group. ``[groups, m, k]``
    and ``[k, columns]``: the same for columns. ``[m, k]`` and ``[k, n]``: the terms of each group
    for themselves, ``[groups, m, n]``.

    `offsets` ascends: where each group ends; where matrices tell how many groups there are, also
    with the first one's start before. Rows and columns of no group are zero, terms do not count.
    """
    if isinstance(a, list | tuple) or isinstance(b, list | tuple):
        return _listed(e, a, b, offsets)
    if not (isinstance(a, Value) and isinstance(b, Value) and isinstance(offsets, Value)):
        raise ShapeError(
            "a grouped product without the ends of its groups",
            span=e.span,
            expected="two tensors and where groups end, or two lists of matrices",
            mend="pass offsets, or use matmul",
        )
    _check(e, a, b, offsets)
    match a.rank, b.rank:
        case 2, 3:
            product = _rows(e, a, b, offsets)
        case 3, 2:
            product = _turned(e, _rows(e, _turned(e, b), _turned(e, a), offsets))
        case _:
            product = _terms(e, a, b, offsets)
    return e.cast(product, a.dtype)


def _listed(e: Emitter, a: object, b: object, offsets: object) -> tuple[Value, ...]:
    """The product of each pair of two lists of matrices."""
    if not (isinstance(a, list | tuple) and isinstance(b, list | tuple)) or offsets is not None:
        raise ShapeError("a list of products of one tensor, or with offsets", span=e.span,
                         expected="two lists of matrices and no offsets",
                         mend="pass a list for each operand")  # fmt: skip
    left, right = cast("Sequence[object]", a), cast("Sequence[object]", b)
    if len(left) != len(right) or not left:
        raise ShapeError(f"a list of products of {len(left)} and {len(right)} matrices",
                         span=e.span, expected="as many left operands as right ones, at least one",
                         mend="pass one of each for every product")  # fmt: skip
    number = len(e.nodes)
    pairs = enumerate(zip(left, right, strict=True))
    return tuple(_pair(e, i, x, y, number) for i, (x, y) in pairs)


def _pair(e: Emitter, position: int, a: object, b: object, number: int) -> Value:
    """One product of a list."""
    what = f"product {position} of a list"
    if not (isinstance(a, Value) and isinstance(b, Value)) or (a.rank, b.rank) != (2, 2):
        kinds = (x.type if isinstance(x, Value) else type(x).__name__ for x in (a, b))
        raise ShapeError(f"{what} is of {' and '.join(map(str, kinds))}", span=e.span,
                         expected="[m, k] and [k, n]",
                         mend="use matmul for products of other ranks")  # fmt: skip
    if a.dtype != b.dtype or a.dtype == boolean:
        raise DTypeError(f"{what} is of {a.dtype.name} and {b.dtype.name}", span=e.span,
                         expected="operands of one element type, floats or integers",
                         mend=f"cast one of them to {a.dtype.name}")  # fmt: skip
    terms = f"the columns of the left operand and the rows of the right in {what}"
    shapes.same(a.shape[-1], b.shape[-2], terms, e.span)
    shape, dtype = (a.shape[0], b.shape[1]), accumulator(a.dtype)
    product = e.contract(a, b, (0, 2), (2, 1), (0, 1), shape, dtype, listed=number)
    return e.cast(product, a.dtype)


def _check(e: Emitter, a: Value, b: Value, offsets: Value) -> None:
    if (a.rank, b.rank) not in ((2, 3), (3, 2), (2, 2)):
        raise ShapeError(f"a grouped product of {a.type} and {b.type}", span=e.span,
                         expected=_FORMS, mend="use matmul for products in batches")  # fmt: skip
    if a.dtype != b.dtype or a.dtype == boolean:
        raise DTypeError(
            f"a grouped product of {a.dtype.name} and {b.dtype.name}",
            span=e.span,
            expected="operands of one element type, floats or integers",
            mend=f"cast one of them to {a.dtype.name}",
        )
    if offsets.rank != 1 or offsets.dtype.kind is not Kind.INT:
        raise ShapeError(f"groups that end at {offsets.type}", span=e.span,
                         expected="integers along one dimension, one for each group",
                         mend="pass the running sum of the groups' sizes")  # fmt: skip
    what = "the columns of the left operand and the rows of the right"
    shapes.same(a.shape[-1], b.shape[-2], what, e.span)


def _turned(e: Emitter, x: Value) -> Value:
    """The last two dimensions the other way round."""
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    return e.view(x, order, [x.shape[d] for d in order])


def _ends(e: Emitter, offsets: Value, groups: int) -> Value:
    """Where each group ends, of so many groups, without the first one's start."""
    (count,) = offsets.shape
    if -1 not in (count, groups) and count not in (groups, groups + 1):
        raise ShapeError(f"{count} offsets for {groups} groups", span=e.span,
                         expected=f"{groups}, or {groups + 1} with the first one's start",
                         mend="pass one end for each group")  # fmt: skip
    first = int(count == groups + 1 and groups != -1)
    return e.cast(e.move(offsets, [first], [1], [groups]), i32)


def _rows(e: Emitter, x: Value, matrices: Value, offsets: Value) -> Value:
    """Each row of x times the matrix of its group."""
    (rows, terms), (groups, _, columns) = x.shape, matrices.shape
    ends, dtype = _ends(e, offsets, groups), accumulator(x.dtype)
    if 0 in (rows, terms, groups, columns):
        return e.constant(0, dtype, (rows, columns))
    if 1 not in (rows, terms, groups, columns):
        return e.grouped(x, matrices, ends, dtype)
    if groups == 1:
        only = e.view(matrices, [1, 2], [terms, columns])
        product = e.contract(x, only, (0, 2), (2, 1), (0, 1), (rows, columns), dtype)
        inside = e.map("lt", e.iota(rows, i32), ends)
        return e.map("select", e.view(inside, [0, None], [rows, 1]), product, e.number(product, 0))
    group = _group_of(e, ends, rows)
    chosen = e.gather(
        matrices, e.view(group, [0, None, None], [rows, 1, 1]), 0, [None, 1, 2],
        [rows, terms, columns],
    )  # fmt: skip
    wide = e.cast(e.view(x, [0, 1, None], [rows, terms, 1]), dtype)
    return e.reduce("add", e.map("mul", wide, e.cast(chosen, dtype)), [1])


def _terms(e: Emitter, a: Value, b: Value, offsets: Value) -> Value:
    """For each group the product over its own terms."""
    (rows, terms), columns, (groups,) = a.shape, b.shape[1], offsets.shape
    dtype = accumulator(a.dtype)
    if 0 in (rows, terms, columns, groups):
        return e.constant(0, dtype, (groups, rows, columns))
    if 1 not in (rows, terms, columns, groups):
        return e.own_terms(a, b, e.cast(offsets, i32), dtype)
    group = _group_of(e, e.cast(offsets, i32), terms)
    own = e.map(
        "eq", e.view(group, [None, None, 0], [1, 1, terms]),
        e.view(e.iota(groups, i32), [0, None, None], [groups, 1, 1]),
    )  # fmt: skip
    mine = e.map("select", own, a, e.number(a, 0))
    return e.contract(mine, b, (0, 1, 3), (3, 2), (0, 1, 2), (groups, rows, columns), dtype)


def _group_of(e: Emitter, ends: Value, size: int) -> Value:
    """The group of each of so many places: how many end at or before it."""
    (groups,) = ends.shape
    past = e.map(
        "le", e.view(ends, [0, None], [groups, 1]), e.view(e.iota(size, i32), [None, 0], [1, size])
    )
    return e.reduce("add", e.cast(past, i32), [0])


TABLE: Table = {"grouped_mm": grouped_mm}
LISTS = frozenset(TABLE)  # given lists of operands, they give lists of results
