"""Expressions against Python's own integers, by random programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.poly.expr import Constraint, Div, Expr, Mod, at_least, equal, less

NAMES = ("a", "b", "K", "t0")
Point = dict[str, int]
Meaning = Callable[[Point], int]
Pair = tuple[Expr, Meaning]  # an expression, and what it must evaluate to

small = st.integers(-40, 40)
divisors = st.integers(1, 12)
points = st.fixed_dictionaries({name: st.integers(-100, 100) for name in NAMES})


def constant(value: int) -> Pair:
    return Expr.of(value), lambda _: value


def variable(name: str) -> Pair:
    return Expr.of(name), lambda at: at[name]


def add(left: Pair, right: Pair) -> Pair:
    return left[0] + right[0], lambda at: left[1](at) + right[1](at)


def sub(left: Pair, right: Pair) -> Pair:
    return left[0] - right[0], lambda at: left[1](at) - right[1](at)


def mul(pair: Pair, factor: int) -> Pair:
    return pair[0] * factor, lambda at: pair[1](at) * factor


def div(pair: Pair, den: int) -> Pair:
    return pair[0] // den, lambda at: pair[1](at) // den


def mod(pair: Pair, den: int) -> Pair:
    return pair[0] % den, lambda at: pair[1](at) % den


def ceil(pair: Pair, den: int) -> Pair:
    return pair[0].ceildiv(den), lambda at: -(-pair[1](at) // den)


leaves = st.one_of(st.builds(constant, small), st.builds(variable, st.sampled_from(NAMES)))
pairs = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(add, inner, inner),
        st.builds(sub, inner, inner),
        st.builds(mul, inner, small),
        st.builds(div, inner, divisors),
        st.builds(mod, inner, divisors),
        st.builds(ceil, inner, divisors),
    ),
    max_leaves=10,
)


def terms_of(expr: Expr) -> list[tuple[object, int]]:
    """The terms of the expression and of every numerator in it."""
    found = list(expr.terms)
    for term, _ in expr.terms:
        if isinstance(term, Div | Mod):
            found.extend(terms_of(term.num))
    return found


@given(pairs, points)
def test_evaluates_as_integers_do(pair: Pair, at: Point) -> None:
    assert pair[0].evaluate(at) == pair[1](at)


@given(pairs, points)
def test_text_reads_back_as_the_same_number(pair: Pair, at: Point) -> None:
    text = str(pair[0]).replace("/", "//")
    assert eval(text, {"__builtins__": {}}, at) == pair[1](at)


@given(pairs)
def test_no_zero_coefficient_and_no_duplicate_term(pair: Pair) -> None:
    assert all(coefficient != 0 for _, coefficient in terms_of(pair[0]))
    assert len({term for term, _ in pair[0].terms}) == len(pair[0].terms)


@given(pairs, pairs, pairs)
def test_sums_do_not_depend_on_their_order(x: Pair, y: Pair, z: Pair) -> None:
    assert (x[0] + y[0]) + z[0] == z[0] + (y[0] + x[0])
    assert x[0] - x[0] == Expr.of(0)
    assert hash(x[0] + y[0]) == hash(y[0] + x[0])


@given(pairs, st.fixed_dictionaries({"a": pairs, "K": pairs}), points)
def test_substitution_is_composition(pair: Pair, values: dict[str, Pair], at: Point) -> None:
    substituted = pair[0].substitute({name: value[0] for name, value in values.items()})
    inner = {**at, **{name: value[1](at) for name, value in values.items()}}
    assert substituted.evaluate(at) == pair[1](inner)


@given(pairs, points)
def test_variables_are_the_ones_it_needs(pair: Pair, at: Point) -> None:
    used = pair[0].variables()
    assert used <= set(NAMES)
    pair[0].evaluate({name: at[name] for name in used})
    for name in used:
        with pytest.raises(KeyError, match=name):
            pair[0].evaluate({other: at[other] for other in used - {name}})


@given(pairs, divisors, points)
def test_quotient_and_remainder_fit_together(pair: Pair, den: int, at: Point) -> None:
    expr = pair[0]
    assert (expr // den * den + expr % den).evaluate(at) == expr.evaluate(at)
    assert 0 <= (expr % den).evaluate(at) < den


@given(pairs, pairs, points)
def test_constraints_are_comparisons(left: Pair, right: Pair, at: Point) -> None:
    def holds(constraint: Constraint) -> bool:
        value = constraint.expr.evaluate(at)
        return value == 0 if constraint.equality else value >= 0

    x, y = left[1](at), right[1](at)
    assert holds(less(left[0], right[0])) == (x < y)
    assert holds(at_least(left[0], right[0])) == (x >= y)
    assert holds(equal(left[0], right[0])) == (x == y)
    assert holds(less("a", "b").substitute({"a": left[0], "b": right[0]})) == (x < y)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Expr.of(0), "0"),
        (Expr.of(-3), "-3"),
        (Expr.of("M") * -2 + 5, "-2*M + 5"),
        (Expr.of("n") + Expr.of("m") * 4 - 1, "4*m + n - 1"),
        (Expr.of("m").ceildiv(128), "(m + 127) / 128"),
        (-(Expr.of("m") // 4), "-((m) / 4)"),
        (Expr.of("m") % 4 * 16 + "n", "n + 16*((m) % 4)"),
        ((Expr.of("m") * 8 + Expr.of("n") + 19) // 8, "m + (n + 3) / 8 + 2"),
        (less("m", "M"), "M - m - 1 >= 0"),
        (equal("m", 3), "m - 3 == 0"),
    ],
)
def test_text(expr: Expr | Constraint, text: str) -> None:
    assert str(expr) == text


def test_multiples_of_the_divisor_come_out() -> None:
    block, lane = Expr.of("block"), Expr.of("lane")
    assert (block * 64 + lane * 32 + 96) // 32 == block * 2 + lane + 3
    assert (block * 64 + lane) // 32 == block * 2 + lane // 32
    assert (block * 64 + lane + 33) % 32 == (lane + 1) % 32
    assert block // 1 == block
    assert block % 1 == Expr.of(0)


def test_equal_terms_add_up_in_a_quotient() -> None:
    x = Expr.of("x")
    assert ((x // 4) * 4 + x) // 4 == (x // 4) * 2


def test_numpy_integers_are_numbers() -> None:
    assert Expr.of("x") + np.int64(3) == Expr.of("x") + 3


@pytest.mark.parametrize("value", [1.5, None, np.float32(2)])
def test_other_values_are_rejected(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        Expr.of(value)


@pytest.mark.parametrize("den", [0, -4])
def test_divisor_must_be_positive(den: int) -> None:
    with pytest.raises(ValueError, match=f"a divisor must be positive, got {den}"):
        Expr.of("x") // den
    with pytest.raises(ValueError, match=f"a divisor must be positive, got {den}"):
        Expr.of("x") % den
