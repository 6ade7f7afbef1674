"""NVIDIA targets. Layouts follow the fragment figures of the PTX ISA, "mma" and "wgmma".

In a warp, lane = 4 * group + position. Unless a row says otherwise, the group counts rows of
a and d and columns of b, and the position counts packed words along k (along n in d).
"""

from __future__ import annotations

from tilewright.base.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32
from tilewright.poly.layout import Layout
from tilewright.target.digits import lane, over_mk, over_mn, over_nk, register, warp
from tilewright.target.model import (
    Machine,
    MatrixLoad,
    MatrixRate,
    MmaAtom,
    Scope,
    Source,
    Target,
)  # fmt: skip

_PTX_NAMES = {
    f64: "f64", f32: "f32", f16: "f16", bf16: "bf16", f8e4m3: "e4m3", f8e5m2: "e5m2",
    i32: "s32", i8: "s8",
}  # fmt: skip


def _warp_atom(
    m: int, n: int, k: int, d: DType, ab: DType, layouts: tuple[Layout, Layout, Layout]
) -> MmaAtom:
    # f32 operands of a tensor core are tf32: the hardware ignores the 13 low mantissa bits.
    operand = "tf32" if ab is f32 else _PTX_NAMES[ab]
    result = _PTX_NAMES[d]
    shape = f"m{m}n{n}k{k}"
    a_layout, b_layout, d_layout = layouts
    return MmaAtom(
        name=f"mma.sync.{shape}.{result}.{operand}",
        m=m, n=n, k=k, a_dtype=ab, b_dtype=ab, d_dtype=d, a=a_layout, b=b_layout, d=d_layout,
        emit=f"mma.sync.aligned.{shape}.row.col.{result}.{operand}.{operand}.{result}",
    )  # fmt: skip


_D_16x8 = over_mn(16, 8, lane(8, "m"), lane(4, "n", 2), register(2, "m", 8), register(2, "n"))

_16x8x8_HALF = (
    over_mk(16, 8, lane(8, "m"), lane(4, "k", 2), register(2, "m", 8), register(2, "k")),
    over_nk(8, 8, lane(8, "n"), lane(4, "k", 2), register(2, "k")),
    _D_16x8,
)
_16x8x16_HALF = (
    over_mk(
        16, 16, lane(8, "m"), lane(4, "k", 2),
        register(2, "k", 8), register(2, "m", 8), register(2, "k"),
    ),
    over_nk(8, 16, lane(8, "n"), lane(4, "k", 2), register(2, "k", 8), register(2, "k")),
    _D_16x8,
)  # fmt: skip
_16x8x8_TF32 = (
    over_mk(16, 8, lane(8, "m"), lane(4, "k"), register(2, "k", 4), register(2, "m", 8)),
    over_nk(8, 8, lane(8, "n"), lane(4, "k"), register(2, "k", 4)),
    _D_16x8,
)
_16x8x32_BYTE = (
    over_mk(
        16, 32, lane(8, "m"), lane(4, "k", 4),
        register(2, "k", 16), register(2, "m", 8), register(4, "k"),
    ),
    over_nk(8, 32, lane(8, "n"), lane(4, "k", 4), register(2, "k", 16), register(4, "k")),
    _D_16x8,
)  # fmt: skip
_8x8x4_DOUBLE = (
    over_mk(8, 4, lane(8, "m"), lane(4, "k")),
    over_nk(8, 4, lane(8, "n"), lane(4, "k")),
    over_mn(8, 8, lane(8, "m"), lane(4, "n", 2), register(2, "n")),
)

_WARP_ATOMS = (
    _warp_atom(16, 8, 16, f32, f16, _16x8x16_HALF),
    _warp_atom(16, 8, 16, f32, bf16, _16x8x16_HALF),
    _warp_atom(16, 8, 8, f32, f16, _16x8x8_HALF),
    _warp_atom(16, 8, 8, f32, bf16, _16x8x8_HALF),
    _warp_atom(16, 8, 8, f32, f32, _16x8x8_TF32),
    _warp_atom(16, 8, 32, f32, f8e4m3, _16x8x32_BYTE),
    _warp_atom(16, 8, 32, f32, f8e5m2, _16x8x32_BYTE),
    _warp_atom(16, 8, 32, i32, i8, _16x8x32_BYTE),
    _warp_atom(8, 8, 4, f64, f64, _8x8x4_DOUBLE),
)


def _warpgroup_atom(n: int, ab: DType, a_source: Source) -> MmaAtom:
    """One `wgmma` row. An operand in shared memory belongs to no thread: its layout has no digit.

    The name ends in ``.rs`` where a comes from registers.
    """
    pack = 32 // ab.bits
    k = 8 * pack
    operand = "tf32" if ab is f32 else _PTX_NAMES[ab]
    total = i32 if ab is i8 else f32
    result = _PTX_NAMES[total]
    in_registers = over_mk(
        64, k, warp(4, "m", 16), lane(8, "m"), lane(4, "k", pack),
        register(2, "k", 4 * pack), register(2, "m", 8), register(pack, "k"),
    )  # fmt: skip
    d = over_mn(
        64, n, warp(4, "m", 16), lane(8, "m"), lane(4, "n", 2),
        register(n // 8, "n", 8), register(2, "m", 8), register(2, "n"),
    )  # fmt: skip
    from_registers = a_source is Source.REGISTER
    return MmaAtom(
        name=f"wgmma.m64n{n}k{k}.{result}.{operand}{'.rs' if from_registers else ''}",
        m=64, n=n, k=k, a_dtype=ab, b_dtype=ab, d_dtype=total,
        a=in_registers if from_registers else over_mk(64, k), b=over_nk(n, k), d=d,
        emit=f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{result}.{operand}.{operand}",
        scope=Scope.WARPGROUP, a_source=a_source, b_source=Source.SHARED,
    )  # fmt: skip


_WARPGROUP_ATOMS = tuple(
    _warpgroup_atom(n, ab, source)
    for ab in (f16, bf16, f8e4m3, f8e5m2, f32, i8)
    for n in range(8, 257, 8)
    if ab is not i8 or n % 16 == 0 or n < 32  # integers have fewer widths
    for source in (Source.SHARED, Source.REGISTER)
)

_MATRIX_LOADS = tuple(
    MatrixLoad(
        name=f"x{tiles}{suffix}",
        tiles=tiles,
        transposed=suffix == ".trans",
        emit=f"ldmatrix.sync.aligned.m8n8.x{tiles}{suffix}.shared.b16",
    )
    for tiles in (1, 2, 4)
    for suffix in ("", ".trans")
)

_MATRIX_STORES = tuple(
    MatrixLoad(row.name, row.tiles, row.transposed, row.emit.replace("ldmatrix", "stmatrix"))
    for row in _MATRIX_LOADS
)

# An H200 of 700 W. Peaks are the data sheet's; the rest is fitted to products measured on it.
_H200 = Machine(
    matrix_rates=(
        MatrixRate(8, 1979e12, 1400e12),
        MatrixRate(16, 989e12, 820e12),
        MatrixRate(32, 495e12, 410e12),
    ),
    warp_share=0.62,
    memory_bandwidth=3.7e12,
    l2_bandwidth=13e12,
    l2_bytes=50 << 20,
    shared_bandwidth=225e9,
    shared_bytes=228 << 10,
    registers=65_536,
    threads=2048,
    memory_latency=0.8e-6,
    launch_latency=3e-6,
    tile_latency=0.6e-6,
    step_latency=40e-9,
    cluster_seats=((2, 132), (4, 120), (6, 102), (8, 120)),
)

SM_90A = Target(
    name="sm_90a",
    printer="cuda",
    warp_size=32,
    max_threads=1024,
    shared_bytes=232_448,
    registers_per_thread=255,
    multiprocessors=132,
    vector_bytes=16,
    async_copy_bytes=(4, 8, 16),
    mma_atoms=_WARP_ATOMS + _WARPGROUP_ATOMS,
    matrix_loads=_MATRIX_LOADS,
    max_cluster=8,
    bulk_swizzles=(0, 32, 64, 128),
    matrix_stores=_MATRIX_STORES,
    machine=_H200,
)
