"""Kernels with roles, bulk copies and warpgroup matrix instructions, for the simulator's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from sim_kernels import decode, e, mem, reg, tensor

from tilewright.base.dtypes import f16, f32
from tilewright.base.spans import Span
from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    BulkCommit,
    BulkLoad,
    BulkStore,
    BulkWait,
    InitPhases,
    NamedBarrier,
    PhaseRef,
    Phases,
    PhaseWait,
    ProxyFence,
    SetRegisters,
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
    If,
    Kernel,
    Loop,
    Mode,
    Registers,
    Shared,
    Statement,
    Store,
    Swizzle,
    Symbol,
    children,
)
from tilewright.poly.expr import Expr, at_least, equal, less

HERE = Span(__file__, 1, 0, 3)
TILE_N, TILE_K = 16, 32
ATOM = f"wgmma.m64n{TILE_N}k16.f32.f16"


def phase(name: str, index: Expr | int | str) -> PhaseRef:
    return PhaseRef(name, e(index))


def elected(*body: Statement) -> If:
    """The first thread of a warpgroup."""
    return If((equal("tid", 0),), body)


def pipelined_gemm(
    m: int, n: int, k: int, *, consumers: int, stages: int, tiles: int = 1
) -> Kernel:
    """``c[m, n] = sum(a[m, k] * b[n, k])`` in f16, sizes of any kind where rows are 16-byte
    multiples: one producer warpgroup, `consumers` warpgroups that split 64 rows each, a ring of
    `stages` slots, a bulk store. Each block does `tiles` tiles of columns one after another.
    """
    tile_m = 64 * consumers
    steps = -(-k // TILE_K)
    blocks_m, blocks_n = -(-m // tile_m), -(-n // (TILE_N * tiles))
    count = e("t") * steps + e("ko")
    slot, turn = count % stages, count // stages
    column = TILE_N * (tiles * e("bn") + "t")
    slot_bytes = 2 * TILE_K * (tile_m + TILE_N)

    def tile_loop(*body: Statement) -> Loop:
        return Loop("t", e(tiles), body)

    def k_loop(*body: Statement) -> Loop:
        return Loop("ko", e(steps), body)

    producer = tile_loop(
        k_loop(
            PhaseWait(phase("empty", slot), turn + 1, span=HERE, note="slot free"),
            ArriveExpect(phase("full", slot), slot_bytes, span=HERE),
            BulkLoad(
                (), mem("as", slot, 0, 0), "am", (tile_m * e("bm"), TILE_K * e("ko")),
                phase("full", slot), span=HERE, note="a",
            ),
            BulkLoad(
                (), mem("bs", slot, 0, 0), "bm_", (column, TILE_K * e("ko")),
                phase("full", slot), span=HERE, note="b",
            ),
        )
    )  # fmt: skip
    row = 64 * (e("wg") - 1)
    mma = WarpgroupMma(
        (("kk", TILE_K // 16),), ATOM, reg("acc", 0),
        TileRef("as", (slot, row, 16 * e("kk")), 1, 2),
        TileRef("bs", (slot, e(0), 16 * e("kk")), 1, 2),
        accumulate=(at_least(e("ko") + "kk", 1),), span=HERE,
    )  # fmt: skip
    release = elected(Arrive(phase("empty", (count - 1) % stages), span=HERE))
    to_shared = Store(
        (("j", TILE_N // 8), ("h", 2)),
        mem("cs", row + 16 * e("w4") + 8 * e("h") + "g", 8 * e("j") + 2 * e("q")),
        reg("acc", 4 * e("j") + 2 * e("h")), 2, span=HERE,
    )  # fmt: skip
    consumer = tile_loop(
        k_loop(
            PhaseWait(phase("full", slot), turn, span=HERE, note="slot full"),
            WarpgroupFence(),
            mma,
            WarpgroupCommit(),
            WarpgroupWait(1),
            If((at_least("ko", 1),), (release,)),
        ),
        WarpgroupWait(0),
        elected(Arrive(phase("empty", (e("t") * steps + (steps - 1)) % stages), span=HERE)),
        elected(BulkWait(0, read=True)),
        NamedBarrier(e("wg"), 128),
        to_shared,
        ProxyFence(),
        NamedBarrier(e("wg"), 128),
        elected(
            BulkStore((), "cm", (tile_m * e("bm") + row, column), mem("cs", row, 0), span=HERE),
            BulkCommit(),
        ),
    )
    body: Body = (
        decode("block", ("bm", blocks_m), ("bn", blocks_n)),
        decode("thread", ("wg", 1 + consumers), ("tid", 128)),
        decode("thread", ("wg_", 1 + consumers), ("w4", 4), ("g", 8), ("q", 4)),
        InitPhases(("full", "empty"), span=HERE),
        Barrier(),
        If((equal("wg", 0),), (SetRegisters(40, grow=False), elected(producer))),
        If(
            (at_least("wg", 1),),
            (SetRegisters(200, grow=True), consumer, elected(BulkWait(0, read=True))),
        ),
    )
    a_bytes, b_bytes = stages * tile_m * TILE_K * 2, stages * TILE_N * TILE_K * 2
    swizzle = Swizzle(2, 3, 3)  # rows of 64 bytes
    c_at = -(-(a_bytes + b_bytes) // 1024) * 1024
    return Kernel(
        "k", "sm_90a", 32, 4 * (1 + consumers), (e(blocks_m), e(blocks_n)), (),
        (tensor("a", f16, Mode.IN, m, k), tensor("b", f16, Mode.IN, n, k),
         tensor("c", f32, Mode.OUT, m, n)),
        (),
        (
            Shared("as", f16, (stages, tile_m, TILE_K), swizzle),
            Shared("bs", f16, (stages, TILE_N, TILE_K), swizzle, offset=a_bytes),
            Shared("cs", f32, (tile_m, TILE_N), offset=c_at),
        ),
        (Registers("acc", f32, (TILE_N // 2,)),),
        body,
        phases=(
            Phases("full", stages, 1, c_at + tile_m * TILE_N * 4),
            Phases("empty", stages, consumers, c_at + tile_m * TILE_N * 4 + 8 * stages),
        ),
        maps=(
            TensorMap("am", "a", (tile_m, TILE_K), swizzle=64),
            TensorMap("bm_", "b", (TILE_N, TILE_K), swizzle=64),
            TensorMap("cm", "c", (64, TILE_N)),
        ),
    )  # fmt: skip


def edit(program: Kernel, change: Callable[[Statement], Body]) -> Kernel:
    """Replace each statement by the body that `change` gives, inside out."""

    def visit(body: Body) -> Body:
        done: list[Statement] = []
        for s in body:
            if children(s):
                s = replace(s, body=visit(children(s)))  # type: ignore[call-arg]
            done += change(s)
        return tuple(done)

    return replace(program, body=visit(program.body))
