"""Warp-specialised pipelines: they compute what NumPy computes, however late their agents are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim_async import (
    cluster_product,
    copied_operand,
    one_group,
    pipelined_gemm,
    register_product,
    shared_operand,
    taking_turns,
)

from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import Kernel
from tilewright.kernel.verify import check
from tilewright.poly.expr import Expr
from tilewright.target.nvidia import SM_90A

Sizes = tuple[int, int, int]


def multiply(program: Kernel, sizes: Sizes, **more: Any) -> bool:
    """Whether the kernel gives the product of small integers, exactly."""
    m, n, k = sizes
    random = np.random.default_rng(0)
    a = random.integers(-3, 4, (m, k)).astype(np.float16)
    b = random.integers(-3, 4, (n, k)).astype(np.float16)
    c = np.full((m, n), np.nan, np.float32)
    across = program.tensors[1].shape[0] != Expr.of(n)
    given = {"a": a, "b": np.ascontiguousarray(b.T) if across else b, "c": c}
    simulate(program, SM_90A, given, {}, **more)
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


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("across", [False, True])
def test_one_thread_of_a_warpgroup_loads(across: bool, seed: int | None) -> None:
    assert multiply(one_group(across=across, steps=5), (64, 16, 160), seed=seed)


def test_a_map_of_permuted_axes() -> None:
    """b[n, k] lies column-major in memory: the map's last axis is n."""
    program = one_group(across=True, steps=3)
    b, columns = program.tensors[1], Expr.of(96)
    turned = replace(b, shape=(Expr.of(16), columns), strides=(Expr.of(1), Expr.of(16)))
    tensors = (program.tensors[0], turned, program.tensors[2])
    maps = (program.maps[0], replace(program.maps[1], axes=(1, 0)))
    program = replace(program, tensors=tensors, maps=maps)
    check(program, SM_90A)
    assert multiply(program, (64, 16, 96))


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_warpgroups_take_turns(seed: int | None) -> None:
    y = np.zeros(1, np.float32)
    program = taking_turns(3)
    check(program, SM_90A)
    simulate(program, SM_90A, {"y": y}, {}, seed=seed)
    assert y[0] == 6


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_operand_written_by_threads(seed: int | None) -> None:
    assert multiply(shared_operand(3), (128, 16, 48), seed=seed)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_operand_copied_by_threads(seed: int | None) -> None:
    assert multiply(copied_operand(3), (128, 16, 48), seed=seed)


@pytest.mark.parametrize(
    "program",
    [
        pipelined_gemm(100, 28, 136, consumers=2, stages=3),
        register_product(),
        cluster_product(2),
        one_group(across=False, steps=2),
        one_group(across=True, steps=2),
        shared_operand(2),
        copied_operand(2),
    ],
)
def test_the_kernels_are_legal(program: Kernel) -> None:
    check(program, SM_90A)


def test_a_map_swizzles_otherwise_than_its_buffer() -> None:
    """What the copy engine writes is read where the buffer's own swizzle says."""
    program = register_product()
    plain = replace(program, maps=(replace(program.maps[0], swizzle=0),))
    assert not multiply(plain, (64, 16, 32))


def test_barriers_and_bytes_are_counted() -> None:
    program = one_group(across=False, steps=3)
    a, b = np.zeros((64, 96), np.float16), np.zeros((16, 96), np.float16)
    arrays = {"a": a, "b": b, "c": np.empty((64, 16), np.float32)}
    report = simulate(program, SM_90A, arrays, {})
    assert report.barriers == 1
    assert report.global_read_bytes == 2 * (a.size + b.size)
    assert report.global_written_bytes == 4 * 64 * 16
    assert [s.written_bytes for s in report.shared] == [2 * a.size, 2 * b.size]


def test_without_checks() -> None:
    sizes = (130, 20, 72)
    assert multiply(pipelined_gemm(*sizes, consumers=2, stages=2), sizes, checks=False)
