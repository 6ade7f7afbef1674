"""Reductions and statistics against torch, over any dimensions, also empty and of size 1."""

from __future__ import annotations

import pytest
from fusion_check import ALL, FLOATS, INTEGERS, TORCH, check, define, sample, torch

from tilewright.fusion.definition import DataType

F = torch.nn.functional
DIMS = [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2], [-1], None]


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_dimensions(dims, keepdim) -> None:
    x = sample(DataType.Float, (4, 5, 33), special=False)
    over = dims or [0, 1, 2]

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(a, dims, keepdim))
        fd.add_output(fd.ops.max(a, dims, keepdim))
        fd.add_output(fd.ops.mean(a, dims, keepdim))

    expected = (x.sum(over, keepdim), x.amax(over, keepdim), x.mean(over, keepdim))
    check(build, [x], expected, tolerance=(1e-5, 1e-5), kernels=1)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(5, 40), (3, 1), (1, 7), (7,)], ids=str)
def test_types(dtype, shape) -> None:
    x = sample(dtype, shape, special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(a, [-1]))
        fd.add_output(fd.ops.amin(a, [-1]))
        fd.add_output(fd.ops.amax(a, [0]))
        fd.add_output(fd.ops.any(a, [-1]))
        fd.add_output(fd.ops.all(a, [-1], keepdim=True))

    expected = (x.sum(-1), x.amin(-1), x.amax(0), x.any(-1), x.all(-1, keepdim=True))
    check(build, [x], expected)


@pytest.mark.parametrize("dtype", [DataType.Double, DataType.Float, *INTEGERS], ids=str)
def test_products(dtype) -> None:
    x = sample(dtype, (3, 6), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.prod(a, [1]))
        fd.add_output(fd.ops.prod(a))

    check(build, [x], (x.prod(1), x.prod()), tolerance=(1e-5, 0))


def test_nan_and_infinities_in_reductions() -> None:
    x = sample(DataType.Float, (4, 20))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.max(a, [1]))
        fd.add_output(fd.ops.min(a, [1]))
        fd.add_output(fd.ops.sum(a, [1]))

    check(build, [x], (x.amax(1), x.amin(1), x.sum(1)), tolerance=(1e-5, 1e-5))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("correction", [0, 1, 3])
@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
def test_variance(dtype, correction, dims) -> None:
    x = sample(dtype, (7, 12), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        v, m = fd.ops.var_mean(a, dims, correction)
        fd.add_output(v)
        fd.add_output(m)
        fd.add_output(fd.ops.std(a, dims, correction, keepdim=True))
        for each in fd.ops.welford(a, dims):
            fd.add_output(each)

    count = x.numel() // (1 if len(dims) == 2 else x.shape[1 - dims[0]])
    mean = x.double().mean(dims)
    squares = (x.double().var(dims, correction=0) * count).to(x.dtype)
    expected = (
        *torch.var_mean(x, dims, correction=correction),
        x.std(dims, correction=correction, keepdim=True), mean.to(x.dtype), squares,
        torch.full_like(mean, count, dtype=torch.int64),
    )  # fmt: skip
    loose = (1e-2, 1e-2) if x.dtype.itemsize == 2 else (1e-5, 1e-5)
    check(build, [x], expected, tolerance=loose)


@pytest.mark.parametrize(("shape", "dims"), [((0, 4), [0]), ((0, 4), [1]), ((3, 0), [0, 1]),
                                             ((2, 0, 3), [1])], ids=str)  # fmt: skip
def test_empty(shape, dims) -> None:
    """Nothing is launched for what has no elements; sums over nothing are the identity."""
    x = torch.empty(shape)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(a, dims))
        fd.add_output(fd.ops.mean(a, dims) + 1.0)
        fd.add_output(fd.ops.any(a, dims))
        fd.add_output(fd.ops.all(a, dims))
        fd.add_output(a * 2.0)

    check(build, [x], (x.sum(dims), x.mean(dims) + 1, _over(x, dims, torch.any),
                       _over(x, dims, torch.all), x))  # fmt: skip


def _over(x, dims, function):
    for dim in sorted(dims, reverse=True):
        x = function(x, dim)
    return x


def test_sum_in_a_given_type() -> None:
    x = sample(DataType.Half, (4, 30), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(a, [1], dtype=DataType.Float))
        fd.add_output(fd.ops.sum(a, [1], dtype=DataType.Double))

    check(build, [x], (x.sum(1, dtype=torch.float32), x.sum(1, dtype=torch.float64)),
          tolerance=(1e-5, 1e-5))  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(3, 40), (2, 1), (1, 3000), (5, 257)], ids=str)
def test_normalisations_are_one_kernel(dtype, shape) -> None:
    x = sample(dtype, shape, special=False)
    w, b = sample(dtype, shape[1:], 1, special=False), sample(dtype, shape[1:], 2, special=False)
    wide = torch.float64

    def build(fd) -> None:
        a, g, h = define(fd, x, w, b)
        fd.add_output(fd.ops.layer_norm(a, g, h))
        fd.add_output(fd.ops.rms_norm(a, g, 1e-3))
        fd.add_output(fd.ops.softmax(a, 1))

    expected = [
        F.layer_norm(x.to(wide), shape[1:], w.to(wide), b.to(wide)),
        F.rms_norm(x.to(wide), shape[1:], w.to(wide), 1e-3), torch.softmax(x.to(wide), 1),
    ]  # fmt: skip
    check(build, [x, w, b], [e.to(TORCH[dtype]) for e in expected], kernels=1,
          tolerance=None if TORCH[dtype].itemsize == 2 else (1e-5, 1e-5))  # fmt: skip


def test_normalisation_across_memory() -> None:
    x = sample(DataType.Float, (50, 70), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        v, m = fd.ops.var_mean(a, [0], correction=0, keepdim=True)
        fd.add_output((a - m) * fd.ops.rsqrt(v + 1e-5))

    v, m = torch.var_mean(x, 0, correction=0, keepdim=True)
    compiled = check(build, [x], (x - m) * torch.rsqrt(v + 1e-5), kernels=1, tolerance=(1e-4, 1e-5))
    assert "across memory" in compiled.explain()


def test_sum_of_an_expanded_dimension_counts_it() -> None:
    x = sample(DataType.Float, (3, 1), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(fd.ops.expand(a, [3, 5]), [1]))
        fd.add_output(fd.ops.prod(fd.ops.expand(fd.ops.exp(a), [3, 4]), [1]))

    y = x.expand(3, 5)
    check(build, [x], (y.sum(1), x.exp().expand(3, 4).prod(1)))
