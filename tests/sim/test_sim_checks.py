"""Seeded faults: each shadow check finds them, names a witness, and stays quiet otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim_kernels import decode, e, gemm, kernel, mem, read, reg, tensor

from tilewright.base.diagnostics import (
    BarrierError,
    BoundsError,
    CoverageError,
    RaceError,
    TilewrightError,
    UnwrittenReadError,
)
from tilewright.base.dtypes import boolean, f16, f32, i32
from tilewright.base.spans import Span
from tilewright.codegen.sim import SimReport, simulate
from tilewright.codegen.sim.numeric import NUMPY
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Const,
    If,
    IndexValue,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mma,
    Mode,
    Registers,
    Shared,
    Statement,
    Store,
    Symbol,
    When,
    children,
)
from tilewright.poly.expr import at_least, less
from tilewright.target.nvidia import SM_90A

HERE = Span(__file__, 1, 0, 3)
THREADS = decode("thread", ("t", 64))
BLOCK = decode("block", ("b", 2))


def small(*body: object, grid: int = 1, **more: Any) -> Kernel:
    """Two warps, tensors x (in), y (out) and z (inout) of 64 f32, shared s, fragment r."""
    return kernel(
        (THREADS, *body),
        grid=(grid,),
        warps=2,
        tensors=(
            tensor("x", f32, Mode.IN, 64),
            tensor("y", f32, Mode.OUT, 64 * grid),
            tensor("z", f32, Mode.INOUT, 64),
        ),
        shared=(Shared("s", f32, (2, 64)),),
        registers=(Registers("r", f32, (4,)),),
        **more,
    )


def run(program: Kernel, symbols: Mapping[str, int] | None = None, **more: Any) -> SimReport:
    values = symbols or {}
    arrays: dict[str, np.ndarray[Any, Any]] = {
        t.name: np.ones(tuple(s.evaluate(values) for s in t.shape), NUMPY[t.dtype])
        for t in program.tensors
    }
    return simulate(program, SM_90A, arrays, values, **more)


def fault(program: Kernel, symbols: Mapping[str, int] | None = None) -> tuple[type, str]:
    with pytest.raises(TilewrightError) as caught:
        run(program, symbols)
    return type(caught.value), str(caught.value)


SET = Assign((), reg("r", 0), Const(1.0, f32), span=HERE)
GET = Load((), reg("r", 0), mem("x", "t"), span=HERE)
PUT = Store((), mem("y", "t"), reg("r", 0), span=HERE)
TO_SHARED = Store((), mem("s", 0, "t"), reg("r", 0), span=HERE)
MIRRORED = Load((), reg("r", 0), mem("s", 0, 63 - e("t")), span=HERE)

Case = tuple[str, Kernel, type[TilewrightError], tuple[str, ...]]


def check(cases: Sequence[Case]) -> Any:
    return pytest.mark.parametrize(
        ("program", "kind", "parts"),
        [pytest.param(*case[1:], id=case[0].replace(" ", "-")) for case in cases],
    )


# ---------------------------------------------------------------- bounds


BOUNDS: tuple[Case, ...] = (
    (
        "a read past the end",
        small(Load((), reg("r", 0), mem("x", e("t") + 1), span=HERE), PUT),
        BoundsError,
        ("`x[64]` is read outside its shape (64)", "thread 63 (warp 1, lane 31)", "on axis 0"),
    ),
    (
        "a read before the start",
        small(Load((), reg("r", 0), mem("x", e("t") - 3), span=HERE), PUT),
        BoundsError,
        ("`x[-3]` is read outside", "block 0, thread 0 (warp 0, lane 0)", "0 <= index < 64"),
    ),
    (
        "a write past the end",
        small(SET, Store((), mem("y", 2 * e("t")), reg("r", 0), span=HERE)),
        BoundsError,
        ("`y[64]` is written outside its shape (64)", "thread 32 (warp 1, lane 0)"),
    ),
    (
        "a vector that begins inside",
        small(Load((), reg("r", 0), mem("x", e("t") - e("t") % 2), width=4, span=HERE), PUT),
        BoundsError,
        ("`x[64]` is read outside", "thread 62", "element = 2"),
    ),
    (
        "an unrolled digit too many",
        small(Load((("j", 3),), reg("r", "j"), mem("x", 32 * e("j") + e("lane")), span=HERE), PUT),
        BoundsError,
        ("`x[64]` is read outside", "with j = 2"),
    ),
    (
        "shared memory",
        small(SET, Store((), mem("s", e("t") // 16, "t"), reg("r", 0), span=HERE), PUT),
        BoundsError,
        ("`s[2, 32]` is written outside its shape (2, 64)", "0 <= index < 2 on axis 0"),
    ),
    (
        "a copy of one step too many",
        small(
            Loop(
                "k",
                e(3),
                (AsyncCopy((), mem("s", e("k") % 2, "t"), mem("x", 32 * e("k") + e("lane")), 1,
                           span=HERE), AsyncCommit(), AsyncWait(0), Barrier()),
            ),
        ),
        BoundsError,
        ("`x[64]` is read outside", "thread 0"),
    ),
    (
        "a guard off by one",
        small(SET, Store((), mem("y", e("t") + 1), reg("r", 0), guard=(less("t", 64),), span=HERE)),
        BoundsError,
        ("`y[64]` is written outside", "thread 63"),
    ),
    (
        "a register",
        small(Assign((("i", 5),), reg("r", "i"), Const(0.0, f32), span=HERE), PUT),
        BoundsError,
        ("register 4 of axis 0 of `r` does not exist", "with i = 4"),
    ),
    (
        "a lane",
        small(SET, Assign((), reg("r", 1), LaneRead(reg("r", 0), e("lane") + 1, f32), span=HERE)),
        BoundsError,
        ("lane 32 of `r` does not exist", "0 <= lane < 32", "lane 31"),
    ),
)  # fmt: skip


@check(BOUNDS)
def test_out_of_bounds(program: Kernel, kind: type, parts: Sequence[str]) -> None:
    found, text = fault(program)
    assert found is kind
    for part in (*parts, f"--> {__file__}:1:1"):
        assert part in text, text


@pytest.mark.parametrize("size", [33, 64, 100])
def test_a_ragged_tensor_without_a_guard(size: int) -> None:
    at = 64 * e("b") + "t"
    program = kernel(
        (
            decode("block", ("b", e("N").ceildiv(64))),
            THREADS,
            Load((), reg("r", 0), mem("x", at)),
            Store((), mem("y", at), reg("r", 0), guard=(less(at, "N"),)),
        ),
        grid=(e("N").ceildiv(64),),
        warps=2,
        symbols=(Symbol("N"),),
        tensors=(tensor("x", f32, Mode.IN, "N"), tensor("y", f32, Mode.OUT, "N")),
        registers=(Registers("r", f32, (1,)),),
    )  # fmt: skip
    if size % 64 == 0:
        run(program, {"N": size})
        return
    found, text = fault(program, {"N": size})
    assert found is BoundsError
    assert f"`x[{size}]` is read outside its shape ({size})" in text
    assert f"block {size // 64}, thread {size % 64} " in text


def test_bounds_hold_without_checks() -> None:
    with pytest.raises(BoundsError, match=r"`x\[64\]` is read"):
        run(BOUNDS[0][1], checks=False)


# ---------------------------------------------------------------- unwritten memory


EXCHANGE = Assign((), reg("r", 1), LaneXor(reg("r", 0), 16, f32), span=HERE)


def half_written(*after: object) -> Kernel:
    return small(If((less("t", 16),), (SET,)), *after)


ATOM = "mma.sync.m16n8k16.f32.f16"


def tile(*body: object) -> Kernel:
    return kernel(
        (THREADS, *body),
        warps=2,
        registers=(
            Registers("a", f16, (8,)), Registers("b", f16, (4,)), Registers("d", f32, (2, 4)),
        ),
    )  # fmt: skip


SET_A = Assign((("i", 8),), reg("a", "i"), Const(1.0, f16))
SET_B = Assign((("i", 4),), reg("b", "i"), Const(1.0, f16))
SET_D = Assign((("m", 2), ("i", 4)), reg("d", "m", "i"), Const(0.0, f32))
MULTIPLY = Mma((("m", 2),), ATOM, reg("d", "m", 0), reg("a", 0), reg("b", 0), span=HERE)

UNWRITTEN: tuple[Case, ...] = (
    (
        "a register",
        small(PUT),
        UnwrittenReadError,
        ("`r` is read in register [0], but nothing has written it", "thread 0 "),
    ),
    (
        "a register that some threads wrote",
        half_written(PUT),
        UnwrittenReadError,
        ("`r` is read in register [0]", "thread 16 (warp 0, lane 16)"),
    ),
    (
        "a value",
        half_written(Assign((), reg("r", 1), read(f32, "r", 0), span=HERE)),
        UnwrittenReadError,
        ("`r` is read in register [0]", "thread 16"),
    ),
    (
        "a register of another lane",
        half_written(
            If((less("t", 32),), (EXCHANGE,))
        ),
        UnwrittenReadError,
        ("`r` is read in lane 16, but nothing has written it there", "thread 0 "),
    ),
    (
        "shared memory",
        small(Load((), reg("r", 0), mem("s", 1, "t"), span=HERE)),
        UnwrittenReadError,
        ("`s[1, 0]` is read, but nothing has written it", "thread 0 "),
    ),
    (
        "a part of shared memory",
        small(SET, If((at_least("t", 20),), (TO_SHARED,)), Barrier(), MIRRORED),
        UnwrittenReadError,
        ("`s[0, 19]` is read, but nothing has written it", "thread 44 "),
    ),
    (
        "an output",
        small(Load((), reg("r", 0), mem("y", "t"), span=HERE), PUT),
        UnwrittenReadError,
        ("`y[0]` is read, but it is an output that nothing has written yet",),
    ),
    (
        "an output that another block writes",
        small(BLOCK, SET, If((less("b", 1),), (PUT,)),
              Load((), reg("r", 0), mem("y", 64 * e("b") + "t"), span=HERE), grid=2),
        UnwrittenReadError,
        ("`y[64]` is read, but it is an output", "block 1, thread 0 "),
    ),
    (
        "an accumulator",
        tile(SET_A, SET_B, MULTIPLY),
        UnwrittenReadError,
        ("`d` is read in register [0, 0]", "statement: Mma"),
    ),
    (
        "a part of an accumulator",
        tile(SET_A, SET_B, Assign((("i", 4),), reg("d", 0, "i"), Const(0.0, f32)), MULTIPLY),
        UnwrittenReadError,
        ("`d` is read in register [1, 0]", "m = 1"),
    ),
    (
        "an operand",
        tile(Assign((("i", 6),), reg("a", "i"), Const(0.0, f16)), SET_B, SET_D, MULTIPLY),
        UnwrittenReadError,
        ("`a` is read in register [6]",),
    ),
)  # fmt: skip


@check(UNWRITTEN)
def test_unwritten(program: Kernel, kind: type, parts: Sequence[str]) -> None:
    found, text = fault(program)
    assert found is kind
    for part in (*parts, f"--> {__file__}:1:1"):
        assert part in text, text


def test_unwritten_memory_is_poison_without_checks() -> None:
    y = np.zeros(64, np.float32)
    arrays = {"x": y, "z": y.copy(), "y": y}
    program = small(Load((), reg("r", 0), mem("s", 1, "t")), PUT)
    simulate(program, SM_90A, arrays, {}, checks=False)
    assert np.isnan(y).all()


# ---------------------------------------------------------------- races


SMALLER = Store((), mem("s", 0, e("t") // 2), reg("r", 0), span=HERE)

RACES: tuple[Case, ...] = (
    (
        "read after write without a barrier",
        small(GET, TO_SHARED, MIRRORED, PUT),
        RaceError,
        ("`s[0, 63]` is read after a write by thread 0 and thread 63, with no barrier between",),
    ),
    (
        "write after read without a barrier",
        small(GET, TO_SHARED, Barrier(), MIRRORED, TO_SHARED, PUT),
        RaceError,
        ("`s[0, 0]` is written after an access by thread 0 and thread 63",),
    ),
    (
        "write after write without a barrier",
        small(GET, TO_SHARED, Store((), mem("s", 0, 63 - e("t")), reg("r", 0), span=HERE), PUT),
        RaceError,
        ("`s[0, 63]` is written after an access by thread 0 and thread 63",),
    ),
    (
        "two threads of one store",
        small(GET, SMALLER, PUT),
        RaceError,
        ("`s[0, 0]` is written by thread 0 and thread 1, with no barrier between",),
    ),
    (
        "a loop that lacks its second barrier",
        small(GET, Loop("k", e(2), (TO_SHARED, Barrier(), MIRRORED)), PUT),
        RaceError,
        ("`s[0, 0]` is written after an access by thread 0 and thread 63",),
    ),
    (
        "several readers before a write",
        small(
            GET, TO_SHARED, Barrier(), Load((), reg("r", 0), mem("s", 0, e("t") // 8)),
            If((less("t", 1),), (TO_SHARED,)), PUT,
        ),
        RaceError,
        ("`s[0, 0]` is written after an access by thread 0 and several threads",),
    ),
    (
        "a barrier that only another block reaches",
        small(BLOCK, GET, TO_SHARED, If((less("b", 1),), (Barrier(),)), MIRRORED, grid=2),
        RaceError,
        ("`s[0, 63]` is read after a write by thread 0 and thread 63", "block 1, thread 0"),
    ),
    (
        "two threads on an inout tensor",
        small(
            SET, If((less("t", 1),), (Store((), mem("z", 5), reg("r", 0)),)),
            Load((), reg("r", 0), mem("z", "t"), span=HERE), PUT,
        ),
        RaceError,
        ("`z[5]` is read after a write by thread 5 and thread 0, with no order between them",),
    ),
    (
        "two blocks on an inout tensor",
        small(
            BLOCK, Load((), reg("r", 0), mem("z", "t")), Barrier(),
            Store((), mem("z", 63 - e("t")), reg("r", 0), span=HERE), grid=2,
        ),
        RaceError,
        ("`z[63]` is written after an access by thread 0 and several blocks",),
    ),
)  # fmt: skip


@check(RACES)
def test_races(program: Kernel, kind: type, parts: Sequence[str]) -> None:
    found, text = fault(program)
    assert found is kind
    for part in (*parts, f"--> {__file__}:1:1"):
        assert part in text, text


def test_a_buffer_that_shares_bytes_needs_a_barrier() -> None:
    first = Shared("s", f32, (64,))
    second = Shared("u", f32, (64,), offset=128)
    program = replace(
        small(
            GET, Store((), mem("s", "t"), reg("r", 0)), Barrier(),
            Load((), reg("r", 0), mem("s", 63 - e("t"))),
            Store((), mem("u", "t"), reg("r", 0), span=HERE), PUT,
        ),
        shared=(first, second),
    )  # fmt: skip
    found, text = fault(program)
    assert found is RaceError
    assert "`u[0]` is written after an access by thread 0 and thread 31" in text
    apart = replace(program, shared=(first, replace(second, offset=256)))
    run(apart)


ORDERED = {
    "a barrier between": small(GET, TO_SHARED, Barrier(), MIRRORED, PUT),
    "own elements need none": small(
        GET, TO_SHARED, Load((), reg("r", 0), mem("s", 0, "t")), TO_SHARED, PUT
    ),
    "many may read one element": small(
        GET, TO_SHARED, Barrier(), Load((), reg("r", 0), mem("s", 0, 7)),
        Load((), reg("r", 0), mem("s", 0, 7)), Barrier(), TO_SHARED, PUT,
    ),
    "other buffers are other elements": small(
        GET, TO_SHARED, Barrier(), MIRRORED, Store((), mem("s", 1, "t"), reg("r", 0)), PUT,
    ),
    "a block alone may pass a barrier": small(
        BLOCK, GET, TO_SHARED, If((less("b", 1),), (Barrier(), MIRRORED)),
        Store((), mem("y", 64 * e("b") + "t"), reg("r", 0)), grid=2,
    ),
    "an inout tensor within a block": small(
        Load((), reg("r", 0), mem("z", 63 - e("t"))), Barrier(),
        Store((), mem("z", "t"), reg("r", 0)), PUT,
    ),
    "an output read back": small(
        GET, PUT, Load((), reg("r", 0), mem("y", "t")), Barrier(),
        Load((), reg("r", 0), mem("y", 63 - e("t"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_ordered_accesses_are_no_race(name: str) -> None:
    run(ORDERED[name])
    run(ORDERED[name], seed=1)


# ---------------------------------------------------------------- asynchronous copies


def copy(stage: int, element: Any = "t") -> AsyncCopy:
    return AsyncCopy((), mem("s", stage, element), mem("x", "t"), 1, span=HERE)


def own(stage: int) -> Load:
    return Load((), reg("r", 0), mem("s", stage, "t"), span=HERE)


COPIES: tuple[Case, ...] = (
    (
        "no wait",
        small(copy(0), AsyncCommit(), Barrier(), own(0), PUT),
        RaceError,
        ("`s[0, 0]` is read while an asynchronous copy into it by thread 0 is under way",),
    ),
    (
        "no commit",
        small(copy(0), AsyncWait(0), Barrier(), own(0), PUT),
        RaceError,
        ("`s[0, 0]` is read while an asynchronous copy", "an AsyncWait that covers"),
    ),
    (
        "a wait that leaves the group pending",
        small(copy(0), AsyncCommit(), copy(1), AsyncCommit(), AsyncWait(1), Barrier(), own(1), PUT),
        RaceError,
        ("`s[1, 0]` is read while an asynchronous copy",),
    ),
    (
        "no barrier after the wait",
        small(copy(0), AsyncCommit(), AsyncWait(0), MIRRORED, PUT),
        RaceError,
        ("`s[0, 63]` is read after a write by thread 0 and thread 63, with no barrier",),
    ),
    (
        "a barrier before the wait only",
        small(copy(0), AsyncCommit(), Barrier(), AsyncWait(0), MIRRORED, PUT),
        RaceError,
        ("`s[0, 63]` is read after a write by thread 0 and thread 63, with no barrier",),
    ),
    (
        "a store into a copy under way",
        small(copy(0), AsyncCommit(), SET, TO_SHARED, AsyncWait(0)),
        RaceError,
        ("`s[0, 0]` is written while an asynchronous copy into it by thread 0 is under way",),
    ),
    (
        "a second copy into the same stage",
        small(copy(0), AsyncCommit(), copy(0), AsyncCommit(), AsyncWait(0)),
        RaceError,
        ("`s[0, 0]` is written while an asynchronous copy",),
    ),
    (
        "two threads that copy into one element",
        small(copy(0, e("t") // 2), AsyncCommit(), AsyncWait(0)),
        RaceError,
        ("`s[0, 0]` is written by thread 0 and thread 1",),
    ),
    (
        "a stage that others still read",
        small(GET, TO_SHARED, Barrier(), MIRRORED, copy(0), AsyncCommit(), AsyncWait(0), PUT),
        RaceError,
        ("`s[0, 0]` is written after an access by thread 0 and thread 63",),
    ),
    (
        "a wait that half of the threads do",
        small(
            copy(0), AsyncCommit(), If((less("t", 32),), (AsyncWait(0),)), Barrier(), MIRRORED, PUT
        ),
        RaceError,
        ("`s[0, 63]` is read while an asynchronous copy into it by thread 63 is under way",),
    ),
)  # fmt: skip


@check(COPIES)
def test_asynchronous_copies(program: Kernel, kind: type, parts: Sequence[str]) -> None:
    found, text = fault(program)
    assert found is kind
    for part in (*parts, f"--> {__file__}:1:1"):
        assert part in text, text
    with pytest.raises(RaceError):
        run(program, seed=3)


def test_copies_land_late_or_at_random() -> None:
    program = small(copy(0), AsyncCommit(), own(0), PUT, AsyncWait(0))

    def outcome(seed: int | None) -> np.ndarray[Any, Any]:
        arrays = {name: np.ones(64, np.float32) for name in "xyz"}
        simulate(program, SM_90A, arrays, {}, checks=False, seed=seed)
        return arrays["y"]

    assert np.isnan(outcome(None)).all()
    early = np.array([np.isnan(outcome(seed)) for seed in range(20)])
    assert 0.3 < early.mean() < 0.7
    assert early.any(axis=0).all()
    assert not early.all(axis=0).any()
    np.testing.assert_array_equal(outcome(5), outcome(5))


def test_threads_have_groups_of_their_own() -> None:
    """The first warp's copies are one group older, so a wait for all but one covers them."""
    early = If((less("t", 32),), (copy(0), AsyncCommit(), copy(1), AsyncCommit()))
    late = If((at_least("t", 32),), (copy(0), AsyncCommit()))
    fine = If((less("t", 32),), (own(0),))
    wrong = If((at_least("t", 32),), (own(0),))
    run(small(early, late, AsyncWait(1), fine, AsyncWait(0), SET, PUT))
    found, text = fault(small(early, late, AsyncWait(1), wrong))
    assert found is RaceError
    assert "`s[0, 32]` is read while an asynchronous copy into it by thread 32" in text


def test_copies_that_never_land_are_reported() -> None:
    report = run(small(copy(0), AsyncCommit(), SET, PUT))
    (finding,) = report.findings
    assert finding.message == "the kernel ends while asynchronous copies into `s` are under way"
    assert run(small(copy(0), AsyncCommit(), SET, PUT, AsyncWait(0))).findings == ()


def edit(program: Kernel, change: Callable[[Statement], tuple[Statement, ...]]) -> Kernel:
    """The kernel with each statement replaced by what `change` makes of it."""

    def body(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for s in statements:
            inner = replace(s, body=body(children(s))) if children(s) else s  # type: ignore[call-arg]
            out += change(inner)
        return tuple(out)

    return replace(program, body=body(program.body))


def without(kind: type, number: int) -> Callable[[Statement], tuple[Statement, ...]]:
    seen = [0]

    def change(s: Statement) -> tuple[Statement, ...]:
        if isinstance(s, kind):
            seen[0] += 1
            return () if seen[0] == number + 1 else (s,)
        return (s,)

    return change


GEMM_FAULTS: dict[str, tuple[Callable[[Statement], tuple[Statement, ...]], type, str]] = {
    "no barrier after the wait": (without(Barrier, 0), RaceError, "is read after a write"),
    "no barrier at the end": (without(Barrier, 1), RaceError, "is written after an access"),
    "no wait": (without(AsyncWait, 0), RaceError, "is read while an asynchronous copy"),
    "no first commit": (without(AsyncCommit, 0), RaceError, "is read while an asynchronous copy"),
    "no copy of b": (without(AsyncCopy, 1), UnwrittenReadError, "`bs[0, "),
    "no accumulator": (without(Assign, 0), UnwrittenReadError, "`acc` is read in register"),
    "no store": (without(Store, 0), CoverageError, "16384 of 16384 elements of `c` are never"),
    "no guard on the last copies": (
        lambda s: s.body if isinstance(s, If) else (s,), BoundsError, "`a[0, 96]` is read outside",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GEMM_FAULTS)
def test_faults_in_a_gemm(name: str) -> None:
    change, kind, part = GEMM_FAULTS[name]
    found, text = fault(edit(gemm(128, 128, 96), change))
    assert found is kind
    assert part in text, text
    run(gemm(128, 128, 96))


# ---------------------------------------------------------------- barriers


def per_thread(body: tuple[Statement, ...]) -> When:
    return When(Apply("lt", (IndexValue(e("t"), i32), Const(40, i32)), boolean), body, span=HERE)


HALF_A_WARP = If((less("t", 16),), (MULTIPLY,))

BARRIERS: tuple[Case, ...] = (
    (
        "under a guard",
        small(If((less("t", 32),), (Barrier("staged"),)), SET, PUT),
        BarrierError,
        ("thread 32 does not reach a barrier that other threads of its block", "(staged)"),
    ),
    (
        "under a guard of one block",
        small(BLOCK, If((at_least(e("t") + e("b"), 1),), (Barrier(),)), grid=2),
        BarrierError,
        ("thread 0 does not reach a barrier", "block 0, thread 0 "),
    ),
    (
        "in a loop that threads leave early",
        small(Loop("k", e("t") // 32 + 1, (Barrier(),), span=HERE)),
        BarrierError,
        ("the extent of loop `k` is 1 for thread 0 and 2 for thread 32",),
    ),
    (
        "a condition that differs",
        small(per_thread((SET,))),
        BarrierError,
        ("the condition is True for thread 0 and False for thread 40", "agree on"),
    ),
    (
        "half a warp at a matrix instruction",
        tile(SET_A, SET_B, SET_D, HALF_A_WARP),
        BarrierError,
        (f"`{ATOM}` is not reached by thread 16, though other threads of its warp reach it",),
    ),
    (
        "a lane that does not take part",
        small(
            SET,
            If((less("t", 24),), (Assign((), reg("r", 1), LaneXor(reg("r", 0), 16, f32)),)),
        ),
        BarrierError,
        ("lane 24 of `r` is read, but that lane does not reach the statement", "thread 8 "),
    ),
)


@check(BARRIERS)
def test_barriers(program: Kernel, kind: type, parts: Sequence[str]) -> None:
    found, text = fault(program)
    assert found is kind
    for part in parts:
        assert part in text, text


def test_whole_warps_may_differ() -> None:
    one_warp = If(
        (less("t", 32),), (MULTIPLY, Assign((), reg("d", 0, 0), LaneXor(reg("d", 0, 1), 16, f32)))
    )
    run(tile(SET_A, SET_B, SET_D, one_warp))
    report = run(small(BLOCK, If((less("b", 1),), (Barrier(), Barrier())), SET,
                       Store((), mem("y", 64 * e("b") + "t"), reg("r", 0)), grid=2))  # fmt: skip
    assert report.barriers == 2


# ---------------------------------------------------------------- coverage


COVERAGE: tuple[Case, ...] = (
    (
        "two blocks",
        small(BLOCK, SET, PUT, grid=2),
        CoverageError,
        ("`y[0]` is written more than once", "each element of an output written exactly once"),
    ),
    (
        "two threads of a store",
        small(SET, Store((), mem("y", e("t") - e("t") % 2), reg("r", 0), span=HERE)),
        CoverageError,
        ("`y[0]` is written more than once",),
    ),
    (
        "two iterations of a loop",
        small(SET, Loop("k", e(2), (PUT,))),
        CoverageError,
        ("`y[0]` is written more than once",),
    ),
    (
        "two unrolled instances",
        small(SET, Store((("i", 2),), mem("y", "t"), reg("r", 0), span=HERE)),
        CoverageError,
        ("`y[0]` is written more than once",),
    ),
    (
        "too few blocks",
        small(SET, If((at_least("t", 3),), (PUT,))),
        CoverageError,
        ("3 of 64 elements of `y` are never written, the first is `y[0]`",),
    ),
    (
        "a half",
        small(BLOCK, SET, If((less("b", 1),), (PUT,)), grid=2),
        CoverageError,
        ("64 of 128 elements of `y` are never written, the first is `y[64]`",),
    ),
)


@check(COVERAGE)
def test_coverage(program: Kernel, kind: type, parts: Sequence[str]) -> None:
    found, text = fault(program)
    assert found is kind
    for part in parts:
        assert part in text, text


def test_a_digit_that_nobody_places() -> None:
    """The store of two column tiles, cut to the first: the gap and its first element."""
    program = kernel(
        (
            decode("lane", ("g", 8), ("q", 4)),
            Assign((("n", 2), ("i", 4)), reg("d", "n", "i"), Const(0.0, f32)),
            Store(
                (("n", 1), ("h", 2)), mem("c", 8 * e("h") + "g", 8 * e("n") + 2 * e("q")),
                reg("d", "n", 2 * e("h")), width=2,
            ),
        ),
        tensors=(replace(tensor("c", f32, Mode.OUT, 16, 16), span=HERE),),
        registers=(Registers("d", f32, (2, 4)),),
    )  # fmt: skip
    found, text = fault(program)
    assert found is CoverageError
    assert "128 of 256 elements of `c` are never written, the first is `c[0, 8]`" in text
    assert f"--> {__file__}:1:1" in text
