"""Products of few tiles and many terms, with and without split sums: `python -m benchmarks split`.

The peer is cuBLAS through `torch.mm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import tilewright as tw
from benchmarks.measure import Comparison, in_turn, relative_error

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
SIZES = (
    (16, 8192, 8192),
    (64, 4096, 8192),
    (128, 8192, 8192),
    (256, 256, 16384),
    (512, 512, 16384),
    (1024, 1024, 8192),
    (1280, 1280, 8192),
)


def product(constraints: list[Any]) -> Any:
    @tw.kernel(constraints)
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    return gemm


def compare(size: tuple[int, int, int], constraints: list[Any], repeats: int) -> Comparison:
    """One product of random matrices, twice with equal bits, timed in turn with cuBLAS."""
    m, n, k = size
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    compiled = product(constraints).compile("sm_90a", {"M": m, "N": n, "K": k})
    c = torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
    compiled(a, b, c)
    first = c.clone()
    c.fill_(torch.nan)
    compiled(a, b, c)
    if not torch.equal(c, first):
        raise RuntimeError(f"two runs of {m} x {n} x {k} differ")
    error = relative_error(c, a.double() @ b.double().T)
    ours, peer = in_turn(lambda: compiled(a, b, c), lambda: torch.mm(a, b.T), repeats)
    name = f"{m} x {n} x {k}, {describe(compiled)}"
    return Comparison(name, ours, peer, error, 2.0 * m * n * k, "TFLOP/s")


def cases(repeats: int = 30) -> Iterator[Comparison]:
    """Each size by the policy's plan, and by its best plan with one block to a tile."""
    for size in SIZES:
        yield compare(size, [], repeats)
        yield compare(size, [tw.HardwareConstraint(split_k=1)], repeats)


def describe(compiled: Any) -> str:
    """The tile, its stages and the blocks that share its terms."""
    plan = compiled.compilation.plan
    tiles = [plan.axes[a].block_tile or plan.axes[a].tile for a in "MNK"]
    parts = plan.roles.parts if plan.roles else 1
    shared = f"{parts} blocks to a tile" if parts > 1 else "a block to a tile"
    return f"{'x'.join(map(str, tiles))}, {plan.stages} stages, {shared}"


if __name__ == "__main__":
    for case in cases():
        print(case.row(), flush=True)
