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

PART, HELPER = "tile part", "tile helper"  # the counters of the blocks that share one tile
SHARER = "tile sharer"  # and of those that share the steps of several
SHARING = frozenset((PART, HELPER, SHARER))


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

    def uneven(self) -> Split | None:
        """A split that makes counters of tiles that do not exist, but for a last turn's."""
        extents = self.all_extents()
        for step in self.steps:
            if isinstance(step, Split) and self.place(step.outer) is not GridPlace.LOOP:
                whole = extents[step.source]
                if not (whole.is_const and whole.const % step.factor == 0):
                    return step
        return None

    def merged(self) -> tuple[GridPlan, str]:
        """All counters but those of a cluster's ranks in one, and its name."""
        grid = self
        whole, *rest = (d for d in self.order if self.place(d) is not GridPlace.CLUSTER)
        for leaf in rest:
            result = f"{whole}*{leaf}"
            grid = grid.merge(whole, leaf, result)
            whole = result
        return grid, whole

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

    def in_parts(self, count: int, owners: int) -> GridPlan:
        """Each tile by `count` blocks of a cluster. `PART` counts those that own a part of it, and
        `HELPER`, which is zero for these, the others with them."""
        new = {PART: owners} if owners == count else {HELPER: count // owners, PART: owners}
        return replace(
            self,
            extents={**self.extents, **{name: Expr.of(n) for name, n in new.items()}},
            order=(*self.order, *new),
            places={**self.places, **dict.fromkeys(new, GridPlace.CLUSTER)},
        )

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

    def all_extents(self) -> dict[str, Expr]:
        """The extent of every counter. A product of symbols is a symbol of `products`."""
        return {name: _affine(e) for name, e in self._factored().items()}

    def products(self) -> dict[str, tuple[Expr, ...]]:
        """The symbols that stand for products of open extents, with their factors."""
        found: dict[str, tuple[Expr, ...]] = {}
        for extent in self._factored().values():
            if len(extent.open) > 1:
                found[_name_of(extent.open)] = extent.open
        return found

    def _factored(self) -> dict[str, _Extent]:
        found = {a: _extent(e) for a, e in self.extents.items()}
        for step in self.steps:
            match step:
                case Split(source, outer, inner, factor):
                    found[outer] = _extent(_affine(found[source]).ceildiv(factor))
                    found[inner] = _Extent(factor, ())
                case Merge(outer, inner, result):
                    one, two = found[outer], found[inner]
                    found[result] = _Extent(one.number * two.number, (*one.open, *two.open))
        return found

    @property
    def cluster(self) -> int:
        """Blocks per cluster."""
        extents = self.all_extents()
        ranks = [d for d in self.order if self.place(d) is GridPlace.CLUSTER]
        return prod(extents[d].const for d in ranks)


@dataclass(frozen=True, slots=True)
class Visit:
    """One tile: the values of the leaves, in order, and the tile's number along each axis."""

    leaves: tuple[int, ...]
    tile: Mapping[str, int]


def visits(grid: GridPlan) -> Iterator[Visit]:
    """Every tile in the order of the leaves, where all extents are numbers."""
    extents = {name: e.const for name, e in grid.all_extents().items()}
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


def alternates(grid: GridPlan, consumers: int) -> bool:
    """Whether each block's tiles, as they come, go to one of so many consumers after the other,
    where a turn belongs to consumer ``turn % consumers``. All extents are numbers."""
    extents = grid.all_extents()
    turns: dict[tuple[int, ...], list[int]] = {}
    for visit in visits(grid):
        block: tuple[int, ...] = ()
        turn = 0
        for leaf, number in zip(grid.order, visit.leaves, strict=True):
            if grid.place(leaf) is GridPlace.LOOP:
                turn = turn * extents[leaf].const + number
            else:
                block = (*block, number)
        turns.setdefault(block, []).append(turn)
    return all(
        turn % consumers == i % consumers
        for own in turns.values() for i, turn in enumerate(sorted(own))
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Extent:
    """A number times open extents."""

    number: int
    open: tuple[Expr, ...]


def _extent(expr: Expr) -> _Extent:
    return _Extent(expr.const, ()) if expr.is_const else _Extent(1, (expr,))


def _affine(extent: _Extent) -> Expr:
    match extent.open:
        case ():
            return Expr.of(extent.number)
        case (only,):
            return only * extent.number
        case factors:
            return Expr.of(_name_of(factors)) * extent.number


def _name_of(factors: tuple[Expr, ...]) -> str:
    """The name of the symbol that stands for a product of open extents."""
    text = "_".join(str(f) for f in factors)
    return "tiles_" + "".join(c if c.isalnum() else "_" for c in text)


def _replaced(order: tuple[str, ...], name: str, by: tuple[str, ...]) -> tuple[str, ...]:
    position = order.index(name)
    return (*order[:position], *by, *order[position + 1 :])
