"""Integer expressions as C text, and what their variables' ranges allow.

C's division truncates; the IR's goes to minus infinity. Where a range shows that a dividend is
not negative the two agree and the plain operator is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.kernel.ops import Over, Swizzle
from tilewright.poly.expr import Constraint, Div, Expr, Guard, Mod, Term


@dataclass(frozen=True, slots=True)
class Range:
    """low <= value <= high; None where there is no bound."""

    low: int | None
    high: int | None

    def scaled(self, factor: int) -> Range:
        ends = (self.low, self.high) if factor >= 0 else (self.high, self.low)
        low, high = (None if end is None else end * factor for end in ends)
        return Range(low, high)

    def plus(self, other: Range) -> Range:
        return Range(
            None if self.low is None or other.low is None else self.low + other.low,
            None if self.high is None or other.high is None else self.high + other.high,
        )


def counting(extent: Expr) -> Range:
    """The range of a digit with `extent` values."""
    return Range(0, max(extent.const - 1, 0) if extent.is_const else None)


@dataclass(frozen=True, slots=True)
class Scope:
    """The variables that may be read here. Digits with one value are `fixed` at 0.

    `unrolled` are those of unrolled loops, `serial` those of the other loops.
    """

    ranges: Mapping[str, Range]
    fixed: Mapping[str, Expr | int | str] = field(default_factory=dict[str, Expr | int | str])
    unrolled: frozenset[str] = frozenset()
    serial: frozenset[str] = frozenset()

    def with_variable(self, name: str, values: Range) -> Scope:
        """The scope after the definition of a digit."""
        return replace(self, ranges={**self.ranges, name: values})

    def with_loop(self, name: str, values: Range, *, unrolled: bool) -> Scope:
        """The scope within a loop."""
        scope = self.with_variable(name, values)
        if unrolled:
            return replace(scope, unrolled=self.unrolled | {name})
        return replace(scope, serial=self.serial | {name})

    def with_over(self, over: Over) -> Scope:
        """The scope within the unrolled loops over digits."""
        spread = {name: Range(0, extent - 1) for name, extent in over if extent > 1}
        return Scope(
            {**self.ranges, **spread},
            {**self.fixed, **{name: 0 for name, extent in over if extent == 1}},
            self.unrolled | spread.keys(),
            self.serial,
        )

    def resolve(self, expr: Expr) -> Expr:
        return expr.substitute(self.fixed) if self.fixed else expr

    def range_of(self, expr: Expr) -> Range:
        total = Range(expr.const, expr.const)
        for term, coefficient in expr.terms:
            total = total.plus(self.range_of_term(term).scaled(coefficient))
        return total

    def range_of_term(self, term: Term) -> Range:
        match term:
            case str():
                return self.ranges.get(term, Range(None, None))
            case Div(num, den):
                inner = self.range_of(num)
                low, high = (None if e is None else e // den for e in (inner.low, inner.high))
                return Range(low, high)
            case Mod(num, den):
                inner = self.range_of(num)
                if inner.low is not None and inner.low >= 0 and inner.high is not None:
                    return Range(0, min(den - 1, inner.high))
                return Range(0, den - 1)

    def is_natural(self, expr: Expr) -> bool:
        low = self.range_of(expr).low
        return low is not None and low >= 0


@dataclass(frozen=True, slots=True)
class IndexPrinter:
    """Prints expressions in one scope. `name` gives a variable's C identifier."""

    scope: Scope
    name: Callable[[str], str]
    wide: bool = False  # compute in 64 bits

    def text(self, expr: Expr) -> str:
        """C for `expr`, fit to stand alone or as an argument, not as an operand."""
        expr = self.scope.resolve(expr)
        parts: list[str] = []
        for term, coefficient in expr.terms:
            sign = "-" if coefficient < 0 else "+"
            size = abs(coefficient)
            atom = self._term(term)
            product = atom if size == 1 else f"{atom} * {size}"
            parts.append(f"{sign} {product}")
        if expr.const or not parts:
            parts.append(f"{'-' if expr.const < 0 else '+'} {abs(expr.const)}")
        line = " ".join(parts)
        return line[2:] if line.startswith("+ ") else "-" + line[2:]

    def operand(self, expr: Expr) -> str:
        """C for `expr`, fit to be multiplied, cast or subscripted."""
        line = self.text(expr)
        return line if is_atom(line) else f"({line})"

    def constraint(self, constraint: Constraint) -> str:
        """C for a constraint, with positive terms on both sides of the comparison."""
        expr = self.scope.resolve(constraint.expr)
        upper = Expr(tuple((t, c) for t, c in expr.terms if c > 0), max(expr.const, 0))
        lower = Expr(tuple((t, -c) for t, c in expr.terms if c < 0), max(-expr.const, 0))
        if constraint.equality:
            return f"{self.text(lower)} == {self.text(upper)}"
        if lower.const == 1:
            return f"{self.text(lower - 1)} < {self.text(upper)}"
        return f"{self.text(lower)} <= {self.text(upper)}"

    def guard(self, guard: Guard) -> str:
        """C for a conjunction; empty where it holds for every value in range."""
        kept = [c for c in guard if not self._is_evident(c)]
        return " && ".join(self.constraint(c) for c in kept)

    def _is_evident(self, constraint: Constraint) -> bool:
        expr = self.scope.resolve(constraint.expr)
        if constraint.equality:
            return expr.is_const and expr.const == 0
        return self.scope.is_natural(expr)

    def _term(self, term: Term) -> str:
        match term:
            case str():
                return f"(long long){self.name(term)}" if self.wide else self.name(term)
            case Div(num, den):
                return self._quotient(num, den)
            case Mod(num, den):
                return self._remainder(num, den)

    def _quotient(self, num: Expr, den: int) -> str:
        if self.scope.is_natural(num):
            return f"({self.operand(num)} / {den})"
        if den & (den - 1) == 0:
            return f"({self.operand(num)} >> {den.bit_length() - 1})"
        return f"tw_floordiv({self.text(num)}, {self._literal(den)})"

    def _remainder(self, num: Expr, den: int) -> str:
        if self.scope.is_natural(num):
            return f"({self.operand(num)} % {den})"
        if den & (den - 1) == 0:
            return f"({self.operand(num)} & {den - 1})"
        return f"tw_mod({self.text(num)}, {self._literal(den)})"

    def _literal(self, value: int) -> str:
        return f"{value}ll" if self.wide else str(value)


def bare(text: str) -> str:
    """Without one pair of parentheses that encloses all of `text`."""
    return text[1:-1] if text.startswith("(") and is_atom(text) else text


def is_atom(line: str) -> bool:
    """Whether a C expression is one name, one number or one pair of parentheses."""
    if line.replace("_", "a").isalnum():
        return True
    if not (line.startswith("(") and line.endswith(")")):
        return False
    depth = 0
    for place, sign in enumerate(line):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return place == len(line) - 1
    return False


# ---------------------------------------------------------------- swizzles


def running_part(offset: Expr, swizzle: Swizzle | None, scope: Scope) -> Expr:
    """The terms that only serial loops change and that pass through the swizzle unchanged.

    Added to the pointer they cost one addition for all accesses of an iteration; what is left
    of the offset does not change with the loops.
    """
    period = _period(swizzle) if swizzle else 1
    kept = ((t, c) for t, c in offset.terms if c % period == 0 and _within(t, scope.serial))
    return Expr(tuple(kept))


def _period(swizzle: Swizzle) -> int:
    """Multiples of it pass through the swizzle unchanged."""
    return 1 << (swizzle.base + swizzle.shift + swizzle.bits)


def _within(term: Term, names: frozenset[str]) -> bool:
    """Whether a term reads variables, and only these."""
    variables = Expr(((term, 1),)).variables()
    return bool(variables) and variables <= names


def swizzled(offset: Expr, swizzle: Swizzle, printer: IndexPrinter) -> str:
    """C for the swizzle of `offset`, written so that most of it is loop-invariant.

    A swizzle is linear over bits: where two parts of a sum share no bit, the sum is their XOR
    and the swizzle distributes over it. A multiple of ``2**(base + shift + bits)`` passes
    through unchanged. So the thread's part is computed once, and an unrolled digit costs an
    XOR with a constant.
    """
    scope = printer.scope
    offset = scope.resolve(offset)
    period = _period(swizzle)
    high = Expr(
        tuple((t, c) for t, c in offset.terms if c % period == 0),
        offset.const // period * period,
    )
    low = offset - high
    parts = _disjoint_parts(low, scope)
    texts = [_swizzle_part(part, swizzle, printer) for part in parts]
    line = " ^ ".join(texts) or "0"
    if high.is_const and high.const == 0:
        return line
    return (
        f"({line}) + {printer.text(high)}" if len(texts) > 1 else f"{line} + {printer.text(high)}"
    )


def _disjoint_parts(low: Expr, scope: Scope) -> list[Expr]:
    """The sum as parts that share no bit: the thread's and the loops', then the unrolled one."""
    masks = [_bits(scope, term, coefficient) for term, coefficient in low.terms]
    seen = low.const if low.const >= 0 else None
    for mask in masks:
        if mask is None or seen is None or seen & mask:
            return [low]
        seen |= mask
    unrolled = scope.unrolled
    steady = Expr(tuple((t, c) for t, c in low.terms if not _within(t, unrolled)))
    spread = Expr(tuple((t, c) for t, c in low.terms if _within(t, unrolled)), low.const)
    return [part for part in (steady, spread) if part.terms or part.const]


def _bits(scope: Scope, term: Term, coefficient: int) -> int | None:
    """The bits that ``coefficient * term`` may set, as a mask; None where that is unknown."""
    values = scope.range_of_term(term)
    if coefficient <= 0 or values.low is None or values.low < 0 or values.high is None:
        return None
    reach = (coefficient * values.high).bit_length()
    lowest = (coefficient & -coefficient).bit_length() - 1
    return (1 << reach) - (1 << lowest) if reach > lowest else 0


def _swizzle_part(part: Expr, swizzle: Swizzle, printer: IndexPrinter) -> str:
    source = ((1 << swizzle.bits) - 1) << (swizzle.base + swizzle.shift)
    masks = [_bits(printer.scope, term, coefficient) for term, coefficient in part.terms]
    touched = part.const
    for mask in masks:
        if mask is None:
            break
        touched |= mask
    else:
        # Bits add up without a carry only where the parts are disjoint; a sum of masks bounds it.
        total = printer.scope.range_of(part).high or 0
        if touched & source == 0 and total < 1 << (swizzle.base + swizzle.shift):
            return printer.operand(part)
    return f"tw_swizzle<{swizzle.bits}, {swizzle.base}, {swizzle.shift}>({printer.text(part)})"
