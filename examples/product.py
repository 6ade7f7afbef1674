"""A matrix product: load, multiply, accumulate, store. The policy chooses tiles and warp roles.

tilewright run examples/product.py --size M=256 --size N=384 --size K=192
tilewright source examples/product.py --size M=8192 --size N=8192 --size K=8192
"""

import tilewright as tw

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


@tw.kernel()
def product(
    a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)
