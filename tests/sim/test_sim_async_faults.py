"""Seeded faults of asynchronous kernels: each is refused with a witness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim_async import (
    HERE,
    cluster_product,
    copied_operand,
    edit,
    phase,
    pipelined_gemm,
    register_product,
    shared_operand,
    taking_turns,
)
from sim_kernels import decode, e, kernel, mem, reg
from test_sim_async import Sizes, multiply

from tilewright.base.diagnostics import (
    BarrierError,
    BoundsError,
    CoverageError,
    RaceError,
    TilewrightError,
    UnwrittenReadError,
)
from tilewright.base.dtypes import f16, f32
from tilewright.codegen.sim import simulate
from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    AsyncStatement,
    BulkLoad,
    BulkStore,
    BulkWait,
    ClusterArrive,
    InitPhases,
    NamedBarrier,
    Phases,
    PhaseWait,
    ProxyFence,
    SetRegisters,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import (
    Assign,
    Barrier,
    Body,
    Const,
    If,
    Kernel,
    Load,
    Loop,
    Read,
    Registers,
    Statement,
    Store,
    children,
    walk,
)
from tilewright.poly.expr import equal, less
from tilewright.target.nvidia import SM_90A

SIZES = (100, 28, 136)
RIGHT = pipelined_gemm(*SIZES, consumers=2, stages=2, tiles=2)
Change = Callable[[Statement], Body]
Parts = tuple[str, ...]


def without(found: Callable[[Statement], bool]) -> Kernel:
    return edit(RIGHT, lambda s: () if found(s) else (s,))


def put(found: Callable[[Statement], bool], change: Callable[[Any], Any]) -> Kernel:
    return edit(RIGHT, lambda s: (change(s),) if found(s) else (s,))


def waits(name: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, PhaseWait) and s.phase.name == name


def is_a(*kinds: type) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, kinds)


def barrier(note: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, Barrier) and s.note == note


def nth(found: Callable[[Statement], bool], number: int) -> Callable[[Statement], bool]:
    """The statement `number` of those found, in program order."""
    seen: list[Statement] = []

    def chosen(s: Statement) -> bool:
        if found(s):
            seen.append(s)
            return len(seen) == number + 1
        return False

    return chosen


def arrivals(name: str, count: int) -> Kernel:
    phases = (replace(p, arrivals=count) if p.name == name else p for p in RIGHT.phases)
    return replace(RIGHT, phases=tuple(phases))


def holds_only(kind: type) -> Callable[[Statement], bool]:
    """An `If` whose body begins with such a statement."""
    return lambda s: isinstance(s, If) and isinstance(children(s)[0], kind)


def early_release() -> Kernel:
    """The slot is released right after the instructions that read it have begun."""

    def change(s: Statement) -> Body:
        match s:
            case Arrive() if "ko" in s.phase.index.variables():
                return (replace(s, phase=phase("empty", (5 * e("t") + "ko") % 2)),)
            case Arrive():
                return ()
            case If(guard, body) if not body or "ko" in guard[0].expr.variables():
                return body
            case _:
                return (s,)

    return edit(RIGHT, change)


def load_before_wait() -> Kernel:
    """The first load of a slot is started before the wait for the slot."""

    def change(s: Statement) -> Body:
        if isinstance(s, Loop) and len(s.body) == 4:
            wait, expect, first, second = s.body
            return (replace(s, body=(first, wait, expect, second)),)
        return (s,)

    return edit(RIGHT, change)


def without_last_wait() -> Kernel:
    """The producer starts one more load at its end, whose phase nobody waits for."""
    spare = BulkLoad((), mem("as", 0, 0, 0), "am", (e(0), e(0)), phase("spare", 0), span=HERE)
    last = PhaseWait(phase("empty", 0), e(0), span=HERE)

    def change(s: Statement) -> Body:
        match s:
            case InitPhases(names):
                return (replace(s, phases=(*names, "spare")),)
            case If(guard, body) if str(guard[0].expr) == "tid" and isinstance(body[0], Loop):
                return (replace(s, body=(*body, last, spare)),)
            case _:
                return (s,)

    more = replace(RIGHT.phases[0], name="spare")
    return replace(edit(RIGHT, change), phases=(*RIGHT.phases, more))


def unelected_producer() -> Kernel:
    """All threads of the warpgroup do what the elected one should do."""

    def change(s: Statement) -> Body:
        producer = isinstance(s, If) and str(s.guard[0].expr) == "tid"
        return children(s) if producer and isinstance(children(s)[0], Loop) else (s,)

    return edit(RIGHT, change)


FAULTS: tuple[tuple[str, Kernel, type[TilewrightError], Parts], ...] = (
    (
        "a slot is read before its phase",
        without(waits("full")),
        RaceError,
        ("is read by a matrix instruction while a bulk load writes it", "PhaseWait"),
    ),
    (
        "a slot is refilled without a wait",
        load_before_wait(),
        RaceError,
        ("`as[0, 0, 0]` is overwritten by a bulk load while a bulk load writes it", "PhaseWait"),
    ),
    (
        "a phase is expected again before it is over",
        without(waits("empty")),
        BarrierError,
        ("`full[0]` gets 1 arrival, but its phase 0 takes 0 of 1 more",),
    ),
    (
        "a slot is released before the instructions that read it end",
        early_release(),
        RaceError,
        ("is overwritten by a bulk load while a matrix instruction reads it", "WarpgroupWait"),
    ),
    (
        "the full wait has the wrong parity",
        put(waits("full"), lambda s: replace(s, parity=s.parity + 1)),
        RaceError,
        ("is read by a matrix instruction while a bulk load writes it",),
    ),
    (
        "the empty wait has the wrong parity",
        put(waits("empty"), lambda s: replace(s, parity=s.parity + 1)),
        BarrierError,
        (
            "deadlock",
            "warp 0 of block 0, at PhaseWait (slot free)",
            "phase 0 of `empty[0]`: 2 of 2 arrivals are missing",
        ),
    ),
    (
        "no proxy fence",
        without(is_a(ProxyFence)),
        RaceError,
        ("`cs[0, 0]` is read by a bulk store, but thread 128 wrote it with no ProxyFence since",),
    ),
    (
        "no barrier before the bulk store",
        without(nth(is_a(NamedBarrier), 1)),
        RaceError,
        ("is read by a bulk store, with no order after the access of thread",),
    ),
    (
        "the accumulator is read in flight",
        without(nth(is_a(WarpgroupWait), 1)),
        RaceError,
        ("register `acc[0]` is read while a matrix instruction writes it", "WarpgroupWait"),
    ),
    (
        "no warpgroup fence",
        without(is_a(WarpgroupFence)),
        RaceError,
        ("registers of `acc` were accessed with no WarpgroupFence since",),
    ),
    (
        "no commit",
        without(is_a(WarpgroupCommit)),
        RaceError,
        ("`as[0, 0, 0]` is overwritten by a bulk load while a matrix instruction reads it",),
    ),
    (
        "more arrivals declared than come",
        arrivals("empty", 3),
        BarrierError,
        (
            "deadlock",
            "`empty[0]`: 1 of 3 arrivals are missing",
            "warps 4-11 of block 0, at PhaseWait",
        ),
    ),
    (
        "fewer arrivals declared than come",
        arrivals("empty", 1),
        BarrierError,
        ("`empty[0]` gets 2 arrivals, but its phase 0 takes 1 of 1 more",),
    ),
    (
        "every thread arrives",
        edit(RIGHT, lambda s: children(s) if holds_only(Arrive)(s) else (s,)),
        BarrierError,
        ("`empty[1]` gets 256 arrivals, but its phase 0 takes 2 of 2 more",),
    ),
    (
        "more bytes expected than delivered",
        put(is_a(ArriveExpect), lambda s: replace(s, size=s.size + 64)),
        BarrierError,
        ("deadlock", "phase 0 of `full[0]`: 64 bytes are missing"),
    ),
    (
        "fewer bytes expected than delivered",
        put(is_a(ArriveExpect), lambda s: replace(s, size=s.size - 64)),
        BarrierError,
        ("deadlock", "phase 0 of `full[0]`: 64 bytes came that nobody expected"),
    ),
    (
        "several threads expect",
        unelected_producer(),
        BarrierError,
        ("ArriveExpect is executed by 128 threads", "one thread"),
    ),
    (
        "a bulk store is not waited for at the end",
        without(nth(is_a(BulkWait), 1)),
        RaceError,
        ("a block ends while a bulk store still reads its shared memory (`cs`)", "BulkWait"),
    ),
    (
        "the epilogue's buffer is written again too early",
        without(nth(is_a(BulkWait), 0)),
        RaceError,
        ("is written by thread 128 while a bulk store reads it", "BulkWait"),
    ),
    (
        "a bulk load that nobody waits for",
        without_last_wait(),
        RaceError,
        ("a block ends while a bulk load still writes to its shared memory (`as`)", "PhaseWait"),
    ),
    (
        "more registers than there are",
        put(lambda s: isinstance(s, SetRegisters) and s.grow, lambda s: replace(s, count=240)),
        BarrierError,
        ("deadlock", "at SetRegisters: waits for"),
    ),
    (
        "a shrinking that grows",
        put(lambda s: isinstance(s, SetRegisters) and not s.grow, lambda s: replace(s, count=240)),
        BarrierError,
        ("warpgroup 0 has 168 registers a thread and shrinks to 240",),
    ),
    (
        "a named barrier of too many threads",
        put(is_a(NamedBarrier), lambda s: replace(s, threads=160)),
        BarrierError,
        ("deadlock", "32 of 160 threads are missing at named barrier 1"),
    ),
    (
        "a named barrier of too few threads",
        put(is_a(NamedBarrier), lambda s: replace(s, threads=64)),
        BarrierError,
        ("128 threads arrive at named barrier 1, which takes 64",),
    ),
    (
        "both consumers use one named barrier",
        put(is_a(NamedBarrier), lambda s: replace(s, barrier=e(1))),
        BarrierError,
        ("256 threads arrive at named barrier 1, which takes 128",),
    ),
    (
        "phases used before all threads see them begin",
        without(is_a(Barrier)),
        BarrierError,
        ("is used before it has begun for this warp", "InitPhases and a Barrier"),
    ),
    (
        "phases begun twice",
        put(is_a(InitPhases), lambda s: replace(s, phases=("full", "empty", "full"))),
        BarrierError,
        ("`full[0]` is begun for the second time",),
    ),
    (
        "a phase that does not exist",
        put(is_a(ArriveExpect), lambda s: replace(s, phase=phase("full", 2))),
        BoundsError,
        ("`full[2]` does not exist", "0 <= index < 2"),
    ),
    (
        "a box that leaves the buffer",
        put(nth(is_a(BulkLoad), 0), lambda s: replace(s, dst=mem("as", 1, 64, 0))),
        BoundsError,
        ("a box of 4096 elements from `as[1, 64, 0]` on leaves the buffer",),
    ),
    (
        "an operand that leaves the buffer",
        put(is_a(WarpgroupMma), lambda s: replace(s, a=replace(s.a, index=(e(2), e(0), e(0))))),
        BoundsError,
        ("operand a reaches 2..2 on axis 0 of `as`",),
    ),
    (
        "an operand that nobody wrote",
        put(is_a(WarpgroupMma), lambda s: replace(s, b=replace(s.b, name="bs2"))),
        UnwrittenReadError,
        ("`bs2[0, 0, 0]` is read by a matrix instruction, but nothing has written it",),
    ),
    (
        "a sum onto registers that nobody wrote",
        put(is_a(WarpgroupMma), lambda s: replace(s, accumulate=())),
        UnwrittenReadError,
        ("`acc` is read in register [0], but nothing has written it",),
    ),
    (
        "a bulk store of what nobody wrote",
        without(is_a(Store)),
        UnwrittenReadError,
        ("`cs[0, 0]` is read by a bulk store, but nothing has written it",),
    ),
    (
        "two blocks store one box",
        put(is_a(BulkStore), lambda s: replace(s, coordinates=(s.coordinates[0], e(0)))),
        CoverageError,
        ("`c[0, 0]` is written more than once",),
    ),
)


def refuse(program: Kernel, sizes: Sizes, kind: type[TilewrightError], parts: Parts) -> None:
    with pytest.raises(TilewrightError) as caught:
        multiply(program, sizes)
    text = str(caught.value)
    assert isinstance(caught.value, kind), text
    for part in parts:
        assert part in text, text


@pytest.mark.parametrize(
    ("program", "kind", "parts"), [pytest.param(*f[1:], id=f[0].replace(" ", "-")) for f in FAULTS]
)
def test_fault(program: Kernel, kind: type[TilewrightError], parts: Parts) -> None:
    more = replace(program.shared[1], name="bs2", offset=1 << 17)
    refuse(replace(program, shared=(*program.shared, more)), SIZES, kind, parts)


def test_the_kernel_without_faults_passes() -> None:
    assert multiply(RIGHT, SIZES)


def statements(program: Kernel) -> list[Statement]:
    """What orders agents and threads."""
    return [s for s in walk(program.body) if isinstance(s, AsyncStatement | Barrier)]


def dropped(program: Kernel, number: int) -> Kernel:
    target = statements(program)[number]
    return edit(program, lambda s: () if s is target or not (children(s) or leaf(s)) else (s,))


def leaf(s: Statement) -> bool:
    return not isinstance(s, If | Loop)


@pytest.mark.parametrize("number", range(len(statements(RIGHT))))
def test_every_statement_is_needed(number: int) -> None:
    """But growing, which only makes registers available."""
    dispensable = isinstance(statements(RIGHT)[number], SetRegisters) and number > 2
    if dispensable:
        assert multiply(dropped(RIGHT, number), SIZES)
    else:
        refuse(dropped(RIGHT, number), SIZES, TilewrightError, ("error[TW30",))


# ---------------------------------------------------------------- registers


def after(kind: type, *more: Statement) -> Kernel:
    return edit(register_product(), lambda s: (s, *more) if isinstance(s, kind) else (s,))


ZERO_A = Assign((("i", 8),), reg("af", 1, "i"), Const(0.0, f16), span=HERE)
ZERO_D = Assign((("i", 8),), reg("acc", "i"), Const(0.0, f32), span=HERE)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            after(WarpgroupCommit, ZERO_A),
            "register `af[1, 0]` is written while a matrix instruction reads it",
        ),
        (
            after(WarpgroupCommit, ZERO_D),
            "register `acc[0]` is written while a matrix instruction writes it",
        ),
        (
            after(WarpgroupFence, ZERO_A),
            "registers of `af` were accessed with no WarpgroupFence since",
        ),
    ],
)
def test_registers_in_flight(program: Kernel, message: str) -> None:
    refuse(program, (64, 16, 32), RaceError, (message,))


def test_operand_registers_are_free_after_the_wait() -> None:
    assert multiply(after(WarpgroupWait, ZERO_A), (64, 16, 32))


def test_an_operand_register_may_be_read_in_flight() -> None:
    copied = Assign((("i", 8),), reg("bf", "i"), Read(reg("af", 1, "i"), f16), span=HERE)
    program = after(WarpgroupCommit, copied)
    more = replace(program.registers[1], name="bf", shape=(8,))
    assert multiply(replace(program, registers=(*program.registers, more)), (64, 16, 32))


# ---------------------------------------------------------------- operands written by threads


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        (
            barrier("back edge"),
            "`bs[8, 0]` is written by thread 128 while a matrix instruction reads it",
        ),
        (
            barrier("written"),
            "is read by a matrix instruction, with no order after the access of thread",
        ),
        (
            is_a(ProxyFence),
            "`bs[0, 0]` is read by a matrix instruction, but thread 0 wrote it with no ProxyFence",
        ),
        (
            is_a(WarpgroupWait),
            "while a matrix instruction",
        ),
    ],
    ids=["back-edge", "written", "fence", "wait"],
)
def test_shared_operand(dropped: Callable[[Statement], bool], message: str) -> None:
    program = edit(shared_operand(3), lambda s: () if dropped(s) else (s,))
    refuse(program, (128, 16, 48), RaceError, (message,))


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (barrier("back edge"), "is written by thread 128 while a matrix instruction reads it"),
        (is_a(ProxyFence), "is read by a matrix instruction, but thread 0 wrote it with no Proxy"),
    ],
)
def test_copied_operand(gone: Callable[[Statement], bool], message: str) -> None:
    program = edit(copied_operand(3), lambda s: () if gone(s) else (s,))
    refuse(program, (128, 16, 48), RaceError, (message,))


def test_a_thread_reads_what_a_bulk_load_brings_without_a_wait() -> None:
    program = without(waits("full"))
    early = Load((), reg("bf", 0), mem("bs", 0, 0, 0), span=HERE)
    program = edit(program, lambda s: (early,) if isinstance(s, WarpgroupMma) else (s,))
    program = replace(program, registers=(*program.registers, Registers("bf", f16, (1,))))
    message = "`bs[0, 0, 0]` is read by thread 128 while a bulk load writes it"
    refuse(program, SIZES, RaceError, (message, "the bulk load was started by block 0, thread 0"))


def test_a_kernel_ends_with_a_matrix_instruction_in_flight() -> None:
    program = edit(
        register_product(), lambda s: () if isinstance(s, WarpgroupWait | Store) else (s,)
    )
    message = "a block ends while a matrix instruction still uses its shared memory (`bs`)"
    refuse(program, (64, 16, 32), RaceError, (message, "WarpgroupWait"))


def test_a_part_of_a_warpgroup_misses_the_instruction() -> None:
    program = edit(
        register_product(),
        lambda s: (If((less("w", 3),), (s,)),) if isinstance(s, WarpgroupMma) else (s,),
    )
    parts = (
        "deadlock",
        "warp 3 of block 0, at WarpgroupCommit: waits for the other threads of warpgroup 0",
    )
    refuse(program, (64, 16, 32), BarrierError, parts)


# ---------------------------------------------------------------- clusters

CLUSTER_SIZES = (128, 16, 160)


def is_remote(s: Statement) -> bool:
    return isinstance(s, Arrive) and s.block is not None


def in_cluster(change: Change) -> Kernel:
    return edit(cluster_product(5), change)


def ends_at_once() -> Kernel:
    program = cluster_product(5)
    return replace(program, body=program.body[:-2])


def early_use() -> Kernel:
    program = cluster_product(5)
    return replace(program, body=(*program.body[:4], Barrier(), *program.body[6:]))


@pytest.mark.parametrize(
    ("program", "kind", "message"),
    [
        (ends_at_once(), RaceError, "block 0 may have ended when another block arrives at its"),
        (early_use(), BarrierError, "`full[0]` of block 1 is used before it has begun for this"),
        (
            in_cluster(lambda s: () if waits("free")(s) else (s,)),
            RaceError,
            "is overwritten by a bulk load while a",
        ),
        (
            in_cluster(lambda s: (replace(s, block=None),) if is_remote(s) else (s,)),
            BarrierError,
            "`free[0]`: 1 of 2 arrivals are missing",
        ),
        (
            in_cluster(lambda s: () if isinstance(s, ClusterArrive) else (s,)),
            BarrierError,
            "a wait at the cluster's barrier by a thread that has not arrived there",
        ),
    ],
    ids=["end", "begin", "slot", "rank", "arrive"],
)
def test_cluster(program: Kernel, kind: type[TilewrightError], message: str) -> None:
    refuse(program, CLUSTER_SIZES, kind, (message,))


# ---------------------------------------------------------------- waits that are overtaken


def test_a_phase_ends_before_the_wait_for_the_one_before_has_passed() -> None:
    arrive = Arrive(phase("p", 0), span=HERE)
    body = (
        decode("thread", ("w", 2), ("l", 32)),
        InitPhases(("p",)),
        Barrier(),
        If((equal("w", 1),), (PhaseWait(phase("p", 0), e(0), span=HERE),)),
        If((equal("w", 0), equal("l", 0)), (arrive, arrive)),
    )
    program = kernel(body, warps=2, phases=(Phases("p", 1, 1),))
    with pytest.raises(BarrierError) as caught:
        simulate(program, SM_90A, {}, {})
    assert "phase 1 of `p[0]` ends while a wait for phase 0 may not have passed" in str(
        caught.value
    )
    assert "warp 1 of block 0, at PhaseWait" in str(caught.value)


@pytest.mark.parametrize(
    ("note", "kind", "message"),
    [
        ("the first turn", BarrierError, "at NamedBarrier (turn): 128 of 256 threads are missing"),
        ("turn", RaceError, "`s[0]` is written after an access by thread 128 and thread 0"),
        ("next", BarrierError, "128 of 256 threads are missing at named barrier 2"),
        ("last", RaceError, "`s[0]` is written after an access by thread 128 and thread 0"),
    ],
)
def test_turns(note: str, kind: type[TilewrightError], message: str) -> None:
    program = edit(
        taking_turns(3),
        lambda s: () if isinstance(s, NamedBarrier) and s.note == note else (s,),
    )
    with pytest.raises(kind) as caught:
        simulate(program, SM_90A, {"y": np.zeros(1, np.float32)}, {})
    assert message in str(caught.value)


# ---------------------------------------------------------------- late completion shows


@pytest.mark.parametrize(
    "program",
    [
        without(waits("full")),
        without(nth(is_a(WarpgroupWait), 1)),
        early_release(),
    ],
    ids=["no-wait", "accumulator", "early-release"],
)
def test_late_completion_gives_wrong_results(program: Kernel) -> None:
    """Without checks the fault is seen in the results, at the latest under some seed."""
    assert any(noticed(program, seed) for seed in (None, 0, 1, 2))


def noticed(program: Kernel, seed: int | None) -> bool:
    """Whether the run is stuck, or its result is wrong."""
    try:
        return not multiply(program, SIZES, checks=False, seed=seed)
    except BarrierError:
        return True
