"""Integer expressions on arrays of instances, threads and blocks, computed once per pattern.

Every array of the simulator has the shape ``[*instances, threads, blocks]`` or broadcasts to it
from the right: one axis per digit of a statement's domain, then the threads of a block, then the
blocks of the chunk. An index that does not depend on the block therefore stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import numpy as np

from tilewright.base.diagnostics import UndefinedSymbolError
from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.kernel.ops import Over
from tilewright.poly.expr import Constraint, Div, Expr, Guard, Mod, Term

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variable:
    """A digit, counter or symbol. Variables with equal keys have equal values."""

    value: int | IntArray
    key: Hashable


Scope = Mapping[str, Variable]


def number(value: int) -> Variable:
    return Variable(value, value)


@dataclass(frozen=True, slots=True)
class Affine:
    """``base + shift``: an array that stays, and a number that moves with the serial loops.

    `low` and `high` are the least and greatest value of `base`.
    """

    base: IntArray
    shift: int
    low: int
    high: int
    key: tuple[Hashable, ...]

    @property
    def moves(self) -> bool:
        """Whether it depends on anything but numbers."""
        return self.key != (self.key[0],)

    @property
    def value(self) -> IntArray:
        return self.base + self.shift if self.shift else self.base


@dataclass(frozen=True, slots=True)
class _Part:
    coefficient: int
    term: Term
    variables: tuple[str, ...]


def bind(scope: Scope, digits: Over, trailing: int = 0) -> dict[str, Variable]:
    """The scope with each digit of a domain along an axis of its own.

    `trailing` counts the instance axes to the right of the domain's own.
    """
    bound = dict(scope)
    for position, (name, extent) in enumerate(digits):
        rank = len(digits) - position - 1 + trailing + 2
        values = np.arange(extent, dtype=np.int64).reshape(extent, *(1,) * rank)
        bound[name] = Variable(values, ("digit", extent, rank))
    return bound


def instances(scope: Scope, *digits: Over) -> Iterator[Scope]:
    """One scope for each instance of a domain, in order, its digits bound to numbers."""
    names = [digit for group in digits for digit in group]
    for values in product(*(range(extent) for _, extent in names)):
        yield {**scope, **{n: number(v) for (n, _), v in zip(names, values, strict=True)}}


def evaluate(expr: Expr, scope: Scope) -> int | IntArray:
    """The value of an expression; UndefinedSymbolError where the scope lacks a variable."""
    total: Any = expr.const
    for term, coefficient in expr.terms:
        total = total + _term(term, scope) * coefficient
    return total


def _term(term: Term, scope: Scope) -> Any:
    match term:
        case str():
            return look_up(term, scope).value
        case Div(num, den):
            return evaluate(num, scope) // den
        case Mod(num, den):
            return evaluate(num, scope) % den


def look_up(name: str, scope: Scope) -> Variable:
    try:
        return scope[name]
    except KeyError:
        raise UndefinedSymbolError(
            f"nothing binds `{name}` here",
            expected="a symbol, a loop variable, or a digit that was decoded before",
        ) from None


class Indexer:
    """Evaluates expressions and keeps what was computed, per pattern of variables.

    Keys hold `id`s of parts of the kernel, so an indexer must not outlive its kernel.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget  # bytes
        self._used = 0
        self._kept: dict[Hashable, Any] = {}
        self._parts: dict[int, tuple[_Part, ...]] = {}

    def remember(self, key: Hashable, compute: Callable[[], T], size: Callable[[T], int]) -> T:
        """The result of `compute`, kept under `key`. `size` gives its bytes."""
        if key in self._kept:
            return self._kept[key]
        result = compute()
        self._used += size(result)
        if self._used > self._budget:
            self._kept.clear()
            self._used = size(result)
        self._kept[key] = result
        return result

    def affine(self, expr: Expr, scope: Scope) -> Affine:
        shift = expr.const
        moving: list[_Part] = []
        key: list[Hashable] = [id(expr)]
        for position, part in enumerate(self._split(expr)):
            variables = [look_up(name, scope) for name in part.variables]
            if all(isinstance(v.value, int) for v in variables):
                shift += part.coefficient * int(_term(part.term, scope))
            else:
                moving.append(part)
                key.append((position, *(v.key for v in variables)))
        found = tuple(key)

        def compute() -> tuple[IntArray, int, int]:
            base = np.zeros((1, 1), np.int64)
            for part in moving:
                base = base + _term(part.term, scope) * part.coefficient
            return base, int(base.min()), int(base.max())

        base, low, high = self.remember(found, compute, lambda r: r[0].nbytes)
        return Affine(base, shift, low, high, found)

    def _split(self, expr: Expr) -> tuple[_Part, ...]:
        parts = self._parts.get(id(expr))
        if parts is None:
            parts = tuple(
                _Part(coefficient, term, tuple(sorted(Expr(((term, 1),)).variables())))
                for term, coefficient in expr.terms
            )
            self._parts[id(expr)] = parts
        return parts

    def guard(self, guard: Guard, scope: Scope) -> BoolArray | None:
        """Where all constraints hold; None where they hold everywhere."""
        result: BoolArray | None = None
        for constraint in guard:
            holds = self._constraint(constraint, scope)
            result = both(result, holds)
        return result

    def _constraint(self, constraint: Constraint, scope: Scope) -> BoolArray | None:
        side = self.affine(constraint.expr, scope)
        low, high = side.low + side.shift, side.high + side.shift
        if constraint.equality:
            return None if low == high == 0 else side.base == -side.shift
        if low >= 0:
            return None
        if high < 0:
            return np.zeros((1, 1), np.bool_)
        return side.base >= -side.shift


def both(left: BoolArray | None, right: BoolArray | None) -> BoolArray | None:
    """The conjunction of two masks, where None holds everywhere."""
    if left is None:
        return right
    return left if right is None else left & right
