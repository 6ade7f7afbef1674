"""Scheduled products: swizzle, persistence, clusters, batch, epilogues, layouts, all together.

Every run has a set of cases in which all pairs of features occur. `--exhaustive` runs the whole
product, which takes many hours.
"""

from __future__ import annotations

import numpy as np
import pytest
from product_cases import Case, covering, define, everything, expected, inputs

import tilewright as tw
from tilewright import FusionDefinition
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


def test_blocks_share_the_steps_of_tiles() -> None:
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor(s, dtype=tw.f16) for s in ([256, 320], [192, 320]))
        out = fd.ops.relu(fd.ops.linear(a, b))
        fd.add_output(out)
        s = fd.sched
        s.split(s.axis(out, 0), 64, "mo", "mi")
        s.split(s.axis(out, 1), 64, "no", "ni")
        s.split(s.terms(), 64, "ko", "ki")
        s.swizzle("mo", "no", 2)
        s.stream(3, 4)
    random = np.random.default_rng(5)
    left, right = (random.integers(-3, 4, n).astype(np.float16) for n in ((256, 320), (192, 320)))
    (kernel,) = fd.compile([left, right], target="sm_90a").kernels
    assert "4 blocks share the 15 steps of 3 tiles, 4 each" in kernel.explain()
    assert all(isinstance(o.result, Proved) for o in kernel.proofs)
    (found,) = fd.execute([left, right], target="sm_90a")
    wanted = np.maximum(left.astype(np.float64) @ right.astype(np.float64).T, 0.0)
    assert np.array_equal(found, wanted.astype(np.float16))
