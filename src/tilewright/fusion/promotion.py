"""Type promotion as torch does it.

Operands fall in three ranks: tensors with dimensions, tensors without, and Python numbers (and
scalar arguments). A lower rank changes the result only where its category (bool, integer,
float) is higher; a Python float then gives f32, a Python integer i64.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tilewright.base.diagnostics import DTypeError
from tilewright.base.dtypes import DType, Kind, bf16, boolean, f16, f32, f64, i8, i16, i32, i64
from tilewright.base.spans import Span
from tilewright.fusion.ops import TensorType

Number = float | int | bool


class Category(IntEnum):
    """How much a type can hold: the order in which types win."""

    BOOL = 0
    INT = 1
    FLOAT = 2


_CATEGORIES = {Kind.BOOL: Category.BOOL, Kind.INT: Category.INT, Kind.FLOAT: Category.FLOAT}
_ORDER = (boolean, i8, i16, i32, i64, f16, bf16, f32, f64)
_WEAK = {Category.BOOL: boolean, Category.INT: i64, Category.FLOAT: f32}


def category(dtype: DType) -> Category:
    return _CATEGORIES[dtype.kind]


def join(left: DType, right: DType, span: Span | None) -> DType:
    """The smallest type that both go to. DTypeError for fp8 with anything else, as in torch."""
    if left == right:
        return left
    for dtype in (left, right):
        if dtype not in _ORDER:
            raise DTypeError(
                f"{left.name} and {right.name} have no common element type",
                span=span,
                expected="a cast from fp8 before arithmetic with other types",
                mend="fd.ops.cast(value, DataType.Float)",
            )
    if {left, right} == {f16, bf16}:
        return f32
    return max(left, right, key=_ORDER.index)


def weak_type(value: Number) -> TensorType:
    """The type that a Python number promotes as."""
    kind = boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f64
    return TensorType((), kind, weak=True)


def promote(operands: Sequence[TensorType], span: Span | None) -> DType:
    """The element type in which the operands meet."""
    ranks: list[DType | None] = [None, None, None]
    for operand in operands:
        rank = 2 if operand.weak else 1 if not operand.shape else 0
        dtype = _WEAK[category(operand.dtype)] if operand.weak else operand.dtype
        known = ranks[rank]
        ranks[rank] = dtype if known is None else join(known, dtype, span)
    result: DType | None = None
    for dtype in ranks:
        if dtype is not None and (result is None or category(dtype) > category(result)):
            # A tensor of a lower rank joins what it outranks: bf16 data and an f64 0-d tensor.
            result = dtype
    return result or f32


def promote_float(operands: Sequence[TensorType], span: Span | None) -> DType:
    """The float type of an operation that only floats have: integers go to f32."""
    dtype = promote(operands, span)
    return dtype if dtype.is_float else f32


def working(dtype: DType) -> DType:
    """In which type a composed operation on floats is computed, to be rounded once."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def accumulator(dtype: DType) -> DType:
    """In which type sums of products are kept."""
    if dtype.kind is Kind.FLOAT:
        return working(dtype)
    return i32 if dtype.bits < 64 else i64


def summed(dtype: DType) -> DType:
    """The result of a sum or product: integers and bools go to i64."""
    return dtype if dtype.is_float else i64
