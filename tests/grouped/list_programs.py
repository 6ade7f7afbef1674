"""Products of a list as authors write them, and what they mean in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from grouped_programs import ARRAYS, COLUMNS, ROWS, STEP, K, M, N

import tilewright as tw

Problem = tuple[Any, ...]
UNEVEN = [(100, 64, 64), (70, 72, 128), (8, 200, 192), (64, 128, 8)]
TILES = [
    tw.WorkgroupConstraint(M, ROWS, 0), tw.WorkgroupConstraint(N, COLUMNS, 1),
    tw.TilingConstraint(K, STEP),
]  # fmt: skip
TILE = {"ROWS": 64, "COLUMNS": 64, "STEP": 64}


def products(
    dtype: tw.DType = tw.bf16,
    *,
    tiles: bool = True,
    epilogue: bool = False,
    order: str = "NK",
    hardware: tw.HardwareConstraint | None = None,
    **tile: int,
) -> tw.TileKernel:
    """c = a times b; with an epilogue, the largest of zero and its scaled sum with a bias."""
    axes = (N, K) if order == "NK" else (K, N)

    def gemm(a, b, bias, c, scale):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.permute(tw.read(b), [N, K]), acc)

        if epilogue:
            total = tw.maximum((total + tw.read(bias)) * scale, 0.0)
        tw.write(tw.cast(total, dtype), c)

    gemm.__annotations__ = {
        "a": tw.Memory[M, K, tw.GLOBAL, dtype],
        "b": tw.Memory[(*axes, tw.GLOBAL, dtype)],
        "bias": tw.Memory[N, tw.GLOBAL, tw.f32],
        "c": tw.Memory[M, N, tw.GLOBAL, dtype],
        "scale": tw.f32,
    }
    constraints = [*(TILES if tiles else ()), *([hardware] if hardware else ())]
    return tw.kernel(constraints, bindings={**TILE, **tile} if tiles else {})(gemm)


def problem(
    sizes: tuple[int, int, int], seed: int, dtype: tw.DType = tw.bf16, order: str = "NK"
) -> Problem:
    m, n, k = sizes
    random = np.random.default_rng(seed)
    a, b = (random.integers(-4, 5, s).astype(ARRAYS[dtype]) for s in ((m, k), (n, k)))
    b = b if order == "NK" else np.ascontiguousarray(b.T)
    bias = random.integers(-9, 9, n).astype(np.float32)
    return a, b, bias, np.full((m, n), np.nan, ARRAYS[dtype]), 2.0 ** (seed % 3 - 1)


def wanted(one: Problem, order: str = "NK", *, epilogue: bool = False) -> np.ndarray:
    a, b, bias, c, scale = one
    exact = a.astype(np.float64) @ (b.T if order == "NK" else b).astype(np.float64)
    if epilogue:
        exact = np.maximum((exact + bias) * scale, 0)
    return exact.astype(np.float32).astype(c.dtype).astype(np.float64)
