"""Questions about accesses over digits, decided. They know nothing of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from tilewright.poly.expr import Constraint, Expr, Guard, at_least, less
from tilewright.poly.lemmas import compact
from tilewright.poly.results import (
    Assumed,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
)
from tilewright.poly.results import Kind as Kind  # noqa: PLC0414
from tilewright.poly.results import Obligation as Obligation  # noqa: PLC0414
from tilewright.poly.sets import Dim, IntSet, LimitError, Point, World

# ---------------------------------------------------------------- questions


@dataclass(frozen=True, slots=True)
class Piece:
    """The accesses ``index`` for every value of the dims where the guard holds.

    An `inexact` piece has more points than the program: what it proves about all points holds,
    what it refutes is only unknown. `optional` pieces may not run (a data-dependent condition).
    """

    dims: tuple[Dim, ...]
    guard: Guard
    index: tuple[Expr, ...]
    label: str = ""
    inexact: str = ""
    optional: bool = False


def attempt(world: World, question: Callable[[], Result]) -> Result:
    """The answer, or Unknown where isl needs more operations than the limit allows."""
    world.fresh()
    try:
        return question()
    except LimitError as error:
        return Unknown(str(error))
    finally:
        world.fresh()


def find(world: World, dims: Sequence[Dim], guard: Guard) -> Point | None:
    """A point of the dims that satisfies the guard, None where there is none.

    It is the smallest one, unless that takes too long to find.
    """
    small = compact(dims, tuple(c.expr for c in guard))
    rows = tuple(Constraint(e, c.equality) for e, c in zip(small.exprs, guard, strict=True))
    if world.is_empty(small.dims, rows):
        return None
    points = world.points(small.dims, rows)
    try:
        point = points.first()
    except LimitError:
        world.fresh()
        point = points.sample()
    if point is None:
        return None
    values = small.expand(dict(point.values))
    return Point(point.symbols, tuple((d.name, values[d.name]) for d in dims))


def possible(world: World, dims: Sequence[Dim], guard: Guard) -> bool:
    """Whether some point of the dims satisfies the guard: `find`, where none is asked for."""
    small = compact(dims, tuple(c.expr for c in guard))
    rows = tuple(Constraint(e, c.equality) for e, c in zip(small.exprs, guard, strict=True))
    return not world.is_empty(small.dims, rows)


def smaller(piece: Piece) -> tuple[Piece, Callable[[dict[str, int]], dict[str, int]]]:
    """The piece over fewer dims, and the way back to values of its own dims."""
    exprs = (*(c.expr for c in piece.guard), *piece.index)
    small = compact(piece.dims, exprs)
    guards = tuple(
        Constraint(e, c.equality) for e, c in zip(small.exprs, piece.guard, strict=False)
    )
    index = small.exprs[len(piece.guard) :]
    result = Piece(small.dims, guards, index, piece.label, piece.inexact, piece.optional)
    return result, small.expand


def image(world: World, piece: Piece) -> IntSet:
    """The coordinates that the piece reaches. Raises `LimitError`."""
    small, _ = smaller(piece)
    return world.image(small.dims, small.guard, small.index)


def prove_bounds(world: World, piece: Piece, shape: Sequence[Expr], name: str) -> Result:
    """Every access lies in the box [0, shape)."""

    def question() -> Result:
        for axis, (index, extent) in enumerate(zip(piece.index, shape, strict=True)):
            for outside in (less(index, 0), at_least(index, extent)):
                point = find(world, piece.dims, (*piece.guard, outside))
                if point is not None:
                    return _out_of_bounds(piece, shape, name, axis, point)
        return Proved()

    return attempt(world, question)


def _out_of_bounds(
    piece: Piece, shape: Sequence[Expr], name: str, axis: int, point: Point
) -> Result:
    if piece.inexact:
        return Unknown(piece.inexact)
    values = point.bindings()
    element = tuple(e.evaluate(values) for e in piece.index)
    extent = shape[axis].evaluate(values)
    message = f"{name}{_at(element)} is outside: axis {axis} has {extent} elements"
    notes = (instance_text(point.values, point.symbols),)
    return Refuted(message, Witness(element, point.symbols, (point.values,)), notes)


def prove_at_most_once(world: World, pieces: Sequence[Piece], name: str) -> Result:
    """No two instances, of one piece or of two, access the same element."""

    def question() -> Result:
        images: list[IntSet] = []
        for piece in pieces:
            small, expand = smaller(piece)
            names = tuple(d.name for d in small.dims)
            graph = world.image(small.dims, small.guard, small.index, keep=names)
            if not graph.injective_from(names):
                return _twice_in_one(world, piece, small, expand, name)
            images.append(world.image(small.dims, small.guard, small.index))
        for (one, a), (two, b) in combinations(zip(pieces, images, strict=True), 2):
            if not a.is_disjoint(b):
                return _twice_in_two(world, one, two, a.intersect(b), name)
        return Proved("no element is written twice")

    return attempt(world, question)


def _twice_in_one(
    world: World,
    piece: Piece,
    small: Piece,
    expand: Callable[[dict[str, int]], dict[str, int]],
    name: str,
) -> Result:
    """Search the first pair of instances: equal index, first differing in dim k."""
    if piece.inexact:
        return Unknown(piece.inexact)
    primes: dict[str, Expr | int | str] = {d.name: d.name + "'" for d in small.dims}
    twins = tuple(Dim(d.name + "'", d.extent.substitute(primes)) for d in small.dims)
    rows = [*small.guard, *(c.substitute(primes) for c in small.guard)]
    rows += [Constraint(e - e.substitute(primes), equality=True) for e in small.index]
    for dim in small.dims:
        pair = (*rows, less(dim.name, dim.name + "'"))
        point = find(world, (*small.dims, *twins), pair)
        if point is not None:
            values = dict(point.values)
            sides = [
                expand({d.name: values[d.name + tick] for d in small.dims}) for tick in ("", "'")
            ]
            instances = tuple(tuple((d.name, s[d.name]) for d in piece.dims) for s in sides)
            symbols = dict(point.symbols)
            element = tuple(e.evaluate({**symbols, **sides[0]}) for e in piece.index)
            return _twice(name, Witness(element, point.symbols, instances), (piece.label,))
        rows.append(Constraint(Expr.of(dim.name) - (dim.name + "'"), equality=True))
    return Unknown("two instances access one element, but no pair was found")


def _twice_in_two(world: World, one: Piece, two: Piece, both: IntSet, name: str) -> Result:
    inexact = one.inexact or two.inexact
    if inexact:
        return Unknown(inexact)
    if one.optional or two.optional:
        return Unknown("two writes of one element, of which a condition may run only one")
    point = both.first()
    if point is None:
        return Unknown("two pieces meet, but no common element was found")
    element = tuple(v for _, v in point.values)
    instances: list[tuple[tuple[str, int], ...]] = []
    fixed = tuple(Constraint(Expr.of(n) - v, equality=True) for n, v in point.symbols)
    for piece in (one, two):
        here = tuple(
            Constraint(e - v, equality=True) for e, v in zip(piece.index, element, strict=True)
        )
        found = find(world, piece.dims, (*piece.guard, *here, *fixed))
        instances.append(found.values if found else ())
    witness = Witness(element, point.symbols, tuple(instances))
    return _twice(name, witness, (one.label, two.label))


def _twice(name: str, witness: Witness, labels: tuple[str, ...]) -> Refuted:
    first, second = witness.instances
    differing = [n for (n, a), (m, b) in zip(first, second, strict=False) if n == m and a != b]
    message = f"{name}{_at(witness.element)} is written more than once"
    if len(labels) == 1:
        shown = [tuple(p for p in side if p[0] in differing) for side in (first, second)]
        notes = [f"by {_values(shown[0])} and again by {_values(shown[1])}, the rest alike"]
    else:
        notes = [f"by {t or 'one store'} at {_values(s)}" for t, s in zip(labels, (first, second))]  # noqa: B905
    if witness.symbols:
        notes.append(f"with {_values(witness.symbols)}")
    return Refuted(message, witness, tuple(notes))


def prove_covered(
    world: World, pieces: Sequence[Piece], shape: Sequence[Expr], name: str, verb: str = "written"
) -> Result:
    """The accesses of all pieces together reach every element of the box [0, shape)."""

    def question() -> Result:
        missing = world.box(shape)
        for piece in pieces:
            if piece.optional or piece.inexact:
                continue
            missing = missing.subtract(image(world, piece))
        if missing.is_empty():
            return Proved(_all_of(shape, name))
        inexact = next((p.inexact for p in pieces if p.inexact), "")
        if inexact:
            return Unknown(inexact)
        if any(p.optional for p in pieces):
            return Assumed(
                f"the conditions under which {name} is written hold wherever it has to be"
            )
        return _describe_missing(missing, shape, name, verb)

    return attempt(world, question)


def prove_exactly_once(
    world: World, pieces: Sequence[Piece], shape: Sequence[Expr], name: str, verb: str = "written"
) -> Result:
    """The accesses are a bijection onto the box, given that they lie in it."""
    covered = prove_covered(world, pieces, shape, name, verb)
    if isinstance(covered, Refuted):
        return covered
    once = prove_at_most_once(world, pieces, name)
    if not isinstance(once, Proved):
        return once
    if not isinstance(covered, Proved):
        return covered
    return Proved(f"{covered.note} {verb} exactly once")


# ---------------------------------------------------------------- words


def _describe_missing(
    missing: IntSet, shape: Sequence[Expr], name: str, verb: str = "written"
) -> Refuted:
    """The set that is missing: one element, the range of each coordinate, and how many."""
    first = missing.first()
    if first is None:
        return Refuted(f"some elements of {name} are never {verb}")
    element = tuple(v for _, v in first.values)
    here = missing.at(first)
    ranges = here.spread()
    sizes = [e.evaluate(dict(first.symbols)) for e in shape]
    where, plural = _region(ranges, sizes, name)
    count = prod(high - low + 1 for low, high in ranges)
    notes = [f"the first is {name}{_at(element)}"]
    if count <= 1_000_000:
        exact = here.count()
        total = prod(sizes)
        notes.append(f"{exact} of {total} elements are missing")
    if first.symbols:
        notes.append(f"with {_values(first.symbols)}")
    message = f"{where} {'are' if plural else 'is'} never {verb}"
    return Refuted(message, Witness(element, first.symbols), tuple(notes))


def _region(ranges: Sequence[tuple[int, int]], sizes: Sequence[int], name: str) -> tuple[str, bool]:
    """``columns 16 to 31 of dv`` and whether it is a plural."""
    parts: list[str] = []
    for axis, ((low, high), size) in enumerate(zip(ranges, sizes, strict=True)):
        if (low, high) != (0, size - 1):
            one, many = _axis(axis, len(sizes))
            parts.append(f"{many} {low} to {high}" if high > low else f"{one} {low}")
    if not parts:
        return name, False
    if len(parts) == 1:
        return f"{parts[0]} of {name}", " to " in parts[0]
    return f"{' in '.join(reversed(parts))} of {name}", True


def _axis(axis: int, rank: int) -> tuple[str, str]:
    if rank == 1:
        return "element", "elements"
    if rank == 2:
        return (("row", "rows"), ("column", "columns"))[axis]
    return f"index {axis} =", f"indices {axis} ="


def _all_of(shape: Sequence[Expr], name: str) -> str:
    if all(e.is_const for e in shape):
        return f"all {prod(e.const for e in shape)} elements of {name} are"
    return f"all elements of {name} are"


def _at(element: Sequence[int]) -> str:
    return "[" + ", ".join(str(v) for v in element) + "]"


def _values(pairs: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in pairs) or "the only instance"


def instance_text(
    instance: Sequence[tuple[str, int]], symbols: Sequence[tuple[str, int]] = ()
) -> str:
    """``at a = 0, b = 1, with M = 3``."""
    text = f"at {_values(instance)}"
    return f"{text}, with {_values(symbols)}" if symbols else text
