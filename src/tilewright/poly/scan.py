"""Tokens of the text forms of the compiler's intermediates, and the phrases that they share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NoReturn, Self

from tilewright.base.diagnostics import KernelTextError
from tilewright.base.dtypes import ALL_DTYPES, DType
from tilewright.poly.expr import Constraint, Expr, Guard, equal

_TOKEN = re.compile(
    r"\s*(?:[A-Za-z_][\w.]*|\d+(?:\.\d*)?(?:e[+-]?\d+)?"
    r"|->|<<|>>|<=|>=|==|!=|\+=|[-+*/%()\[\],:<>=&|^])"
)
DTYPES = {dtype.name: dtype for dtype in ALL_DTYPES}
_COMPARISONS: dict[str, Callable[[Expr, Expr], Constraint]] = {
    "<": lambda left, right: Constraint(right - left - 1),
    "<=": lambda left, right: Constraint(right - left),
    ">": lambda left, right: Constraint(left - right - 1),
    ">=": lambda left, right: Constraint(left - right),
    "==": equal,
}


class Line:
    """The tokens of one line and a position in them."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text
        code, _, note = text.partition("//")
        note = note.removeprefix(" ")
        self.note = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], note)
        self.indent = len(code) - len(code.lstrip(" "))
        self.tokens: list[str] = []
        self.columns: list[int] = []
        self.at = 0
        position, end = 0, len(code.rstrip())
        while position < end:
            match = _TOKEN.match(code, position)
            if match is None:
                self.tokens.append(code[position:end].strip())
                self.columns.append(position)
                self.at = len(self.tokens) - 1
                self.fail("a name, a number or a sign")
            self.tokens.append(match[0].strip())
            self.columns.append(match.end() - len(self.tokens[-1]))
            position = match.end()

    def fail(self, expected: str, back: int = 0) -> NoReturn:
        at = self.at - back
        found = repr(self.tokens[at]) if at < len(self.tokens) else "the end of the line"
        column = self.columns[at] if at < len(self.tokens) else len(self.text)
        raise KernelTextError(
            f"line {self.number}, column {column + 1}: expected {expected}, found {found}",
            expected=expected,
            notes=(self.text, " " * column + "^"),
        )

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def ahead(self) -> str:
        return self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""

    def accept(self, token: str) -> bool:
        found = self.peek() == token
        self.at += found
        return found

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(repr(token))

    def after(self, token: str) -> Self:
        self.expect(token)
        return self

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.fail("the end of the line")

    def name(self) -> str:
        if not re.match(r"[A-Za-z_]", self.peek()):
            self.fail("a name")
        self.at += 1
        return self.tokens[self.at - 1]

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        if not self.peek().isdecimal():
            self.fail("an integer")
        self.at += 1
        return sign * int(self.tokens[self.at - 1])

    def optional(self, word: str, default: int) -> int:
        return self.integer() if self.accept(word) else default

    def dtype(self) -> DType:
        dtype = DTYPES.get(self.peek())
        if dtype is None:
            self.fail("an element type")
        self.at += 1
        return dtype

    def literal(self) -> float | int | bool:
        sign = -1 if self.accept("-") else 1
        token = self.peek()
        self.at += 1
        if token in ("true", "false") and sign == 1:
            return token == "true"
        if token == "nan":
            return math.nan  # the one object, so that equal texts give equal kernels
        if token.isdecimal():
            return sign * int(token)
        if token == "inf" or token[:1].isdecimal():
            return sign * float(token)
        return self.fail("a number", back=1)

    # ------------------------------------------------------------ expressions

    def expr(self) -> Expr:
        total = -self._product() if self.accept("-") else self._product()
        while self.peek() in ("+", "-"):
            negative = self.accept("-")
            if not negative:
                self.expect("+")
            total = total - self._product() if negative else total + self._product()
        return total

    def _product(self) -> Expr:
        result = self._atom()
        while (sign := self.peek()) in ("*", "/", "%"):
            self.at += 1
            if sign == "*":
                factor = self._atom()
                if not (result.is_const or factor.is_const):
                    self.fail("a constant factor", back=1)
                result = result * factor.const if factor.is_const else factor * result.const
            else:
                divisor = self.integer()
                if divisor < 1:
                    self.fail("a positive divisor", back=1)
                result = result // divisor if sign == "/" else result % divisor
        return result

    def _atom(self) -> Expr:
        if self.accept("("):
            inner = self.expr()
            self.expect(")")
            return inner
        if self.peek().isdecimal():
            return Expr.of(self.integer())
        return Expr.of(self.name())

    def expressions(self) -> tuple[Expr, ...]:
        self.expect("[")
        result: list[Expr] = []
        while not self.accept("]"):
            if result:
                self.expect(",")
            result.append(self.expr())
        return tuple(result)

    def extents(self) -> tuple[int, ...]:
        expressions = self.expressions()
        if not all(e.is_const for e in expressions):
            self.fail("constant extents", back=1)
        return tuple(e.const for e in expressions)

    def guard(self) -> Guard:
        if self.accept("true"):
            return ()
        result = [self._constraint()]
        while self.accept("and"):
            result.append(self._constraint())
        return tuple(result)

    def _constraint(self) -> Constraint:
        left = self.expr()
        compare = _COMPARISONS.get(self.peek())
        if compare is None:
            self.fail("a comparison")
        self.at += 1
        return compare(left, self.expr())
