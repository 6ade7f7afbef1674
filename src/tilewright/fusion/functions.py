"""Functions of floats that back ends lack, composed of those that they have.

Operands are in the type that compositions are computed in; the caller rounds the result.
"""

from __future__ import annotations

import math

from tilewright.base.dtypes import f64
from tilewright.fusion.emit import Emitter, Value


def select(e: Emitter, condition: Value, a: Value, b: Value) -> Value:
    return e.map("select", condition, a, b)


def trunc(e: Emitter, x: Value) -> Value:
    below = e.map("lt", x, e.number(x, 0))
    return select(e, below, e.map("ceil", x), e.map("floor", x))


def signed(e: Emitter, sign_of: Value, size: Value) -> Value:
    negative = e.map("lt", sign_of, e.number(sign_of, 0))
    return select(e, negative, e.map("neg", size), size)


def log1p(e: Emitter, x: Value) -> Value:
    """Kahan's: the error of 1 + x cancels in x / ((1 + x) - 1)."""
    one = e.number(x, 1)
    u = e.map("add", x, one)
    exact = e.map("mul", e.map("log", u), e.map("div", x, e.map("sub", u, one)))
    infinite = e.map("eq", x, e.number(x, math.inf))
    return select(e, e.map("eq", u, one), x, select(e, infinite, x, exact))


def expm1(e: Emitter, x: Value) -> Value:
    """Kahan's: (exp(x) - 1) * x / log(exp(x))."""
    one = e.number(x, 1)
    u = e.map("exp", x)
    less = e.map("sub", u, one)
    exact = e.map("div", e.map("mul", less, x), e.map("log", u))
    ends = e.map("or", e.map("eq", less, e.number(x, -1)), e.map("gt", u, e.number(x, 1e30)))
    return select(e, e.map("eq", u, one), x, select(e, ends, less, exact))


def sinh(e: Emitter, x: Value) -> Value:
    size = e.map("abs", x)
    t = expm1(e, size)
    more = e.map("div", t, e.map("add", t, e.number(x, 1)))
    small = e.map("mul", e.number(x, 0.5), e.map("add", t, more))
    # Halved in the exponent, a result that just fits does not overflow on the way.
    root = e.map("exp", e.map("mul", size, e.number(x, 0.5)))
    large = e.map("mul", e.map("mul", e.number(x, 0.5), root), root)
    return signed(e, x, select(e, e.map("gt", size, e.number(x, 20)), large, small))


def cosh(e: Emitter, x: Value) -> Value:
    root = e.map("exp", e.map("mul", e.map("abs", x), e.number(x, 0.5)))
    half = e.map("mul", e.number(x, 0.5), root)
    return e.map("add", e.map("mul", half, root),
                 e.map("div", e.number(x, 0.5), e.map("mul", root, root)))  # fmt: skip


def asinh(e: Emitter, x: Value) -> Value:
    one, size = e.number(x, 1), e.map("abs", x)
    square = e.map("mul", size, size)
    root = e.map("sqrt", e.map("add", square, one))
    inner = e.map("add", size, e.map("div", square, e.map("add", one, root)))
    large = e.map("add", e.map("log", size), e.number(x, math.log(2)))
    is_large = e.map("gt", size, e.number(x, 1e8))
    return signed(e, x, select(e, is_large, large, log1p(e, inner)))


def acosh(e: Emitter, x: Value) -> Value:
    one = e.number(x, 1)
    t = e.map("sub", x, one)
    root = e.map("sqrt", e.map("mul", t, e.map("add", t, e.number(x, 2))))
    large = e.map("add", e.map("log", x), e.number(x, math.log(2)))
    small = log1p(e, e.map("add", t, root))
    return select(e, e.map("gt", x, e.number(x, 1e8)), large, small)


def atanh(e: Emitter, x: Value) -> Value:
    one = e.number(x, 1)
    t = e.map("div", e.map("mul", e.number(x, 2), x), e.map("sub", one, x))
    return e.map("mul", e.number(x, 0.5), log1p(e, t))


def atan(e: Emitter, x: Value) -> Value:
    """Halve the angle until the series of few terms is exact, then double it back."""
    one, size = e.number(x, 1), e.map("abs", x)
    inverted = e.map("gt", size, one)
    t = select(e, inverted, e.map("reciprocal", size), size)
    halvings, terms = (3, 10) if x.dtype == f64 else (2, 7)
    for _ in range(halvings):
        root = e.map("sqrt", e.map("add", one, e.map("mul", t, t)))
        t = e.map("div", t, e.map("add", one, root))
    square = e.map("mul", t, t)
    total = e.number(x, 0)
    for k in reversed(range(terms)):
        term = e.number(x, (-1) ** k / (2 * k + 1))
        total = e.map("add", term, e.map("mul", square, total))
    angle = e.map("mul", e.map("mul", t, total), e.number(x, 2**halvings))
    turned = e.map("sub", e.number(x, math.pi / 2), angle)
    return signed(e, x, select(e, inverted, turned, angle))


def asin(e: Emitter, x: Value) -> Value:
    """By the angle whose tangent is x / sqrt((1 - x) * (1 + x))."""
    one = e.number(x, 1)
    root = e.map("sqrt", e.map("mul", e.map("sub", one, x), e.map("add", one, x)))
    return atan(e, e.map("div", x, root))


def acos(e: Emitter, x: Value) -> Value:
    """Twice the angle whose tangent is sqrt((1 - x) / (1 + x))."""
    one = e.number(x, 1)
    ratio = e.map("div", e.map("sub", one, x), e.map("add", one, x))
    return e.map("mul", e.number(x, 2), atan(e, e.map("sqrt", ratio)))


def sigmoid(e: Emitter, x: Value) -> Value:
    return e.map("reciprocal", e.map("add", e.number(x, 1), e.map("exp", e.map("neg", x))))


def silu(e: Emitter, x: Value) -> Value:
    return e.map("div", x, e.map("add", e.number(x, 1), e.map("exp", e.map("neg", x))))


def log10(e: Emitter, x: Value) -> Value:
    return e.map("mul", e.map("log", x), e.number(x, 1 / math.log(10)))


def frac(e: Emitter, x: Value) -> Value:
    return e.map("sub", x, trunc(e, x))
