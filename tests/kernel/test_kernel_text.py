"""The text form of kernel IR: exact text of hand-written kernels, and an exact round trip."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_strategies import NAMES, expressions, kernels, small
from sample_kernels import e, gemm, row_sum

from tilewright.base.diagnostics import KernelTextError
from tilewright.base.dtypes import f16, f32
from tilewright.kernel import ops
from tilewright.kernel.text import parse_kernel, print_kernel, show_expr, show_guard
from tilewright.poly.expr import Constraint, Expr, at_least, equal, less

GEMM = """\
kernel gemm target sm_90a warps 4x32 grid [(M + 63) / 64, (N + 63) / 64]
  symbol M >= 1
  symbol N >= 1 multiple 2
  symbol K >= 1 multiple 8
  in a: f16[M, K] strides [K, 1] align 16
  in b: f16[N, K] strides [K, 1] align 16
  out c: f16[M, N] strides [N, 1] align 16 index 32
  shared sa: f16[64, 32] swizzle(2, 3, 3) at 0
  shared sb: f16[64, 32] pitch 40 at 4096
  reg acc: f32[8, 4]  // c[16*wm + .., 8*j + ..]
  reg out: f16[8, 4]
  reg ra: f16[8]
  reg rb: f16[8, 4]
  decode block -> mo: (M + 63) / 64, no: (N + 63) / 64
  decode warp -> wm: 4
  decode lane -> g: 8, t: 4
  decode thread -> p: 32, q: 4
  for j < 8, r < 4: acc[j, r] = 0.0:f32
  loop ko < (K + 31) / 32:
    barrier
    for r < 2: async copy 8 sa[p + 32*r, 8*q] = a[64*mo + p + 32*r, 32*ko + 8*q]"""


def test_the_text_of_a_gemm() -> None:
    assert print_kernel(gemm()).startswith(GEMM)


def test_the_text_of_a_reduction() -> None:
    lines = print_kernel(row_sum()).splitlines()
    assert "  require N <= M + 5" in lines
    assert "    load v[0] = x[m, l + 64*no] if l + 64*no < N else 0.0" in lines
    assert (
        "    along j < 1: s[0] add= select(holds(l + 64*no < N), alpha * v[j], 0.0:f32)"
        " reduces N[l + 64*no] of N  // one term a lane" in lines
    )
    assert "  s[0] = s[0] + lane_xor(s[0], 16)" in lines
    assert "  s[0] = 0.0:f32  // back\\\\slash\\nand a line" in lines


@pytest.mark.parametrize("build", [gemm, row_sum])
def test_hand_written_kernels_come_back(build: Any) -> None:
    assert parse_kernel(print_kernel(build())) == build()


def test_a_type_is_written_where_it_does_not_follow() -> None:
    wrong = ops.Read(ops.RegRef("s", (e(0),)), f16)
    kernel = replace(row_sum(), body=(ops.Assign((), ops.RegRef("s", (e(0),)), wrong),))
    text = print_kernel(kernel)
    assert text.endswith("  s[0] = s[0]:f16\n")
    assert parse_kernel(text) == kernel


def test_nan_and_infinities_come_back() -> None:
    one = ops.RegRef("s", (e(0),))
    body = tuple(
        ops.Assign((), one, ops.Const(number, f32))
        for number in (math.nan, math.inf, -math.inf, -0.0, 1e-30, 1e300)
    )
    kernel = replace(row_sum(), body=body)
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert "-0.0:f32" in print_kernel(kernel)


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        ((less("m", "M"),), "m < M"),
        ((less("m", 8), equal("k", 0)), "m < 8 and k == 0"),
        ((at_least("m", 0),), "0 <= m"),
        ((at_least(e("M") * 2, e("m") + 3),), "m + 2 < 2*M"),
        ((equal(e("m") % 4, e("n") // 2),), "m % 4 == n / 2"),
        ((), "true"),
    ],
)
def test_guards_read_like_comparisons(guard: tuple[Constraint, ...], text: str) -> None:
    assert show_guard(guard) == text


def test_notes_and_blank_lines_between_statements_are_skipped() -> None:
    text = print_kernel(gemm()).replace("  decode warp", "\n  // a remark\n\n  decode warp")
    assert parse_kernel(text) == gemm()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels())
def test_generated_kernels_come_back(kernel: ops.Kernel) -> None:
    text = print_kernel(kernel)
    again = parse_kernel(text)
    assert again == kernel
    assert repr(again) == repr(kernel)  # tells 0 from 0.0 from False


@given(expressions(), st.fixed_dictionaries(dict.fromkeys([*NAMES, "q"], small)))
def test_the_text_of_an_expression_has_its_value(expr: Expr, values: dict[str, int]) -> None:
    text = show_expr(expr).replace("/", "//")
    assert eval(text, {}, values) == expr.evaluate(values)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("warps 4x32", "warps 4", "line 1, column 35: expected warps and lanes as in 4x32"),
        ("K >= 1", "K = 1", "line 4, column 12: expected '>=', found '='"),
        ("in a: f16", "in a: f17", "line 5, column 9: expected an element type, found 'f17'"),
        ("f16[64, 32] pitch", "f16[64, M] pitch", "expected constant extents"),
        ("= 0.0:f32", "= 0.0", "expected ':', found the end of the line"),
        ("= 0.0:f32", "= beta", "expected a declared name, or ':' and an element type"),
        ("= 0.0:f32", "= 0.0:f32 1", "expected the end of the line, found '1'"),
        ("8*q]", "t*q]", "expected a constant factor, found 'q'"),
        ("/ 32:", "/ 0:", "expected a positive divisor, found '0'"),
        ("    async commit", "   async commit", "expected an indentation of 4"),
        ("async commit", "async ponder", "expected 'copy', found 'ponder'"),
        ("decode warp", "ponder warp", "expected a statement, found 'ponder'"),
        (
            "decode warp -> wm",
            "decode warp -> $",
            r"expected a name, a number or a sign, found '\$",
        ),
        ("kernel gemm", "kernell gemm", "expected 'kernel', found 'kernell'"),
        ("kk < 2:", "kk < 2", "expected ':', found the end of the line"),
        ("< M and", "! M and", "expected a name, a number or a sign"),
    ],
)
def test_bad_text_is_refused_with_its_place(old: str, new: str, message: str) -> None:
    text = print_kernel(gemm())
    assert old in text
    with pytest.raises(KernelTextError, match=message):
        parse_kernel(text.replace(old, new, 1))


def test_the_refusal_shows_the_line_and_a_caret() -> None:
    with pytest.raises(KernelTextError) as caught:
        parse_kernel("kernel k target t warps 1x32 grid [+]")
    line, caret = caught.value.diagnostic.notes
    assert line[caret.index("^")] == "+"


def test_empty_text_and_stray_indentation_are_refused() -> None:
    with pytest.raises(KernelTextError, match="expected a line that starts with 'kernel'"):
        parse_kernel("// nothing here\n")
    with pytest.raises(KernelTextError, match="a statement indented below the kernel"):
        parse_kernel("kernel k target t warps 1x32 grid []\n  barrier\nbarrier")
