"""How the steps of a skeleton depend on loop counters: only modulo a period, or otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, lcm

from tilewright.kernel.ops import Decode
from tilewright.kernel.ranges import Interval
from tilewright.lower.obligations.async_skeleton import Skeleton
from tilewright.lower.obligations.async_steps import (
    DecodeStep,
    IfStep,
    LoopStep,
    PlainStep,
    Step,
    cells_of,
)
from tilewright.poly.expr import Constraint, Div, Expr, Mod

_PARITY = 2


@dataclass(frozen=True, slots=True)
class Periods:
    """`of[name]`: every value that a step asks for is the same when the variable grows by this.

    A variable that is not in it has no such period. Guards are apart: `guards[name]` are the
    constraints that compare the variable with something; remainders in them are in the period.
    `counters` has the range of each loop's counter, in any turn of the loops around it.
    """

    of: Mapping[str, int]
    guards: Mapping[str, tuple[Constraint, ...]]
    counters: Mapping[str, Interval]

    @staticmethod
    def in_(skeleton: Skeleton) -> Periods:
        periods: dict[str, int | None] = {}
        guards: dict[str, list[Constraint]] = {}
        inner: set[str] = set()

        def need(name: str, period: int | None) -> None:
            known = periods.get(name, 1)
            periods[name] = None if known is None or period is None else lcm(known, period)

        for step in walked(skeleton.body):
            for expr, modulus in _asked(step):
                for name in expr.variables():
                    exact = _exactly(expr, name) if modulus == 0 else _modulo(expr, name, modulus)
                    need(name, exact)
            for constraint in _guards(step):
                for name in constraint.expr.variables():
                    need(name, _compared(constraint.expr, name))
                    guards.setdefault(name, []).append(constraint)
            if isinstance(step, LoopStep):
                for name in (step.var, *step.values["extent"].names):
                    need(name, 1)
                inner.update(step.values["extent"].names)
        loops = {s.var for s in walked(skeleton.body) if isinstance(s, LoopStep)}
        for name in inner & loops:
            need(name, None)  # a loop whose number of turns varies
        found = {name: period for name, period in periods.items() if period is not None}
        kept = {name: tuple(own) for name, own in guards.items()}
        return Periods(found, kept, _counters(skeleton.body))


def _counters(body: tuple[Step, ...]) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    for step in walked(body):
        if isinstance(step, LoopStep):
            extent = step.values["extent"].expr
            last = extent.const - 1 if extent.is_const else None
            known = found.get(step.var, Interval(0, 0))
            high = None if last is None or known.high is None else max(last, known.high)
            found[step.var] = Interval(0, high)
    return found


def walked(body: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, outer before inner."""
    for step in body:
        yield step
        if isinstance(step, LoopStep | IfStep):
            yield from walked(step.body)


def _asked(step: Step) -> Iterator[tuple[Expr, int]]:
    """Expressions whose value counts, and modulo what (0: as it is)."""
    match step:
        case DecodeStep(statement=Decode(source=source)):
            yield source, 0
        case PlainStep():
            for cell in cells_of(step):
                yield cell.expr, 0
        case LoopStep():
            return
        case _:
            for name, cell in step.values.items():
                yield cell.expr, _PARITY if name == "parity" else 0
            for cell in cells_of(step):
                if cell not in step.values.values():
                    yield cell.expr, 0


def _guards(step: Step) -> Iterator[Constraint]:
    match step:
        case IfStep():
            yield from step.condition.guard
        case PlainStep():
            for touch in step.touches:
                yield from touch.guard.guard
        case _:
            pass


def _exactly(expr: Expr, name: str) -> int | None:
    """By how much the variable may grow with the value unchanged."""
    period = 1
    for term, _ in expr.terms:
        match term:
            case str():
                own = None if term == name else 1
            case Mod(num, den):
                own = _modulo(num, name, den)
            case Div(num, _):
                own = None if name in num.variables() else 1
        if own is None:
            return None
        period = lcm(period, own)
    return period


def _modulo(expr: Expr, name: str, modulus: int) -> int | None:
    """By how much the variable may grow with the value unchanged modulo `modulus`."""
    period = 1
    for term, coefficient in expr.terms:
        rest = modulus // gcd(modulus, coefficient)
        match term:
            case str():
                own = rest if term == name else 1
            case Mod(num, den):
                own = _modulo(num, name, den)
            case Div(num, den):
                own = _modulo(num, name, den * rest)
        if own is None:
            return None
        period = lcm(period, own)
    return period


def _compared(expr: Expr, name: str) -> int | None:
    """The period of the remainders in a guard; None where it divides by more."""
    period = 1
    for term, _ in expr.terms:
        match term:
            case str():
                continue
            case Mod(num, den):
                own = _modulo(num, name, den)
            case Div(num, _):
                own = None if name in num.variables() else 1
        if own is None:
            return None
        period = lcm(period, own)
    return period
