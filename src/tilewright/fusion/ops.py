"""Fusions as data: a program of few primitive tensor operations, immutable, in order.

Every operation that a user calls is a composition of these. Values are the numbers of the nodes
that make them. Shapes are numbers; a size of -1 is one that only a call tells, and stands in the
programs that definitions check types with, never in one that is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.base.dtypes import DType
from tilewright.base.spans import Span


@dataclass(frozen=True, slots=True)
class TensorType:
    """Sizes and element type. `weak`: a scalar that promotes like a Python number."""

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join('?' if n < 0 else str(n) for n in self.shape)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The common part: what the node makes, and where the user asked for it."""

    type: TensorType
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input(Node):
    """The tensor argument at `position`."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarInput(Node):
    """The scalar argument at `position`, of rank 0."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Node):
    """A tensor whose every element is `value`."""

    value: float | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Iota(Node):
    """The coordinate along the one dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """A row of `kernel.values`, element by element.

    The last dimensions of the operands meet; one that an operand lacks, or has of size 1, is
    one along which it does not change.
    """

    name: str
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convert(Node):
    """The same elements in another element type (or the same: a copy)."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Node):
    """Dimensions reordered, added and dropped.

    `dims` gives for each dimension the operand's it comes from, None where it is new. A
    dimension of size 1 may come back larger, or be left out.
    """

    value: int
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape(Node):
    """The same elements in row-major order under other sizes."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Node):
    """Element i is the operand's ``starts + steps * i``, or `fill` where it has none such."""

    value: int
    starts: tuple[int, ...]
    steps: tuple[int, ...]
    fill: float | int | bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Node):
    """`name` (add, mul, max, min) over `dims`, which the result lacks."""

    name: str
    value: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Node):
    """At each place along `dim`, `name` (add, mul) over the places up to it."""

    name: str
    value: int
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(Node):
    """Sum of products over the labels that the result lacks.

    `lhs_labels`, `rhs_labels` and `labels` name the dimensions of the operands and the result.
    Products with the same number `listed` were asked for together, to run in one launch.
    """

    lhs: int
    rhs: int
    lhs_labels: tuple[int, ...]
    rhs_labels: tuple[int, ...]
    labels: tuple[int, ...]
    listed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(Contract):
    """Each row of `lhs` times one of the matrices along the first dimension of `rhs`.

    It is the one of the row's group: the number of `ends` at or before the row, which ascend.
    Where there is no such matrix the row of the result is zero.
    """

    ends: int

    @property
    def ends_labels(self) -> tuple[int, ...]:
        return self.rhs_labels[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTerms(Contract):
    """For each group, counted by the result's first label, the sum over its own terms.

    A term's group is the number of `ends` at or before it, which ascend.
    """

    ends: int

    @property
    def ends_labels(self) -> tuple[int, ...]:
        return (1 + max(*self.labels, *self.lhs_labels, *self.rhs_labels),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(Node):
    """Elements of a value where an integer `index` leads along its dimension `dim`.

    `dims` gives for each dimension of the value the result's that it goes along, None for `dim`.
    The last dimensions of the index meet the result's, as in a Map. Where an index is not in
    [0, size of `dim`) the element is zero.
    """

    value: int
    index: int
    dim: int
    dims: tuple[int | None, ...]


LEAVES = (Input, ScalarInput, Constant, Iota)


def operands(node: Node) -> tuple[int, ...]:
    """The values that a node reads."""
    match node:
        case Map():
            return node.args
        case Convert() | View() | Reshape() | Move() | Reduce() | Scan():
            return (node.value,)
        case Grouped() | OwnTerms():
            return (node.lhs, node.rhs, node.ends)
        case Contract():
            return (node.lhs, node.rhs)
        case Gather():
            return (node.value, node.index)
        case _:
            return ()


def moves(node: Node) -> bool:
    """Whether the first operand is evaluated at other coordinates than the result's."""
    return isinstance(node, Move | Reshape | Gather)


@dataclass(frozen=True)
class Program:
    """Nodes in order, each value the number of its node, and the values that are results."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def live(self) -> list[bool]:
        """For each node, whether a result with elements needs it."""
        found = [False] * len(self.nodes)
        for value in self.outputs:
            found[value] = not self.nodes[value].type.is_empty
        for number in range(len(self.nodes) - 1, -1, -1):
            if found[number]:
                for operand in operands(self.nodes[number]):
                    found[operand] = True
        return found


def aligned(program_rank: int, operand: TensorType) -> Iterator[tuple[int, int]]:
    """Pairs (dimension of the operand, dimension of the result) of a Map, size 1 left out."""
    shift = program_rank - operand.rank
    for dim, size in enumerate(operand.shape):
        if size != 1:
            yield dim, dim + shift
