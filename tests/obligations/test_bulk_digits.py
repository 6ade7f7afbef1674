"""Equations between numbers are solved digit by digit: the same points as by enumeration."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tilewright.lower.obligations.tracing import solve
from tilewright.poly.expr import Constraint, Expr, at_least, equal
from tilewright.poly.sets import Dim

V = Expr.of


def numbers(random: Random) -> tuple[dict[str, Dim], list[Constraint]]:
    """Two numbers in digits of their own that are the same, and perhaps a bound."""
    dims: dict[str, Dim] = {}
    sides: list[Expr] = []
    for side in "ab":
        total, weight = V(random.choice((0, 0, 0, 1, -2))), 1
        for i in range(random.choice((1, 2, 3))):
            extent = random.choice((2, 2, 3, 4))
            dims[f"{side}{i}"] = Dim.of(f"{side}{i}", extent)
            total = total + V(f"{side}{i}") * weight
            weight *= random.choice((extent, extent, extent, 1, extent + 1))
        sides.append(total)
    rows = [equal(*sides)]
    if random.random() < 0.3:
        rows.append(at_least(sides[0], 3))
    return dims, rows


def points(dims: dict[str, Dim], rows: list[Constraint]) -> list[dict[str, int]]:
    found: list[dict[str, int]] = []
    for values in product(*(range(d.extent.const) for d in dims.values())):
        at = dict(zip(dims, values, strict=True))
        sides = ((c.expr.evaluate(at), c.equality) for c in rows)
        if all(n == 0 if equality else n >= 0 for n, equality in sides):
            found.append(at)
    return found


@pytest.mark.parametrize("seed", range(150))
def test_solving_keeps_the_points(seed: int) -> None:
    dims, rows = numbers(Random(seed))
    left, rest, values = solve(dims, rows)
    assert left.keys() | values.keys() == dims.keys()
    solved = [at | {n: e.evaluate(at) for n, e in values.items()} for at in points(left, rest)]
    key = lambda at: tuple(at[n] for n in dims)  # noqa: E731
    assert sorted(map(key, solved)) == sorted(map(key, points(dims, rows)))


def test_numbers_of_the_same_digits_need_no_rows() -> None:
    """A column in two layouts: what is left are the digits of one, with nothing to prove."""
    extents = {
        "x": 64, "hi": 8, "mid": 4, "low": 2, "group": 4, "pair": 2, "lane": 4, "bit": 2,
    }  # fmt: skip
    dims = {n: Dim.of(n, e) for n, e in extents.items()}
    rows = [
        equal("x", V("hi") * 8 + V("mid") * 2 + "low"),
        equal("x", V("group") * 16 + V("pair") * 8 + V("lane") * 2 + "bit"),
    ]
    left, rest, _ = solve(dims, rows)
    assert rest == []
    assert len(left) == 4
