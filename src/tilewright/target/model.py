"""What a target is: frozen data. Instructions are rows of tables, read by every phase alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.base.dtypes import DType
from tilewright.poly.layout import Layout


class Scope(Enum):
    """How many threads execute an atom together."""

    WARP = "warp"
    WARPGROUP = "warpgroup"


class Source(Enum):
    """Where an MMA operand is read from."""

    REGISTER = "register"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class MmaAtom:
    """One matrix instruction: ``d[m, n] += a[m, k] * b[n, k]``.

    `a`, `b` and `d` are layouts over the axes ``m``, ``n``, ``k``, with lanes and registers
    only (a warpgroup atom also has a warp digit of extent 4). `emit` is the instruction's
    spelling: a PTX opcode or a compiler builtin.
    """

    name: str
    m: int
    n: int
    k: int
    a_dtype: DType
    b_dtype: DType
    d_dtype: DType
    a: Layout
    b: Layout
    d: Layout
    emit: str
    scope: Scope = Scope.WARP
    a_source: Source = Source.REGISTER
    b_source: Source = Source.REGISTER


@dataclass(frozen=True, slots=True)
class MatrixLoad:
    """A warp-wide load of 8x8 tiles of 16-bit elements from shared memory (`ldmatrix`).

    Its effect equals plain loads in the fragment layout: lane ``4*r + c`` receives elements
    ``2*c`` and ``2*c + 1`` of row ``r`` of each tile (of column ``r`` where `transposed`).
    """

    name: str
    tiles: int
    transposed: bool
    emit: str


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """FLOP/s of all tensor cores for operands of so many bits: at best, and in a long product.

    The card's power limit, not its instructions, sets the second.
    """

    bits: int
    peak: float
    held: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Figures for predictions, not for correctness: of the whole card where not said.

    Rates are per second, what a good kernel reaches; latencies are seconds.
    """

    matrix_rates: tuple[MatrixRate, ...]
    warp_share: float  # of the rate, that matrix instructions of single warps reach
    memory_bandwidth: float
    l2_bandwidth: float
    l2_bytes: int
    shared_bandwidth: float  # of one multiprocessor, reads and writes together
    shared_bytes: int  # of one multiprocessor, for all its blocks
    registers: int  # 32-bit, of one multiprocessor
    threads: int  # of one multiprocessor
    memory_latency: float  # from the start of a copy to its data, under load
    launch_latency: float  # of an empty kernel
    tile_latency: float  # at the end of a tile: conversion, synchronisation, start of the stores
    step_latency: float  # at the end of a step of the main loop, until the next one's first product
    # Blocks in clusters of so many, one to a multiprocessor, that the card has room for at once.
    cluster_seats: tuple[tuple[int, int], ...] = ()

    def rate(self, bits: int) -> MatrixRate | None:
        return next((rate for rate in self.matrix_rates if rate.bits == bits), None)

    def seats(self, cluster: int, multiprocessors: int) -> int:
        """How many multiprocessors blocks in clusters of `cluster` can use."""
        known = sorted(self.cluster_seats)
        fitting = next((seats for size, seats in known if size >= cluster > 1), multiprocessors)
        return fitting // cluster * cluster


@dataclass(frozen=True, slots=True)
class Target:
    """A machine that kernels are compiled for. Sizes are bytes, per block where not said."""

    name: str
    printer: str  # which back end prints for it
    warp_size: int
    max_threads: int
    shared_bytes: int
    registers_per_thread: int  # 32-bit registers
    multiprocessors: int
    vector_bytes: int  # the widest load or store of one thread
    async_copy_bytes: tuple[int, ...]  # widths of asynchronous global-to-shared copies
    mma_atoms: tuple[MmaAtom, ...]
    matrix_loads: tuple[MatrixLoad, ...]
    max_cluster: int = 1  # blocks that may run together in a cluster
    bulk_swizzles: tuple[int, ...] = ()  # bytes; of the copy engine; empty where it has none
    matrix_stores: tuple[MatrixLoad, ...] = ()  # the mirror of the matrix loads (`stmatrix`)
    machine: Machine | None = None  # None: nothing is predicted for it

    def atom(self, name: str) -> MmaAtom | None:
        return next((atom for atom in self.mma_atoms if atom.name == name), None)
