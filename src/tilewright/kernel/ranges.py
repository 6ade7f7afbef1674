"""What is known of an expression without a proof: an interval of its values, and a divisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from tilewright.poly.expr import Div, Expr, Mod, Term


@dataclass(frozen=True, slots=True)
class Interval:
    """low <= value <= high; None where a side is not bounded."""

    low: int | None
    high: int | None

    @staticmethod
    def of(value: int) -> Interval:
        return Interval(value, value)

    def __add__(self, other: Interval) -> Interval:
        return Interval(_sum(self.low, other.low), _sum(self.high, other.high))

    def __mul__(self, factor: int) -> Interval:
        if factor == 0:
            return Interval.of(0)
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Interval(low, high) if factor > 0 else Interval(high, low)

    def within(self, low: int, high: int) -> bool:
        """Whether every value lies in low .. high."""
        return (
            self.low is not None and self.low >= low
            and self.high is not None and self.high <= high
        )  # fmt: skip


ANY = Interval(None, None)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def interval(expr: Expr, ranges: Mapping[str, Interval]) -> Interval:
    """An interval that holds every value of `expr`; names that `ranges` lacks may be anything.

    Exact where each variable occurs once and no division does; otherwise it may be too wide.
    """
    total = Interval.of(expr.const)
    for term, coefficient in expr.terms:
        total = total + _term(term, ranges) * coefficient
    return total


def _term(term: Term, ranges: Mapping[str, Interval]) -> Interval:
    match term:
        case str():
            return ranges.get(term, ANY)
        case Div(num, den):
            inner = interval(num, ranges)
            return Interval(
                None if inner.low is None else inner.low // den,
                None if inner.high is None else inner.high // den,
            )
        case Mod(num, den):
            inner = interval(num, ranges)
            # Within one multiple of the divisor the remainder is a shift.
            if inner.low is not None and inner.high is not None:
                whole = inner.low // den
                if whole == inner.high // den:
                    return inner + Interval.of(-whole * den)
            return Interval(0, den - 1)


def divisor(expr: Expr, multiples: Mapping[str, int]) -> int:
    """A number that divides every value of `expr`; 0 where the value is always 0.

    `multiples` gives a divisor for variables that have one.
    """
    result = abs(expr.const)
    for term, coefficient in expr.terms:
        match term:
            case str():
                factor = multiples.get(term, 1)
            case Mod(num, den):
                factor = gcd(divisor(num, multiples), den)
            case Div(num, den):
                inner = divisor(num, multiples)
                factor = inner // den if inner % den == 0 else 1
        result = gcd(result, coefficient * factor)
    return result
