"""Grouped products, as in mixtures of experts: ``python -m benchmarks grouped``.

Rows are sorted by expert; how many each expert has is data on the device. The peer is
`torch._grouped_mm`. Lists of products have tensors and sizes of their own; the peer is a loop of
`torch.mm`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

import tilewright as tw
from benchmarks.measure import Comparison, in_turn, relative_error

T, E, G, M, N, K = (tw.sym.T, tw.sym.E, tw.sym.G, tw.sym.M, tw.sym.N, tw.sym.K)
HALF = torch.bfloat16
TILE = (128, 256, 64)


def kernel(order: str, tile: tuple[int, int, int] = TILE) -> tw.TileKernel:
    """Each row times the matrix of its group, which is stored in this order of axes."""
    axes = {"NK": (E, N, K), "KN": (E, K, N)}[order]

    def grouped(x: Any, w: Any, ends: Any, y: Any) -> None:
        group = tw.group_of(T, ends)

        @tw.iterate(K, init_args=[tw.Register[T, N, tw.f32](0.0)])
        def total(acc: Any) -> Any:
            return tw.mma(tw.read(x), tw.gather(w, E, group), acc)

        tw.write(tw.cast(total, tw.bf16), y)

    grouped.__annotations__ = {
        "x": tw.Memory[T, K, tw.GLOBAL, tw.bf16],
        "w": tw.Memory[(*axes, tw.GLOBAL, tw.bf16)],
        "ends": tw.Memory[E, tw.GLOBAL, tw.i32],
        "y": tw.Memory[T, N, tw.GLOBAL, tw.bf16],
    }
    rows, columns, terms = tile
    return tw.kernel([
        tw.WorkgroupConstraint(T, rows, 0), tw.WorkgroupConstraint(N, columns, 1),
        tw.TilingConstraint(K, terms),
    ])(grouped)  # fmt: skip


def ends_of(rows: int, experts: int, spread: str) -> torch.Tensor:
    """Where the experts' rows end: `even`, or at places drawn at `random`."""
    if spread == "even":
        return torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (rows // experts)
    cuts = torch.randint(0, rows + 1, (experts - 1,), device="cuda").sort().values
    return torch.cat([cuts, cuts.new_tensor([rows])]).int()


def product(
    rows: int, experts: int, n: int, k: int, order: str = "NK", spread: str = "random",
    tile: tuple[int, int, int] = TILE,
) -> Comparison:  # fmt: skip
    """One grouped product, poisoned before it is checked against float64."""
    torch.manual_seed(0)
    x = torch.randn(rows, k, device="cuda", dtype=HALF)
    w = torch.randn(experts, n, k, device="cuda", dtype=HALF) / k**0.5
    stored = w if order == "NK" else w.mT.contiguous()
    ends = ends_of(rows, experts, spread)
    y = torch.full((rows, n), float("nan"), device="cuda", dtype=HALF)
    launch = kernel(order, tile).bind(x, stored, ends, y)
    launch()
    error = _error(y, x, w, ends.tolist())
    right = stored.mT if order == "NK" else stored
    peer = lambda: torch._grouped_mm(x, right, offs=ends)  # noqa: E731, SLF001
    ours, theirs = in_turn(launch, peer)
    name = f"{experts} groups, {spread}, {rows} rows, {n} x {k} {order}, tile {tile[0]}x{tile[1]}"
    return Comparison(name, ours, theirs, error, 2.0 * rows * n * k, "TFLOP/s")


def terms_kernel(tile: tuple[int, int, int] = TILE) -> tw.TileKernel:
    """For each group the product of its rows of x and y."""

    def terms(x: Any, y: Any, ends: Any, out: Any) -> None:
        group = tw.group_of(T, ends)

        @tw.iterate(T, init_args=[tw.Register[E, M, N, tw.f32](0.0)])
        def total(acc: Any) -> Any:
            left, right = (tw.per_group(tw.read(z), E, group) for z in (x, y))
            return tw.mma(left, right, acc)

        tw.write(tw.cast(total, tw.bf16), out)

    terms.__annotations__ = {
        "x": tw.Memory[T, M, tw.GLOBAL, tw.bf16],
        "y": tw.Memory[T, N, tw.GLOBAL, tw.bf16],
        "ends": tw.Memory[G, tw.GLOBAL, tw.i32],
        "out": tw.Memory[E, M, N, tw.GLOBAL, tw.bf16],
    }
    rows, columns, step = tile
    return tw.kernel([
        tw.WorkgroupConstraint(M, rows, 0), tw.WorkgroupConstraint(N, columns, 1),
        tw.WorkgroupConstraint(E, 1, 2), tw.TilingConstraint(T, step),
    ])(terms)  # fmt: skip


def of_terms(
    rows: int, experts: int, m: int, n: int, spread: str = "random",
    tile: tuple[int, int, int] = TILE,
) -> Comparison:  # fmt: skip
    """The gradient of the experts' matrices: each sums over its own rows."""
    torch.manual_seed(0)
    x = torch.randn(rows, m, device="cuda", dtype=HALF)
    y = torch.randn(rows, n, device="cuda", dtype=HALF)
    ends = ends_of(rows, experts, spread)
    out = torch.full((experts, m, n), float("nan"), device="cuda", dtype=HALF)
    launch = terms_kernel(tile).bind(x, y, ends, out)
    launch()
    worst, start = 0.0, 0
    for group, end in enumerate(ends.tolist()):
        wanted = x[start:end].double().T @ y[start:end].double()
        if end > start:
            worst = max(worst, relative_error(out[group], wanted))
        elif out[group].any():
            worst = float("inf")
        start = end
    peer = lambda: torch._grouped_mm(x.T, y, offs=ends)  # noqa: E731, SLF001
    ours, theirs = in_turn(launch, peer)
    name = f"own terms of {experts} groups, {spread}, {rows} rows, {m} x {n}, {tile[0]}x{tile[1]}"
    return Comparison(name, ours, theirs, worst, 2.0 * rows * m * n, "TFLOP/s")


def list_kernel(tile: tuple[int, int, int] = TILE) -> tw.TileKernel:
    """One product of a list."""

    def listed(a: Any, b: Any, c: Any) -> None:
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc: Any) -> Any:
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    listed.__annotations__ = {
        "a": tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        "b": tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        "c": tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    }
    rows, columns, terms = tile
    return tw.kernel([
        tw.WorkgroupConstraint(M, rows, 0), tw.WorkgroupConstraint(N, columns, 1),
        tw.TilingConstraint(K, terms),
    ])(listed)  # fmt: skip


LIST_ROWS = tuple(512 + 3584 * i // 15 for i in range(16))


def products(rows: Sequence[int], n: int, k: int, tile: tuple[int, int, int] = TILE) -> Comparison:
    """A list of products in one launch, each poisoned before it is checked against float64."""
    torch.manual_seed(0)
    a = [torch.randn(m, k, device="cuda", dtype=HALF) for m in rows]
    b = [torch.randn(n, k, device="cuda", dtype=HALF) / k**0.5 for _ in rows]
    c = [torch.full((m, n), float("nan"), device="cuda", dtype=HALF) for m in rows]
    launch = list_kernel(tile).bind_grouped(list(zip(a, b, c, strict=True)))
    launch()
    each = zip(a, b, c, strict=True)
    error = max(relative_error(z, x.double() @ y.double().T) for x, y, z in each)
    pairs = [(x, y.mT) for x, y in zip(a, b, strict=True)]
    peer = lambda: [torch.mm(x, y) for x, y in pairs]  # noqa: E731
    ours, theirs = in_turn(launch, peer)
    name = f"{len(rows)} products, {min(rows)} to {max(rows)} rows, {n} x {k}, {tile[0]}x{tile[1]}"
    return Comparison(name, ours, theirs, error, 2.0 * sum(rows) * n * k, "TFLOP/s")


def _error(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, ends: Sequence[int]) -> float:
    """The worst of any group's errors; all rows of all groups count."""
    worst, start = 0.0, 0
    for group, end in enumerate(ends):
        if end > start:
            wanted = x[start:end].double() @ w[group].double().T
            worst = max(worst, relative_error(y[start:end], wanted))
        start = end
    return worst


def cases() -> Iterator[Comparison]:
    yield product(65536, 128, 1536, 2048)
    yield product(65536, 128, 1536, 2048, order="KN")
    yield product(65536, 128, 1536, 2048, spread="even")
    yield product(65536, 8, 4096, 4096)
    yield product(8192, 128, 1536, 2048)
    yield product(8192, 512, 1536, 2048)
    yield of_terms(65536, 128, 2048, 1536)
    yield of_terms(65536, 8, 4096, 4096)
    yield products(LIST_ROWS, 2048, 2048)
    yield products(LIST_ROWS, 2048, 2048, tile=(128, 128, 64))
