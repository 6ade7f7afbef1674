"""Bank conflicts against a count by hand, word by word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sim_kernels import decode, e, gemm, kernel, mem, reg, tensor

from tilewright.base.dtypes import DType, f16, f32, f64
from tilewright.codegen.sim import SharedTraffic, simulate
from tilewright.codegen.sim.banks import wavefronts
from tilewright.codegen.sim.numeric import NUMPY
from tilewright.kernel.ops import (
    Barrier,
    If,
    Load,
    MatrixShape,
    Mode,
    Registers,
    Shared,
    Store,
    Swizzle,
)
from tilewright.poly.expr import less
from tilewright.target.nvidia import SM_90A


def by_hand(addresses: list[list[int] | None], size: int, warp_size: int) -> tuple[int, int]:
    """Wavefronts of one warp: `addresses` are each lane's element byte addresses."""
    widest = max(len(a) * size for a in addresses if a is not None)
    lanes = warp_size
    while lanes * max(widest, 4) > 128:
        lanes //= 2
    needed = best = 0
    for first in range(0, warp_size, lanes):
        words: dict[int, set[int]] = {}
        for asked in addresses[first : first + lanes]:
            for byte in (b for a in asked or [] for b in range(a, a + size)):
                words.setdefault(byte // 4 % 32, set()).add(byte // 4)
        if words:
            needed += max(len(different) for different in words.values())
            best += 1
    return needed, best


@pytest.mark.parametrize("warp_size", [32, 64])
@pytest.mark.parametrize(
    ("size", "width"), [(1, 1), (2, 1), (2, 2), (2, 8), (4, 1), (4, 4), (8, 1), (8, 2)]
)
def test_random_patterns(size: int, width: int, warp_size: int) -> None:
    rng = np.random.default_rng(size * width)
    for trial in range(20):
        first = rng.integers(0, 64, (2, 1, 2 * warp_size, 1)) * width * (1 + trial % 4)
        at = first + np.arange(width).reshape(width, 1, 1)
        mask = rng.random((2, 1, 2 * warp_size, 1)) < 0.7 if trial % 2 else None
        got = wavefronts(
            at, mask, element_bytes=size, first_byte=64, warp_size=warp_size, whole_warp=False
        )
        want = np.zeros(2, int)
        for instance in range(2):
            for warp in range(2):
                lanes = range(warp * warp_size, (warp + 1) * warp_size)
                addresses = [
                    [64 + size * int(a) for a in at[instance, :, lane, 0]]
                    if mask is None or mask[instance, 0, lane, 0]
                    else None
                    for lane in lanes
                ]
                want += by_hand(addresses, size, warp_size)
        assert got == tuple(want)


def test_wide_vectors_go_in_pieces_of_16_bytes() -> None:
    at = (np.arange(32) * 8).reshape(1, 32, 1) + np.arange(8).reshape(8, 1, 1)
    got = wavefronts(at, None, element_bytes=4, first_byte=0, warp_size=32, whole_warp=False)
    assert got == (16, 8)  # each piece leaves every other 16 bytes of the banks unused


def traffic(dtype: DType, shared: Shared, row: int, blocks: int = 3) -> SharedTraffic:
    """Write a row of 32 per warp, then read with lane t in row t: a walk down a column."""
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Load((("i", 32),), reg("r", 0), mem("x", "t")),
            Store((("i", 32),), mem("s", "i", "t"), reg("r", 0)),
            Barrier(),
            Load((), reg("r", 0), mem("s", "t", row)),
        ),
        grid=(blocks,),
        tensors=(tensor("x", dtype, Mode.IN, 32),),
        shared=(shared,),
        registers=(Registers("r", dtype, (1,)),),
    )
    (found,) = simulate(program, SM_90A, {"x": np.ones(32, NUMPY[dtype])}, {}).shared
    assert found.read_bytes == blocks * 32 * dtype.bytes
    assert found.written_bytes == blocks * 32 * 32 * dtype.bytes
    return found


@pytest.mark.parametrize(
    ("shared", "column"),
    [
        (Shared("s", f32, (32, 32)), 32),
        (Shared("s", f32, (32, 32), pitch=33), 1),
        (Shared("s", f32, (32, 32), pitch=34), 2),
        (Shared("s", f32, (32, 32), Swizzle(5, 0, 5)), 1),
        (Shared("s", f32, (32, 32), Swizzle(3, 0, 5)), 4),
    ],
)
def test_a_column_of_f32(shared: Shared, column: int) -> None:
    found = traffic(f32, shared, 5)
    assert found.ideal_wavefronts == 3 * 33
    assert found.wavefronts == 3 * (32 + column)


def test_a_column_of_other_elements() -> None:
    assert traffic(f16, Shared("s", f16, (32, 32)), 5).wavefronts == 3 * (32 + 16)
    assert traffic(f16, Shared("s", f16, (32, 32), pitch=34), 5).wavefronts == 3 * (32 + 1)
    doubles = traffic(f64, Shared("s", f64, (32, 32)), 5)
    assert doubles.ideal_wavefronts == 3 * (2 * 32 + 2)
    assert doubles.wavefronts == 3 * (2 * 32 + 32)


def test_blocks_that_differ_are_counted_each() -> None:
    """Block b reads with stride 1 + b."""
    apart = mem("s", e("t") // 16, 2 * (e("t") % 16))
    program = kernel(
        (
            decode("block", ("b", 2)),
            decode("thread", ("t", 32)),
            Load((), reg("r", 0), mem("x", "t")),
            Store((("i", 2),), mem("s", "i", "t"), reg("r", 0)),
            Barrier(),
            If((less("b", 1),), (Load((), reg("r", 0), mem("s", 0, "t")),)),
            If((less(0, "b"),), (Load((), reg("r", 0), apart),)),
        ),
        grid=(2,),
        tensors=(tensor("x", f32, Mode.IN, 32),),
        shared=(Shared("s", f32, (2, 32)),),
        registers=(Registers("r", f32, (1,)),),
    )  # fmt: skip
    (found,) = simulate(program, SM_90A, {"x": np.ones(32, np.float32)}, {}).shared
    assert found.ideal_wavefronts == 2 * 2 + 1 + 1
    assert found.wavefronts == 2 * 2 + 1 + 2


@pytest.mark.parametrize(
    ("swizzle", "factor"), [(Swizzle(2, 3, 3), 1), (None, 4), (Swizzle(1, 3, 3), 2)]
)
def test_matrix_loads(swizzle: Swizzle | None, factor: int) -> None:
    """Rows of 64 bytes: without a swizzle the 8 rows of a tile lie in two groups of banks."""
    program = gemm(128, 128, 64)
    program = replace(program, shared=tuple(replace(s, swizzle=swizzle) for s in program.shared))
    a = np.ones((128, 64), np.float16)
    report = simulate(program, SM_90A, {"a": a, "b": a, "c": np.zeros((128, 128), np.float32)}, {})
    for buffer in report.shared:
        copies = 2 * (128 * 32 * 2) // 128  # two steps; 16 bytes per lane, never in conflict
        loads = 2 * 4 * (64 * 32) // 64  # two steps, four warps, 64 elements per 8x8 tile
        assert buffer.ideal_wavefronts == copies + loads
        assert buffer.wavefronts == copies + factor * loads


def test_a_transposed_matrix_load_reads_the_same_words() -> None:
    column = 8 * e("q") + 4 * e("i")
    program = kernel(
        (
            decode("lane", ("g", 8), ("q", 4)),
            Load((("i", 2),), reg("r", 4 * e("i")), mem("x", "g", column), width=4),
            Store((("i", 2),), mem("s", "g", column), reg("r", 4 * e("i")), width=4),
            Barrier(),
            Load(
                (("n", 4),), reg("r", 2 * e("n")), mem("s", 2 * e("q"), 8 * e("n") + e("g")),
                width=2, axis=0, matrix=MatrixShape("x4.trans", "g", "q", ("n",)),
            ),
            Store((("i", 8),), mem("y", "g", "q", "i"), reg("r", "i")),
        ),
        tensors=(tensor("x", f16, Mode.IN, 8, 32), tensor("y", f16, Mode.OUT, 8, 4, 8)),
        shared=(Shared("s", f16, (8, 32), pitch=40),),
        registers=(Registers("r", f16, (8,)),),
    )  # fmt: skip
    x, y = np.arange(256, dtype=np.float16).reshape(8, 32), np.zeros((8, 4, 8), np.float16)
    (found,) = simulate(program, SM_90A, {"x": x, "y": y}, {}).shared
    want = [
        [[x[2 * q + j, 8 * n + g] for n in range(4) for j in range(2)] for q in range(4)]
        for g in range(8)
    ]
    np.testing.assert_array_equal(y, want)
    needed = best = 0
    for i in range(2):
        lanes = [
            [2 * (40 * (t // 4) + 8 * (t % 4) + 4 * i + j) for j in range(4)] for t in range(32)
        ]
        more, ideal = by_hand(lanes, 2, 32)
        needed, best = needed + more, best + ideal
    assert found.wavefronts == needed + 4  # four tiles, one wavefront each
    assert found.ideal_wavefronts == best + 4
    assert needed > best
