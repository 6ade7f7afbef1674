"""Kernels over single elements and rows, written directly in the kernel IR."""

from __future__ import annotations

from tilewright.base.dtypes import DType, boolean, f16, f32, i32
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Barrier,
    Cast,
    Const,
    Decode,
    Holds,
    IndexValue,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Mode,
    Read,
    Reduce,
    Registers,
    RegRef,
    Scalar,
    ScalarValue,
    Shared,
    Statement,
    Store,
    Swizzle,
    Symbol,
    Tensor,
    Value,
)
from tilewright.kernel.values import OPERATIONS
from tilewright.poly.expr import Expr, less
from tilewright.target.amd import GFX942

V = Expr.of
ZERO = V(0)
WARP = 32


def operations_for(dtype: DType, lacking: frozenset[str] = frozenset()) -> list[str]:
    """The operations that exist for `dtype`."""
    spelling = "c64" if dtype.bits == 64 else "c"
    column = spelling if dtype.is_float else "c_int"
    return [n for n, row in OPERATIONS.items() if getattr(row, column) and n not in lacking]


def elementwise(dtype: DType, operations: list[str], *, warp_size: int = WARP) -> Kernel:
    """``z[o, i] = operation o of x[i], y[i]``; bool results become 0 or 1. N is dynamic."""
    i = V("block") * warp_size + "lane"
    inside = (less(i, "N"),)
    x, y = Read(RegRef("x_reg", (ZERO,)), dtype), Read(RegRef("y_reg", (ZERO,)), dtype)
    positive = Apply("gt", (x, Const(0, dtype)), boolean)
    body: list[Statement] = [
        Load((), RegRef("x_reg", (ZERO,)), MemRef("x", (i,)), guard=inside),
        Load((), RegRef("y_reg", (ZERO,)), MemRef("y", (i,)), guard=inside, fill=1),
    ]
    for number, name in enumerate(operations):
        row = OPERATIONS[name]
        operands: tuple[Value, ...] = (positive, x, y) if name == "select" else (x, y)[: row.arity]
        value: Value = Apply(name, operands, boolean if row.gives_bool else dtype)
        if row.gives_bool:
            value = Cast(value, dtype)
        body += [
            Assign((), RegRef("z_reg", (ZERO,)), value, note=name),
            Store((), MemRef("z", (V(number), i)), RegRef("z_reg", (ZERO,)), guard=inside),
        ]
    vector = (V("N"),)
    return Kernel(
        name="elementwise",
        target="",
        warp_size=warp_size,
        warps=1,
        grid=(V("N").ceildiv(warp_size),),
        symbols=(Symbol("N"),),
        tensors=(
            Tensor("x", dtype, vector, (V(1),), Mode.IN, 16),
            Tensor("y", dtype, vector, (V(1),), Mode.IN, 16),
            Tensor("z", dtype, (V(len(operations)), V("N")), (V("N"), V(1)), Mode.OUT, 16),
        ),
        scalars=(),
        shared=(),
        registers=tuple(Registers(f"{name}_reg", dtype, (1,)) for name in "xyz"),
        body=tuple(body),
    )


def casts(source: DType, dtype: DType, *, warp_size: int = WARP) -> Kernel:
    """``z[i] = x[i]`` with another element type; N is dynamic."""
    i = V("block") * warp_size + "lane"
    inside = (less(i, "N"),)
    at = (ZERO,)
    return Kernel(
        name="casts",
        target="",
        warp_size=warp_size,
        warps=1,
        grid=(V("N").ceildiv(warp_size),),
        symbols=(Symbol("N"),),
        tensors=(
            Tensor("x", source, (V("N"),), (V(1),), Mode.IN, 16),
            Tensor("z", dtype, (V("N"),), (V(1),), Mode.OUT, 16),
        ),
        scalars=(),
        shared=(),
        registers=(Registers("x_reg", source, (1,)), Registers("z_reg", dtype, (1,))),
        body=(
            Load((), RegRef("x_reg", at), MemRef("x", (i,)), guard=inside),
            Assign((), RegRef("z_reg", at), Cast(Read(RegRef("x_reg", at), source), dtype)),
            Store((), MemRef("z", (i,)), RegRef("z_reg", at), guard=inside),
        ),
    )


def row_softmax(*, dtype: DType = f16, warps: int = 4, vectors: int = 2) -> Kernel:
    """``z[m, n] = softmax over n of scale * x[m, n]``, a warp to a row, N at most 256 * vectors.

    It reads N as a multiple of 8, writes each lane's rank in a row through `lanes`, and takes
    the row's maximum and sum by butterflies of shuffles.
    """
    width = 8
    m = V("block") * warps + "warp"
    n = V("v") * (width * WARP) + V("lane") * width
    over = (("v", vectors), ("j", width))
    element = RegRef("row", (V("v"), V("j")))
    value = Apply("mul", (Read(element, f32), ScalarValue("scale", f32)), f32)
    top, total = RegRef("top", (ZERO,)), RegRef("total", (ZERO,))
    inside = (less(m, "M"), less(n, "N"))

    def butterfly(op: str, ref: RegRef) -> list[Statement]:
        return [
            Assign((), ref, Apply(op, (Read(ref, f32), LaneXor(ref, 1 << bit, f32)), f32))
            for bit in range(5)
        ]

    lane_zero = LaneRead(RegRef("rank", (ZERO,)), V(0), i32)
    rank = Apply("sub", (Read(RegRef("rank", (ZERO,)), i32), lane_zero), i32)
    body: tuple[Statement, ...] = (
        Load(
            (("v", vectors),),
            RegRef("bits", (V("v"), ZERO)),
            MemRef("x", (m, n)),
            width,
            guard=inside,
            fill=float("-inf"),
        ),
        Assign(over, element, Cast(Read(RegRef("bits", (V("v"), V("j"))), dtype), f32)),
        Assign((), top, Const(float("-inf"), f32)),
        Reduce("max", (), over, top, value, note="the row's maximum"),
        *butterfly("max", top),
        Assign(over, element, Apply("exp", (Apply("sub", (value, Read(top, f32)), f32),), f32)),
        Assign((), total, Const(0.0, f32)),
        Reduce("add", (), over, total, Read(element, f32)),
        *butterfly("add", total),
        Assign(
            over,
            RegRef("bits", (V("v"), V("j"))),
            Cast(Apply("div", (Read(element, f32), Read(total, f32)), f32), dtype),
        ),
        Store(
            (("v", vectors),), MemRef("z", (m, n)), RegRef("bits", (V("v"), ZERO)), width,
            guard=inside,
        ),
        Assign((), RegRef("rank", (ZERO,)), IndexValue(V("thread") + V("M") * 0, i32)),
        Assign((), RegRef("rank", (ZERO,)), rank),
        Assign(
            (),
            RegRef("rank", (ZERO,)),
            Apply(
                "select",
                (Holds((less("lane", 16),)), Read(RegRef("rank", (ZERO,)), i32), Const(-1, i32)),
                i32,
            ),
        ),
        Store(
            (), MemRef("lanes", (m, V("lane"))), RegRef("rank", (ZERO,)), guard=(less(m, "M"),)
        ),
    )  # fmt: skip
    matrix, dense = (V("M"), V("N")), (V("N"), V(1))
    return Kernel(
        name="row_softmax",
        target="",
        warp_size=WARP,
        warps=warps,
        grid=(V("M").ceildiv(warps),),
        symbols=(Symbol("M"), Symbol("N", multiple=width)),
        tensors=(
            Tensor("x", dtype, matrix, dense, Mode.IN, 16),
            Tensor("z", dtype, matrix, dense, Mode.OUT, 16),
            Tensor("lanes", i32, (V("M"), V(WARP)), (V(WARP), V(1)), Mode.OUT, 16, 32),
        ),
        scalars=(Scalar("scale", f32),),
        shared=(),
        registers=(
            Registers("bits", dtype, (vectors, width)),
            Registers("row", f32, (vectors, width)),
            Registers("top", f32, (1,)),
            Registers("total", f32, (1,)),
            Registers("rank", i32, (1,)),
        ),
        body=body,
    )


def mfma_matmul(atom_name: str, *, tiles: int = 2, k_steps: int = 2) -> Kernel:
    """``c[m, n] = sum over k of a[m, k] * b[n, k]`` by one wave, through shared memory.

    M, N and K are dynamic; the block covers `tiles` x `tiles` atoms. Ragged edges are guarded,
    in k too.
    """
    atom = GFX942.atom(atom_name)
    assert atom is not None
    side, depth = tiles * atom.m, k_steps * atom.k
    per_lane = atom.a.count(next(d.place for d in atom.a.digits if d.place.value == "register"))
    high = 64 // atom.m
    passes = side * depth // 64
    flat = V("i") * 64 + "lane"
    row, column = flat // depth, flat % depth

    def stage(name: str, block: Expr, limit: str) -> list[Statement]:
        element = RegRef(f"{name}_stage", (V("i"),))
        m, k = block + row, V("ko") * depth + column
        guard = (less(m, limit), less(k, "K"))
        return [
            Load((("i", passes),), element, MemRef(name, (m, k)), guard=guard),
            Store((("i", passes),), MemRef(f"{name}_tile", (row, column)), element),
        ]

    def fragment(name: str) -> Load:
        k = V("kk") * atom.k + V("h") * per_lane
        return Load(
            (("t", tiles), ("kk", k_steps)),
            RegRef(f"{name}_frag", (V("t"), V("kk"), ZERO)),
            MemRef(f"{name}_tile", (V("t") * atom.m + "l", k)),
            per_lane,
        )

    m = V("bm") * side + V("i") * atom.m + V("rh") * (4 * high) + V("h") * 4 + "r"
    n = V("bn") * side + V("j") * atom.n + "l"
    registers = atom.m * atom.n // 64
    over = (("i", tiles), ("j", tiles), ("rh", registers // 4), ("r", 4))
    at = RegRef("acc", (V("i"), V("j"), V("rh") * 4 + "r"))
    body: tuple[Statement, ...] = (
        Decode(V("block"), (("bm", V("M").ceildiv(side)), ("bn", V("N").ceildiv(side)))),
        Decode(V("lane"), (("h", V(high)), ("l", V(atom.m)))),
        Assign(over, at, Const(0, atom.d_dtype)),
        Loop(
            "ko",
            V("K").ceildiv(depth),
            (
                *stage("a", V("bm") * side, "M"),
                *stage("b", V("bn") * side, "N"),
                Barrier(),
                fragment("a"),
                fragment("b"),
                Barrier(),
                Mma(
                    (("kk", k_steps), ("i", tiles), ("j", tiles)),
                    atom_name,
                    RegRef("acc", (V("i"), V("j"), ZERO)),
                    RegRef("a_frag", (V("i"), V("kk"), ZERO)),
                    RegRef("b_frag", (V("j"), V("kk"), ZERO)),
                ),
            ),
        ),
        Store(over, MemRef("c", (m, n)), at, guard=(less(m, "M"), less(n, "N"))),
    )
    ab, d = atom.a_dtype, atom.d_dtype
    swizzle = Swizzle(2, 3, 3)
    size = side * depth * ab.bytes
    return Kernel(
        name="mfma_matmul",
        target="gfx942",
        warp_size=64,
        warps=1,
        grid=(V("M").ceildiv(side), V("N").ceildiv(side)),
        symbols=(Symbol("M"), Symbol("N"), Symbol("K")),
        tensors=(
            Tensor("a", ab, (V("M"), V("K")), (V("K"), V(1)), Mode.IN, 16),
            Tensor("b", ab, (V("N"), V("K")), (V("K"), V(1)), Mode.IN, 16),
            Tensor("c", d, (V("M"), V("N")), (V("N"), V(1)), Mode.OUT, 16),
        ),
        scalars=(),
        shared=(
            Shared("a_tile", ab, (side, depth), swizzle),
            Shared("b_tile", ab, (side, depth), swizzle, offset=size),
        ),
        registers=(
            Registers("acc", d, (tiles, tiles, registers)),
            Registers("a_frag", ab, (tiles, k_steps, per_lane)),
            Registers("b_frag", ab, (tiles, k_steps, per_lane)),
            Registers("a_stage", ab, (passes,)),
            Registers("b_stage", ab, (passes,)),
        ),
        body=body,
    )
