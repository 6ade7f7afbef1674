"""Batched products through warp roles: maps of three axes, in every order of storage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grouped_programs import batched, batched_arrays

from tilewright.driver.compiled import CompiledKernel
from tilewright.poly.results import Assumed, Proved
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

SIZES = {"B": 3, "M": 128, "N": 128, "K": 128}
TILE = {"ROWS": 128, "COLUMNS": 64, "STEP": 64}
ORDERS = [
    ("BMK", "BNK", "BMN"), ("BMK", "BKN", "BMN"), ("BKM", "BNK", "BMN"), ("BKM", "BKN", "BMN"),
    ("BMK", "BNK", "BNM"), ("MBK", "NBK", "MBN"), ("KBM", "BKN", "BNM"), ("MBK", "BKN", "NBM"),
]  # fmt: skip
Orders = tuple[str, str, str]


def compiled(orders: Orders, sizes: dict[str, int], **tile: int) -> CompiledKernel:
    return batched(orders).compile("sm_90a", bindings={**sizes, **TILE, **tile})


@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
@pytest.mark.parametrize("sizes", [SIZES, {"B": 2, "M": 136, "N": 72, "K": 200}], ids=str)
def test_every_order(orders: Orders, sizes: dict[str, int]) -> None:
    kernel = compiled(orders, sizes)
    assert kernel.compilation.plan.roles is not None
    assert {len(m.box) for m in kernel.compilation.kernel.maps} == {3}
    arrays, wanted = batched_arrays(orders, sizes)
    kernel(*arrays)
    assert np.array_equal(arrays[-1].astype(np.float32), wanted.astype(np.float32))


def test_more_tiles_than_multiprocessors() -> None:
    sizes = {"B": 67, "M": 64, "N": 32, "K": 64}
    kernel = compiled(ORDERS[0], sizes, ROWS=64, COLUMNS=16)
    assert "turn" in kernel.compilation.plan.grid.order
    arrays, wanted = batched_arrays(ORDERS[0], sizes)
    kernel(*arrays)
    assert np.array_equal(arrays[-1].astype(np.float32), wanted.astype(np.float32))


ON_DEVICE = {"B": 17, "M": 384, "N": 192, "K": 320}


@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
def test_what_runs_on_the_device_is_proved(orders: Orders) -> None:
    kernel = compiled(orders, ON_DEVICE)
    assert kernel.compilation.plan.roles is not None
    assert all(isinstance(o.result, Proved | Assumed) for o in kernel.proofs)
    assert compile_source(kernel.source, SM_90A)


@pytest.mark.gpu
@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
def test_on_the_device(orders: Orders) -> None:
    from tilewright.runtime.device_arrays import DeviceArray

    arrays, wanted = batched_arrays(orders, ON_DEVICE)
    there: list[Any] = [DeviceArray(a) for a in arrays]
    compiled(orders, ON_DEVICE)(*there)
    assert np.array_equal(there[-1].numpy().astype(np.float32), wanted.astype(np.float32))
