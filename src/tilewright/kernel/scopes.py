"""Which variables a statement sees, and how they vary over the threads of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from tilewright.kernel.async_ops import (
    Announce,
    Arrive,
    ArriveExpect,
    Await,
    BulkLoad,
    BulkStore,
    Collect,
    Deposit,
    NamedBarrier,
    PhaseRef,
    PhaseWait,
    RemoteStore,
    SetRegisters,
    TileRef,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Cast,
    Const,
    DataIndex,
    Decode,
    Holds,
    If,
    IndexValue,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Over,
    Read,
    Reduce,
    RegRef,
    ScalarValue,
    Statement,
    Store,
    Value,
    When,
)
from tilewright.kernel.ranges import Interval, interval
from tilewright.poly.expr import Expr, Guard

COUNTERS = ("block", "thread", "warp", "lane")  # the sources of `Decode`


class Origin(Enum):
    """What binds a variable."""

    SYMBOL = "symbol"
    DECODED = "decoded digit"
    LOOP = "loop"
    UNROLLED = "unrolled digit"
    DATA = "value"


class Level(IntEnum):
    """Among which threads a value is the same; a higher one varies more."""

    BLOCK = 0
    WARPGROUP = 1
    WARP = 2
    LANE = 3


WARPGROUP_WARPS = 4


_COUNTER_LEVELS = {
    "block": Level.BLOCK, "warp": Level.WARP, "thread": Level.LANE, "lane": Level.LANE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variable:
    """A name in scope. `source` is what a decoded digit was decoded from."""

    origin: Origin
    range: Interval
    level: Level = Level.BLOCK
    source: Decode | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The variables that a statement sees. `divergence` is that of the guards around it."""

    variables: Mapping[str, Variable] = field(default_factory=dict[str, Variable])
    divergence: Level = Level.BLOCK

    @property
    def ranges(self) -> dict[str, Interval]:
        return {name: variable.range for name, variable in self.variables.items()}

    def level(self, expressions: Iterator[Expr]) -> Level:
        """How the values of the expressions vary; a name that is not in scope counts as LANE."""
        names = {name for expr in expressions for name in expr.variables()}
        return max((self._name_level(name) for name in names), default=Level.BLOCK)

    def _name_level(self, name: str) -> Level:
        if name in self.variables:
            return self.variables[name].level
        return _COUNTER_LEVELS.get(name, Level.LANE)

    def bind(self, new: Mapping[str, Variable]) -> Scope:
        return Scope({**self.variables, **new}, self.divergence)


def scoped(kernel: Kernel) -> Iterator[tuple[Scope, Statement]]:
    """Every statement in program order with its scope, its own unrolled digits included.

    Of a `Decode` and a `Loop` the scope is the one outside: their variables are not in it yet.
    """
    symbols = {s.name: Variable(Origin.SYMBOL, Interval(s.low, None)) for s in kernel.symbols}
    yield from _scoped(kernel.body, Scope(symbols), kernel.warp_size)


def _scoped(body: Body, scope: Scope, warp_size: int) -> Iterator[tuple[Scope, Statement]]:
    for statement in body:
        own = {
            name: Variable(Origin.UNROLLED, Interval(0, extent - 1))
            for name, extent in unrolled_digits(statement)
        }
        yield scope.bind(own) if own else scope, statement
        match statement:
            case Decode():
                scope = scope.bind(_decoded(statement, scope, warp_size))
            case DataIndex(var, extent):
                high = interval(extent, scope.ranges).high
                limit = Interval(0, None if high is None else high - 1)
                scope = scope.bind({var: Variable(Origin.DATA, limit)})
            case Loop(var, extent, inner, unroll):
                high = interval(extent, scope.ranges).high
                origin = Origin.UNROLLED if unroll else Origin.LOOP
                limit = Interval(0, None if high is None else high - 1)
                counter = Variable(origin, limit, scope.level(iter((extent,))))
                yield from _scoped(inner, scope.bind({var: counter}), warp_size)
            case If(guard, inner):
                level = max(scope.divergence, scope.level(guard_expressions(guard)))
                yield from _scoped(inner, Scope(_narrowed(scope, guard), level), warp_size)
            case When(_, inner):
                yield from _scoped(inner, scope, warp_size)
            case _:
                pass


def _narrowed(scope: Scope, guard: Guard) -> dict[str, Variable]:
    """The variables with what the guard's bounds on single ones say of their ranges."""
    result = dict(scope.variables)
    for constraint in guard:
        match constraint.expr.terms:
            case ((str() as name, 1 | -1 as sign),) if name in result:
                bound = -sign * constraint.expr.const
                low, high = result[name].range.low, result[name].range.high
                if sign == 1 or constraint.equality:
                    low = bound if low is None else max(low, bound)
                if sign == -1 or constraint.equality:
                    high = bound if high is None else min(high, bound)
                result[name] = replace(result[name], range=Interval(low, high))
            case _:
                pass
    return result


def _decoded(decode: Decode, scope: Scope, warp_size: int) -> dict[str, Variable]:
    level = scope.level(iter((decode.source,)))
    result: dict[str, Variable] = {}
    below: int | None = 1  # the product of the less significant extents, where constant
    for name, extent in reversed(decode.digits):
        own = level if below is None else _digit_level(decode.source, below, level, warp_size)
        high = interval(extent, scope.ranges).high
        limit = Interval(0, None if high is None else high - 1)
        result[name] = Variable(Origin.DECODED, limit, own, decode)
        below = below * extent.const if below is not None and extent.is_const else None
    return result


def _digit_level(source: Expr, below: int, level: Level, warp_size: int) -> Level:
    """The level of a digit that counts steps of `below` values of a hardware counter."""
    threads = {Expr.of("thread"): below, Expr.of("warp"): below * warp_size}.get(source, 1)
    if threads % (WARPGROUP_WARPS * warp_size) == 0:
        return Level.WARPGROUP
    return Level.WARP if threads % warp_size == 0 else level


# ---------------------------------------------------------------- what a statement mentions


def unrolled_digits(statement: Statement) -> Over:
    match statement:
        case Assign() | Load() | Store() | AsyncCopy() | Mma():
            return statement.over
        case BulkLoad() | BulkStore() | RemoteStore() | WarpgroupMma() | Deposit() | Collect():
            return statement.over
        case Reduce():
            return statement.over + statement.along
        case _:
            return ()


def written_fragment(statement: Statement) -> RegRef | None:
    match statement:
        case Assign() | Reduce() | Load() | Collect():
            return statement.dst
        case Mma() | WarpgroupMma():
            return statement.d
        case _:
            return None


def read_fragments(statement: Statement) -> Iterator[RegRef]:
    """Fragments that the statement reads; an accumulator is read and written."""
    for value in values_in(statement):
        if isinstance(value, Read | LaneXor | LaneRead):
            yield value.ref
    match statement:
        case DataIndex():
            yield statement.ref
        case Load():
            yield from (c.ref for c in statement.indirect)
        case Store() | RemoteStore() | Deposit():
            yield statement.src
        case Reduce():
            yield statement.dst
        case Mma():
            yield from (statement.d, statement.a, statement.b)
        case WarpgroupMma():
            yield statement.d
            if isinstance(statement.a, RegRef):
                yield statement.a
        case _:
            pass


def memory_refs(statement: Statement) -> Iterator[MemRef]:
    match statement:
        case Load():
            yield statement.src
        case Store() | RemoteStore():
            yield statement.dst
        case AsyncCopy():
            yield from (statement.dst, statement.src)
        case BulkLoad():
            yield statement.dst
        case BulkStore():
            yield statement.src
        case WarpgroupMma():
            tiles = (statement.a, statement.b)
            yield from (MemRef(t.name, t.index) for t in tiles if isinstance(t, TileRef))
        case _:
            pass


def phase_ref(statement: Statement) -> PhaseRef | None:
    """The transaction barrier that the statement works on."""
    match statement:
        case Arrive() | ArriveExpect() | PhaseWait() | BulkLoad() | RemoteStore():
            return statement.phase
        case _:
            return None


def values_in(statement: Statement) -> Iterator[Value]:
    """Every value, outer before inner."""
    match statement:
        case Assign() | Reduce():
            yield from _nested(statement.value)
        case When():
            yield from _nested(statement.condition)
        case _:
            pass


def _nested(value: Value) -> Iterator[Value]:
    yield value
    match value:
        case Apply():
            for arg in value.args:
                yield from _nested(arg)
        case Cast():
            yield from _nested(value.value)
        case _:
            pass


def guard_expressions(guard: Guard) -> Iterator[Expr]:
    return (constraint.expr for constraint in guard)


def value_expressions(value: Value) -> Iterator[Expr]:
    """The index expressions of one value, without those of its operands."""
    match value:
        case IndexValue(expr):
            yield expr
        case Holds(guard):
            yield from guard_expressions(guard)
        case Read(ref) | LaneXor(ref):
            yield from ref.index
        case LaneRead(ref, lane):
            yield from ref.index
            yield lane
        case Const() | ScalarValue() | Apply() | Cast():
            pass


def expressions(statement: Statement) -> Iterator[Expr]:
    """Every index expression, without a `Decode`'s source and without those in bodies."""
    for value in values_in(statement):
        yield from value_expressions(value)
    for ref in memory_refs(statement):
        yield from ref.index
    written = written_fragment(statement)
    if written is not None:
        yield from written.index
    match statement:
        case Decode(_, digits):
            yield from (extent for _, extent in digits)
        case DataIndex():
            yield from (statement.extent, *statement.ref.index)
        case Loop():
            yield statement.extent
        case If() | Load() | Store() | AsyncCopy():
            yield from guard_expressions(statement.guard)
        case _:
            pass
    match statement:
        case Load():
            for coordinate in statement.indirect:
                yield from coordinate.ref.index
        case Store() | RemoteStore() | Deposit():
            yield from statement.src.index
        case Mma():
            yield from (*statement.a.index, *statement.b.index)
        case _:
            pass
    if isinstance(statement, Assign) and statement.scans is not None:
        yield from (statement.scans.extent, statement.scans.coordinate, *statement.scans.others)
    yield from _async_expressions(statement)
    if isinstance(statement, Mma | Reduce | WarpgroupMma):
        for reduced in statement.reduces:
            yield from (reduced.extent, reduced.coordinate)


def _async_expressions(statement: Statement) -> Iterator[Expr]:
    phase = phase_ref(statement)
    if phase is not None:
        yield phase.index
    match statement:
        case Arrive():
            if statement.block is not None:
                yield statement.block
        case PhaseWait():
            yield statement.parity
        case BulkLoad():
            yield from statement.coordinates
            if statement.multicast is not None:
                yield statement.multicast
        case BulkStore():
            yield from statement.coordinates
        case RemoteStore():
            yield statement.block
        case WarpgroupMma():
            yield from guard_expressions(statement.accumulate)
            if isinstance(statement.a, RegRef):
                yield from statement.a.index
        case NamedBarrier():
            yield statement.barrier
        case Deposit():
            yield statement.index
        case Await():
            yield statement.block
        case Collect():
            yield from (statement.index, statement.block)
        case _:
            pass


def is_warpgroup_wide(statement: Statement) -> bool:
    """Whether the four warps of a warpgroup must execute the statement together."""
    wide = WarpgroupMma | WarpgroupFence | WarpgroupCommit | WarpgroupWait | SetRegisters
    return isinstance(statement, wide)


def is_warp_wide(statement: Statement) -> bool:
    """Whether all lanes of a warp must execute the statement together."""
    match statement:
        case Mma() | NamedBarrier() | Deposit() | Announce() | Await() | Collect():
            return True
        case Load() | Store():
            return statement.matrix is not None
        case AsyncCommit() | AsyncWait() | Barrier():
            return False
        case _:
            return any(isinstance(v, LaneXor | LaneRead) for v in values_in(statement))
