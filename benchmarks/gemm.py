"""Matrix products against cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

import tilewright as tw
from benchmarks.measure import Comparison, in_turn, relative_error

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
DTYPES = {"f16": (tw.f16, torch.float16), "bf16": (tw.bf16, torch.bfloat16)}
ORDERS = {
    "NT": ((M, K), (N, K)),
    "NN": ((M, K), (K, N)),
    "TT": ((K, M), (N, K)),
    "TN": ((K, M), (K, N)),
}


@dataclass(frozen=True)
class Variant:
    """How a product is computed: operand order, element type, tiles, warps, pipeline stages."""

    order: str = "NT"
    dtype: str = "f16"
    block: tuple[int, int, int] = (128, 128, 32)
    warps: tuple[int, int] = (2, 2)
    stages: int = 4

    def __str__(self) -> str:
        tile = "x".join(map(str, self.block))
        warps = "x".join(map(str, self.warps))
        return f"{self.dtype} {self.order}, tile {tile}, {warps} warps, {self.stages} stages"


def kernel(variant: Variant) -> tw.TileKernel:
    """A tile per block, staged through shared memory."""
    block, warps = variant.block, variant.warps
    dtype, _ = DTYPES[variant.dtype]
    lhs, rhs = ORDERS[variant.order]

    def gemm(a, b, c):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, dtype), c)

    gemm.__annotations__ = {
        "a": tw.Memory[(*lhs, tw.GLOBAL, dtype)],
        "b": tw.Memory[(*rhs, tw.GLOBAL, dtype)],
        "c": tw.Memory[M, N, tw.GLOBAL, dtype],
    }
    mark = tw.kernel(
        [
            tw.WorkgroupConstraint(M, block[0], 0),
            tw.WorkgroupConstraint(N, block[1], 1),
            tw.TilingConstraint(K, block[2]),
            tw.WaveConstraint(M, block[0] // warps[0]),
            tw.WaveConstraint(N, block[1] // warps[1]),
            tw.HardwareConstraint(stages=variant.stages),
        ]
    )
    return mark(gemm)


def compare(shape: tuple[int, int, int], variant: Variant) -> Comparison:
    """One product of M, N, K elements on random data, poisoned before it is checked."""
    m, n, k = shape
    _, dtype = DTYPES[variant.dtype]
    lhs, rhs = ORDERS[variant.order]
    sizes = {M.name: m, N.name: n, K.name: k}
    a, b = (
        torch.randn([sizes[x.name] for x in axes], device="cuda").to(dtype) for axes in (lhs, rhs)
    )
    left = a if lhs[0] == M else a.T
    right = b.T if rhs[0] == N else b
    c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
    gemm = kernel(variant)
    gemm(a, b, c)
    error = relative_error(c, left.float() @ right.float())
    ours, peer = in_turn(lambda: gemm(a, b, c), lambda: torch.matmul(left, right))
    name = f"{m}x{n}x{k} {variant}"
    return Comparison(name, ours, peer, error, 2.0 * m * n * k, "TFLOP/s")


def cases() -> Iterator[Comparison]:
    """The table: all operand orders and both types at 4096, then other shapes."""
    for order in ORDERS:
        for dtype in DTYPES:
            yield compare((4096, 4096, 4096), Variant(order, dtype))
    for shape in ((8192, 8192, 8192), (2048, 2048, 2048), (4096, 4096, 128), (4000, 4001, 999)):
        yield compare(shape, Variant())
