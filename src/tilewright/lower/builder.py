"""The state of one lowering: open scopes, names, declared fragments and buffers, decoded digits.

Scopes are the loops open at the moment. Code for a value goes to the innermost scope that the
value depends on; since a loop statement is appended when it closes, what goes to an outer scope
meanwhile lands before the loop. That is all there is to hoisting.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from tilewright.base.diagnostics import ResourceError
from tilewright.base.dtypes import DType
from tilewright.base.rounding import round_up
from tilewright.base.spans import Span
from tilewright.graph.ops import Graph, Iterate, Memory, Op, WriteOp, region, walk
from tilewright.kernel.async_ops import Phases, TensorMap
from tilewright.kernel.declared import Exchange
from tilewright.kernel.ops import (
    Body,
    Decode,
    If,
    Loop,
    Over,
    Registers,
    RegRef,
    Shared,
    Statement,
    Swizzle,
    Value,
    When,
)  # fmt: skip
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.mapping.layouts import Tiled, registers_per_thread
from tilewright.poly.expr import Constraint, Expr, Guard, at_least, equal, less
from tilewright.poly.layout import Layout, Place
from tilewright.schedule.plan import Plan, Stream
from tilewright.schedule.tensors import Declared
from tilewright.target.model import Target


@dataclass(frozen=True, slots=True)
class Fragment:
    """A value's part in one thread: registers, and the layout that says what they hold."""

    name: str
    dtype: DType
    tiled: Tiled

    @property
    def layout(self) -> Layout:
        return self.tiled.layout

    @property
    def shape(self) -> tuple[int, ...]:
        extents = [d.extent for d in self.layout.at(Place.REGISTER)]
        outer = extents[: len(extents) - self.tiled.inner]
        return (*outer, prod(extents[len(outer) :]))

    def ref(self, registers: Sequence[Expr]) -> RegRef:
        """The register with these digits; the last ones share one axis of the array."""
        digits = self.layout.at(Place.REGISTER)
        outer = len(digits) - self.tiled.inner
        last = Expr.of(0)
        for digit, value in zip(digits[outer:], registers[outer:], strict=True):
            last = last * digit.extent + value
        return RegRef(self.name, (*registers[:outer], last))


@dataclass(frozen=True, slots=True)
class Placed:
    """A layout with a variable for each digit."""

    layout: Layout
    variables: tuple[Expr, ...]
    over: Over

    def position(self, axis: str) -> Expr:
        """The coordinate along an axis within the tile."""
        total = Expr.of(0)
        for digit, variable in zip(self.layout.digits, self.variables, strict=True):
            if digit.axis == axis:
                total = total + variable * digit.stride
        return total

    def registers(self, axes: Sequence[str] | None = None) -> tuple[Expr, ...]:
        """The register digits, only those on `axes` where given."""
        return tuple(
            v for d, v in zip(self.layout.digits, self.variables, strict=True)
            if d.place is Place.REGISTER and (axes is None or d.axis in axes)
        )  # fmt: skip

    def over_on(self, axes: Sequence[str]) -> Over:
        digits = self.layout.at(Place.REGISTER)
        return tuple(o for o, d in zip(self.over, digits, strict=True) if d.axis in axes)

    def first_replica(self) -> Guard:
        """Holds in one of the threads that hold the same elements."""
        return tuple(
            equal(v, 0) for d, v in zip(self.layout.digits, self.variables, strict=True)
            if d.axis is None
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Share:
    """A block's steps of its group's tiles: `number` counts the blocks that share them from the
    first step on, `tile` the tiles. `group` is the number of the block with the last steps."""

    stream: Stream
    number: Expr
    tile: Expr
    group: Expr

    def count(self, step: Expr | int) -> Expr:
        """How many steps the block has had before one of the tile's; negative for others'."""
        return self.tile * self.stream.whole + step - self.number * self.stream.steps

    def has(self, step: Expr) -> Guard:
        return (at_least(self.count(step), 0), less(self.count(step), self.stream.steps))

    @property
    def touches(self) -> Guard:
        """Holds where the block has some of the tile's steps."""
        last = self.stream.whole - 1
        return (at_least(self.count(last), 0), less(self.count(0), self.stream.steps))

    @property
    def owns(self) -> Guard:
        """Holds where the block has the tile's first step."""
        return (at_least(self.count(0), 0),)

    def block(self, number: Expr) -> Expr:
        """The block with this number in the group. Blocks with later steps come first in the grid,
        so no block waits for one that begins after it."""
        return self.group + (self.stream.blocks - 1) - number


@dataclass(slots=True)
class Scope:
    """An open body: the loop over `axis` with counter `step`, or (no axis) a plain one."""

    axis: str | None
    step: Expr
    body: list[Statement] = field(default_factory=list[Statement])
    memo: dict[tuple[int, Tiled | None], Fragment] = field(
        default_factory=dict[tuple[int, Tiled | None], Fragment]
    )


class Builder:
    """See the module's text. One builder lowers one graph, once."""

    def __init__(self, graph: Graph, plan: Plan, target: Target, declared: Declared) -> None:
        self.declared = declared
        self.tensors = declared.tensors
        self.symbols = dict(declared.symbols)
        self.graph = graph
        self.plan = plan
        self.target = target
        self.scopes: list[Scope] = [Scope(None, Expr.of(0))]
        self.registers: list[Registers] = []
        self.shared: list[Shared] = []
        self.managed: set[str] = set()  # shared buffers whose barriers the pipeline places
        self.decodes: list[Decode] = []
        self.blocks: dict[str, Expr] = {}
        self.starts: dict[str, Expr] = {}  # of tiles that begin where data says
        self.ends: dict[str, Expr] = {}  # of the rows that such a tile may have
        self.last_term = Expr.of(0)  # the row after the last one of a tile's own terms
        self.counted: Expr | None = None  # slots used before a tile, where data says how many
        self.persistent = False  # whether a block goes on to further tiles
        self.turn = Expr.of(0)  # tiles that the block had before this one
        self.part = Expr.of(0)  # which part of its tile a block of several owns,
        self.helper = Expr.of(0)  # if this is zero,
        self.owned: tuple[int, Guard] | None = None  # from which statement on owners are alone
        self.share: Share | None = None  # the block's share of the steps of several tiles
        self.shares = False  # whether the blocks of a cluster load tiles for each other
        self.rank = Expr.of(0)  # the block's number in its cluster
        self.peers: set[str] = set()  # digits that tell the blocks of a cluster apart
        self.phases: list[Phases] = []
        self.maps: list[TensorMap] = []
        self.exchanges: list[Exchange] = []
        self.panels: set[str] = set()  # shared buffers on whose way outputs leave the block
        self.copies: Body = ()  # what the warpgroup that copies does for one tile
        self.rings: dict[int, tuple[Shared, Expr]] = {}
        self.enclosing = _enclosing(graph.body, ())
        self.iterated = {op.axis for op in walk(graph.body) if isinstance(op, Iterate)}
        self.written = {op.memory for op in walk(graph.body) if isinstance(op, WriteOp)}
        self.natural: dict[int, Tiled | None] = {}
        self.settling: set[int] = set()  # values whose natural layout is being found
        self.dependencies: dict[int, frozenset[str]] = {}
        self._taken = {m.name for m in graph.memories} | set(graph.axes)
        self._taken |= {s.name for s in graph.scalars}
        self._decoded: dict[tuple[Place, tuple[int, ...]], tuple[str, ...]] = {}
        self._digits: dict[str, str] = {}
        self.role = self.name("role")
        self.role_warp = self.name("role_warp")
        self.role_lane = self.name("role_lane")
        self.computing: list[Decode] = []  # of the warps that compute, where others copy

    # ------------------------------------------------------------ names and declarations

    def name(self, wish: str) -> str:
        """A name that nothing else has."""
        found = wish
        number = 1
        while found in self._taken:
            found = f"{wish}_{number}"
            number += 1
        self._taken.add(found)
        return found

    def fragment(self, wish: str, dtype: DType, tiled: Tiled, span: Span | None) -> Fragment:
        if registers_per_thread(tiled.layout) * dtype.bytes > 4 * self.target.registers_per_thread:
            raise ResourceError(
                f"a value needs {registers_per_thread(tiled.layout)} registers of a thread: "
                f"its tile is {', '.join(f'{a}={n}' for a, n in tiled.layout.shape)}",
                span=span,
                expected=f"at most {self.target.registers_per_thread} on {self.target.name}",
                mend="use smaller tiles or more warps",
            )
        made = Fragment(self.name(wish), dtype, tiled)
        self.registers.append(Registers(made.name, dtype, made.shape, str(tiled.layout)))
        return made

    def buffer(
        self, wish: str, dtype: DType, shape: tuple[int, ...], *, swizzle: Swizzle | None = None,
        pitch: int = 0, managed: bool = False, span: Span | None = None,
    ) -> Shared:  # fmt: skip
        made = Shared(self.name(wish), dtype, shape, swizzle, pitch, 0, span)
        self.shared.append(made)
        if managed:
            self.managed.add(made.name)
        return made

    # ------------------------------------------------------------ scopes

    def emit(self, statement: Statement) -> None:
        self.scopes[-1].body.append(statement)

    @contextmanager
    def at(self, depth: int) -> Generator[None]:
        """Put code into the scope at `depth` meanwhile."""
        kept = self.scopes
        self.scopes = kept[: depth + 1]
        try:
            yield
        finally:
            self.scopes = kept

    @contextmanager
    def planned(self, plan: Plan) -> Generator[None]:
        """Lower by another plan meanwhile."""
        kept = self.plan, self.natural
        self.plan, self.natural = plan, {}
        try:
            yield
        finally:
            self.plan, self.natural = kept

    @contextmanager
    def loop(self, axis: str, span: Span | None, *, backwards: bool = False) -> Generator[Expr]:
        """Open the serial loop over the steps of an axis, from the last one with `backwards`."""
        counter = self.name(f"{axis.lower()}_step")
        step = Expr.of(counter)
        scope = Scope(axis, self.plan.axes[axis].steps - 1 - step if backwards else step)
        self.scopes.append(scope)
        yield scope.step
        self.scopes.pop()
        self.emit(Loop(counter, self.plan.axes[axis].steps, tuple(scope.body), span=span))

    @contextmanager
    def aside(self) -> Generator[list[Statement]]:
        """Collect what goes to the innermost scope meanwhile, for the caller to place."""
        kept, self.scopes[-1].body = self.scopes[-1].body, []
        yield self.scopes[-1].body
        self.scopes[-1].body = kept

    @contextmanager
    def unrolled(self, wish: str, extent: int, span: Span | None) -> Generator[Expr]:
        """Open a loop that is unrolled; its counter may select registers."""
        counter = self.name(wish)
        scope = Scope(None, Expr.of(0))
        self.scopes.append(scope)
        yield Expr.of(counter)
        self.scopes.pop()
        self.emit(Loop(counter, Expr.of(extent), tuple(scope.body), unroll=True, span=span))

    @contextmanager
    def guarded(self, guard: Guard, condition: Value | None, span: Span | None) -> Generator[None]:
        """Open a body that runs where a guard or a condition holds."""
        scope = Scope(None, Expr.of(0))
        self.scopes.append(scope)
        yield
        self.scopes.pop()
        body = tuple(scope.body)
        if condition is not None:
            self.emit(When(condition, body, span))
            return
        open_parts = tuple(g for g in guard if not g.expr.is_const)
        if any(g.expr.is_const and g.expr.const < 0 for g in guard):
            return
        if open_parts:
            self.emit(If(open_parts, body, span))
        else:
            self.scopes[-1].body.extend(body)

    def is_open(self, axis: str) -> bool:
        return any(scope.axis == axis for scope in self.scopes)

    def open_step(self, axis: str) -> Expr:
        """The counter of the innermost open loop over an axis; zero where none is open."""
        return next((s.step for s in reversed(self.scopes) if s.axis == axis), Expr.of(0))

    def is_serial(self, axis: str) -> bool:
        return self.plan.axes[axis].is_serial or axis in self.iterated

    # ------------------------------------------------------------ digits and coordinates

    def place(self, layout: Layout) -> Placed:
        """A variable for each digit: decoded for warps and lanes, unrolled for registers."""
        threads = {p: iter(self._decode(p, layout)) for p in (Place.WARP, Place.LANE)}
        counts: dict[str, int] = {}
        variables: list[Expr] = []
        over: list[tuple[str, int]] = []
        for digit in layout.digits:
            if digit.place is not Place.REGISTER:
                variables.append(Expr.of(next(threads[digit.place])))
                continue
            axis = digit.axis or "r"
            number = counts[axis] = counts.get(axis, -1) + 1
            name = self._register_digit(f"{axis.lower()}{number}")
            variables.append(Expr.of(name))
            over.append((name, digit.extent))
        return Placed(layout, tuple(variables), tuple(over))

    def _register_digit(self, wish: str) -> str:
        if wish not in self._digits:
            self._digits[wish] = self.name(wish)
        return self._digits[wish]

    def register_digit(self, wish: str) -> Expr:
        """A variable for an unrolled digit; statements share it."""
        return Expr.of(self._register_digit(wish))

    def _decode(self, place: Place, layout: Layout) -> tuple[str, ...]:
        extents = tuple(d.extent for d in layout.at(place))
        if not extents:
            return ()
        key = (place, extents)
        if key not in self._decoded and place is Place.WARP and self.plan.roles is not None:
            self._decoded[key] = self._decode_computing(extents)
        if key not in self._decoded:
            names = tuple(self.name(f"{place.value}{i}_{n}") for i, n in enumerate(extents))
            digits = tuple((n, Expr.of(e)) for n, e in zip(names, extents, strict=True))
            self.decodes.append(Decode(Expr.of(place.value), digits))
            self._decoded[key] = names
        return self._decoded[key]

    def _decode_computing(self, extents: tuple[int, ...]) -> tuple[str, ...]:
        """Digits of the number of a warp that computes; the role's own where these are it."""
        if extents == (WARPGROUP_WARPS,):
            return (self.role_warp,)
        if len(extents) == 2 and extents[1] == WARPGROUP_WARPS:
            return self.role, self.role_warp
        names = tuple(self.name(f"warp{i}_{n}") for i, n in enumerate(extents))
        digits = tuple((n, Expr.of(e)) for n, e in zip(names, extents, strict=True))
        self.computing.append(Decode(Expr.of(self.role) * 4 + self.role_warp, digits))
        return names

    def base(self, axis: str) -> Expr:
        """The coordinate of the tile's first element along an axis, in the innermost open loop."""
        plan = self.plan.axes[axis]
        total = self.step_start(axis, self.open_step(axis)) + self.starts.get(axis, 0)
        if axis in self.blocks and plan.block_tile is not None:
            total = total + self.blocks[axis] * plan.block_tile
        return total

    def step_start(self, axis: str, step: Expr) -> Expr:
        """Where a step begins, in the block's tile along an axis."""
        plan = self.plan.axes[axis]
        if plan.parts == 1:
            return step * plan.tile
        own = self.rank if plan.block_tile is None else self.part
        return (step * plan.parts + own) * plan.tile

    def extent_guard(self, axis: str, coordinate: Expr) -> Guard:
        """Holds where a coordinate is on the axis; empty where it always is."""
        plan = self.plan.axes[axis]
        end = self.ends.get(axis, plan.extent)
        return (less(coordinate, end),) if plan.guard_extent else ()

    def whole_tile(self, *, whole: bool = True) -> Guard:
        """Holds where all rows of a tile are its own, or where they are not; empty for tiles
        that do not begin where data says."""
        compare = at_least if whole else less
        return tuple(
            compare(end - self.starts[a], self.plan.axes[a].tile) for a, end in self.ends.items()
        )

    def owner_guard(self, axis: str, coordinate: Expr) -> Guard:
        """Holds where a coordinate is on the axis and in the block's own part of it."""
        plan = self.plan.axes[axis]
        found: list[Constraint] = list(self.extent_guard(axis, coordinate))
        if plan.guard_block and plan.block_tile is not None:
            found.append(less(coordinate - self.blocks[axis] * plan.block_tile, plan.block_tile))
        return tuple(found)


def _enclosing(body: tuple[Op, ...], axes: tuple[str, ...]) -> Mapping[int, tuple[str, ...]]:
    """For each operation, the axes of the loops that the author wrote around it."""
    found: dict[int, tuple[str, ...]] = {}
    for op in body:
        found[op.id] = axes
        inner = (*axes, op.axis) if isinstance(op, Iterate) else axes
        found.update(_enclosing(region(op), inner))
    return found


def shared_memory_axes(builder: Builder, memory: Memory) -> tuple[int, ...]:
    """The extents of an allocated buffer: the block's part of each axis."""
    extents: list[int] = []
    for axis in memory.type.axes:
        plan = builder.plan.axes[axis]
        whole = plan.tile if not plan.is_serial else plan.block_tile
        if whole is None and plan.extent.is_const:
            whole = plan.extent.const
        if whole is None:
            raise ResourceError(
                f"the buffer needs the whole axis {axis}, whose size is not known",
                span=memory.span,
                expected="a size that is known when compiling",
                mend=f"bind {axis}, or give it a WorkgroupConstraint",
            )
        extents.append(round_up(whole, plan.tile))
    return tuple(extents)
