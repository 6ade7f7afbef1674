"""Phrases that the text of every kind of statement shares: digits, references, expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.poly.expr import Constraint, Div, Expr, Guard, Term

if TYPE_CHECKING:
    from tilewright.kernel.refs import MemRef, Over, ReducedAxis, RegRef


def show_over(over: Over, along: Over = ()) -> str:
    def digits(word: str, pairs: Over) -> str:
        return f"{word} " + ", ".join(f"{name} < {extent}" for name, extent in pairs)

    parts = [digits(word, pairs) for word, pairs in (("for", over), ("along", along)) if pairs]
    return " ".join(parts) + ": " if parts else ""


def show_reduces(axes: tuple[ReducedAxis, ...]) -> str:
    if not axes:
        return ""
    return " reduces " + ", ".join(
        f"{r.axis}[{show_expr(r.coordinate)}] of {show_expr(r.extent)}" for r in axes
    )


def show_ref(ref: RegRef | MemRef) -> str:
    return f"{ref.name}{show_list(ref.index)}"


def show_list(expressions: tuple[Expr, ...]) -> str:
    return f"[{', '.join(show_expr(e) for e in expressions)}]"


# ---------------------------------------------------------------- expressions


def show_expr(expr: Expr) -> str:
    """An expression, with parentheses only where they are needed."""
    parts: list[str] = []
    for term, coefficient in expr.terms:
        text = _term(term)
        if coefficient == -1 and not parts and not isinstance(term, str):
            text = f"({text})"  # a leading minus would bind to the numerator
        if abs(coefficient) != 1:
            text = f"{abs(coefficient)}*{text if isinstance(term, str) else f'({text})'}"
        parts += ("-" if coefficient < 0 else "+", text)
    if expr.const or not parts:
        parts += ("-" if expr.const < 0 else "+", str(abs(expr.const)))
    lead = "-" if parts[0] == "-" else ""
    return lead + " ".join(parts[1:])


def _term(term: Term) -> str:
    if isinstance(term, str):
        return term
    inner = show_expr(term.num)
    simple = term.num.const == 0 and all(isinstance(t, str) for t, _ in term.num.terms)
    if not (simple and len(term.num.terms) == 1 and term.num.terms[0][1] == 1):
        inner = f"({inner})"
    return f"{inner} {'/' if isinstance(term, Div) else '%'} {term.den}"


def show_guard(guard: Guard) -> str:
    """A conjunction; ``true`` where it is empty."""
    return " and ".join(_constraint(c) for c in guard) if guard else "true"


def _constraint(constraint: Constraint) -> str:
    """``a - b - 1 >= 0`` -> ``b < a``: each side keeps the terms that are positive there."""
    expr = constraint.expr
    # "m < 8" rather than "m <= 7", "m < M" rather than "m + 1 <= M", but "0 <= m".
    upper = expr.const >= 0 and bool(expr.terms) and all(c < 0 for _, c in expr.terms)
    strict = not constraint.equality and (expr.const < 0 or upper)
    const = expr.const + 1 if strict else expr.const
    right = Expr(tuple((t, c) for t, c in expr.terms if c > 0), max(const, 0))
    left = Expr(tuple((t, -c) for t, c in expr.terms if c < 0), max(-const, 0))
    if constraint.equality:
        return f"{show_expr(right)} == {show_expr(left)}"
    return f"{show_expr(left)} {'<' if strict else '<='} {show_expr(right)}"
