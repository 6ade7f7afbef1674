"""Warp-specialised pipelines: they compute what NumPy computes, however late their agents are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sim_async import cluster_product, pipelined_gemm, register_product

from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import Kernel
from tilewright.target.nvidia import SM_90A

Sizes = tuple[int, int, int]


def multiply(program: Kernel, sizes: Sizes, **more: Any) -> bool:
    """Whether the kernel gives the product of small integers, exactly."""
    m, n, k = sizes
    random = np.random.default_rng(0)
    a = random.integers(-3, 4, (m, k)).astype(np.float16)
    b = random.integers(-3, 4, (n, k)).astype(np.float16)
    c = np.full((m, n), np.nan, np.float32)
    simulate(program, SM_90A, {"a": a, "b": b, "c": c}, {}, **more)
    return np.array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))


@pytest.mark.parametrize(
    ("sizes", "consumers", "stages", "tiles"),
    [
        ((64, 16, 32), 1, 2, 1),
        ((64, 16, 128), 1, 2, 1),
        ((100, 24, 72), 1, 3, 2),
        ((200, 20, 104), 2, 3, 2),
        ((8, 4, 8), 2, 2, 1),
    ],
)
def test_pipelined_gemm(sizes: Sizes, consumers: int, stages: int, tiles: int) -> None:
    program = pipelined_gemm(*sizes, consumers=consumers, stages=stages, tiles=tiles)
    assert multiply(program, sizes)


@pytest.mark.parametrize("seed", range(4))
def test_random_completion(seed: int) -> None:
    sizes = (130, 20, 104)
    program = pipelined_gemm(*sizes, consumers=2, stages=2, tiles=2)
    assert multiply(program, sizes, seed=seed)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_operand_from_registers(seed: int | None) -> None:
    assert multiply(register_product(), (64, 16, 32), seed=seed)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_multicast_in_a_cluster(seed: int | None) -> None:
    assert multiply(cluster_product(5), (128, 16, 160), seed=seed)


def test_without_checks() -> None:
    sizes = (130, 20, 72)
    assert multiply(pipelined_gemm(*sizes, consumers=2, stages=2), sizes, checks=False)
