"""Products whose steps several blocks of the grid share, and whole numbers to check them by."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright import CompiledKernel

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BF16 = ml_dtypes.bfloat16


def product(tile: tuple[int, int], shares: tuple[int, int], out: Any = tw.bf16, **more: Any) -> Any:
    """c = a b^T, plus a row of x where the program has one."""
    hardware = tw.HardwareConstraint(stream_k=shares, **more)

    @tw.kernel([
        tw.WorkgroupConstraint(M, tile[0], 0), tw.WorkgroupConstraint(N, tile[1], 1),
        tw.TilingConstraint(K, 64), hardware,
    ])  # fmt: skip
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        x: tw.Memory[N, tw.GLOBAL, tw.f32],
        c: tw.Memory[M, N, tw.GLOBAL, out],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        total = tw.maximum(total, 0.0) + tw.read(x)
        tw.write(total if out is tw.f32 else tw.cast(total, out), c)

    return gemm


@tw.kernel([])
def plain(
    a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
):
    """c = a b^T, for schedules by hand."""

    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)


@cache
def compiled(
    m: int, n: int, k: int, tile: tuple[int, int], shares: tuple[int, int]
) -> CompiledKernel:
    return product(tile, shares).compile("sm_90a", {M: m, N: n, K: k})


def drawn(m: int, n: int, k: int) -> tuple[dict[str, Any], Any]:
    """Whole numbers, whose sums are exact in any order; a poisoned output; and the result."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, s).astype(BF16) for s in ((m, k), (n, k)))
    x = rng.integers(-9, 9, n).astype(np.float32)
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T, 0) + x
    return {"a": a, "b": b, "x": x, "c": np.full((m, n), np.nan, BF16)}, wanted.astype(BF16)
