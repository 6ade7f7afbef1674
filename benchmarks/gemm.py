"""Matrix products against the vendor's libraries: ``python -m benchmarks gemm``.

Each product is a plain tile program or fusion, whose plan the policy chooses. The table is
followed by a plot of its ratios, `gemm.svg` in the folder that OUT names, or in this one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import tilewright as tw
from benchmarks import grouped
from benchmarks.measure import Comparison, in_turn, relative_error
from benchmarks.plot import bars
from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion import DataType

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
HALF = torch.bfloat16
ORDERS = {  # the axes of a and b as they are stored; in cuBLAS's terms N is "as in a @ b"
    "NT": ((M, K), (N, K)),
    "NN": ((M, K), (K, N)),
    "TT": ((K, M), (N, K)),
    "TN": ((K, M), (K, N)),
}
SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (2048, 2048, 2048),
    (16384, 8192, 1280),
    (8192, 28672, 4096),
    (4096, 4096, 128),
    (128, 8192, 8192),
    (16, 8192, 8192),
)
DTYPES = {torch.float8_e4m3fn: tw.f8e4m3, torch.bfloat16: tw.bf16}


def kernel(order: str, dtype: torch.dtype = HALF) -> tw.TileKernel:
    """Load, multiply, accumulate, store."""
    lhs, rhs = ORDERS[order]

    def gemm(a: Any, b: Any, c: Any) -> None:
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc: Any) -> Any:
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    gemm.__annotations__ = {
        "a": tw.Memory[(*lhs, tw.GLOBAL, DTYPES[dtype])],
        "b": tw.Memory[(*rhs, tw.GLOBAL, DTYPES[dtype])],
        "c": tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    }
    return tw.kernel()(gemm)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=HALF)


def _rows(count: int) -> slice:
    """At most 1024 of so many rows: the reference is computed for them only."""
    return slice(0, None, max(1, count // 1024))


def product(shape: tuple[int, int, int], order: str = "NT") -> Comparison:
    """One product, poisoned before it is checked against float64."""
    m, n, k = shape
    sizes = {M: m, N: n, K: k}
    lhs, rhs = ORDERS[order]
    a, b = (_random(*(sizes[x] for x in axes)) for axes in (lhs, rhs))
    left, right = (a if lhs[0] == M else a.T), (b.T if rhs[0] == N else b)
    c = torch.full((m, n), float("nan"), device="cuda", dtype=HALF)
    launch = kernel(order).bind(a, b, c)
    launch()
    rows = _rows(m)
    error = relative_error(c[rows], left[rows].double() @ right.double())
    ours, peer = in_turn(launch, lambda: torch.matmul(left, right))
    return Comparison(f"{m} x {n} x {k} {order}", ours, peer, error, 2.0 * prod(shape), "TFLOP/s")


def fp8(size: int) -> Comparison:
    """An e4m3 product, to bf16, against cuBLAS with scales of one."""
    a, b = (_random(size, size).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    c = torch.full((size, size), float("nan"), device="cuda", dtype=HALF)
    launch = kernel("NT", torch.float8_e4m3fn).bind(a, b, c)
    launch()
    rows = _rows(size)
    error = relative_error(c[rows], a[rows].double() @ b.double().T)

    def peer() -> torch.Tensor:
        return torch._scaled_mm(a, b.T, one, one, out_dtype=HALF)  # noqa: SLF001

    ours, theirs = in_turn(launch, peer)
    return Comparison(f"fp8 {size}³ NT", ours, theirs, error, 2.0 * size**3, "TFLOP/s")


def _fused(
    name: str,
    build: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    peer: Callable[..., torch.Tensor],
    exact: Callable[..., torch.Tensor],
    work: float,
) -> Comparison:
    """A fusion against `peer`; `exact` computes some of its leading rows in float64."""
    with FusionDefinition() as fd:
        kinds = {HALF: DataType.BFloat16, torch.int32: DataType.Int32}
        tensors = [fd.define_tensor([-1] * x.dim(), dtype=kinds[x.dtype]) for x in inputs]
        fd.add_output(build(fd, *tensors))
    (found,) = fd.execute(inputs)
    wanted = exact(*inputs)
    error = relative_error(found[: len(wanted)], wanted)
    ours, theirs = in_turn(lambda: fd.execute(inputs), lambda: peer(*inputs))
    return Comparison(name, ours, theirs, error, work, "TFLOP/s")


def batched(count: int, size: int) -> Comparison:
    a, b = _random(count, size, size), _random(count, size, size)
    return _fused(
        f"{count} x {size}³ batched",
        lambda fd, x, w: fd.ops.matmul(x, w),
        [a, b],
        torch.bmm,
        lambda x, w: x[:1].double() @ w[:1].double(),
        2.0 * count * size**3,
    )


def epilogue(size: int) -> Comparison:
    """linear + bias + gelu + residual against inductor's best."""
    x, w, b = _random(size, size), _random(size, size) / size**0.5, _random(size)
    r = _random(size, size)

    def plain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b)) + r

    def exact(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return plain(x[:256].double(), w.double(), b.double(), r[:256].double())

    return _fused(
        f"linear + bias + gelu + residual {size}³",
        lambda fd, x, w, b, r: fd.ops.add(fd.ops.gelu(fd.ops.linear(x, w, b)), r),
        [x, w, b, r],
        torch.compile(plain, mode="max-autotune-no-cudagraphs"),
        exact,
        2.0 * size**3,
    )


def cases() -> Iterator[Comparison]:
    """The table; its plot is drawn when it ends, also of what there is where a case fails."""
    done: list[Comparison] = []
    try:
        for case in _cases():
            done.append(case)
            yield case
    finally:
        if done:
            _draw(done)


def _draw(done: Sequence[Comparison]) -> None:
    whole = prod(c.ratio for c in done) ** (1 / len(done))
    path = Path(os.environ.get("OUT") or Path(__file__).parent) / "gemm.svg"
    title = f"Speed over the vendor's libraries; geometric mean {whole:.3f}"
    path.write_text(bars(title, [c.name for c in done], [c.ratio for c in done]))
    print(f"geometric mean of the ratios {whole:.3f}, least {min(c.ratio for c in done):.3f}")


def _cases() -> Iterator[Comparison]:
    for shape in SHAPES:
        yield product(shape)
    for order in ("NN", "TN", "TT"):
        yield product((8192, 8192, 8192), order)
    yield batched(64, 2048)
    yield fp8(8192)
    yield grouped.product(65536, 128, 1536, 2048)
    yield epilogue(8192)
