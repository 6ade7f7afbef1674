"""Faults in lowered kernels of real programs: compiling refuses each with the right error and a
witness that is true, and the simulator, which knows nothing of the proofs, fails on each too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import replaced, statements
from witnesses import JUDGES, arguments

import tilewright as tw
from tilewright.base.diagnostics import (
    BarrierError,
    BoundsError,
    CoverageError,
    IndexWidthError,
    LegalityError,
    RaceError,
    ReductionError,
    TilewrightError,
    UnwrittenReadError,
)  # fmt: skip
from tilewright.codegen.sim import simulate
from tilewright.driver.compile import Rewrites
from tilewright.driver.trial import relative_error
from tilewright.kernel.ops import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    Reduce,
    Statement,
    Store,
    walk,
)  # fmt: skip
from tilewright.lower.obligations import verify
from tilewright.poly.expr import Expr, at_least, equal
from tilewright.poly.prove import Refuted
from tilewright.target import target_named

sys.path.append(str(Path(__file__).parents[1] / "corpus"))
from programs import CASES

Change = Callable[[Kernel], Kernel]
PROGRAMS = {case.name: case.make for case in CASES}
WRONG = "wrong values"
SIZES: dict[str, dict[str, int]] = {
    "transpose": {"M": 33, "N": 5},
    "column_sums": {"M": 33, "N": 70},
    "gemm_mk_nk_f16": {"M": 70, "N": 50, "K": 200},
    "untouched_constraints": {"M": 20, "N": 30},
    "attention": {"M": 50, "N": 70, "K": 32, "D": 20},
}
BOTH, HOPPER = ("sm_90a", "gfx942"), ("sm_90a",)


@dataclass(frozen=True)
class Fault:
    """A change of a program's kernel, and what must come of it."""

    program: str
    target: str
    change: Change
    error: type[TilewrightError]
    message: str  # a part of the first line
    simulated: tuple[type[TilewrightError] | str, ...]


FAULTS: list[Fault] = []


def fault(
    program: str, error: type[TilewrightError], message: str,
    *simulated: type[TilewrightError] | str, targets: tuple[str, ...] = BOTH,
) -> Callable[[Change], Change]:  # fmt: skip
    def add(change: Change) -> Change:
        FAULTS.extend(Fault(program, t, change, error, message, simulated) for t in targets)
        return change

    return add


def first(kernel: Kernel, kind: type[Statement], **fields: object) -> tuple[int, Any]:
    """The first statement of a kind, on the memory or fragment named by ``src`` or ``dst``."""

    def fits(s: object) -> bool:
        return all(getattr(s, f).name.startswith(str(n)) for f, n in fields.items())

    return next((i, s) for i, s in statements(kernel, kind) if fits(s))


def shift(ref: MemRef, axis: int, by: Expr | int) -> MemRef:
    index = list(ref.index)
    index[axis] = index[axis] + by
    return replace(ref, index=tuple(index))


# ---------------------------------------------------------------- order of threads


@fault("transpose", RaceError, "no barrier between", RaceError, UnwrittenReadError)
def barrier_dropped(kernel: Kernel) -> Kernel:
    number, _ = first(kernel, Barrier)
    return replaced(kernel, number, ())


@fault("gemm_mk_nk_f16", RaceError, "no barrier between", RaceError, UnwrittenReadError)
def barrier_of_a_loop_dropped(kernel: Kernel) -> Kernel:
    number, _ = first(kernel, Barrier)
    return replaced(kernel, number, ())


@fault("transpose", LegalityError, "convergence: a barrier under a guard", BarrierError)
def barrier_for_some_lanes(kernel: Kernel) -> Kernel:
    number, barrier = first(kernel, Barrier)
    lanes = (s for s in walk(kernel.body) if isinstance(s, Decode) and s.source == Expr.of("lane"))
    lane = next(digit for s in lanes for digit, _ in s.digits)
    return replaced(kernel, number, (If((equal(lane, 0),), (barrier,)),))


@fault("gemm_mk_nk_f16", RaceError, "its copy not known to be complete", RaceError,
       targets=HOPPER)  # fmt: skip
def wait_too_lax(kernel: Kernel) -> Kernel:
    number, wait = first(kernel, AsyncWait)
    return replaced(kernel, number, (AsyncWait(wait.pending + 1),))


@fault("gemm_mk_nk_f16", RaceError, "its copy not known to be complete", RaceError,
       targets=HOPPER)  # fmt: skip
def commit_dropped(kernel: Kernel) -> Kernel:
    number, _ = first(kernel, AsyncCommit)
    return replaced(kernel, number, ())


@fault("gemm_mk_nk_f16", RaceError, "a_tile", RaceError, UnwrittenReadError, targets=HOPPER)
def ring_refilled_one_slot_early(kernel: Kernel) -> Kernel:
    number, copy = next(
        (i, s) for i, s in statements(kernel, AsyncCopy) if not s.dst.index[0].is_const
    )
    slot = copy.dst.index[0].substitute({"k_step": Expr.of("k_step") - 1})
    dst = replace(copy.dst, index=(slot, *copy.dst.index[1:]))
    return replaced(kernel, number, (replace(copy, dst=dst),))


@fault("gemm_mk_nk_f16", RaceError, "a_tile", RaceError, UnwrittenReadError, targets=HOPPER)
def ring_read_one_slot_ahead(kernel: Kernel) -> Kernel:
    number, load = first(kernel, Load, src="a_tile")
    slot = load.src.index[0].substitute({"k_step": Expr.of("k_step") + 1})
    src = replace(load.src, index=(slot, *load.src.index[1:]))
    return replaced(kernel, number, (replace(load, src=src),))


# ---------------------------------------------------------------- reductions


@fault("gemm_mk_nk_f16", ReductionError, "is never counted into carried0", WRONG)
def loop_halved(kernel: Kernel) -> Kernel:
    number, loop = first(kernel, Loop)
    return replaced(kernel, number, (replace(loop, extent=loop.extent // 2),))


@fault("gemm_mk_nk_f16", ReductionError, "is never counted into carried0", WRONG)
def inner_loop_halved(kernel: Kernel) -> Kernel:
    number, loop = statements(kernel, Loop)[1]
    return replaced(kernel, number, (replace(loop, extent=loop.extent // 2),))


@fault("column_sums", ReductionError, "never", WRONG)
def rows_of_a_sum_dropped(kernel: Kernel) -> Kernel:
    number, reduce = first(kernel, Reduce)
    (name, extent), *rest = reduce.along
    return replaced(kernel, number, (replace(reduce, along=((name, extent - 1), *rest)),))


@fault("column_sums", ReductionError, "partial result", WRONG)
def warp_of_a_sum_dropped(kernel: Kernel) -> Kernel:
    number, reduce = next(
        (i, s) for i, s in statements(kernel, Reduce) if s.note and s.note.startswith("warps")
    )
    (name, extent), *rest = reduce.along
    return replaced(kernel, number, (replace(reduce, along=((name, extent - 1), *rest)),))


def lane_step(kernel: Kernel) -> tuple[int, Assign]:
    return next((i, s) for i, s in statements(kernel, Assign) if s.note.startswith("lanes of"))


@fault("column_sums", ReductionError, "v2_add", WRONG)
def lane_step_dropped(kernel: Kernel) -> Kernel:
    number, _ = lane_step(kernel)
    return replaced(kernel, number, ())


@fault("column_sums", ReductionError, "v2_add", WRONG)
def lane_step_with_another_mask(kernel: Kernel) -> Kernel:
    number, step = lane_step(kernel)
    add = step.value
    lane = replace(add.args[1], mask=add.args[1].mask // 2)
    return replaced(kernel, number, (replace(step, value=replace(add, args=(add.args[0], lane))),))


@fault("attention", ReductionError, "v", WRONG)
def lane_step_twice(kernel: Kernel) -> Kernel:
    number, step = next(
        (i, s)
        for i, s in statements(kernel, Assign)
        if s.note.startswith("lanes of") and s.value.op == "add"
    )
    return replaced(kernel, number, (step, step))


# ---------------------------------------------------------------- reads before writes


@fault("gemm_mk_nk_f16", UnwrittenReadError, "the register carried0[0, 0, 0] is read before",
       UnwrittenReadError)  # fmt: skip
def accumulator_not_initialised(kernel: Kernel) -> Kernel:
    number, _ = first(kernel, Assign, dst="carried0")
    return replaced(kernel, number, ())


@fault("transpose", UnwrittenReadError, "x_1_exchange[0, 0] is read before", UnwrittenReadError)
def exchange_not_written(kernel: Kernel) -> Kernel:
    number, _ = first(kernel, Store, dst="x_1_exchange")
    return replaced(kernel, number, ())


@fault("transpose", UnwrittenReadError, "is read before anything writes it", UnwrittenReadError)
def exchange_written_in_part(kernel: Kernel) -> Kernel:
    number, store = first(kernel, Store, dst="x_1_exchange")
    guard = (*store.guard, at_least(store.dst.index[0], 1))
    return replaced(kernel, number, (replace(store, guard=guard),))


# ---------------------------------------------------------------- bounds


@fault("column_sums", BoundsError, "x[33, 0] is outside: axis 0 has 33 elements", BoundsError)
def guard_of_a_load_dropped(kernel: Kernel) -> Kernel:
    number, load = first(kernel, Load, src="x")
    return replaced(kernel, number, (replace(load, guard=load.guard[1:]),))


@fault("transpose", BoundsError, "is outside: axis", BoundsError)
def guard_of_a_store_dropped(kernel: Kernel) -> Kernel:
    number, store = first(kernel, Store, dst="y")
    return replaced(kernel, number, (replace(store, guard=store.guard[:-1]),))


@fault("untouched_constraints", BoundsError, "is outside: axis", BoundsError)
def load_shifted(kernel: Kernel) -> Kernel:
    number, load = first(kernel, Load, src="x")
    return replaced(kernel, number, (replace(load, src=shift(load.src, 0, 1)),))


@fault("transpose", BoundsError, "x_1_exchange[0, -1] is outside", BoundsError)
def shared_index_shifted(kernel: Kernel) -> Kernel:
    number, store = first(kernel, Store, dst="x_1_exchange")
    return replaced(kernel, number, (replace(store, dst=shift(store.dst, 1, -1)),))


# ---------------------------------------------------------------- coverage


@fault("untouched_constraints", CoverageError, "row 0 of y is never written", CoverageError,
       BoundsError)  # fmt: skip
def store_shifted(kernel: Kernel) -> Kernel:
    number, store = first(kernel, Store, dst="y")
    return replaced(kernel, number, (replace(store, dst=shift(store.dst, 0, 1)),))


@fault("untouched_constraints", CoverageError, "never written", CoverageError)
def store_one_digit_short(kernel: Kernel) -> Kernel:
    number, store = first(kernel, Store, dst="y")
    (name, extent), *rest = store.over
    return replaced(kernel, number, (replace(store, over=((name, extent - 1), *rest)),))


@fault("untouched_constraints", CoverageError, "column 29 of y is never written", CoverageError)
def guard_of_a_store_too_tight(kernel: Kernel) -> Kernel:
    number, store = first(kernel, Store, dst="y")
    last = store.guard[-1]
    guard = (*store.guard[:-1], replace(last, expr=last.expr - 1))
    if store.width == 1:
        return replaced(kernel, number, (replace(store, guard=guard),))
    return _narrowed(kernel, number, store)


def _narrowed(kernel: Kernel, number: int, store: Store) -> Kernel:
    """Two scalar stores in the place of a vector of two, the second with a tighter guard."""
    assert store.width == 2
    last = store.guard[-1]
    ahead = replace(store.src, index=(*store.src.index[:-1], store.src.index[-1] + 1))
    one = replace(store, width=1)
    two = replace(
        store, width=1, dst=shift(store.dst, -1, 1), src=ahead,
        guard=(*store.guard[:-1], replace(last, expr=last.expr - 2)),
    )  # fmt: skip
    return replaced(kernel, number, (one, two))


@fault("column_sums", CoverageError, "y[0] is written more than once", CoverageError, RaceError)
def replicas_write_too(kernel: Kernel) -> Kernel:
    number, store = first(kernel, Store, dst="y")
    guard = tuple(c for c in store.guard if not c.equality)
    return replaced(kernel, number, (replace(store, guard=guard),))


@fault("column_sums", CoverageError, "", CoverageError)
def grid_without_its_last_block(kernel: Kernel) -> Kernel:
    number, decode = next(
        (i, s) for i, s in statements(kernel, Decode) if s.source == Expr.of("block")
    )
    (name, extent), *rest = decode.digits
    smaller = replace(decode, digits=((name, extent - 1), *rest))
    return replace(replaced(kernel, number, (smaller,)), grid=(kernel.grid[0] - 1,))


# ---------------------------------------------------------------- the judge


def compiled(fault: Fault, rewrites: Rewrites | None = None) -> tw.CompiledKernel:
    kernel = PROGRAMS[fault.program]()
    return kernel.compile(fault.target, SIZES[fault.program], rewrites=rewrites)


def seeded(fault: Fault) -> tuple[tw.CompiledKernel, Kernel]:
    """The right kernel, and its kernel IR with the fault."""
    right = compiled(fault)
    return right, fault.change(right.compilation.kernel)


def name_of(fault: Fault) -> str:
    return f"{fault.change.__name__}-{fault.program}-{fault.target}"


IDS = [name_of(f) for f in FAULTS]


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_compiling_refuses_it_at_a_line_of_the_program(fault: Fault) -> None:
    with pytest.raises(TilewrightError) as caught:
        compiled(fault, Rewrites(kernel=fault.change))
    error = caught.value
    assert type(error) is fault.error, error
    assert fault.message in error.diagnostic.message
    assert error.diagnostic.mend
    if fault.error is not LegalityError:  # a barrier stands at no line of the program
        assert error.diagnostic.span is not None
        assert error.diagnostic.span.file.endswith("programs.py")
        assert any(note.startswith("proof of ") for note in error.diagnostic.notes)


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_the_simulator_fails_on_its_own(fault: Fault) -> None:
    right, wrong = seeded(fault)
    arrays, wanted, allowed = arguments(right)
    target = target_named(fault.target)
    fine = {n: a.copy() for n, a in arrays.items()}
    simulate(right.compilation.kernel, target, fine, {})
    assert all(relative_error(fine[n], w) <= allowed for n, w in wanted.items())
    if WRONG in fault.simulated:
        simulate(wrong, target, arrays, {})
        assert any(not relative_error(arrays[n], w) <= allowed for n, w in wanted.items())
    else:
        with pytest.raises(fault.simulated):  # type: ignore[call-overload]
            simulate(wrong, target, arrays, {})


# ---------------------------------------------------------------- witnesses


def is_judged(fault: Fault) -> bool:
    """Registers and partial results of lanes are judged by what the simulator says of them."""
    if fault.error is ReductionError:
        return fault.message.startswith("is never counted")
    return fault.error in (BoundsError, CoverageError, RaceError)


JUDGED = [f for f in FAULTS if is_judged(f)]


@pytest.mark.parametrize("fault", JUDGED, ids=[name_of(f) for f in JUDGED])
def test_the_witness_is_true(fault: Fault) -> None:
    right, wrong = seeded(fault)
    target = target_named(fault.target)
    obligation = next(o for o in verify(wrong, target) if isinstance(o.result, Refuted))
    JUDGES[obligation.kind](right, wrong, obligation)


# ---------------------------------------------------------------- index width


def test_an_index_too_wide_for_its_integer() -> None:
    m, n = tw.sym.M, tw.sym.N

    @tw.kernel([tw.WorkgroupConstraint(m, 1, 0)])
    def row_sum(x: tw.Memory[m, n, tw.GLOBAL, tw.f32], y: tw.Memory[m, tw.GLOBAL, tw.f32]):
        tw.write(tw.sum(tw.read(x), dim=n), y)

    def narrow(kernel: Kernel) -> Kernel:
        tensors = tuple(replace(t, index_bits=32) for t in kernel.tensors)
        return replace(kernel, tensors=tensors)

    sizes = {m: 1 << 16, n: 1 << 16}
    right = row_sum.compile("sm_90a", sizes).compilation.kernel
    assert right.tensors[0].index_bits == 64
    with pytest.raises(IndexWidthError) as caught:
        row_sum.compile("sm_90a", sizes, rewrites=Rewrites(kernel=narrow))
    assert "the offset of x[" in str(caught.value)
    assert "more than 32 bits hold" in str(caught.value)
    x = np.broadcast_to(np.float32(1), (1 << 16, 1 << 16))
    y = np.zeros(1 << 16, np.float32)
    with pytest.raises(IndexWidthError):
        simulate(narrow(right), target_named("sm_90a"), {"x": x, "y": y}, {})
