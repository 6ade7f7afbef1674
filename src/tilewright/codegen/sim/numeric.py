"""Element types as NumPy sees them: storage, poison, exact conversions.

Narrow floats are computed in f32 and rounded once; NumPy's own rounding is to nearest even.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.base.dtypes import (
    DType,
    Kind,
    bf16,
    boolean,
    f8e4m3,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
)

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

NUMPY: dict[DType, np.dtype[Any]] = {
    f64: np.dtype(np.float64),
    f32: np.dtype(np.float32),
    f16: np.dtype(np.float16),
    bf16: np.dtype(ml_dtypes.bfloat16),
    f8e4m3: np.dtype(ml_dtypes.float8_e4m3fn),
    f8e5m2: np.dtype(ml_dtypes.float8_e5m2),
    f8e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    f8e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    i64: np.dtype(np.int64),
    i32: np.dtype(np.int32),
    i16: np.dtype(np.int16),
    i8: np.dtype(np.int8),
    boolean: np.dtype(np.bool_),
}

_UNSIGNED = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32),
             8: np.dtype(np.uint64)}  # fmt: skip
_LARGEST = {f8e4m3: 448.0, f8e5m2: 57344.0, f8e4m3fnuz: 240.0, f8e5m2fnuz: 57344.0}
_POISON_BYTE = 0xA5


def bits_type(dtype: DType) -> np.dtype[Any]:
    """The unsigned integer of the same width: memory is moved as bits, never as values."""
    return _UNSIGNED[dtype.bytes]


def compute_type(dtype: DType) -> np.dtype[Any]:
    """In what arithmetic on `dtype` is done: f32 and i32 at least."""
    if dtype.kind is Kind.FLOAT:
        return NUMPY[f64] if dtype == f64 else NUMPY[f32]
    if dtype.kind is Kind.INT:
        return NUMPY[i64] if dtype is i64 else NUMPY[i32]
    return NUMPY[boolean]


def widen(values: Array, dtype: DType) -> Array:
    """Values of `dtype` in its compute type, exactly."""
    return values.astype(compute_type(dtype), copy=False)


def poison(dtype: DType) -> Array:
    """What unwritten memory holds, as a scalar of bits: NaN, or an implausible integer."""
    if dtype.is_float:
        return np.array(np.nan, NUMPY[dtype]).view(bits_type(dtype))
    if dtype == boolean:
        return np.array(1, np.uint8)
    return np.array(int.from_bytes(bytes([_POISON_BYTE]) * dtype.bytes, "little"),
                    bits_type(dtype))  # fmt: skip


def constant(value: float | int | bool, dtype: DType) -> Array:
    """A scalar of `dtype`, converted by the rules of `convert`."""
    if isinstance(value, float):
        return convert(np.array(value, np.float64), dtype)
    if dtype.kind is Kind.INT:
        mask = (1 << dtype.bits) - 1
        return np.array(int(value) & mask, np.uint64).astype(bits_type(dtype)).view(NUMPY[dtype])
    return convert(np.array(value), dtype)


def convert(values: Array, dtype: DType) -> Array:
    """Values in `dtype`: rounded to nearest even once, saturated to fp8, wrapped to integers.

    Floats go to integers by truncation, NaN to 0, the rest saturated. Anything but zero is true.
    """
    target = NUMPY[dtype]
    if values.dtype == target:
        return values
    if dtype == boolean:
        return np.asarray(widen_any(values) != 0)
    if dtype.kind is Kind.INT:
        return _to_integer(values, dtype)
    if dtype.bits == 8 or dtype == bf16:
        return _to_ml_float(values, dtype)
    return widen_any(values).astype(target)


def widen_any(values: Array) -> Array:
    """The ml_dtypes types as f32, exactly; others as they are."""
    return values.astype(np.float32) if values.dtype.kind == "V" else values


def _to_integer(values: Array, dtype: DType) -> Array:
    target = NUMPY[dtype]
    values = widen_any(values)
    if values.dtype.kind != "f":
        return values.astype(target)
    limits = np.iinfo(target)
    whole = np.nan_to_num(
        np.trunc(values.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf
    )
    # 2**63 is a float and 2**63 - 1 is none, so the ends are taken care of apart.
    above, below = whole >= float(limits.max), whole <= float(limits.min)
    middle = np.where(above | below, 0.0, whole).astype(target)
    return np.where(above, limits.max, np.where(below, limits.min, middle)).astype(target)


def _to_ml_float(values: Array, dtype: DType) -> Array:
    """ml_dtypes rounds by way of f32, so wider values come to f32 by rounding to odd first."""
    target = NUMPY[dtype]
    values = widen_any(values)
    if values.dtype.kind in "iu":
        values = _integer_to_f64(values)
    if values.dtype == np.float64:
        values = _f64_to_odd_f32(values)
    values = values.astype(np.float32, copy=False)
    if dtype.bits == 8:
        largest = np.float32(_LARGEST[dtype])
        values = np.clip(values, -largest, largest)
    return np.asarray(values.astype(target))


def _integer_to_f64(values: Array) -> Array:
    """Integers in f64 with a sticky last bit: rounding on to 24 bits or fewer is then exact."""
    whole = values.astype(np.int64)
    large = np.abs(whole >> 10) >= 1 << 42
    folded = ((whole >> 11) | ((whole & 0x7FF) != 0)).astype(np.float64) * 2.0**11
    return np.where(large, folded, whole.astype(np.float64))


def _f64_to_odd_f32(values: Array) -> Array:
    """Round to odd: truncate, and set the last bit where that lost something."""
    near = values.astype(np.float32)
    back = near.astype(np.float64)
    inexact = (back != values) & ~np.isnan(values)
    bits = near.view(np.uint32)
    truncated = np.where(np.abs(back) > np.abs(values), bits - np.uint32(1), bits)
    return np.where(inexact, truncated | np.uint32(1), bits).astype(np.uint32).view(np.float32)
