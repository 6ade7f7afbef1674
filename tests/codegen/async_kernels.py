"""Products of one warpgroup on one tile: every way that the matrix unit reads its operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32
from tilewright.kernel.async_ops import (
    ArriveExpect,
    BulkLoad,
    InitPhases,
    PhaseRef,
    Phases,
    PhaseWait,
    TensorMap,
    TileRef,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import (
    Barrier,
    Body,
    Decode,
    If,
    Kernel,
    Load,
    MemRef,
    Mode,
    ReducedAxis,
    Registers,
    RegRef,
    Shared,
    Store,
    Swizzle,
    Tensor,
)
from tilewright.poly.expr import Expr, equal, less
from tilewright.runtime.arguments import numpy_dtype

V = Expr.of
_NAMES = {bf16: "bf16", f16: "f16", f8e4m3: "e4m3", f8e5m2: "e5m2", f32: "tf32", i8: "s8"}
TILE_M, TILE_K = 64, 128


@dataclass(frozen=True)
class Case:
    """The tile is 64 x n x 128; sizes of the tensors may be smaller, the rest counts as zeros.

    `a_across`, `b_across`: the tensor has k first, so that rows run along its last axis.
    """

    swizzle: int = 128
    dtype: DType = bf16
    n: int = 128
    a_across: bool = False
    b_across: bool = False
    a_registers: bool = False
    sizes: tuple[int, int, int] = (64, 128, 128)

    def __str__(self) -> str:
        a = "registers" if self.a_registers else "km"[self.a_across] + "-major"
        ragged = "" if self.sizes == (64, 128, 128) else " ragged"
        b = "kn"[self.b_across]
        return f"{self.dtype} {self.swizzle}B n{self.n} a {a} b {b}-major{ragged}"


CASES = (
    Case(),
    Case(64),
    Case(32),
    Case(n=256, sizes=(64, 256, 128)),
    Case(n=24, sizes=(64, 24, 128)),
    Case(n=256, b_across=True, sizes=(64, 256, 128)),
    Case(dtype=f16, b_across=True),
    Case(64, a_across=True),
    Case(32, f16, a_across=True, b_across=True),
    Case(a_across=True, b_across=True),
    Case(a_registers=True),
    Case(64, f16, a_registers=True, b_across=True),
    Case(dtype=f8e4m3),
    Case(64, dtype=f8e4m3, a_registers=True),
    Case(dtype=f8e5m2),
    Case(dtype=f32),
    Case(32, dtype=f32, a_registers=True),
    Case(dtype=i8),
    Case(64, dtype=i8, a_registers=True),
    Case(sizes=(56, 104, 120)),
    Case(a_across=True, b_across=True, sizes=(56, 104, 120)),
)


def product(case: Case) -> Kernel:
    """d[m, n] = sum over k of a[m, k] b[n, k], in f32, by 128 threads of one block."""
    size = case.dtype.bytes
    span, k = case.swizzle // size, 32 // size
    m, n, depth = case.sizes
    bits = {128: 3, 64: 2, 32: 1}[case.swizzle]
    swizzle = Swizzle(bits, (16 // size).bit_length() - 1, 3)
    total = i32 if case.dtype == i8 else f32
    a_bytes = 0 if case.a_registers else TILE_M * TILE_K * size
    b_start = TILE_M * TILE_K * size
    b_end = b_start + -(-case.n // span) * span * TILE_K * size
    load_a, ref_a, shape_a, box_a = _operand("a", case.a_across, TILE_M, span, k)
    load_b, ref_b, shape_b, box_b = _operand("b", case.b_across, case.n, span, k)
    kind = "rs" if case.a_registers else ""
    name = _NAMES[case.dtype]
    sums = "s32" if case.dtype == i8 else "f32"
    atom = f"wgmma.m64n{case.n}k{k}.{sums}.{name}{'.' if kind else ''}{kind}"
    kk = (("kk", TILE_K // k),)
    registers = RegRef("ra", (V("kk"), V(0)))
    b_bytes = shape_b[0] * shape_b[1] * shape_b[2] * size
    copies: Body = (load_b,) if case.a_registers else (load_a, load_b)
    return Kernel(
        name="product",
        target="sm_90a",
        warp_size=32,
        warps=4,
        grid=(V(1),),
        symbols=(),
        tensors=(
            _tensor("a", case.dtype, (depth, m) if case.a_across else (m, depth), Mode.IN),
            _tensor("b", case.dtype, (depth, n) if case.b_across else (n, depth), Mode.IN),
            _tensor("d", total, (m, n), Mode.OUT),
        ),
        scalars=(),
        shared=(
            Shared("sa", case.dtype, shape_a, swizzle, offset=0),
            Shared("sb", case.dtype, shape_b, swizzle, offset=b_start),
        ),
        registers=(
            Registers("acc", total, (case.n // 2,)),
            Registers("ra", case.dtype, (TILE_K // k, k // 2)),
        ),
        body=(
            Decode(V("thread"), (("w", V(4)), ("g", V(8)), ("p", V(4)))),
            InitPhases(("full",)),
            Barrier(),
            If(
                (equal("w", 0), equal("g", 0), equal("p", 0)),
                (ArriveExpect(PhaseRef("full", V(0)), a_bytes + b_bytes), *copies),
            ),
            *((_fragments(k, depth, m),) if case.a_registers else ()),
            PhaseWait(PhaseRef("full", V(0)), V(0)),
            WarpgroupFence(),
            WarpgroupMma(
                kk,
                atom,
                RegRef("acc", (V(0),)),
                registers if case.a_registers else ref_a,
                ref_b,
                accumulate=(less(0, V("kk")),),
                reduces=(ReducedAxis("k", V(TILE_K), V("kk") * k),),
            ),
            WarpgroupCommit(),
            WarpgroupWait(0),
            _result(case.n, m, n),
        ),
        phases=(Phases("full", 1, 1, b_end),),
        maps=(
            TensorMap("box_a", "a", box_a, case.swizzle),
            TensorMap("box_b", "b", box_b, case.swizzle),
        ),
    )


def _tensor(name: str, dtype: DType, shape: tuple[int, int], mode: Mode) -> Tensor:
    return Tensor(name, dtype, (V(shape[0]), V(shape[1])), (V(shape[1]), V(1)), mode, 16)


def _operand(
    name: str, across: bool, rows: int, span: int, k: int
) -> tuple[BulkLoad, TileRef, tuple[int, int, int], tuple[int, int]]:
    """Panels of rows of `span` elements: the copies, the operand, the buffer's shape, the box."""
    memory, full = f"s{name}", PhaseRef("full", V(0))
    corner = (V("panel"), V(0), V(0))
    if across:
        panels = -(-rows // span)
        at = (V(0), V("panel") * span)
        ref = TileRef(memory, (V(0), V("kk") * k, V(0)), 2, 1, 0)
        shape, box = (panels, TILE_K, span), (TILE_K, span)
    else:
        panels = TILE_K // span
        at = (V(0), V("panel") * span)
        steps = span // k
        ref = TileRef(memory, (V("kk") // steps, V(0), V("kk") % steps * k), 1, 2)
        shape, box = (panels, rows, span), (rows, span)
    load = BulkLoad((("panel", panels),), MemRef(memory, corner), f"box_{name}", at, full)
    return load, ref, shape, box


def _fragments(k: int, depth: int, m: int) -> Load:
    """Operand a as the atom wants it in registers: packs of 32 bits along k."""
    pack = k // 8
    row = V("w") * 16 + V("mh") * 8 + "g"
    column = V("kk") * k + V("kh") * (k // 2) + V("p") * pack
    return Load(
        (("kk", TILE_K // k), ("kh", 2), ("mh", 2)),
        RegRef("ra", (V("kk"), V("kh") * (2 * pack) + V("mh") * pack)),
        MemRef("a", (row, column)),
        pack,
        guard=(less(row, m), less(column, depth)),
    )


def _result(tile_n: int, m: int, n: int) -> Store:
    row = V("w") * 16 + V("mh") * 8 + "g"
    column = V("nf") * 8 + V("p") * 2
    return Store(
        (("nf", tile_n // 8), ("mh", 2)),
        MemRef("d", (row, column)),
        RegRef("acc", (V("nf") * 4 + V("mh") * 2,)),
        2,
        guard=(less(row, m), less(column, n)),
    )


def arguments(case: Case) -> tuple[np.ndarray[Any, Any], ...]:
    """a, b, a poisoned d, and what d must become: small integers, so that sums are exact."""
    m, n, depth = case.sizes
    random = np.random.default_rng(7)
    kind = numpy_dtype(case.dtype)
    a = random.integers(-4, 5, (m, depth)).astype(np.float32)
    b = random.integers(-4, 5, (n, depth)).astype(np.float32)
    want = (a @ b.T).astype(np.int32 if case.dtype == i8 else np.float32)
    a_memory = np.ascontiguousarray((a.T if case.a_across else a).astype(kind))
    b_memory = np.ascontiguousarray((b.T if case.b_across else b).astype(kind))
    return a_memory, b_memory, np.full_like(want, 12345), want
