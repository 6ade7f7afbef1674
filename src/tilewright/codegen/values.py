"""Values as C expressions.

Each value has two texts. *Stored* is how memory holds it: narrow floats as bits. *Computed* is
what C arithmetic works on: f32 for narrow floats, int for narrow integers. An operation on
narrow types computes wide and rounds once, when it becomes stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.base.diagnostics import UnsupportedError
from tilewright.base.dtypes import DType, Kind, boolean, f32, f64, i32, i64
from tilewright.codegen.dialect import Dialect, stored_type
from tilewright.codegen.encode import bits_of, round_to
from tilewright.codegen.index import IndexPrinter, bare
from tilewright.codegen.names import Names
from tilewright.kernel.ops import (
    Apply,
    Cast,
    Const,
    Holds,
    IndexValue,
    LaneRead,
    LaneXor,
    Read,
    RegRef,
    ScalarValue,
    Value,
)
from tilewright.kernel.values import OPERATIONS


@dataclass(frozen=True, slots=True)
class ValuePrinter:
    """Prints values in one scope. `register` gives the C lvalue of a fragment's element.

    Every text it gives binds as tightly as a C primary or a cast.
    """

    dialect: Dialect
    names: Names
    index: IndexPrinter
    register: Callable[[RegRef], str]

    def stored(self, value: Value) -> str:
        """The value as memory holds it."""
        match value:
            case Const(number, dtype):
                return stored_constant(number, dtype)
            case Read(ref):
                return self.register(ref)
            case ScalarValue(name):
                return self.names.scalars[name]
            case LaneXor(ref, mask, dtype):
                return self.dialect.lane_xor(self.register(ref), dtype, mask)
            case LaneRead(ref, lane, dtype):
                return self.dialect.lane_read(self.register(ref), dtype, self.index.text(lane))
            case Apply(dtype=dtype):
                return convert(self._applied(value), computed_dtype(dtype), dtype)
            case IndexValue(expr, dtype):
                source = i64 if dtype == i64 else i32
                text = replace(self.index, wide=source == i64).operand(expr)
                return convert(text, source, dtype)
            case Holds(guard):
                text = self.index.guard(guard)
                return f"({text})" if text else "true"
            case Cast(inner, dtype):
                if inner.dtype == dtype:
                    return self.stored(inner)
                source = computed_dtype(inner.dtype) if inner.dtype.is_float else inner.dtype
                return convert(self.computed(inner), source, dtype)

    def computed(self, value: Value) -> str:
        """The value as an operand of C arithmetic."""
        if isinstance(value, Const):
            return computed_constant(value.value, value.dtype)
        if not is_narrow_float(value.dtype):
            return self.stored(value)  # C promotes narrow integers by itself
        if (exact := self._before_rounding(value)) is not None:
            return f"tw_f32_by_{value.dtype}({bare(exact)})"
        return f"tw_f32_from_{value.dtype}({self.stored(value)})"

    def _before_rounding(self, value: Value) -> str | None:
        """The f32 that is rounded once to a narrow float; None where something else makes it."""
        match value:
            case Apply():
                return self._applied(value)
            case Cast(inner, dtype) if inner.dtype == dtype:
                return self._before_rounding(inner)
            case Cast(inner) if inner.dtype.is_float and computed_dtype(inner.dtype) == f32:
                return self.computed(inner)
            case _:
                return None

    def _applied(self, value: Apply) -> str:
        row = OPERATIONS[value.op]
        kind = value.args[-1].dtype
        spelling = (row.c64 if kind == f64 else row.c) if kind.is_float else row.c_int
        if not spelling or self.dialect.lacks(value.op, kind):
            raise UnsupportedError(
                f"operation {value.op} does not exist for {kind} here",
                expected="an element type that the operation is defined for",
                mend="cast the operands first",
            )
        return spelling.format(*(self.computed(arg) for arg in value.args))


def is_narrow_float(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits < 32


def computed_dtype(dtype: DType) -> DType:
    """The type in which C does arithmetic on `dtype`."""
    match dtype.kind:
        case Kind.FLOAT:
            return f64 if dtype == f64 else f32
        case Kind.INT:
            return i64 if dtype == i64 else i32
        case Kind.BOOL:
            return boolean


def convert(text: str, source: DType, dtype: DType) -> str:
    """From a computed value to a stored one of `dtype`; an integer `source` may be narrow."""
    if source == dtype:
        return text
    if is_narrow_float(dtype):
        if source.is_float:
            return f"tw_{dtype}_from_{source}({bare(text)})"
        # Through a type that holds the integer exactly, so that it rounds once.
        if source.bits <= 16:
            return f"tw_{dtype}_from_f32((float){text})"
        return f"tw_{dtype}_from_f64((double){text})"
    if dtype == boolean:
        return f"({text} != 0)"
    if dtype.kind is Kind.INT and dtype.bits < 32 and source.is_float:
        return f"({stored_type(dtype)})(int){text}"
    return f"({stored_type(dtype)}){text}"


def computed_constant(value: float | int | bool, dtype: DType) -> str:
    """A literal of the computed type; rounded to `dtype` where that is a float."""
    match dtype.kind:
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.INT:
            suffix = "ll" if dtype == i64 else ""
            if value == -(1 << (dtype.bits - 1)) and dtype.bits >= 32:
                return f"(-{-int(value) - 1}{suffix} - 1)"
            return f"({int(value)}{suffix})" if value < 0 else f"{int(value)}{suffix}"
        case Kind.FLOAT:
            return _float_literal(round_to(float(value), dtype), dtype)


def stored_constant(value: float | int | bool, dtype: DType) -> str:
    """A literal of the stored type."""
    if not is_narrow_float(dtype):
        return computed_constant(value, dtype)
    digits = dtype.bits // 4
    return f"({stored_type(dtype)})0x{bits_of(float(value), dtype):0{digits}x}"


def _float_literal(value: float, dtype: DType) -> str:
    if math.isnan(value) or math.isinf(value):
        name = "tw_nan()" if math.isnan(value) else "tw_inf()"
        text = f"(double){name}" if dtype == f64 else name
    else:
        text = repr(abs(value)) + ("" if dtype == f64 else "f")
    return f"(-{text})" if math.copysign(1, value) < 0 and not math.isnan(value) else text
