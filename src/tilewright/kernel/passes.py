"""Passes over kernel IR: each takes a kernel and gives an equivalent one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.base.dtypes import boolean
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCopy,
    Body,
    Const,
    DataIndex,
    Decode,
    Holds,
    If,
    Kernel,
    Load,
    Loop,
    Mma,
    Over,
    Reduce,
    Statement,
    Store,
    Symbol,
    Value,
    When,
)
from tilewright.kernel.ranges import Interval, interval
from tilewright.kernel.rewrite import map_values, substitute, with_body
from tilewright.poly.expr import Constraint, Expr, Guard


def simplify(kernel: Kernel) -> Kernel:
    """Drop guards that always hold, code that never runs, and loops and digits of extent 1.

    With ``K >= 1 multiple 64``, before::

        loop ko < (K + 63) / 64:
          for i < 1: load ra[i] = a[64*ko + t] if 64*ko + t < K
        if 1 <= K:
          barrier

    and after::

        loop ko < (K + 63) / 64:
          load ra[0] = a[64*ko + t]
        barrier

    What holds is decided from the extents of digits and loops, the symbols' lower bounds and
    multiples, and the contracts that bound one symbol by a number.
    """
    return replace(kernel, body=_body(kernel.body, _facts(kernel)))


# ---------------------------------------------------------------- what is known


@dataclass(frozen=True, slots=True)
class _Facts:
    """Symbols and variables in scope. A symbol with a multiple is counted in units of it.

    Each variable runs over 0 <= variable < extent; `order` lists them, inner ones last.
    """

    scale: Mapping[str, Expr | int | str]
    symbols: Mapping[str, Interval]
    extents: Mapping[str, Expr] = field(default_factory=dict[str, Expr])

    def bind(self, name: str, extent: Expr | int) -> _Facts:
        grown = {**self.extents, name: Expr.of(extent).substitute(self.scale)}
        return _Facts(self.scale, self.symbols, grown)

    def holds(self, constraint: Constraint) -> bool:
        """Whether it surely holds."""
        expr = constraint.expr.substitute(self.scale)
        above = self._at_least_zero(expr)
        return above and (not constraint.equality or self._at_least_zero(-expr))

    def fails(self, constraint: Constraint) -> bool:
        """Whether it surely does not hold."""
        expr = constraint.expr.substitute(self.scale)
        below = self._at_least_zero(-expr - 1)
        return below or (constraint.equality and self._at_least_zero(expr - 1))

    def _at_least_zero(self, expr: Expr) -> bool:
        """Whether expr >= 0: put each variable, inner ones first, at the end that is least."""
        ranges = dict(self.symbols)
        for name, extent in self.extents.items():
            high = interval(extent, ranges).high
            ranges[name] = Interval(0, None if high is None else high - 1)
        for name in reversed(tuple(self.extents)):
            coefficient = dict(expr.terms).get(name, 0)
            inside = any(
                not isinstance(t, str) and name in t.num.variables() for t, _ in expr.terms
            )
            if coefficient and not inside:
                end = Expr.of(0) if coefficient > 0 else self.extents[name] - 1
                expr = expr.substitute({name: end})
        low = interval(expr, ranges).low
        return low is not None and low >= 0


def _facts(kernel: Kernel) -> _Facts:
    scale: dict[str, Expr | int | str] = {
        s.name: Expr.of(s.name) * s.multiple for s in kernel.symbols if s.multiple > 1
    }
    return _Facts(scale, {s.name: _known(s, kernel.contracts) for s in kernel.symbols})


def _known(symbol: Symbol, contracts: Guard) -> Interval:
    """What a symbol may be, in units of its multiple."""
    lows, highs = [symbol.low], [2**31 - 1]
    for contract in contracts:
        number = contract.expr.const
        match contract.expr.terms:
            case ((symbol.name, 1),):
                lows.append(-number)
                highs.extend([-number] * contract.equality)
            case ((symbol.name, -1),):
                highs.append(number)
                lows.extend([number] * contract.equality)
            case _:
                pass
    return Interval(-(-max(lows) // symbol.multiple), min(highs) // symbol.multiple)


# ---------------------------------------------------------------- statements


def _body(body: Body, facts: _Facts) -> Body:
    result: list[Statement] = []
    for statement in body:
        result.extend(_statement(statement, facts))
        if isinstance(statement, Decode):
            for name, extent in statement.digits:
                facts = facts.bind(name, extent)
        if isinstance(statement, DataIndex):
            facts = facts.bind(statement.var, statement.extent)
    same = len(result) == len(body) and all(a is b for a, b in zip(result, body, strict=True))
    return body if same else tuple(result)


def _statement(statement: Statement, facts: _Facts) -> Body:
    match statement:
        case Loop():
            return _loop(statement, facts)
        case If(guard, body):
            if _never(guard, facts):
                return ()
            kept, inner = _guard(guard, facts), _body(body, facts)
            if not inner or (not kept and not _declares(inner)):
                return inner
            return (
                with_body(statement, inner) if kept is guard else If(kept, inner, statement.span),
            )
        case When(condition, body):
            return (
                replace(statement, condition=_value(condition, facts), body=_body(body, facts)),
            )
        case Assign() | Load() | Store() | AsyncCopy() | Mma() | Reduce():
            return _instances(_without_units(statement), facts)
        case _:
            return (statement,)


def _loop(loop: Loop, facts: _Facts) -> Body:
    """``loop i < 1: f(i)`` -> ``f(0)``, and a loop of extent 0 -> nothing."""
    if loop.extent.is_const and loop.extent.const <= 0:
        return ()
    if loop.extent == Expr.of(1) and not _declares(loop.body):
        return _body(substitute(loop.body, {loop.var: 0}), facts)
    inner = _body(loop.body, facts.bind(loop.var, loop.extent))
    return (with_body(loop, inner),) if inner else ()


def _declares(body: Body) -> bool:
    """Whether the body binds variables at its top: they would leak out of it."""
    return any(isinstance(statement, Decode | DataIndex) for statement in body)


_Instances = Assign | Load | Store | AsyncCopy | Mma | Reduce


def _without_units(statement: _Instances) -> _Instances:
    """``for i < 1: f(i)`` -> ``f(0)``; digits that a matrix load or a reduction names stay."""
    named: tuple[str, ...] = ()
    if isinstance(statement, Load) and statement.matrix is not None:
        named = statement.matrix.tiles
    units = [name for name, extent in statement.over if extent == 1 and name not in named]
    if not units:
        return statement
    kept: Over = tuple(digit for digit in statement.over if digit[0] not in units)
    (result,) = substitute((statement,), dict.fromkeys(units, 0))
    return replace(result, over=kept) if isinstance(result, _Instances) else statement


def _instances(statement: _Instances, facts: _Facts) -> Body:
    for name, extent in statement.over:
        facts = facts.bind(name, extent)
    match statement:
        case Store():
            if _never(statement.guard, facts):
                return ()
            guard = _guard(statement.guard, facts)
            return (statement if guard is statement.guard else replace(statement, guard=guard),)
        case Load() | AsyncCopy():
            guard = _guard(statement.guard, facts)
            return (statement if guard is statement.guard else replace(statement, guard=guard),)
        case Assign():
            value = _value(statement.value, facts)
        case Reduce():
            for name, extent in statement.along:
                facts = facts.bind(name, extent)
            value = _value(statement.value, facts)
        case Mma():
            return (statement,)
    return (statement if value == statement.value else replace(statement, value=value),)


def _guard(guard: Guard, facts: _Facts) -> Guard:
    """Without the constraints that always hold; the same object where all stay."""
    kept = tuple(constraint for constraint in guard if not facts.holds(constraint))
    return guard if len(kept) == len(guard) else kept


def _never(guard: Guard, facts: _Facts) -> bool:
    return any(facts.fails(constraint) for constraint in guard)


def _value(value: Value, facts: _Facts) -> Value:
    """``select(holds(..), a, b)`` -> ``a`` or ``b`` where the guard is decided."""

    def decide(value: Value) -> Value:
        match value:
            case Holds(guard):
                if _never(guard, facts):
                    return Const(value=False, dtype=boolean)
                kept = _guard(guard, facts)
                return Holds(kept) if kept else Const(value=True, dtype=boolean)
            case Apply("select", (Const(condition), yes, no)):
                return yes if condition else no
            case _:
                return value

    return map_values(value, decide)
