"""Rows that are sorted by group, where the ends of groups are data."""

from __future__ import annotations

from tilewright.base.diagnostics import DTypeError, ShapeError
from tilewright.base.dtypes import i32, i64
from tilewright.base.spans import here
from tilewright.lang.functions import cast, read, select, self_index
from tilewright.lang.functions import sum as sum_along
from tilewright.lang.symbols import Size, axis_name
from tilewright.lang.tracing import MemoryProxy, Value, use


def group_of(axis: Size, ends: MemoryProxy | Value) -> Value:
    """The group of each row along `axis`: the number of `ends` at or before the row.

    `ends` ascends, one for each group, which has the rows from the end before to its own. Rows
    from the last end on belong to no group: theirs is the number of groups.

    With the matrices of all groups in ``w`` over ``E, N, K``, ``tw.gather(w, E, group)`` is each
    row's matrix, and a product by it the grouped product: no row of it is ever formed.
    """
    span = here()
    value = read(ends) if isinstance(ends, MemoryProxy) else use(ends, span, "ends")
    if len(value.type.axes) != 1:
        raise ShapeError(
            f"the ends of groups are {value.type}",
            span=span,
            expected="a value over one axis, that of the groups",
            mend="give one end for each group",
        )
    if value.type.dtype not in (i32, i64):
        raise DTypeError(
            f"the ends of groups are {value.type.dtype.name}",
            span=span,
            expected="i32 or i64",
            mend="tw.cast(ends, tw.i32)",
        )
    past = value <= self_index(axis, value.type.dtype)
    return sum_along(cast(past, i32), dim=Size("symbol", value.type.axes[0]))


def per_group(value: Value, axis: Size, group: Value) -> Value:
    """The value once for each group along `axis`: its own rows, and zeros in all others.

    A product over the rows of such values is one over each group's own rows: with rows of ``x``
    and ``y`` over ``T``, ``tw.mma(tw.per_group(x, E, group), tw.per_group(y, E, group), acc)``
    has a matrix for each of ``E``. (Where `group_of` makes the group, its ends are over another
    axis than `axis`, which blocks may share.)
    """
    span = here()
    value, group = use(value, span, "value"), use(group, span, "group")
    name = axis_name(axis, span)
    if name in value.type.axes or name in group.type.axes:
        raise ShapeError(
            f"{value.type} for each group along {name}, of rows whose group is {group.type}",
            span=span,
            expected=f"neither over {name}",
            mend="count the groups along an axis of its own",
        )
    return select(group == self_index(axis, group.type.dtype), value, 0)
