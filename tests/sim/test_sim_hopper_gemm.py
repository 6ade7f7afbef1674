"""The hand-built GEMM of the benchmarks, at small sizes: persistent, with roles and clusters."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.codegen.sim import simulate
from tilewright.target.nvidia import SM_90A

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.hopper_gemm import Plan, gemm

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    "plan",
    [
        Plan(256, 512, 256, group=2, blocks=3),
        Plan(256, 256, 256, group=2, blocks=2, cluster=2, a_across=True, b_across=True),
    ],
    ids=["persistent", "cluster"],
)
def test_gemm(plan: Plan, seed: int | None) -> None:
    random = np.random.default_rng(1)
    a = random.integers(-3, 4, (plan.m, plan.k)).astype(np.float32)
    b = random.integers(-3, 4, (plan.n, plan.k)).astype(np.float32)
    c = np.full((plan.m, plan.n), np.nan, BF16)
    arrays = {
        "a": (a.T if plan.a_across else a).astype(BF16),
        "b": (b.T if plan.b_across else b).astype(BF16),
        "c": c,
    }
    simulate(gemm(plan), SM_90A, arrays, {}, seed=seed)
    np.testing.assert_array_equal(c, (a @ b.T).astype(BF16))
