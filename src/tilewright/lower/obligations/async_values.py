"""Index expressions of asynchronous kernels, evaluated for one warp at a time."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.poly.expr import Constraint, Expr, Guard


class OpenError(Exception):
    """The execution cannot go on because something is not known; the text says what."""


class Lanes:
    """A value for each lane of a warp. Compared by identity: equal inputs give one object."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[int, ...]) -> None:
        self.values = values


Value = int | Lanes


class Env(dict[str, Value]):
    """The variables that a warp sees. Never changed once an event has taken note of it."""

    __slots__ = ()

    def __missing__(self, name: str) -> Value:
        raise OpenError(f"the value of {name} is not known")


def collapsed(values: Iterable[int]) -> Value:
    """The one value of all lanes, or the value of each."""
    each = tuple(values)
    return each[0] if each.count(each[0]) == len(each) else Lanes(each)


def lanes_of(value: Value, lane: int) -> int:
    return value if isinstance(value, int) else value.values[lane]


class Cell:
    """An expression; its results are kept by the values of its variables."""

    __slots__ = ("_kept", "expr", "names")

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.names = tuple(sorted(expr.variables()))
        self._kept: dict[object, Value] = {}

    def __call__(self, env: Env) -> Value:
        if not self.names:
            return self.expr.const
        key = tuple([env[name] for name in self.names])
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = _evaluate(self.expr, self.names, key)
        return found

    def number(self, env: Env, what: str) -> int:
        """The value, where it is the same for all lanes."""
        value = self(env)
        if isinstance(value, Lanes):
            raise OpenError(f"{what} differs within a warp: {self.expr}")
        return value

    def active(self, env: Env, mask: int, what: str) -> int:
        """The value, where it is the same for the lanes of `mask`."""
        value = self(env)
        if isinstance(value, int):
            return value
        some = {v for lane, v in enumerate(value.values) if mask >> lane & 1}
        if len(some) != 1:
            raise OpenError(f"{what} differs within a warp: {self.expr}")
        return some.pop()


def _evaluate(expr: Expr, names: tuple[str, ...], key: tuple[Value, ...]) -> Value:
    whole: dict[str, int] = {}
    apart: dict[str, Lanes] = {}
    for name, value in zip(names, key, strict=True):
        if isinstance(value, Lanes):
            apart[name] = value
        else:
            whole[name] = value
    if not apart:
        return expr.evaluate(whole)
    moved = [(apart[t], c) for t, c in expr.terms if isinstance(t, str) and t in apart]
    rest = Expr(tuple(t for t in expr.terms if t[0] not in apart), expr.const)
    width = len(next(iter(apart.values())).values)
    if not rest.variables() & apart.keys():
        each = [rest.evaluate(whole)] * width
    else:
        each = [
            rest.evaluate({**whole, **{n: v.values[lane] for n, v in apart.items()}})
            for lane in range(width)
        ]
    for lanes, coefficient in moved:
        each = [e + coefficient * v for e, v in zip(each, lanes.values, strict=True)]
    return collapsed(each)


class Condition:
    """A guard, as a mask of the lanes in which it holds."""

    __slots__ = ("_kept", "guard", "lanes", "names")

    def __init__(self, guard: Guard, lanes: int) -> None:
        self.guard = guard
        self.lanes = lanes
        self.names = tuple(sorted({n for c in guard for n in c.expr.variables()}))
        self._kept: dict[object, int] = {}

    def __call__(self, env: Env) -> int:
        key = tuple([env[name] for name in self.names])
        found = self._kept.get(key)
        if found is None:
            found = (1 << self.lanes) - 1
            for constraint in self.guard:
                found &= self._holds(constraint, key)
            self._kept[key] = found
        return found

    def _holds(self, constraint: Constraint, key: tuple[Value, ...]) -> int:
        value = _evaluate(constraint.expr, self.names, key)
        if isinstance(value, int):
            holds = value == 0 if constraint.equality else value >= 0
            return (1 << self.lanes) - 1 if holds else 0
        mask = 0
        for lane, v in enumerate(value.values):
            if v == 0 if constraint.equality else v >= 0:
                mask |= 1 << lane
        return mask
