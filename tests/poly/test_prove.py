"""Questions about accesses over digits against enumeration."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from tilewright.poly.expr import Expr, Guard, less
from tilewright.poly.prove import (
    Assumed,
    Piece,
    Proved,
    Refuted,
    Unknown,
    find,
    prove_at_most_once,
    prove_bounds,
    prove_covered,
    prove_exactly_once,
)
from tilewright.poly.sets import Dim, Parameter, World

SHAPE = (Expr.of("M"), Expr.of(6))
SIZES = (1, 2, 3, 5, 7, 8, 9, 10)


def _piece(rng: random.Random) -> Piece:
    """Digits that nearly tile M x 6: often exact, often with one number off."""
    outer, inner = rng.choice(((4, 2), (2, 2), (8, 1), (2, 4)))
    dims = (
        Dim("mo", Expr.of("M").ceildiv(outer)),
        Dim.of("mi", outer // inner + rng.choice((0, 0, 0, -1, 1))),
        Dim.of("mr", inner),
        Dim.of("no", 3 - rng.choice((0, 0, 0, 1))),
        Dim.of("ni", 2),
    )
    row = Expr.of("mo") * outer + Expr.of("mi") * inner + "mr" + rng.choice((0, 0, 0, 1, -1))
    column = Expr.of("no") * rng.choice((2, 2, 2, 1)) + Expr.of("ni")
    guard: Guard = (less(row, "M"),) if rng.random() < 0.8 else ()
    return Piece(dims, guard, (row, column))


def _touched(piece: Piece, m: int) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for values in product(*(range(d.extent.evaluate({"M": m})) for d in piece.dims)):
        bound = {"M": m, **{d.name: v for d, v in zip(piece.dims, values, strict=True)}}
        if all(c.expr.evaluate(bound) >= 0 for c in piece.guard):
            found[tuple(e.evaluate(bound) for e in piece.index)] += 1
    return found


def _inside(element: tuple[int, ...], m: int) -> bool:
    return 0 <= element[0] < m and 0 <= element[1] < 6


@pytest.mark.parametrize("seed", range(120))
def test_verdicts_and_witnesses(seed: int) -> None:
    piece = _piece(random.Random(seed))
    world = World((Parameter("M"),))
    touched = {m: _touched(piece, m) for m in SIZES}

    within = prove_bounds(world, piece, SHAPE, "y")
    assert isinstance(within, Proved) == all(
        _inside(e, m) for m, found in touched.items() for e in found
    )
    if isinstance(within, Refuted):
        (_, m), *_ = within.witness.symbols
        assert within.witness.element in _touched(piece, m)
        assert not _inside(within.witness.element, m)

    covered = prove_covered(world, (piece,), SHAPE, "y")
    gaps = {m: set(product(range(m), range(6))) - found.keys() for m, found in touched.items()}
    assert isinstance(covered, Proved) == (not any(gaps.values()))
    if isinstance(covered, Refuted):
        (_, m), *_ = covered.witness.symbols
        missing = set(product(range(m), range(6))) - _touched(piece, m).keys()
        assert covered.witness.element == min(missing)
        assert f"{len(missing)} of {m * 6} elements are missing" in covered.notes

    once = prove_at_most_once(world, (piece,), "y")
    assert isinstance(once, Proved) == all(
        max(f.values(), default=0) <= 1 for f in touched.values()
    )
    if isinstance(once, Refuted):
        (_, m), *_ = once.witness.symbols
        one, two = (dict(side) for side in once.witness.instances)
        assert one != two
        for side in (one, two):
            assert tuple(e.evaluate({"M": m, **side}) for e in piece.index) == once.witness.element

    whole = prove_exactly_once(world, (piece,), SHAPE, "y")
    assert isinstance(whole, Proved) == (isinstance(covered, Proved) and isinstance(once, Proved))


def _rows(low: int, high: int, **more: bool) -> Piece:
    row = Expr.of("i") + low
    return Piece((Dim.of("i", high - low), Dim.of("j", 3)), (), (row, Expr.of("j")), **more)  # type: ignore[arg-type]


def test_pieces_together() -> None:
    world, shape = World(), (Expr.of(8), Expr.of(3))
    assert prove_exactly_once(world, (_rows(0, 5), _rows(5, 8)), shape, "y") == Proved(
        "all 24 elements of y are written exactly once"
    )
    gap = prove_exactly_once(world, (_rows(0, 4), _rows(5, 8)), shape, "y")
    assert isinstance(gap, Refuted)
    assert gap.message == "row 4 of y is never written"
    overlap = prove_exactly_once(world, (_rows(0, 6), _rows(5, 8)), shape, "y")
    assert isinstance(overlap, Refuted)
    assert overlap.witness.element == (5, 0)
    assert overlap.witness.instances == ((("i", 5), ("j", 0)), (("i", 0), ("j", 0)))


def test_pieces_that_may_not_run() -> None:
    world, shape = World(), (Expr.of(8), Expr.of(3))
    pieces = (_rows(0, 5), _rows(5, 8, optional=True))
    assert isinstance(prove_exactly_once(world, pieces, shape, "y"), Assumed)
    assert isinstance(prove_at_most_once(world, pieces, "y"), Proved)
    both = (_rows(0, 8), _rows(5, 8, optional=True))
    assert isinstance(prove_at_most_once(world, both, "y"), Unknown)


def test_inexact_pieces_prove_but_do_not_refute() -> None:
    world, shape = World(), (Expr.of(8), Expr.of(3))
    vague = Piece((Dim.of("i", 9), Dim.of("j", 3)), (), (Expr.of("i"), Expr.of("j")), "", "vague")
    assert prove_bounds(world, vague, shape, "y") == Unknown("vague")
    assert isinstance(prove_at_most_once(world, (vague,), "y"), Proved)
    assert prove_covered(world, (vague,), shape, "y") == Unknown("vague")


def test_find_gives_the_smallest_point_over_all_dims() -> None:
    world = World((Parameter("M"),))
    dims = (Dim.of("a", 4), Dim.of("b", 8), Dim("c", Expr.of("M")))
    number = Expr.of("a") * 8 + "b"
    point = find(world, dims, (less(20, number), less(Expr.of("c") * -1, -4)))
    assert point is not None
    assert point.symbols == (("M", 6),)
    assert point.values == (("a", 2), ("b", 5), ("c", 5))
    assert find(world, dims, (less(31, number),)) is None


@pytest.mark.parametrize(
    ("shape", "low", "text"),
    [
        ((12,), 7, "elements 0 to 6 of y are never written"),
        ((12,), 1, "element 0 of y is never written"),
        ((4, 12), 11, "columns 0 to 10 of y are never written"),
        ((2, 4, 12), 5, "indices 2 = 0 to 4 of y are never written"),
        ((12,), 12, "y is never written"),
    ],
)
def test_ranges_in_words(shape: tuple[int, ...], low: int, text: str) -> None:
    dims = tuple(Dim.of(f"d{i}", n) for i, n in enumerate(shape))
    index = tuple(Expr.of(d.name) for d in dims)
    piece = Piece(dims, (less(low - 1, index[-1]),), index)
    found = prove_covered(World(), (piece,), tuple(Expr.of(n) for n in shape), "y")
    assert isinstance(found, Refuted)
    assert found.message == text
