"""The proof of synchronisation against other judges: the simulator, and executions in full."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from agent_kernels import ends, fault, prove
from agent_mutants import mutants
from sim_async import (
    cluster_product,
    copied_operand,
    one_group,
    pipelined_gemm,
    register_product,
    shared_operand,
    taking_turns,
)
from test_async_loops import symbolic
from test_sim_async import multiply

from tilewright.base.diagnostics import BarrierError, RaceError, TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import Kernel
from tilewright.lower.obligations.async_periods import Periods
from tilewright.lower.obligations.async_repeats import Repeats
from tilewright.lower.obligations.async_run import Run
from tilewright.lower.obligations.async_skeleton import Skeleton
from tilewright.lower.obligations.async_state import FaultError
from tilewright.lower.obligations.instances import at_sizes
from tilewright.target.nvidia import SM_90A

Sizes = tuple[int, int, int]
KERNELS: dict[str, tuple[Kernel, Sizes | None]] = {
    "pipelined": (
        pipelined_gemm(64, 16, 160, consumers=1, stages=2, tiles=2),
        (64, 16, 160),
    ),
    "cluster": (cluster_product(5), (128, 16, 160)),
    "shared-operand": (shared_operand(3), (128, 16, 48)),
    "copied-operand": (copied_operand(3), (128, 16, 48)),
    "turns": (taking_turns(3), None),
    "register-product": (register_product(), (64, 16, 32)),
    "one-group": (one_group(across=False, steps=5), (64, 16, 160)),
}


def refusal(kernel: Kernel, sizes: Sizes | None, seed: int | None) -> TilewrightError | None:
    """What the simulator has against the kernel, with agents as late as can be, or at random."""
    try:
        if sizes is None:
            simulate(kernel, SM_90A, {"y": np.zeros(1, np.float32)}, {}, seed=seed)
        else:
            multiply(kernel, sizes, seed=seed)
    except TilewrightError as error:
        return error
    return None


def verdicts(kernel: Kernel) -> dict[str, list[tuple[str, Kernel]]]:
    """The mutants, by how the proof ends: Refuted where some obligation is, Unknown likewise."""
    found: dict[str, list[tuple[str, Kernel]]] = {}
    for name, mutant in mutants(kernel):
        reached = ends(prove(mutant))
        word = next(w for w in ("Refuted", "Unknown", "Proved") if w in reached)
        found.setdefault(word, []).append((name, mutant))
    return found


@pytest.mark.parametrize(("kernel", "sizes"), KERNELS.values(), ids=KERNELS.keys())
def test_what_is_proved_runs(kernel: Kernel, sizes: Sizes | None) -> None:
    """No mutant that is proved has a race or a deadlock, whenever its agents complete."""
    found = verdicts(kernel)
    assert set(found) <= {"Proved", "Refuted"}
    assert len(found["Refuted"]) > len(found["Proved"])
    for name, mutant in found["Proved"]:
        for seed in (None, 0, 1):
            error = refusal(mutant, sizes, seed)
            assert not isinstance(error, RaceError | BarrierError), (name, error)


@pytest.mark.parametrize("name", ["shared-operand", "copied-operand", "turns", "one-group"])
def test_what_is_refuted_fails(name: str) -> None:
    """These have no fault that depends on who comes first: the simulator meets each."""
    kernel, sizes = KERNELS[name]
    for what, mutant in verdicts(kernel)["Refuted"]:
        assert refusal(mutant, sizes, None) is not None, (what, fault(mutant))


# ---------------------------------------------------------------- turns that are left out


def outcome(kernel: Kernel, *, whole: bool) -> tuple[str, bool]:
    """The kind of the fault of an execution, and whether it left turns out that repeat."""
    skeleton = Skeleton.of(kernel, SM_90A)
    run = Run(skeleton, 0, {})
    repeats = Repeats(Periods.in_(skeleton))
    try:
        run.run(None if whole else repeats.after_round)
    except FaultError as error:
        return error.kind.value, bool(repeats.jumped)
    return "none", bool(repeats.jumped)


def test_leaving_turns_out_changes_nothing() -> None:
    kernel = pipelined_gemm(64, 16, 32 * 31, consumers=1, stages=2, tiles=3)
    assert outcome(kernel, whole=False) == ("none", True)
    assert outcome(kernel, whole=True) == ("none", False)
    faults = 0
    for name, mutant in mutants(kernel):
        short, _ = outcome(mutant, whole=False)
        full, _ = outcome(mutant, whole=True)
        assert short == full, name
        faults += full != "none"
    assert faults > 20


def test_a_bound_on_sizes_is_enough() -> None:
    """What is proved for any K is proved at each of many; what is refuted is at one of them."""
    kernel = symbolic()
    judge: Callable[[int, Kernel], set[str]] = lambda steps, k: set(  # noqa: E731
        ends(prove(at_sizes(k, {"K": 64 * steps})))
    )
    chosen = list(mutants(kernel))[::5]
    words = set[str]()
    for name, mutant in chosen:
        found = set(ends(prove(mutant)))
        words |= found
        if found == {"Proved"}:
            assert all(judge(n, mutant) == {"Proved"} for n in (1, 2, 3, 4, 5, 8, 13, 22)), name
        elif "Refuted" in found:
            assert any("Refuted" in judge(n, mutant) for n in range(1, 8)), name
    assert {"Proved", "Refuted"} <= words
