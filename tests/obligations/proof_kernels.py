"""Small kernels for the proofs, and a toy target that keeps their enumeration quick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.base.dtypes import f16, f32
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
    Decode,
    If,
    Kernel,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Mode,
    Read,
    Reduce,
    ReducedAxis,
    Registers,
    RegRef,
    Shared,
    Statement,
    Store,
    Swizzle,
    Symbol,
    Tensor,
    When,
)
from tilewright.poly.expr import Expr, Guard, equal, less
from tilewright.poly.layout import Layout, LayoutDigit, Place
from tilewright.target.model import MmaAtom, Target

ATOM = "toy.m2n2k2"


def e(value: str | int) -> Expr:
    return Expr.of(value)


def _lanes(shape: tuple[str, str]) -> Layout:
    return Layout(
        tuple((axis, 2) for axis in shape),
        tuple(LayoutDigit(Place.LANE, 2, axis) for axis in shape),
    )


TOY = Target(
    name="toy", printer="none", warp_size=4, max_threads=64, shared_bytes=4096,
    registers_per_thread=64, multiprocessors=2, vector_bytes=16, async_copy_bytes=(4, 8),
    mma_atoms=(
        MmaAtom(ATOM, 2, 2, 2, f16, f16, f32,
                _lanes(("m", "k")), _lanes(("n", "k")), _lanes(("m", "n")), ""),
    ),
    matrix_loads=(),
)  # fmt: skip


def tensor(name: str, shape: tuple[str | int, ...], mode: Mode = Mode.IN, bits: int = 64) -> Tensor:
    """A row-major f16 tensor of rank 1 or 2."""
    sizes = tuple(e(n) for n in shape)
    strides = (e(1),) if len(shape) == 1 else (sizes[1], e(1))
    return Tensor(name, f16, sizes, strides, mode, 16, bits)


def kernel(
    body: Body,
    tensors: tuple[Tensor, ...],
    *,
    grid: tuple[Expr | int, ...] = (1,),
    warps: int = 1,
    warp_size: int = 4,
    symbols: tuple[Symbol, ...] = (),
    shared: tuple[Shared, ...] = (),
    registers: tuple[Registers, ...] = (),
    contracts: Guard = (),
) -> Kernel:
    return Kernel(
        "k", "toy", warp_size, warps, tuple(e(g) if isinstance(g, int) else g for g in grid),
        symbols, tensors, (), shared, registers, body, contracts,
    )  # fmt: skip


def rewrite(k: Kernel, change: Callable[[Statement], Statement | tuple[Statement, ...]]) -> Kernel:
    """The kernel with every statement replaced by what `change` gives for it, inner first."""

    def bodies(body: Body) -> Body:
        result: list[Statement] = []
        for s in body:
            if isinstance(s, Loop | If | When):
                s = replace(s, body=bodies(s.body))
            changed = change(s)
            result += changed if isinstance(changed, tuple) else (changed,)
        return tuple(result)

    return replace(k, body=bodies(k.body))


# ---------------------------------------------------------------- kernels


def copy_rows(m: str | int = "M", n: str | int = "N", vector: int = 2) -> Kernel:
    """y[m, n] = x[m, n] in tiles of 4 x 8: 2 warps, vectors of `vector`."""
    row = 4 * e("mo") + 2 * e("w") + e("h")
    column = 8 * e("no") + 4 * e("l") + vector * e("v")
    guard = (less(row, m), less(column, n))
    over = (("v", 4 // vector),)
    symbols = tuple(Symbol(s, 1, vector if s == "N" else 1) for s in (m, n) if isinstance(s, str))
    return kernel(
        (
            Decode(e("block"), (("mo", e(m).ceildiv(4)), ("no", e(n).ceildiv(8)))),
            Decode(e("warp"), (("w", e(2)),)),
            Decode(e("lane"), (("h", e(2)), ("l", e(2)))),
            Load(over, RegRef("r", (vector * e("v"),)), MemRef("x", (row, column)), vector,
                 guard=guard),
            Store(over, MemRef("y", (row, column)), RegRef("r", (vector * e("v"),)), vector,
                  guard=guard),
        ),
        (tensor("x", (m, n)), tensor("y", (m, n), Mode.OUT)),
        grid=(e(m).ceildiv(4), e(n).ceildiv(8)), warps=2, symbols=symbols,
        registers=(Registers("r", f16, (4,)),),
    )  # fmt: skip


def row_sums(n: str | int = "N") -> Kernel:
    """y[m] = sum over n of x[m, n]: one warp a row, partial sums in its lanes."""
    column = 4 * e("no") + e("l")
    s = RegRef("s", (e(0),))
    fold = tuple(
        Assign((), s, Apply("add", (Read(s, f32), LaneXor(s, mask, f32)), f32)) for mask in (1, 2)
    )
    symbols = (Symbol("M"), *((Symbol(n),) if isinstance(n, str) else ()))
    return kernel(
        (
            Decode(e("block"), (("m", e("M")),)),
            Decode(e("lane"), (("l", e(4)),)),
            Assign((), s, Const(0.0, f32)),
            Loop("no", e(n).ceildiv(4), (
                Load((), RegRef("v", (e(0),)), MemRef("x", (e("m"), column)),
                     guard=(less(column, n),)),
                Reduce("add", (), (), s, Cast(Read(RegRef("v", (e(0),)), f16), f32),
                       (ReducedAxis("N", e(n), column),)),
            )),
            *fold,
            If((equal("l", 0),), (Store((), MemRef("y", (e("m"),)), s),)),
        ),
        (tensor("x", ("M", n)), tensor("y", ("M",), Mode.OUT)),
        grid=(e("M"),), symbols=symbols,
        registers=(Registers("v", f16, (1,)), Registers("s", f32, (1,))),
    )  # fmt: skip


def transpose() -> Kernel:
    """y[n, m] = x[m, n] through a shared tile of 4 x 4, in a loop with two barriers a turn."""
    m, n = 4 * e("mo"), 4 * e("no")
    r = RegRef("r", (e("i"),))
    t = RegRef("t", (e("i"),))
    write = (e("c") + 2 * e("i"), e("d"))
    read = (e("d"), e("c") + 2 * e("i"))
    load = (m + write[0], n + write[1])
    store = (n + write[0], m + write[1])
    over = (("i", 2),)
    return kernel(
        (
            Decode(e("block"), (("mo", e("M").ceildiv(4)),)),
            Decode(e("thread"), (("c", e(2)), ("d", e(4)))),
            Loop("no", e("N").ceildiv(4), (
                Load(over, r, MemRef("x", load), guard=(less(load[0], "M"), less(load[1], "N"))),
                Store(over, MemRef("tile", write), r),
                Barrier(),
                Load(over, t, MemRef("tile", read)),
                Store(over, MemRef("y", store), t,
                      guard=(less(store[0], "N"), less(store[1], "M"))),
                Barrier(),
            )),
        ),
        (tensor("x", ("M", "N")), tensor("y", ("N", "M"), Mode.OUT)),
        grid=(e("M").ceildiv(4),), warps=2, symbols=(Symbol("M"), Symbol("N")),
        shared=(Shared("tile", f16, (4, 4), Swizzle(1, 1, 1)),),
        registers=(Registers("r", f16, (2,)), Registers("t", f16, (2,))),
    )  # fmt: skip


def pipelined_gemm(stages: int = 3, m: str | int = "M", n: str | int = "N",
                   k: str | int = "K") -> Kernel:  # fmt: skip
    """c[m, n] = a[m, k] * b[n, k] with toy atoms: 2 warps, tile 4 x 4 x 4, a ring of copies."""

    def fetch(name: str, at: str, turn: Expr, size: str | int) -> AsyncCopy:
        row, col = 2 * e("p") + e("q"), 2 * e("u")
        source = (4 * e(at) + row, 4 * turn + col)
        ring = turn % stages
        return AsyncCopy(
            (), MemRef(f"s{name}", (ring, row, col)), MemRef(name, source), 2,
            guard=(less(source[0], size), less(source[1], k)),
        )  # fmt: skip

    turns = e(k).ceildiv(4)
    ahead = e("ko") + (stages - 1)
    slot = e("ko") % stages
    h, low = e("h"), e("l")
    load_a = Load(
        (), RegRef("ra", (e(0),)), MemRef("sa", (slot, 2 * e("w") + h, 2 * e("kk") + low))
    )
    load_b = Load((("j", 2),), RegRef("rb", (e("j"),)),
                  MemRef("sb", (slot, 2 * e("j") + h, 2 * e("kk") + low)))  # fmt: skip
    mma = Mma((("j", 2),), ATOM, RegRef("acc", (e("j"),)), RegRef("ra", (e(0),)),
              RegRef("rb", (e("j"),)),
              (ReducedAxis("K", e(k), 4 * e("ko") + 2 * e("kk")),))  # fmt: skip
    row, column = 4 * e("mo") + 2 * e("w") + h, 4 * e("no") + 2 * e("j") + low
    symbols = tuple(Symbol(s, 1, 2 if s == k else 1) for s in (m, n, k) if isinstance(s, str))
    return kernel(
        (
            Decode(e("block"), (("mo", e(m).ceildiv(4)), ("no", e(n).ceildiv(4)))),
            Decode(e("warp"), (("w", e(2)),)),
            Decode(e("lane"), (("h", e(2)), ("l", e(2)))),
            Decode(e("thread"), (("p", e(2)), ("q", e(2)), ("u", e(2)))),
            Assign((("j", 2),), RegRef("acc", (e("j"),)), Const(0.0, f32)),
            Loop("s", e(stages - 1), (
                If((less("s", turns),), (fetch("a", "mo", e("s"), m), fetch("b", "no", e("s"), n))),
                AsyncCommit(),
            )),
            Loop("ko", turns, (
                AsyncWait(stages - 2),
                Barrier(),
                If((less(ahead, turns),),
                   (fetch("a", "mo", ahead, m), fetch("b", "no", ahead, n))),
                AsyncCommit(),
                Loop("kk", e(2), (load_a, load_b, mma), unroll=True),
            )),
            Store((("j", 2),), MemRef("c", (row, column)), RegRef("acc", (e("j"),)),
                  guard=(less(row, m), less(column, n))),
        ),
        (tensor("a", (m, k)), tensor("b", (n, k)), tensor("c", (m, n), Mode.OUT)),
        grid=(e(m).ceildiv(4), e(n).ceildiv(4)), warps=2, symbols=symbols,
        shared=(Shared("sa", f16, (stages, 4, 4)),
                Shared("sb", f16, (stages, 4, 4), None, 0, 32 * stages)),
        registers=(Registers("acc", f32, (2,)), Registers("ra", f16, (1,)),
                   Registers("rb", f16, (2,))),
    )  # fmt: skip


def warp_sums() -> Kernel:
    """y[m, n] = sum over k of x[k, 4 m + n], for 4 columns a block: 4 warps share k.

    A warp's 4 lanes are 2 of k and 2 columns; a thread has 2 columns in registers. The warps'
    partial sums go through shared memory.
    """
    row = 8 * e("ko") + 2 * e("w") + e("h")
    column = 4 * e("m") + 2 * e("l") + e("j")
    over = (("j", 2),)
    s, v, t = (RegRef(n, (e("j"),)) for n in "svt")
    g = RegRef("g", (e("i"), e("j")))
    return kernel(
        (
            Decode(e("block"), (("m", e("M")),)),
            Decode(e("warp"), (("w", e(4)),)),
            Decode(e("lane"), (("h", e(2)), ("l", e(2)))),
            Assign(over, s, Const(0.0, f32)),
            Loop("ko", e("K").ceildiv(8), (
                Load(over, v, MemRef("x", (row, column)), guard=(less(row, "K"),)),
                Reduce("add", over, (), s, Read(v, f32), (ReducedAxis("K", e("K"), row),)),
            )),
            Assign(over, s, Apply("add", (Read(s, f32), LaneXor(s, 2, f32)), f32)),
            Store((), MemRef("part", (e("w"), 2 * e("l"))), RegRef("s", (e(0),)), 2,
                  guard=(equal("h", 0),)),
            Barrier(),
            Load((("i", 4),), RegRef("g", (e("i"), e(0))), MemRef("part", (e("i"), 2 * e("l"))), 2),
            Assign(over, t, Const(0.0, f32)),
            Reduce("add", over, (("i", 4),), t, Read(g, f32)),
            Store((), MemRef("y", (e("m"), 2 * e("l"))), RegRef("t", (e(0),)), 2,
                  guard=(equal("w", 0), equal("h", 0))),
        ),
        (
            Tensor("x", f32, (e("K"), e("M") * 4), (e("M") * 4, e(1)), Mode.IN, 16),
            Tensor("y", f32, (e("M"), e(4)), (e(4), e(1)), Mode.OUT, 16),
        ),
        grid=(e("M"),), warps=4, symbols=(Symbol("M"), Symbol("K", 1, 2)),
        shared=(Shared("part", f32, (4, 4)),),
        registers=(Registers("v", f32, (2,)), Registers("s", f32, (2,)),
                   Registers("g", f32, (4, 2)), Registers("t", f32, (2,))),
    )  # fmt: skip
