"""One matrix product under schedules by hand: swizzled, persistent, gathered outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import tilewright as tw
from benchmarks.measure import Comparison, in_turn, relative_error

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


@tw.kernel()
def product(
    a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
):
    """c = a bᵀ."""

    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)


@dataclass(frozen=True)
class Order:
    """Tile sizes, ring slots, and the order of tiles."""

    tile: tuple[int, int, int]
    slots: int
    swizzle: int = 0
    blocks: int = 0
    gathered: bool = False

    def __str__(self) -> str:
        parts = ["x".join(map(str, self.tile))]
        parts += [f"swizzle {self.swizzle}"] if self.swizzle else []
        parts += [f"persistent on {self.blocks}"] if self.blocks else []
        parts += ["output gathered in shared memory"] if self.gathered else []
        return ", ".join(parts)

    def schedule(self) -> Callable[[tw.Schedule], tw.Schedule]:
        """The schedule; each warp has 64 by 64 elements."""

        def transform(s: tw.Schedule) -> tw.Schedule:
            for axis, size, name in zip("MNK", self.tile, "mnk", strict=True):
                s = s.split(axis, size, f"{name}o", f"{name}i")
            for name in "mn":
                s = s.split(f"{name}i", 64, f"{name}w", f"{name}r").parallelize(f"{name}w", "warp")
            s = s.stage(self.slots)
            if self.swizzle:
                s = s.swizzle("mo", "no", self.swizzle)
            if self.blocks:
                s = s.persistent(self.blocks)
            return s.cache_before("c") if self.gathered else s

        return transform


ORDERS = (
    Order((128, 128, 32), 4),
    Order((128, 128, 32), 4, 4),
    Order((128, 128, 32), 4, 16),
    Order((128, 128, 32), 4, 8, 264),
    Order((128, 128, 32), 4, 8, 0, gathered=True),
    Order((256, 128, 64), 3, 4),
    Order((256, 128, 64), 3, 4, 132),
    Order((256, 128, 64), 3, 4, 132, gathered=True),
)


def cases() -> Iterator[Comparison]:
    """Each order at 4096 and 8192, and at sizes that no tile divides."""
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (5000, 3000, 1000)):
        a, b = (torch.randn(r, k, device="cuda").bfloat16() for r in (m, n))
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        wanted = a.float() @ b.float().T
        for order in ORDERS:
            kernel = product.compile("sm_90a", {M: m, N: n, K: k}, schedule=order.schedule())
            c.fill_(float("nan"))
            kernel(a, b, c)
            error = relative_error(c, wanted)
            ours, peer = in_turn(
                lambda kernel=kernel, a=a, b=b, c=c: kernel(a, b, c),
                lambda a=a, b=b: torch.matmul(a, b.T),
                repeats=15,
            )
            yield Comparison(f"{m}x{n}x{k}, {order}", ours, peer, error, 2.0 * m * n * k, "TFLOP/s")
