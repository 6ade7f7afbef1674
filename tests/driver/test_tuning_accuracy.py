"""Comparisons of results against definitions by single elements."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.driver.tuning import accuracy
from tilewright.driver.tuning.accuracy import any_still, difference, poisons, unwritten

DTYPES = [
    np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int32,
    np.int8, np.bool_,
]  # fmt: skip
values = st.sampled_from([0.0, -0.0, 1.0, -2.5, 3.0, 100.0, math.inf, -math.inf, math.nan])


def by_elements(found: Any, wanted: Any) -> float:
    finite = [abs(float(w)) for w in wanted.flat if math.isfinite(float(w))]
    scale = max(finite, default=0.0) or 1.0
    worst = 0.0
    for f, w in zip(map(float, found.flat), map(float, wanted.flat), strict=True):
        if f == w or (math.isnan(f) and math.isnan(w)):
            continue
        gap = abs(f - w)
        worst = max(worst, math.inf if math.isnan(gap) else gap / scale)
    return worst


@given(st.data(), st.sampled_from(DTYPES[:3]), st.integers(1, 4))
def test_the_largest_error_is_found(data: st.DataObject, dtype: Any, chunk: int) -> None:
    several = st.lists(values, min_size=6, max_size=6)
    found, wanted = (np.array(data.draw(several)).astype(dtype).reshape(2, 3) for _ in "ab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accuracy, "CHUNK", chunk)
        apart = difference(found, wanted)
    assert apart.error == pytest.approx(by_elements(found, wanted), rel=1e-3)
    here = by_elements(found[apart.index].reshape(1), wanted[apart.index].reshape(1))
    assert (here > 0) == (apart.error > 0)
    assert str(apart.found) == str(float(found[apart.index]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_untouched_element_keeps_both_patterns(dtype: Any) -> None:
    kind = np.dtype(dtype)
    low, high = poisons(kind)
    runs = [
        np.full(6 * kind.itemsize, byte, np.uint8).view(kind).reshape(2, 3) for byte in (low, high)
    ]
    assert any_still(runs[0], low)
    assert unwritten(runs[0], low, runs[1], high) == (0, 0)
    for run in runs:
        run[0] = 1
    assert unwritten(runs[0], low, runs[1], high) == (1, 0)
    for run in runs:
        run[1] = np.array(0).astype(kind)
    assert unwritten(runs[0], low, runs[1], high) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_element_that_equals_one_pattern_is_written(dtype: Any) -> None:
    kind = np.dtype(dtype)
    low, high = poisons(kind)
    same = np.full(kind.itemsize, low, np.uint8).view(kind)  # in both runs
    assert any_still(same, low)
    assert unwritten(same, low, same, high) is None
