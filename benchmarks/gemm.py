"""Matrix products against cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import tilewright as tw
from benchmarks.measure import Comparison, in_turn, relative_error

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
DTYPES = {"f16": (tw.f16, torch.float16), "bf16": (tw.bf16, torch.bfloat16)}


def kernel(
    lhs: tuple[object, ...], rhs: tuple[object, ...], dtype: tw.DType,
    block: tuple[int, int, int] = (128, 128, 32), warps: tuple[int, int] = (2, 2), stages: int = 4,
) -> tw.TileKernel:  # fmt: skip
    """A tile per block, `block` elements of M, N and K, `warps` along M and N."""

    @tw.kernel(
        [
            tw.WorkgroupConstraint(M, block[0], 0),
            tw.WorkgroupConstraint(N, block[1], 1),
            tw.TilingConstraint(K, block[2]),
            tw.WaveConstraint(M, block[0] // warps[0]),
            tw.WaveConstraint(N, block[1] // warps[1]),
            tw.HardwareConstraint(stages=stages),
        ]
    )
    def gemm(
        a: tw.Memory[(*lhs, tw.GLOBAL, dtype)],
        b: tw.Memory[(*rhs, tw.GLOBAL, dtype)],
        c: tw.Memory[M, N, tw.GLOBAL, dtype],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, dtype), c)

    return gemm


ORDERS = {"NT": ((M, K), (N, K)), "NN": ((M, K), (K, N)), "TT": ((K, M), (N, K)),
          "TN": ((K, M), (K, N))}  # fmt: skip


def run(shapes: list[tuple[int, int, int]], variants: list[tuple]) -> Iterator[Comparison]:
    """One comparison for each shape and variant (order, dtype, block, warps, stages)."""
    for m, n, k in shapes:
        for order, name, block, warps, stages in variants:
            ours, torch_dtype = DTYPES[name]
            lhs, rhs = ORDERS[order]
            a = torch.randn((m, k) if lhs[0] == M else (k, m), device="cuda").to(torch_dtype)
            b = torch.randn((n, k) if rhs[0] == N else (k, n), device="cuda").to(torch_dtype)
            left = a if lhs[0] == M else a.T
            right = b.T if rhs[0] == N else b
            c = torch.full((m, n), float("nan"), device="cuda", dtype=torch_dtype)
            gemm = kernel(lhs, rhs, ours, block, warps, stages)
            gemm(a, b, c)
            wanted = left.float() @ right.float()
            error = relative_error(c, wanted)
            mine, peer = in_turn(lambda: gemm(a, b, c), lambda: torch.matmul(left, right))
            label = f"{m}x{n}x{k} {name} {order} {block} {warps} s{stages}"
            yield Comparison(label, mine, peer, error, 2.0 * m * n * k, "TFLOP/s")
