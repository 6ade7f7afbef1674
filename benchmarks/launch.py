"""What a launch costs the host: calls, bound calls and fusions beside torch's own.

python -m benchmarks.launch

Microseconds of host time a call. Products are small, so that the device keeps up, and batches
short, so that no queue fills: what is left is what the host does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch

import tilewright as tw
from benchmarks.measure import relative_error

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
ROUNDS, BATCH = 60, 64
HEADER = "| call | ours, µs | peer | peer, µs | ours - peer, µs |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Row:
    """Host microseconds a call."""

    name: str
    ours: float
    peer_name: str
    peer: float

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.ours:.2f} | {self.peer_name} | {self.peer:.2f} "
            f"| {self.ours - self.peer:+.2f} |"
        )


def host_time(works: list[Callable[[], object]]) -> list[float]:
    """Median host microseconds a call of each, batch by batch in turn."""
    times: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(ROUNDS):
        for work, found in zip(works, times, strict=True):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(BATCH):
                work()
            found.append((time.perf_counter() - started) / BATCH * 1e6)
    torch.cuda.synchronize()
    return [median(found) for found in times]


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, 128, 0),
        tw.WorkgroupConstraint(N, 128, 1),
        tw.TilingConstraint(K, 64),
    ]
)
def product(
    a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)


def products() -> Iterator[Row]:
    """A product called, and bound, beside `torch.mm`."""
    a, b = (torch.randn((256, 256), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.full((256, 256), float("nan"), device="cuda", dtype=torch.bfloat16)
    right = b.T
    product(a, b, c)
    wanted = a.float() @ right.float()
    if relative_error(c, wanted) > 1e-2:
        raise RuntimeError("the product is wrong")
    c.fill_(float("nan"))
    bound = product.bind(a, b, c)
    bound()
    if relative_error(c, wanted) > 1e-2:
        raise RuntimeError("the bound product is wrong")
    compiled = product.compile("sm_90a", {"M": 256, "N": 256, "K": 256})
    maps = len(compiled.compilation.interface.maps)
    called, launched, given, fresh = host_time(
        [
            lambda: product(a, b, c),
            bound,
            lambda: torch.mm(a, right, out=c),
            lambda: torch.mm(a, right),
        ]
    )
    note = f"product({maps} maps)"
    yield Row(f"{note}: gemm(a, b, c)", called, "torch.mm(a, b, out=c)", given)
    yield Row(f"{note}: gemm(a, b, c)", called, "torch.mm(a, b)", fresh)
    yield Row(f"{note}: gemm.bind(a, b, c)()", launched, "torch.mm(a, b, out=c)", given)


def fusions() -> Iterator[Row]:
    """A fusion executed, beside the one torch operator that it is."""
    x = torch.randn((256, 256), device="cuda", dtype=torch.bfloat16)
    with tw.FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], dtype=tw.bf16)
        fd.add_output(fd.ops.softmax(t, dim=1))
    (found,) = fd.execute([x])
    if relative_error(found, torch.softmax(x.float(), 1)) > 1e-2:
        raise RuntimeError("the fusion is wrong")
    ours, peer = host_time([lambda: fd.execute([x]), lambda: torch.softmax(x, 1)])
    yield Row("fusion: fd.execute([x]), softmax", ours, "torch.softmax(x, 1)", peer)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n{HEADER}")
    for rows in (products, fusions):
        for row in rows():
            print(row, flush=True)


if __name__ == "__main__":
    main()
