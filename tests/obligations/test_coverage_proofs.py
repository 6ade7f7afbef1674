"""Outputs are written exactly once: what is proved, and how a gap or an overlap is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from proof_checks import drop, edit, others, refuted, results
from proof_kernels import TOY, copy_rows, e, kernel, row_sums, tensor
from target_kernels import chained_gemm, tiled_gemm

from tilewright.base.diagnostics import CoverageError
from tilewright.base.dtypes import boolean, f16, f32, i32
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Const,
    Decode,
    If,
    Kernel,
    Loop,
    MemRef,
    Mode,
    Registers,
    RegRef,
    Scalar,
    ScalarValue,
    Statement,
    Store,
    Symbol,
    When,
)
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.poly.expr import Guard, less
from tilewright.poly.prove import Assumed, Kind, Proved, Refuted
from tilewright.target import GFX942, SM_90A


def writer(*stores: Statement, grid: int = 1, warps: int = 1, shape: tuple[str | int, ...] = (8, 4),
           mode: Mode = Mode.OUT) -> Kernel:  # fmt: skip
    """Stores of a constant to y, on `grid` blocks of 4 lanes, with digits b, w, h, l."""
    return replace(
        kernel(
            (
                Decode(e("block"), (("b", e(grid)),)),
                Decode(e("warp"), (("w", e(warps)),)),
                Decode(e("lane"), (("h", e(2)), ("l", e(2)))),
                Assign((), RegRef("r", (e(0),)), Const(0.0, f16)),
                *stores,
            ),
            (tensor("y", shape, mode),),
            grid=(grid,), warps=warps,
            symbols=tuple(Symbol(s) for s in shape if isinstance(s, str)),
            registers=(Registers("r", f16, (1,)),),
        ),
        scalars=(Scalar("flag", i32),),
    )  # fmt: skip


def store(row: object, column: object, guard: Guard = (), **over: int) -> Store:
    index = (e(0) + row, e(0) + column)  # type: ignore[operator]
    return Store(tuple(over.items()), MemRef("y", index), RegRef("r", (e(0),)), guard=guard)


ROW, COLUMN = 2 * e("i") + e("h"), 2 * e("j") + e("l")
WHOLE = store(ROW, COLUMN, i=4, j=2)


def decodes(source: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, Decode) and str(s.source) == source


def test_whole_tile_with_its_count() -> None:
    assert results(writer(WHOLE), Kind.COVERAGE) == [
        Proved("all 32 elements of y are written exactly once")
    ]


def test_symbolic_sizes() -> None:
    assert results(copy_rows(), Kind.COVERAGE) == [
        Proved("all elements of y are written exactly once")
    ]
    assert results(tiled_gemm(), Kind.COVERAGE, target=SM_90A) == [
        Proved("all elements of c are written exactly once")
    ]


def test_the_worked_example() -> None:
    assert results(chained_gemm(), Kind.COVERAGE, target=GFX942) == [
        Proved("all 512 elements of dv are written exactly once")
    ]
    fault = refuted(chained_gemm(n_frags=1), Kind.COVERAGE, GFX942)
    assert fault.message == "columns 16 to 31 of dv are never written"
    assert fault.notes == ("the first is dv[0, 16]", "256 of 512 elements are missing")
    assert fault.witness.element == (0, 16)


GAPS = [
    ("rows", store(ROW, COLUMN, i=3, j=2), "rows 6 to 7 of y are never written", (6, 0), 8),
    ("one column", store(ROW, COLUMN, (less(COLUMN, 3),), i=4, j=2),
     "column 3 of y is never written", (0, 3), 8),
    ("a corner", store(ROW, COLUMN, (less(ROW + COLUMN, 10),), i=4, j=2),
     "column 3 in row 7 of y are never written", (7, 3), 1),
    ("a stride", store(ROW, COLUMN + e("l"), (less(COLUMN + e("l"), 4),), i=4, j=1),
     "columns 1 to 3 of y are never written", (0, 1), 16),
    ("shifted", store(ROW + 1, COLUMN, (less(ROW, 7),), i=4, j=2),
     "row 0 of y is never written", (0, 0), 4),
]  # fmt: skip


@pytest.mark.parametrize(("write", "message", "first", "missing"), [g[1:] for g in GAPS],
                         ids=[g[0] for g in GAPS])  # fmt: skip
def test_a_gap(write: Store, message: str, first: tuple[int, ...], missing: int) -> None:
    k = writer(write)
    fault = refuted(k, Kind.COVERAGE)
    assert fault.message == message
    assert fault.witness.element == first
    assert fault.notes[1] == f"{missing} of 32 elements are missing"
    assert others(k, Kind.COVERAGE) == []


def test_a_replicated_digit_names_both_writers() -> None:
    k = writer(WHOLE, warps=3)
    fault = refuted(k, Kind.COVERAGE)
    assert fault.message == "y[0, 0] is written more than once"
    assert fault.notes == ("by w = 0 and again by w = 1, the rest alike",)
    one, two = (dict(side) for side in fault.witness.instances)
    assert one | {"w": 1} == two
    guarded = writer(If((less("w", 1),), (WHOLE,)), warps=3)
    assert isinstance(results(guarded, Kind.COVERAGE)[0], Proved)


def test_a_digit_that_no_decode_names_is_still_counted() -> None:
    without = drop(writer(WHOLE, warps=2), decodes("warp"))
    fault = refuted(without, Kind.COVERAGE)
    assert fault.notes == ("by warp = 0 and again by warp = 1, the rest alike",)
    blocks = drop(writer(WHOLE, grid=2), decodes("block"))
    fault = refuted(blocks, Kind.COVERAGE)
    assert fault.notes == ("by block.0 = 0 and again by block.0 = 1, the rest alike",)


def test_two_stores_that_overlap() -> None:
    low = store(ROW, COLUMN, i=3, j=2)
    high = store(4 + ROW, COLUMN, i=2, j=2)
    fault = refuted(writer(low, high), Kind.COVERAGE)
    assert fault.message == "y[4, 0] is written more than once"
    assert fault.notes[0].startswith("by store to y at ")
    assert fault.witness.element == (4, 0)
    apart = writer(store(ROW, COLUMN, i=2, j=2), high)
    assert isinstance(results(apart, Kind.COVERAGE)[0], Proved)


def test_overlapping_strides_with_symbolic_size() -> None:
    overlap = edit(
        copy_rows(),
        Store,
        dst=MemRef("y", (4 * e("mo") + e("w") + e("h"), 8 * e("no") + 4 * e("l") + 2 * e("v"))),
    )
    fault = refuted(overlap, Kind.COVERAGE)
    assert fault.message == "row 2 of y is never written"
    assert dict(fault.witness.symbols) == {"M": 3, "N": 2}


def test_a_tail_that_the_grid_leaves_out() -> None:
    k = copy_rows()
    short = (e("M") // 4, e("N").ceildiv(8))
    cut = rewrite_grid(k, short)
    fault = refuted(cut, Kind.COVERAGE)
    assert fault.message == "y is never written"
    assert dict(fault.witness.symbols) == {"M": 1, "N": 2}
    whole = replace(cut, symbols=(Symbol("M", 1, 4), Symbol("N", 1, 2)))
    assert isinstance(results(whole, Kind.COVERAGE)[0], Proved)


def rewrite_grid(k: Kernel, extents: tuple[object, object]) -> Kernel:
    mo, no = extents
    return replace(edit(k, decodes("block"), digits=(("mo", mo), ("no", no))), grid=(mo, no))  # type: ignore[arg-type]


def test_nothing_is_stored() -> None:
    fault = refuted(writer(), Kind.COVERAGE)
    assert fault.message == "y is never written"
    assert fault.notes == ("the first is y[0, 0]", "32 of 32 elements are missing")


def test_in_out_tensors_may_have_gaps_but_no_overlap() -> None:
    part = writer(store(ROW, e("l"), i=4), mode=Mode.INOUT)
    assert results(part, Kind.COVERAGE) == [Proved("no element is written twice")]
    twice = writer(store(ROW, e("l"), i=4, j=2), mode=Mode.INOUT)
    assert refuted(twice, Kind.COVERAGE).message == "y[0, 0] is written more than once"


def test_a_data_dependent_condition_is_assumed() -> None:
    flag = Apply("gt", (ScalarValue("flag", i32), Const(0, i32)), boolean)
    assert results(writer(When(flag, (WHOLE,))), Kind.COVERAGE) == [
        Assumed("the conditions under which y is written hold wherever it has to be")
    ]
    covered = writer(store(ROW, COLUMN, i=2, j=2), When(flag, (
        store(4 + ROW, COLUMN, i=2, j=2),)))  # fmt: skip
    assert isinstance(results(covered, Kind.COVERAGE)[0], Assumed)
    twice = writer(WHOLE, When(flag, (WHOLE,)))
    assert not isinstance(results(twice, Kind.COVERAGE)[0], Proved | Refuted)


def test_a_loop_that_repeats_a_store() -> None:
    fault = refuted(writer(Loop("t", e(2), (WHOLE,))), Kind.COVERAGE)
    assert fault.notes == ("by t = 0 and again by t = 1, the rest alike",)
    once = writer(Loop("t", e(2), (If((less("t", 1),), (WHOLE,)),)))
    assert isinstance(results(once, Kind.COVERAGE)[0], Proved)


def test_a_swizzled_grid_with_an_edge_guard() -> None:
    """t = (mg * No + no) * 2 + mr and mo = 2 * mg + mr, guarded by mo < M."""
    mo = 2 * e("mg") + e("mr")
    body = (
        Decode(e("block"), (("mg", e("M").ceildiv(2)), ("no", e("N")), ("mr", e(2)))),
        Assign((), RegRef("r", (e(0),)), Const(0.0, f32)),
        If((less(mo, "M"), less("lane", 1)),
           (Store((), MemRef("y", (mo, e("no"))), RegRef("r", (e(0),))),)),
    )  # fmt: skip
    k = kernel(
        body, (tensor("y", ("M", "N"), Mode.OUT),), symbols=(Symbol("M"), Symbol("N")),
        grid=(e("M").ceildiv(2), e("N"), 2), registers=(Registers("r", f32, (1,)),),
    )  # fmt: skip
    assert isinstance(results(k, Kind.COVERAGE)[0], Proved)
    unguarded = edit(k, If, guard=(less("lane", 1),))
    assert results(unguarded, Kind.COVERAGE) == [
        Proved("all elements of y are written exactly once")
    ]  # the rows past the edge are out of bounds, not missing
    assert refuted(unguarded, Kind.BOUNDS).message == "y[1, 0] is outside: axis 0 has 1 elements"


def test_a_persistent_loop_over_tiles() -> None:
    """t = 3 * i + block < 20, written in digits of 4 x 5."""
    t = 3 * e("i") + e("block")
    body = (
        Assign((), RegRef("r", (e(0),)), Const(0.0, f32)),
        Loop("i", e(7), (
            If((less(t, 20), less("lane", 1)), (
                Decode(t, (("mo", e(4)), ("no", e(5)))),
                Store((), MemRef("y", (e("mo"), e("no"))), RegRef("r", (e(0),))),
            )),
        )),
    )  # fmt: skip
    k = kernel(body, (tensor("y", (4, 5), Mode.OUT),), grid=(3,),
               registers=(Registers("r", f32, (1,)),))  # fmt: skip
    assert all(isinstance(o.result, Proved) for o in verify(k, TOY))
    few = edit(k, Loop, extent=e(6))
    assert refuted(few, Kind.COVERAGE).message == "columns 3 to 4 in row 3 of y are never written"
    assert refuted(few, Kind.DECODE).message.endswith("never takes the value 18 of its digits' 20")


def test_the_error_of_a_gap() -> None:
    with pytest.raises(CoverageError, match="columns 16 to 31 of dv are never written") as caught:
        raise_first_refuted(verify(chained_gemm(n_frags=1), GFX942))
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == "TW301"
    assert diagnostic.notes[0] == "the first is dv[0, 16]"
    assert diagnostic.expected == "every element of an output written exactly once"
    raise_first_refuted(verify(row_sums(), TOY))  # nothing refuted: nothing raised
