"""Faults of pipelined and persistent loops that other compilers had, and loops of any length."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agent_kernels import fault, is_proved, prove
from async_samples import PIPELINE
from benchmarks.hopper_gemm import Plan, gemm
from sim_async import HERE, edit, phase
from sim_kernels import e, mem, reg
from test_sim_async import multiply
from test_sim_async_faults import RIGHT, SIZES

from tilewright.base.diagnostics import TilewrightError
from tilewright.base.dtypes import f16
from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    BulkLoad,
    BulkWait,
    InitPhases,
    Phases,
    PhaseWait,
    SetRegisters,
)
from tilewright.kernel.ops import (
    Body,
    If,
    Kernel,
    Load,
    Loop,
    Registers,
    Shared,
    Statement,
    children,
)
from tilewright.kernel.text import parse_kernel
from tilewright.poly.expr import Expr, at_least, equal, less
from tilewright.poly.results import Kind, Refuted, Unknown

# ---------------------------------------------------------------- pipelined loops


def test_a_pipelined_loop_overwrites_what_it_still_reads() -> None:
    """The slot of the step itself is released while its products are under way."""

    def change(s: Statement) -> Body:
        if isinstance(s, Arrive) and "s" in s.phase.index.variables():
            return (replace(s, phase=replace(s.phase, index=Expr.of("s"))),)
        if isinstance(s, If) and any("kq" in c.expr.variables() for c in s.guard):
            guard = tuple(c for c in s.guard if "kq" not in c.expr.variables())
            return (replace(s, guard=guard),)
        if isinstance(s, If) and isinstance(s.body[0], Arrive):
            return () if not s.body[0].phase.index.variables() else (s,)
        return (s,)

    kernel = edit(gemm(Plan(256, 512, 512, group=2, blocks=3)), change)
    kind, message, notes = fault(kernel)
    assert kind is Kind.RELEASE
    assert (
        "sa[0, 0, 0] is overwritten by a bulk load while a matrix instruction reads it" in message
    )
    assert "WarpgroupMma at i = 0, kq = 0, s = 0" in notes


def with_bias(*, waits: bool) -> Kernel:
    """The producer fetches a bias once, before its loop; the epilogue reads it."""
    fetch: Body = (
        ArriveExpect(phase("once", 0), 1024, span=HERE),
        BulkLoad((), mem("bias", 0, 0), "bm_", (e(0), e(0)), phase("once", 0), span=HERE),
    )
    wait: Body = (PhaseWait(phase("once", 0), e(0), span=HERE),) if waits else ()
    use = Load((), reg("bf", 0), mem("bias", 0, 0), span=HERE, note="bias")

    def change(s: Statement) -> Body:
        match s:
            case InitPhases(names):
                return (replace(s, phases=(*names, "once")),)
            case If(guard, body) if str(guard[0].expr) == "tid" and isinstance(body[0], Loop):
                return (replace(s, body=(*fetch, *body)),)
            case If(guard, (BulkWait(),)) if str(guard[0].expr) == "tid":
                return (*wait, use, s)
            case _:
                return (s,)

    return replace(
        edit(RIGHT, change),
        shared=(*RIGHT.shared, Shared("bias", f16, (16, 32), RIGHT.shared[1].swizzle, 0, 1 << 17)),
        phases=(*RIGHT.phases, Phases("once", 1, 1, (1 << 17) + 4096)),
        registers=(*RIGHT.registers, Registers("bf", f16, (1,))),
    )


def test_a_bias_copied_before_the_loop_is_waited_for() -> None:
    assert is_proved(with_bias(waits=True))
    kernel = with_bias(waits=False)
    kind, message, _ = fault(kernel)
    assert kind is Kind.RELEASE
    assert message.startswith("bias[0, 0] is read by warp")
    assert message.endswith("while a bulk load writes it")
    with pytest.raises(TilewrightError, match="while a bulk load writes it"):
        multiply(kernel, SIZES)


def grouped(producer: Expr, consumer: Expr, counter: Expr) -> Kernel:
    """`RIGHT`, with k-blocks of the group `t` as given, and a counter of the ring's slots."""
    old = 5 * e("t") + "ko"

    def steps(s: Statement, count: Expr) -> Statement:
        return replace(s, extent=count) if isinstance(s, Loop) and s.var == "ko" else s

    def recount(expr: Expr) -> Expr:
        return expr.substitute({"ko": counter - 5 * e("t")}) if expr.variables() else expr

    def change(s: Statement) -> Body:
        match s:
            case PhaseWait() | ArriveExpect() | BulkLoad():
                s = replace(s, phase=replace(s.phase, index=recount(s.phase.index)))
                if isinstance(s, PhaseWait):
                    s = replace(s, parity=recount(s.parity))
                return (s,)
            case Loop(body=body) if s.var == "ko":
                own = producer if isinstance(body[0], PhaseWait) and len(body) == 4 else consumer
                return (steps(s, own),)
            case _:
                return (s,)

    assert old.variables() == {"t", "ko"}
    return edit(RIGHT, change)


def test_groups_with_another_number_of_blocks() -> None:
    """The roles disagree on the steps of the second group: each waits for the other."""
    right = grouped(e(5), e(5), 5 * e("t") + "ko")
    assert is_proved(right)
    kernel = grouped(e(5) - e("t"), e(5), 5 * e("t") + "ko")
    kind, message, _ = fault(kernel)
    assert kind in (Kind.DEADLOCK, Kind.PHASE)
    assert "waits for phase" in message
    with pytest.raises(TilewrightError, match="deadlock"):
        multiply(kernel, SIZES)


# ---------------------------------------------------------------- persistent loops


def with_holes(k: int) -> Kernel:
    """4 x 9 tiles visited in groups of 8 rows: half of the turns are empty, in both roles."""

    def change(s: Statement) -> Body:
        if isinstance(s, Loop) and s.var == "i":
            decode, *body = s.body
            return (replace(s, body=(decode, If((less("mr", 4),), tuple(body)))),)
        return (s,)

    return edit(gemm(Plan(8 * 128, 9 * 256, k, group=8, blocks=10)), change)


def test_turns_that_are_empty() -> None:
    """Each tile leaves slots and parities as they were: then empty turns do no harm."""
    assert is_proved(with_holes(512))


def test_a_counter_that_counts_empty_turns() -> None:
    """One round of the ring for a tile: after an empty turn the parity is that of the round before.

    The wait passes at once, and nobody waits for the load.
    """
    kind, message, notes = fault(with_holes(256))
    assert kind is Kind.DRAIN
    assert "ends while a bulk load still writes to its shared memory (sa)" in message
    assert "BulkLoad at i = " in notes


# ---------------------------------------------------------------- any number of turns

SYMBOLIC = (
    PIPELINE.replace("  in a: bf16[512, 256] strides [256, 1]", "  symbol K >= 8 multiple 8\n"
                     "  in a: bf16[512, K] strides [K, 1]")
    .replace("b: bf16[64, 256] strides [256, 1]", "b: bf16[64, K] strides [K, 1]")
    .replace("ko < 4", "ko < (K + 63) / 64")
    .replace(" of 256 if", " of K if")
)  # fmt: skip


LAST_PARITY = """\
      if ko + 2 < (K + 63) / 64: wait full[ko % 2] parity ko / 2
      if (K + 63) / 64 <= ko + 2: wait full[ko % 2] parity 0"""


def symbolic(old: str = "", new: str = "", count: int = -1) -> Kernel:
    assert old in SYMBOLIC
    return parse_kernel(SYMBOLIC.replace(old, new, count))


def test_any_number_of_steps() -> None:
    assert is_proved(symbolic())


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        # The producer leaves the last, partial step out.
        ("loop ko < (K + 63) / 64:\n        wait", "loop ko < K / 64:\n        wait", Kind.DEADLOCK,
         "waits for phase 0 of full[0]"),
        # From the fourth step on, nobody waits for the slot.
        ("        wait empty", "        if ko < 4:\n          wait empty", Kind.PHASE,
         "may count for phase"),
        # The last step's slot is waited for with the parity of the first.
        ("      wait full[ko % 2] parity ko / 2",
         LAST_PARITY, Kind.PHASE, "full["),
    ],
    ids=["partial-step", "fifth-step", "last-step"],
)  # fmt: skip
def test_a_fault_at_some_sizes(old: str, new: str, kind: Kind, text: str) -> None:
    kernel = symbolic(old, new.replace(": wait", ":\n        wait"), 1)
    found, message, notes = fault(kernel)
    assert found is kind
    assert text in message
    assert "with K = " in notes
    refuted = next(o.result for o in prove(kernel) if isinstance(o.result, Refuted))
    assert isinstance(refuted, Refuted)
    ((name, size),) = refuted.witness.symbols
    assert name == "K"
    assert size % 8 == 0
    assert size >= 8


@pytest.mark.parametrize(
    ("counter", "turn", "step"),
    [(Expr.of("kq"), 37, 0), (Expr.of("kq") * 4 + "s", 150, 2)],
    ids=["turn", "step"],
)
def test_a_fault_far_out_is_found(counter: Expr, turn: int, step: int) -> None:
    """One turn of many is otherwise: turns are left out only where all are alike."""
    late = (at_least(counter, turn + 1),)
    early = (less(counter, turn),)

    def change(s: Statement) -> Body:
        if isinstance(s, PhaseWait) and s.phase.name == "empty":
            return (If(early, (s,)), If(late, (s,)))
        return (s,)

    kernel = edit(gemm(Plan(128, 256, 64 * 4 * 50, group=1, blocks=1)), change)
    kind, message, notes = fault(kernel)
    assert kind is Kind.RELEASE
    assert f"sa[{step}, 0, 0] is overwritten by a bulk load" in message
    assert f"BulkLoad at i = 0, kq = 37, s = {step}" in notes
    assert f"WarpgroupMma at i = 0, kq = 36, s = {step}" in notes


CONSUMER = "    loop ko < (K + 63) / 64:\n      wait full[ko % 2] parity ko / 2"


@pytest.mark.parametrize("turn", [1, 3, 9, 14])
def test_a_fault_at_sizes_that_no_loop_shows(turn: int) -> None:
    """A guard on the size alone, or on the counter of another loop: larger sizes are looked at."""
    waits = f"        if (K + 63) / 64 < {turn}:\n          wait empty"
    assert fault(symbolic("        wait empty", waits))[0] in (Kind.PHASE, Kind.RELEASE)

    def meeting(threads: int) -> Kernel:
        guard = f"      if kx + {turn} < (K + 63) / 64:\n        named barrier 2 of {threads}\n"
        return symbolic(CONSUMER, f"    loop kx < 2:\n{guard}{CONSUMER}")

    assert is_proved(meeting(128))
    kind, message, notes = fault(meeting(160))
    assert kind is Kind.DEADLOCK
    assert "32 of 160 threads are missing at named barrier 2" in message
    assert f"with K = {64 * turn + 8}" in notes


def test_counters_beyond_a_bound_are_not_proved() -> None:
    """A slot that is not told modulo anything has no period: nothing is claimed."""
    text = SYMBOLIC.replace("ko % 2", "ko").replace("parity ko / 2", "parity 0")
    results = [o.result for o in prove(parse_kernel(text))]
    assert not any(type(r).__name__ == "Proved" for r in results)
    assert any(isinstance(r, Unknown | Refuted) for r in results)


def test_registers_are_taken_only_when_given_back() -> None:
    kernel = edit(
        gemm(Plan(256, 512, 256, group=2, blocks=3)),
        lambda s: (replace(s, count=168),) if isinstance(s, SetRegisters) and not s.grow else (s,),
    )
    kind, message, _ = fault(kernel)
    assert kind is Kind.DEADLOCK
    assert "waits for" in message
    assert "registers" in message


def test_blocks_with_fewer_tiles_are_looked_at() -> None:
    """Only a block that has a second tile rewrites a panel that is still read."""

    def change(s: Statement) -> Body:
        if isinstance(s, If) and isinstance(children(s)[0], BulkWait) and s.body[0].read:  # type: ignore[union-attr]
            return (If((*s.guard, at_least("i", 1)), s.body), If((equal("i", 2),), ()))
        return (s,)

    kernel = edit(gemm(Plan(256, 512, 256, group=2, blocks=3)), change)
    kind, message, _ = fault(kernel)
    assert kind is Kind.RELEASE
    assert "sc[" in message
