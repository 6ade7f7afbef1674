"""Sets of integer points against enumeration, and the operation limit."""

from __future__ import annotations

import random
from itertools import product
from time import perf_counter

import pytest

from tilewright.poly.expr import Constraint, Expr, Guard, at_least, equal, less
from tilewright.poly.prove import Piece, Unknown, prove_exactly_once
from tilewright.poly.sets import Dim, LimitError, Parameter, World, interval

NAMES = ("a", "b", "c")


def _expr(rng: random.Random, names: tuple[str, ...]) -> Expr:
    """A small random expression, at times with a division or a mod inside."""
    total = Expr.of(rng.randint(-4, 4))
    for name in names:
        total = total + Expr.of(name) * rng.choice((-2, -1, 0, 1, 1, 3))
    if rng.random() < 0.5:
        inner = sum((Expr.of(n) * rng.choice((0, 1, 2, 5)) for n in names), Expr.of(1))
        den = rng.choice((2, 3, 4))
        total = total + (inner // den if rng.random() < 0.5 else inner % den)
    return total


def _case(seed: int) -> tuple[tuple[Dim, ...], Guard]:
    rng = random.Random(seed)
    dims = tuple(Dim.of(n, rng.randint(1, 5)) for n in NAMES)
    guard = tuple(
        Constraint(_expr(rng, (*NAMES, "M")), equality=rng.random() < 0.2)
        for _ in range(rng.randint(1, 3))
    )
    return dims, guard


def _holds(guard: Guard, values: dict[str, int]) -> bool:
    return all(
        (v == 0 if c.equality else v >= 0) for c in guard for v in (c.expr.evaluate(values),)
    )


def _points(dims: tuple[Dim, ...], guard: Guard, m: int) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    for values in product(*(range(d.extent.evaluate({"M": m})) for d in dims)):
        if _holds(guard, {**dict(zip(NAMES, values, strict=True)), "M": m}):
            found.add(values)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_points_and_emptiness(seed: int) -> None:
    dims, guard = _case(seed)
    world = World((Parameter("M", 2, 3, 10),), limit=2_000_000)
    expected = {m: _points(dims, guard, m) for m in (3, 6, 9)}
    assert world.is_empty(dims, guard) == (not any(expected.values()))
    found = world.points(dims, guard)
    first = found.first()
    whole = [(m, p) for m in (3, 6, 9) for p in sorted(expected[m])]
    if first is None:
        assert not whole
        return
    assert (first.bindings()["M"], tuple(v for _, v in first.values)) == whole[0]
    here = found.at(first)
    points = expected[whole[0][0]]
    assert here.count() == len(points)
    assert here.spread() == tuple(
        (min(p[i] for p in points), max(p[i] for p in points)) for i in range(3)
    )


@pytest.mark.parametrize("seed", range(40))
def test_images_subtract_and_injectivity(seed: int) -> None:
    dims, guard = _case(seed)
    rng = random.Random(1000 + seed)
    index = (_expr(rng, NAMES), _expr(rng, NAMES))
    world = World((Parameter("M", 6, 3, 6),), limit=2_000_000)
    points = [dict(zip(NAMES, p, strict=True)) for p in _points(dims, guard, 6)]
    reached = [tuple(e.evaluate(p) for e in index) for p in points]
    image = world.image(dims, guard, index)
    box = world.box((Expr.of(5), Expr.of(4)))
    left = set(product(range(5), range(4))) - set(reached)
    assert box.subtract(image).is_empty() == (not left)
    if left:
        first = box.subtract(image).first()
        assert first is not None
        assert tuple(v for _, v in first.values) == min(left)
    graph = world.image(dims, guard, index, keep=NAMES)
    assert graph.injective_from(NAMES) == (len(set(reached)) == len(reached))


def test_a_multiple_makes_a_ceiling_exact() -> None:
    m = Expr.of("M")
    beyond = (at_least(m.ceildiv(8) * 8, m + 1),)
    assert World((Parameter("M", 1, 8),)).is_empty((), beyond)
    point = World((Parameter("M"),)).points((), beyond).first()
    assert point is not None
    assert point.symbols == (("M", 1),)


def test_contracts_restrict_the_sizes() -> None:
    symbols = (Parameter("M"), Parameter("N"))
    assert not World(symbols).is_empty((), (less("M", "N"),))
    assert World(symbols, (at_least("M", "N"),)).is_empty((), (less("M", "N"),))


def test_interval_contains_every_value() -> None:
    rng = random.Random(5)
    for _ in range(200):
        expr = _expr(rng, NAMES)
        ranges = {n: (rng.randint(-3, 0), rng.randint(0, 4)) for n in NAMES}
        low, high = interval(expr, ranges)
        values = [
            expr.evaluate(dict(zip(NAMES, v, strict=True)))
            for v in product(*(range(a, b + 1) for a, b in ranges.values()))
        ]
        assert low <= min(values)
        assert max(values) <= high


def _tangle(count: int) -> tuple[tuple[Dim, ...], Guard, tuple[Expr, ...]]:
    """Mods and divisions by many different numbers: no digit structure, so isl has to search."""
    dims = tuple(Dim.of(f"d{i}", "M") for i in range(count))
    weave = sum((Expr.of(d.name) * (7 * i + 3) for i, d in enumerate(dims)), Expr.of(0))
    guard = tuple(less((weave + i) % (11 + i), (weave // (5 + i)) % (9 + i)) for i in range(count))
    return dims, guard, ((weave * 3) % 1009, (weave // 7) % 997)


def test_a_blow_up_ends_as_unknown_quickly() -> None:
    dims, guard, index = _tangle(8)
    world = World((Parameter("M", 100),))
    start = perf_counter()
    result = prove_exactly_once(
        world, (Piece(dims, guard, index),), (Expr.of(1009), Expr.of(997)), "y"
    )
    assert perf_counter() - start < 20
    assert isinstance(result, Unknown)
    assert result.reason == "more than 10000 isl operations"
    # The world still answers afterwards.
    world.fresh()
    assert world.is_empty((Dim.of("i", 4),), (equal("i", 5),))


def test_limit_is_an_error_of_its_own() -> None:
    dims, guard, index = _tangle(4)
    world = World((Parameter("M", 100),), limit=50)
    with pytest.raises(LimitError, match="more than 50 isl operations"):
        world.image(dims, guard, index, keep=tuple(d.name for d in dims)).injective_from(
            tuple(d.name for d in dims)
        )
