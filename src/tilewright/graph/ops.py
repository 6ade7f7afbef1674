"""Tile graph: SSA operations on named axes, immutable, in program order, with source spans.

A value is a tensor over named axes at the scale of the whole problem; how its axes are cut
into tiles is the plan's affair. An operand that lacks an axis of its user does not change
along it: there is no broadcast operation, only a type with more axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.base.dtypes import DType
from tilewright.base.spaces import Space
from tilewright.base.spans import Span
from tilewright.poly.expr import Expr


@dataclass(frozen=True, slots=True)
class Type:
    """Named axes, in the value's own order, and the element type."""

    axes: tuple[str, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(self.axes)}]"


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor argument, or (where `allocated`) a block's own shared buffer.

    `strides` counts elements per axis; symbols in it are arguments of the call.
    `space` SHARED on an argument asks for its reads to be staged through shared memory.
    """

    name: str
    type: Type
    space: Space
    strides: tuple[Expr, ...] | None = None
    allocated: bool = False
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    name: str
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """The common part: the number of the value, its type, and where it was written."""

    id: int
    type: Type
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Op):
    value: float | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRead(Op):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Op):
    """The coordinate along the one axis of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent(Op):
    """The size of an axis, as a value with no axes."""

    axis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOp(Op):
    memory: str
    elements_per_thread: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOp(Op):
    """Store a value to a memory. Its own type is the value's."""

    memory: str
    value: int
    elements_per_thread: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Op):
    """A row of `kernel.values` applied to operands, each lacking axes as it may."""

    name: str
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CastOp(Op):
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Op):
    """The same elements under a type with the axes reordered, or with axes added."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape(Op):
    """The same elements, in row-major order, under other axes of the same total size."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remap(Op):
    """An operand at other coordinates: slices, pads, flips, strides and selections.

    `coordinates` has one expression for each of the operand's axes, in the names of this
    type's axes. Where one lies outside the operand's axis the element is `fill`; without a
    `fill` none may.
    """

    value: int
    coordinates: tuple[Expr, ...]
    fill: float | int | bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(Op):
    """An operand at data: on `axis` its coordinate is the integer value `index` there.

    The other coordinates are this type's, by name; `index` has axes of this type only, and may
    have `axis` itself. Where an index is not in [0, extent of `axis`) the element is zero.
    """

    value: int
    axis: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(Op):
    """acc + sum over the axes that both operands have and the result lacks of lhs * rhs."""

    lhs: int
    rhs: int
    acc: int
    atom: str | None = None
    contracted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceOp(Op):
    """Reduction of `value` along `axis` by add, mul, max or min, combined with `init` if given."""

    name: str
    value: int
    axis: str
    init: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Op):
    """Running add, mul, max or min of `value` along `axis`, which it keeps.

    Each element combines those up to its coordinate; from its coordinate on with `reverse`.
    With `exclusive` it leaves out its own, so that the first one is the identity.
    """

    name: str
    value: int
    axis: str
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Param(Op):
    """A value that a loop carries, as its body sees it."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate(Op):
    """Run `body` for each tile of `axis`; values are carried from `inits` through `results`."""

    axis: str
    inits: tuple[int, ...]
    params: tuple[int, ...]
    body: tuple[Op, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Op):
    """The value that `iterate` carries at `position` when it ends."""

    iterate: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional(Op):
    """Run `body`, which has effects only, where the condition (no axes, bool) holds."""

    condition: int
    body: tuple[Op, ...]


@dataclass(frozen=True)
class Graph:
    """A tile program. `axes` gives each axis its extent: a number, or a symbol of its own name."""

    name: str
    axes: Mapping[str, Expr]
    memories: tuple[Memory, ...]
    scalars: tuple[ScalarArgument, ...]
    body: tuple[Op, ...]
    span: Span | None = None

    def memory(self, name: str) -> Memory:
        return next(m for m in self.memories if m.name == name)

    @cached_property
    def by_id(self) -> Mapping[int, Op]:
        return {op.id: op for op in walk(self.body)}

    @cached_property
    def uses(self) -> Mapping[int, tuple[int, ...]]:
        """For each value, the operations that read it."""
        found: dict[int, list[int]] = {}
        for op in walk(self.body):
            for operand in operands(op):
                found.setdefault(operand, []).append(op.id)
        return {value: tuple(users) for value, users in found.items()}


def operands(op: Op) -> tuple[int, ...]:
    """The values that an operation reads, those of its body not included."""
    match op:
        case WriteOp() | CastOp() | View() | Reshape() | Remap() | Scan():
            return (op.value,)
        case Elementwise():
            return op.args
        case Gather():
            return (op.value, op.index)
        case Contract():
            return (op.lhs, op.rhs, op.acc)
        case ReduceOp():
            return (op.value,) if op.init is None else (op.value, op.init)
        case Iterate():
            return op.inits + op.results
        case Result():
            return (op.iterate,)
        case Conditional():
            return (op.condition,)
        case _:
            return ()


def region(op: Op) -> tuple[Op, ...]:
    """The body of a structured operation, empty for the others."""
    match op:
        case Iterate() | Conditional():
            return op.body
        case _:
            return ()


def walk(body: tuple[Op, ...]) -> Iterator[Op]:
    """Every operation, outer before inner, in program order."""
    for op in body:
        yield op
        yield from walk(region(op))
