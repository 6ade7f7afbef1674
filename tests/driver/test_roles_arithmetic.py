"""Loops with warp roles that compute with each step's product: scales, decay, starts, sums."""

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

NB, NI = tw.sym.NB, tw.sym.NI


def block_scaled(
    rows_first: bool = True, operand: tw.DType = tw.f8e4m3, **hardware: int
) -> TileKernel:
    """One scale for each row and 128 terms of a, one for each 128 by 128 block of b."""
    scale = tw.Memory[M, KB, G, tw.f32] if rows_first else tw.Memory[KB, M, G, tw.f32]
    more = [tw.HardwareConstraint(**hardware)] if hardware else []

    @tw.kernel([
        tw.WorkgroupConstraint(M, 128, 0), tw.WorkgroupConstraint(NB, 1, 1),
        tw.WorkgroupConstraint(NI, 128, 2), tw.TilingConstraint(KB, 1), *more,
    ])  # fmt: skip
    def scaled(
        a: tw.Memory[M, KB, KI, G, operand],
        b: tw.Memory[NB, NI, KB, KI, G, operand],
        sa: scale,
        sb: tw.Memory[NB, KB, G, tw.f32],
        c: tw.Memory[M, NB, NI, G, tw.bf16],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, NB, NI, tw.f32](0.0)])
        def total(acc):
            product = tw.mma(tw.read(a), tw.read(b), tw.Register[M, NB, NI, KB, tw.f32](0.0))
            rows = tw.permute(tw.read(sa), [M, KB])
            return acc + tw.sum(product * (rows * tw.read(sb)), dim=KB)

        tw.write(tw.cast(total, tw.bf16), c)

    return scaled


def run_block_scaled(
    kernel: TileKernel, m: int, nb: int, kb: int, *, rows_first: bool,
    run: Callable[..., None] | None = None,
) -> None:  # fmt: skip
    compiled = with_roles(kernel, M=m, NB=nb, NI=128, KB=kb, KI=128)
    a, b = whole((m, kb, 128), tw.f8e4m3, 1), whole((nb, 128, kb, 128), tw.f8e4m3, 2)
    sa, sb, c = powers((m, kb), 3), powers((nb, kb), 4), poison((m, nb, 128), tw.bf16)
    arrays = a, b, sa if rows_first else np.ascontiguousarray(sa.T), sb, c
    if run is None:
        compiled(*arrays)
    else:
        run(compiled, *arrays)
    wanted = np.einsum("mkq,abkq,mk,ak->mab", wide(a), wide(b), sa, sb)
    assert_close(c, wanted, 2**-8)
    # The loop adds in single precision, so that nothing but the cast rounds.
    assert (c == wanted.astype(c.dtype)).all()


@pytest.mark.parametrize("rows_first", [True, False])
def test_scales_of_blocks(rows_first: bool) -> None:
    run_block_scaled(block_scaled(rows_first), 256, 2, 4, rows_first=rows_first)


def test_scales_of_blocks_in_clusters() -> None:
    run_block_scaled(block_scaled(cluster=2), 256, 2, 3, rows_first=True)


def test_scales_of_blocks_of_a_tail() -> None:
    run_block_scaled(block_scaled(), 200, 1, 3, rows_first=True)


def flat_scaled(step: tw.DType = tw.f8e4m3) -> TileKernel:
    """The same on tensors of two axes, whose terms the program splits into blocks."""

    @tw.kernel([*tiles(128, 128), tw.TilingConstraint(KB, 1)])
    def scaled(
        a: tw.Memory[M, K, G, step],
        b: tw.Memory[N, K, G, step],
        sa: tw.Memory[M, KB, G, tw.f32],
        sb: tw.Memory[NB, KB, G, tw.f32],
        c: tw.Memory[M, N, G, tw.bf16],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            rows = tw.reshape(tw.read(a), [M, KB, KI])
            columns = tw.reshape(tw.read(b), [N, KB, KI])
            product = tw.mma(rows, columns, tw.Register[M, N, KB, tw.f32](0.0))
            blocks = tw.reshape(tw.broadcast(tw.read(sb), [NB, NI, KB]), [N, KB])
            return acc + tw.sum(product * tw.read(sa) * blocks, dim=KB)

        tw.write(tw.cast(total, tw.bf16), c)

    return scaled


def test_scales_of_blocks_of_split_axes() -> None:
    m, n, kb = 256, 256, 3
    sizes = {"NB": n // 128, "NI": 128, "KB": kb, "KI": 128}
    compiled = with_roles(flat_scaled(), M=m, N=n, K=kb * 128, **sizes)
    a, b = whole((m, kb * 128), tw.f8e4m3, 1), whole((n, kb * 128), tw.f8e4m3, 2)
    sa, sb, c = powers((m, kb), 3), powers((n // 128, kb), 4), poison((m, n), tw.bf16)
    compiled(a, b, sa, sb, c)
    blocks = wide(a).reshape(m, kb, 128), wide(b).reshape(n, kb, 128)
    wanted = np.einsum("mkq,nkq,mk,nk->mn", *blocks, sa, np.repeat(sb, 128, axis=0))
    assert (c == wanted.astype(c.dtype)).all()


def test_scales_of_many_blocks_are_proved() -> None:
    """What the next test runs."""
    with_roles(block_scaled(), M=4096, NB=16, NI=128, KB=8, KI=128)


@pytest.mark.gpu
def test_scales_of_blocks_on_the_device() -> None:
    run_block_scaled(block_scaled(), 4096, 16, 8, rows_first=True, run=on_device)


def test_scales_of_columns_and_a_step_summed_over_both_axes() -> None:
    @tw.kernel([*tiles(128, 64), tw.TilingConstraint(KB, 1)])
    def scaled(
        a: tw.Memory[M, KB, KI, G, tw.f8e5m2],
        b: tw.Memory[N, KB, KI, G, tw.f8e5m2],
        s: tw.Memory[KB, N, G, tw.f32],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            product = tw.mma(tw.read(a), tw.read(b))
            return tw.sum(product * tw.permute(tw.read(s), [N, KB]), acc, dim=KB)

        tw.write(total, c)

    m, n, kb = 128, 128, 3
    a, b = whole((m, kb, 128), tw.f8e5m2, 1), whole((n, kb, 128), tw.f8e5m2, 2)
    s, c = powers((kb, n), 3), poison((m, n), tw.f32)
    with_roles(scaled, M=m, N=n, KB=kb, KI=128)(a, b, s, c)
    assert (c == np.einsum("mkq,nkq,kn->mn", wide(a), wide(b), s)).all()


def test_arithmetic_between_the_steps() -> None:
    """A decay of what was summed, and a vector that goes with each step's product."""

    @tw.kernel(tiles(128, 128, 64))
    def decayed(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        s: tw.Memory[N, G, tw.f32],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        scale = tw.read(s)

        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](1.0)])
        def total(acc):
            return acc * 0.5 + tw.mma(tw.read(a), tw.read(b)) * scale

        tw.write(total, c)

    m, n, k = 256, 128, 200
    a, b, s = whole((m, k), tw.bf16, 1), whole((n, k), tw.bf16, 2), powers((n,), 3)
    c = poison((m, n), tw.f32)
    with_roles(decayed, M=m, N=n, K=k)(a, b, s, c)
    wanted = np.ones((m, n))
    for at in range(0, k, 64):
        wanted = wanted * 0.5 + wide(a[:, at : at + 64]) @ wide(b[:, at : at + 64]).T * s
    assert (c == wanted).all()


def test_several_carried_values() -> None:
    """The sum, and the largest product of a step."""

    @tw.kernel(tiles(64, 128, 64))
    def largest(
        a: tw.Memory[M, K, G, tw.f16],
        b: tw.Memory[N, K, G, tw.f16],
        c: tw.Memory[M, N, G, tw.f32],
        d: tw.Memory[M, N, G, tw.f32],
    ):
        start = tw.Register[M, N, tw.f32](0.0)

        @tw.iterate(K, init_args=[start, start])
        def found(acc, most):
            product = tw.mma(tw.read(a), tw.read(b))
            return acc + product, tw.maximum(most, product)

        tw.write(found[0], c)
        tw.write(found[1], d)

    m, n, k = 128, 128, 256
    a, b = whole((m, k), tw.f16, 1), whole((n, k), tw.f16, 2)
    c, d = poison((m, n), tw.f32), poison((m, n), tw.f32)
    with_roles(largest, M=m, N=n, K=k)(a, b, c, d)
    steps = [wide(a[:, i : i + 64]) @ wide(b[:, i : i + 64]).T for i in range(0, k, 64)]
    assert (c == np.sum(steps, axis=0)).all()
    assert (d == np.maximum(np.max(steps, axis=0), 0)).all()


def test_a_product_onto_a_rescaled_sum() -> None:
    """The product starts at what the step makes of the carried value."""

    @tw.kernel(tiles(128, 64, 64))
    def rescaled(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc * 2.0)

        tw.write(total, c)

    m, n, k = 128, 64, 192
    a, b, c = whole((m, k), tw.bf16, 1), whole((n, k), tw.bf16, 2), poison((m, n), tw.f32)
    with_roles(rescaled, M=m, N=n, K=k)(a, b, c)
    wanted = np.zeros((m, n))
    for at in range(0, k, 64):
        wanted = wanted * 2 + wide(a[:, at : at + 64]) @ wide(b[:, at : at + 64]).T
    assert (c == wanted).all()


def test_a_sum_that_starts_at_a_tensor() -> None:
    @tw.kernel(tiles(128, 128, 64))
    def started(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        d: tw.Memory[M, N, G, tw.f32],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.read(d)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total, c)

    m, n, k = 128, 256, 128
    a, b, d = whole((m, k), tw.bf16, 1), whole((n, k), tw.bf16, 2), whole((m, n), tw.f32, 3)
    c = poison((m, n), tw.f32)
    with_roles(started, M=m, N=n, K=k)(a, b, d, c)
    assert (c == wide(d) + wide(a) @ wide(b).T).all()


def test_too_many_accumulators_are_refused_on_request() -> None:
    kernel = block_scaled(operand=tw.bf16, specialize=True)
    assert instruction(with_roles(kernel, M=128, NB=1, NI=128, KB=2, KI=64)).startswith("wgmma.")

    @tw.kernel(tiles(128, 256, 64, specialize=True))
    def wide_tile(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return acc * 0.5 + tw.mma(tw.read(a), tw.read(b))

        tw.write(total, c)

    with pytest.raises(ConstraintError) as caught:
        wide_tile.compile("sm_90a", {"M": 256, "N": 256, "K": 128})
    assert "tiles of 256 by 128, 2 at once do not suit warpgroups" in str(caught.value)


@pytest.mark.parametrize("steps", [2, 4])
def test_a_step_of_several_blocks_has_no_roles(steps: int) -> None:
    """A scale belongs to one block of terms: two in a step would be added before the product."""

    @tw.kernel(
        [*tiles(128, 128), tw.TilingConstraint(KB, steps), tw.HardwareConstraint(specialize=True)]
    )
    def scaled(
        a: tw.Memory[M, KB, KI, G, tw.f8e4m3],
        b: tw.Memory[N, KB, KI, G, tw.f8e4m3],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total, c)

    with pytest.raises(ConstraintError) as caught:
        scaled.compile("sm_90a", {"M": 128, "N": 128, "KB": 4, "KI": 128})
    assert "a step over KB has several elements of it" in str(caught.value)
