"""Scheduled products on the device, at sizes that fill it, against double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from product_cases import Case, covering, define, expected, inputs

torch = pytest.importorskip("torch", reason="the device tests make their tensors with torch")


@pytest.mark.gpu
@pytest.mark.parametrize("case", covering(2), ids=str)
def test_pairs_of_features(case: Case) -> None:
    # Sizes of 1 stay; the others grow past every tile.
    sizes = tuple(n if n == 1 else 11 * n for n in case.sizes)
    case = replace(case, sizes=sizes)
    arrays = inputs(case, np.random.default_rng(7))
    place = _strided if case.layout == "strided" else lambda a: torch.from_numpy(a).cuda()
    tensors = [place(a) for a in arrays]
    fd = define(case, tile=(128, 64, 32), share=32)
    for found, wanted in zip(fd.execute(tensors), expected(case, arrays), strict=True):
        scale = np.abs(wanted).max(initial=1e-3)
        assert np.abs(found.double().cpu().numpy() - wanted).max(initial=0.0) <= 4e-3 * scale


def _strided(array: np.ndarray):
    """A tensor with the array's elements at every second place of its rows."""
    wide = torch.zeros((*array.shape[:-1], 2 * array.shape[-1]), dtype=torch.float16, device="cuda")
    wide[..., ::2] = torch.from_numpy(np.ascontiguousarray(array)).cuda()
    return wide[..., ::2]
