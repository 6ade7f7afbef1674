"""What the shared printer prints, run on the CPU and compared with NumPy."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_kernels import matmul
from example_values import casts, elementwise, mfma_matmul, operations_for, row_softmax
from host_dialect import run_on_host
from value_reference import ABSOLUTE, expected, nearest, samples

from tilewright.base.dtypes import DType, bf16, dtype_named, f16, f32, i16, i32
from tilewright.runtime.arguments import numpy_dtype
from tilewright.target.amd import GFX942
from tilewright.target.nvidia import SM_90A

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("b_is_kn", [False, True])
def test_matmul_with_ragged_edges(tmp_path: Path, b_is_kn: bool) -> None:
    kernel = matmul(block_m=64, block_n=64, stages=3, b_is_kn=b_is_kn)
    random = np.random.default_rng(1)
    m, n, k = 72, 40, 96
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((k, n) if b_is_kn else (n, k)).astype(np.float16)
    c = np.full((m, n), np.nan, np.float16)
    run_on_host(kernel, SM_90A, tmp_path, [a, b, c], {"M": m, "N": n, "K": k})
    exact = a.astype(np.float64) @ (b if b_is_kn else b.T).astype(np.float64)
    np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("atom", ["F32_16x16x16_F16", "F32_32x32x8_BF16"])
def test_mfma_matmul_with_ragged_edges(tmp_path: Path, atom: str) -> None:
    kernel = mfma_matmul(atom, tiles=1)
    kind = numpy_dtype(kernel.tensors[0].dtype)
    random = np.random.default_rng(2)
    m, n, k = 35, 50, 37
    a = random.standard_normal((m, k)).astype(kind)
    b = random.standard_normal((n, k)).astype(kind)
    c = np.full((m, n), np.nan, np.float32)
    run_on_host(kernel, GFX942, tmp_path, [a, b, c], {"M": m, "N": n, "K": k})
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5)


def test_softmax_with_shuffles(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    m, n, scale = 7, 328, 1.5
    x = random.standard_normal((m, n)).astype(np.float16)
    z = np.full((m, n), np.nan, np.float16)
    lanes = np.full((m, 32), 99, np.int32)
    scalars: list[Any] = [ctypes.c_float(scale)]
    run_on_host(row_softmax(), SM_90A, tmp_path, [x, z, lanes], {"M": m, "N": n}, scalars)
    powers = np.exp(scale * x.astype(np.float64))
    exact = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(z.astype(np.float64), exact, rtol=2e-3, atol=1e-6)
    assert (lanes[:, :16] == np.arange(16)).all()
    assert (lanes[:, 16:] == -1).all()


@pytest.mark.parametrize("dtype", [f32, bf16, i32], ids=str)
def test_operations(tmp_path: Path, dtype: DType) -> None:
    from tilewright.kernel.values import OPERATIONS

    names = operations_for(dtype, frozenset(("shl", "shr")))
    x, y = samples(dtype, 77)
    z = np.zeros((len(names), 77), x.dtype)
    run_on_host(elementwise(dtype, names), SM_90A, tmp_path, [x, y, z], {"N": 77})
    wide = np.float64 if dtype.is_float else np.int64
    for name, row in zip(names, z, strict=True):
        exact = expected(name, x.astype(wide), y.astype(wide), OPERATIONS[name].arity)
        if name == "div" and not dtype.is_float:
            exact = np.trunc(exact)
        if dtype.is_float:
            exact = exact.astype(np.float32).astype(x.dtype).astype(np.float64)
        steps = {f32: 4e-7, bf16: 8e-3}.get(dtype, 0)
        np.testing.assert_allclose(
            row.astype(wide),
            exact.astype(wide),
            rtol=steps,
            err_msg=name,
            atol=max(steps / 100, ABSOLUTE.get(name, 0)),
        )


@pytest.mark.parametrize(
    ("source", "dtype"),
    [("f32", "f16"), ("f64", "bf16"), ("i32", "bf16"), ("bf16", "f16"), ("f32", "i16")],
)
def test_casts_round_once(tmp_path: Path, source: str, dtype: str) -> None:
    low, high = dtype_named(source), dtype_named(dtype)
    random = np.random.default_rng(5)
    if low.is_float:
        bits = random.integers(0, 1 << 10, 200) * 2.0**-14 + 1  # many ties of narrow mantissas
        x = np.concatenate([bits, -bits, random.standard_normal(100) * 100])
        if source == "f64":  # just past a tie: rounding through f32 would lose it
            x = np.concatenate([x, 1 + 2.0**-8 + np.array([1, -1]) * 2.0**-40])
    else:
        x = random.integers(-(1 << 26), 1 << 26, 300)
    x = x.astype(numpy_dtype(low))
    z = np.zeros(x.shape, numpy_dtype(high))
    run_on_host(casts(low, high), SM_90A, tmp_path, [x, z], {"N": len(x)})
    if high in (f16, bf16):
        exact = np.array([nearest(float(v), high) for v in x], np.float64)
        np.testing.assert_array_equal(z.astype(np.float64), exact)
    else:
        assert high == i16
        np.testing.assert_array_equal(z, np.trunc(x.astype(np.float64)).astype(np.int16))
