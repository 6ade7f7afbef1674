"""Values that fit one by one, and not together."""

from __future__ import annotations

import pytest
from refusals import above_carets

import tilewright as tw
from tilewright.base.diagnostics import ResourceError

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
Lhs, Rhs = tw.Memory[M, K, tw.GLOBAL, tw.f16], tw.Memory[N, K, tw.GLOBAL, tw.f16]
Out = tw.Memory[M, N, tw.GLOBAL, tw.f32]


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, 64, 0),
        tw.WorkgroupConstraint(N, 64, 1),
        tw.TilingConstraint(K, 32),
        tw.WaveConstraint(M, 64),
        tw.WaveConstraint(N, 64),
    ]
)
def three_products(a: Lhs, b: Rhs, c: Out):
    zero = tw.Register[M, N, tw.f32](0.0)

    @tw.iterate(K, init_args=[zero, zero, zero])
    def sums(x, y, z):
        left, right = tw.read(a), tw.read(b)
        scaled = tw.mma(left * 2.0, right, y), tw.mma(left, right * 3.0, z)
        return tw.mma(left, right, x), *scaled

    tw.write(sums[0] * sums[1] * sums[2], c)


def test_accumulators_that_do_not_fit_together() -> None:
    with pytest.raises(ResourceError) as caught:
        three_products.compile("sm_90a", {M: 256, N: 256, K: 256})
    text = str(caught.value)
    assert text.startswith("error[TW202]: three_products keeps ")
    assert " registers of a thread in use at once\n" in text
    assert above_carets(text) == "def three_products(a: Lhs, b: Rhs, c: Out):"
    assert "  expected: at most 255 on sm_90a\n" in text
    assert "  note: carried0: 128 registers, holds [M:64, N:64]" in text
    assert "  mend: use smaller tiles or more warps" in text
