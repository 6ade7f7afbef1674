"""Sets of integer points, decided by isl: the only module that imports islpy.

A `World` holds the symbols with what is known of them. Every isl call runs under an operation
limit; one that passes it raises `LimitError`, so nothing hangs. A division never reaches isl as
such: it is an integer of its own, tied by two inequalities.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isinf
from weakref import finalize

import islpy as isl

from tilewright.poly.expr import Div, Expr, Guard, Mod

INT_MAX = 2**31 - 1
_LEAST_LIMIT = 10_000
_SET = isl.dim_type.set
_PARAM = isl.dim_type.param
_COLUMNS = (isl.dim_type.cst, _PARAM, _SET, isl.dim_type.div)  # of a matrix of constraints


class LimitError(Exception):
    """isl needed more operations than the limit allows."""


@dataclass(frozen=True, slots=True)
class Dim:
    """An integer variable: 0 <= name < extent. The extent may use symbols and other dims."""

    name: str
    extent: Expr

    @staticmethod
    def of(name: str, extent: Expr | int | str) -> Dim:
        return Dim(name, Expr.of(extent))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A symbol: low <= value <= high, a multiple of `multiple`."""

    name: str
    low: int = 1
    multiple: int = 1
    high: int = INT_MAX


@dataclass(frozen=True, slots=True)
class Row:
    """sum(coefficient * variable) + const >= 0, or == 0."""

    coefficients: tuple[tuple[str, int], ...]
    const: int
    equality: bool = False


Interval = tuple[float, float]  # whole numbers or infinite, both ends included


def interval(expr: Expr, ranges: Mapping[str, Interval]) -> Interval:
    """Bounds of an expression where each variable ranges on its own."""
    low: float = expr.const
    high: float = expr.const
    for term, factor in expr.terms:
        match term:
            case str():
                least, most = ranges[term]
            case Div(num, den):
                least, most = interval(num, ranges)
                least, most = _floor(least, den), _floor(most, den)
            case Mod(num, den):
                least, most = interval(num, ranges)
                if least < 0 or most >= den:
                    least, most = 0, den - 1
        low += factor * (least if factor > 0 else most)
        high += factor * (most if factor > 0 else least)
    return low, high


def _floor(value: float, den: int) -> float:
    return value if isinf(value) else value // den


class System:
    """Linear rows over dims. Divisions become quotient dims, named ``/0``, ``/1``, .."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.quotients: dict[tuple[Expr, int], str] = {}

    def linear(self, expr: Expr) -> tuple[dict[str, int], int]:
        sums: dict[str, int] = {}
        const = expr.const
        for term, factor in expr.terms:
            match term:
                case str():
                    parts, offset = {term: 1}, 0
                case Div(num, den):
                    parts, offset = {self._quotient(num, den): 1}, 0
                case Mod(num, den):
                    quotient = self._quotient(num, den)
                    parts, offset = self.linear(num)
                    parts[quotient] = parts.get(quotient, 0) - den
            const += factor * offset
            for name, coefficient in parts.items():
                sums[name] = sums.get(name, 0) + factor * coefficient
        return sums, const

    def _quotient(self, num: Expr, den: int) -> str:
        name = self.quotients.get((num, den))
        if name is None:
            name = f"/{len(self.quotients)}"
            self.quotients[num, den] = name
            sums, const = self.linear(num)
            rest = {**sums, name: sums.get(name, 0) - den}
            self.rows.append(Row(tuple(rest.items()), const))
            flipped = tuple((n, -c) for n, c in rest.items())
            self.rows.append(Row(flipped, den - 1 - const))
        return name

    def require(self, expr: Expr, equality: bool = False) -> None:
        sums, const = self.linear(expr)
        self.rows.append(Row(tuple(sums.items()), const, equality))

    def require_dim(self, dim: Dim) -> None:
        self.rows.append(Row(((dim.name, 1),), 0))
        self.require(dim.extent - dim.name - 1)


# Contexts of worlds that are gone, for new ones. islpy frees no context in which a call has
# consumed an object, and isl keeps some hundred kilobytes of memory for reuse in each.
_spare: list[isl.Context] = []


class World:
    """Symbols, facts about them, and the isl context with its operation limit.

    `limit` is what one obligation may use; ordinary ones need less than half of the least. Each
    time it is passed it is halved, down to that least, so that many hard ones end soon as well.

    isl's parameter is the symbol divided by its `multiple`: ``(M + 127) / 128`` with M a
    multiple of 128 is affine before isl sees it.
    """

    def __init__(
        self, parameters: Sequence[Parameter] = (), contracts: Guard = (), limit: int = 20_000
    ) -> None:
        self.parameters = tuple(parameters)
        self.contracts = contracts
        self.limit = limit
        try:
            self._context = _spare.pop()
        except IndexError:
            self._context = isl.Context()
        finalize(self, _spare.append, self._context)
        self._context.set_max_operations(limit)
        self._context.reset_operations()
        self._scale = {p.name: Expr.of(p.name) * p.multiple for p in parameters if p.multiple > 1}
        self._columns = {p.name: 1 + i for i, p in enumerate(self.parameters)}
        self._values: dict[int, isl.Val] = {}
        self._facts = self._parameter_rows()

    def fresh(self) -> None:
        """Start the operation count again; called once per obligation."""
        self._context.reset_operations()

    @contextmanager
    def guarded(self) -> Generator[None]:
        """Turn an isl error into `LimitError`."""
        try:
            yield
        except isl.Error as error:
            passed = self.limit
            self.limit = min(passed, max(passed // 2, _LEAST_LIMIT))
            self._context.set_max_operations(self.limit)
            raise LimitError(f"more than {passed} isl operations") from error

    def _scaled(self, expr: Expr) -> Expr:
        if not self._scale or self._scale.keys().isdisjoint(expr.variables()):
            return expr
        return expr.substitute(self._scale)

    def _parameter_rows(self) -> tuple[Row, ...]:
        rows: list[Row] = []
        for p in self.parameters:
            rows.append(Row(((p.name, 1),), -((p.low + p.multiple - 1) // p.multiple)))
            rows.append(Row(((p.name, -1),), p.high // p.multiple))
        return tuple(rows)

    # ------------------------------------------------------------ building

    def _value(self, number: int) -> isl.Val:
        found = self._values.get(number)
        if found is None:
            found = self._values[number] = isl.Val(str(number), self._context)
        return found

    def _basic(self, names: Sequence[str], rows: Sequence[Row]) -> isl.BasicSet:
        """The basic set over `names`, in isl's space of all parameters."""
        space = isl.Space.set_alloc(self._context, len(self.parameters), len(names))
        first = 1 + len(self.parameters)
        columns = {**self._columns, **{name: first + i for i, name in enumerate(names)}}
        equalities, inequalities = (
            self._matrix([r for r in rows if r.equality == kind], columns, first + len(names))
            for kind in (True, False)
        )
        return isl.BasicSet.from_constraint_matrices(space, equalities, inequalities, *_COLUMNS)

    def _matrix(self, rows: Sequence[Row], columns: Mapping[str, int], width: int) -> isl.Mat:
        """Constraints as a matrix, with fewer calls than one by one: a constant, then columns."""
        made = isl.Mat.alloc(self._context, 0, width).insert_zero_rows(0, len(rows))
        for i, row in enumerate(rows):
            if row.const:
                made = made.set_element_val(i, 0, self._value(row.const))
            for name, coefficient in row.coefficients:
                made = made.set_element_val(i, columns[name], self._value(coefficient))
        return made

    def _system(self, dims: Sequence[Dim], guard: Guard) -> System:
        system = System()
        for dim in dims:
            system.require_dim(Dim(dim.name, self._scaled(dim.extent)))
        for constraint in (*guard, *self.contracts):
            system.require(self._scaled(constraint.expr), constraint.equality)
        return system

    def points(self, dims: Sequence[Dim], guard: Guard = ()) -> IntSet:
        """The points of the dims where the guard holds."""
        return self.image(dims, guard, (), keep=tuple(d.name for d in dims))

    def image(
        self,
        dims: Sequence[Dim],
        guard: Guard,
        index: Sequence[Expr],
        keep: tuple[str, ...] = (),
    ) -> IntSet:
        """{(keep.., index..)}: over all values of the other dims that the guard admits."""
        with self.guarded():
            system = self._system(dims, guard)
            outputs = tuple(f"#{i}" for i in range(len(index)))
            for output, expr in zip(outputs, index, strict=True):
                system.require(self._scaled(expr) - output, equality=True)
            hidden = [d.name for d in dims if d.name not in keep]
            hidden += system.quotients.values()
            visible = (*keep, *outputs)
            basic = self._basic((*visible, *hidden), (*self._facts, *system.rows))
            if hidden:
                basic = basic.project_out(_SET, len(visible), len(hidden))
            return IntSet(self, basic.to_set(), visible)

    def is_empty(self, dims: Sequence[Dim], guard: Guard) -> bool:
        """Whether no value of symbols and dims satisfies the guard."""
        if self._beyond(dims, guard):
            return True
        with self.guarded():
            system = self._system(dims, guard)
            names = (*(d.name for d in dims), *system.quotients.values())
            return bool(self._basic(names, (*self._facts, *system.rows)).is_empty())

    def _beyond(self, dims: Sequence[Dim], guard: Guard) -> bool:
        """Whether some constraint fails on intervals alone: most questions end here."""
        ranges: dict[str, Interval] = {p.name: (p.low, inf) for p in self.parameters}
        for dim in dims:
            ranges[dim.name] = (0, dim.extent.const - 1 if dim.extent.is_const else inf)
        for constraint in guard:
            low, high = interval(constraint.expr, ranges)
            if high < 0 or (constraint.equality and low > 0):
                return True
        return False

    def box(self, shape: Sequence[Expr]) -> IntSet:
        """{(#0, #1, ..)} with 0 <= #i < shape[i]."""
        dims = tuple(Dim(f"#{i}", extent) for i, extent in enumerate(shape))
        return self.points(dims)


@dataclass(frozen=True, slots=True)
class Point:
    """One integer point: values of the symbols and of the named dims."""

    symbols: tuple[tuple[str, int], ...]
    values: tuple[tuple[str, int], ...]

    def bindings(self) -> dict[str, int]:
        return {**dict(self.symbols), **dict(self.values)}


@dataclass(frozen=True, slots=True)
class IntSet:
    """A set of integer points, for each value of the world's symbols."""

    world: World
    raw: isl.Set
    names: tuple[str, ...]

    def _with(self, compute: Callable[[], isl.Set]) -> IntSet:
        with self.world.guarded():
            return IntSet(self.world, compute(), self.names)

    def union(self, other: IntSet) -> IntSet:
        return self._with(lambda: self.raw.union(other.raw))

    def intersect(self, other: IntSet) -> IntSet:
        return self._with(lambda: self.raw.intersect(other.raw))

    def subtract(self, other: IntSet) -> IntSet:
        return self._with(lambda: self.raw.subtract(other.raw))

    def is_empty(self) -> bool:
        with self.world.guarded():
            return bool(self.raw.is_empty())

    def is_subset(self, other: IntSet) -> bool:
        with self.world.guarded():
            return bool(self.raw.is_subset(other.raw))

    def is_disjoint(self, other: IntSet) -> bool:
        with self.world.guarded():
            return bool(self.raw.is_disjoint(other.raw))

    def injective_from(self, names: Sequence[str]) -> bool:
        """Whether the dims `names`, a prefix, are a function of the remaining dims."""
        with self.world.guarded():
            count = len(names)
            rest = len(self.names) - count
            relation = isl.Map.from_domain(self.raw).move_dims(
                isl.dim_type.out, 0, isl.dim_type.in_, count, rest
            )
            return bool(relation.is_injective())

    def first(self) -> Point | None:
        """The smallest point in the order of symbols, then names; None where empty."""
        return self._point(lambda flat: flat.lexmin())

    def sample(self) -> Point | None:
        """Some point; None where empty."""
        return self._point(lambda flat: flat)

    def _point(self, choose: Callable[[isl.Set], isl.Set]) -> Point | None:
        world = self.world
        with world.guarded():
            count = len(world.parameters)
            flat = self.raw.move_dims(_SET, 0, _PARAM, 0, count)
            if flat.is_empty():
                return None
            point = choose(flat).sample_point()
            numbers = [
                int(point.get_coordinate_val(_SET, i).to_python())
                for i in range(count + len(self.names))
            ]
        symbols = tuple(
            (p.name, p.multiple * n) for p, n in zip(world.parameters, numbers, strict=False)
        )
        return Point(symbols, tuple(zip(self.names, numbers[count:], strict=True)))

    def at(self, point: Point) -> IntSet:
        """The set with the symbols fixed to those of `point`."""
        world = self.world
        fixed = dict(point.symbols)

        def compute() -> isl.Set:
            raw = self.raw
            for i, p in enumerate(world.parameters):
                raw = raw.fix_val(_PARAM, i, fixed[p.name] // p.multiple)
            return raw

        return self._with(compute)

    def spread(self) -> tuple[tuple[int, int], ...]:
        """Least and greatest value of each dim, the symbols being fixed; the set not empty."""
        with self.world.guarded():
            return tuple(
                (
                    int(self.raw.dim_min_val(i).to_python()),
                    int(self.raw.dim_max_val(i).to_python()),
                )
                for i in range(len(self.names))
            )

    def count(self) -> int:
        """How many points, the symbols being fixed. Enumerates: small sets only."""
        with self.world.guarded():
            return int(self.raw.count_val().to_python())
