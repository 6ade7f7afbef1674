"""A matrix product C = A Bᵀ with a tile per block, staged through shared memory.

Run it without a GPU: ``tilewright run examples/gemm.py``
"""

import tilewright as tw

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BLOCK_M, BLOCK_N, BLOCK_K = tw.sym.BLOCK_M, tw.sym.BLOCK_N, tw.sym.BLOCK_K


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, BLOCK_M, 0),
        tw.WorkgroupConstraint(N, BLOCK_N, 1),
        tw.TilingConstraint(K, BLOCK_K),
        tw.WaveConstraint(M, BLOCK_M / 2),
        tw.WaveConstraint(N, BLOCK_N / 2),
    ],
    bindings={BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 32},
)
def gemm(
    a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.f16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.f16],
):
    """c[m, n] = sum over k of a[m, k] b[n, k]."""

    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.f16), c)
