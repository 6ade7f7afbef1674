"""Reads at data and running sums against torch."""

from __future__ import annotations

import pytest
from fusion_check import ALL, FLOATS, INTEGERS, check, define, sample, torch

from tilewright.fusion.definition import DataType

INDICES = [DataType.Int, DataType.Int32]


def places(limit: int, shape, dtype=DataType.Int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, limit, shape, generator=generator)
    return found if dtype == DataType.Int else found.int()


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select(dtype, dim) -> None:
    x = sample(dtype, (5, 6, 7))
    i = places(x.shape[dim], (4,))

    def build(fd) -> None:
        a, at = define(fd, x, i)
        fd.add_output(fd.ops.index_select(a, at, dim))

    check(build, [x, i], x.index_select(dim, i), kernels=1)


@pytest.mark.parametrize("kind", INDICES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gather(kind, dim) -> None:
    x = sample(DataType.Float, (5, 6, 7))
    shape = [3, 4, 5]
    shape[dim] = 9
    i = places(x.shape[dim], shape, kind)

    def build(fd) -> None:
        a, at = define(fd, x, i)
        fd.add_output(fd.ops.gather(a, at, dim))
        fd.add_output(fd.ops.gather(fd.ops.exp(a), at, dim) * 2.0)

    long = i.long()
    check(build, [x, i], (x.gather(dim, long), x.exp().gather(dim, long) * 2))


def test_take_along_axis_broadcasts() -> None:
    x, i = sample(DataType.Float, (5, 1, 7)), places(7, (1, 4, 3))

    def build(fd) -> None:
        a, at = define(fd, x, i)
        fd.add_output(fd.ops.take_along_axis(a, at, 2))

    check(build, [x, i], torch.take_along_dim(x, i, 2))


def test_embedding_with_an_epilogue() -> None:
    table, i = sample(DataType.Half, (50, 16), special=False), places(50, (3, 5))
    p = sample(DataType.Half, (5, 16), 1, special=False)

    def build(fd) -> None:
        w, at, q = define(fd, table, i, p)
        fd.add_output(fd.ops.rms_norm(fd.ops.embedding(at, w) + q))

    x = (table[i] + p).float()
    expected = (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)).half()
    check(build, [table, i, p], expected, kernels=1)


def test_a_place_that_is_data() -> None:
    x, i = sample(DataType.Float, (5, 6)), torch.tensor(3)

    def build(fd) -> None:
        a, at = define(fd, x, i)
        n = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.select(a, at, 0))
        fd.add_output(fd.ops.select(a, n, 1))
        fd.add_output(fd.ops.index_select(a, at, 1))

    check(build, [x, i, 2], (x[3], x[:, 2], x[:, 3:4]))


def test_what_is_gathered_from_or_with_is_computed() -> None:
    x = sample(DataType.Float, (6, 8), special=False)
    i = places(4, (6, 3))

    def build(fd) -> None:
        a, at = define(fd, x, i)
        s = fd.ops.softmax(a, 1)
        fd.add_output(fd.ops.gather(s, at * 2, 1))
        fd.add_output(fd.ops.index_select(fd.ops.matmul(a, fd.ops.transpose(a)),
                                          fd.ops.sum(at, [1]) % 6, 0))  # fmt: skip
        fd.add_output(fd.ops.flip(fd.ops.gather(a, at, 1), [0]))

    expected = (
        torch.softmax(x, 1).gather(1, i * 2), (x @ x.T).index_select(0, i.sum(1) % 6),
        x.gather(1, i).flip(0),
    )  # fmt: skip
    check(build, [x, i], expected, tolerance=(1e-4, 1e-4))


def test_an_index_out_of_range_gives_zero() -> None:
    x, i = torch.ones(4), torch.tensor([0, 7, -1, 3])

    def build(fd) -> None:
        a, at = define(fd, x, i)
        fd.add_output(fd.ops.index_select(a, at, 0))

    check(build, [x, i], torch.tensor([1.0, 0, 0, 1]))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 1, 3), (0, 2, 3)], ids=str)
def test_running_sums(dim, shape) -> None:
    x = sample(DataType.Float, shape, special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.cumsum(a, dim))
        fd.add_output(fd.ops.cumprod(a, dim))

    check(build, [x], (x.cumsum(dim), x.cumprod(dim)), tolerance=(1e-5, 1e-5))


@pytest.mark.parametrize("size", [64, 65, 100, 500, 1025])
def test_long_running_sums(size) -> None:
    x = sample(DataType.Double, (2, size), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.cumsum(a, 1))
        fd.add_output(fd.ops.cumsum(fd.ops.exp(fd.ops.neg(fd.ops.abs(a))), -1) * 2.0)

    expected = (x.cumsum(1), torch.exp(-x.abs()).cumsum(1) * 2)
    check(build, [x], expected, tolerance=(1e-10, 1e-10))


@pytest.mark.parametrize(("shape", "dim"), [((2, 9000), 1), ((3000, 3), 0)], ids=str)
def test_running_sums_of_many_steps(shape, dim) -> None:
    x = sample(DataType.Float, shape, special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        s = fd.ops.cumsum(a, dim)
        fd.add_output(s)
        fd.add_output(s / fd.ops.sum(fd.ops.abs(a), [dim], keepdim=True))

    s = x.double().cumsum(dim)
    expected = (s.float(), (s / x.double().abs().sum(dim, keepdim=True)).float())
    check(build, [x], expected, tolerance=(1e-3, 1e-2))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, DataType.Bool], ids=str)
def test_types_of_running_sums(dtype) -> None:
    x = sample(dtype, (20,), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.cumsum(a, 0))

    loose = (1e-2, 5e-2) if x.dtype.is_floating_point and x.dtype.itemsize == 2 else None
    check(build, [x], x.cumsum(0), tolerance=loose)


def test_nan_and_infinity_run_on() -> None:
    x = torch.tensor([1.0, float("inf"), 2.0, float("nan"), 3.0])

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.cumsum(a, 0))

    check(build, [x], x.cumsum(0))
