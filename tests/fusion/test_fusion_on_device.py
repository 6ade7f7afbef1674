"""Fusions on a device, on tensors of torch, at sizes that a simulator would take long for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fusion_check import FusionDefinition, define, same, sample, torch

from tilewright.fusion.definition import DataType
from tilewright.poly.results import Refuted
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

F = torch.nn.functional
H, B, S = DataType.Half, DataType.BFloat16, DataType.Float
Run = Callable[..., None]


@pytest.fixture(params=["compiled", pytest.param("on the device", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a fusion on the device; without one, all of it is compiled and proved."""
    return _compiled if request.param == "compiled" else _run


def _compiled(build, inputs, expected, tolerance=(0.0, 0.0)) -> None:
    with FusionDefinition() as fd:
        build(fd, *define(fd, *inputs))
    for kernel in fd.compile(inputs, target="sm_90a").kernels:
        assert not any(isinstance(o.result, Refuted) for o in kernel.proofs)
        assert compile_source(kernel.source, SM_90A)


def _run(build, inputs, expected, tolerance=(2e-2, 2e-2)) -> None:
    with FusionDefinition() as fd:
        build(fd, *define(fd, *inputs))
    found = fd.execute([x.cuda() for x in inputs])
    for one, other in zip(found, expected(*(x.cuda() for x in inputs)), strict=True):
        assert one.is_cuda
        same(one, other, tolerance)


def data(dtype, *shapes):
    return [sample(dtype, s, i, special=False) for i, s in enumerate(shapes)]


def test_pointwise(run: Run) -> None:
    def build(fd, x, b) -> None:
        fd.add_output(fd.ops.gelu(x + b))
        fd.add_output(fd.ops.log1p(fd.ops.exp(fd.ops.sin(x))))

    run(build, data(B, (1000, 777), (777,)),
        lambda x, b: (F.gelu(x + b), x.sin().exp().log1p()))  # fmt: skip


@pytest.mark.parametrize("shape", [(64, 4096), (3, 70001), (2048, 33)], ids=str)
def test_normalisation(run: Run, shape) -> None:
    def build(fd, x, w) -> None:
        fd.add_output(fd.ops.softmax(x, 1))
        fd.add_output(fd.ops.layer_norm(x, w))

    run(build, data(H, shape, shape[1:]),
        lambda x, w: (torch.softmax(x, 1), F.layer_norm(x, shape[1:], w)))  # fmt: skip


@pytest.mark.parametrize("shape", [(1024, 1024), (1, 1 << 20), (1 << 18, 3)], ids=str)
def test_reductions(run: Run, shape) -> None:
    def build(fd, x) -> None:
        fd.add_output(fd.ops.sum(x))
        fd.add_output(fd.ops.amax(x, [0]))
        fd.add_output(fd.ops.mean(x, [1]))
        for each in fd.ops.var_mean(x):
            fd.add_output(each)

    run(build, data(S, shape), lambda x: (
        x.sum(), x.amax(0), x.mean(1), *torch.var_mean(x)), tolerance=(1e-4, 1e-2))  # fmt: skip


def test_movement(run: Run) -> None:
    def build(fd, x, y) -> None:
        fd.add_output(fd.ops.permute(x, [1, 0]) * 2.0)
        fd.add_output(fd.ops.cat([fd.ops.relu(x), y], 1))
        fd.add_output(fd.ops.pad(x, [3, -5, 1, 0], 1.0))
        fd.add_output(fd.ops.flip(fd.ops.slice(x, [1, 2], [400, 700], [2, 3]), [0, 1]))
        fd.add_output(fd.ops.reshape(fd.ops.permute(x, [1, 0]), [500, 777 * 2]))

    run(build, data(S, (1000, 777), (1000, 50)), lambda x, y: (
        x.T * 2, torch.cat([x.relu(), y], 1), F.pad(x, [3, -5, 1, 0], value=1.0),
        x[1:400:2, 2:700:3].flip(0, 1), x.T.reshape(500, 777 * 2),
    ), tolerance=(1e-6, 1e-6))  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), [(1024, 1024, 512), (1000, 770, 300), (1, 4096, 4096)])
def test_linear(run: Run, m, n, k) -> None:
    def build(fd, x, w, b, r) -> None:
        fd.add_output(fd.ops.gelu(fd.ops.linear(x, w, b)) + r)

    run(build, data(B, (m, k), (n, k), (n,), (m, n)),
        lambda x, w, b, r: (F.gelu(F.linear(x, w, b)) + r,), tolerance=(2e-2, 0.5))  # fmt: skip


def test_batched_matmul_and_softmax(run: Run) -> None:
    def build(fd, q, k, v) -> None:
        s = fd.ops.softmax(fd.ops.matmul(q, fd.ops.transpose(k)) * 0.1, -1)
        fd.add_output(fd.ops.matmul(s, v))

    run(build, data(H, (8, 300, 64), (8, 200, 64), (8, 200, 64)),
        lambda q, k, v: (torch.softmax(q @ k.mT * 0.1, -1) @ v,))  # fmt: skip


@pytest.mark.gpu
def test_alias_on_a_device() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.softmax(x, 1), x)
    a = torch.randn(300, 500).cuda()
    expected = torch.softmax(a, 1)
    assert fd.execute([a]) == []
    torch.testing.assert_close(a, expected)


def test_reads_at_data_and_running_sums(run: Run) -> None:
    def build(fd, table, at, x) -> None:
        fd.add_output(fd.ops.embedding(at, table))
        fd.add_output(fd.ops.gather(x, fd.ops.unsqueeze(at, 1), 1))
        fd.add_output(fd.ops.cumsum(x, 1))

    table, x = data(S, (1000, 128), (300, 1500))
    at = torch.randint(0, 1000, (300,))

    def expected(t, i, x):
        return F.embedding(i, t), x.gather(1, i[:, None]), x.cumsum(1)

    run(build, [table, at, x], expected, tolerance=(1e-4, 1e-3))
