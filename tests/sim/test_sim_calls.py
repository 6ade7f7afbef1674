"""Calls that do not fit the kernel, and kernels that do not fit the target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim_kernels import decode, e, kernel, mem, read, reg, tensor

from tilewright.base.diagnostics import (
    AtomError,
    CallError,
    DTypeError,
    IndexWidthError,
    LegalityError,
    ResourceError,
    TilewrightError,
    UndefinedSymbolError,
)
from tilewright.base.dtypes import f16, f32
from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import (
    Assign,
    Kernel,
    Load,
    Mma,
    Mode,
    Registers,
    Scalar,
    Shared,
    Store,
    Swizzle,
    Symbol,
)
from tilewright.poly.expr import at_least
from tilewright.target.amd import GFX942
from tilewright.target.nvidia import SM_90A


def copy(**changes: Any) -> Kernel:
    program = kernel(
        (
            decode("thread", ("t", 32)),
            Load((), reg("r", 0), mem("x", "t")),
            Store((), mem("y", "t"), reg("r", 0)),
        ),
        tensors=(tensor("x", f32, Mode.IN, 32), tensor("y", f32, Mode.OUT, 32)),
        registers=(Registers("r", f32, (1,)),),
    )
    return replace(program, **changes)


ARRAYS = {"x": np.zeros(32, np.float32), "y": np.zeros(32, np.float32)}
FROZEN = np.broadcast_to(np.float32(0), (32,))
N = (Symbol("N", low=8, multiple=8),)
WIDE = Shared("s", f16, (4, 24), Swizzle(2, 3, 3))


@pytest.mark.parametrize(
    ("program", "arrays", "symbols", "kind", "message"),
    [
        (copy(), {"x": ARRAYS["x"]}, {}, CallError, "no argument for tensor `y`"),
        (copy(), ARRAYS | {"x": np.zeros(31, np.float32)}, {}, CallError, "`x` has shape (31,)"),
        (copy(), ARRAYS | {"x": np.zeros(32)}, {}, DTypeError, "`x` has element type float64"),
        (copy(), ARRAYS | {"y": FROZEN}, {}, CallError, "argument `y` is read-only"),
        (copy(scalars=(Scalar("a", f32),)), ARRAYS, {}, CallError, "no argument for scalar `a`"),
        (
            copy(scalars=(Scalar("a", f32),)), ARRAYS | {"a": np.zeros(2)}, {}, CallError,
            "argument `a` has shape (2,)",
        ),
        (copy(symbols=N), ARRAYS, {}, UndefinedSymbolError, "`symbols` does not bind `N`"),
        (copy(symbols=N), ARRAYS, {"N": 12}, CallError, "symbol `N` is 12"),
        (copy(symbols=N), ARRAYS, {"N": 0}, CallError, "symbol `N` is 0"),
        (
            copy(symbols=N, contracts=(at_least("N", 64),)), ARRAYS, {"N": 32}, CallError,
            "the kernel's contract does not hold for N = 32",
        ),
        (copy(warp_size=64), ARRAYS, {}, LegalityError, "kernel `k` has warps of 64 threads"),
        (copy(warps=33), ARRAYS, {}, ResourceError, "has 1056 threads in a block"),
        (
            copy(shared=(Shared("s", f32, (60_000,)),)), ARRAYS, {}, ResourceError,
            "uses 240000 bytes of shared memory",
        ),
        (
            copy(shared=(Shared("s", f32, (8,), offset=6),)), ARRAYS, {}, LegalityError,
            "shared buffer `s` begins at byte 6",
        ),
        (copy(shared=(WIDE,)), ARRAYS, {}, None, ""),
        (
            copy(shared=(replace(WIDE, shape=(4, 20)),)), ARRAYS, {}, LegalityError,
            "the swizzle of `s` leads out of its 80 elements",
        ),
        (
            copy(body=(Mma((), "wmma", reg("r", 0), reg("r", 0), reg("r", 0)),)), ARRAYS, {},
            AtomError, "sm_90a has no matrix instruction `wmma`",
        ),
        (
            copy(body=(Assign((), reg("r", "q"), read(f32, "r", 0)),)), ARRAYS, {},
            UndefinedSymbolError, "nothing binds `q` here",
        ),
        (
            copy(body=(decode("thread", ("t", 16)),)), ARRAYS, {}, LegalityError,
            "`thread` is 16, which the digits t cannot write",
        ),
    ],
)  # fmt: skip
def test_calls(
    program: Kernel, arrays: Any, symbols: Any, kind: type[TilewrightError] | None, message: str
) -> None:
    if kind is None:
        simulate(program, SM_90A, arrays, symbols)
        return
    with pytest.raises(kind) as caught:
        simulate(program, SM_90A, arrays, symbols)
    assert message in str(caught.value)


def test_an_offset_past_32_bits() -> None:
    shape = (e(1 << 16), e(1 << 16))
    narrow = replace(copy().tensors[0], shape=shape, strides=(e(1 << 16), e(1)), index_bits=32)
    array = np.broadcast_to(np.float32(0), (1 << 16, 1 << 16))
    with pytest.raises(IndexWidthError, match="the last element of `x` has offset 4294967295"):
        simulate(copy(tensors=(narrow,), body=()), SM_90A, {"x": array}, {})


def test_the_other_warp_size() -> None:
    with pytest.raises(LegalityError, match="expected: 64, as gfx942 has"):
        simulate(copy(), GFX942, ARRAYS, {})


def test_inputs_stay_and_outputs_appear_at_the_end() -> None:
    x, y = np.arange(32, dtype=np.float32), np.full(32, -1, np.float32)
    simulate(copy(), SM_90A, {"x": x, "y": y}, {})
    np.testing.assert_array_equal(y, np.arange(32))
    np.testing.assert_array_equal(x, np.arange(32))
    late = copy(body=(*copy().body, decode("thread", ("u", 2))))
    z = np.full(32, -1, np.float32)
    with pytest.raises(LegalityError):
        simulate(late, SM_90A, {"x": x, "y": z}, {})
    assert (z == -1).all()
