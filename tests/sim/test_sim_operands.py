"""The products that a device has checked: every order, swizzle and source of an operand."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen.sim import simulate
from tilewright.target.nvidia import SM_90A

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
from async_kernels import CASES, Case, arguments, product


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_product(case: Case, seed: int | None) -> None:
    a, b, d, want = arguments(case)
    simulate(product(case), SM_90A, {"a": a, "b": b, "d": d}, {}, seed=seed)
    np.testing.assert_array_equal(d, want)
