"""Every program of the corpus on the device, against the reference."""

from __future__ import annotations

import pytest
from programs import CASES, Case

from tilewright.driver.trial import run_trial

RUNS = [
    pytest.param(case, size, id=f"{case.name}-{'x'.join(map(str, size.values()))}")
    for case in CASES
    for size in case.sizes
    if "sm_90a" in case.targets
]


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "size"), RUNS)
def test_program(case: Case, size: dict[str, int]) -> None:
    size = {**({"D": 1} if "D" not in size else {}), **size}
    fixed = {a: n for a, n in size.items() if a not in case.dynamic}
    trial = run_trial(case.make().compile("sm_90a", fixed), size, seed=1, simulate=False)
    assert "device" in trial.where
    for output in trial.outputs:
        assert output.right, f"{output.name}: {output.error} of {output.allowed} allowed"
