"""Every program of the corpus on the simulator of every target, against the reference."""

from __future__ import annotations

import pytest
from programs import CASES, Case

from tilewright.driver.trial import run_trial
from tilewright.poly.prove import Assumed, Proved

RUNS = [
    pytest.param(case, size, target, id=f"{case.name}-{target}-{'x'.join(map(str, size.values()))}")
    for case in CASES
    for size in case.sizes
    for target in case.targets
]


@pytest.mark.parametrize(("case", "size", "target"), RUNS)
def test_program(case: Case, size: dict[str, int], target: str) -> None:
    size = {**({"D": 1} if "D" not in size else {}), **size}
    fixed = {a: n for a, n in size.items() if a not in case.dynamic}
    compiled = case.make().compile(target, fixed)
    trial = run_trial(compiled, size, seed=1, simulate=True)
    for output in trial.outputs:
        assert output.right, f"{output.name}: {output.error} of {output.allowed} allowed"
    open_ones = [o for o in compiled.proofs if not isinstance(o.result, Proved | Assumed)]
    assert not open_ones
