"""A schedule by hand: transformations of the kernel's iteration space, never of a tensor.

A schedule starts with one counter per axis. `split` and `merge` make new counters of old ones,
`parallelize` gives a counter its place. Each method returns a new schedule; `str` prints the
calls that make it, and `read_schedule` reads them back.

The first split of an axis sets its tile: the outer counter counts tiles, the inner one runs
within a tile, where register layouts take over (a further split of it whose outer part is
placed on warps sets each warp's share). Counters of tiles may be split, merged and reordered
at will; those that nobody places are blocks.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from tilewright.base.diagnostics import ConstraintError
from tilewright.base.spans import here
from tilewright.schedule.constraints import Constraint, Hardware, Tiling, Wave, Workgroup
from tilewright.schedule.counters import STEPS, Counters, Step
from tilewright.schedule.grid import GridPlace, GridPlan

_GRID = {
    "block": GridPlace.BLOCK,
    "cluster": GridPlace.CLUSTER,
    "serial": GridPlace.LOOP,
}


@dataclass(frozen=True)
class Schedule:
    """See the module's text. `reduced` are the axes along which the program combines elements."""

    axes: tuple[str, ...]
    reduced: frozenset[str] = frozenset()
    steps: tuple[Step, ...] = ()

    @cached_property
    def state(self) -> Counters:
        """What the steps have made of the counters."""
        state = Counters.of(self.axes, self.reduced)
        for step in self.steps:
            state = state.apply(step)
        return state

    @property
    def counters(self) -> tuple[str, ...]:
        """The counters that are left, slowest first."""
        return self.state.order

    def split(self, name: str, factor: int, outer: str = "", inner: str = "") -> Schedule:
        """``name = outer * factor + inner``, guarded where the factor does not divide.

        Unless told otherwise the counters are named `name.outer` and `name.inner`.
        """
        names = (outer or f"{name}.outer", inner or f"{name}.inner")
        return self._then("split", name, factor, *names)

    def merge(self, outer: str, inner: str, name: str = "") -> Schedule:
        """Join two counters of tiles to one, `outer*inner` by default, in the outer's place."""
        return self._then("merge", outer, inner, name or f"{outer}*{inner}")

    def reorder(self, *names: str) -> Schedule:
        """Put the named counters in this order, slowest first, in the places they have now."""
        return self._then("reorder", *names)

    def swizzle(self, name: str, over: str, factor: int) -> Schedule:
        """Visit `factor` tiles of `name` for each tile of `over`: a split and a reorder."""
        outer, inner = f"{name}.group", f"{name}.in_group"
        made = self.split(name, factor, outer, inner)
        return made.reorder(outer, over, inner)

    def persistent(self, blocks: int) -> Schedule:
        """Merge all counters of tiles, and let `blocks` blocks go through them in turns."""
        made = self
        tiles = [c for c in self.counters if self._on_grid(c)]
        whole = tiles[0]
        for counter in tiles[1:]:
            made = made.merge(whole, counter)
            whole = f"{whole}*{counter}"
        made = made.split(whole, blocks, "turn", "rank")
        return made.parallelize("turn", "serial").parallelize("rank", "block")

    def parallelize(self, name: str, place: str) -> Schedule:
        """Give a counter its place.

        Tiles go to `block`, `cluster` or `serial`; what runs within a tile to `warp`, `lane`,
        `vectorize`, `unroll` or `serial`.
        """
        return self._then("parallelize", name, place)

    def stage(self, slots: int) -> Schedule:
        """Copy operands ahead through a ring of so many slots."""
        return self._then("stage", slots)

    def mma(self, atom: str) -> Schedule:
        """Compute contractions by this instruction of the target's table."""
        return self._then("mma", atom)

    def constraints(self) -> tuple[Constraint, ...]:
        """What the schedule says about tiles, warps and instructions."""
        state = self.state
        found: list[Constraint] = []
        spans = {s.name(0): s.span for s in self.steps if s.method == "split"}
        blocks = 0
        for axis, tile in state.tiles.items():
            if axis in self.reduced:
                found.append(Tiling(axis, tile, spans[axis]))
            else:
                found.append(Workgroup(axis, tile, blocks, spans[axis]))
                blocks += 1
        for counter, share in state.shares.items():
            if state.places.get(counter) == "warp":
                found.append(Wave(state.axis[counter], share))
        return (*found, Hardware(mma_type=state.atom, stages=state.stages))

    def arrange(self, plain: GridPlan) -> GridPlan:
        """Order the tiles as the schedule says."""
        state = self.state
        grid = plain

        def leaf(name: str) -> str:
            return state.roots.get(name, name)

        for step in state.grid:
            if step.method == "split":
                grid = grid.split(leaf(step.name(0)), step.number(1), step.name(2), step.name(3))
            else:
                grid = grid.merge(leaf(step.name(0)), leaf(step.name(1)), step.name(2))
        grid = grid.reorder(tuple(leaf(c) for c in state.order if leaf(c) in grid.order))
        for counter, place in state.places.items():
            if leaf(counter) in grid.order and place in _GRID:
                grid = grid.bind(leaf(counter), _GRID[place])
        return _in_order(grid)

    def __str__(self) -> str:
        return "\n".join(f"schedule.{step}" for step in self.steps)

    def _then(self, method: str, *arguments: str | int) -> Schedule:
        step = Step(method, arguments, here())
        made = Schedule(self.axes, self.reduced, (*self.steps, step))
        # The new state is at hand: no need to run through all steps again.
        made.__dict__["state"] = self.state.apply(step)
        return made

    def _on_grid(self, counter: str) -> bool:
        state = self.state
        return counter in state.over_tiles and state.axis[counter] not in self.reduced


def _in_order(grid: GridPlan) -> GridPlan:
    """Loops enclose a block's work, so they come first; a cluster's ranks are neighbours."""
    order: list[str] = []
    for place in (GridPlace.LOOP, GridPlace.BLOCK, GridPlace.CLUSTER):
        order += [d for d in grid.order if grid.place(d) is place]
    extents = grid.all_extents()
    for rank in order:
        fixed = all(e.is_const for e in extents[rank])
        if grid.place(rank) is GridPlace.CLUSTER and not fixed:
            raise ConstraintError(
                f"the cluster's counter {rank} has no fixed extent",
                expected="the inner part of a split, whose extent is the factor",
                mend="split the counter, and place the inner part on 'cluster'",
            )
    return grid.reorder(tuple(order))


def read_schedule(
    text: str, axes: tuple[str, ...], reduced: frozenset[str] = frozenset()
) -> Schedule:
    """The schedule that `str` printed: a line ``schedule.method(arguments)`` for each step."""
    steps: list[Step] = []
    for line in text.splitlines():
        call = ast.parse(line.strip(), mode="eval").body
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in STEPS
        ):
            raise ConstraintError(
                f"{line.strip()!r} is no step of a schedule",
                expected=f"schedule.STEP(...) with one of {', '.join(STEPS)}",
                mend="print a schedule with str() to see the form",
            )
        steps.append(Step(call.func.attr, tuple(ast.literal_eval(a) for a in call.args)))
    return Schedule(axes, reduced, tuple(steps))
