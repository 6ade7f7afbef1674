"""Accumulators are read after the wait for their products, at every width of the instruction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from machine_code import instructions

import tilewright as tw
from tilewright.driver.compiled import CompiledKernel
from tilewright.poly.results import Proved
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
WIDTHS = [(128, 184), (128, 224), (64, 72), (64, 104), (64, 200), (128, 256)]


def product(rows: int, columns: int, k: int) -> CompiledKernel:
    """Tiles of so many rows and columns: enough of them for a persistent kernel."""

    def gemm(a: Any, b: Any, c: Any) -> None:
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc: Any) -> Any:
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    gemm.__annotations__ = {
        "a": tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        "b": tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        "c": tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    }
    kernel = tw.kernel(
        [
            tw.WorkgroupConstraint(M, rows, 0),
            tw.WorkgroupConstraint(N, columns, 1),
            tw.TilingConstraint(K, 64),
        ]
    )(gemm)
    return kernel.compile("sm_90a", {M: 16 * rows, N: 16 * columns, K: k})


def test_the_wait_for_all_products_is_a_loop() -> None:
    source = product(128, 224, 1024).source
    assert "tw_wait_products();\n" in source
    (loop,) = re.findall(r"void tw_wait_products\(\).*?\n}", source, re.DOTALL)
    assert re.search(r"waiting:.*wait_group\.sync\.aligned 0;.*bra waiting", loop, re.DOTALL)


@pytest.mark.parametrize(("rows", "columns"), WIDTHS)
def test_machine_code_reads_no_accumulator_before_the_wait(
    rows: int, columns: int, tmp_path: Path
) -> None:
    lines = instructions(product(rows, columns, 4096).source, tmp_path)
    found = re.search(rf"HGMMA\.64x{columns}x16\S* R(\d+)", "\n".join(lines))
    assert found
    first = int(found[1])
    held = {f"R{first + i}" for i in range(columns // 2)}
    products = [i for i, line in enumerate(lines) if f"HGMMA.64x{columns}" in line]
    waits = [i for i, line in enumerate(lines) if "DEPBAR.LE gsb0, 0x0" in line]
    assert any(wait > products[0] for wait in waits)
    for wait in waits:
        last = max((i for i in products if i < wait), default=wait)
        between = " ".join(lines[last + 1 : wait])
        assert not held & set(re.findall(r"\bR\d+\b", between))


def test_the_main_loop_computes_descriptors_in_uniform_registers(tmp_path: Path) -> None:
    """A dozen instructions for each product, moves to uniform registers among them, cost 0.7%."""
    lines = instructions(product(128, 192, 4096).source, tmp_path)
    products = [i for i, line in enumerate(lines) if "HGMMA.64x192" in line]
    loop = lines[products[0] : products[-1]]
    assert len(products) > 3
    assert not [line for line in loop if "R2UR" in line]
    assert len(loop) < 8 * len(products)


@pytest.mark.parametrize(("rows", "columns"), WIDTHS)
def test_products_of_every_width_compile(rows: int, columns: int) -> None:
    """What the next test runs."""
    kernel = product(rows, columns, 4096)
    assert all(isinstance(o.result, Proved) for o in kernel.proofs)
    assert compile_source(kernel.source, SM_90A)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), WIDTHS)
def test_products_of_every_width_are_right(rows: int, columns: int) -> None:
    from tilewright.runtime.device_arrays import DeviceArray

    random = np.random.default_rng(0)
    shapes = ((16 * rows, 4096), (16 * columns, 4096))
    a, b = (random.standard_normal(s, np.float32).astype(ml_dtypes.bfloat16) for s in shapes)
    c = DeviceArray(np.zeros((16 * rows, 16 * columns), ml_dtypes.bfloat16))
    product(rows, columns, 4096)(DeviceArray(a), DeviceArray(b), c)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    apart = np.abs(c.numpy().astype(np.float32) - wanted)
    assert apart.max() < 1e-2 * np.abs(wanted).max()
