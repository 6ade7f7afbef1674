"""Kernels written by hand, for the simulator's tests and benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import DType, f16, f32
from tilewright.kernel.async_ops import Phases, TensorMap
from tilewright.kernel.ops import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Const,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    MatrixShape,
    MemRef,
    Mma,
    Mode,
    Read,
    ReducedAxis,
    Registers,
    RegRef,
    Scalar,
    Shared,
    Store,
    Swizzle,
    Symbol,
    Tensor,
)
from tilewright.poly.expr import Expr, less
from tilewright.poly.layout import Layout, LayoutDigit, Place
from tilewright.target.model import MmaAtom, Target

Index = Expr | int | str


def e(value: Index) -> Expr:
    return Expr.of(value)


def digits(*pairs: tuple[str, Index]) -> tuple[tuple[str, Expr], ...]:
    return tuple((name, e(extent)) for name, extent in pairs)


def decode(source: Index, *pairs: tuple[str, Index]) -> Decode:
    return Decode(e(source), digits(*pairs))


def reg(name: str, *index: Index) -> RegRef:
    return RegRef(name, tuple(e(i) for i in index))


def mem(name: str, *index: Index) -> MemRef:
    return MemRef(name, tuple(e(i) for i in index))


def read(dtype: DType, name: str, *index: Index) -> Read:
    return Read(reg(name, *index), dtype)


def tensor(name: str, dtype: DType, mode: Mode, *shape: Index) -> Tensor:
    """Dense row-major; a symbolic extent may stand only first."""
    strides = [e(1)]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * int(extent))
    return Tensor(name, dtype, tuple(e(s) for s in shape), tuple(strides), mode, 16)


def kernel(
    body: Sequence[object],
    *,
    grid: Sequence[Index] = (1,),
    warps: int = 1,
    warp_size: int = 32,
    tensors: Sequence[Tensor] = (),
    shared: Sequence[Shared] = (),
    registers: Sequence[Registers] = (),
    symbols: Sequence[Symbol] = (),
    scalars: Sequence[Scalar] = (),
    phases: Sequence[Phases] = (),
    maps: Sequence[TensorMap] = (),
) -> Kernel:
    return Kernel(
        name="k",
        target="sm_90a" if warp_size == 32 else "gfx942",
        warp_size=warp_size,
        warps=warps,
        grid=tuple(e(g) for g in grid),
        symbols=tuple(symbols),
        tensors=tuple(tensors),
        scalars=tuple(scalars),
        shared=tuple(shared),
        registers=tuple(registers),
        body=tuple(body),  # type: ignore[arg-type]
        phases=tuple(phases),
        maps=tuple(maps),
    )


def gemm(m: int, n: int, k: int) -> Kernel:
    """``c[m, n] = sum(a[m, k] * b[n, k])`` in f16: 128x128x32 tiles, four warps, two stages."""
    blocks_m, blocks_n, steps = m // 128, n // 128, k // 32
    stage = e("ko") % 2

    def copies(name: str, block: str, step: Expr) -> AsyncCopy:
        row = e("cr") + 32 * e("i")
        return AsyncCopy(
            (("i", 4),),
            mem(f"{name}s", step % 2, row, 8 * e("cc")),
            mem(name, 128 * e(block) + row, 32 * step + 8 * e("cc")),
            8,
        )

    zero = Assign((("fm", 4), ("fn", 8), ("r", 4)), reg("acc", "fm", "fn", "r"), Const(0.0, f32))
    load_a = Load(
        (("fm", 4), ("fk", 2), ("kh", 2), ("mh", 2)),
        reg("af", "fm", "fk", 4 * e("kh") + 2 * e("mh")),
        mem(
            "as", stage, 64 * e("wm") + 16 * e("fm") + 8 * e("mh") + "g",
            16 * e("fk") + 8 * e("kh") + 2 * e("t"),
        ),
        width=2,
        matrix=MatrixShape("x4", "g", "t", ("kh", "mh")),
    )  # fmt: skip
    load_b = Load(
        (("fn", 8), ("fk", 2), ("kh", 2)),
        reg("bf", "fn", "fk", 2 * e("kh")),
        mem("bs", stage, 64 * e("wn") + 8 * e("fn") + "g", 16 * e("fk") + 8 * e("kh") + 2 * e("t")),
        width=2,
        matrix=MatrixShape("x4", "g", "t", ("fk", "kh")),
    )
    mma = Mma(
        (("fk", 2), ("fm", 4), ("fn", 8)),
        "mma.sync.m16n8k16.f32.f16",
        reg("acc", "fm", "fn", 0),
        reg("af", "fm", "fk", 0),
        reg("bf", "fn", "fk", 0),
        reduces=(ReducedAxis("K", e(k), 32 * e("ko") + 16 * e("fk")),),
    )
    store = Store(
        (("fm", 4), ("fn", 8), ("mh", 2)),
        mem(
            "c", 128 * e("bm") + 64 * e("wm") + 16 * e("fm") + 8 * e("mh") + "g",
            128 * e("bn") + 64 * e("wn") + 8 * e("fn") + 2 * e("t"),
        ),
        reg("acc", "fm", "fn", 2 * e("mh")),
        width=2,
    )  # fmt: skip
    ahead = e("ko") + 1
    body: Body = (
        decode("block", ("bm", blocks_m), ("bn", blocks_n)),
        decode("thread", ("wm", 2), ("wn", 2), ("g", 8), ("t", 4)),
        decode("thread", ("cr", 32), ("cc", 4)),
        zero,
        copies("a", "bm", e(0)),
        copies("b", "bn", e(0)),
        AsyncCommit(),
        Loop(
            "ko",
            e(steps),
            (
                If((less(ahead, steps),), (copies("a", "bm", ahead), copies("b", "bn", ahead))),
                AsyncCommit(),
                AsyncWait(1),
                Barrier(),
                load_a,
                load_b,
                mma,
                Barrier(),
            ),
        ),
        store,
    )
    swizzle = Swizzle(2, 3, 3)
    return kernel(
        body,
        grid=(blocks_m * blocks_n,),
        warps=4,
        tensors=(
            tensor("a", f16, Mode.IN, m, k),
            tensor("b", f16, Mode.IN, n, k),
            tensor("c", f32, Mode.OUT, m, n),
        ),
        shared=(
            Shared("as", f16, (2, 128, 32), swizzle),
            Shared("bs", f16, (2, 128, 32), swizzle, offset=2 * 128 * 32 * 2),
        ),
        registers=(
            Registers("af", f16, (4, 2, 8)),
            Registers("bf", f16, (8, 2, 4)),
            Registers("acc", f32, (4, 8, 4)),
        ),
    )


def _along(layout: Layout, place: Place, prefix: str) -> list[tuple[str, LayoutDigit]]:
    return [(f"{prefix}{i}", digit) for i, digit in enumerate(layout.at(place))]


def _threads(layout: Layout, prefix: str) -> list[tuple[str, LayoutDigit]]:
    warps = _along(layout, Place.WARP, f"{prefix}w")
    return warps + _along(layout, Place.LANE, f"{prefix}l")


def _coordinate(named: Sequence[tuple[str, LayoutDigit]], axis: str) -> Expr:
    total = e(0)
    for name, digit in named:
        if digit.axis == axis:
            total = total + digit.stride * e(name)
    return total


def atom_kernel(target: Target, atom: MmaAtom, rows: int, columns: int) -> Kernel:
    """``c = a @ b.T`` by one group of threads, with rows x columns x 2 instances of the atom.

    Every index follows the atom's layouts, one element per load and store.
    """
    extents = {"m": rows, "n": columns, "k": 2}
    sizes = {"m": atom.m, "n": atom.n, "k": atom.k}
    body: list[object] = []
    parts: dict[str, tuple[Layout, tuple[str, str]]] = {
        "a": (atom.a, ("m", "k")),
        "b": (atom.b, ("n", "k")),
        "c": (atom.d, ("m", "n")),
    }
    moves: dict[str, tuple[tuple[tuple[str, int], ...], RegRef, MemRef]] = {}
    for name, (layout, axes) in parts.items():
        threads = _threads(layout, name)
        source = "thread" if layout.at(Place.WARP) else "lane"
        body.append(decode(source, *((n, d.extent) for n, d in threads)))
        registers = _along(layout, Place.REGISTER, f"{name}r")
        over = tuple((f"{axis}i", extents[axis]) for axis in axes)
        over += tuple((n, d.extent) for n, d in registers)
        row = e(0)
        for n, d in registers:
            row = row * d.extent + e(n)
        where = (sizes[x] * e(f"{x}i") + _coordinate([*threads, *registers], x) for x in axes)
        moves[name] = (over, reg(name, *(f"{x}i" for x in axes), row), mem(name, *where))
    (over_a, reg_a, mem_a), (over_b, reg_b, mem_b), (over_c, reg_c, mem_c) = moves.values()
    body += [
        Load(over_a, reg_a, mem_a),
        Load(over_b, reg_b, mem_b),
        Assign(over_c, reg_c, Const(0, atom.d_dtype)),
        Mma(
            (("ki", 2), ("mi", rows), ("ni", columns)), atom.name,
            reg("c", "mi", "ni", 0), reg("a", "mi", "ki", 0), reg("b", "ni", "ki", 0),
        ),
        Store(over_c, mem_c, reg_c),
    ]  # fmt: skip
    counts = {n: layout.count(Place.REGISTER) for n, (layout, _) in parts.items()}
    return kernel(
        body,
        warps=atom.d.count(Place.WARP),
        warp_size=target.warp_size,
        tensors=(
            tensor("a", atom.a_dtype, Mode.IN, rows * atom.m, 2 * atom.k),
            tensor("b", atom.b_dtype, Mode.IN, columns * atom.n, 2 * atom.k),
            tensor("c", atom.d_dtype, Mode.OUT, rows * atom.m, columns * atom.n),
        ),
        registers=(
            Registers("a", atom.a_dtype, (rows, 2, counts["a"])),
            Registers("b", atom.b_dtype, (columns, 2, counts["b"])),
            Registers("c", atom.d_dtype, (rows, columns, counts["c"])),
        ),
    )
