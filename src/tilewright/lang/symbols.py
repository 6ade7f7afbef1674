"""Symbols: names of axes and of tile sizes, with the arithmetic that constraints use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.base.diagnostics import ConstraintError, ShapeError, UndefinedSymbolError
from tilewright.base.spans import Span


@dataclass(frozen=True, slots=True, repr=False)
class Size:
    """An integer expression of symbols: a name, a number, or an operation on two sizes."""

    op: str  # "symbol", "number", or one of + - * // and / (exact)
    value: str | int = 0
    args: tuple[Size, ...] = ()

    def __add__(self, other: Size | int) -> Size:
        return _binary("+", self, other)

    def __sub__(self, other: Size | int) -> Size:
        return _binary("-", self, other)

    def __mul__(self, other: Size | int) -> Size:
        return _binary("*", self, other)

    def __floordiv__(self, other: Size | int) -> Size:
        return _binary("//", self, other)

    def __truediv__(self, other: Size | int) -> Size:
        """Wave writes ``BLOCK_M / 2`` for a wave's share: an exact division."""
        return _binary("/", self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: int) -> Size:
        return _binary("-", Size("number", other), self)

    @property
    def name(self) -> str:
        """The symbol's name; the expression's text where it is not a symbol."""
        return str(self)

    def __str__(self) -> str:
        if self.op in ("symbol", "number"):
            return str(self.value)
        left, right = self.args
        return f"({left} {self.op} {right})"

    __repr__ = __str__

    def symbols(self) -> frozenset[str]:
        if self.op == "symbol":
            return frozenset({str(self.value)})
        return frozenset[str]().union(*(a.symbols() for a in self.args))


def _binary(op: str, left: Size, right: Size | int) -> Size:
    return Size(op, 0, (left, size_of(right)))


def size_of(value: Size | int) -> Size:
    return value if isinstance(value, Size) else Size("number", value)


def axis_name(axis: object, span: Span | None) -> str:
    """The name of an axis; ShapeError where `axis` is not a symbol."""
    if isinstance(axis, Size) and axis.op == "symbol":
        return str(axis.value)
    raise ShapeError(
        f"{axis!r} is not an axis",
        span=span,
        expected="a symbol, for example tw.sym.M",
        mend="name the axis with a symbol, and bind its size when compiling",
    )


def evaluate(size: Size, bindings: Mapping[str, int], span: Span | None) -> int:
    """The number that `size` stands for.

    UndefinedSymbolError where a symbol is not bound, ConstraintError where ``/`` is not exact.
    """
    match size.op:
        case "number":
            return int(size.value)
        case "symbol":
            if size.value not in bindings:
                raise UndefinedSymbolError(
                    f"the symbol {size.value} has no value",
                    span=span,
                    expected="a number for every symbol that sets a tile size or a stride",
                    mend=f"bind it: compile(bindings={{{size.value}: 128}}) or "
                    f"@tw.kernel(..., bindings={{{size.value}: 128}})",
                )
            return bindings[str(size.value)]
        case _:
            left, right = (evaluate(a, bindings, span) for a in size.args)
            if size.op in ("/", "//") and (not right or (size.op == "/" and left % right)):
                raise ConstraintError(
                    f"{size} is {left} {size.op} {right}, which is not whole",
                    span=span,
                    expected="a division without a remainder" if right else "a divisor but zero",
                    mend="bind sizes that divide, or round down with //",
                )
            return {"+": left + right, "-": left - right, "*": left * right}.get(
                size.op, left // right if right else 0
            )


class _Names:
    """``sym.M`` is the symbol named M."""

    def __getattr__(self, name: str) -> Size:
        if name.startswith("__"):
            raise AttributeError(name)
        return Size("symbol", name)


sym = _Names()
