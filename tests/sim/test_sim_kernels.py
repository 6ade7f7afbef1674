"""Whole kernels, written by hand, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim_kernels import atom_kernel, decode, e, gemm, kernel, mem, read, reg, tensor

from tilewright.base.diagnostics import UnsupportedError
from tilewright.base.dtypes import boolean, f8e4m3, f16, f32, i32, i64
from tilewright.codegen.sim import simulate
from tilewright.codegen.sim import simulate as simulator_function
from tilewright.codegen.sim.numeric import NUMPY
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Barrier,
    Cast,
    Const,
    Holds,
    If,
    IndexValue,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mma,
    Mode,
    Read,
    Reduce,
    Registers,
    Scalar,
    ScalarValue,
    Shared,
    Store,
    Swizzle,
    Symbol,
    Value,
    When,
)
from tilewright.poly.expr import at_least, less
from tilewright.poly.layout import LayoutDigit, Place
from tilewright.target.amd import GFX942, GFX950
from tilewright.target.model import MmaAtom, Source
from tilewright.target.model import Scope as AtomScope
from tilewright.target.nvidia import SM_90A

RNG = np.random.default_rng(7)


def half(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float16)


# ---------------------------------------------------------------- elementwise


def axpy() -> Kernel:
    """``y[i] = alpha * x[i] + i``, 4 elements per thread, ragged."""
    at = 128 * e("b") + 4 * e("t")
    inside = (less(at + "j", "N"),)
    value = Apply(
        "add",
        (
            Apply("mul", (ScalarValue("alpha", f32), read(f32, "r", "j")), f32),
            IndexValue(at + "j", f32),
        ),
        f32,
    )
    return kernel(
        (
            decode("block", ("b", e("N").ceildiv(128))),
            decode("thread", ("t", 32)),
            Load((("j", 4),), reg("r", "j"), mem("x", at + "j"), guard=inside, fill=5.0),
            Assign((("j", 4),), reg("r", "j"), value),
            Store((("j", 4),), mem("y", at + "j"), reg("r", "j"), guard=inside),
        ),
        grid=(e("N").ceildiv(128),),
        symbols=(Symbol("N"),),
        scalars=(Scalar("alpha", f32),),
        tensors=(tensor("x", f32, Mode.IN, "N"), tensor("y", f32, Mode.OUT, "N")),
        registers=(Registers("r", f32, (4,)),),
    )


@pytest.mark.parametrize("size", [1, 127, 128, 129, 1000])
def test_ragged_elementwise(size: int) -> None:
    x, y = RNG.standard_normal(size).astype(np.float32), np.zeros(size, np.float32)
    report = simulate(axpy(), SM_90A, {"x": x, "y": y, "alpha": np.float32(1.5)}, {"N": size})
    np.testing.assert_array_equal(y, np.float32(1.5) * x + np.arange(size, dtype=np.float32))
    assert report.blocks == -(-size // 128)
    assert report.global_read_bytes == report.global_written_bytes == 4 * size
    assert report.barriers == 0
    assert report.shared == ()


def test_arrays_of_any_strides() -> None:
    x = RNG.standard_normal(600).astype(np.float32)[::-3]
    out = np.zeros((200, 2), np.float32)
    simulate(axpy(), SM_90A, {"x": x, "y": out[:, 1], "alpha": 2}, {"N": 200})
    np.testing.assert_array_equal(out[:, 1], 2 * x + np.arange(200, dtype=np.float32))
    assert not out[:, 0].any()
    one = np.broadcast_to(np.float32(3), (200,))
    simulate(axpy(), SM_90A, {"x": one, "y": out[:, 0], "alpha": 2}, {"N": 200})
    np.testing.assert_array_equal(out[:, 0], 6 + np.arange(200, dtype=np.float32))


def test_chunks_of_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, z = half(3000).astype(np.float32), *np.zeros((2, 3000), np.float32)
    whole = simulate(axpy(), SM_90A, {"x": x, "y": y, "alpha": 3}, {"N": 3000})
    module = __import__(simulator_function.__module__, fromlist=["_MEMORY"])
    monkeypatch.setattr(module, "_MEMORY", 30_000)
    crews = list(module._chunks(axpy(), 24))
    assert len(crews) > 3
    assert [b for c in crews for b in range(c.first_block, c.first_block + c.blocks)] == [
        *range(24)
    ]
    chunked = simulate(axpy(), SM_90A, {"x": x, "y": z, "alpha": 3}, {"N": 3000})
    np.testing.assert_array_equal(y, z)
    assert whole == chunked


def test_values_of_every_kind() -> None:
    """Comparisons, selection, guards as values and casts between kinds."""
    positive = Apply("gt", (read(f16, "x", 0), Const(0.0, f16)), boolean)
    early = Holds((less("t", 10), at_least("t", 2)))
    value: Value = Apply(
        "select",
        (
            Apply("and", (positive, early), boolean),
            Cast(Apply("mul", (read(f16, "x", 0), Const(100.0, f16)), f16), i32),
            IndexValue(e("t") % 5 - e("t") // 4, i32),
        ),
        i32,
    )
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Load((), reg("x", 0), mem("x", "t")),
            Assign((), reg("y", 0), value),
            Store((), mem("y", "t"), reg("y", 0)),
        ),
        tensors=(tensor("x", f16, Mode.IN, 32), tensor("y", i32, Mode.OUT, 32)),
        registers=(Registers("x", f16, (1,)), Registers("y", i32, (1,))),
    )
    x, y = half(32), np.zeros(32, np.int32)
    simulate(program, SM_90A, {"x": x, "y": y}, {})
    t = np.arange(32)
    scaled = (x * np.float16(100)).astype(np.int32)
    np.testing.assert_array_equal(
        y, np.where((x > 0) & (t < 10) & (t >= 2), scaled, t % 5 - t // 4)
    )


# ---------------------------------------------------------------- order of instances


def registers_to(dtype: Any, size: int, *body: object) -> np.ndarray[Any, Any]:
    """Run statements on a fragment `r`, and give thread 0's registers back."""
    program = kernel(
        (
            *body,
            decode("thread", ("t", 32)),
            If((less("t", 1),), (Store((("s", size),), mem("y", "s"), reg("r", "s")),)),
        ),
        tensors=(tensor("y", dtype, Mode.OUT, size),),
        registers=(Registers("r", dtype, (size,)),),
    )
    y = np.zeros(size, NUMPY[dtype])
    simulate(program, SM_90A, {"y": y}, {})
    return y


FILL = Assign((("i", 4),), reg("r", "i"), IndexValue(10 * e("i") + 1, i32))


def test_an_instance_reads_what_the_one_before_wrote() -> None:
    shift = Assign((("i", 3),), reg("r", e("i") + 1), read(i32, "r", "i"))
    assert registers_to(i32, 4, FILL, shift).tolist() == [1, 1, 1, 1]


def test_the_last_instance_wins() -> None:
    last = Assign((("i", 2), ("j", 5)), reg("r", "i"), IndexValue(e("j") + 7 * e("i"), i32))
    assert registers_to(i32, 4, FILL, last).tolist() == [4, 11, 21, 31]


def test_loops_choose_registers() -> None:
    body = Assign((("i", 2),), reg("r", 2 * e("k") + "i"), IndexValue(e("k") * 5 - "i", i32))
    assert registers_to(i32, 4, Loop("k", e(2), (body,), unroll=True)).tolist() == [0, -1, 5, 4]


def test_threads_choose_registers() -> None:
    own = Assign((), reg("r", e("lane") % 4), Const(99, i32))
    assert registers_to(i32, 4, FILL, own).tolist() == [99, 11, 21, 31]


def test_reduce_rounds_each_step() -> None:
    """2048 + 1 is a tie in f16, and goes back to 2048 each time."""
    start = Assign((("s", 2),), reg("r", "s"), Const(2048.0, f16))
    step = Reduce(
        "add", (("s", 2),), (("i", 3), ("j", 2)), reg("r", "s"), IndexValue(e("s") + 1, f16)
    )
    assert registers_to(f16, 2, start, step).tolist() == [2048, 2060]


def test_reduce_goes_in_order() -> None:
    """2048 + 3 + 2 rounds to 2052 + 2, and 2048 + 2 + 3 to 2052."""
    start = Assign((), reg("r", 0), Const(2048.0, f16))
    down = Reduce("add", (), (("i", 2),), reg("r", 0), IndexValue(3 - e("i"), f16))
    up = Reduce("add", (), (("i", 2),), reg("r", 0), IndexValue(2 + e("i"), f16))
    assert registers_to(f16, 1, start, down).tolist() == [2054]
    assert registers_to(f16, 1, start, up).tolist() == [2052]


def test_reduce_may_read_its_own_total() -> None:
    start = Assign((("s", 2),), reg("r", "s"), Const(1, i32))
    double = Reduce("add", (("s", 2),), (("i", 3),), reg("r", "s"), read(i32, "r", "s"))
    assert registers_to(i32, 2, start, double).tolist() == [8, 8]


# ---------------------------------------------------------------- shared memory


@pytest.mark.parametrize("swizzle", [None, Swizzle(3, 2, 5)])
def test_transpose_through_shared_memory(swizzle: Swizzle | None) -> None:
    row, column = e("t") // 8, e("t") % 8
    program = kernel(
        (
            decode("block", ("bi", 3), ("bj", 2)),
            decode("thread", ("t", 128)),
            Load(
                (("i", 2),), reg("r", "i", 0),
                mem("x", 32 * e("bi") + row + 16 * e("i"), 32 * e("bj") + 4 * column), width=4,
            ),
            Store((("i", 2),), mem("s", row + 16 * e("i"), 4 * column), reg("r", "i", 0), width=4),
            Barrier(),
            Load(
                (("i", 2), ("j", 4)), reg("r", "i", "j"),
                mem("s", 4 * column + "j", row + 16 * e("i")),
            ),
            Store(
                (("i", 2),), mem("y", 32 * e("bj") + row + 16 * e("i"), 32 * e("bi") + 4 * column),
                reg("r", "i", 0), width=4,
            ),
        ),
        grid=(6,),
        warps=4,
        tensors=(tensor("x", f32, Mode.IN, 96, 64), tensor("y", f32, Mode.OUT, 64, 96)),
        shared=(Shared("s", f32, (32, 32), swizzle),),
        registers=(Registers("r", f32, (2, 4)),),
    )  # fmt: skip
    x, y = RNG.standard_normal((96, 64)).astype(np.float32), np.zeros((64, 96), np.float32)
    report = simulate(program, SM_90A, {"x": x, "y": y}, {})
    np.testing.assert_array_equal(y, x.T)
    assert report.barriers == 6
    assert (report.wavefronts > report.ideal_wavefronts) == (swizzle is None)
    assert report.shared[0].read_bytes == report.shared[0].written_bytes == x.nbytes


def test_load_along_another_axis() -> None:
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Load((), reg("r", 0), mem("x", 0, "t"), width=4, axis=0),
            Store((), mem("y", "t", 0), reg("r", 0), width=4, axis=1),
        ),
        tensors=(tensor("x", f16, Mode.IN, 4, 32), tensor("y", f16, Mode.OUT, 32, 4)),
        registers=(Registers("r", f16, (4,)),),
    )
    x, y = half(4, 32), np.zeros((32, 4), np.float16)
    simulate(program, SM_90A, {"x": x, "y": y}, {})
    np.testing.assert_array_equal(y, x.T)


def test_one_reference_in_two_statements() -> None:
    """What is kept for a pattern must not be mistaken for that of another axis."""
    corner, block = mem("x", 0, 0), mem("s", 0, 0)
    program = kernel(
        (
            Load((("i", 4),), reg("r", 0), mem("x", "i", 0), width=4),
            If((less("thread", 1),), (
                Load((("i", 4),), reg("w", "i", 0), mem("x", "i", 0), width=4),
                Store((("i", 4),), mem("s", "i", 0), reg("w", "i", 0), width=4),
                Load((), reg("r", 0), corner, width=4, axis=1),
                Store((), mem("y", 0, 0), reg("r", 0), width=4),
                Load((), reg("r", 0), corner, width=4, axis=0),
                Store((), mem("y", 1, 0), reg("r", 0), width=4),
                Load((), reg("r", 0), block, width=4, axis=1),
                Store((), mem("y", 2, 0), reg("r", 0), width=4),
                Load((), reg("r", 0), block, width=4, axis=0),
                Store((), mem("y", 3, 0), reg("r", 0), width=4),
            )),
        ),
        tensors=(tensor("x", f32, Mode.IN, 4, 4), tensor("y", f32, Mode.OUT, 4, 4)),
        shared=(Shared("s", f32, (4, 4)),),
        registers=(Registers("r", f32, (4,)), Registers("w", f32, (4, 4))),
    )  # fmt: skip
    x, y = RNG.standard_normal((4, 4)).astype(np.float32), np.zeros((4, 4), np.float32)
    simulate(program, SM_90A, {"x": x, "y": y}, {})
    np.testing.assert_array_equal(y, [x[0], x[:, 0], x[0], x[:, 0]])


def test_buffers_may_share_bytes() -> None:
    """An f32 buffer gives way to two f16 ones, after a barrier."""
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Load((), reg("w", 0), mem("x", "t")),
            Store((), mem("s", 31 - e("t")), reg("w", 0)),
            Barrier(),
            Load((), reg("w", 0), mem("s", "t")),
            Barrier(),
            Assign((), reg("h", 0), Cast(read(f32, "w", 0), f16)),
            Store((), mem("u", "t"), reg("h", 0)),
            Store((), mem("v", e("t") // 2, e("t") % 2), reg("h", 0)),
            Barrier(),
            Load((), reg("h", 0), mem("u", 31 - e("t"))),
            Store((), mem("y", 0, "t"), reg("h", 0)),
            Load((), reg("h", 0), mem("v", 15 - e("t") // 2, 1 - e("t") % 2)),
            Store((), mem("y", 1, "t"), reg("h", 0)),
        ),
        grid=(2,),
        tensors=(tensor("x", f32, Mode.IN, 32), tensor("y", f16, Mode.OUT, 2, 32)),
        shared=(
            Shared("s", f32, (32,)),
            Shared("u", f16, (32,)),
            Shared("v", f16, (16, 2), pitch=2, offset=64),
        ),
        registers=(Registers("w", f32, (1,)), Registers("h", f16, (1,))),
    )
    program = replace(program, grid=(e(1),))
    x, y = RNG.standard_normal(32).astype(np.float32), np.zeros((2, 32), np.float16)
    simulate(program, SM_90A, {"x": x, "y": y}, {})
    np.testing.assert_array_equal(y, np.stack([x, x]).astype(np.float16))


# ---------------------------------------------------------------- lanes


def row_sums(warp_size: int, warps: int) -> Kernel:
    """A row per warp: each lane adds 4 elements, then a butterfly over the lanes."""
    steps = [
        Assign(
            (), reg("s", 0),
            Apply("add", (read(f32, "s", 0), LaneXor(reg("s", 0), mask, f32)), f32),
        )
        for mask in (32, 16, 8, 4, 2, 1) if mask < warp_size
    ]  # fmt: skip
    size = 4 * warp_size
    return kernel(
        (
            decode("block", ("b", 3)),
            decode("thread", ("w", warps), ("l", warp_size)),
            Load((), reg("x", 0), mem("x", warps * e("b") + "w", 4 * e("l")), width=4),
            Assign((), reg("s", 0), Const(0.0, f32)),
            Reduce("add", (), (("j", 4),), reg("s", 0), Cast(read(f16, "x", "j"), f32)),
            *steps,
            If((less("l", 1),), (Store((), mem("y", warps * e("b") + "w"), reg("s", 0)),)),
        ),
        grid=(3,),
        warps=warps,
        warp_size=warp_size,
        tensors=(
            tensor("x", f16, Mode.IN, 3 * warps, size), tensor("y", f32, Mode.OUT, 3 * warps),
        ),
        registers=(Registers("x", f16, (4,)), Registers("s", f32, (1,))),
    )  # fmt: skip


@pytest.mark.parametrize("target", [SM_90A, GFX942], ids=lambda t: t.name)
def test_reduction_over_lanes(target: Any) -> None:
    program = row_sums(target.warp_size, 2)
    x, y = half(6, 4 * target.warp_size), np.zeros(6, np.float32)
    simulate(program, target, {"x": x, "y": y}, {})
    np.testing.assert_allclose(y, x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-5)


def test_lane_read_by_number_and_by_lane() -> None:
    program = kernel(
        (
            decode("thread", ("w", 2), ("l", 32)),
            Load((("j", 2),), reg("x", "j"), mem("x", "w", "l", "j")),
            Assign((("j", 2),), reg("p", "j"), LaneRead(reg("x", "j"), e(5), f32)),
            Store((("j", 2),), mem("y", "w", "l", "j"), reg("p", "j")),
            Assign((("j", 2),), reg("p", "j"), LaneRead(reg("x", "j"), 31 - e("l"), f32)),
            Store((("j", 2),), mem("z", "w", "l", "j"), reg("p", "j")),
            Assign((("j", 2),), reg("p", "j"), LaneRead(reg("x", 1), 16 * e("j"), f32)),
            Store((("j", 2),), mem("u", "w", "l", "j"), reg("p", "j")),
        ),
        warps=2,
        tensors=(
            tensor("x", f32, Mode.IN, 2, 32, 2),
            *(tensor(name, f32, Mode.OUT, 2, 32, 2) for name in "yzu"),
        ),
        registers=(Registers("x", f32, (2,)), Registers("p", f32, (2,))),
    )
    x = RNG.standard_normal((2, 32, 2)).astype(np.float32)
    y, z, u = np.zeros((3, 2, 32, 2), np.float32)
    simulate(program, SM_90A, {"x": x, "y": y, "z": z, "u": u}, {})
    np.testing.assert_array_equal(y, np.broadcast_to(x[:, 5:6], x.shape))
    np.testing.assert_array_equal(z, x[:, ::-1])
    np.testing.assert_array_equal(u, np.broadcast_to(x[:, None, (0, 16), 1], x.shape))


# ---------------------------------------------------------------- control


def test_loops_differ_between_blocks() -> None:
    """Block b adds rows 0..b, and skips those whose flag is not set."""
    program = kernel(
        (
            decode("block", ("b", 5)),
            decode("thread", ("t", 64)),
            Assign((), reg("s", 0), Const(0, i64)),
            Loop(
                "k",
                e("b") + 1,
                (
                    Load((), reg("f", 0), mem("flag", "b", "k")),
                    When(
                        Apply("ne", (read(i32, "f", 0), Const(0, i32)), boolean),
                        (
                            Load((), reg("x", 0), mem("x", "k", "t")),
                            Barrier(),
                            Assign(
                                (), reg("s", 0),
                                Apply("add", (read(i64, "s", 0), read(i64, "x", 0)), i64),
                            ),
                        ),
                    ),
                ),
            ),
            Store((), mem("y", "b", "t"), reg("s", 0)),
        ),
        grid=(5,),
        warps=2,
        tensors=(
            tensor("flag", i32, Mode.IN, 5, 5), tensor("x", i64, Mode.IN, 5, 64),
            tensor("y", i64, Mode.OUT, 5, 64),
        ),
        registers=(
            Registers("s", i64, (1,)), Registers("x", i64, (1,)), Registers("f", i32, (1,)),
        ),
    )  # fmt: skip
    flag = RNG.integers(0, 2, (5, 5)).astype(np.int32)
    x, y = RNG.integers(-1000, 1000, (5, 64)), np.zeros((5, 64), np.int64)
    report = simulate(program, SM_90A, {"flag": flag, "x": x, "y": y}, {})
    np.testing.assert_array_equal(y, np.tril(flag) @ x)
    assert report.barriers == np.tril(flag).sum()


@pytest.mark.parametrize("rows", [1, 7, 12])
def test_persistent_blocks(rows: int) -> None:
    """Four blocks take the rows in turn: digits that change from iteration to iteration."""
    tile = 4 * e("i") + "block"
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Loop(
                "i",
                e("R").ceildiv(4),
                (
                    If(
                        (less(tile, "R"),),
                        (
                            decode(tile, ("r", "R")),
                            Load((), reg("x", 0), mem("x", "r", "t")),
                            Store((), mem("y", "r", 31 - e("t")), reg("x", 0)),
                        ),
                    ),
                ),
            ),
        ),
        grid=(4,),
        symbols=(Symbol("R"),),
        tensors=(tensor("x", f32, Mode.IN, "R", 32), tensor("y", f32, Mode.OUT, "R", 32)),
        registers=(Registers("x", f32, (1,)),),
    )
    x, y = RNG.standard_normal((rows, 32)).astype(np.float32), np.zeros((rows, 32), np.float32)
    simulate(program, SM_90A, {"x": x, "y": y}, {"R": rows})
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_a_body_may_write_its_own_condition() -> None:
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Assign((), reg("go", 0), Const(True, boolean)),
            When(
                Read(reg("go", 0), boolean),
                (
                    Assign((), reg("go", 0), Const(False, boolean)),
                    Assign((), reg("x", 0), Const(2.5, f8e4m3)),
                ),
            ),
            Store((), mem("y", "t"), reg("x", 0)),
            Store((), mem("z", "t"), reg("go", 0)),
        ),
        tensors=(tensor("y", f8e4m3, Mode.OUT, 32), tensor("z", boolean, Mode.OUT, 32)),
        registers=(Registers("go", boolean, (1,)), Registers("x", f8e4m3, (1,))),
    )
    y, z = np.zeros(32, NUMPY[f8e4m3]), np.ones(32, np.bool_)
    simulate(program, SM_90A, {"y": y, "z": z}, {})
    assert (y.astype(np.float32) == 2.5).all()
    assert not z.any()


@pytest.mark.parametrize("swizzle", [None, Swizzle(2, 0, 2)])
def test_guards_keep_blocks_off_shared_memory(swizzle: Swizzle | None) -> None:
    """Addresses that depend on the block, and lie outside where the guard fails."""
    at = 3 * e("b") - 4 + "t"
    inside = (at_least(at, 0), less(at, 32))
    program = kernel(
        (
            decode("block", ("b", 4)),
            decode("thread", ("t", 32)),
            Load((), reg("r", 0), mem("x", "b", "t")),
            Store((), mem("s", "t"), reg("r", 0)),
            Barrier(),
            Load((), reg("r", 0), mem("s", at), guard=inside, fill=-1.0),
            Barrier(),
            Store((), mem("s", at), reg("r", 0), guard=inside),
            Store((), mem("y", "b", "t"), reg("r", 0)),
        ),
        grid=(4,),
        tensors=(tensor("x", f32, Mode.IN, 4, 32), tensor("y", f32, Mode.OUT, 4, 32)),
        shared=(Shared("s", f32, (32,), swizzle),),
        registers=(Registers("r", f32, (1,)),),
    )
    x, y = RNG.standard_normal((4, 32)).astype(np.float32), np.zeros((4, 32), np.float32)
    simulate(program, SM_90A, {"x": x, "y": y}, {})
    shifted = np.arange(32) + 3 * np.arange(4)[:, None] - 4
    inner = (shifted >= 0) & (shifted < 32)
    want = np.where(inner, np.take_along_axis(x, shifted.clip(0, 31), axis=1), -1)
    np.testing.assert_array_equal(y, want)


def test_inout_accumulates_in_place() -> None:
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Load((), reg("x", 0), mem("y", "t")),
            Assign((), reg("x", 0), Apply("add", (read(f32, "x", 0), Const(1.0, f32)), f32)),
            Store((), mem("y", "t"), reg("x", 0)),
        ),
        tensors=(tensor("y", f32, Mode.INOUT, 32),),
        registers=(Registers("x", f32, (1,)),),
    )
    y = np.arange(64, dtype=np.float32)[::2]
    simulate(program, SM_90A, {"y": y}, {})
    np.testing.assert_array_equal(y, np.arange(64)[::2] + 1)


def test_without_blocks_nothing_is_missing() -> None:
    program = replace(axpy(), grid=(e(0),), symbols=(Symbol("N", low=0),))
    y = np.zeros(0, np.float32)
    report = simulate(program, SM_90A, {"x": y, "y": y, "alpha": 1}, {"N": 0})
    assert report.blocks == 0


# ---------------------------------------------------------------- matrix instructions


def test_gemm_with_async_copies() -> None:
    m, n, k = 256, 128, 96
    a, b, c = half(m, k), half(n, k), np.zeros((m, n), np.float32)
    report = simulate(gemm(m, n, k), SM_90A, {"a": a, "b": b, "c": c}, {})
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-4)
    assert report.global_read_bytes == 2 * (3 * 128 * 32 * 2) * 2  # both blocks, each a and b
    assert report.global_written_bytes == c.nbytes
    assert report.barriers == 2 * 3 * 2
    assert report.wavefronts == report.ideal_wavefronts
    assert report.findings == ()
    for seed in range(3):
        again = np.zeros_like(c)
        simulate(gemm(m, n, k), SM_90A, {"a": a, "b": b, "c": again}, {}, seed=seed)
        np.testing.assert_array_equal(c, again)
    unchecked = np.zeros_like(c)
    simulate(gemm(m, n, k), SM_90A, {"a": a, "b": b, "c": unchecked}, {}, checks=False)
    np.testing.assert_array_equal(c, unchecked)


REGISTER_ATOMS = [
    (target, atom)
    for target in (SM_90A, GFX942, GFX950)
    for atom in target.mma_atoms
    if atom.a_source is atom.b_source is Source.REGISTER
]


def operands(atom: MmaAtom, repeats: int) -> tuple[np.ndarray[Any, Any], ...]:
    shapes = ((repeats * atom.m, 2 * atom.k), (repeats * atom.n, 2 * atom.k))
    if atom.a_dtype.is_float:
        return tuple(
            RNG.integers(-8, 9, shape).astype(np.float32).astype(NUMPY[atom.a_dtype])
            for shape in shapes
        )
    return tuple(RNG.integers(-128, 128, shape).astype(np.int8) for shape in shapes)


@pytest.mark.parametrize(("target", "atom"), REGISTER_ATOMS, ids=lambda p: p.name)
def test_every_atom_multiplies(target: Any, atom: MmaAtom) -> None:
    """Small integers are exact in every element type, so the result must be exact too."""
    a, b = operands(atom, 2)
    c = np.zeros((2 * atom.m, 2 * atom.n), NUMPY[atom.d_dtype])
    simulate(atom_kernel(target, atom, 2, 2), target, {"a": a, "b": b, "c": c}, {})
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)


def test_tf32_ignores_low_bits() -> None:
    atom = SM_90A.atom("mma.sync.m16n8k8.f32.tf32")
    assert atom is not None
    a, b = (x * np.float32(1 + 2.0**-12) for x in operands(atom, 1))
    c = np.zeros((atom.m, atom.n), np.float32)
    simulate(atom_kernel(SM_90A, atom, 1, 1), SM_90A, {"a": a, "b": b, "c": c}, {})
    np.testing.assert_allclose(c, np.round(a) @ np.round(b).T, rtol=1e-6)
    assert np.abs(c - a.astype(np.float64) @ b.astype(np.float64).T).max() > 1e-4


def test_an_atom_of_a_whole_warpgroup() -> None:
    """The accumulator and a of wgmma, with a b in registers: no such instruction, same layouts."""
    real = SM_90A.atom("wgmma.m64n16k16.f32.f16.rs")
    warp_atom = SM_90A.atom("mma.sync.m16n8k16.f32.f16")
    assert real is not None
    assert warp_atom is not None
    half_n = replace(real, n=8, d=SM_90A.atom("wgmma.m64n8k16.f32.f16.rs").d)  # type: ignore[union-attr]
    each_warp = LayoutDigit(Place.WARP, 4, None, 0)
    b_layout = replace(warp_atom.b, digits=(each_warp, *warp_atom.b.digits))
    atom = replace(half_n, name="test", b=b_layout, b_source=Source.REGISTER)
    assert atom.scope is AtomScope.WARPGROUP
    target = replace(SM_90A, mma_atoms=(atom,))
    a, b = operands(atom, 2)
    c = np.zeros((2 * atom.m, 2 * atom.n), np.float32)
    simulate(atom_kernel(target, atom, 2, 2), target, {"a": a, "b": b, "c": c}, {})
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)


def test_a_half_accumulator_rounds_after_each_instruction() -> None:
    wide = SM_90A.atom("mma.sync.m16n8k16.f32.f16")
    assert wide is not None
    atom = replace(wide, name="test", d_dtype=f16)
    target = replace(SM_90A, mma_atoms=(atom,))
    a, b = half(16, 32), half(8, 32)
    c = np.zeros((16, 8), np.float16)
    simulate(atom_kernel(target, atom, 1, 1), target, {"a": a, "b": b, "c": c}, {})
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    want = np.zeros((16, 8), np.float16)
    for k in (0, 16):
        part = wide_a[:, k : k + 16] @ wide_b[:, k : k + 16].T
        want = (want.astype(np.float32) + part).astype(np.float16)
    np.testing.assert_array_equal(c, want)


def test_operands_from_shared_memory_are_refused() -> None:
    statement = Mma((), "wgmma.m64n8k16.f32.f16", reg("d", 0), reg("a", 0), reg("a", 0))
    program = kernel(
        (statement,), warps=4, registers=(Registers("d", f32, (4,)), Registers("a", f16, (8,)))
    )
    with pytest.raises(UnsupportedError, match="reads an operand from shared memory"):
        simulate(program, SM_90A, {}, {})


def test_chained_mfma_without_a_move() -> None:
    """``s = q @ k.T``, then ``dv = s.T @ do.T``: the accumulator, cast, is the next operand."""
    atom = "F32_16x16x16_F16"
    low, h = e("l"), 4 * e("h")
    program = kernel(
        (
            decode("thread", ("h", 4), ("l", 16)),
            Load((), reg("q", 0), mem("q", low, h), width=4),
            Load((), reg("k", 0), mem("k", low, h), width=4),
            Assign((("r", 4),), reg("s", "r"), Const(0.0, f32)),
            Mma((), atom, reg("s", 0), reg("q", 0), reg("k", 0)),
            Assign((("r", 4),), reg("p", "r"), Cast(read(f32, "s", "r"), f16)),
            Load((("n", 2),), reg("o", "n", 0), mem("do", 16 * e("n") + low, h), width=4),
            Assign((("n", 2), ("r", 4)), reg("v", "n", "r"), Const(0.0, f32)),
            Mma((("n", 2),), atom, reg("v", "n", 0), reg("p", 0), reg("o", "n", 0)),
            Store((("n", 2), ("r", 4)), mem("dv", h + "r", 16 * e("n") + low), reg("v", "n", "r")),
        ),
        warp_size=64,
        tensors=(
            tensor("q", f16, Mode.IN, 16, 16), tensor("k", f16, Mode.IN, 16, 16),
            tensor("do", f16, Mode.IN, 32, 16), tensor("dv", f32, Mode.OUT, 16, 32),
        ),
        registers=(
            Registers("q", f16, (4,)), Registers("k", f16, (4,)), Registers("s", f32, (4,)),
            Registers("p", f16, (4,)), Registers("o", f16, (2, 4)), Registers("v", f32, (2, 4)),
        ),
    )  # fmt: skip
    q, k, do, dv = half(16, 16), half(16, 16), half(32, 16), np.zeros((16, 32), np.float32)
    simulate(program, GFX942, {"q": q, "k": k, "do": do, "dv": dv}, {})
    s = (q.astype(np.float32) @ k.astype(np.float32).T).astype(np.float16)
    want = s.T.astype(np.float32) @ do.astype(np.float32).T
    np.testing.assert_allclose(dv, want, rtol=1e-5, atol=1e-4)
