"""Faults of synchronisation are refuted, each with a witness, and fail on the simulator too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from agent_kernels import fault, is_proved
from sim_async import (
    cluster_product,
    copied_operand,
    edit,
    phase,
    pipelined_gemm,
    register_product,
    shared_operand,
    taking_turns,
)
from test_sim_async import multiply
from test_sim_async_faults import (
    CLUSTER_SIZES,
    RIGHT,
    SIZES,
    ZERO_A,
    ZERO_D,
    Sizes,
    after,
    arrivals,
    barrier,
    early_release,
    early_use,
    ends_at_once,
    in_cluster,
    is_a,
    is_remote,
    load_before_wait,
    nth,
    put,
    unelected_producer,
    waits,
    without,
    without_last_wait,
)

from tilewright.base.diagnostics import BarrierError, RaceError, TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    BulkCommit,
    BulkStore,
    BulkWait,
    ClusterArrive,
    InitPhases,
    NamedBarrier,
    ProxyFence,
    SetRegisters,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import Barrier, Body, If, Kernel, Statement, Store, children, walk
from tilewright.lower.obligations import error_of, verify
from tilewright.poly.expr import equal, less
from tilewright.poly.results import Kind
from tilewright.target.nvidia import SM_90A

Fault = tuple[str, Kernel, Kind, str]


def holding_arrival(s: Statement) -> bool:
    return isinstance(s, If) and isinstance(children(s)[0], Arrive)


PIPELINE: tuple[Fault, ...] = (
    # ------------------------------------------------ arrivals and bytes of a phase
    ("more-arrivals-declared", arrivals("empty", 3), Kind.PHASE,
     "deadlock: warp 0 (warpgroup 0) of block 0 waits for phase 0 of empty[0]: 1 of 3 arrivals"),
    ("fewer-arrivals-declared", arrivals("empty", 1), Kind.PHASE,
     "Arrive of thread 256 (warpgroup 2) of block 0 may count for phase 0 or 1 of empty[0]"),
    ("every-thread-arrives",
     edit(RIGHT, lambda s: children(s) if holding_arrival(s) else (s,)), Kind.PHASE,
     "empty[1] gets 32 arrivals from warp 7 (warpgroup 1) of block 0, but its phase 0 takes 2"),
    ("more-bytes-expected", put(is_a(ArriveExpect), lambda s: replace(s, size=s.size + 64)),
     Kind.PHASE, "waits for phase 0 of full[0]: 64 bytes are missing"),
    ("fewer-bytes-expected", put(is_a(ArriveExpect), lambda s: replace(s, size=s.size - 64)),
     Kind.PHASE, "the loads of phase 0 of full[0] in block 0 bring 9216 bytes, but 9152 are"),
    ("several-threads-expect", unelected_producer(), Kind.PHASE,
     "ArriveExpect at full[0] is executed by 32 threads of warp 3"),
    ("begun-too-late", without(is_a(Barrier)), Kind.PHASE,
     "warp 7 (warpgroup 1) of block 0 waits for parity 0 of full[0], but phase 0 may have ended"),
    ("begun-twice", put(is_a(InitPhases), lambda s: replace(s, phases=("full", "empty", "full"))),
     Kind.PHASE, "full of block 0 is begun for the second time"),
    # ------------------------------------------------ parity
    ("full-parity", put(waits("full"), lambda s: replace(s, parity=s.parity + 1)), Kind.PHASE,
     "waits for parity 1 of full[0], but phase 0 may have ended before the wait"),
    ("empty-parity", put(waits("empty"), lambda s: replace(s, parity=s.parity + 1)),
     Kind.DEADLOCK, "deadlock: warp 0 (warpgroup 0) of block 0 waits for phase 0 of empty[0]"),
    # ------------------------------------------------ ring and panels
    ("read-before-it-lands", without(waits("full")), Kind.RELEASE,
     "as[0, 0, 0] is read by a matrix instruction while a bulk load writes it"),
    ("no-wait-for-the-slot", without(waits("empty")), Kind.PHASE,
     "ArriveExpect of thread 0 (warpgroup 0) of block 0 may count for phase 0 or 1 of full[0]"),
    ("load-before-the-wait", load_before_wait(), Kind.PHASE,
     "BulkLoad (a) of thread 0 (warpgroup 0) of block 0 may count for phase 0 or 1 of full[0]"),
    ("released-in-flight", early_release(), Kind.RELEASE,
     "as[0, 0, 0] is overwritten by a bulk load while a matrix instruction reads it"),
    ("panel-rewritten", without(nth(is_a(BulkWait), 0)), Kind.RELEASE,
     "cs[32, 0] is written by warp 6 (warpgroup 1) of block 0 while a bulk store reads it"),
    ("panel-not-committed", without(is_a(BulkCommit)), Kind.RELEASE, "while a bulk store reads it"),
    ("panel-unordered", without(nth(is_a(NamedBarrier), 1)), Kind.RELEASE,
     "is read by a bulk store of thread 128 (warpgroup 1) of block 0 with no order after"),
    # ------------------------------------------------ proxies and registers
    ("no-proxy-fence", without(is_a(ProxyFence)), Kind.PROXY,
     "is read by a bulk store, but warp 6 (warpgroup 1) of block 0 wrote it with no ProxyFence"),
    ("no-warpgroup-fence", without(is_a(WarpgroupFence)), Kind.FLIGHT,
     "register 0 of acc was accessed by warp 4 (warpgroup 1) of block 0 with no WarpgroupFence"),
    ("accumulator-in-flight", without(nth(is_a(WarpgroupWait), 1)), Kind.FLIGHT,
     "of acc is read by warp 7 (warpgroup 1) of block 0 while a matrix instruction writes it"),
    ("no-commit", without(is_a(WarpgroupCommit)), Kind.RELEASE,
     "is overwritten by a bulk load while a matrix instruction reads it"),
    # ------------------------------------------------ the end
    ("store-not-drained", without(nth(is_a(BulkWait), 1)), Kind.DRAIN,
     "block 0 ends while a bulk store still reads its shared memory (cs)"),
    ("load-not-drained", without_last_wait(), Kind.DRAIN,
     "block 0 ends while a bulk load still writes to its shared memory (as)"),
    # ------------------------------------------------ deadlocks and barriers of threads
    ("registers-not-given-back", without(nth(is_a(SetRegisters), 0)), Kind.DEADLOCK,
     "deadlock: warp 4 (warpgroup 1) of block 0 waits for 4096 registers, 0 are free"),
    ("shrinking-grows", put(lambda s: is_a(SetRegisters)(s) and not s.grow,
                            lambda s: replace(s, count=240)), Kind.DEADLOCK,
     "warpgroup 0 of block 0 has 168 registers a thread and shrinks to 240"),
    ("barrier-of-too-many", put(is_a(NamedBarrier), lambda s: replace(s, threads=160)),
     Kind.DEADLOCK, "32 of 160 threads are missing at named barrier"),
    ("barrier-of-too-few", put(is_a(NamedBarrier), lambda s: replace(s, threads=64)),
     Kind.BARRIER, "arrives at named barrier 1, but may count for its round 0"),
    ("barrier-shared", put(is_a(NamedBarrier), lambda s: replace(s, barrier=phase("", 1).index)),
     Kind.BARRIER, "arrives at named barrier 1, but may count for its round"),
)  # fmt: skip


def refuted(kernel: Kernel, kind: Kind, message: str) -> str:
    """The notes of the refutation, which is of the kind and says the message."""
    found, text, notes = fault(kernel)
    assert message in text, text
    assert found is kind, (found, text)
    return notes


def fails(kernel: Kernel, sizes: Sizes) -> None:
    with pytest.raises(TilewrightError, match=r"error\[TW30[56]\]"):
        multiply(kernel, sizes)


@pytest.mark.parametrize(
    ("kernel", "kind", "message"), [pytest.param(*f[1:], id=f[0]) for f in PIPELINE]
)
def test_pipeline(kernel: Kernel, kind: Kind, message: str) -> None:
    refuted(kernel, kind, message)
    fails(kernel, SIZES)


def test_the_kernel_without_faults_is_proved() -> None:
    assert is_proved(RIGHT)


def test_a_statement_that_only_some_blocks_execute() -> None:
    """Its guard tells blocks apart, though where it writes does not depend on the block."""
    sizes = (256, 28, 136)
    right = pipelined_gemm(*sizes, consumers=2, stages=2, tiles=2)
    assert is_proved(right)
    (store,) = (s for s in walk(right.body) if isinstance(s, Store))

    def again(s: Statement) -> Body:
        stored = isinstance(s, If) and isinstance(children(s)[0], BulkStore)
        return (s, replace(store, guard=(equal("bm", 1),))) if stored else (s,)

    kernel = edit(right, again)
    refuted(kernel, Kind.RELEASE, "of block 1 with no order after the write by warp 5")
    fails(kernel, sizes)


def test_a_witness_names_role_statement_turn_and_line() -> None:
    notes = refuted(early_release(), Kind.RELEASE, "is overwritten by a bulk load")
    assert "bulk load, by thread 0 (warpgroup 0) of block 0: BulkLoad (a) at t = 0, ko = 2" in notes
    assert (
        "matrix instruction, by warp 4 (warpgroup 1) of block 0: WarpgroupMma at t = 0, ko = 0"
        in (notes)
    )
    assert "sim_async.py:1" in notes


@pytest.mark.parametrize(
    ("kernel", "error"),
    [(early_release(), RaceError), (arrivals("empty", 3), BarrierError)],
    ids=["race", "barrier"],
)
def test_the_error_is_that_of_the_simulator(kernel: Kernel, error: type[TilewrightError]) -> None:
    errors = [e for e in map(error_of, verify(kernel, SM_90A)) if e is not None]
    assert [type(e) for e in errors] == [error]
    assert errors[0].diagnostic.expected
    with pytest.raises(error):
        multiply(kernel, SIZES)


# ---------------------------------------------------------------- registers and operands


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (after(WarpgroupCommit, ZERO_A), "of block 0 while a matrix instruction reads it"),
        (after(WarpgroupCommit, ZERO_D), "of block 0 while a matrix instruction writes it"),
        (after(WarpgroupFence, ZERO_A), "of block 0 with no WarpgroupFence since"),
    ],
    ids=["a-in-flight", "d-in-flight", "no-fence-since"],
)
def test_registers(kernel: Kernel, message: str) -> None:
    refuted(kernel, Kind.FLIGHT, message)
    fails(kernel, (64, 16, 32))


def test_registers_are_free_after_the_wait() -> None:
    kernel = after(WarpgroupWait, ZERO_A)
    assert is_proved(kernel)
    assert multiply(kernel, (64, 16, 32))


OPERANDS: tuple[tuple[Callable[..., Kernel], Callable[[Statement], bool], Kind, str], ...] = (
    (shared_operand, barrier("back edge"), Kind.RELEASE, "while a matrix instruction reads it"),
    (shared_operand, barrier("written"), Kind.RELEASE, "with no order after the write by warp"),
    (shared_operand, is_a(ProxyFence), Kind.PROXY, "wrote it with no ProxyFence"),
    (shared_operand, is_a(WarpgroupWait), Kind.RELEASE, "while a matrix instruction reads it"),
    (copied_operand, barrier("back edge"), Kind.RELEASE, "while a matrix instruction reads it"),
    (copied_operand, is_a(ProxyFence), Kind.PROXY, "wrote it with no ProxyFence"),
)


@pytest.mark.parametrize(("make", "gone", "kind", "message"), OPERANDS)
def test_operand_that_two_warpgroups_share(
    make: Callable[..., Kernel], gone: Callable[[Statement], bool], kind: Kind, message: str
) -> None:
    """With no barrier at the loop's back edge, one warpgroup overwrites what the other reads."""
    kernel = edit(make(3), lambda s: () if gone(s) else (s,))
    refuted(kernel, kind, message)
    fails(kernel, (128, 16, 48))


def test_a_matrix_instruction_at_the_end() -> None:
    kernel = edit(
        register_product(), lambda s: () if is_a(WarpgroupWait)(s) or _stores(s) else (s,)
    )
    refuted(kernel, Kind.DRAIN, "ends while a matrix instruction still uses its shared memory (bs)")
    fails(kernel, (64, 16, 32))


def _stores(s: Statement) -> bool:
    return type(s).__name__ == "Store"


def test_a_part_of_a_warpgroup() -> None:
    kernel = edit(
        register_product(),
        lambda s: (If((less("w", 3),), (s,)),) if isinstance(s, WarpgroupMma) else (s,),
    )
    refuted(kernel, Kind.DEADLOCK, "waits for the other warps of warpgroup 0")
    fails(kernel, (64, 16, 32))


# ---------------------------------------------------------------- clusters and turns


@pytest.mark.parametrize(
    ("kernel", "kind", "message"),
    [
        (ends_at_once(), Kind.DRAIN, "block 0 may have ended when thread"),
        (early_use(), Kind.PHASE, "full[0] of block 1 is used by thread 0"),
        (in_cluster(lambda s: () if waits("free")(s) else (s,)), Kind.PHASE, "full[0]"),
        (in_cluster(lambda s: (replace(s, block=None),) if is_remote(s) else (s,)), Kind.PHASE,
         "waits for phase 0 of free[0]: 1 of 2 arrivals are missing"),
        (in_cluster(lambda s: () if isinstance(s, ClusterArrive) else (s,)), Kind.BARRIER,
         "waits at the cluster's barrier, where it has not arrived"),
    ],
    ids=["end", "begin", "slot", "rank", "arrive"],
)  # fmt: skip
def test_cluster(kernel: Kernel, kind: Kind, message: str) -> None:
    refuted(kernel, kind, message)
    fails(kernel, CLUSTER_SIZES)


def test_the_cluster_without_faults_is_proved() -> None:
    assert is_proved(cluster_product(5))


@pytest.mark.parametrize(
    ("note", "kind", "message"),
    [
        ("the first turn", Kind.DEADLOCK, "128 of 256 threads are missing at named barrier 1"),
        ("turn", Kind.RACE, "s[0] is read by thread 0 (warpgroup 0) of block 0 with no order"),
        ("next", Kind.DEADLOCK, "128 of 256 threads are missing at named barrier 1"),
        ("last", Kind.RACE, "s[0] is written by thread 128 (warpgroup 1) of block 0 with no order"),
    ],
)
def test_turns(note: str, kind: Kind, message: str) -> None:
    kernel = edit(
        taking_turns(3),
        lambda s: () if isinstance(s, NamedBarrier) and s.note == note else (s,),
    )
    refuted(kernel, kind, message)
    with pytest.raises(TilewrightError):
        simulate(kernel, SM_90A, {"y": np.zeros(1, np.float32)}, {})
