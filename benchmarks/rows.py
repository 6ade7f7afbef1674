"""Kernels that move bytes, against torch: rows, columns, transposes and elementwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import tilewright as tw
from benchmarks.measure import Comparison, in_turn, relative_error

M, N = tw.sym.M, tw.sym.N
G = tw.GLOBAL


@tw.kernel([tw.WorkgroupConstraint(M, 1, 0)])
def softmax(x: tw.Memory[M, N, G, tw.bf16], y: tw.Memory[M, N, G, tw.bf16]):
    """Each row's exponentials over their sum."""
    v = tw.cast(tw.read(x), tw.f32)
    e = tw.exp(v - tw.max(v, dim=N))
    tw.write(tw.cast(e / tw.sum(e, dim=N), tw.bf16), y)


@tw.kernel([tw.WorkgroupConstraint(M, 1, 0)])
def rmsnorm(
    x: tw.Memory[M, N, G, tw.bf16], w: tw.Memory[N, G, tw.bf16], y: tw.Memory[M, N, G, tw.bf16]
):
    """Each row over its root mean square, times a weight."""
    v = tw.cast(tw.read(x), tw.f32)
    mean = tw.sum(v * v, dim=N) / tw.extent(N, tw.f32)
    scaled = v * tw.rsqrt(mean + 1e-6) * tw.cast(tw.read(w), tw.f32)
    tw.write(tw.cast(scaled, tw.bf16), y)


@tw.kernel([tw.WorkgroupConstraint(M, 64, 0), tw.WorkgroupConstraint(N, 64, 1)])
def transpose(x: tw.Memory[M, N, G, tw.bf16], y: tw.Memory[N, M, G, tw.bf16]):
    """The transposed matrix."""
    tw.write(tw.permute(tw.read(x), target_shape=[N, M]), y)


@tw.kernel([tw.WorkgroupConstraint(M, 1, 0)])
def row_sums(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, G, tw.f32]):
    """The sum of each row."""
    tw.write(tw.sum(tw.read(x), dim=N), y)


@tw.kernel([tw.WorkgroupConstraint(N, 32, 0)])
def column_sums(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[N, G, tw.f32]):
    """The sum of each column."""
    tw.write(tw.sum(tw.read(x), dim=M), y)


@tw.kernel([tw.WorkgroupConstraint(M, 1, 0), tw.WorkgroupConstraint(N, 4096, 1)])
def gelu(x: tw.Memory[M, N, G, tw.bf16], y: tw.Memory[M, N, G, tw.bf16]):
    """The Gaussian error linear unit."""
    v = tw.cast(tw.read(x), tw.f32)
    tw.write(tw.cast(v * 0.5 * (tw.erf(v * 0.7071067811865476) + 1.0), tw.bf16), y)


def _compare(
    name: str, ours: Callable[[], object], peer: Callable[[], torch.Tensor], out: torch.Tensor,
    wanted: torch.Tensor, moved: int,
) -> Comparison:  # fmt: skip
    out.fill_(float("nan"))
    ours()
    error = relative_error(out, wanted)
    mine, other = in_turn(ours, peer)
    return Comparison(name, mine, other, error, float(moved), "TB/s")


def cases() -> Iterator[Comparison]:
    """Bytes are counted once for each element read and written."""
    functional = torch.nn.functional
    for m, n in ((32768, 4096), (8192, 16384), (4096, 65536)):
        x = torch.randn(m, n, device="cuda").bfloat16()
        w = torch.randn(n, device="cuda").bfloat16()
        y = torch.empty_like(x)
        wide = x.float()
        yield _compare(
            f"softmax bf16 {m}x{n}", lambda x=x, y=y: softmax(x, y),
            lambda x=x: torch.softmax(x, 1), y, torch.softmax(wide, 1), 4 * m * n,
        )  # fmt: skip
        yield _compare(
            f"rmsnorm bf16 {m}x{n}", lambda x=x, y=y, w=w: rmsnorm(x, w, y),
            lambda x=x, w=w, n=n: functional.rms_norm(x, (n,), w, 1e-6), y,
            functional.rms_norm(wide, (n,), w.float(), 1e-6), 4 * m * n,
        )  # fmt: skip
    m, n = 16384, 16384
    x = torch.randn(m, n, device="cuda").bfloat16()
    y = torch.empty(n, m, device="cuda", dtype=torch.bfloat16)
    yield _compare(f"transpose bf16 {m}x{n}", lambda: transpose(x, y),
                   x.T.contiguous, y, x.T, 4 * m * n)  # fmt: skip
    yield _compare(f"gelu bf16 {m}x{n}", lambda: gelu(x, y), lambda: functional.gelu(x), y,
                   functional.gelu(x.float()), 4 * m * n)  # fmt: skip
    f = torch.randn(m, n, device="cuda")
    rows, columns = (torch.empty(s, device="cuda") for s in (m, n))
    yield _compare(f"row sums f32 {m}x{n}", lambda: row_sums(f, rows), lambda: f.sum(1), rows,
                   f.double().sum(1), 4 * m * n)  # fmt: skip
    yield _compare(f"column sums f32 {m}x{n}", lambda: column_sums(f, columns),
                   lambda: f.sum(0), columns, f.double().sum(0), 4 * m * n)  # fmt: skip
