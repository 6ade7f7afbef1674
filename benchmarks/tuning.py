"""What tuning finds for products, beside cuBLAS: ``python -m benchmarks.tuning [M N K]``."""

from __future__ import annotations

import sys

import torch

import tilewright as tw
from tilewright.runtime.timing import measure

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BLOCK_M, BLOCK_N, BLOCK_K = tw.sym.BLOCK_M, tw.sym.BLOCK_N, tw.sym.BLOCK_K
SIZES = (
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (4096, 4096, 128),
    (128, 8192, 8192),
    (16, 8192, 8192),
    (256, 256, 16384),
)


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, BLOCK_M, 0),
        tw.WorkgroupConstraint(N, BLOCK_N, 1),
        tw.TilingConstraint(K, BLOCK_K),
    ]
)
def gemm(
    a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)


def search(m: int, n: int, k: int, top: int = 14) -> str:
    """The table of the configs that the model suggests, and cuBLAS's time by the same clock."""
    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    tuned = gemm.tune(a, b, c, top=top, reference=lambda *given: given[0] @ given[1].T)
    peer = measure(lambda: a @ b.T, warmup=3, repeats=20).median
    return f"{tuned}\ncuBLAS: {peer:.1f} µs\n"


def main(words: list[str]) -> None:
    sizes = [(int(words[0]), int(words[1]), int(words[2]))] if words else SIZES
    for size in sizes:
        print(search(*size), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
