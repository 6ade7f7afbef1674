"""What follows the loop of a product with warp roles: scales, several outputs, reductions."""

from __future__ import annotations

import numpy as np
import pytest
from role_programs import G, K, M, N, assert_close, poison, tiles, whole, wide, with_roles

import tilewright as tw


@pytest.mark.parametrize("operand", [tw.f8e4m3, tw.f8e5m2])
def test_a_scale_of_each_tensor(operand: tw.DType) -> None:
    """One as a tensor of no axes, one as a number."""

    @tw.kernel(tiles(128, 128, 128))
    def scaled(
        a: tw.Memory[M, K, G, operand],
        b: tw.Memory[N, K, G, operand],
        sa: tw.Memory[G, tw.f32],
        sb: tw.f32,
        c: tw.Memory[M, N, G, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total * tw.read(sa) * sb, tw.bf16), c)

    m, n, k = 200, 256, 256
    a, b, c = whole((m, k), operand, 1), whole((n, k), operand, 2), poison((m, n), tw.bf16)
    with_roles(scaled, M=m, N=n, K=k)(a, b, np.array(0.25, np.float32), 0.5, c)
    assert (c == (wide(a) @ wide(b).T / 8).astype(c.dtype)).all()


def test_a_scale_in_a_tensor_of_one_element() -> None:
    one = tw.sym.ONE

    @tw.kernel(tiles(64, 64, 128))
    def scaled(
        a: tw.Memory[M, K, G, tw.f8e4m3],
        b: tw.Memory[N, K, G, tw.f8e4m3],
        s: tw.Memory[one, G, tw.f32],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total * tw.sum(tw.read(s), dim=one), c)

    m, n, k = 64, 64, 128
    a, b, c = whole((m, k), tw.f8e4m3, 1), whole((n, k), tw.f8e4m3, 2), poison((m, n), tw.f32)
    with_roles(scaled, M=m, N=n, K=k, ONE=1)(a, b, np.array([0.5], np.float32), c)
    assert (c == wide(a) @ wide(b).T / 2).all()


def test_scales_of_rows_and_columns_of_whole_numbers() -> None:
    @tw.kernel(tiles(128, 128, 128))
    def scaled(
        a: tw.Memory[M, K, G, tw.i8],
        b: tw.Memory[N, K, G, tw.i8],
        sa: tw.Memory[M, G, tw.f32],
        sb: tw.Memory[N, G, tw.f32],
        c: tw.Memory[M, N, G, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.i32](0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        scale = tw.cast(total, tw.f32) * tw.read(sa) * tw.read(sb)
        tw.write(tw.cast(scale, tw.bf16), c)

    m, n, k = 128, 256, 128
    random = np.random.default_rng(0)
    a, b = whole((m, k), tw.i8, 1, 100), whole((n, k), tw.i8, 2, 100)
    sa, sb = random.random(m, np.float32), random.random(n, np.float32)
    c = poison((m, n), tw.bf16)
    with_roles(scaled, M=m, N=n, K=k)(a, b, sa, sb, c)
    assert_close(c, wide(a) @ wide(b).T * sa[:, None] * sb, 2**-8)


def test_several_outputs_of_one_sum() -> None:
    """Two types, a turned one, and one that something is added to."""

    @tw.kernel(tiles(128, 128, 64))
    def outputs(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        d: tw.Memory[M, N, G, tw.bf16],
        narrow: tw.Memory[M, N, G, tw.bf16],
        exact: tw.Memory[M, N, G, tw.f32],
        positive: tw.Memory[M, N, G, tw.bf16],
        turned: tw.Memory[N, M, G, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        rounded = tw.cast(total, tw.bf16)
        tw.write(rounded, narrow)
        tw.write(total, exact)
        tw.write(tw.maximum(rounded + tw.read(d), 0.0), positive)
        tw.write(tw.permute(rounded, [N, M]), turned)

    m, n, k = 200, 136, 128
    a, b, d = whole((m, k), tw.bf16, 1), whole((n, k), tw.bf16, 2), whole((m, n), tw.bf16, 3)
    found = [poison((m, n), tw.bf16), poison((m, n), tw.f32), poison((m, n), tw.bf16)]
    turned = poison((n, m), tw.bf16)
    with_roles(outputs, M=m, N=n, K=k)(a, b, d, *found, turned)
    wanted = wide(a) @ wide(b).T
    rounded = wanted.astype(d.dtype)
    assert (found[0] == rounded).all()
    assert (found[1] == wanted).all()
    assert (found[2] == np.maximum(wide(rounded) + wide(d), 0).astype(d.dtype)).all()
    assert (turned == rounded.T).all()


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("size", [64, 128])
def test_a_softmax_of_the_sum(along: str, size: int) -> None:
    """A maximum and a sum along a side that one block has whole, across lanes or across warps."""
    dim, kept = (N, M) if along == "columns" else (M, N)

    @tw.kernel(tiles(128, size, 64) if along == "columns" else tiles(size, 128, 64))
    def softmax(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        c: tw.Memory[M, N, G, tw.f32],
        most: tw.Memory[kept, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        largest = tw.max(total, dim=dim)
        grown = tw.exp((total - largest) * 0.125)
        tw.write(largest, most)
        tw.write(grown / tw.sum(grown, dim=dim), c)

    m, n, k = (256, size, 64) if along == "columns" else (size, 256, 64)
    axis = 1 if along == "columns" else 0
    a, b = whole((m, k), tw.bf16, 1, 2), whole((n, k), tw.bf16, 2, 2)
    c, most = poison((m, n), tw.f32), poison((m if axis else n,), tw.f32)
    with_roles(softmax, M=m, N=n, K=k)(a, b, c, most)
    product = wide(a) @ wide(b).T
    largest = product.max(axis)
    grown = np.exp((product - np.expand_dims(largest, axis)) * 0.125)
    assert (most == largest).all()
    assert_close(c, grown / grown.sum(axis, keepdims=True), 1e-5)


def test_sums_of_columns_beside_the_product() -> None:
    """The product is written, and what its rows add up to."""

    @tw.kernel(tiles(128, 64, 64))
    def summed(
        a: tw.Memory[M, K, G, tw.f16],
        b: tw.Memory[N, K, G, tw.f16],
        c: tw.Memory[M, N, G, tw.f16],
        s: tw.Memory[N, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.sum(total, dim=M), s)
        tw.write(tw.cast(total, tw.f16), c)

    m, n, k = 128, 192, 64
    a, b = whole((m, k), tw.f16, 1, 2), whole((n, k), tw.f16, 2, 2)
    c, s = poison((m, n), tw.f16), poison((n,), tw.f32)
    with_roles(summed, M=m, N=n, K=k)(a, b, c, s)
    assert (c == wide(a) @ wide(b).T).all()
    assert (s == (wide(a) @ wide(b).T).sum(0)).all()
