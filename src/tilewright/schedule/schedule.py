"""A schedule by hand: transformations of the kernel's iteration space, never of a tensor.

A schedule starts with one counter per axis. `split` and `merge` make new counters of old ones,
`parallelize` gives a counter its place. Everything is data: each method returns a new schedule,
`str(schedule)` prints it as the calls that make it, and `read_schedule` reads that back.

The first split of an axis sets its tile: the outer counter counts tiles, the inner one runs
within a tile, where the register layouts of `mapping` take over (a further split of it whose
outer part is placed on warps sets each warp's share). Counters of tiles may be split, merged
and reordered at will.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.base.diagnostics import ConstraintError, UnsupportedError
from tilewright.base.spans import Span, user_span
from tilewright.schedule.constraints import Constraint, Hardware, Tiling, Wave, Workgroup
from tilewright.schedule.grid import GridPlace, GridPlan

PLACES = ("block", "cluster", "serial", "warp", "lane", "vectorize", "unroll")
_GRID = {
    "block": GridPlace.BLOCK,
    "cluster": GridPlace.CLUSTER,
    "serial": GridPlace.LOOP,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One call: the method's name, its arguments, and where it was written."""

    method: str
    arguments: tuple[object, ...]
    span: Span | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.method}({', '.join(repr(a) for a in self.arguments)})"


@dataclass(frozen=True)
class Schedule:
    """See the module's text. `reduced` are the axes along which the program combines elements."""

    axes: tuple[str, ...]
    reduced: frozenset[str] = frozenset()
    steps: tuple[Step, ...] = ()
    tiles: Mapping[str, int] = field(default_factory=dict[str, int])
    shares: Mapping[str, int] = field(default_factory=dict[str, int])
    grid_steps: tuple[Step, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    counters: tuple[str, ...] = ()
    inner: Mapping[str, str] = field(default_factory=dict[str, str])
    stages: int | None = None
    atom: str | None = None

    @staticmethod
    def of(axes: tuple[str, ...], reduced: frozenset[str] = frozenset()) -> Schedule:
        """One counter per axis, in the program's order."""
        return Schedule(axes, reduced, counters=axes)

    # ------------------------------------------------------------ transformations

    def split(self, name: str, factor: int, outer: str = "", inner: str = "") -> Schedule:
        """``name = outer * factor + inner``. Counters are named `name.outer`, `name.inner`
        unless told otherwise. The edge is guarded where the factor does not divide."""
        span = user_span(sys._getframe(1))
        outer, inner = outer or f"{name}.outer", inner or f"{name}.inner"
        made = self._known(name, span)._fresh((outer, inner), span)
        if factor < 1:
            raise ConstraintError(
                f"{name} is split by {factor}", span=span, expected="a factor of at least 1",
                mend="give the number of elements of the inner counter",
            )  # fmt: skip
        step = Step("split", (name, factor, outer, inner), span)
        made = made._add(step, name, (outer, inner))
        if name in self.axes:
            return replace(made, tiles={**self.tiles, name: factor},
                           inner={**self.inner, inner: name, outer: name})  # fmt: skip
        if name in self.inner and name not in self._tile_counters():
            axis = self.inner[name]
            return replace(made, inner={**self.inner, inner: axis, outer: axis},
                           shares={**self.shares, outer: factor})  # fmt: skip
        return replace(made, grid_steps=(*self.grid_steps, step))

    def merge(self, outer: str, inner: str, name: str = "") -> Schedule:
        """Join two counters of tiles to one, in the place of the outer one."""
        span = user_span(sys._getframe(1))
        name = name or f"{outer}*{inner}"
        made = self._known(outer, span)._known(inner, span)._fresh((name,), span)
        for part in (outer, inner):
            if part not in self._tile_counters() or self._axis_of(part) in self.reduced:
                raise ConstraintError(
                    f"{part} does not count tiles of the output",
                    span=span,
                    expected="two outer counters of axes that are not reduced",
                    mend="split the axis first and merge its outer counter",
                )
        step = Step("merge", (outer, inner, name), span)
        kept = tuple(c for c in self.counters if c != inner)
        position = kept.index(outer)
        counters = (*kept[:position], name, *kept[position + 1 :])
        return replace(made, steps=(*self.steps, step), counters=counters,
                       grid_steps=(*self.grid_steps, step))  # fmt: skip

    def reorder(self, *names: str) -> Schedule:
        """Put the named counters in this order, slowest first, in the places they have now."""
        span = user_span(sys._getframe(1))
        made = self
        for name in names:
            made = made._known(name, span)
        if len(set(names)) != len(names):
            raise ConstraintError(
                "a counter is named twice", span=span, expected="each counter once",
                mend="remove the repetition",
            )  # fmt: skip
        order = iter(names)
        counters = tuple(next(order) if c in names else c for c in self.counters)
        return replace(made, counters=counters, steps=(*self.steps, Step("reorder", names, span)))

    def swizzle(self, name: str, over: str, factor: int) -> Schedule:
        """Visit `factor` tiles of `name` for each tile of `over`: split, reorder."""
        outer, inner = f"{name}.group", f"{name}.in_group"
        made = self.split(name, factor, outer, inner)
        rest = [c for c in made.counters if c in (outer, inner, over)]
        order = {rest[0]: outer, rest[1]: over, rest[2]: inner}
        return made.reorder(*(order[c] for c in rest))

    def parallelize(self, name: str, place: str) -> Schedule:
        """Give a counter its place: one of `PLACES`."""
        span = user_span(sys._getframe(1))
        made = self._known(name, span)
        if place not in PLACES:
            raise ConstraintError(
                f"there is no place {place!r}", span=span, expected=", ".join(PLACES),
                mend="choose one of the places",
            )  # fmt: skip
        if name in self.places:
            raise ConstraintError(
                f"{name} is placed on {self.places[name]} already",
                span=span,
                expected="one place for each counter",
                mend="remove one of the two",
            )
        axis = self._axis_of(name)
        if place in ("block", "cluster") and axis in self.reduced:
            raise ConstraintError(
                f"{name} belongs to {axis}, along which the program sums: blocks do not meet",
                span=span,
                expected="a counter of an axis that is not reduced, or a reduction across blocks",
                mend=f"place {name} on 'serial'",
            )
        return replace(made, places={**self.places, name: place},
                       steps=(*self.steps, Step("parallelize", (name, place), span)))  # fmt: skip

    def stage(self, count: int) -> Schedule:
        """Copy operands `count` - 1 steps ahead, through a ring of `count` slots."""
        step = Step("stage", (count,), user_span(sys._getframe(1)))
        return replace(self, stages=count, steps=(*self.steps, step))

    def mma(self, atom: str) -> Schedule:
        """Compute contractions by this instruction of the target's table."""
        step = Step("mma", (atom,), user_span(sys._getframe(1)))
        return replace(self, atom=atom, steps=(*self.steps, step))

    def specialize(self, *_roles: str) -> Schedule:
        """Give warps roles of their own. Not supported yet."""
        raise UnsupportedError(
            "warp roles are not supported yet",
            span=user_span(sys._getframe(1)),
            expected="schedules in which every warp runs the same program",
            mend="use stage(n) to overlap copies with arithmetic",
        )

    # ------------------------------------------------------------ outcome

    def constraints(self) -> tuple[Constraint, ...]:
        """What the schedule says about tiles, warps and instructions, as constraints."""
        found: list[Constraint] = []
        tile_counters = self._tile_counters()
        dims = 0
        for axis, tile in self.tiles.items():
            span = next(
                s.span for s in self.steps if s.method == "split" and s.arguments[0] == axis
            )
            if axis in self.reduced:
                found.append(Tiling(axis, tile, span))
            else:
                found.append(Workgroup(axis, tile, dims, span))
                dims += 1
        for counter, share in self.shares.items():
            if self.places.get(counter) == "warp":
                found.append(Wave(self.inner[counter], share))
        for counter, place in self.places.items():
            if place == "warp" and counter in tile_counters:
                raise ConstraintError(
                    f"{counter} counts tiles of blocks, which warps of one block cannot share",
                    expected="warps on a counter within a tile",
                    mend="split the inner counter, and place its outer part on warps",
                )
        found.append(Hardware(mma_type=self.atom, stages=self.stages))
        return tuple(found)

    def arrange(self, plain: GridPlan) -> GridPlan:
        """Order the tiles as the schedule says."""
        grid = plain
        names = {f: axis for axis in plain.extents for f in (self._outer_of(axis),)}
        for step in self.grid_steps:
            first, *rest = step.arguments
            if step.method == "split":
                factor, outer, inner = rest
                grid = grid.split(names.get(str(first), str(first)), int(str(factor)), str(outer),
                                  str(inner))  # fmt: skip
            else:
                inner, result = (str(r) for r in rest)
                grid = grid.merge(
                    names.get(str(first), str(first)), names.get(inner, inner), result
                )
        leaves = [names.get(c, c) for c in self.counters]
        grid = grid.reorder(tuple(c for c in leaves if c in grid.order))
        for counter, place in self.places.items():
            leaf = names.get(counter, counter)
            if leaf in grid.order and place in _GRID:
                grid = grid.bind(leaf, _GRID[place])
        return _checked(grid)

    def __str__(self) -> str:
        return "\n".join(f"schedule.{step}" for step in self.steps)

    # ------------------------------------------------------------ bookkeeping

    def _tile_counters(self) -> set[str]:
        """Counters that count tiles: outer parts of axes, and what was made of them."""
        found = {self._outer_of(axis) for axis in self.tiles}
        for step in self.grid_steps:
            found |= {str(a) for a in step.arguments if isinstance(a, str)}
        return found

    def _outer_of(self, axis: str) -> str:
        for step in self.steps:
            if step.method == "split" and step.arguments[0] == axis:
                return str(step.arguments[2])
        return axis

    def _axis_of(self, counter: str) -> str:
        if counter in self.axes:
            return counter
        if counter in self.inner:
            return self.inner[counter]
        for step in self.grid_steps:
            if counter in step.arguments[1:]:
                return self._axis_of(str(step.arguments[0]))
        return counter

    def _known(self, name: str, span: Span | None) -> Schedule:
        if name not in self.counters:
            raise ConstraintError(
                f"the schedule has no counter {name}",
                span=span,
                expected=f"one of {', '.join(self.counters)}",
                mend="name a counter that no split or merge has used up",
            )
        return self

    def _fresh(self, names: tuple[str, ...], span: Span | None) -> Schedule:
        for name in names:
            if name in self.counters or names.count(name) > 1:
                raise ConstraintError(
                    f"there is a counter {name} already",
                    span=span,
                    expected="names of their own for new counters",
                    mend="pass other names",
                )
        return self

    def _add(self, step: Step, source: str, parts: tuple[str, ...]) -> Schedule:
        position = self.counters.index(source)
        counters = (*self.counters[:position], *parts, *self.counters[position + 1 :])
        return replace(self, steps=(*self.steps, step), counters=counters)


def _checked(grid: GridPlan) -> GridPlan:
    """Loops must enclose blocks' work, so they come first; a cluster's ranks are neighbours."""
    loops = tuple(d for d in grid.order if grid.place(d) is GridPlace.LOOP)
    blocks = tuple(d for d in grid.order if grid.place(d) is GridPlace.BLOCK)
    ranks = tuple(d for d in grid.order if grid.place(d) is GridPlace.CLUSTER)
    extents = grid.all_extents()
    for rank in ranks:
        if not all(e.is_const for e in extents[rank]):
            raise ConstraintError(
                f"the cluster's counter {rank} has no fixed extent",
                expected="the inner part of a split, whose extent is the factor",
                mend="split the counter, and place the inner part on 'cluster'",
            )
    return grid.reorder((*loops, *blocks, *ranks))


def read_schedule(text: str, axes: tuple[str, ...], reduced: frozenset[str]) -> Schedule:
    """The schedule that `str` printed: a line ``schedule.method(arguments)`` for each step."""
    schedule = Schedule.of(axes, reduced)
    for line in text.splitlines():
        call = ast.parse(line.strip(), mode="eval").body
        known = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("split", "merge", "reorder", "parallelize", "stage", "mma")
        )
        if not (known and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            raise ConstraintError(
                f"{line.strip()!r} is no step of a schedule",
                expected="schedule.split(...), merge, reorder, parallelize, stage or mma",
                mend="print a schedule with str() to see the form",
            )
        arguments = [ast.literal_eval(a) for a in call.args]
        schedule = getattr(schedule, call.func.attr)(*arguments)
    return schedule
