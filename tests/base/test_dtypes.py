"""Element types against the NumPy types that they stand for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtypes import ALL_DTYPES, DType, Kind, dtype_named

NUMPY = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "bool": np.bool_,
}


def test_the_table_is_whole() -> None:
    assert [dtype.name for dtype in ALL_DTYPES] == list(NUMPY)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=repr)
def test_size_and_kind(dtype: DType) -> None:
    reference = np.dtype(NUMPY[dtype.name])
    assert dtype.bytes == reference.itemsize
    assert dtype.bits == 8 * reference.itemsize
    if dtype.is_float:
        assert np.array(0.5, reference).astype(np.float64) == 0.5
    else:
        assert reference.kind == {Kind.INT: "i", Kind.BOOL: "b"}[dtype.kind]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=repr)
def test_the_name_finds_the_type(dtype: DType) -> None:
    assert dtype_named(dtype.name) is dtype
    assert repr(dtype) == dtype.name


def test_an_unknown_name_has_no_type() -> None:
    with pytest.raises(KeyError, match="f4"):
        dtype_named("f4")
