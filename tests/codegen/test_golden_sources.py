"""Whole sources, kept as files: how a printed kernel reads. `--update-golden` rewrites them."""

from __future__ import annotations

from collections.abc import Callable

from example_kernels import matmul
from example_values import elementwise, mfma_matmul, row_softmax

from tilewright.base.dtypes import bf16, f16
from tilewright.codegen import emit
from tilewright.target.amd import GFX942
from tilewright.target.nvidia import SM_90A

Golden = Callable[[str, str], None]


def test_matmul(golden: Golden) -> None:
    golden("matmul.cu", emit(matmul(), SM_90A))


def test_matmul_of_a_transposed_operand(golden: Golden) -> None:
    golden("matmul_kn.cu", emit(matmul(b_is_kn=True, dtype=bf16, index_bits=32), SM_90A))


def test_softmax(golden: Golden) -> None:
    golden("row_softmax.cu", emit(row_softmax(), SM_90A))


def test_elementwise(golden: Golden) -> None:
    kernel = elementwise(f16, ["add", "max", "floordiv", "select", "lt", "rsqrt"])
    golden("elementwise.cu", emit(kernel, SM_90A))


def test_mfma_matmul(golden: Golden) -> None:
    golden("mfma_matmul.hip", emit(mfma_matmul("F32_16x16x16_F16"), GFX942))
