"""Operations that move elements, against torch: views, slices, pads, joins, reshapes, constants."""

from __future__ import annotations

import pytest
from fusion_check import ALL, TORCH, check, define, sample, torch

from tilewright.fusion.definition import DataType

F = torch.nn.functional


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_permute_and_transpose(dtype) -> None:
    x = sample(dtype, (3, 4, 5))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.permute(a, [2, 0, 1]))
        fd.add_output(fd.ops.transpose(a, 0, -1))

    check(build, [x], (x.permute(2, 0, 1), x.transpose(0, -1)))


@pytest.mark.parametrize("size", [(1, 1), (33, 70), (64, 64), (1, 50)], ids=str)
def test_transpose_meets_the_original(size) -> None:
    x = sample(DataType.Float, size)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.exp(fd.ops.permute(a, [1, 0])))

    compiled = check(build, [x], torch.exp(x.T), kernels=1)
    if size == (33, 70):
        assert "transpose" in compiled.explain()


def test_a_square_beside_its_transpose() -> None:
    x = sample(DataType.Float, (20, 20))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(a + fd.ops.permute(a, [1, 0]))
        b = fd.ops.relu(a)
        fd.add_output(b - fd.ops.permute(b, [1, 0]))

    y = torch.relu(x)
    check(build, [x], (x + x.T, y - y.T))


def test_views() -> None:
    x = sample(DataType.Float, (3, 1, 4))

    def build(fd) -> None:
        a = fd.define_tensor([3, 1, 4])
        b = fd.ops.exp(a)
        fd.add_output(fd.ops.squeeze(b, [1]))
        fd.add_output(fd.ops.squeeze(b))
        fd.add_output(fd.ops.unsqueeze(b, -1))
        fd.add_output(fd.ops.expand(b, [2, -1, 5, 4]))
        fd.add_output(fd.ops.broadcast(b, [True, False, False, True, False]))
        fd.add_output(fd.ops.broadcast_in_dim(b, [3, 2, 6, 4], [0, 2, 3]))
        fd.add_output(a)

    y = torch.exp(x)
    expected = (
        y.squeeze(1), y.squeeze(), y.unsqueeze(-1), y.expand(2, 3, 5, 4),
        y[None, :, :, None, :], y[:, None].expand(3, 2, 6, 4).contiguous(), x,
    )  # fmt: skip
    check(build, [x], expected)


SLICES = [
    ([0, 0], [5, 30], None), ([1, 2], [4, 29], [1, 1]), ([0, 3], [5, 30], [2, 5]),
    ([-2, 0], [5, -1], [1, 1]), ([4, 29], [5, 30], [1, 1]), ([2, 0], [2, 30], [1, 1]),
    ([0, 0], [99, 7], [1, 3]),
]  # fmt: skip


@pytest.mark.parametrize(("starts", "ends", "strides"), SLICES, ids=str)
def test_slice(starts, ends, strides) -> None:
    x = sample(DataType.Float, (5, 30))
    steps = strides or [1, 1]
    part = tuple(slice(a, b, s) for a, b, s in zip(starts, ends, steps, strict=True))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.slice(a, starts, ends, strides) * 2.0)
        fd.add_output(fd.ops.slice(fd.ops.sin(a), starts, ends, strides))
        s = fd.ops.softmax(a, 1)
        fd.add_output(fd.ops.slice(s, starts, ends, strides))

    check(build, [x], (x[part] * 2, torch.sin(x)[part], torch.softmax(x, 1)[part]))


@pytest.mark.parametrize("widths", [[1, 2], [0, 0], [-1, 3], [2, -2, 1, 0], [1, 1, 1, 1], [-4, -1]],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Half, DataType.Int32], ids=str)
def test_pad(widths, dtype) -> None:
    x = sample(dtype, (4, 9))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.pad(a, widths, 3))
        fd.add_output(fd.ops.pad(fd.ops.relu(a), widths))
        fd.add_output(fd.ops.pad(fd.ops.sum(a, [1], keepdim=True), [1, 2]))

    total = x.sum(1, keepdim=True)
    expected = (F.pad(x, widths, value=3), F.pad(torch.relu(x), widths), F.pad(total, [1, 2]))
    check(build, [x], expected, tolerance=(1e-2, 1e-2) if dtype == DataType.Half else None)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(dim) -> None:
    sizes = [(3, 4), (3, 4), (3, 4)]
    sizes[1] = (2, 4) if dim == 0 else (3, 7)
    x, y, z = (sample(DataType.Float, s, seed=i) for i, s in enumerate(sizes))

    def build(fd) -> None:
        a, b, c = define(fd, x, y, z)
        fd.add_output(fd.ops.cat([a, b, c], dim))
        fd.add_output(fd.ops.cat([fd.ops.exp(a), fd.ops.softmax(b, 0)], dim) + 1.0)
        fd.add_output(fd.ops.stack([a, c], dim))

    expected = (
        torch.cat([x, y, z], dim), torch.cat([x.exp(), torch.softmax(y, 0)], dim) + 1,
        torch.stack([x, z], dim),
    )  # fmt: skip
    check(build, [x, y, z], expected)


def test_cat_of_types_empties_and_size_one() -> None:
    x, y, e = sample(DataType.Half, (2, 3)), sample(DataType.Float, (1, 3)), torch.empty(0, 3)
    void = torch.empty(0)

    def build(fd) -> None:
        a, b, c, d = define(fd, x, y, e, void)
        fd.add_output(fd.ops.cat([a, b], 0))
        fd.add_output(fd.ops.cat([c, b, c], 0))
        fd.add_output(fd.ops.cat([d, b], 0))
        fd.add_output(fd.ops.cat([b, b], 0))

    expected = (torch.cat([x, y]), y, torch.cat([void, y]), torch.cat([y, y]))
    check(build, [x, y, e, void], expected)


@pytest.mark.parametrize("dims", [[0], [1], [0, 1], -1], ids=str)
def test_flip(dims) -> None:
    x = sample(DataType.Float, (3, 6))
    listed = [dims] if isinstance(dims, int) else dims

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.flip(a, dims))
        fd.add_output(fd.ops.flip(fd.ops.cos(a), dims) + a)

    check(build, [x], (x.flip(listed), x.cos().flip(listed) + x))


RESHAPES = [
    ((6, 4), (24,)), ((24,), (2, 3, 4)), ((6, 4), (4, 6)), ((2, 6, 5), (12, 5)),
    ((2, 6, 5), (2, 30)), ((4, 1, 6), (2, 2, 6)), ((1, 1), ()), ((), (1, 1)), ((2, 3, 4), (3, 8)),
    ((0, 4), (2, 0)), ((6, 4), (-1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), RESHAPES, ids=str)
def test_reshape(old, new) -> None:
    x = sample(DataType.Float, old, special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.reshape(a, new) * 2.0)
        fd.add_output(fd.ops.reshape(fd.ops.exp(a), new))
        b = fd.ops.reshape(a + fd.ops.sum(a), new)
        fd.add_output(b)
        fd.add_output(fd.ops.reshape(b, old))

    y = x + x.sum()
    check(build, [x], (x.reshape(new) * 2, x.exp().reshape(new), y.reshape(new), y))


def test_reshape_of_strided_memory() -> None:
    x = sample(DataType.Float, (8, 6), special=False).T

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.reshape(a, [4, 12]) + 1.0)
        fd.add_output(fd.ops.reshape(a, [2, 3, 8]) + 1.0)

    check(build, [x], (x.reshape(4, 12) + 1, x.reshape(2, 3, 8) + 1))


def test_group_norm_by_reshapes() -> None:
    x, w = sample(DataType.Float, (2, 6, 5), special=False), sample(DataType.Float, (6,), seed=1)
    w = torch.nan_to_num(w)

    def build(fd) -> None:
        a, b = define(fd, x, w)
        g = fd.ops.reshape(a, [2, 3, 10])
        v, m = fd.ops.var_mean(g, [2], correction=0, keepdim=True)
        n = fd.ops.reshape((g - m) * fd.ops.rsqrt(v + 1e-5), [2, 6, 5])
        fd.add_output(n * fd.ops.broadcast_in_dim(b, [2, 6, 5], [1]))

    check(build, [x, w], F.group_norm(x, 3, w), tolerance=(1e-4, 1e-5))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_full_and_iota(dtype) -> None:
    kind = TORCH[dtype]

    def build(fd) -> None:
        fd.add_output(fd.ops.full([3, 5], 2, dtype))
        fd.add_output(fd.ops.zeros([4], dtype))
        fd.add_output(fd.ops.ones([], dtype))
        if dtype != DataType.Bool:
            fd.add_output(fd.ops.iota(11, 3, 2, dtype))
            fd.add_output(fd.ops.arange(7, dtype))

    fd_inputs: list = []
    expected = [
        torch.full((3, 5), 2, dtype=kind), torch.zeros(4, dtype=kind), torch.ones((), dtype=kind)
    ]  # fmt: skip
    if dtype != DataType.Bool:
        expected += [torch.arange(3, 25, 2).to(kind), torch.arange(7).to(kind)]
    from fusion_check import FusionDefinition

    found = FusionDefinition(build).execute(fd_inputs)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(torch.from_numpy(one.astype("f8")), other.double())


def test_select_and_narrow() -> None:
    x = sample(DataType.Float, (4, 5, 6))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.select(a, -2, 1))
        fd.add_output(fd.ops.narrow(a, 2, 1, 3))
        fd.add_output(fd.ops.full_like(a, 1.5))

    check(build, [x], (x.select(1, -2), x.narrow(2, 1, 3), torch.full_like(x, 1.5)))


def test_sizes_of_tensors_in_shapes() -> None:
    x = sample(DataType.Float, (4, 6))

    def build(fd) -> None:
        (a,) = define(fd, x)
        n = a.size(0) * a_columns
        fd.add_output(fd.ops.reshape(a, fd.define_vector([n, 1])))
        fd.add_output(fd.ops.broadcast_in_dim(fd.ops.sum(a, [0]), fd.ops.shape(a), [1]))

    a_columns = 6
    check(build, [x], (x.reshape(24, 1), x.sum(0).expand(4, 6)))
