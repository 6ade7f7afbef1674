"""Integer expressions: affine in named variables, with floor division and mod by constants.

Variables are digits, loop counters and symbols (sizes); they share one name space.
A symbolic divisor never occurs here: merged counters are decoded by `Decode` statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index


@dataclass(frozen=True, slots=True)
class Div:
    """floor(num / den), den > 0."""

    num: Expr
    den: int

    def __str__(self) -> str:
        return f"({self.num}) / {self.den}"


@dataclass(frozen=True, slots=True)
class Mod:
    """num - den * floor(num / den), den > 0."""

    num: Expr
    den: int

    def __str__(self) -> str:
        return f"({self.num}) % {self.den}"


Term = str | Div | Mod


@dataclass(frozen=True, slots=True)
class Expr:
    """sum(coefficient * term) + const, in canonical order with no zero coefficient."""

    terms: tuple[tuple[Term, int], ...]
    const: int = 0

    @staticmethod
    def of(value: Expr | int | str) -> Expr:
        """A constant from an int (NumPy's too), a variable from its name; else TypeError."""
        if isinstance(value, Expr):
            return value
        if isinstance(value, str):
            return Expr(((value, 1),))
        return Expr((), index(value))

    @property
    def is_const(self) -> bool:
        return not self.terms

    def __add__(self, other: Expr | int | str) -> Expr:
        other = Expr.of(other)
        if not other.terms:
            return Expr(self.terms, self.const + other.const)
        sums: dict[Term, int] = dict(self.terms)
        for term, coefficient in other.terms:
            sums[term] = sums.get(term, 0) + coefficient
        return _canonical(sums, self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: Expr | int | str) -> Expr:
        return self + Expr.of(other) * -1

    def __rsub__(self, other: Expr | int | str) -> Expr:
        return Expr.of(other) - self

    def __mul__(self, factor: int) -> Expr:
        if factor == 0:
            return Expr((), 0)
        return Expr(tuple((t, c * factor) for t, c in self.terms), self.const * factor)

    __rmul__ = __mul__

    def __floordiv__(self, den: int) -> Expr:
        """floor(self / den); multiples of `den` come out whole. ValueError where den < 1."""
        rest = self._remainder(den)
        whole: dict[Term, int] = {t: c // den for t, c in self.terms if c % den == 0}
        if rest.terms:
            part = Div(rest, den)
            whole[part] = whole.get(part, 0) + 1
        return _canonical(whole, self.const // den)

    def __mod__(self, den: int) -> Expr:
        """self - den * (self // den). ValueError where den < 1."""
        rest = self._remainder(den)
        return Expr(((Mod(rest, den), 1),)) if rest.terms else rest

    def _remainder(self, den: int) -> Expr:
        """What is left without the multiples of `den`: equal to self modulo `den`."""
        if den < 1:
            raise ValueError(f"a divisor must be positive, got {den}")
        return Expr(tuple((t, c) for t, c in self.terms if c % den), self.const % den)

    def ceildiv(self, den: int) -> Expr:
        """ceil(self / den)."""
        return (self + (den - 1)) // den

    def variables(self) -> frozenset[str]:
        return frozenset(_variables(self))

    def substitute(self, values: Mapping[str, Expr | int | str]) -> Expr:
        """Replace variables; those that `values` lacks stay. Where none occurs, the same object."""
        sums: dict[Term, int] = {}
        const, same = self.const, True
        for term, coefficient in self.terms:
            part = _replaced(term, values)
            if part is None:
                sums[term] = sums.get(term, 0) + coefficient
                continue
            same = False
            const += part.const * coefficient
            for inner, factor in part.terms:
                sums[inner] = sums.get(inner, 0) + factor * coefficient
        return self if same else _canonical(sums, const)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number, with every variable bound; KeyError where one is not."""
        total = self.const
        for term, coefficient in self.terms:
            match term:
                case str():
                    value = values[term]
                case Div(num, den):
                    value = num.evaluate(values) // den
                case Mod(num, den):
                    value = num.evaluate(values) % den
            total += coefficient * value
        return total

    def __str__(self) -> str:
        parts: list[str] = []
        for term, coefficient in self.terms:
            sign = "-" if coefficient < 0 else "+"
            size = abs(coefficient)
            text = term if isinstance(term, str) or coefficient == 1 else f"({term})"
            parts.append(f"{sign} {text}" if size == 1 else f"{sign} {size}*{text}")
        if self.const or not parts:
            parts.append(f"{'-' if self.const < 0 else '+'} {abs(self.const)}")
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]


def _replaced(term: Term, values: Mapping[str, Expr | int | str]) -> Expr | None:
    """A term with its variables replaced; None where it has none of them."""
    if isinstance(term, str):
        return Expr.of(values[term]) if term in values else None
    num = term.num.substitute(values)
    if num is term.num:
        return None
    return num // term.den if isinstance(term, Div) else num % term.den


def _place(item: tuple[Term, int]) -> tuple[bool, str]:
    """In the canonical order: variables come first, by their names."""
    term = item[0]
    return (False, term) if isinstance(term, str) else (True, str(term))


def _canonical(sums: Mapping[Term, int], const: int) -> Expr:
    kept = [(t, c) for t, c in sums.items() if c != 0]
    if len(kept) > 1:
        kept.sort(key=_place)
    return Expr(tuple(kept), const)


def _variables(expr: Expr) -> Iterator[str]:
    for term, _ in expr.terms:
        if isinstance(term, str):
            yield term
        else:
            yield from _variables(term.num)


@dataclass(frozen=True, slots=True)
class Constraint:
    """`expr >= 0`, or `expr == 0` where `equality` is set."""

    expr: Expr
    equality: bool = False

    def __str__(self) -> str:
        return f"{self.expr} {'==' if self.equality else '>='} 0"

    def substitute(self, values: Mapping[str, Expr | int | str]) -> Constraint:
        return Constraint(self.expr.substitute(values), self.equality)


def less(left: Expr | int | str, right: Expr | int | str) -> Constraint:
    """left < right."""
    return Constraint(Expr.of(right) - left - 1)


def at_least(left: Expr | int | str, right: Expr | int | str) -> Constraint:
    """left >= right."""
    return Constraint(Expr.of(left) - right)


def equal(left: Expr | int | str, right: Expr | int | str) -> Constraint:
    """left == right."""
    return Constraint(Expr.of(left) - right, equality=True)


Guard = tuple[Constraint, ...]  # a conjunction; the empty one always holds
