"""Scheduled products: swizzle, persistence, clusters, batch, epilogues, layouts, all together.

Every run has a set of cases in which all pairs of features occur. `--exhaustive` runs the whole
product, which takes many hours.
"""

from __future__ import annotations

import numpy as np
import pytest
from product_cases import Case, covering, define, everything, expected, inputs

from tilewright.poly.prove import Assumed, Proved


def check(case: Case) -> None:
    fd = define(case)
    arrays = inputs(case, np.random.default_rng(7))
    compiled = fd.compile(arrays)
    (kernel,) = compiled.kernels
    assert all(isinstance(o.result, Proved | Assumed) for o in kernel.proofs)
    for found, wanted in zip(fd.execute(arrays), expected(case, arrays), strict=True):
        scale = np.abs(wanted).max(initial=1e-3)
        assert np.abs(found.astype(np.float64) - wanted).max(initial=0.0) <= 4e-3 * scale


@pytest.mark.parametrize("case", covering(2), ids=str)
def test_pairs_of_features(case: Case) -> None:
    check(case)


@pytest.mark.exhaustive
def test_the_whole_product() -> None:
    for case in everything():
        check(case)
