"""Sums over a batch of products: one loop that scales each step's product and adds it up."""

from __future__ import annotations

import pytest
from fusion_check import check, define, sample, torch

from tilewright.fusion.definition import DataType
from tilewright.graph import ops as graph_ops


def product(fd, x, y, m, n, steps, terms):
    """``[m, steps, terms]`` by ``[n, steps, terms]``, in single precision, for each step."""
    shape = [m, n, steps, terms]
    x = fd.ops.broadcast_in_dim(fd.ops.cast(x, DataType.Float), shape, [0, 2, 3])
    y = fd.ops.broadcast_in_dim(fd.ops.cast(y, DataType.Float), shape, [1, 2, 3])
    return fd.ops.sum(fd.ops.mul(x, y), [-1])


def loops(compiled) -> list[graph_ops.Iterate]:
    (kernel,) = compiled.kernels
    return [op for op in kernel.graph.body if isinstance(op, graph_ops.Iterate)]


def scaled(a, b, sa, sb):
    """What scales for each row and block of terms mean."""
    m, n, steps = a.shape[0], b.shape[0], sa.shape[1]
    x = a.float().reshape(m, steps, -1) * sa[..., None]
    y = b.float().reshape(n, steps, -1) * sb[..., None]
    return x.reshape(m, -1) @ y.reshape(n, -1).T


@pytest.mark.parametrize(
    ("kind", "torch_kind"),
    [(DataType.Float8_e4m3fn, torch.float8_e4m3fn), (DataType.BFloat16, torch.bfloat16)],
    ids=["fp8", "bf16"],
)
@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_scales_of_blocks(kind, torch_kind, target) -> None:
    m, n, steps, terms = 96, 64, 3, 128
    if target == "gfx942" and kind == DataType.Float8_e4m3fn:
        pytest.skip("another fp8 format")
    torch.manual_seed(0)
    a = torch.randint(-4, 5, (m, steps * terms)).to(torch_kind)
    b = torch.randint(-4, 5, (n, steps * terms)).to(torch_kind)
    sa, sb = 2.0 ** torch.randint(-2, 3, (m, steps)), 2.0 ** torch.randint(-2, 3, (n, steps))

    def build(fd) -> None:
        x, y, s, t = define(fd, a, b, sa, sb)
        x, y = fd.ops.reshape(x, [m, steps, -1]), fd.ops.reshape(y, [n, steps, -1])
        found = product(fd, x, y, m, n, steps, terms)
        rows = fd.ops.broadcast_in_dim(s, [m, n, steps], [0, 2])
        columns = fd.ops.broadcast_in_dim(t, [m, n, steps], [1, 2])
        total = fd.ops.sum(fd.ops.mul(found, fd.ops.mul(rows, columns)), [-1])
        fd.add_output(fd.ops.cast(total, DataType.BFloat16))

    wanted = scaled(a, b, sa, sb).to(torch.bfloat16)
    compiled = check(build, [a, b, sa, sb], wanted, kernels=1, tolerance=(0, 0), target=target)
    (loop,) = loops(compiled)
    assert sum(isinstance(op, graph_ops.Contract) for op in loop.body) == 1
    assert (compiled.kernels[0].plan.roles is not None) == (target == "sm_90a")


def test_an_epilogue_follows_the_sum() -> None:
    m, n, steps, terms = 64, 64, 2, 64
    a, b = (
        sample(DataType.Half, (m, steps, terms), special=False),
        sample(DataType.Half, (n, steps, terms), 1, special=False),
    )
    bias = sample(DataType.Float, (n,), 2, special=False)

    def build(fd) -> None:
        x, y, z = define(fd, a, b, bias)
        total = fd.ops.sum(product(fd, x, y, m, n, steps, terms), [-1])
        z = fd.ops.broadcast_in_dim(z, [m, n], [1])
        fd.add_output(fd.ops.relu(fd.ops.add(total, z)))

    wanted = torch.einsum("msk,nsk->mn", a.float(), b.float()) + bias
    compiled = check(build, [a, b, bias], wanted.relu(), kernels=1, tolerance=(1e-4, 1e-3),
                     target="sm_90a")  # fmt: skip
    assert len(loops(compiled)) == 1


def test_a_product_that_others_need_is_summed_apart() -> None:
    """What a step computes is written as well: no loop may swallow it."""
    m, n, steps, terms = 32, 32, 2, 32
    a, b = (
        sample(DataType.Half, (m, steps, terms), special=False),
        sample(DataType.Half, (n, steps, terms), 1, special=False),
    )

    def build(fd) -> None:
        x, y = define(fd, a, b)
        found = product(fd, x, y, m, n, steps, terms)
        fd.add_output(found)
        fd.add_output(fd.ops.sum(found, [-1]))

    wanted = torch.einsum("msk,nsk->mns", a.float(), b.float())
    check(build, [a, b], [wanted, wanted.sum(-1)], kernels=2, tolerance=(1e-4, 1e-3))
