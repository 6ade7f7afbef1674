"""The order in which tiles are visited: counters of tiles, split, merged and given places.

Each axis with a block digit starts as one counter. Splits and merges make new counters of old
ones; those that are left, the leaves, are loops of one block (`LOOP`), ranks in a cluster
(`CLUSTER`) or digits of the block number (`BLOCK`). Every operation of the kernel sees the same
counters, because they belong to the iteration space and not to a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import product
from math import prod

from tilewright.base.diagnostics import ConstraintError
from tilewright.base.spans import Span
from tilewright.poly.expr import Expr


class GridPlace(Enum):
    """Where a counter of tiles runs."""

    LOOP = "loop"
    CLUSTER = "cluster"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Split:
    """``source = outer * factor + inner``, guarded where the factor may not divide."""

    source: str
    outer: str
    inner: str
    factor: int


@dataclass(frozen=True, slots=True)
class Merge:
    """``result = outer * extent(inner) + inner``."""

    outer: str
    inner: str
    result: str


@dataclass(frozen=True)
class GridPlan:
    """`extents` are those of the root counters, named by axis. `order` lists the leaves from the
    slowest to the fastest. Leaves that `places` lacks are blocks."""

    extents: Mapping[str, Expr]
    order: tuple[str, ...]
    steps: tuple[Split | Merge, ...] = ()
    places: Mapping[str, GridPlace] = field(default_factory=dict[str, GridPlace])

    @staticmethod
    def plain(extents: Mapping[str, Expr]) -> GridPlan:
        """One block per tile; the first axis varies fastest."""
        return GridPlan(extents, tuple(reversed(tuple(extents))))

    def place(self, leaf: str) -> GridPlace:
        return self.places.get(leaf, GridPlace.BLOCK)

    def split(self, source: str, factor: int, outer: str, inner: str) -> GridPlan:
        """Replace a leaf by two, the outer one before the inner one."""
        self._check_leaf(source)
        return replace(
            self,
            steps=(*self.steps, Split(source, outer, inner, factor)),
            order=_replaced(self.order, source, (outer, inner)),
        )

    def merge(self, outer: str, inner: str, result: str) -> GridPlan:
        """Join two leaves to one, in the place of the outer one."""
        self._check_leaf(outer)
        self._check_leaf(inner)
        order = _replaced(tuple(d for d in self.order if d != inner), outer, (result,))
        return replace(self, steps=(*self.steps, Merge(outer, inner, result)), order=order)

    def reorder(self, order: tuple[str, ...]) -> GridPlan:
        """Put the leaves into another order, slowest first."""
        if sorted(order) != sorted(self.order):
            raise ConstraintError(
                f"the order {', '.join(order)} does not list the counters "
                f"{', '.join(self.order)} once each",
                expected="a permutation of the counters",
                mend="name every counter once",
            )
        return replace(self, order=order)

    def bind(self, leaf: str, place: GridPlace, span: Span | None = None) -> GridPlan:
        """Give a leaf its place. Loops must be slower than blocks, and clusters fastest."""
        self._check_leaf(leaf, span)
        return replace(self, places={**self.places, leaf: place})

    def swizzled(self, axis: str, over: str, factor: int) -> GridPlan:
        """Visit `factor` tiles of `axis` for each tile of `over`, so that both stay in L2."""
        outer, inner = f"{axis}_group", f"{axis}_in_group"
        grid = self.split(axis, factor, outer, inner)
        rest = tuple(d for d in grid.order if d not in (outer, inner, over))
        return grid.reorder((*rest, outer, over, inner))

    def _check_leaf(self, name: str, span: Span | None = None) -> None:
        if name not in self.order:
            raise ConstraintError(
                f"the grid has no counter {name}",
                span=span,
                expected=f"one of {', '.join(self.order)}",
                mend="name a counter that no split or merge has used up",
            )

    def all_extents(self) -> dict[str, tuple[Expr, ...]]:
        """The extent of every counter, as factors: a product of symbols is not affine."""
        found: dict[str, tuple[Expr, ...]] = {a: (e,) for a, e in self.extents.items()}
        for step in self.steps:
            match step:
                case Split(source, outer, inner, factor):
                    whole = found[source]
                    found[outer] = (_ceildiv(whole, factor),)
                    found[inner] = (Expr.of(factor),)
                case Merge(outer, inner, result):
                    found[result] = _product((*found[outer], *found[inner]))
        return found

    @property
    def cluster(self) -> int:
        """Blocks per cluster."""
        extents = self.all_extents()
        ranks = [d for d in self.order if self.place(d) is GridPlace.CLUSTER]
        return prod(e.const for d in ranks for e in extents[d])


@dataclass(frozen=True, slots=True)
class Visit:
    """One tile: the values of the leaves, in order, and the tile's number along each axis."""

    leaves: tuple[int, ...]
    tile: Mapping[str, int]


def visits(grid: GridPlan) -> Iterator[Visit]:
    """Every tile in the order of the leaves, where all extents are numbers."""
    extents = {name: prod(e.const for e in f) for name, f in grid.all_extents().items()}
    for leaves in product(*(range(extents[d]) for d in grid.order)):
        values = dict(zip(grid.order, leaves, strict=True))
        inside = True
        for step in reversed(grid.steps):
            match step:
                case Split(source, outer, inner, factor):
                    values[source] = values[outer] * factor + values[inner]
                    inside = inside and values[source] < extents[source]
                case Merge(outer, inner, result):
                    values[outer], values[inner] = divmod(values[result], extents[inner])
        if inside:
            yield Visit(leaves, {axis: values[axis] for axis in grid.extents})


def total_symbol(factors: tuple[Expr, ...]) -> str:
    """The name of the symbol that stands for a product of symbolic extents."""
    text = "_".join(str(f) for f in factors)
    return "tiles_" + "".join(c if c.isalnum() else "_" for c in text)


def _ceildiv(factors: tuple[Expr, ...], divisor: int) -> Expr:
    if len(factors) == 1:
        return factors[0].ceildiv(divisor)
    return Expr.of(total_symbol(factors)).ceildiv(divisor)


def _product(factors: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Numbers multiplied out; symbolic factors kept apart."""
    number = prod(f.const for f in factors if f.is_const)
    open_ones = [f for f in factors if not f.is_const]
    if len(open_ones) == 1:
        return (open_ones[0] * number,)
    return (*open_ones, Expr.of(number)) if number != 1 or not open_ones else tuple(open_ones)


def _replaced(order: tuple[str, ...], name: str, by: tuple[str, ...]) -> tuple[str, ...]:
    position = order.index(name)
    return (*order[:position], *by, *order[position + 1 :])
