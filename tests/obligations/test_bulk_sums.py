"""Sums of warpgroup instructions, and turns of two roles, against plain enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from random import Random

import pytest
from bulk_kernels import Plan, gemm, related
from proof_kernels import rewrite

from tilewright.kernel.async_ops import BulkLoad, TileRef, WarpgroupMma
from tilewright.kernel.ops import Body, If, Kernel, Loop, ReducedAxis, Statement
from tilewright.poly.expr import Expr, at_least
from tilewright.poly.results import Kind, Proved, Refuted, Unknown

V = Expr.of
TILES, TURNS, STAGES, DEPTH = 3, 2, 2, 4
K = TURNS * STAGES * 64
RIGHT = gemm(Plan(3 * 128, 256, K, stages=STAGES, group=1, blocks=1))


def edited(which: type[Statement], **fields: object) -> Kernel:
    return rewrite(RIGHT, lambda s: replace(s, **fields) if isinstance(s, which) else s)  # type: ignore[arg-type]


# ---------------------------------------------------------------- sums


@dataclass(frozen=True)
class Sum:
    """Where the sum goes on, and which term an instruction counts first."""

    guard: Expr
    coordinate: Expr

    def kernel(self) -> Kernel:
        reduces = (ReducedAxis("k", V(K), self.coordinate),)
        accumulate = (at_least(self.guard, 1),)
        return edited(WarpgroupMma, accumulate=accumulate, reduces=reduces)

    def fault(self) -> str:
        """What is wrong in the order in which the instructions run; empty where nothing is."""
        held: Counter[int] | None = None
        lost = False
        for i in range(TILES):
            counted: Counter[int] = Counter()
            fresh = False
            for kq, s, kk in product(range(TURNS), range(STAGES), range(DEPTH)):
                at = {"i": i, "kq": kq, "s": s, "kk": kk}
                if self.guard.evaluate(at) >= 1:
                    if held is None or not (fresh or counted):
                        return "never begun"
                else:
                    lost = lost or bool(counted)
                    fresh = True
                held = counted
                first = self.coordinate.evaluate(at)
                counted.update(k for k in range(first, first + 16) if 0 <= k < K)
            if set(counted) != set(range(K)) or set(counted.values()) != {1}:
                return "terms"
        return "lost" if lost else ""


def some_sum(random: Random) -> Sum:
    step = V("kq") * STAGES + "s"
    guards = (step + "kk", step + "kk", step * DEPTH + "kk", V("kk"), V("s") + "kk", V("kq") + "kk")
    guard = random.choice(guards) + random.choice((0, 0, 0, -1, 1))
    if random.random() < 0.15:
        guard = guard + "i"
    coordinates = (
        step * 64 + V("kk") * 16, step * 64 + V("kk") * 16, step * 64 + V("kk") * 8,
        V("s") * (64 * TURNS) + V("kq") * 64 + V("kk") * 16, V("kq") * 128 + V("kk") * 16,
        step * 64 + V("kk") * 16 + 16, (3 - step) * 64 + V("kk") * 16,
    )  # fmt: skip
    return Sum(guard, random.choice(coordinates))


@pytest.mark.parametrize("seed", range(50))
def test_a_sum_is_that_of_enumeration(seed: int) -> None:
    given = some_sum(Random(seed))
    fault = given.fault()
    found = related(given.kernel(), kinds=(Kind.REDUCTION, Kind.UNWRITTEN))
    begun = [o.result for o in found if o.statement == "start of the sum"]
    (summed,) = (o.result for o in found if o.kind is Kind.REDUCTION)
    assert not any(isinstance(r, Unknown) for r in (*begun, summed))
    wrong = {
        "": (False, False), "never begun": (True, None), "terms": (None, True),
        "lost": (None, True),
    }[fault]  # fmt: skip
    for results, expected in zip((begun, [summed]), wrong, strict=True):
        if expected is not None:
            assert all(isinstance(r, Refuted) is expected for r in results), (given, results)
    if not fault:
        assert all(isinstance(r, Proved) for r in (*begun, summed))


def test_the_sums_have_every_fault() -> None:
    ends = Counter(some_sum(Random(seed)).fault() for seed in range(50))
    assert set(ends) == {"", "never begun", "terms", "lost"}


# ---------------------------------------------------------------- turns


@dataclass(frozen=True)
class Ring:
    """The slots that the producer fills and the consumer reads, and when the producer loads."""

    filled: Expr
    read: Expr
    loads: Expr | None

    def kernel(self) -> Kernel:
        def change(s: Statement) -> Statement | Body:
            match s:
                case BulkLoad(map="box_a", dst=dst):
                    moved = replace(s, dst=replace(dst, index=(self.filled, *dst.index[1:])))
                    return If((at_least(self.loads, 0),), (moved,)) if self.loads else moved
                case WarpgroupMma(a=TileRef() as a):
                    return replace(s, a=replace(a, index=(self.read, *a.index[1:])))
                case _:
                    return s

        return rewrite(RIGHT, change)

    def end(self) -> str:
        """Whether each turn reads what it loads, or else what an earlier one loaded."""
        loaded: set[int] = set()
        worst = "same turn"
        for i, kq, s in product(range(TILES), range(TURNS), range(STAGES)):
            at: Mapping[str, int] = {"i": i, "kq": kq, "s": s}
            here = self.loads is None or self.loads.evaluate(at) >= 0
            if here:
                loaded.add(self.filled.evaluate(at))
            slot = self.read.evaluate(at)
            if not here or slot != self.filled.evaluate(at):
                worst = "earlier turn" if slot in loaded and worst != "unloaded" else "unloaded"
        return worst


def some_ring(random: Random) -> Ring:
    step = V("kq") * STAGES + "s"
    slots = (V("s"), V("s"), step % STAGES, (V("s") + 1) % STAGES, V(0), V("kq"), V("s") * 0 + 1)
    loads = random.choice((None, None, None, -step, V("s") * -1, 1 - V("i"), 1 - V("kq")))
    return Ring(random.choice(slots), random.choice(slots), loads)


@pytest.mark.parametrize("seed", range(50))
def test_turns_are_those_of_enumeration(seed: int) -> None:
    ring = some_ring(Random(seed))
    found = related(ring.kernel(), kinds=(Kind.UNWRITTEN,))
    label = "matrix instruction's read from sa"
    (result,) = (o.result for o in found if o.statement == label)
    ends = {"same turn": Proved, "earlier turn": Unknown, "unloaded": Refuted}
    assert isinstance(result, ends[ring.end()]), (ring, result)


def test_the_rings_end_in_every_way() -> None:
    ends = Counter(some_ring(Random(seed)).end() for seed in range(50))
    assert min(ends[e] for e in ("same turn", "earlier turn", "unloaded")) >= 3


def test_a_loop_of_its_own_for_the_first_step_is_open() -> None:
    """The consumer's loops are more than the producer's: no turn of one is one of the other."""

    def nested(s: Statement) -> Statement | Body:
        deep = isinstance(s, WarpgroupMma)
        return Loop("extra", V(1), (s,)) if deep else s

    found = related(rewrite(RIGHT, nested), kinds=(Kind.UNWRITTEN,))
    reasons = {o.result.reason for o in found if isinstance(o.result, Unknown)}
    assert reasons == {
        "the turns of the roles do not correspond: 4 loops around the read, 3 loops around the load"
    }
