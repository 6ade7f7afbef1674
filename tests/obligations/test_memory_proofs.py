"""Registers and memory are written before they are read; threads meet in order; barriers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proof_checks import drop, edit, others, refuted, results
from proof_kernels import TOY, copy_rows, e, kernel, pipelined_gemm, rewrite, tensor, transpose
from target_kernels import tiled_gemm

from tilewright.base.diagnostics import BarrierError, RaceError, UnwrittenReadError
from tilewright.base.dtypes import boolean, f16, i32
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Const,
    Decode,
    If,
    IndexValue,
    Kernel,
    Load,
    Loop,
    MemRef,
    Mma,
    Mode,
    Read,
    Registers,
    RegRef,
    Scalar,
    ScalarValue,
    Shared,
    Statement,
    Store,
    Swizzle,
    Symbol,
    When,
)
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.poly.expr import equal, less
from tilewright.poly.prove import Assumed, Kind, Proved, Refuted, Unknown
from tilewright.target import SM_90A

R = RegRef("r", (e("i"),))


def small(*body: Statement, shared: tuple[Shared, ...] = (), warps: int = 2) -> Kernel:
    """A body on one block of `warps` warps of 4, with digits w and t, and two fragments of 4."""
    whole: Body = (Decode(e("warp"), (("w", e(warps)),)), Decode(e("lane"), (("t", e(4)),)), *body)
    k = kernel(whole, (), warps=warps, shared=shared or (Shared("s", f16, (warps, 4)),),
               registers=(Registers("r", f16, (4,)), Registers("q", f16, (4,))))  # fmt: skip
    return replace(k, scalars=(Scalar("flag", i32),))


# ---------------------------------------------------------------- registers

ZERO = Const(0.0, f16)
SET = Assign((("i", 4),), R, ZERO)
USE = Assign((("i", 4),), RegRef("q", (e("i"),)), Read(R, f16))
SET_Q = replace(SET, dst=RegRef("q", (e("i"),)))
PICK = Assign((("i", 4),), R, Read(RegRef("q", (e("k"),)), f16))
FLAG = Apply("gt", (ScalarValue("flag", i32), Const(0, i32)), boolean)
WARP0 = (less("w", 1),)

ASSIGNED: list[tuple[str, Body, bool]] = [
    ("set, use", (SET, USE), True),
    ("use, set", (USE, SET), False),
    ("set in part", (replace(SET, over=(("i", 3),)), USE), False),
    ("set by two", (replace(SET, over=(("i", 3),)), Assign((), RegRef("r", (e(3),)), ZERO), USE),
     True),
    ("set under a guard", (If(WARP0, (SET,)), USE), False),
    ("used under the same guard", (If(WARP0, (SET,)), If(WARP0, (USE,))), True),
    ("used under a narrower guard", (If(WARP0, (SET,)), If((*WARP0, less("t", 2)), (USE,))), True),
    ("used under another guard", (If(WARP0, (SET,)), If((less("t", 1),), (USE,))), False),
    ("set in a loop", (Loop("k", e(2), (SET,)), USE), True),
    ("set in a loop that may not run", (Loop("k", e("w"), (SET,)), USE), False),
    ("used before it is set in a loop", (Loop("k", e(2), (USE, SET)),), False),
    ("set value by value", (Loop("k", e(4), (Assign((), RegRef("r", (e("k"),)), ZERO),)), USE),
     True),
    ("one value short", (Loop("k", e(3), (Assign((), RegRef("r", (e("k"),)), ZERO),)), USE), False),
    ("what the turn before set", (
        Assign((), RegRef("r", (e(0),)), ZERO),
        Loop("k", e(3), (Assign((), RegRef("r", (e("k") + 1,)), Read(RegRef("r", (e("k"),)), f16)),
                         )), USE), True),
    ("set under a condition", (When(FLAG, (SET,)), USE), False),
    ("by a decoded counter", (Loop("k", e(4), (Decode(e("k"), (("x", e(2)), ("y", e(2)))),
        Assign((), RegRef("r", (2 * e("y") + e("x"),)), ZERO))), USE), True),
    ("in the turn of the warp", (SET_Q, Loop("k", e(2), (If((equal("w", "k"),), (PICK,)),)), USE),
     True),
    ("in the turn of the next warp",
     (SET_Q, Loop("k", e(2), (If((equal("w", e("k") + 1),), (PICK,)),)), USE), False),
    ("fewer turns than warps",
     (SET_Q, Loop("k", e(1), (If((equal("w", "k"),), (PICK,)),)), USE), False),
    ("in some turns a part", (SET_Q, Loop("k", e(2), (If((equal("w", "k"),), (
        Assign((), RegRef("r", (e("k"),)), Read(RegRef("q", (e("k"),)), f16)),)),)), USE), False),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fine"), [a[1:] for a in ASSIGNED], ids=[a[0] for a in ASSIGNED])
def test_assigned_before_read(body: Body, fine: bool) -> None:
    (found,) = results(small(*body), Kind.UNWRITTEN, "r")
    assert isinstance(found, Proved if fine else Refuted)


def test_the_register_and_the_digits_are_named() -> None:
    fault = refuted(small(replace(SET, over=(("i", 3),)), USE), Kind.UNWRITTEN)
    assert fault.message == "the register r[3] is read before anything assigns it"
    assert fault.notes == ("at i = 3",)
    fault = refuted(drop(pipelined_gemm(), Assign), Kind.UNWRITTEN)
    assert fault.message == "the register acc[0] is read before anything assigns it"


# ---------------------------------------------------------------- shared memory: written first

MINE = MemRef("s", (e("w"), e("t")))
PUT, GET = Store((), MINE, RegRef("r", (e(0),))), Load((), RegRef("q", (e(0),)), MINE)
RING = MemRef("s", (e("k") % 2, e("t")))
READS: list[tuple[str, Body, bool]] = [
    ("after the write", (SET, PUT, GET), True),
    ("before the write", (SET, GET, PUT), False),
    ("of another half", (SET, If((less("w", 1),), (PUT,)), Barrier(), GET), False),
    ("of the written half", (SET, If((less("w", 1),), (PUT,)), Barrier(),
                             If((less("w", 1),), (GET,))), True),
    ("in the next turn", (SET, Loop("k", e(2), (If((less(0, "k"),), (GET,)), PUT))), True),
    ("in the first turn", (SET, Loop("k", e(2), (GET, PUT))), False),
    ("after a loop", (SET, Loop("k", e(2), (Store((), RING, RegRef("r", (e(0),))),)), Barrier(),
                      GET), True),
    ("after half a loop", (SET, Loop("k", e(1), (Store((), RING, RegRef("r", (e(0),))),)),
                           Barrier(), GET), False),
    ("of a slot of an earlier turn", (SET, Loop("k", e(4), (
        Barrier(), If((equal("w", 0),), (Store((), RING, RegRef("r", (e(0),))),)), Barrier(),
        If((less(0, "k"),), (Load((), RegRef("q", (e(0),)), MemRef("s", ((e("k") + 1) % 2, e("t")))
                                  ),)))),), True),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fine"), [r[1:] for r in READS], ids=[r[0] for r in READS])
def test_written_before_read(body: Body, fine: bool) -> None:
    (found,) = results(small(*body), Kind.UNWRITTEN, "s")
    assert isinstance(found, Proved if fine else Refuted)


def test_a_conditional_write_is_assumed() -> None:
    (found,) = results(small(SET, When(FLAG, (PUT,)), GET), Kind.UNWRITTEN, "s")
    assert found == Assumed("the condition under which s is written holds when it is read")
    (found,) = results(small(SET, When(FLAG, (PUT, GET))), Kind.UNWRITTEN, "s")
    assert isinstance(found, Proved)


def test_the_prologue_of_a_ring_is_needed() -> None:
    k = drop(pipelined_gemm(3), lambda s: isinstance(s, Loop) and s.var == "s")
    fault = refuted(k, Kind.UNWRITTEN)
    assert fault.message == "sa[0, 0, 0] is read before anything writes it"
    assert fault.notes[0] == "at ko = 0, kk = 0, with M = 1, N = 1, K = 2"
    with pytest.raises(UnwrittenReadError) as caught:
        raise_first_refuted([o for o in verify(k, TOY) if o.kind is Kind.UNWRITTEN])
    assert caught.value.diagnostic.code == "TW304"


def test_an_output_that_is_read_back() -> None:
    back = Load((), RegRef("r", (e(0),)), MemRef("y", (e("c"), e("d"))), guard=(
        less("c", "N"), less("d", "M")))  # fmt: skip
    k = transpose()
    fault = refuted(replace(k, body=(k.body[0], k.body[1], back, k.body[2])), Kind.UNWRITTEN)
    assert fault.message == "y[0, 0] is read before anything writes it"


# ---------------------------------------------------------------- races


def test_barriers_order_the_threads() -> None:
    for k in (transpose(), pipelined_gemm(2), pipelined_gemm(3), pipelined_gemm(4)):
        found = results(k, Kind.RACE)
        assert found
        assert all(isinstance(r, Proved) for r in found)


def _first(kind: type[Statement], k: Kernel, number: int = 0) -> Kernel:
    """The kernel without one statement of a kind."""
    seen: list[Statement] = []

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, kind):
            seen.append(s)
            if len(seen) == number + 1:
                return ()
        return s

    return rewrite(k, change)


OTHERS = MemRef("s", (1 - e("w"), e("t")))
THEIRS = Load((), RegRef("q", (e(0),)), OTHERS)
RACES: list[tuple[str, Kernel, str]] = [
    ("no barrier after the writes", _first(Barrier, transpose()),
     "tile[2, 0] is written by thread 0 and read by thread 2, no barrier between"),
    ("no barrier before the next turn", _first(Barrier, transpose(), 1),
     "tile[0, 2] is read by thread 0 and written by thread 2, no barrier between"),
    ("two writers", small(SET, Store((), MemRef("s", (e(0), e("t"))), RegRef("r", (e(0),)))),
     "s[0, 0] is written by thread 0 and written by thread 4, no barrier between"),
    ("threads of one warp", small(SET, PUT, Load((), RegRef("q", (e(0),)), MemRef(
        "s", (e("w"), 3 - e("t")))), warps=1),
     "s[0, 0] is written by thread 0 and read by thread 3, no barrier between"),
    ("a read before the write", small(SET, PUT, Barrier(), THEIRS, PUT),
     "s[1, 0] is read by thread 0 and written by thread 4, no barrier between"),
    ("around a loop's end", small(SET, Loop("k", e(3), (PUT, Barrier(), THEIRS))),
     "s[1, 0] is read by thread 0 and written by thread 4, no barrier between"),
    ("a loop with no barrier", small(SET, Loop("k", e(3), (PUT, If((less(e("k"), 0),), (
        Barrier(),)), THEIRS))),
     "s[0, 0] is written by thread 0 and read by thread 4, no barrier between"),
    ("a barrier that one turn lacks", small(SET, Loop("k", e(3), (
        PUT, If((less(0, "k"),), (Barrier(),)), THEIRS, Barrier()))),
     "s[0, 0] is written by thread 0 and read by thread 4, no barrier between"),
    ("after a loop that may not run", small(SET, PUT, Loop("k", e("flag_") - 1, (Barrier(),)),
                                            THEIRS),
     "s[0, 0] is written by thread 0 and read by thread 4, no barrier between"),
]  # fmt: skip


def _with_size(k: Kernel) -> Kernel:
    return replace(k, symbols=(*k.symbols, Symbol("flag_")))


@pytest.mark.parametrize(("k", "message"), [r[1:] for r in RACES], ids=[r[0] for r in RACES])
def test_a_race(k: Kernel, message: str) -> None:
    k = _with_size(k)
    fault = refuted(k, Kind.RACE)
    assert fault.message == message
    assert fault.notes[0].startswith("first the ")
    assert fault.notes[1].startswith("then the ")
    assert not any(o.kind is Kind.BARRIER for o in others(k, Kind.RACE))


NO_RACES: list[tuple[str, Body]] = [
    ("own element", (SET, PUT, GET)),
    ("reads only", (SET, PUT, Barrier(), THEIRS, GET)),
    ("a barrier each way", (SET, Loop("k", e(3), (PUT, Barrier(), THEIRS, Barrier())))),
    ("a barrier in every turn", (SET, PUT, Loop("k", e(1), (Barrier(),)), THEIRS)),
    ("two slots in turn", (SET, Loop("k", e(5), (
        If((equal("w", 0),), (Store((), RING, RegRef("r", (e(0),))),)), Barrier(),
        Load((), RegRef("q", (e(0),)), MemRef("s", (e("k") % 2, 3 - e("t"))))))),),
]  # fmt: skip


@pytest.mark.parametrize("body", [n[1] for n in NO_RACES], ids=[n[0] for n in NO_RACES])
def test_no_race(body: Body) -> None:
    (found,) = results(small(*body), Kind.RACE)
    assert isinstance(found, Proved)


COPIES: list[tuple[str, Kernel, str]] = [
    ("no wait", drop(pipelined_gemm(3), AsyncWait),
     "its copy not known to be complete"),
    ("waits for too few", edit(pipelined_gemm(3), AsyncWait, pending=2),
     "its copy not known to be complete"),
    ("no barrier after the wait", drop(pipelined_gemm(3), Barrier), "no barrier between"),
    ("wait after the barrier", rewrite(pipelined_gemm(3), lambda s: (
        () if isinstance(s, Barrier) else (Barrier(), s) if isinstance(s, AsyncWait) else s)),
     "no barrier between"),
    ("the slot still read", edit(pipelined_gemm(3), lambda s: isinstance(s, AsyncCopy)
                                 and "ko" in str(s.dst.index[0]),
                                 dst=MemRef("sa", (e("ko") % 3, 2 * e("p") + e("q"), 2 * e("u")))),
     "is written by thread 0 and written by thread 0"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "why"), [c[1:] for c in COPIES], ids=[c[0] for c in COPIES])
def test_copies_in_flight(k: Kernel, why: str) -> None:
    fault = refuted(k, Kind.RACE)
    assert why in fault.message
    with pytest.raises(RaceError):
        raise_first_refuted([o for o in verify(k, TOY) if o.kind is Kind.RACE])


def test_the_issuing_thread_waits_for_its_own_copy() -> None:
    copy = AsyncCopy((), MemRef("s", (e("w"), e("t"))), MemRef("x", (e("w"), e("t"))), 1)
    k = small(SET, copy, AsyncCommit(), AsyncWait(0), GET)
    k = replace(k, tensors=(tensor("x", (2, 4)),))
    assert all(isinstance(r, Proved) for r in results(k, Kind.RACE))
    fault = refuted(drop(k, AsyncWait), Kind.RACE)
    assert fault.message == (
        "s[0, 0] is written by thread 0 and read by thread 0, its copy not known to be complete"
    )
    other = edit(k, Load, src=OTHERS)
    assert "no barrier between" in refuted(other, Kind.RACE).message


def test_real_size_ring_without_its_last_barrier() -> None:
    k = tiled_gemm(last_barrier=False)
    fault = refuted(k, Kind.RACE, SM_90A)
    assert fault.message == (
        "sa[0, 0, 8] is read by thread 0 and written by thread 1, no barrier between"
    )
    assert dict(fault.witness.symbols) == {"M": 1, "N": 8, "K": 72}


def _sharing(offset: int, *body: Statement, swizzle: Swizzle | None = None) -> Kernel:
    """Buffers s at byte 0 and u at byte `offset`, both of 2 rows of 4 f16."""
    two = (Shared("s", f16, (2, 4)), Shared("u", f16, (2, 4), swizzle, 0, offset))
    return small(SET, PUT, *body, shared=two)


INTO_U = Store((), MemRef("u", (e("w"), e("t"))), RegRef("r", (e(0),)))


def test_buffers_that_share_bytes() -> None:
    apart = _sharing(8, Barrier(), GET, Barrier(), INTO_U)
    assert all(isinstance(r, Proved) for r in results(apart, Kind.RACE))
    fault = refuted(_sharing(8, Barrier(), GET, INTO_U), Kind.RACE)
    assert fault.message == (
        "s[1, 0], the same memory as u[0, 0], is read by thread 4 and written by thread 0, "
        "no barrier between"
    )
    away = _sharing(16, Barrier(), GET, INTO_U)
    assert all(isinstance(r, Proved) for r in results(away, Kind.RACE))
    only_first = If((less("w", 1),), (GET,))  # row 0 of s is not in u
    assert all(
        isinstance(r, Proved)
        for r in results(_sharing(8, Barrier(), only_first, INTO_U), Kind.RACE, "u")
    )
    vague = _sharing(8, Barrier(), GET, INTO_U, swizzle=Swizzle(1, 1, 1))
    assert any(isinstance(r, Unknown) for r in results(vague, Kind.RACE))


OVERWRITTEN: list[tuple[str, Body, bool]] = [
    ("read before", (Barrier(), GET, Barrier(), INTO_U), True),
    ("read after", (Barrier(), INTO_U, Barrier(), GET), False),
    ("written again", (Barrier(), INTO_U, Barrier(), PUT, GET), True),
    ("by the turn before", (Loop("k", e(3), (Barrier(), GET, Barrier(), INTO_U)),), False),
    ("each turn anew", (Loop("k", e(3), (Barrier(), PUT, GET, Barrier(), INTO_U)),), True),
]


@pytest.mark.parametrize(("body", "fine"), [o[1:] for o in OVERWRITTEN],
                         ids=[o[0] for o in OVERWRITTEN])  # fmt: skip
def test_memory_written_over_by_another_buffer(body: Body, fine: bool) -> None:
    (found,) = results(_sharing(0, *body), Kind.UNWRITTEN, "s")
    if fine:
        assert isinstance(found, Proved)
    else:
        assert found == Unknown("memory that s shares may be written over before the read")


def _in_place(source: object) -> Kernel:
    element = (e("b"), e("t"))
    body = (
        Decode(e("block"), (("b", e(4)),)),
        Decode(e("lane"), (("t", e(4)),)),
        Load((), RegRef("r", (e(0),)), MemRef("y", source)),  # type: ignore[arg-type]
        Store((), MemRef("y", element), RegRef("r", (e(0),))),
    )
    return kernel(body, (tensor("y", (4, 4), Mode.INOUT),), grid=(4,),
                  registers=(Registers("r", f16, (1,)),))  # fmt: skip


def test_a_tensor_updated_in_place() -> None:
    assert all(isinstance(r, Proved) for r in results(_in_place((e("b"), e("t"))), Kind.RACE))
    fault = refuted(_in_place((e("b"), 3 - e("t"))), Kind.RACE)
    assert (
        fault.message == "y[0, 3] is read by thread 0 and written by thread 3, no barrier between"
    )
    fault = refuted(_in_place((3 - e("b"), e("t"))), Kind.RACE)
    assert fault.message == "y[0, 0] is written by one block and read by another, with no order"


# ---------------------------------------------------------------- barriers


UNIFORM: list[tuple[str, Body, str]] = [
    ("at the top", (Barrier(),), ""),
    ("a block digit", (If((less("z", 1),), (Barrier(),)),), ""),
    ("a loop counter", (Loop("k", e(4), (If((less("k", 2),), (Barrier(),)),)),), ""),
    ("a thread digit that never differs", (If((less("w", 2),), (Barrier(),)),), ""),
    ("one warp only", (If((less("w", 1),), (Barrier(),)),),
     "threads 0 and 4 of a block disagree on the guard -w >= 0"),
    ("one lane only", (If((equal("t", 2),), (Barrier(),)),),
     "threads 2 and 0 of a block disagree on the guard t - 2 == 0"),
    ("a loop of each lane's length", (Loop("k", e("t"), (Barrier(),)),),
     "threads 0 and 1 of a block disagree on the extent t of the loop over k"),
    ("nested", (If((less("z", 1),), (
        Loop("k", e(2), (If((less(e("t"), "k"),), (Barrier(),)),)),)),),
     "threads 0 and 1 of a block disagree on the guard k - t - 1 >= 0"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), [u[1:] for u in UNIFORM], ids=[u[0] for u in UNIFORM])
def test_barriers(body: Body, message: str) -> None:
    k = small(Decode(e("block"), (("z", e(3)),)), *body)
    k = replace(k, grid=(e(3),))
    if not message:
        assert all(isinstance(r, Proved) for r in results(k, Kind.BARRIER))
        return
    fault = refuted(k, Kind.BARRIER)
    assert fault.message == message
    with pytest.raises(BarrierError, match="disagree"):
        raise_first_refuted(verify(k, TOY))


def test_a_barrier_under_a_condition() -> None:
    assert results(small(When(FLAG, (Barrier(),))), Kind.BARRIER) == [
        Proved("every thread agrees on the control flow around it")
    ]
    own = Apply("gt", (IndexValue(e("t"), i32), Const(0, i32)), boolean)
    assert results(small(When(own, (Barrier(),))), Kind.BARRIER) == [
        Assumed("the condition around the barrier is alike for every thread of the block")
    ]


def test_atoms_need_the_whole_warp() -> None:
    k = rewrite(pipelined_gemm(), lambda s: If((less("h", 1),), (s,)) if isinstance(s, Mma) else s)
    fault = refuted(k, Kind.BARRIER)
    assert fault.message == "threads 0 and 2 of a block disagree on the guard -h >= 0"
    k = rewrite(pipelined_gemm(), lambda s: If((less("w", 1),), (s,)) if isinstance(s, Mma) else s)
    assert all(isinstance(r, Proved) for r in results(k, Kind.BARRIER))


def test_copy_has_neither() -> None:
    assert results(copy_rows(), Kind.RACE) == []
