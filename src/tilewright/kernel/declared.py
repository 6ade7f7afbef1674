"""What a kernel declares: tensors, symbols, scalars, shared buffers, fragments, barriers, maps.

A caller needs no more of a kernel than this to launch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Protocol

from tilewright.base.dtypes import DType
from tilewright.base.rounding import round_up
from tilewright.base.spans import Span
from tilewright.poly.expr import Expr, Guard

PHASE_BYTES = 8  # of shared memory that one transaction barrier takes


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size known at launch only: low <= value < 2**31, a multiple of `multiple`.

    A symbol with a `product` is the product of these sizes, which is not affine itself.
    """

    name: str
    low: int = 1
    multiple: int = 1
    product: tuple[Expr, ...] = ()


class Mode(Enum):
    """How the kernel may use a global tensor."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A global tensor. Strides count elements; `align` is the byte alignment of its data.

    `index_bits` (32 or 64) is the width in which the linear element offset is computed.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    mode: Mode
    align: int
    index_bits: int = 64
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar argument, read as a value."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Swizzle:
    """XOR of address bits: ``a ^ (((a >> (base + shift)) & (2**bits - 1)) << base)``.

    Acts on the linear element offset of a shared buffer. An involution where shift >= bits,
    so it permutes the buffer and logical coordinates stay a faithful name of an element.
    """

    bits: int
    base: int
    shift: int

    def apply(self, offset: int) -> int:
        mask = (1 << self.bits) - 1
        return offset ^ (((offset >> (self.base + self.shift)) & mask) << self.base)


@dataclass(frozen=True, slots=True)
class Shared:
    """A buffer of one block's shared memory, row-major over `shape`, then swizzled.

    `pitch` is the distance in elements between rows of the last axis (0: dense).
    `offset` is its first byte in the block's shared memory.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    swizzle: Swizzle | None = None
    pitch: int = 0
    offset: int = 0
    span: Span | None = None

    @property
    def strides(self) -> tuple[int, ...]:
        row = self.pitch or self.shape[-1]
        inner = self.shape[1:-1]
        return (*(row * prod(inner[i:]) for i in range(len(self.shape) - 1)), 1)

    @property
    def elements(self) -> int:
        return (self.pitch or self.shape[-1]) * prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class Registers:
    """A thread's fragment: an array that lives in registers. `holds` says of what, for readers."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    holds: str = ""


@dataclass(frozen=True, slots=True)
class Phases:
    """An array of `count` transaction barriers in shared memory, from byte `offset` on.

    Each of its phases takes `arrivals` arrivals (1 <= arrivals < 2**20).
    """

    name: str
    count: int
    arrivals: int
    offset: int = 0
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where blocks of the grid leave registers for others: `count` elements of each thread.

    It lies in global memory that the runtime provides (see `exchange_bytes`), with a flag for
    each warp of each block, which is zero between launches. All blocks run at once.
    """

    name: str
    dtype: DType
    count: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How the copy engine sees a global tensor: as boxes of `box` elements.

    The map's axes are the tensor's, in the order `axes` (empty: as they are), outermost first;
    the last has stride 1, the strides of the others are multiples of 16 bytes, and so is the
    tensor's address. Box and coordinates are in the map's order. In shared memory a box is dense
    and row-major, then swizzled within rows of `swizzle` bytes (0: not; 32, 64 or 128: 16-byte
    pieces are permuted as `box_swizzle` says). The runtime encodes the map for each launch.
    """

    name: str
    tensor: str
    box: tuple[int, ...]
    swizzle: int = 0
    axes: tuple[int, ...] = ()
    span: Span | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """The tensor's axis of each axis of the map."""
        return self.axes or tuple(range(len(self.box)))


# ---------------------------------------------------------------- the whole


class Interface(Protocol):
    """What a launch reads of a kernel. `grid` multiplies to the blocks, of `threads` each."""

    @property
    def name(self) -> str: ...
    @property
    def grid(self) -> tuple[Expr, ...]: ...
    @property
    def symbols(self) -> tuple[Symbol, ...]: ...
    @property
    def tensors(self) -> tuple[Tensor, ...]: ...
    @property
    def scalars(self) -> tuple[Scalar, ...]: ...
    @property
    def contracts(self) -> Guard: ...
    @property
    def cluster(self) -> int: ...
    @property
    def maps(self) -> tuple[TensorMap, ...]: ...
    @property
    def exchanges(self) -> tuple[Exchange, ...]: ...
    @property
    def warps(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Declarations:
    """A kernel without its body (see `kernel.ops.Kernel` for the fields)."""

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
    contracts: Guard
    cluster: int
    phases: tuple[Phases, ...]
    maps: tuple[TensorMap, ...]
    exchanges: tuple[Exchange, ...]

    @property
    def threads(self) -> int:
        return self.warps * self.warp_size

    @property
    def shared_bytes(self) -> int:
        return shared_bytes(self.shared, self.phases)


def shared_bytes(shared: tuple[Shared, ...], phases: tuple[Phases, ...]) -> int:
    """The shared memory that one block needs."""
    buffers = (s.offset + s.elements * s.dtype.bytes for s in shared)
    barriers = (p.offset + p.count * PHASE_BYTES for p in phases)
    return max((*buffers, *barriers), default=0)


def block_count(kernel: Interface, symbols: Mapping[str, int]) -> int:
    """The blocks of a launch for these sizes."""
    return prod(extent.evaluate(symbols) for extent in kernel.grid)


EXCHANGE_PIECE = 16  # bytes that a thread leaves and takes together


def exchange_flags(blocks: int, warps: int) -> int:
    """The bytes at the head of an exchange: a word for each warp, up to a whole sector."""
    return round_up(blocks * warps * 4, 128)


def exchange_bytes(exchange: Exchange, blocks: int, warps: int, threads: int) -> int:
    """The global memory of an exchange: flags, then ``[block, piece, thread]`` pieces."""
    return exchange_flags(blocks, warps) + blocks * threads * exchange.count * exchange.dtype.bytes
