"""Kernels of real size for real targets: the proofs' speed, and the design's worked examples."""

from __future__ import annotations

from proof_kernels import e

from tilewright.base.dtypes import f16, f32
from tilewright.kernel.ops import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Cast,
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
    Shared,
    Store,
    Swizzle,
    Symbol,
    Tensor,
)
from tilewright.poly.expr import Expr, less


def _tensor(name: str, rows: Expr, columns: Expr, mode: Mode, dtype: object = f16) -> Tensor:
    return Tensor(name, dtype, (rows, columns), (columns, e(1)), mode, 16)  # type: ignore[arg-type]


def tiled_gemm(m: str | int = "M", n: str | int = "N", k: str | int = "K", stages: int = 2,
               *, last_barrier: bool = True) -> Kernel:  # fmt: skip
    """c[m, n] = a[m, k] * b[n, k] on sm_90a: tile 128 x 128 x 32, 2 x 2 warps, `stages` slots."""
    turns, ahead = e(k).ceildiv(32), e("ko") + (stages - 1)

    def fetch(name: str, at: str, turn: Expr, size: str | int) -> AsyncCopy:
        row, column = 32 * e("r") + e("p"), 8 * e("q")
        source = (128 * e(at) + row, 32 * turn + column)
        return AsyncCopy(
            (("r", 4),), MemRef(f"s{name}", (turn % stages, row, column)), MemRef(name, source), 8,
            guard=(less(source[0], size), less(source[1], k)), note=f"tile of {name}",
        )  # fmt: skip

    slot, inner = e("ko") % stages, 16 * e("kk") + 8 * e("kh") + 2 * e("t")
    load_a = Load(
        (("fm", 4), ("kh", 2), ("i", 2)),
        RegRef("ra", (e("fm"), 4 * e("kh") + 2 * e("i"))),
        MemRef("sa", (slot, 64 * e("wm") + 16 * e("fm") + 8 * e("i") + e("g"), inner)),
        2, matrix=MatrixShape("x4", "g", "t", ("kh", "i")),
    )  # fmt: skip
    load_b = Load(
        (("fn", 8), ("kh", 2)),
        RegRef("rb", (e("fn"), 2 * e("kh"))),
        MemRef("sb", (slot, 64 * e("wn") + 8 * e("fn") + e("g"), inner)),
        2, matrix=MatrixShape("x2", "g", "t", ("kh",)),
    )  # fmt: skip
    tile = (("fm", 4), ("fn", 8))
    acc = RegRef("acc", (e("fm"), e("fn"), e(0)))
    mma = Mma(tile, "mma.sync.m16n8k16.f32.f16", acc, RegRef("ra", (e("fm"), e(0))),
              RegRef("rb", (e("fn"), e(0))),
              (ReducedAxis("K", e(k), 32 * e("ko") + 16 * e("kk")),))  # fmt: skip
    element = RegRef("acc", (e("fm"), e("fn"), e("x")))
    row = 128 * e("mo") + 64 * e("wm") + 16 * e("fm") + 8 * e("i") + e("g")
    column = 128 * e("no") + 64 * e("wn") + 8 * e("fn") + 2 * e("t")
    copies = lambda turn: (fetch("a", "mo", turn, m), fetch("b", "no", turn, n))  # noqa: E731
    end = (Barrier("the slot has been read"),) if last_barrier else ()
    return Kernel(
        name="gemm", target="sm_90a", warp_size=32, warps=4,
        grid=(e(m).ceildiv(128), e(n).ceildiv(128)),
        symbols=tuple(Symbol(s, 1, 1 if s == m else 8) for s in (m, n, k) if isinstance(s, str)),
        tensors=(_tensor("a", e(m), e(k), Mode.IN), _tensor("b", e(n), e(k), Mode.IN),
                 _tensor("c", e(m), e(n), Mode.OUT)),
        scalars=(),
        shared=(Shared("sa", f16, (stages, 128, 32), Swizzle(2, 3, 3)),
                Shared("sb", f16, (stages, 128, 32), Swizzle(2, 3, 3), 0, stages * 8192)),
        registers=(Registers("acc", f32, (4, 8, 4)), Registers("out", f16, (4, 8, 4)),
                   Registers("ra", f16, (4, 8)), Registers("rb", f16, (8, 4))),
        body=(
            Decode(e("block"), (("mo", e(m).ceildiv(128)), ("no", e(n).ceildiv(128)))),
            Decode(e("warp"), (("wm", e(2)), ("wn", e(2)))),
            Decode(e("lane"), (("g", e(8)), ("t", e(4)))),
            Decode(e("thread"), (("p", e(32)), ("q", e(4)))),
            Assign((*tile, ("x", 4)), element, Const(0.0, f32)),
            Loop("s", e(stages - 1), (If((less("s", turns),), copies(e("s"))), AsyncCommit())),
            Loop("ko", turns, (
                If((less(ahead, turns),), copies(ahead)),
                AsyncCommit(),
                AsyncWait(stages - 1),
                Barrier("the tiles have landed"),
                Loop("kk", e(2), (load_a, load_b, mma), unroll=True),
                *end,
            )),
            Assign((*tile, ("x", 4)), RegRef("out", element.index), Cast(Read(element, f32), f16)),
            Store((*tile, ("i", 2)), MemRef("c", (row, column)),
                  RegRef("out", (e("fm"), e("fn"), 2 * e("i"))), 2,
                  guard=(less(row, m), less(column, n))),
        ),
    )  # fmt: skip


def chained_gemm(n_frags: int = 2) -> Kernel:
    """s = q k^T, dv = s^T do^T on gfx942, one wave; the design's first worked example.

    M = K1 = K2 = 16, N = 32: dv has N in `n_frags` fragments of 16.
    """
    atom = "F32_16x16x16_F16"
    row, column = 4 * e("h"), e("l")

    def operand(name: str, fragment: str, r: Expr, over: tuple[tuple[str, int], ...] = ()) -> Load:
        index = (e("n"), e(0)) if over else (e(0),)
        return Load(over, RegRef(fragment, index), MemRef(name, (r, row)), 4)

    zero = Const(0.0, f32)
    return Kernel(
        name="chained", target="gfx942", warp_size=64, warps=1, grid=(e(1),), symbols=(),
        tensors=(_tensor("q", e(16), e(16), Mode.IN), _tensor("k", e(16), e(16), Mode.IN),
                 _tensor("do", e(32), e(16), Mode.IN), _tensor("dv", e(16), e(32), Mode.OUT, f32)),
        scalars=(), shared=(),
        registers=(Registers("fq", f16, (4,)), Registers("fk", f16, (4,)),
                   Registers("fdo", f16, (2, 4)), Registers("s", f32, (4,)),
                   Registers("sh", f16, (4,)), Registers("acc", f32, (2, 4))),
        body=(
            Decode(e("block"), (("b", e(1)),)),
            Decode(e("lane"), (("h", e(4)), ("l", e(16)))),
            operand("q", "fq", column),
            operand("k", "fk", 16 * e("b") + column),
            Assign((("r", 4),), RegRef("s", (e("r"),)), zero),
            Mma((), atom, RegRef("s", (e(0),)), RegRef("fq", (e(0),)), RegRef("fk", (e(0),)),
                (ReducedAxis("K1", e(16), e(0)),)),
            Assign((("r", 4),), RegRef("sh", (e("r"),)),
                   Cast(Read(RegRef("s", (e("r"),)), f32), f16)),
            operand("do", "fdo", 16 * e("n") + column, (("n", 2),)),
            Assign((("n", 2), ("r", 4)), RegRef("acc", (e("n"), e("r"))), zero),
            Mma((("n", 2),), atom, RegRef("acc", (e("n"), e(0))), RegRef("sh", (e(0),)),
                RegRef("fdo", (e("n"), e(0))), (ReducedAxis("M", e(16), e(0)),)),
            Store((("n", n_frags), ("r", 4)),
                  MemRef("dv", (16 * e("b") + row + e("r"), 16 * e("n") + column)),
                  RegRef("acc", (e("n"), e("r")))),
        ),
    )  # fmt: skip
