"""Right kernels with agents are proved, each kind of obligation, at any sizes."""

from __future__ import annotations

import pytest
from agent_kernels import ends, is_proved, prove
from async_samples import pipeline
from benchmarks.hopper_gemm import Plan, gemm
from sim_async import (
    cluster_product,
    copied_operand,
    one_group,
    pipelined_gemm,
    register_product,
    shared_operand,
    taking_turns,
)

from tilewright.kernel.ops import Kernel
from tilewright.lower.obligations import verify
from tilewright.lower.obligations.async_periods import Periods
from tilewright.lower.obligations.async_repeats import Repeats
from tilewright.lower.obligations.async_run import Run
from tilewright.lower.obligations.async_skeleton import Skeleton
from tilewright.poly.results import Kind, Proved
from tilewright.target.nvidia import SM_90A

PLANS = {
    "one-turn": Plan(256, 512, 256, group=2, blocks=3),
    "two-stages": Plan(512, 512, 512, stages=2, group=2, blocks=3),
    "three-stages": Plan(512, 768, 64 * 9, stages=3, group=4, blocks=5),
    "five-stages": Plan(256, 512, 64 * 15, stages=5, group=2, blocks=2),
    "k-first": Plan(256, 512, 512, group=2, blocks=3, a_across=True, b_across=True),
    "cluster": Plan(512, 512, 512, group=2, blocks=4, cluster=2),
    "cluster-uneven": Plan(512, 768, 256, group=2, blocks=4, cluster=2, a_across=True),
    "cluster-of-four": Plan(1024, 512, 512, group=4, blocks=8, cluster=4, b_across=True),
    "idle-blocks": Plan(128, 256, 256, group=1, blocks=2),
    "large": Plan(8192, 8192, 4096),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_hopper_gemm(plan: Plan) -> None:
    kernel = gemm(plan)
    assert is_proved(kernel)
    phases = {o.subject: o.result for o in prove(kernel) if o.kind is Kind.PHASE}
    arrivals = 8 * plan.cluster
    assert phases == {
        "full": Proved("1 arrival and 49152 bytes"),
        "empty": Proved(f"{arrivals} arrivals and 0 bytes"),
    }


SAMPLES = {
    "pipeline": pipeline(),
    "pipelined": pipelined_gemm(100, 28, 136, consumers=2, stages=2, tiles=2),
    "three-slots": pipelined_gemm(64, 16, 200, consumers=1, stages=3),
    "register-product": register_product(),
    "one-group": one_group(across=True, steps=5),
    "shared-operand": shared_operand(3),
    "copied-operand": copied_operand(3),
    "cluster-product": cluster_product(5),
    "taking-turns": taking_turns(3),
}


@pytest.mark.parametrize("kernel", SAMPLES.values(), ids=SAMPLES.keys())
def test_samples(kernel: Kernel) -> None:
    assert set(ends(prove(kernel))) == {"Proved"}


def test_the_report_has_the_proofs() -> None:
    found = verify(SAMPLES["pipeline"], SM_90A)
    kinds = {o.kind for o in found if isinstance(o.result, Proved)}
    assert {Kind.PHASE, Kind.RELEASE, Kind.PROXY, Kind.FLIGHT, Kind.DRAIN, Kind.DEADLOCK} <= kinds


def test_many_turns_take_no_longer() -> None:
    """Turns that repeat are left out: 100 times the terms take as many steps."""

    def steps(k: int) -> int:
        skeleton = Skeleton.of(gemm(Plan(256, 512, k, group=2, blocks=3)), SM_90A)
        run = Run(skeleton, 0, {})
        run.run(Repeats(Periods.in_(skeleton)).after_round)
        return run.steps

    assert steps(256 * 20) == steps(256 * 2000)
