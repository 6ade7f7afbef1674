"""Each term of a reduction is counted once: loops, atoms, lanes and warps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proof_checks import drop, edit, others, refuted, results
from proof_kernels import TOY, e, pipelined_gemm, rewrite, row_sums, warp_sums
from target_kernels import chained_gemm, tiled_gemm

from tilewright.base.diagnostics import ReductionError
from tilewright.base.dtypes import f32
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Const,
    If,
    Kernel,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Read,
    Reduce,
    ReducedAxis,
    RegRef,
    Statement,
    Store,
)
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.poly.expr import equal, less
from tilewright.poly.prove import Kind, Proved, Refuted, Unknown
from tilewright.target import GFX942, SM_90A


def test_loops_and_atoms() -> None:
    once = Proved("each of K terms is counted once")
    assert results(pipelined_gemm(), Kind.REDUCTION) == [once]
    assert results(tiled_gemm(), Kind.REDUCTION, target=SM_90A) == [once]
    found = results(chained_gemm(), Kind.REDUCTION, target=GFX942)
    assert found == [Proved("each of 16 terms is counted once")] * 2


def test_lanes_and_warps() -> None:
    assert results(row_sums(), Kind.REDUCTION) == [
        Proved("each of N terms is counted once"),
        Proved("4 lanes combined, each once"),
    ]
    assert results(warp_sums(), Kind.REDUCTION) == [
        Proved("each of K terms is counted once"),
        Proved("the partial results of all warps combined, each once"),
    ]


def _ko(s: Statement) -> bool:
    return isinstance(s, Loop) and s.var == "ko"


def _kk(s: Statement) -> bool:
    return isinstance(s, Loop) and s.var == "kk"


def _counting(coordinate: object) -> Kernel:
    return edit(pipelined_gemm(), Mma, reduces=(ReducedAxis("K", e("K"), coordinate),))  # type: ignore[arg-type]


GEMM: list[tuple[str, Kernel, str, dict[str, int]]] = [
    ("last step missing", edit(pipelined_gemm(), _ko, extent=e("K") // 4),
     "K = 0 to 1 is never counted into acc", {"K": 2}),
    ("half of each tile", edit(pipelined_gemm(), _kk, extent=e(1)),
     "K = 2 to 3 is never counted into acc", {"K": 4}),
    ("the same half twice", _counting(4 * e("ko")),
     "K = 0 is counted more than once into acc[0]", {"K": 2}),
    ("tiles that overlap", _counting(2 * e("ko") + 2 * e("kk")),
     "K = 2 is counted more than once into acc[0]", {"K": 6}),
    ("one fragment only", edit(pipelined_gemm(), Mma, over=(("j", 1),)),
     "K = 0 to 1 is never counted into acc", {"K": 2}),
    ("unrolled once too often", edit(pipelined_gemm(), Mma, over=(("j", 2), ("twice", 2))),
     "K = 0 is counted more than once into acc[0]", {"K": 2}),
    ("under a guard", rewrite(pipelined_gemm(), lambda s: If((less("ko", 2),), (s,))
                              if isinstance(s, Mma) else s),
     "K = 8 to 9 is never counted into acc", {"K": 10}),
    ("reset in the loop", rewrite(pipelined_gemm(), lambda s: (
        Assign((("j", 2),), RegRef("acc", (e("j"),)), Const(0.0, f32)), s) if _kk(s) else s),
     "K = 0 to 5 is never counted into acc", {"K": 6}),
]  # fmt: skip


@pytest.mark.parametrize(("k", "message", "sizes"), [g[1:] for g in GEMM],
                         ids=[g[0] for g in GEMM])  # fmt: skip
def test_a_term_missing_or_twice(k: Kernel, message: str, sizes: dict[str, int]) -> None:
    fault = refuted(k, Kind.REDUCTION)
    assert fault.message == message
    assert dict(fault.witness.symbols).items() >= sizes.items()
    with pytest.raises(ReductionError, match=message.split(" into", maxsplit=1)[0]):
        raise_first_refuted([o for o in verify(k, TOY) if o.kind is Kind.REDUCTION])


def test_witness_of_a_double_count() -> None:
    fault = refuted(_counting(4 * e("ko")), Kind.REDUCTION)
    one, two = (dict(side) for side in fault.witness.instances)
    assert (one["kk"], two["kk"]) == (0, 1)
    assert fault.notes[0] == "by kk = 0 and again by kk = 1, the rest alike"


def test_a_second_axis_and_a_peeled_step() -> None:
    """Two statements that share the axis count together."""
    k = pipelined_gemm(2, 4, 4, 8)

    def peel(s: Statement) -> Statement | tuple[Statement, ...]:
        if not isinstance(s, Mma):
            return s
        low = replace(s, reduces=(ReducedAxis("K", e(8), 4 * e("ko") + 2 * e("kk")),))
        return (
            If((equal("ko", 0),), (low,)),
            If((equal("ko", 1), equal("kk", 0)), (low,)),
            If((equal("ko", 1), equal("kk", 1)), (low,)),
        )

    assert isinstance(results(rewrite(k, peel), Kind.REDUCTION)[0], Proved)

    def forget(s: Statement) -> Statement | tuple[Statement, ...]:
        made = peel(s)
        return made[:2] if isinstance(made, tuple) else made

    fault = refuted(rewrite(k, forget), Kind.REDUCTION)
    assert fault.message == "K = 6 to 7 is never counted into acc"


def test_a_guard_shared_with_the_reader_is_no_gap() -> None:
    """Tiles past the edge of a swizzled grid neither accumulate nor store."""
    inside = (less("mo", 1),)
    k = pipelined_gemm()
    body = [If(inside, (s,)) if isinstance(s, Store) or _ko(s) else s for s in k.body]
    both = replace(k, body=tuple(body))
    assert isinstance(results(both, Kind.REDUCTION)[0], Proved)
    body = [If(inside, (s,)) if _ko(s) else s for s in k.body]
    fault = refuted(replace(k, body=tuple(body)), Kind.REDUCTION)
    assert fault.message == "K = 0 to 1 is never counted into acc"
    assert dict(fault.witness.symbols)["M"] == 5
    assert fault.witness.instances == ((("mo", 1), ("no", 0)),)


def test_a_running_value_is_one_accumulator() -> None:
    """m2 = m; m2 = max(m2, x..); m = m2 in a loop: the copies are followed."""
    k = row_sums()
    s, m = RegRef("s", (e(0),)), RegRef("m", (e(0),))

    def carry(t: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(t, Reduce):
            copied = Assign((), m, Read(s, f32))
            return (copied, replace(t, op="max", dst=m), Assign((), s, Read(m, f32)))
        if isinstance(t, Assign) and isinstance(t.value, Apply):
            return replace(t, value=replace(t.value, op="max"))
        return t

    carried = rewrite(k, carry)
    carried = replace(carried, registers=(*k.registers, replace(k.registers[1], name="m")))
    assert results(carried, Kind.REDUCTION) == [
        Proved("each of N terms is counted once"),
        Proved("4 lanes combined, each once"),
    ]


# ---------------------------------------------------------------- lanes


def _step(s: Statement) -> bool:
    return isinstance(s, Assign) and isinstance(s.value, Apply)


def _folds(*masks: int, op: str = "add") -> Kernel:
    """The row sums with other lane steps."""
    s = RegRef("s", (e(0),))
    steps = tuple(
        Assign((), s, Apply(op, (Read(s, f32), LaneXor(s, mask, f32)), f32)) for mask in masks
    )
    k = drop(row_sums(), _step)
    if op != "add":
        k = edit(k, Reduce, op=op)
    return replace(k, body=(*k.body[:-1], *steps, k.body[-1]))


@pytest.mark.parametrize("masks", [(1, 2), (2, 1), (3, 1), (2, 3)])
def test_masks_that_span_the_lanes(masks: tuple[int, ...]) -> None:
    assert all(isinstance(r, Proved) for r in results(_folds(*masks), Kind.REDUCTION))


LANES: list[tuple[tuple[int, ...], str, str]] = [
    ((1,), "add", "lane 0 of s[0] never gets the partial result of lane 2"),
    ((), "add", "lane 0 of s[0] never gets the partial result of lane 1"),
    ((1, 1), "add", "lane 0 of s[0] never gets the partial result of lane 2"),
    ((1, 2, 3), "add", "the lane step with mask 3 counts partial results of s[0] again"),
    ((1, 2, 4), "add", "the lane step with mask 4 mixes lanes that hold other results of s[0]"),
    ((2,), "max", "lane 0 of s[0] never gets the partial result of lane 1"),
]


@pytest.mark.parametrize(("masks", "op", "message"), LANES)
def test_masks_that_do_not(masks: tuple[int, ...], op: str, message: str) -> None:
    k = _folds(*masks, op=op)
    assert refuted(k, Kind.REDUCTION).message == message
    assert others(k, Kind.REDUCTION) == []


def test_a_maximum_may_be_folded_twice() -> None:
    assert all(isinstance(r, Proved) for r in results(_folds(1, 2, 3, op="max"), Kind.REDUCTION))


def test_masks_against_enumeration() -> None:
    """The lanes that each lane hears of, counted, for every short list of masks."""
    from itertools import product

    for masks in [m for n in range(4) for m in product((1, 2, 3), repeat=n)]:
        heard = [[0]] + [[0] for _ in range(3)]
        heard = [[lane] for lane in range(4)]
        for mask in masks:
            heard = [heard[lane] + heard[lane ^ mask] for lane in range(4)]
        exact = all(sorted(h) == [0, 1, 2, 3] for h in heard)
        found = results(_folds(*masks), Kind.REDUCTION, "lanes of s")
        assert isinstance(found[0], Proved) == exact, masks


def test_a_result_that_is_used_before_its_last_step() -> None:
    k = _folds(1, 2)
    *before, step, store = k.body
    early = replace(k, body=(*before, store, step))
    message = "s is used before the lane steps that combine it are done"
    assert refuted(early, Kind.REDUCTION).message == message


def test_lane_steps_inside_the_loop_that_goes_on() -> None:
    s = RegRef("s", (e(0),))
    step = Assign((), s, Apply("add", (Read(s, f32), LaneXor(s, 1, f32)), f32))
    k = rewrite(row_sums(), lambda t: (t, step) if isinstance(t, Reduce) else t)
    assert refuted(k, Kind.REDUCTION).message == (
        "lane steps add up s in each turn of a loop that goes on with it"
    )


# ---------------------------------------------------------------- warps


def _second(s: Statement) -> bool:
    return isinstance(s, Reduce) and s.dst.name == "t"


def _exchange(s: Statement) -> bool:
    return isinstance(s, Load) and s.src.name == "part"


PART = MemRef("part", (e("i"), 2 * e("l")))
WARPS: list[tuple[str, Kernel, str]] = [
    ("three of four", edit(warp_sums(), _second, along=(("i", 3),)),
     "the partial result of s at w = 3 is never combined"),
    ("one twice", edit(warp_sums(), _exchange, src=MemRef("part", (e("i") % 3, 2 * e("l")))),
     "the partial result of s at w = 0 is counted again"),
    ("one column of two", edit(warp_sums(), _second, over=(("j", 1),)),
     "the partial result of s at w = 0 is never combined"),
    ("none", drop(warp_sums(), _exchange),
     "the partial results of s at different w are never combined"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "message"), [w[1:] for w in WARPS], ids=[w[0] for w in WARPS])
def test_partial_results_of_warps(k: Kernel, message: str) -> None:
    found = [r for r in results(k, Kind.REDUCTION, "lanes of s") if isinstance(r, Refuted)]
    assert found[0].message == message


def test_partial_results_of_another_element_are_not_proved() -> None:
    crossed = edit(warp_sums(), _exchange, src=MemRef("part", (e("i"), 2 - 2 * e("l"))))
    found = results(crossed, Kind.REDUCTION, "lanes of s")
    assert found == [
        Unknown(
            "partial results may be combined with those of another element: l' of the storing "
            "thread, l of the combining one"
        )
    ]
