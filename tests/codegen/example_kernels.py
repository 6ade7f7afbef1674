"""Kernels written directly in the kernel IR, for the tests of the back ends."""

from __future__ import annotations

from tilewright.base.dtypes import DType, f16, f32
from tilewright.kernel.ops import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Cast,
    Const,
    Decode,
    Kernel,
    Load,
    Loop,
    MatrixShape,
    MemRef,
    Mma,
    Mode,
    Over,
    Read,
    ReducedAxis,
    Registers,
    RegRef,
    Shared,
    Statement,
    Store,
    Swizzle,
    Symbol,
    Tensor,
)
from tilewright.poly.expr import Expr, Guard, less

V = Expr.of
ZERO = V(0)


def matmul(
    *,
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 32,
    stages: int = 3,
    warps_m: int = 2,
    warps_n: int = 2,
    dtype: DType = f16,
    index_bits: int = 64,
    b_is_kn: bool = False,
) -> Kernel:
    """``c[m, n] = sum over k of a[m, k] * b[n, k]`` by cp.async, ldmatrix and mma.m16n8k16.

    With `b_is_kn` the second operand is ``b[k, n]``, loaded transposed.

    M, N and K are dynamic; K is a multiple of `block_k`, N of 8.
    """
    warps = warps_m * warps_n
    threads = 32 * warps
    chunks = block_k // 8
    rows = threads // chunks
    rows_kn = threads * 8 // block_n
    mi, nj = block_m // warps_m // 16, block_n // warps_n // 8
    swizzle = Swizzle(2, 3, 3) if block_k == 32 else Swizzle(3, 3, 3)

    def copies(slot: Expr, step: Expr, guard: Guard) -> list[Statement]:
        def one(name: str, buffer: str, block: Expr, extent: int, limit: str) -> AsyncCopy:
            row = V("i") * rows + "tr"
            over: Over = (("i", extent // rows),)
            return AsyncCopy(
                over,
                MemRef(buffer, (slot, row, V("tc") * 8)),
                MemRef(name, (block + row, step * block_k + V("tc") * 8)),
                8,
                guard=(*guard, less(block + row, limit)),
            )

        def b_rows_of_k() -> AsyncCopy:
            k, n = V("i") * rows_kn + "ur", V("uc") * 8
            column = V("bn") * block_n + n
            return AsyncCopy(
                (("i", block_k // rows_kn),),
                MemRef("b_tile", (slot, k, n)),
                MemRef("b", (step * block_k + k, column)),
                8,
                guard=(*guard, less(column, "N")),
            )

        b_copy = one("b", "b_tile", V("bn") * block_n, block_n, "N")
        return [
            one("a", "a_tile", V("bm") * block_m, block_m, "M"),
            b_rows_of_k() if b_is_kn else b_copy,
            AsyncCommit(),
        ]

    steps = V("K") // block_k
    prologue: list[Statement] = []
    for s in range(stages - 1):
        prologue += copies(V(s), V(s), (less(s, steps),) if s else ())
    slot = V("ko") % stages
    k = V("kk") * 16
    b_n = V("wn") * (8 * nj) + V("j") * 16 + V("jh") * 8 + "g"
    b_k = k + V("kh") * 8 + V("p") * 2
    inner: tuple[Statement, ...] = (
        Load(
            (("i", mi), ("kh", 2), ("mh", 2)),
            RegRef("a_frag", (V("i"), V("kh") * 4 + V("mh") * 2)),
            MemRef(
                "a_tile",
                (
                    slot,
                    V("wm") * (16 * mi) + V("i") * 16 + V("mh") * 8 + "g",
                    k + V("kh") * 8 + V("p") * 2,
                ),
            ),
            2,
            matrix=MatrixShape("x4", "g", "p", ("kh", "mh")),
            note="a: 16x16 at a time",
        ),
        Load(
            (("j", nj // 2), ("jh", 2), ("kh", 2)),
            RegRef("b_frag", (V("j") * 2 + "jh", V("kh") * 2)),
            MemRef("b_tile", (slot, b_k, b_n) if b_is_kn else (slot, b_n, b_k)),
            2,
            axis=-2 if b_is_kn else -1,
            matrix=MatrixShape("x4.trans" if b_is_kn else "x4", "g", "p", ("jh", "kh")),
        ),
        Mma(
            (("i", mi), ("j", nj)),
            f"mma.sync.m16n8k16.f32.{dtype}",
            RegRef("acc", (V("i"), V("j"), ZERO)),
            RegRef("a_frag", (V("i"), ZERO)),
            RegRef("b_frag", (V("j"), ZERO)),
            reduces=(ReducedAxis("K", V("K"), V("ko") * block_k + k),),
        ),
    )
    ahead = V("ko") + (stages - 1)
    main = Loop(
        "ko",
        steps,
        (
            AsyncWait(stages - 2),
            Barrier("slot ko is filled, slot ko - 1 is read"),
            *copies(ahead % stages, ahead, (less(ahead, steps),)),
            Loop("kk", V(block_k // 16), inner, unroll=True),
        ),
    )
    m = V("bm") * block_m + V("wm") * (16 * mi) + V("i") * 16 + V("h") * 8 + "g"
    n = V("bn") * block_n + V("wn") * (8 * nj) + V("j") * 8 + V("p") * 2
    epilogue: tuple[Statement, ...] = (
        Assign(
            (("i", mi), ("j", nj), ("r", 4)),
            RegRef("out", (V("i"), V("j"), V("r"))),
            Cast(Read(RegRef("acc", (V("i"), V("j"), V("r"))), f32), dtype),
        ),
        Store(
            (("i", mi), ("j", nj), ("h", 2)),
            MemRef("c", (m, n)),
            RegRef("out", (V("i"), V("j"), V("h") * 2)),
            2,
            guard=(less(m, "M"), less(n, "N")),
        ),
    )
    body: tuple[Statement, ...] = (
        Decode(V("block"), (("bm", V("M").ceildiv(block_m)), ("bn", V("N").ceildiv(block_n)))),
        Decode(V("warp"), (("wm", V(warps_m)), ("wn", V(warps_n)))),
        Decode(V("lane"), (("g", V(8)), ("p", V(4)))),
        Decode(V("thread"), (("tr", V(rows)), ("tc", V(chunks)))),
        *((Decode(V("thread"), (("ur", V(rows_kn)), ("uc", V(block_n // 8)))),) * b_is_kn),
        Assign(
            (("i", mi), ("j", nj), ("r", 4)),
            RegRef("acc", (V("i"), V("j"), V("r"))),
            Const(0.0, f32),
        ),
        *prologue,
        main,
        *epilogue,
    )
    a_bytes = stages * block_m * block_k * 2
    b_shape = (stages, block_k, block_n) if b_is_kn else (stages, block_n, block_k)
    b_swizzle = Swizzle(3, 3, 4 if block_n == 128 else 3) if b_is_kn else swizzle

    def tensor(name: str, rows: str, columns: str, mode: Mode) -> Tensor:
        return Tensor(name, dtype, (V(rows), V(columns)), (V(columns), V(1)), mode, 16, index_bits)

    return Kernel(
        name="matmul",
        target="sm_90a",
        warp_size=32,
        warps=warps,
        grid=(V("M").ceildiv(block_m), V("N").ceildiv(block_n)),
        symbols=(Symbol("M"), Symbol("N", multiple=8), Symbol("K", multiple=block_k)),
        tensors=(
            tensor("a", "M", "K", Mode.IN),
            tensor("b", "K", "N", Mode.IN) if b_is_kn else tensor("b", "N", "K", Mode.IN),
            tensor("c", "M", "N", Mode.OUT),
        ),
        scalars=(),
        shared=(
            Shared("a_tile", dtype, (stages, block_m, block_k), swizzle),
            Shared("b_tile", dtype, b_shape, b_swizzle, offset=a_bytes),
        ),
        registers=(
            Registers("acc", f32, (mi, nj, 4), "the accumulator"),
            Registers("a_frag", dtype, (mi, 8)),
            Registers("b_frag", dtype, (nj, 4)),
            Registers("out", dtype, (mi, nj, 4)),
        ),
        body=body,
    )
