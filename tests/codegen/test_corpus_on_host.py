"""Lowered programs, printed for the CPU and run there: printer and lowering against the reference.

The simulator reads the same kernel IR by other code, so each is a check of the other.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dialect import run_on_host

from tilewright.driver.trial import run_trial
from tilewright.kernel.ops import Kernel, Mode
from tilewright.target.model import Target


def corpus() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "corpus" / "programs.py"
    spec = spec_from_file_location("corpus_programs", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return {case.name: case for case in module.CASES}


CASES = corpus()
NAMES = [
    "gemm_mk_kn_bf16", "gemm_km_nk_f16", "gemm_i8", "gemm_epilogue", "chained_gemm_blocks",
    "softmax_dynamic", "middle_sum", "transpose", "merge_axes", "casts", "attention",
    "cumsum", "cummax_reverse_exclusive_blocks", "cumsum_reverse_dynamic", "gathered_scan",
    "embedding", "gather_in_a_chain", "gather_of_a_reshape", "gather_on_two_axes",
]  # fmt: skip
SCALARS: dict[str, Any] = {"f32": ctypes.c_float, "i32": ctypes.c_int}


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
@pytest.mark.parametrize("name", NAMES)
def test_program(name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(
        kernel: Kernel,
        machine: Target,
        arguments: Mapping[str, np.ndarray[Any, Any]],
        symbols: Mapping[str, int],
    ) -> None:
        tensors = [np.ascontiguousarray(arguments[t.name]) for t in kernel.tensors]
        scalars = [SCALARS[s.dtype.name](arguments[s.name]) for s in kernel.scalars]
        run_on_host(kernel, machine, tmp_path, tensors, symbols, scalars)
        for declared, tensor in zip(kernel.tensors, tensors, strict=True):
            if declared.mode is not Mode.IN:
                arguments[declared.name][...] = tensor
        ran.append(kernel.name)

    monkeypatch.setattr("tilewright.codegen.sim.simulate", run)
    case = CASES[name]
    size = {"D": 1, **case.sizes[-1]}
    fixed = {axis: n for axis, n in size.items() if axis not in case.dynamic}
    trial = run_trial(case.make().compile(target, fixed), size, seed=1, simulate=True)
    assert ran
    for output in trial.outputs:
        assert output.right, f"{output.name}: {output.error} of {output.allowed} allowed"
