"""Intervals and divisors of expressions against enumeration; the register estimate."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_kernels import gemm, row_sum

from tilewright.kernel.ops import Kernel
from tilewright.kernel.pressure import register_estimate
from tilewright.kernel.ranges import Interval, divisor, interval
from tilewright.kernel.text import parse_kernel
from tilewright.poly.expr import Expr

BOXES = {"i": range(4), "j": range(2, 9), "k": range(-3, 3)}
RANGES = {name: Interval(box[0], box[-1]) for name, box in BOXES.items()}


def linear(draw: st.DrawFn, terms: list[Expr]) -> Expr:
    total = Expr.of(draw(st.integers(-20, 20)))
    for term in terms:
        total = total + term * draw(st.integers(-9, 9))
    return total


@st.composite
def expressions(draw: st.DrawFn) -> Expr:
    names = [Expr.of(name) for name in BOXES]
    inner = linear(draw, names)
    den = draw(st.integers(1, 9))
    folded = draw(st.sampled_from([inner // den, inner % den, (inner // den + "i") % den]))
    return linear(draw, [*names, folded])


def values(expr: Expr, steps: dict[str, int] | None = None) -> list[int]:
    scale = steps or {}
    return [
        expr.evaluate({n: v * scale.get(n, 1) for n, v in zip(BOXES, point, strict=True)})
        for point in product(*BOXES.values())
    ]


@given(expressions())
def test_an_interval_holds_every_value(expr: Expr) -> None:
    found = interval(expr, RANGES)
    seen = values(expr)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= min(seen)
    assert max(seen) <= found.high


@given(st.lists(st.integers(-9, 9), min_size=3, max_size=3), st.integers(-20, 20))
def test_an_interval_of_a_sum_is_exact(coefficients: list[int], const: int) -> None:
    expr = Expr.of(const)
    for name, coefficient in zip(BOXES, coefficients, strict=True):
        expr = expr + Expr.of(name) * coefficient
    seen = values(expr)
    assert interval(expr, RANGES) == Interval(min(seen), max(seen))


def test_intervals_of_divisions_follow_the_rounding() -> None:
    i = Expr.of("i")
    assert interval((i + 5) // 4, RANGES) == Interval(1, 2)
    assert interval((i - 3) // 2, RANGES) == Interval(-2, 0)
    assert interval((i + 4) % 8, RANGES) == Interval(4, 7)
    assert interval((i + 6) % 8, RANGES) == Interval(0, 7)
    assert interval(i + "elsewhere", RANGES) == Interval(None, None)
    assert interval(Expr.of("n") * -2, {"n": Interval(1, None)}) == Interval(None, -2)


@given(expressions(), st.fixed_dictionaries({n: st.integers(1, 8) for n in BOXES}))
def test_a_divisor_divides_every_value(expr: Expr, steps: dict[str, int]) -> None:
    found = divisor(expr, steps)
    for value in values(expr, steps):
        assert value == 0 if found == 0 else value % found == 0


def test_divisors_of_sums_are_found() -> None:
    assert divisor(Expr.of("i") * 8 + 12, {}) == 4
    assert divisor(Expr.of("K") * 3, {"K": 8}) == 24
    assert divisor(Expr.of(0), {}) == 0
    assert divisor(Expr.of("K") % 12, {"K": 8}) == 4
    assert divisor(Expr.of("K") // 4, {"K": 8}) == 2


# ---------------------------------------------------------------- registers


def kernel(body: str) -> Kernel:
    head = """\
kernel k target sm_90a warps 1x32 grid [1]
  in x: f32[64] strides [1] align 4
  out y: f32[64] strides [1] align 4
  reg a: f32[8]
  reg b: f32[16]
  reg c: f32[32]
  reg h: f16[3]
"""
    return parse_kernel(head + body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", 0),
        ("  h[0] = 0.0:f16", 2),
        ("  a[0] = 0.0:f32\n  b[0] = 0.0:f32\n  c[0] = 0.0:f32", 32),
        ("  a[0] = 0.0:f32\n  b[0] = a[0]\n  c[0] = b[0]", 48),
        ("  a[0] = 0.0:f32\n  b[0] = 0.0:f32\n  c[0] = a[0] + b[0]", 56),
        # In a loop, b does not outlive its iteration; a is carried by it.
        ("  loop i < 4:\n    b[0] = 0.0:f32\n    store y[i] = b[0]\n    c[0] = 0.0:f32", 32),
        (
            "  a[0] = 0.0:f32\n  loop i < 4:\n    b[0] = a[0]\n    c[0] = b[0]",
            8 + 16 + 32,
        ),
        # The sum lives through the loop although it is first used in it.
        ("  loop i < 4:\n    along j < 1: a[j] add= 1.0:f32\n    c[0] = 0.0:f32", 32 + 8),
        # b is used before the loop and late in it: it lives throughout.
        ("  b[0] = 0.0:f32\n  loop i < 4:\n    c[0] = 0.0:f32\n    store y[i] = b[0]", 48),
    ],
)
def test_the_register_estimate_adds_what_is_in_use_at_once(body: str, words: int) -> None:
    assert register_estimate(kernel(body)) == words


def test_the_register_estimate_of_the_samples() -> None:
    assert register_estimate(gemm()) == 32 + 4 + 16  # acc throughout, ra and rb in the loop
    assert register_estimate(row_sum()) == 2
