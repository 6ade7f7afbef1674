"""Kernels with warp roles, run on the simulator (or a device) against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import tilewright as tw
from tilewright import CompiledKernel, TileKernel
from tilewright.poly.results import Proved

M, N, K, KB, KI = tw.sym.M, tw.sym.N, tw.sym.K, tw.sym.KB, tw.sym.KI
G = tw.GLOBAL
NUMPY: dict[tw.DType, Any] = {
    tw.bf16: ml_dtypes.bfloat16, tw.f16: np.float16, tw.f32: np.float32, tw.i8: np.int8,
    tw.i32: np.int32, tw.f8e4m3: ml_dtypes.float8_e4m3fn, tw.f8e5m2: ml_dtypes.float8_e5m2,
}  # fmt: skip
Array = NDArray[Any]


def tiles(m: int, n: int, k: int | None = None, **hardware: Any) -> list[Any]:
    """Tiles of M and N for blocks, of K for steps."""
    found: list[Any] = [tw.WorkgroupConstraint(M, m, 0), tw.WorkgroupConstraint(N, n, 1)]
    found += [tw.TilingConstraint(K, k)] if k is not None else []
    return found + ([tw.HardwareConstraint(**hardware)] if hardware else [])


def whole(shape: tuple[int, ...], dtype: tw.DType, seed: int, limit: int = 4) -> Array:
    """Small whole numbers, so that sums are exact."""
    random = np.random.default_rng(seed)
    return random.integers(-limit, limit + 1, shape).astype(NUMPY[dtype])


def powers(shape: tuple[int, ...], seed: int) -> Array:
    """Scales by which products are exact."""
    return (2.0 ** np.random.default_rng(seed).integers(-2, 3, shape)).astype(np.float32)


def poison(shape: tuple[int, ...], dtype: tw.DType) -> Array:
    return np.full(shape, -77 if dtype in (tw.i8, tw.i32) else np.nan, NUMPY[dtype])


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def with_roles(kernel: TileKernel, **sizes: int) -> CompiledKernel:
    """The kernel for sm_90a; it must have warp roles and be proved."""
    compiled = kernel.compile("sm_90a", sizes)
    assert compiled.compilation.plan.roles is not None
    open_ones = [p for p in compiled.proofs if not isinstance(p.result, Proved)]
    assert not open_ones, open_ones
    return compiled


def on_device(compiled: CompiledKernel, *arrays: Array) -> None:
    """Run on the device, and write the output, the last array, back in place."""
    from tilewright.runtime.device_arrays import DeviceArray

    there = [DeviceArray(a) for a in arrays]
    compiled(*there)
    arrays[-1][...] = there[-1].numpy()


def instruction(compiled: CompiledKernel) -> str:
    (contract,) = compiled.compilation.plan.contracts.values()
    return contract.atom or ""


def assert_close(found: Array, wanted: Array, tolerance: float) -> None:
    """Every element within `tolerance` of the largest magnitude."""
    error = np.abs(wide(found) - wanted).max()
    assert error <= tolerance * np.abs(wanted).max(), f"off by {error}"
