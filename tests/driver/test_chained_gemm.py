"""The chained matrix product of the Wave issue, its proof, and every size and stride."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import tilewright as tw
from tilewright import TileKernel
from tilewright.driver.compile import Rewrites
from tilewright.poly.expr import Expr
from tilewright.poly.prove import Kind, Proved
from tilewright.schedule.plan import Plan

M, N, K1, K2 = tw.sym.M, tw.sym.N, tw.sym.K1, tw.sym.K2
SPACE = tw.sym.ADDRESS_SPACE
SIZES = {M: 16, N: 32, K1: 16, K2: 16}
Array = NDArray[np.generic]


@tw.wave(
    [
        tw.WorkgroupConstraint(K2, K2, 0),
        tw.HardwareConstraint(
            threads_per_wave=64,
            waves_per_block=(1, 1, 1),
            mma_type=tw.MMAType.F32_16x16x16_F16,
        ),
    ],
    bindings={SPACE: tw.GLOBAL_ADDRESS_SPACE},
)
def wave_chained_gemm(
    q: tw.Memory[M, K1, SPACE, tw.f16],
    k: tw.Memory[K2, K1, SPACE, tw.f16],
    do: tw.Memory[N, M, SPACE, tw.f16],
    dv: tw.Memory[K2, N, tw.GLOBAL_ADDRESS_SPACE, tw.f32],
):
    inner_acc = tw.Register[M, K2, tw.f32](0.0)
    q_reg = tw.read(q, elements_per_thread=4)
    k_reg = tw.read(k, elements_per_thread=4)
    s = tw.mma(q_reg, k_reg, inner_acc)
    s = tw.permute(s, target_shape=[K2, M])
    s = tw.cast(s, tw.f16)
    do_reg = tw.read(do, elements_per_thread=4)
    dv_acc = tw.Register[K2, N, tw.f32](0.0)
    dv_reg = tw.mma(s, do_reg, dv_acc)
    tw.write(dv_reg, dv, elements_per_thread=4)


def chained(
    dynamic: tuple[str, ...] = (), q: tw.DType = tw.f16, strides: tuple[object, ...] | None = None
) -> TileKernel:
    q_type = tw.Memory[M, K1, tw.GLOBAL, q]
    if strides is not None:
        q_type = q_type.with_strides(strides)

    @tw.kernel([tw.WorkgroupConstraint(K2, K2, 0)], dynamic=dynamic)
    def chained_gemm(
        q: q_type,
        k: tw.Memory[K2, K1, tw.GLOBAL, tw.f16],
        do: tw.Memory[N, M, tw.GLOBAL, tw.f16],
        dv: tw.Memory[K2, N, tw.GLOBAL, tw.f32],
    ):
        s = tw.mma(tw.read(q), tw.read(k))
        s = tw.cast(tw.permute(s, target_shape=[K2, M]), tw.f16)
        tw.write(tw.mma(s, tw.read(do)), dv)

    return chained_gemm


def operands(m: int, n: int, k1: int, k2: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Small whole numbers: every sum is exact, so results are compared bit by bit."""
    random = np.random.default_rng(seed)
    shapes = ((m, k1), (k2, k1), (n, m))
    q, k, do = (random.integers(-2, 3, shape).astype(np.float16) for shape in shapes)
    return q, k, do


def wanted(q: Array, k: Array, do: Array) -> Array:
    s = (q.astype(np.float64) @ k.astype(np.float64).T).T
    return (s.astype(np.float16).astype(np.float64) @ do.astype(np.float64).T).astype(np.float32)


def unwritten(k2: int, n: int) -> Array:
    return np.full((k2, n), np.nan, np.float32)


# ---------------------------------------------------------------- the program of the issue


def test_the_compiled_kernel_takes_numpy_arrays() -> None:
    compiled = wave_chained_gemm.compile(target="gfx942", bindings=SIZES)
    q, k, do = operands(16, 32, 16, 16)
    dv = unwritten(16, 32)
    compiled(q, k, do, dv)
    np.testing.assert_array_equal(dv, wanted(q, k, do))


def test_a_plain_call_chooses_the_target_that_has_the_instruction() -> None:
    q, k, do = operands(16, 32, 16, 16, seed=1)
    dv = unwritten(16, 32)
    wave_chained_gemm(q, k, do, dv)
    np.testing.assert_array_equal(dv, wanted(q, k, do))
    assert wave_chained_gemm.default_target().name == "gfx942"


def test_the_plain_call_reads_random_operands() -> None:
    random = np.random.default_rng(7)
    shapes = ((16, 16), (16, 16), (32, 16))
    q, k, do = (random.standard_normal(s).astype(np.float16) for s in shapes)
    dv = unwritten(16, 32)
    wave_chained_gemm(q, k, do, dv)
    np.testing.assert_allclose(dv, wanted(q, k, do), rtol=5e-3, atol=5e-2)


def test_the_report_says_that_every_element_is_written_once() -> None:
    compiled = wave_chained_gemm.compile(target="gfx942", bindings=SIZES)
    assert "all 512 elements of dv are written exactly once" in compiled.proof_report()
    assert all(isinstance(o.result, Proved) for o in compiled.proofs)
    (coverage,) = [o for o in compiled.proofs if o.kind is Kind.COVERAGE and "store" in o.statement]
    assert coverage.subject == "dv"


def test_the_instruction_is_used_and_the_permuted_accumulator_does_not_move() -> None:
    compiled = wave_chained_gemm.compile(target="gfx942", bindings=SIZES)
    assert compiled.ir.count("mma F32_16x16x16_F16") == 2
    assert not compiled.compilation.kernel.shared
    assert "moved" not in compiled.ir
    assert "v_mfma" in compiled.source or "__builtin_amdgcn_mfma_f32_16x16x16f16" in compiled.source


def without_expansion(plan: Plan) -> Plan:
    """One step of 16 elements along N, whatever N is."""
    axis = replace(plan.axes["N"], tile=16, steps_override=Expr.of(1))
    return replace(plan, axes={**plan.axes, "N": axis})


def test_without_the_expansion_over_n_half_of_dv_is_missing() -> None:
    with pytest.raises(tw.TilewrightError) as caught:
        wave_chained_gemm.compile(
            target="gfx942", bindings=SIZES, rewrites=Rewrites(plan=without_expansion)
        )
    text = str(caught.value)
    assert type(caught.value).__name__ == "CoverageError"
    assert text.startswith("error[TW301]: columns 16 to 31 of dv are never written\n")
    assert "tw.write(dv_reg, dv, elements_per_thread=4)" in text
    assert "test_chained_gemm.py:" in text
    assert "the first is dv[0, 16]" in text
    assert "256 of 512 elements are missing" in text


def test_the_instruction_is_refused_where_it_does_not_exist() -> None:
    with pytest.raises(tw.TilewrightError, match="threads_per_wave is 64") as caught:
        wave_chained_gemm.compile(target="sm_90a", bindings=SIZES)
    assert caught.value.diagnostic.span is not None


# ---------------------------------------------------------------- sizes

RAGGED = [
    (1, 1, 1, 1), (16, 32, 16, 16), (17, 33, 5, 70), (1, 300, 1, 2), (300, 1, 7, 1),
    (2, 3, 200, 4), (100, 90, 130, 40), (64, 64, 64, 64), (15, 31, 15, 15),
]  # fmt: skip
TARGETS = ("sm_90a", "gfx942")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", RAGGED, ids=lambda s: "x".join(map(str, s)))
def test_any_static_size(target: str, size: tuple[int, int, int, int]) -> None:
    m, n, k1, k2 = size
    compiled = chained().compile(target, {M: m, N: n, K1: k1, K2: k2})
    q, k, do = operands(*size, seed=m)
    dv = unwritten(k2, n)
    compiled(q, k, do, dv)
    np.testing.assert_array_equal(dv, wanted(q, k, do))
    assert all(isinstance(o.result, Proved) for o in compiled.proofs)


@pytest.mark.parametrize("target", TARGETS)
def test_one_compilation_for_all_sizes(target: str) -> None:
    compiled = chained().compile(target)
    assert all(isinstance(o.result, Proved) for o in compiled.proofs)
    assert "all elements of dv are written exactly once" in compiled.proof_report()
    for size in RAGGED:
        q, k, do = operands(*size, seed=size[1])
        dv = unwritten(size[3], size[1])
        compiled(q, k, do, dv)
        np.testing.assert_array_equal(dv, wanted(q, k, do))


def test_open_axes_share_a_compilation_between_calls() -> None:
    kernel = chained(dynamic=("N", "M"))
    for n in (33, 35, 37):
        q, k, do = operands(17, n, 16, 16, seed=n)
        dv = unwritten(16, n)
        kernel(q, k, do, dv)
        np.testing.assert_array_equal(dv, wanted(q, k, do))


# ---------------------------------------------------------------- strides

LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "columns": np.asfortranarray,
    "transposed view": lambda a: np.ascontiguousarray(a.T).T,
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "every third column": lambda a: np.repeat(a, 3, axis=1)[:, ::3],
    "inside a larger one": lambda a: np.pad(a, 3)[3:-3, 3:-3],
    "rows backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "both backwards": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_any_strides(layout: str) -> None:
    view = LAYOUTS[layout]
    q, k, do = operands(18, 20, 22, 24, seed=3)
    out = view(unwritten(24, 20))
    assert out.shape == (24, 20)
    chained()(view(q), view(k), view(do), out)
    np.testing.assert_array_equal(out, wanted(q, k, do))


def test_a_step_of_rows_in_the_output_leaves_the_rest_alone() -> None:
    q, k, do = operands(18, 20, 22, 24, seed=4)
    whole = np.full((48, 40), 7.0, np.float32)
    chained()(q, k, do, whole[::2, ::2])
    np.testing.assert_array_equal(whole[::2, ::2], wanted(q, k, do))
    assert (whole[1::2] == 7.0).all()
    assert (whole[:, 1::2] == 7.0).all()


def test_symbolic_strides_are_bound_by_the_call() -> None:
    kernel = chained(strides=(tw.sym.PITCH, 1)).compile("gfx942", SIZES)
    q, k, do = operands(16, 32, 16, 16, seed=5)
    for pitch in (16, 20, 33):
        dv = unwritten(16, 32)
        padded = np.zeros((16, pitch), np.float16)
        padded[:, :16] = q
        kernel(padded[:, :16], k, do, dv)
        np.testing.assert_array_equal(dv, wanted(q, k, do))


def test_symbolic_strides_of_columns() -> None:
    kernel = chained(strides=(1, tw.sym.PITCH)).compile("sm_90a", SIZES)
    q, k, do = operands(16, 32, 16, 16, seed=6)
    dv = unwritten(16, 32)
    kernel(np.asfortranarray(q), k, do, dv)
    np.testing.assert_array_equal(dv, wanted(q, k, do))
    with pytest.raises(tw.TilewrightError, match=r"q has stride 16 along M") as caught:
        kernel(q, k, do, dv)
    assert type(caught.value).__name__ == "CallError"


def test_a_symbolic_stride_is_positive() -> None:
    kernel = chained(strides=(tw.sym.PITCH, 1)).compile("sm_90a", SIZES)
    q, k, do = operands(16, 32, 16, 16)
    with pytest.raises(tw.TilewrightError) as caught:
        kernel(q[::-1], k, do, unwritten(16, 32))
    text = str(caught.value)
    assert text.startswith("error[TW102]: PITCH is -16")
    assert "expected: at least 1, below 2**31" in text
    assert "mend:" in text


def test_other_strides_than_compiled_for_are_refused() -> None:
    kernel = chained().compile("sm_90a", SIZES)
    q, k, do = operands(16, 32, 16, 16)
    with pytest.raises(tw.TilewrightError) as caught:
        kernel(np.asfortranarray(q), k, do, unwritten(16, 32))
    text = str(caught.value)
    assert text.startswith("error[TW501]: q has stride 1 along M")
    assert "strides={'q': ...}" in text


def test_stated_strides() -> None:
    kernel = chained().compile("sm_90a", SIZES, strides={"q": (1, 16), "dv": (64, 2)})
    q, k, do = operands(16, 32, 16, 16)
    out = np.zeros((16, 64), np.float32)[:, ::2]
    kernel(np.asfortranarray(q), k, do, out)
    np.testing.assert_array_equal(out, wanted(q, k, do))
