"""Values whose text is shorter than their parts': 1 + erf, and f32 rounded and widened again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from example_values import casts, elementwise
from host_dialect import run_on_host

import tilewright as tw
from tilewright.base.dtypes import DType, bf16, f16, f32
from tilewright.codegen import emit
from tilewright.driver.compile import Specialisation, compile_program
from tilewright.kernel.ops import Assign, Cast, Kernel
from tilewright.target.nvidia import SM_90A

N = tw.sym.N


def test_one_plus_erf_is_exact_to_a_step_of_its_sum(tmp_path: Path) -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), [1e-30, 300, -300, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    z = np.zeros((1, len(x)), np.float32)
    kernel = elementwise(f32, ["one_plus_erf"])
    run_on_host(kernel, SM_90A, tmp_path, [x, x, z], {"N": len(x)})
    exact = [math.erfc(-float(v)) for v in x]
    np.testing.assert_allclose(z[0], exact, rtol=0, atol=2.0**-23)


def program(expression: Any) -> str:
    """The kernel IR of y = expression(x), over f32."""

    @tw.kernel([tw.WorkgroupConstraint(N, 32, 0)])
    def apply(x: tw.Memory[N, tw.GLOBAL, tw.f32], y: tw.Memory[N, tw.GLOBAL, tw.f32]):
        tw.write(expression(tw.read(x)), y)

    return compile_program(apply.program, Specialisation(target=SM_90A)).ir


def test_erf_and_one_become_one_operation() -> None:
    assert "one_plus_erf(" in program(lambda x: x * (tw.erf(x) + 1.0))
    assert "one_plus_erf(" in program(lambda x: x * (1.0 + tw.erf(x)))
    assert "one_plus_erf(" not in program(lambda x: x * (2.0 + tw.erf(x)))
    assert "one_plus_erf(" not in program(lambda x: 1.0 - tw.erf(x))

    def used_twice(x: Any) -> Any:
        bend = tw.erf(x)
        return bend * (bend + 1.0)

    assert "one_plus_erf(" not in program(used_twice)


def through(kernel: Kernel, narrow: DType) -> Kernel:
    """The kernel with what it sets rounded to a narrow type on its way."""
    body = tuple(
        replace(s, value=Cast(Cast(s.value, narrow), f32)) if isinstance(s, Assign) else s
        for s in kernel.body
    )
    return replace(kernel, body=body)


@pytest.mark.parametrize("narrow", [bf16, f16], ids=str)
def test_rounding_on_the_way_is_one_call(tmp_path: Path, narrow: DType) -> None:
    kernel = through(casts(f32, f32), narrow)
    source = emit(kernel, SM_90A)
    assert f"tw_f32_by_{narrow}(" in source
    assert f"tw_{narrow}_from_f32(" not in source.split("__global__")[1]
    kind = {bf16: ml_dtypes.bfloat16, f16: np.float16}[narrow]
    random = np.random.default_rng(3)
    x = np.concatenate(
        [random.standard_normal(500), 1 + np.arange(512) * 2.0**-12, [np.inf, np.nan]]
    )
    x = x.astype(np.float32)
    z = np.zeros(x.shape, np.float32)
    run_on_host(kernel, SM_90A, tmp_path, [x, z], {"N": len(x)})
    np.testing.assert_array_equal(z, x.astype(kind).astype(np.float32))
