"""Building definitions: text that rebuilds them, sizes left open, scalars, aliases, layouts."""

from __future__ import annotations

import numpy as np
import pytest
from fusion_check import FusionDefinition, all_proved, check, define, rebuilt, sample, torch

from tilewright.fusion.definition import DataType


def test_the_text_rebuilds_the_definition() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[4, -1], contiguity=[True, None], dtype=DataType.Half)
        s = fd.define_scalar(dtype=DataType.Double)
        one = fd.define_scalar(1.5)
        y = fd.ops.where(x > 0.25, x * s, float("inf")) + one
        v, _ = fd.ops.var_mean(y, [1], keepdim=True)
        z = fd.ops.reshape(y, fd.define_vector([x.size(1) * 2, (x.size(0) + 4) // 4]))
        fd.add_output(z, stride_order=[0, 1])
        fd.add_output(fd.ops.cast(v, DataType.Half))
    text = repr(rebuilt(fd))
    assert (
        text
        == """\
def fusion(fd: FusionDefinition) -> None:
    T0 = fd.define_tensor(shape=[4, -1], contiguity=[True, None], dtype=DataType.Half)
    S1 = fd.define_scalar(None, dtype=DataType.Double)
    S2 = fd.define_scalar(1.5, dtype=DataType.Double)
    T3 = fd.ops.gt(a=T0, b=0.25)
    T4 = fd.ops.mul(a=T0, b=S1)
    T5 = fd.ops.where(condition=T3, a=T4, b=float("inf"))
    T6 = fd.ops.add(a=T5, b=S2)
    T7, T8 = fd.ops.var_mean(x=T6, dims=[1], keepdim=True)
    T9 = fd.ops.reshape(x=T6, new_shape=[T0.size(1) * 2, ((T0.size(0)) // 4) + 1])
    fd.add_output(T9, stride_order=[0, 1])
    T10 = fd.ops.cast(x=T7, dtype=DataType.Half)
    fd.add_output(T10)
"""
    )


def test_open_sizes_serve_every_call() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1])
        fd.add_output(fd.ops.sum(x * 2.0, [1]))
        fd.add_output(fd.ops.broadcast_in_dim(fd.ops.mean(x, [0]), x.shape(), [1]))
    for shape in ((3, 5), (1, 7), (4, 1), (0, 3), (64, 33)):
        a = torch.randn(shape)
        total, mean = fd.execute([a])
        torch.testing.assert_close(total, (a * 2).sum(1))
        torch.testing.assert_close(mean, a.mean(0).expand(shape), equal_nan=True)


def test_numpy_arrays_in_and_out() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], dtype=DataType.BFloat16)
        fd.add_output(fd.ops.cast(x, DataType.Float) + 1.0)
    import ml_dtypes

    array = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16)
    (found,) = fd.execute([array])
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, array.astype(np.float32) + 1)


def test_a_definition_by_class() -> None:
    class Doubled(FusionDefinition):
        def definition(self) -> None:
            x = self.define_tensor(shape=[-1])
            self.add_output(x * 2.0)

    (y,) = Doubled().execute([torch.arange(5.0)])
    assert torch.equal(y, torch.arange(5.0) * 2)


def test_alias_writes_the_input() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1])
        m = fd.define_tensor(shape=[-1])
        fd.add_output(fd.ops.relu(x) * 2.0)
        fd.add_output(m * 0.9 + fd.ops.mean(x, [0]) * 0.1, m)
        fd.add_output(fd.ops.permute(x, [1, 0]), alias_input=x)
    a, b = torch.randn(6, 6), torch.randn(6)
    before, running = a.clone(), b.clone()
    results = rebuilt(fd).execute([a, b])
    assert len(results) == 1
    torch.testing.assert_close(results[0], torch.relu(before) * 2)
    torch.testing.assert_close(b, running * 0.9 + before.mean(0) * 0.1)
    assert torch.equal(a, before.T)


@pytest.mark.parametrize("order", [[2, 1, 0], [0, 1, 2], [1, 2, 0], [2, 0, 1]], ids=str)
def test_stride_order_of_results(order) -> None:
    x = sample(DataType.Float, (3, 4, 5))
    with FusionDefinition() as fd:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.exp(a), stride_order=order)
    (y,) = rebuilt(fd).execute([x])
    torch.testing.assert_close(y, torch.exp(x), equal_nan=True)
    ranked = sorted(range(3), key=lambda d: y.stride()[d])
    assert [ranked.index(d) for d in range(3)] == order
    assert all_proved(fd.compile([x]))


def test_from_tensor() -> None:
    x = torch.randn(4, 1, 6).half().permute(2, 1, 0)
    fd = FusionDefinition()
    with fd:
        t = fd.from_tensor(x)
        fd.add_output(t + t)
    assert "shape=[-1, 1, -1]" in repr(fd)
    assert "dtype=DataType.Half" in repr(fd)
    assert "stride_order=[0, 2, 1]" in repr(fd)
    (y,) = fd.execute([x])
    assert torch.equal(y, x + x)
    bigger = torch.randn(5, 1, 3).half().permute(2, 1, 0)
    assert torch.equal(fd.execute([bigger])[0], bigger + bigger)


def test_sizes_and_strides_by_example() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(sizes=[3, 4], strides=[1, 3])
        fd.add_output(fd.ops.neg(x))
    a = torch.randn(4, 3).T
    assert torch.equal(rebuilt(fd).execute([a])[0], -a)
    assert "stride_order=[0, 1]" in repr(fd)


def test_scalars() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], dtype=DataType.Int32)
        a = fd.define_scalar(dtype=DataType.Double)
        n = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(x * n)
        fd.add_output(x * a)
        fd.add_output(x + (a * 2.0 + n))
        fd.add_output(fd.ops.full([3], n * n, DataType.Int))
    t = torch.arange(4, dtype=torch.int32)
    found = rebuilt(fd).execute([t, 1.5, 7])
    expected = [t * 7, t * 1.5, t + (1.5 * 2 + 7), torch.full((3,), 49)]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)


def test_one_value_as_several_outputs() -> None:
    x = sample(DataType.Float, (3, 4))

    def build(fd) -> None:
        (a,) = define(fd, x)
        y = fd.ops.sin(a)
        fd.add_output(y)
        fd.add_output(y)
        fd.add_output(a)

    check(build, [x], (torch.sin(x), torch.sin(x), x))


def test_the_cache_tells_layouts_apart() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1])
        fd.add_output(x + 1.0)
    a = torch.randn(8, 8)
    for each in (a, a.T, a[:4], a.expand(8, 8), torch.randn(65)[1:].view(8, 8)):
        assert torch.equal(fd.execute([each])[0], each + 1)
