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
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.base.diagnostics import ConstraintError, UnsupportedError
from tilewright.base.rounding import round_up
from tilewright.base.spaces import Space
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
    """See the module's text. `reduced` are the axes along which the program combines elements;
    `reads` and `writes` name its tensors."""

    axes: tuple[str, ...]
    reduced: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    steps: tuple[Step, ...] = ()

    @cached_property
    def state(self) -> Counters:
        """What the steps have made of the counters."""
        state = Counters.of(self.axes, self.reduced, self.reads, self.writes)
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

    def persistent(self, blocks: int, cluster: int = 1) -> Schedule:
        """Merge all counters of tiles, and let `blocks` blocks go through them in turns.

        `cluster` of the blocks, a divisor of their number, run together.
        """
        made = self
        tiles = [c for c in self.counters if self._on_grid(c)]
        if not tiles:
            raise ConstraintError(
                "the schedule has no counters of tiles that blocks could go through",
                span=here(),
                expected="a split of an axis along which the program combines no elements",
                mend="split such an axis first",
            )
        whole = tiles[0]
        for counter in tiles[1:]:
            made = made.merge(whole, counter)
            whole = f"{whole}*{counter}"
        made = made.split(whole, blocks, "turn", "rank").parallelize("turn", "serial")
        if cluster == 1:
            return made.parallelize("rank", "block")
        if blocks % cluster:
            raise ConstraintError(
                f"{blocks} blocks do not make clusters of {cluster}",
                span=here(),
                expected=f"a multiple of {cluster} blocks",
                mend=f"use {round_up(blocks, cluster)} blocks",
            )
        made = made.split("rank", cluster, "pack", "peer").parallelize("pack", "block")
        return made.parallelize("peer", "cluster")

    def parallelize(self, name: str, place: str) -> Schedule:
        """Give a counter its place.

        Tiles go to `block`, `cluster` or `serial`; what runs within a tile to `warp`, `lane`,
        `vectorize`, `unroll` or `serial`. The inner part of a split of a reduced axis's steps may
        go to `cluster`: its blocks share the terms of a tile (split-K).
        """
        return self._then("parallelize", name, place)

    def stage(self, slots: int) -> Schedule:
        """Copy operands ahead through a ring of so many slots."""
        return self._then("stage", slots)

    def mma(self, atom: str) -> Schedule:
        """Compute contractions by this instruction of the target's table."""
        return self._then("mma", atom)

    def cache_after(self, tensor: str) -> Schedule:
        """Read a tensor into shared memory first, and from there into registers."""
        return self._then("cache_after", tensor)

    def cache_before(self, tensor: str) -> Schedule:
        """Gather an output's tile in shared memory, and write it from there in whole rows."""
        return self._then("cache_before", tensor)

    def set_memory_type(self, tensor: str, space: Space) -> Schedule:
        """Stage a tensor's tile in shared memory; registers are the default."""
        if space is not Space.SHARED:
            return self
        return self.cache_after(tensor) if tensor in self.reads else self.cache_before(tensor)

    def inline_at(self, tensor: str, counter: str) -> Schedule:
        """State that a tensor's tile is computed inside a counter's loop, where that is legal.

        Values are put by themselves into the innermost loop that they depend on.
        """
        return self._then("inline_at", tensor, counter)

    def inline_most(self) -> Schedule:
        """Put each value into the innermost loop that it depends on: what happens anyway."""
        return self

    def rfactor(self, counter: str) -> Schedule:
        """Not needed: every reduction makes partial results per thread, lane and warp."""
        raise UnsupportedError(
            f"the partial results of {counter} cannot be placed by hand",
            span=here(),
            expected="reductions whose partial results are made and combined by the compiler",
            mend="leave the step out",
        )

    def specialize(self, how: str = "cooperative") -> Schedule:
        """Give one warpgroup the copies; the others multiply. Refused where they cannot.

        They share every tile (`cooperative`), or have a tile each in turns (`pingpong`), so that
        one's epilogue runs while the other multiplies.
        """
        return self._then("specialize", how)

    def stream(self, tiles: int, blocks: int) -> Schedule:
        """Let each `blocks` blocks share the steps of `tiles` tiles of a product evenly, wherever
        tiles begin and end (stream-K). Their sums are added in the order of the steps."""
        return self._then("stream", tiles, blocks)

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
        hardware = Hardware(
            mma_type=state.atom, stages=state.stages, specialize=True if state.roles else None,
            pingpong=True if state.roles == "pingpong" else None, split_k=state.split_k,
            stream_k=state.stream,
        )  # fmt: skip
        return (*found, hardware)

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
        made = replace(self, steps=(*self.steps, step))
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
        if grid.place(rank) is GridPlace.CLUSTER and not extents[rank].is_const:
            raise ConstraintError(
                f"the cluster's counter {rank} has no fixed extent",
                expected="the inner part of a split, whose extent is the factor",
                mend="split the counter, and place the inner part on 'cluster'",
            )
    return grid.reorder(tuple(order))


def read_schedule(text: str, start: Schedule) -> Schedule:
    """`start` with the steps that `str` printed: a line ``schedule.method(arguments)`` each."""
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
    return replace(start, steps=(*start.steps, *steps))
