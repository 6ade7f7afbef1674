"""Kernel IR: the structured program of one thread.

Every statement has an unrolled domain `over`: the statement stands for one instance per value
of those digits, all of them in registers of one thread. Loops are serial. Indices are affine in
digits (see `poly.expr`); hardware counters are decoded to digits by `Decode`, once, at the top
of the scope that uses them, and `DataIndex` makes a variable of an integer in a register. Data is
immutable; a pass builds a new `Kernel`.

Built-in counters, sources of `Decode`: ``block`` (0 <= block < product of `Kernel.grid`),
``thread``, ``warp`` and ``lane`` with ``thread = warp * warp_size + lane``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tilewright.base.dtypes import DType, boolean
from tilewright.base.spans import Span
from tilewright.kernel.async_ops import AsyncStatement
from tilewright.kernel.declared import (
    Exchange,
    Phases,
    Registers,
    Scalar,
    Shared,
    Symbol,
    Tensor,
    TensorMap,
    shared_bytes,
)
from tilewright.kernel.declared import Mode as Mode  # noqa: PLC0414
from tilewright.kernel.declared import Swizzle as Swizzle  # noqa: PLC0414
from tilewright.kernel.refs import MemRef, Over, ReducedAxis, RegRef
from tilewright.poly.expr import Expr, Guard

# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class Const:
    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class Read:
    """The value of a register."""

    ref: RegRef
    dtype: DType


@dataclass(frozen=True, slots=True)
class ScalarValue:
    """The value of a scalar argument."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An integer expression of digits and symbols, as a value."""

    expr: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Holds:
    """Whether a guard holds, as a bool value."""

    guard: Guard
    dtype: DType = boolean


@dataclass(frozen=True, slots=True)
class Apply:
    """An elementwise operation by name (see `kernel.values` for the table)."""

    op: str
    args: tuple[Value, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion to `dtype`: round to nearest even, saturate to fp8, truncate to integers."""

    value: Value
    dtype: DType


@dataclass(frozen=True, slots=True)
class LaneXor:
    """The register's value in the lane whose number differs by the bits of `mask`."""

    ref: RegRef
    mask: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class LaneRead:
    """The register's value in lane `lane` of the same warp."""

    ref: RegRef
    lane: Expr
    dtype: DType


Value = Const | Read | ScalarValue | IndexValue | Holds | Apply | Cast | LaneXor | LaneRead

# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Decode:
    """Write `source` (0 <= source < product of the extents) in digits, most significant first.

    Discharged by the merge lemma: the digits run over exactly their box, once each.
    """

    source: Expr
    digits: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class DataIndex:
    """Bind `var` to the integer in register `ref`, from here on to the end of the body.

    It is data: 0 <= var < extent, and alike for all threads of the block that execute it, are a
    contract that whoever made the register keeps.
    """

    var: str
    extent: Expr
    ref: RegRef
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """``for var in range(extent)``. Threads of a block agree on the extent."""

    var: str
    extent: Expr
    body: Body
    unroll: bool = False
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class If:
    """Run the body where the guard holds."""

    guard: Guard
    body: Body
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class When:
    """Run the body where a bool value holds, alike for every thread of the block."""

    condition: Value
    body: Body
    span: Span | None = None


class Part(Enum):
    """Which terms of a scan a value has combined, by their coordinates."""

    TERM = "term"  # the one at the coordinate
    BEFORE = "before"
    THROUGH = "through"
    AFTER = "after"
    FROM = "from"


@dataclass(frozen=True, slots=True)
class Scanned:
    """What an assignment holds of a scan by `op`: `part` of the terms, seen from `coordinate`.

    The coordinate on `axis`, of `extent`, is written in the digits in scope; `others` are those
    on the value's other axes, which tell one scan from another. Terms at or past the extent
    count as the identity. The scan proof reads it: it follows the terms to what is claimed.
    """

    op: str
    part: Part
    axis: str
    extent: Expr
    coordinate: Expr
    others: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """dst = value."""

    over: Over
    dst: RegRef
    value: Value
    span: Span | None = None
    note: str = ""
    scans: Scanned | None = None


@dataclass(frozen=True, slots=True)
class Reduce:
    """``dst = op(dst, value)`` for each value of the digits `along`, in order.

    `over` digits are kept; `along` digits do not occur in `dst`. `op`: add, mul, max, min.
    """

    op: str
    over: Over
    along: Over
    dst: RegRef
    value: Value
    reduces: tuple[ReducedAxis, ...] = ()
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """How a `Load` is done by a warp-wide matrix load (see `target.MatrixLoad`).

    `row` is the lane digit of extent 8, `column` the one of extent 4; `tiles` names the `over`
    digits (most significant first) that one instruction covers; their product is the row's
    `tiles`. The fragment's last axis has the pair as its least significant part.
    """

    atom: str
    row: str
    column: str
    tiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Indirect:
    """A coordinate that is data: a load's memory is read at the integer in `ref` on `axis`.

    It stands for the reference's own index on that axis, which is 0.
    """

    axis: int
    ref: RegRef


@dataclass(frozen=True, slots=True)
class Load:
    """Registers from memory: elements ``dst[.., j] = src[.. + j along axis ..]``, j < width.

    The guard is per instance: where it fails, all `width` registers get `fill`. It may read
    `over` digits, loop variables and decoded digits, never the position within the vector.
    Each `indirect` coordinate guards the load too: outside its axis the registers get `fill`.
    """

    over: Over
    dst: RegRef
    src: MemRef
    width: int = 1
    axis: int = -1
    guard: Guard = ()
    fill: float | int | bool = 0
    matrix: MatrixShape | None = None
    span: Span | None = None
    note: str = ""
    indirect: tuple[Indirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Memory from registers, where the guard holds: the mirror of `Load`."""

    over: Over
    dst: MemRef
    src: RegRef
    width: int = 1
    axis: int = -1
    guard: Guard = ()
    span: Span | None = None
    note: str = ""
    matrix: MatrixShape | None = None  # how it is done by a warp-wide store (`stmatrix`)


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """Start copying `width` elements from global to shared memory; zeros where the guard fails.

    The copy completes at an `AsyncWait` that covers its group, for the issuing thread;
    for the others at the next `Barrier` after that.
    """

    over: Over
    dst: MemRef
    src: MemRef
    width: int
    dst_axis: int = -1
    src_axis: int = -1
    guard: Guard = ()
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class AsyncCommit:
    """Close the group of the copies started since the last commit."""


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """Wait until at most `pending` of this thread's newest groups are incomplete."""

    pending: int


@dataclass(frozen=True, slots=True)
class Mma:
    """One MMA atom per instance: ``d += a * b`` on fragments. The last axis of each is the atom's.

    `reduces` names the contracted axis; its coordinate is that of the atom's first k.
    """

    over: Over
    atom: str
    d: RegRef
    a: RegRef
    b: RegRef
    reduces: tuple[ReducedAxis, ...] = ()
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Every thread of the block arrives, and sees what the others wrote before."""

    note: str = ""


Statement = (
    Decode | DataIndex | Loop | If | When | Assign | Reduce | Load | Store | AsyncCopy | AsyncCommit
    | AsyncWait | Mma | Barrier | AsyncStatement
)  # fmt: skip
Body = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A whole kernel. Its launch has product(grid) blocks of warps * warp_size threads.

    `contracts` are facts about symbols that the caller checks before each launch.
    """

    name: str
    target: str
    warp_size: int
    warps: int
    grid: tuple[Expr, ...]
    symbols: tuple[Symbol, ...]
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    shared: tuple[Shared, ...]
    registers: tuple[Registers, ...]
    body: Body
    contracts: Guard = ()
    cluster: int = 1  # neighbouring blocks that run together; it divides the block count
    phases: tuple[Phases, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    exchanges: tuple[Exchange, ...] = ()

    @property
    def threads(self) -> int:
        return self.warps * self.warp_size

    @property
    def shared_bytes(self) -> int:
        """The shared memory that one block needs."""
        return shared_bytes(self.shared, self.phases)

    def tensor(self, name: str) -> Tensor | None:
        return next((t for t in self.tensors if t.name == name), None)

    def shared_buffer(self, name: str) -> Shared | None:
        return next((s for s in self.shared if s.name == name), None)

    def tensor_map(self, name: str) -> TensorMap | None:
        return next((m for m in self.maps if m.name == name), None)

    def phase_array(self, name: str) -> Phases | None:
        return next((p for p in self.phases if p.name == name), None)

    def exchange(self, name: str) -> Exchange | None:
        return next((e for e in self.exchanges if e.name == name), None)

    def fragment(self, name: str) -> Registers:
        return next(r for r in self.registers if r.name == name)


def children(statement: Statement) -> Body:
    """The body of a structured statement, empty for the others."""
    match statement:
        case Loop() | If() | When():
            return statement.body
        case _:
            return ()


def walk(body: Body) -> Iterator[Statement]:
    """Every statement, outer before inner, in program order."""
    for statement in body:
        yield statement
        yield from walk(children(statement))
