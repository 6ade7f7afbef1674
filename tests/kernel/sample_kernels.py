"""Hand-written kernels that the kernel tests share."""

from __future__ import annotations

from tilewright.base.dtypes import boolean, f16, f32, i32
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Cast,
    Const,
    Decode,
    Holds,
    If,
    IndexValue,
    Kernel,
    LaneXor,
    Load,
    Loop,
    MatrixShape,
    MemRef,
    Mma,
    Mode,
    Read,
    Reduce,
    ReducedAxis,
    Registers,
    RegRef,
    Scalar,
    ScalarValue,
    Shared,
    Store,
    Swizzle,
    Symbol,
    Tensor,
    When,
)
from tilewright.poly.expr import Expr, at_least, equal, less


def e(value: str | int) -> Expr:
    return Expr.of(value)


def gemm() -> Kernel:
    """c[m, n] = a[m, k] * b[n, k] on sm_90a: 4 warps, block tile 64 x 64 x 32, one stage."""
    row = 16 * e("wm") + e("i") * 8 + e("g")
    m = 64 * e("mo") + row
    copy_m = 64 * e("mo") + 32 * e("r") + e("p")
    copy_n = 64 * e("no") + 32 * e("r") + e("p")
    copy_k = 32 * e("ko") + 8 * e("q")
    n = 64 * e("no") + 8 * e("j") + 2 * e("t")
    lane_row = 8 * e("i") + e("g") + 16 * e("wm")
    load_a = Load(
        over=(("kh", 2), ("i", 2)),
        dst=RegRef("ra", (4 * e("kh") + 2 * e("i"),)),
        src=MemRef("sa", (lane_row, 16 * e("kk") + 8 * e("kh") + 2 * e("t"))),
        width=2,
        matrix=MatrixShape("x4", "g", "t", ("kh", "i")),
        note="a of this warp",
    )
    load_b = Load(
        over=(("j", 8), ("kh", 2)),
        dst=RegRef("rb", (e("j"), 2 * e("kh"))),
        src=MemRef("sb", (8 * e("j") + e("g"), 16 * e("kk") + 8 * e("kh") + 2 * e("t"))),
        width=2,
    )
    mma = Mma(
        over=(("j", 8),),
        atom="mma.sync.m16n8k16.f32.f16",
        d=RegRef("acc", (e("j"), e(0))),
        a=RegRef("ra", (e(0),)),
        b=RegRef("rb", (e("j"), e(0))),
        reduces=(ReducedAxis("K", e("K"), 32 * e("ko") + 16 * e("kk")),),
    )
    loop = Loop(
        "ko",
        e("K").ceildiv(32),
        (
            Barrier(),
            AsyncCopy(
                (("r", 2),), MemRef("sa", (32 * e("r") + e("p"), 8 * e("q"))),
                MemRef("a", (copy_m, copy_k)), 8,
                guard=(less(copy_m, "M"), less(copy_k, "K")),
            ),
            AsyncCopy(
                (("r", 2),), MemRef("sb", (32 * e("r") + e("p"), 8 * e("q"))),
                MemRef("b", (copy_n, copy_k)), 8,
                guard=(less(copy_n, "N"), less(copy_k, "K")),
            ),
            AsyncCommit(),
            AsyncWait(0),
            Barrier("the tiles have landed"),
            Loop("kk", e(2), (load_a, load_b, mma), unroll=True),
        ),
    )  # fmt: skip
    zero = Assign((("j", 8), ("r", 4)), RegRef("acc", (e("j"), e("r"))), Const(0.0, f32))
    convert = Assign(
        (("j", 8), ("r", 4)),
        RegRef("out", (e("j"), e("r"))),
        Cast(Read(RegRef("acc", (e("j"), e("r"))), f32), f16),
    )
    store = Store(
        (("j", 8), ("i", 2)),
        MemRef("c", (m, n)),
        RegRef("out", (e("j"), 2 * e("i"))),
        width=2,
        guard=(less(m, "M"), less(n, "N")),
    )
    return Kernel(
        name="gemm", target="sm_90a", warp_size=32, warps=4,
        grid=(e("M").ceildiv(64), e("N").ceildiv(64)),
        symbols=(Symbol("M"), Symbol("N", 1, 2), Symbol("K", 1, 8)),
        tensors=(
            Tensor("a", f16, (e("M"), e("K")), (e("K"), e(1)), Mode.IN, 16),
            Tensor("b", f16, (e("N"), e("K")), (e("K"), e(1)), Mode.IN, 16),
            Tensor("c", f16, (e("M"), e("N")), (e("N"), e(1)), Mode.OUT, 16, 32),
        ),
        scalars=(),
        shared=(
            Shared("sa", f16, (64, 32), Swizzle(2, 3, 3)),
            Shared("sb", f16, (64, 32), None, 40, 4096),
        ),
        registers=(
            Registers("acc", f32, (8, 4), "c[16*wm + .., 8*j + ..]"),
            Registers("out", f16, (8, 4)),
            Registers("ra", f16, (8,)),
            Registers("rb", f16, (8, 4)),
        ),
        body=(
            Decode(e("block"), (("mo", e("M").ceildiv(64)), ("no", e("N").ceildiv(64)))),
            Decode(e("warp"), (("wm", e(4)),)),
            Decode(e("lane"), (("g", e(8)), ("t", e(4)))),
            Decode(e("thread"), (("p", e(32)), ("q", e(4)))),
            zero, loop, convert, store,
        ),
    )  # fmt: skip


def row_sum() -> Kernel:
    """y[m] = sum of alpha * x[m, n] over n, one wave of 64 lanes on gfx942 for each row."""
    column = 64 * e("no") + e("l")
    term = Apply("mul", (ScalarValue("alpha", f32), Read(RegRef("v", (e("j"),)), f32)), f32)
    guarded = Apply("select", (Holds((less(column + 0, "N"),)), term, Const(0.0, f32)), f32)
    step = Loop(
        "no",
        e("N").ceildiv(64),
        (
            Load(
                (), RegRef("v", (e(0),)), MemRef("x", (e("m"), column)),
                guard=(less(column, "N"),), fill=0.0,
            ),
            Reduce(
                "add", (), (("j", 1),), RegRef("s", (e(0),)), guarded,
                (ReducedAxis("N", e("N"), column),), note="one term a lane",
            ),
        ),
    )  # fmt: skip
    fold = tuple(
        Assign(
            (),
            RegRef("s", (e(0),)),
            Apply(
                "add",
                (Read(RegRef("s", (e(0),)), f32), LaneXor(RegRef("s", (e(0),)), mask, f32)),
                f32,
            ),
        )
        for mask in (1, 2, 4, 8, 16, 32)
    )
    flag = Apply("eq", (IndexValue(e("m"), i32), Const(0, i32)), boolean)
    return Kernel(
        name="row_sum", target="gfx942", warp_size=64, warps=1, grid=(e("M"),),
        symbols=(Symbol("M"), Symbol("N", 16)),
        tensors=(
            Tensor("x", f32, (e("M"), e("N")), (e("N"), e(1)), Mode.IN, 4),
            Tensor("y", f32, (e("M"),), (e(1),), Mode.OUT, 4),
        ),
        scalars=(Scalar("alpha", f32),),
        shared=(),
        registers=(Registers("v", f32, (1,)), Registers("s", f32, (1,))),
        body=(
            Decode(e("block"), (("m", e("M")),)),
            Decode(e("lane"), (("l", e(64)),)),
            Assign((), RegRef("s", (e(0),)), Const(0.0, f32), note="back\\slash\nand a line"),
            step,
            *fold,
            When(flag, ()),
            If((equal("l", 0),), (Store((), MemRef("y", (e("m"),)), RegRef("s", (e(0),))),)),
        ),
        contracts=(at_least(e("M") - e("N"), -5),),
    )  # fmt: skip
