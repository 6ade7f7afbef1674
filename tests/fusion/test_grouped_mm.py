"""Grouped products of fusions, in all forms, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.diagnostics import DTypeError, ShapeError
from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion import DataType
from tilewright.poly.results import Assumed, Proved
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

BF16 = ml_dtypes.bfloat16
UNEVEN = (100, 0, 130, 26)
TYPES = {np.dtype(BF16): DataType.BFloat16, np.dtype(np.int32): DataType.Int32,
         np.dtype(np.int64): DataType.Int}  # fmt: skip


def definition(inputs: Sequence[Any], relu: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        a, b, ends = (fd.define_tensor([-1] * x.ndim, dtype=TYPES[x.dtype]) for x in inputs)
        product = fd.ops.grouped_mm(a, b, ends)
        fd.add_output(fd.ops.relu(product) if relu else product)
    return fd


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(BF16)


def wanted(a: np.ndarray, b: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    left, right = a.astype(np.float32), b.astype(np.float32)
    starts = [0, *ends[:-1]]
    parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    if a.ndim == b.ndim == 2:
        return np.stack([left[:, p] @ right[p] for p in parts]).astype(BF16)
    shape = (a.shape[0], b.shape[2]) if a.ndim == 2 else (a.shape[1], b.shape[1])
    result = np.zeros(shape, np.float32)
    for group, part in enumerate(parts):
        if a.ndim == 2:
            result[part] = left[part] @ right[group]
        else:
            result[:, part] = left[group] @ right[:, part]
    return result.astype(BF16)


def check(a: np.ndarray, b: np.ndarray, ends: np.ndarray, target: str = "sm_90a") -> None:
    (found,) = definition([a, b, ends]).execute([a, b, ends], target=target)
    groups = ends[1:] if ends[0] == 0 and len(ends) == max(a.shape[0], b.shape[0]) + 1 else ends
    assert np.array_equal(found.astype(np.float32), wanted(a, b, groups).astype(np.float32))


def ends_of(counts: Sequence[int], dtype: type = np.int32) -> np.ndarray:
    return np.cumsum(counts).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_rows(dtype: type, target: str) -> None:
    check(numbers(256, 64), numbers(4, 64, 64), ends_of(UNEVEN, dtype), target)


def test_columns() -> None:
    check(numbers(4, 64, 64), numbers(64, 256), ends_of(UNEVEN))


def test_terms() -> None:
    check(numbers(32, 256), numbers(256, 24), ends_of(UNEVEN))


@pytest.mark.parametrize("rows", [64, 136])
def test_terms_through_warp_roles_with_what_follows(rows: int) -> None:
    """With rows of both operands contiguous, as a gradient of weights has them."""
    ends = ends_of((100, 0, 130, 10))
    inputs = [numbers(256, rows).T, numbers(256, 72), ends]  # the last terms are of no group
    compiled = definition(inputs, relu=True).compile(inputs, target="sm_90a")
    (kernel,) = compiled.kernels
    assert kernel.plan.own_terms is not None
    (found,) = definition(inputs, relu=True).execute(inputs, target="sm_90a")
    exact = np.maximum(wanted(*inputs).astype(np.float32), 0)
    assert np.array_equal(found.astype(np.float32), exact)


def test_starts_may_be_given_as_well() -> None:
    a, b, ends = numbers(256, 64), numbers(4, 64, 64), ends_of(UNEVEN)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    (found,) = definition([a, b, offsets]).execute([a, b, offsets], target="sm_90a")
    assert np.array_equal(found.astype(np.float32), wanted(a, b, ends).astype(np.float32))


@pytest.mark.parametrize(
    ("rows", "terms", "groups", "columns"),
    [(1, 16, 2, 16), (20, 1, 2, 16), (20, 16, 1, 16), (20, 16, 2, 1), (0, 16, 2, 16)],
    ids=str,
)
def test_dimensions_of_one_and_none(rows: int, terms: int, groups: int, columns: int) -> None:
    counts = [rows // groups] * groups
    check(numbers(rows, terms), numbers(groups, terms, columns), ends_of(counts))


def test_rows_and_columns_go_through_warp_roles_with_what_follows() -> None:
    ends = ends_of(UNEVEN)
    rows, columns = numbers(256, 64), numbers(256, 64).T  # each contiguous along the terms
    for a, b in ((rows, numbers(4, 64, 64)), (numbers(4, 64, 64), columns)):
        inputs = [a, b, ends]
        compiled = definition(inputs, relu=True).compile(inputs, target="sm_90a")
        (kernel,) = compiled.kernels
        assert kernel.plan.ragged is not None
        assert "grouped product: tiles of 64 by 64" in compiled.explain()
        (found,) = definition(inputs, relu=True).execute(inputs, target="sm_90a")
        exact = np.maximum(wanted(a, b, ends).astype(np.float32), 0)
        assert np.array_equal(found.astype(np.float32), exact)


def test_large_products_take_large_tiles() -> None:
    ends = ends_of([512] * 128)
    inputs = [np.empty((65536, 2048), BF16), np.empty((128, 2048, 1536), BF16), ends]
    compiled = definition(inputs).compile(inputs, target="sm_90a")
    assert "grouped product: tiles of 128 by 256" in compiled.explain()


def test_errors() -> None:
    inputs = [numbers(16, 16), numbers(5, 16, 16), ends_of([4, 4, 8])]
    fusion = definition(inputs)
    with pytest.raises(ShapeError, match=r"3 offsets for 5 groups[\s\S]*5, or 6 with the first"):
        fusion.execute(inputs)
    with FusionDefinition() as fd:
        half = fd.define_tensor([-1, -1], dtype=DataType.Half)
        three = fd.define_tensor([-1, -1, -1], dtype=DataType.BFloat16)
        ends = fd.define_tensor([-1], dtype=DataType.Int32)
        with pytest.raises(ShapeError, match=r"without the ends[\s\S]*or two lists of matrices"):
            fd.ops.grouped_mm(half, half)
        with pytest.raises(DTypeError, match="a grouped product of f16 and bf16"):
            fd.ops.grouped_mm(half, three, ends)
        with pytest.raises(ShapeError, match=r"a grouped product of [\s\S]*\[groups, k, n\]"):
            fd.ops.grouped_mm(three, three, ends)
        with pytest.raises(ShapeError, match=r"groups that end at f16\[\?, \?\]"):
            fd.ops.grouped_mm(fd.ops.cast(half, DataType.BFloat16), three, half)


ON_DEVICE = [(1000, 0, 300, 1, 747), (37,) * 100]


def for_device(counts: Sequence[int]) -> list[list[np.ndarray]]:
    """Groups of rows, and of columns."""
    rows = -(-sum(counts) // 8) * 8
    a, b, ends = numbers(rows, 192), numbers(len(counts), 192, 256), ends_of(counts)
    return [[a, b, ends], [b.swapaxes(1, 2).copy(), a.T.copy(), ends]]


@pytest.mark.parametrize("counts", ON_DEVICE, ids=lambda c: f"{c[:5]}")
def test_what_runs_on_the_device_is_proved(counts: Sequence[int]) -> None:
    for inputs in for_device(counts):
        compiled = definition(inputs).compile(inputs, target="sm_90a")
        for kernel in compiled.kernels:
            assert all(isinstance(o.result, Proved | Assumed) for o in kernel.proofs)
            assert compile_source(kernel.source, SM_90A)


@pytest.mark.gpu
@pytest.mark.parametrize("counts", ON_DEVICE, ids=lambda c: f"{c[:5]}")
def test_on_the_device(counts: Sequence[int]) -> None:
    from tilewright.runtime.device_arrays import DeviceArray

    for inputs in for_device(counts):
        (found,) = definition(inputs).execute([DeviceArray(x) for x in inputs])
        exact = wanted(*inputs[:2], inputs[2].tolist()).astype(np.float32)
        assert np.array_equal(found.numpy().astype(np.float32), exact)
