"""Operands of products with warp roles: computed ones through registers; the types there are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from role_programs import (
    KB,
    KI,
    G,
    K,
    M,
    N,
    assert_close,
    instruction,
    on_device,
    poison,
    powers,
    tiles,
    whole,
    wide,
    with_roles,
)

import tilewright as tw
from tilewright import TileKernel
from tilewright.base.diagnostics import ConstraintError


def weights(turned: bool, step: int, **hardware: bool) -> TileKernel:
    """Whole-number weights, cast on their way to the instruction; contiguous along M if turned."""
    kind = tw.Memory[K, M, G, tw.i8] if turned else tw.Memory[M, K, G, tw.i8]

    @tw.kernel(tiles(128, 128, step, **hardware))
    def product(w: kind, b: tw.Memory[N, K, G, tw.bf16], c: tw.Memory[M, N, G, tw.f32]):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            rows = tw.permute(tw.cast(tw.read(w), tw.bf16), [M, K])
            return tw.mma(rows, tw.read(b), acc)

        tw.write(total, c)

    return product


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("step", [64, 128])
def test_weights_are_cast_in_registers(turned: bool, step: int) -> None:
    run_weights(turned, step, lambda compiled, *arrays: compiled(*arrays))


def run_weights(turned: bool, step: int, run: Callable[..., None]) -> None:
    m, n, k = 256, 128, 320
    w, b, c = whole((m, k), tw.i8, 1), whole((n, k), tw.bf16, 2), poison((m, n), tw.f32)
    compiled = with_roles(weights(turned, step), M=m, N=n, K=k)
    assert instruction(compiled).endswith(".rs")
    run(compiled, np.ascontiguousarray(w.T) if turned else w, b, c)
    assert (c == wide(w) @ wide(b).T).all()


@pytest.mark.gpu
@pytest.mark.parametrize("turned", [False, True])
def test_weights_on_the_device(turned: bool) -> None:
    run_weights(turned, 64, on_device)


def test_a_computed_column_operand_gives_the_rows() -> None:
    """Only rows reach the instruction through registers: the operands change sides."""

    @tw.kernel(tiles(64, 128, 64))
    def product(
        a: tw.Memory[M, K, G, tw.bf16],
        w: tw.Memory[N, K, G, tw.i8],
        c: tw.Memory[M, N, G, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.cast(tw.read(w), tw.bf16), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    m, n, k = 128, 128, 192
    a, w, c = whole((m, k), tw.bf16, 1), whole((n, k), tw.i8, 2), poison((m, n), tw.bf16)
    compiled = with_roles(product, M=m, N=n, K=k)
    (contract,) = compiled.compilation.plan.contracts.values()
    assert (contract.m, contract.n, contract.lhs_is_a) == ("N", "M", False)
    compiled(a, w, c)
    assert_close(c, wide(a) @ wide(w).T, 2**-8)


@pytest.mark.parametrize("terms", [192, 200])
def test_an_operand_that_is_not_zero_past_the_end(terms: int) -> None:
    """The copy engine fills with zeros, of which the exponential makes ones: they count nothing."""

    @tw.kernel(tiles(64, 64, 64))
    def product(
        a: tw.Memory[M, K, G, tw.bf16],
        s: tw.Memory[M, G, tw.f32],
        b: tw.Memory[N, K, G, tw.bf16],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        scale = tw.read(s)

        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            rows = tw.cast(tw.exp2(tw.cast(tw.read(a), tw.f32)) * scale, tw.bf16)
            return tw.mma(rows, tw.read(b), acc)

        tw.write(total, c)

    m, n = 64, 128
    a, b = whole((m, terms), tw.bf16, 1), whole((n, terms), tw.bf16, 2)
    s, c = powers((m,), 3), poison((m, n), tw.f32)
    with_roles(product, M=m, N=n, K=terms)(a, s, b, c)
    assert_close(c, (2.0 ** wide(a) * s[:, None]) @ wide(b).T, 1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_a_gated_operand(turned: bool) -> None:
    """Two tiles become one operand; in the other order both come by transposing loads."""
    kind = tw.Memory[K, M, G, tw.bf16] if turned else tw.Memory[M, K, G, tw.bf16]

    @tw.kernel(tiles(128, 64, 64))
    def product(x: kind, g: kind, b: tw.Memory[N, K, G, tw.bf16], c: tw.Memory[M, N, G, tw.f32]):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            value, gate = tw.cast(tw.read(x), tw.f32), tw.cast(tw.read(g), tw.f32)
            gated = tw.cast(value * gate / (1.0 + tw.exp(-gate)), tw.bf16)
            return tw.mma(tw.permute(gated, [M, K]), tw.read(b), acc)

        tw.write(total, c)

    m, n, k = 128, 128, 192
    x, g, b = (whole(s, tw.bf16, i) for i, s in enumerate(((m, k), (m, k), (n, k))))
    c = poison((m, n), tw.f32)
    compiled = with_roles(product, M=m, N=n, K=k)
    assert ".trans" in compiled.ir if turned else "x4(" in compiled.ir
    compiled(*(np.ascontiguousarray(v.T) if turned else v for v in (x, g)), b, c)
    silu = g.astype(np.float32) / (1 + np.exp(-g.astype(np.float32)))
    gated = (x.astype(np.float32) * silu).astype(x.dtype)
    assert_close(c, wide(gated) @ wide(b).T, 2**-8)


def test_weights_with_a_scale_for_each_group_of_terms() -> None:
    @tw.kernel([*tiles(128, 64), tw.TilingConstraint(KB, 1)])
    def product(
        w: tw.Memory[M, KB, KI, G, tw.i8],
        s: tw.Memory[M, KB, G, tw.f32],
        b: tw.Memory[N, KB, KI, G, tw.f16],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            rows = tw.cast(tw.cast(tw.read(w), tw.f32) * tw.read(s), tw.f16)
            return tw.mma(rows, tw.read(b), acc)

        tw.write(total, c)

    m, n, kb, ki = 128, 128, 4, 64
    w, b = whole((m, kb, ki), tw.i8, 1), whole((n, kb, ki), tw.f16, 2)
    s, c = powers((m, kb), 3), poison((m, n), tw.f32)
    with_roles(product, M=m, N=n, KB=kb, KI=ki)(w, s, b, c)
    assert (c == np.einsum("mkq,nkq,mk->mn", wide(w), wide(b), s)).all()


@pytest.mark.parametrize("turned", [False, True])
def test_weights_in_groups_of_split_terms(turned: bool) -> None:
    """The weights' tensor has two axes; the program splits its terms into groups."""
    kind = tw.Memory[K, M, G, tw.i8] if turned else tw.Memory[M, K, G, tw.i8]

    @tw.kernel([*tiles(64, 64), tw.TilingConstraint(KB, 1)])
    def product(
        w: kind,
        s: tw.Memory[KB, M, G, tw.f32],
        b: tw.Memory[N, K, G, tw.bf16],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            split = tw.reshape(tw.read(w), [KB, KI, M] if turned else [M, KB, KI])
            split = tw.permute(tw.cast(split, tw.f32), [M, KB, KI])
            rows = tw.cast(split * tw.permute(tw.read(s), [M, KB]), tw.bf16)
            return tw.mma(rows, tw.reshape(tw.read(b), [N, KB, KI]), acc)

        tw.write(total, c)

    m, n, kb, ki = 64, 64, 3, 64
    w, b = whole((m, kb * ki), tw.i8, 1), whole((n, kb * ki), tw.bf16, 2)
    s, c = powers((kb, m), 3), poison((m, n), tw.f32)
    compiled = with_roles(product, M=m, N=n, K=kb * ki, KB=kb, KI=ki)
    compiled(np.ascontiguousarray(w.T) if turned else w, s, b, c)
    blocks = wide(w).reshape(m, kb, ki), wide(b).reshape(n, kb, ki)
    assert (c == np.einsum("mkq,nkq,km->mn", *blocks, s)).all()


def plain(operand: tw.DType, result: tw.DType, step: int, *turned: bool, atom: str | None = None,
          **hardware: bool) -> TileKernel:  # fmt: skip
    """a times b, each contiguous along its terms unless turned."""
    a_axes, b_axes = (K, M) if turned[:1] == (True,) else (M, K), (N, K)
    if turned[1:] == (True,):
        b_axes = K, N

    @tw.kernel(tiles(128, 128, step, **hardware))
    def product(
        a: tw.Memory[(*a_axes, G, operand)],
        b: tw.Memory[(*b_axes, G, operand)],
        c: tw.Memory[M, N, G, result],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, result](0)])
        def total(acc):
            rows, columns = tw.permute(tw.read(a), [M, K]), tw.permute(tw.read(b), [N, K])
            return tw.mma(rows, columns, acc, mma_type=atom)

        tw.write(total, c)

    return product


@pytest.mark.parametrize("operand", [tw.f8e4m3, tw.f8e5m2, tw.i8, tw.f16])
def test_types_of_operands(operand: tw.DType) -> None:
    m, n, k = 256, 128, 272
    result = tw.i32 if operand == tw.i8 else tw.f32
    step = 64 if operand == tw.f16 else 128
    a, b, c = whole((m, k), operand, 1), whole((n, k), operand, 2), poison((m, n), result)
    with_roles(plain(operand, result, step), M=m, N=n, K=k)(a, b, c)
    assert (c == wide(a) @ wide(b).T).all()


def test_whole_numbers_do_not_overflow_their_sums() -> None:
    m, n, k = 128, 128, 512
    a, b, c = (np.full(s, 127, np.int8) for s in ((m, k), (n, k), (m, n)))
    c = poison((m, n), tw.i32)
    with_roles(plain(tw.i8, tw.i32, 128), M=m, N=n, K=k)(a, -b, c)
    assert (c == -127 * 127 * k).all()


def test_single_precision_on_request() -> None:
    m, n, k = 128, 128, 96
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
    c = poison((m, n), tw.f32)
    kernel = plain(tw.f32, tw.f32, 32, atom="wgmma.m64n128k8.f32.tf32")
    with_roles(kernel, M=m, N=n, K=k)(a, b, c)
    assert_close(c, wide(a) @ wide(b).T, 2**-9)
    assert np.abs(c - wide(a) @ wide(b).T).max() > 1e-5  # rounded operands, as was asked for
    with pytest.raises(ConstraintError) as caught:
        plain(tw.f32, tw.f32, 32, specialize=True).compile("sm_90a", {"M": m, "N": n, "K": k})
    assert "no warpgroup instruction multiplies f32 tiles of 128 by 128" in str(caught.value)


@pytest.mark.parametrize("operand", [tw.f8e4m3, tw.i8])
@pytest.mark.parametrize("turned", [(True, False), (False, True)])
def test_narrow_operands_across_the_terms_are_refused(
    operand: tw.DType, turned: tuple[bool, bool]
) -> None:
    result = tw.i32 if operand == tw.i8 else tw.f32
    kernel = plain(operand, result, 128, *turned, specialize=True)
    with pytest.raises(ConstraintError) as caught:
        kernel.compile("sm_90a", {"M": 128, "N": 128, "K": 256})
    assert f"operands of {operand} must be contiguous along K" in str(caught.value)


def both_computed(**hardware: bool) -> TileKernel:
    @tw.kernel(tiles(64, 64, 32, **hardware))
    def product(
        a: tw.Memory[M, K, G, tw.i8], b: tw.Memory[N, K, G, tw.i8], c: tw.Memory[M, N, G, tw.f32]
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.cast(tw.read(a), tw.f16), tw.cast(tw.read(b), tw.f16), acc)

        tw.write(total, c)

    return product


def test_two_computed_operands_are_refused_on_request_and_explained_else() -> None:
    m, n, k = 64, 64, 128
    with pytest.raises(ConstraintError) as caught:
        both_computed(specialize=True).compile("sm_90a", {"M": m, "N": n, "K": k})
    assert "both operands are computed" in str(caught.value)
    compiled = both_computed().compile("sm_90a", {"M": m, "N": n, "K": k})
    assert "no warp roles: both operands are computed, not read" in compiled.explain()
    a, b, c = whole((m, k), tw.i8, 1), whole((n, k), tw.i8, 2), poison((m, n), tw.f32)
    compiled(a, b, c)
    assert (c == wide(a) @ wide(b).T).all()


def test_a_computed_operand_with_too_few_of_its_rows_is_refused() -> None:
    """The weights' axis must give whole warpgroups rows."""

    @tw.kernel(tiles(128, 32, 64, specialize=True))
    def product(
        a: tw.Memory[M, K, G, tw.f16], w: tw.Memory[N, K, G, tw.i8], c: tw.Memory[M, N, G, tw.f32]
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.cast(tw.read(w), tw.f16), acc)

        tw.write(total, c)

    with pytest.raises(ConstraintError) as caught:
        product.compile("sm_90a", {"M": 128, "N": 64, "K": 128})
    assert "tiles of 32 by 128 do not suit warpgroups" in str(caught.value)
