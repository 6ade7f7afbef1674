"""Two matrix products chained through registers, with an axis that no constraint distributes.

Only `K2` is given to blocks. `N` is placed by nobody: the compiler covers its whole extent and
proves that every element of `dv` is written once.

Run it without a GPU: ``tilewright run examples/chained_gemm.py``
"""

import tilewright as tw

M, N, K1, K2 = tw.sym.M, tw.sym.N, tw.sym.K1, tw.sym.K2


@tw.kernel([tw.WorkgroupConstraint(K2, K2, 0)], bindings={M: 16, N: 32, K1: 16, K2: 16})
def chained_gemm(
    q: tw.Memory[M, K1, tw.GLOBAL, tw.f16],
    k: tw.Memory[K2, K1, tw.GLOBAL, tw.f16],
    do: tw.Memory[N, M, tw.GLOBAL, tw.f16],
    dv: tw.Memory[K2, N, tw.GLOBAL, tw.f32],
):
    """dv = (q kᵀ)ᵀ doᵀ, the inner product rounded to f16."""
    s = tw.mma(tw.read(q), tw.read(k), tw.Register[M, K2, tw.f32](0.0))
    s = tw.cast(tw.permute(s, target_shape=[K2, M]), tw.f16)
    tw.write(tw.mma(s, tw.read(do), tw.Register[K2, N, tw.f32](0.0)), dv)
