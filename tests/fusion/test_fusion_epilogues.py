"""A large linear layer with gelu and a residual: one kernel, whose epilogue fits the registers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion import DataType
from tilewright.kernel.async_ops import BulkLoad
from tilewright.kernel.ops import walk
from tilewright.poly.results import Proved
from tilewright.target.nvidia import SM_90A


def test_gelu_and_a_residual_do_not_spill() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra `cuda`")
    from tilewright.runtime.toolchain import Nvrtc

    with FusionDefinition() as fd:
        x, w, b, r = (fd.define_tensor([-1] * n, dtype=DataType.BFloat16) for n in (2, 2, 1, 2))
        fd.add_output(fd.ops.add(fd.ops.gelu(fd.ops.linear(x, w, b)), r))
    square, row = (np.empty(shape, ml_dtypes.bfloat16) for shape in ((8192, 8192), (8192,)))
    (made,) = fd.compile([square, square, row, square], target="sm_90a").kernels
    assert all(isinstance(o.result, Proved) for o in made.proofs)
    assert made.plan.roles is not None
    assert made.plan.roles.pingpong
    copies = [s.map for s in walk(made.kernel.body) if isinstance(s, BulkLoad)]
    assert len(set(copies)) == 3  # of both operands and of the residual
    assert Nvrtc().resources(made.source, SM_90A).spilled == 0
