"""Printed kernels on a CUDA device, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_kernels import matmul
from example_values import casts, elementwise, operations_for, row_softmax
from value_reference import ABSOLUTE, expected, samples

from tilewright.base.dtypes import DType, bf16, dtype_named, f16, f32
from tilewright.codegen import print_cuda
from tilewright.kernel.ops import Kernel
from tilewright.kernel.values import OPERATIONS
from tilewright.runtime.arguments import numpy_dtype
from tilewright.runtime.cuda_driver import DeviceMemory, load_module, synchronize
from tilewright.runtime.launch import bind_launch
from tilewright.runtime.timing import measure
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]


def run_on_device(
    kernel: Kernel,
    tensors: list[Array],
    symbols: dict[str, int],
    scalars: dict[str, float] | None = None,
) -> None:
    """Compile, launch once, and copy every tensor back in place."""
    module = load_module(compile_source(print_cuda(kernel, SM_90A), SM_90A), kernel.shared_bytes)
    memory = [DeviceMemory(t.nbytes) for t in tensors]
    for block, tensor in zip(memory, tensors, strict=True):
        block.write(tensor.ctypes.data)
    bind_launch(module, kernel, symbols, scalars or {})(0, *(block.pointer for block in memory))
    synchronize()
    for block, tensor in zip(memory, tensors, strict=True):
        block.read(tensor.ctypes.data)
        block.free()


@pytest.mark.parametrize(
    ("kernel", "b_is_kn"),
    [
        (matmul(), False),
        (matmul(block_k=64, stages=4), False),
        (matmul(b_is_kn=True, index_bits=32), True),
        (matmul(dtype=bf16, block_n=256, warps_n=4), False),
    ],
    ids=["nk", "deep", "kn", "wide"],
)
def test_matmul_with_ragged_edges(kernel: Kernel, b_is_kn: bool) -> None:
    kind = numpy_dtype(kernel.tensors[0].dtype)
    random = np.random.default_rng(1)
    m, n, k = 333, 520, 448
    a = random.standard_normal((m, k)).astype(kind)
    b = random.standard_normal((k, n) if b_is_kn else (n, k)).astype(kind)
    c = np.full((m, n), np.nan, kind)
    run_on_device(kernel, [a, b, c], {"M": m, "N": n, "K": k})
    exact = a.astype(np.float64) @ (b if b_is_kn else b.T).astype(np.float64)
    step = 1e-2 if kernel.tensors[0].dtype == bf16 else 2e-3
    np.testing.assert_allclose(c.astype(np.float64), exact, rtol=step, atol=0.02)


def test_softmax_with_shuffles() -> None:
    random = np.random.default_rng(3)
    m, n = 1001, 328
    x = random.standard_normal((m, n)).astype(np.float16)
    z = np.full((m, n), np.nan, np.float16)
    lanes = np.full((m, 32), 99, np.int32)
    run_on_device(row_softmax(), [x, z, lanes], {"M": m, "N": n}, {"scale": 1.5})
    powers = np.exp(1.5 * x.astype(np.float64))
    exact = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(z.astype(np.float64), exact, rtol=2e-3, atol=1e-6)
    assert (lanes[:, :16] == np.arange(16)).all()
    assert (lanes[:, 16:] == -1).all()


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8e5m2", "i64", "i32", "i8"])
def test_operations(name: str) -> None:
    dtype = dtype_named(name)
    names = operations_for(dtype, frozenset(("shl", "shr")))
    x, y = samples(dtype, 777)
    z = np.zeros((len(names), 777), x.dtype)
    run_on_device(elementwise(dtype, names), [x, y, z], {"N": 777})
    wide = np.float64 if dtype.is_float else np.int64
    # The steps of a result that is rounded to the type, and of functions that are not exact.
    steps = {"f64": 1e-14, "f32": 1e-6, "f16": 1e-3, "bf16": 8e-3, "f8e5m2": 0.25}.get(name, 0)
    for operation, row in zip(names, z, strict=True):
        exact = expected(operation, x.astype(wide), y.astype(wide), OPERATIONS[operation].arity)
        if operation == "div" and not dtype.is_float:
            exact = np.trunc(exact)
        exact = saturated(exact, dtype).astype(x.dtype).astype(wide)
        np.testing.assert_allclose(
            row.astype(wide),
            exact,
            rtol=steps,
            err_msg=operation,
            atol=max(steps / 100, ABSOLUTE.get(operation, 0)),
        )


def saturated(values: Array, dtype: DType) -> Array:
    top = {"f8e4m3": 448, "f8e5m2": 57344}.get(dtype.name)
    return values if top is None else np.clip(values, -top, top)


@pytest.mark.parametrize("name", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_every_bit_pattern_converts_to_f32_and_back(name: str) -> None:
    dtype = dtype_named(name)
    patterns = np.arange(1 << dtype.bits).astype(np.uint16 if dtype.bits == 16 else np.uint8)
    x = patterns.view(numpy_dtype(dtype))
    wide = np.zeros(x.shape, np.float32)
    run_on_device(casts(dtype, f32), [x, wide], {"N": len(x)})
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    back = np.zeros_like(x)
    run_on_device(casts(f32, dtype), [wide, back], {"N": len(x)})
    exact = saturated(wide, dtype).astype(x.dtype)
    np.testing.assert_array_equal(back.astype(np.float32), exact.astype(np.float32))


@pytest.mark.parametrize("source", ["f32", "f64", "i32"])
@pytest.mark.parametrize("name", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_casts_round_once(source: str, name: str) -> None:
    random = np.random.default_rng(5)
    if source == "i32":
        x = random.integers(-(1 << 12), 1 << 12, 4000).astype(np.int32)
    else:
        ties = random.integers(0, 1 << 10, 4000) * 2.0**-9 + 1
        nearly = ties + random.choice([-1, 0, 1], 4000) * 2.0**-40
        x = (nearly * random.choice([-8, -1, 1, 8], 4000)).astype(numpy_dtype(dtype_named(source)))
    z = np.zeros(x.shape, numpy_dtype(dtype_named(name)))
    run_on_device(casts(dtype_named(source), dtype_named(name)), [x, z], {"N": len(x)})
    exact = [round_once(float(v), dtype_named(name)) for v in saturated(x, dtype_named(name))]
    np.testing.assert_array_equal(z.astype(np.float64), np.array(exact))


def round_once(value: float, dtype: DType) -> float:
    """To nearest even, by scaling to the steps of the mantissa."""
    mantissa, low = {"f16": (10, -14), "bf16": (7, -126), "f8e4m3": (3, -6)}.get(
        dtype.name, (2, -14)
    )
    _, exponent = np.frexp(value)
    step = 2.0 ** (max(int(exponent) - 1, low) - mantissa)
    return round(value / step) * step


def test_timing_counts_each_run() -> None:
    kernel = elementwise(f16, ["add"])
    module = load_module(compile_source(print_cuda(kernel, SM_90A), SM_90A), 0)
    count = 1 << 20
    memory = [DeviceMemory(2 * count) for _ in range(3)]
    for block in memory:
        block.fill(0)
    bound = bind_launch(module, kernel, {"N": count}, {})
    timing = measure(lambda: bound(0, *(b.pointer for b in memory)), warmup=2, repeats=11)
    for block in memory:
        block.free()
    assert len(timing.runs) == 11
    assert timing.best <= timing.median <= timing.quantile(0.99)
    assert 0.5 < timing.median < 10_000
    assert 0 < timing.bandwidth(6 * count) < 50
