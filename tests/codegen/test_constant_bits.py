"""Constants as bits, against NumPy and ml_dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.base.dtypes import ALL_DTYPES, DType, dtype_named
from tilewright.codegen.access import vector_constant
from tilewright.codegen.encode import bits_of, round_to
from tilewright.codegen.values import computed_constant, stored_constant
from tilewright.runtime.arguments import numpy_dtype

FLOATS = [dtype for dtype in ALL_DTYPES if dtype.is_float]
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_number_of_a_type_keeps_its_bits(dtype: DType) -> None:
    kind = UNSIGNED[dtype.bits]
    if dtype.bits <= 16:
        patterns = np.arange(1 << dtype.bits).astype(kind)
    else:
        patterns = np.random.default_rng(0).integers(0, np.iinfo(kind).max, 2000, kind)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = patterns.view(numpy_dtype(dtype)).astype(np.float64)
    for pattern, value in zip(patterns, values, strict=True):
        if math.isfinite(value):
            assert bits_of(float(value), dtype) == int(pattern)
            assert round_to(float(value), dtype) == value


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz"])
def test_numbers_between_round_to_nearest_even(name: str) -> None:
    dtype = dtype_named(name)
    random = np.random.default_rng(1)
    top = {"f8e4m3": 448, "f8e5m2": 57344, "f8e4m3fnuz": 240}.get(name, 60000)
    values = random.standard_normal(3000) * np.exp2(random.integers(-20, 6, 3000))
    values = np.concatenate([values, np.arange(-64, 65) / 16, [2.0**-10, 3 * 2.0**-11, 0.0]])
    values = np.clip(values, -top, top).astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        patterns = values.astype(np.float32).astype(numpy_dtype(dtype))
    for value, pattern in zip(values, patterns.view(UNSIGNED[dtype.bits]), strict=True):
        assert bits_of(float(value), dtype) == int(pattern), value


def test_overflow_becomes_infinity_or_the_largest_number() -> None:
    assert bits_of(1e9, dtype_named("f16")) == 0x7C00
    assert bits_of(-math.inf, dtype_named("bf16")) == 0xFF80
    assert bits_of(math.inf, dtype_named("f8e4m3")) == 0x7E
    assert bits_of(-1e9, dtype_named("f8e5m2")) == 0xFB
    assert bits_of(math.nan, dtype_named("f8e4m3fnuz")) == 0x80
    assert bits_of(-0.0, dtype_named("f8e4m3fnuz")) == 0


def test_literals_are_c() -> None:
    assert computed_constant(0.1, dtype_named("f32")) == "0.10000000149011612f"
    assert computed_constant(-2, dtype_named("f16")) == "(-2.0f)"
    assert computed_constant(-math.inf, dtype_named("f32")) == "(-tw_inf())"
    assert computed_constant(math.nan, dtype_named("f64")) == "(double)tw_nan()"
    assert computed_constant(-(1 << 31), dtype_named("i32")) == "(-2147483647 - 1)"
    assert computed_constant(-(1 << 63), dtype_named("i64")) == "(-9223372036854775807ll - 1)"
    assert stored_constant(1.0, dtype_named("bf16")) == "(tw_bf16)0x3f80"
    assert stored_constant(True, dtype_named("bool")) == "true"


def test_vectors_of_one_value() -> None:
    assert vector_constant(0.0, dtype_named("f16"), "int4", 16) == "int4{}"
    assert (
        vector_constant(1.0, dtype_named("f16"), "int2", 8) == f"int2{{{0x3C003C00}, {0x3C003C00}}}"
    )
    assert vector_constant(-math.inf, dtype_named("f32"), "int", 4) == f"int{{{-0x800000}}}"
    assert vector_constant(-0.0, dtype_named("f32"), "int", 4) == "int{-2147483647 - 1}"
    assert vector_constant(-1, dtype_named("i8"), "short", 2) == "short{-1}"
