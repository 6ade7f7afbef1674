"""Tiles of rows that belong to groups: which group and which rows a tile has is looked up.

The lanes of a warp share the groups: each has a run of them, and knows how many tiles there are
up to the end of each. As many groups as end before a tile, so many come before its own. The warps
of all roles look it up for themselves. Whatever the ends are, no row outside the tensors is
touched: they are taken between 0 and the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.dtypes import boolean, i32
from tilewright.base.spans import Span
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Cast,
    Const,
    DataIndex,
    Holds,
    If,
    IndexValue,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Read,
    Registers,
    RegRef,
    Value,
)
from tilewright.lower.builder import Builder
from tilewright.lower.grid import Grid
from tilewright.poly.expr import Constraint, Expr, Guard, at_least, less
from tilewright.schedule.ragged import Ragged

V = Expr.of
_ZERO = Const(0, i32)


def place_ragged(b: Builder, grid: Grid, ragged: Ragged) -> Grid:
    """The grid with each tile's rows and group found; sets where its axes start and end.

    `wrap` of the result is executed by whole warps.
    """
    slot = b.blocks.pop(ragged.axis)
    group, first, last = (b.name(f"{ragged.axis.lower()}_{w}") for w in ("group", "first", "last"))
    b.starts.update({ragged.axis: V(first), ragged.groups: V(group)})
    b.ends[ragged.axis] = V(last)
    search = _Search.of(b, ragged)
    count, rows = search.count, search.rows
    tile = search.tile
    find: Body = (
        *search.group(slot),
        DataIndex(group, count + 1, search.found, search.span, "the tile's group"),
        *search.rows_of(V(group), slot),
        DataIndex(first, rows + (ragged.slots(rows, count, tile) + 1) * tile, search.first),
        DataIndex(last, rows + 1, search.last),
    )
    mine = (less(first, last),)

    def wrap(body: Body) -> Body:
        return (*search.prefix(), *grid.wrap((*find, If(mine, body))))

    return replace(grid, wrap=wrap)


@dataclass(frozen=True, slots=True)
class _Search:
    """The statements, and the registers that they work on."""

    ends: str
    rows: Expr
    count: Expr
    tile: int
    lanes: int
    lane: str
    share: int
    digit: str
    span: Span | None
    through: str  # tiles up to each of the lane's groups
    registers: dict[str, RegRef]

    @staticmethod
    def of(b: Builder, ragged: Ragged) -> _Search:
        count = b.plan.axes[ragged.counted].extent
        lanes = b.plan.warp_size
        share = -(-count.const // lanes)
        found: dict[str, RegRef] = {}

        def register(wish: str, holds: str, size: int = 1) -> str:
            made = b.name(f"{ragged.axis.lower()}_{wish}")
            b.registers.append(Registers(made, i32, (size,), holds))
            found[wish] = RegRef(made, (V(0),))
            return made

        through = register("through", f"tiles up to each of the lane's {ragged.groups}", share)
        for wish, holds in _HOLDS.items():
            register(wish, holds)
        return _Search(
            ragged.ends, b.plan.axes[ragged.axis].extent, count, b.plan.axes[ragged.axis].tile,
            lanes, b.role_lane, share, b.name(f"{ragged.groups.lower()}_of_lane"),
            b.graph.by_id[ragged.group].span, through, found,
        )  # fmt: skip

    @property
    def found(self) -> RegRef:
        return self.registers["found"]

    @property
    def first(self) -> RegRef:
        return self.registers["begin"]

    @property
    def last(self) -> RegRef:
        return self.registers["end"]

    def prefix(self) -> Body:
        """Tiles up to each group: within the lane, then those of the lanes before added."""
        number = V(self.lane) * self.share + self.digit
        end, before, own = (self.registers[n] for n in ("end", "before", "own"))
        within: Body = (
            self._load(end, number),
            self._set(end, _select(less(number, self.count),
                                   self._inside(_larger(_read(end), _read(before))),
                                   _read(before))),
            self._set(own, _add(_read(own), self._tiles(_read(end), _read(before)))),
            self._set(self._through(), _read(own)),
            self._set(before, _read(end)),
        )  # fmt: skip
        return (
            self._load(before, V(self.lane) * self.share - 1),
            self._set(before, self._inside(_read(before))),
            self._set(own, _ZERO),
            Loop(self.digit, V(self.share), within, unroll=True, span=self.span),
            *self._over_lanes(own),
        )

    def _over_lanes(self, own: RegRef) -> Body:
        """Add the tiles of the lanes before to what the lane has."""
        total, other = self.registers["total"], self.registers["other"]
        steps: list[Assign] = [self._set(total, _read(own))]
        step = 1
        while step < self.lanes:
            source = (V(self.lane) + (self.lanes - step)) % self.lanes
            above = at_least(self.lane, step)
            steps.append(self._set(other, LaneRead(total, source, i32)))
            steps.append(self._set(total, _add(_read(total), _select(above, _read(other), _ZERO))))
            step *= 2
        lift = self._set(self._through(), _add(_read(self._through()), _read(total)))
        lowered = self._set(total, Apply("sub", (_read(total), _read(own)), i32))
        return (*steps, lowered, Loop(self.digit, V(self.share), (lift,), unroll=True))

    def group(self, slot: Expr) -> Body:
        """How many groups end at or before a tile, and how many tiles they have."""
        number = V(self.lane) * self.share + self.digit
        found, before = self.found, self.registers["before"]
        through = _read(self._through())
        passed = Apply("and", (
            Holds((less(number, self.count),)),
            Apply("le", (through, IndexValue(slot, i32)), boolean),
        ), boolean)  # fmt: skip
        tiles = Apply("select", (passed, through, _ZERO), i32)
        counted: Body = (
            self._set(found, _add(_read(found), Cast(passed, i32))),
            self._set(before, _larger(_read(before), tiles)),
        )
        steps: list[Assign] = []
        step = 1
        while step < self.lanes:
            steps.append(self._set(found, _add(_read(found), LaneXor(found, step, i32))))
            steps.append(self._set(before, _larger(_read(before), LaneXor(before, step, i32))))
            step *= 2
        return (
            self._set(found, _ZERO), self._set(before, _ZERO),
            Loop(self.digit, V(self.share), counted, unroll=True), *steps,
        )  # fmt: skip

    def rows_of(self, group: Expr, slot: Expr) -> Body:
        """The tile's first row, and the row after the group's last."""
        begin, end, before = self.first, self.last, self.registers["before"]
        ahead = Apply("sub", (IndexValue(slot, i32), _read(before)), i32)
        skipped = Apply("mul", (ahead, Const(self.tile, i32)), i32)
        return (
            self._load(begin, group - 1),
            self._load(end, group),
            self._set(begin, _add(self._inside(_read(begin)), skipped)),
            self._set(end, _select(less(group, self.count), self._inside(_read(end)),
                                   IndexValue(self.rows, i32))),
        )  # fmt: skip

    # ------------------------------------------------------------ parts of statements

    def _through(self) -> RegRef:
        return RegRef(self.through, (V(self.digit),))

    def _load(self, into: RegRef, number: Expr) -> Load:
        """The end of a group; 0 where there is none."""
        guard: Guard = (at_least(number, 0), less(number, self.count))
        return Load((), into, MemRef(self.ends, (number,)), guard=guard, span=self.span)

    def _set(self, into: RegRef, value: Value) -> Assign:
        return Assign((), into, value, self.span)

    def _inside(self, value: Value) -> Value:
        """The row nearest to a value."""
        above = _larger(value, _ZERO)
        return Apply("min", (above, IndexValue(self.rows, i32)), i32)

    def _tiles(self, end: Value, begin: Value) -> Value:
        rows = Apply("sub", (end, begin), i32)
        return Apply(
            "floordiv", (_add(rows, Const(self.tile - 1, i32)), Const(self.tile, i32)), i32
        )


_HOLDS = {
    "found": "the tile's group",
    "before": "rows, then tiles, before it",
    "begin": "the tile's first row",
    "end": "the row after the group's last",
    "own": "tiles of the lane's groups",
    "total": "tiles of the lanes before",
    "other": "of another lane",
}


def _read(ref: RegRef) -> Value:
    return Read(ref, i32)


def _add(one: Value, two: Value) -> Value:
    return Apply("add", (one, two), i32)


def _larger(one: Value, two: Value) -> Value:
    return Apply("max", (one, two), i32)


def _select(condition: Constraint, yes: Value, no: Value) -> Value:
    return Apply("select", (Holds((condition,)), yes, no), i32)
