"""Soundness on real programs: what the simulator finds wrong, the proofs have not proved.

A sample of every small change of the lowered kernels. Values that are wrong though every access
is in order are not counted here: no obligation speaks of them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from mutations import Mutation, mutations
from witnesses import arguments

from tilewright.base.diagnostics import TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import Kernel
from tilewright.kernel.verify import check
from tilewright.lower.obligations import verify
from tilewright.poly.prove import Proved
from tilewright.target import target_named
from tilewright.target.model import Target

sys.path.append(str(Path(__file__).parents[1] / "corpus"))
from programs import CASES

SAMPLE = 30
PROGRAMS = {
    "transpose": {"M": 33, "N": 5},
    "column_sums": {"M": 33, "N": 20},
    "gemm_mk_nk_f16": {"M": 65, "N": 40, "K": 70},
    "gemm_km_kn_bf16": {"M": 30, "N": 70, "K": 50},
    "softmax_online": {"M": 5, "N": 300},
    "row_extremes": {"M": 3, "N": 100},
    "attention": {"M": 33, "N": 40, "K": 16, "D": 16},
    "four_axes": {"B": 2, "H": 3, "M": 9, "N": 10},
}
MAKE = {case.name: case.make for case in CASES}


def is_legal(kernel: Kernel, target: Target) -> bool:
    try:
        check(kernel, target)
    except TilewrightError:
        return False
    return True


def fault_of(kernel: Kernel, target: Target, arrays: dict[str, np.ndarray]) -> str:
    """What the simulator says of a kernel; empty where it runs through."""
    for seed in (None, 1):  # asynchronous copies land late, or at random
        try:
            simulate(kernel, target, {n: a.copy() for n, a in arrays.items()}, {}, seed=seed)
        except TilewrightError as error:
            return str(error).splitlines()[0]
    return ""


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target_name", ["sm_90a", "gfx942"])
def test_what_fails_in_the_simulator_is_not_proved(name: str, target_name: str) -> None:
    right = MAKE[name]().compile(target_name, PROGRAMS[name])
    kernel, target = right.compilation.kernel, target_named(target_name)
    arrays, _, _ = arguments(right)
    assert fault_of(kernel, target, arrays) == ""
    every = list(mutations(kernel))
    sample: list[Mutation] = random.Random(f"{name} {target_name}").sample(every, SAMPLE)
    faults = 0
    for mutation in sample:
        wrong = mutation.apply(kernel)
        if not is_legal(wrong, target):
            continue
        found = fault_of(wrong, target, arrays)
        if found:
            faults += 1
            proofs = verify(wrong, target)
            assert not all(isinstance(o.result, Proved) for o in proofs), (mutation.name, found)
    assert faults >= 5
