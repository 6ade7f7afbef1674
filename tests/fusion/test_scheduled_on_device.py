"""Scheduled products on the device, at sizes that fill it, against double precision."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from product_cases import Case, covering, define, expected, inputs

from tilewright.driver.fusion import FusionDefinition
from tilewright.poly.results import Refuted
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

torch = pytest.importorskip("torch", reason="the device tests make their tensors with torch")


CASES = covering(2)


def grown(case: Case) -> Case:
    """Sizes of 1 stay; the others grow past every tile."""
    return replace(case, sizes=tuple(n if n == 1 else 11 * n for n in case.sizes))


def defined(case: Case) -> FusionDefinition:
    return define(case, tile=(128, 64, 32), share=32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_of_features_are_proved(case: Case) -> None:
    """What the next test runs."""
    case = grown(case)
    place = partial(_strided, device="cpu") if case.layout == "strided" else torch.from_numpy
    tensors = [place(a) for a in inputs(case, np.random.default_rng(7))]
    for kernel in defined(case).compile(tensors, target="sm_90a").kernels:
        assert not any(isinstance(o.result, Refuted) for o in kernel.proofs)
        assert compile_source(kernel.source, SM_90A)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_of_features(case: Case) -> None:
    case = grown(case)
    arrays = inputs(case, np.random.default_rng(7))
    place = _strided if case.layout == "strided" else lambda a: torch.from_numpy(a).cuda()
    tensors = [place(a) for a in arrays]
    for found, wanted in zip(defined(case).execute(tensors), expected(case, arrays), strict=True):
        scale = np.abs(wanted).max(initial=1e-3)
        assert np.abs(found.double().cpu().numpy() - wanted).max(initial=0.0) <= 4e-3 * scale


def _strided(array: np.ndarray, device: str = "cuda"):
    """A tensor with the array's elements at every second place of its rows."""
    wide = torch.zeros((*array.shape[:-1], 2 * array.shape[-1]), dtype=torch.float16, device=device)
    wide[..., ::2] = torch.from_numpy(np.ascontiguousarray(array))
    return wide[..., ::2]
