"""Kernels with roles, bulk copies and warpgroup matrix instructions, for the simulator's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sim_kernels import decode, e, kernel, mem, reg, tensor

from tilewright.base.dtypes import f16, f32
from tilewright.base.spans import Span
from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    BulkCommit,
    BulkLoad,
    BulkStore,
    BulkWait,
    ClusterArrive,
    ClusterWait,
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
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Const,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    Mode,
    Read,
    Registers,
    Shared,
    Statement,
    Store,
    Swizzle,
    children,
)
from tilewright.poly.expr import Expr, at_least, equal

HERE = Span(__file__, 1, 0, 3)
TILE_N, TILE_K = 16, 32
SWIZZLE = Swizzle(2, 3, 3)  # of rows of 32 f16, 64 bytes
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
    c_at = -(-(a_bytes + b_bytes) // 1024) * 1024
    return Kernel(
        "k", "sm_90a", 32, 4 * (1 + consumers), (e(blocks_m), e(blocks_n)), (),
        (tensor("a", f16, Mode.IN, m, k), tensor("b", f16, Mode.IN, n, k),
         tensor("c", f32, Mode.OUT, m, n)),
        (),
        (
            Shared("as", f16, (stages, tile_m, TILE_K), SWIZZLE),
            Shared("bs", f16, (stages, TILE_N, TILE_K), SWIZZLE, offset=a_bytes),
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


def register_product() -> Kernel:
    """``c[64, 16] = a[64, 32] b[16, 32]`` with a in registers, in two instructions of one group."""
    corner = 16 * e("w") + "g"
    load_a = Load(
        (("kk", 2), ("kh", 2), ("mh", 2)),
        reg("af", "kk", 4 * e("kh") + 2 * e("mh")),
        mem("a", corner + 8 * e("mh"), 16 * e("kk") + 8 * e("kh") + 2 * e("q")),
        width=2, span=HERE,
    )  # fmt: skip
    mma = WarpgroupMma(
        (("kk", 2),), ATOM + ".rs", reg("acc", 0), reg("af", "kk", 0),
        TileRef("bs", (e(0), 16 * e("kk")), 0, 1), accumulate=(at_least("kk", 1),), span=HERE,
    )  # fmt: skip
    store = Store(
        (("j", 2), ("h", 2)),
        mem("c", corner + 8 * e("h"), 8 * e("j") + 2 * e("q")),
        reg("acc", 4 * e("j") + 2 * e("h")), 2, span=HERE,
    )  # fmt: skip
    body: Body = (
        decode("thread", ("w", 4), ("g", 8), ("q", 4)),
        decode("thread", ("tid", 128)),
        InitPhases(("full",)),
        Barrier(),
        elected(
            ArriveExpect(phase("full", 0), 16 * 32 * 2, span=HERE),
            BulkLoad((), mem("bs", 0, 0), "box", (e(0), e(0)), phase("full", 0), span=HERE),
        ),
        load_a,
        PhaseWait(phase("full", 0), e(0), span=HERE),
        WarpgroupFence(),
        mma,
        WarpgroupCommit(),
        WarpgroupWait(0),
        store,
    )
    return kernel(
        body,
        warps=4,
        tensors=(tensor("a", f16, Mode.IN, 64, 32), tensor("b", f16, Mode.IN, 16, 32),
                 tensor("c", f32, Mode.OUT, 64, 16)),
        shared=(Shared("bs", f16, (16, 32), SWIZZLE),),
        registers=(Registers("acc", f32, (8,)), Registers("af", f16, (2, 8))),
        phases=(Phases("full", 1, 1, 1024),),
        maps=(TensorMap("box", "b", (16, 32), 64),),
    )  # fmt: skip


def one_group(*, across: bool, steps: int) -> Kernel:
    """``c[64, 16] = a[64, k] b[16, k]`` by one warpgroup, whose first thread loads, two slots.

    With `across`, b lies as ``b[k, 16]`` in memory and in its slots: an operand that is N-major.
    """
    slot, turn = e("ko") % 2, e("ko") // 2
    k = 32 * e("ko")
    loading = elected(
        PhaseWait(phase("empty", slot), turn + 1, span=HERE, note="slot free"),
        ArriveExpect(phase("full", slot), (64 + 16) * 32 * 2, span=HERE),
        BulkLoad((), mem("as", slot, 0, 0), "am", (e(0), k), phase("full", slot), span=HERE),
        BulkLoad(
            (), mem("bs", slot, 0, 0), "bm", (k, e(0)) if across else (e(0), k),
            phase("full", slot), span=HERE,
        ),
    )  # fmt: skip
    depth = 16 * e("kk")
    b = (
        TileRef("bs", (slot, depth, e(0)), 2, 1)
        if across
        else TileRef("bs", (slot, e(0), depth), 1, 2)
    )
    mma = WarpgroupMma(
        (("kk", 2),), ATOM, reg("acc", 0), TileRef("as", (slot, e(0), depth), 1, 2), b,
        accumulate=(at_least(e("ko") + "kk", 1),), span=HERE,
    )  # fmt: skip
    loop = Loop(
        "ko",
        e(steps),
        (
            loading,
            PhaseWait(phase("full", slot), turn, span=HERE, note="slot full"),
            WarpgroupFence(),
            mma,
            WarpgroupCommit(),
            WarpgroupWait(0),
            elected(Arrive(phase("empty", slot), span=HERE)),
        ),
    )
    store = Store(
        (("j", 2), ("h", 2)),
        mem("c", 16 * e("w") + 8 * e("h") + "g", 8 * e("j") + 2 * e("q")),
        reg("acc", 4 * e("j") + 2 * e("h")), 2, span=HERE,
    )  # fmt: skip
    narrow = Swizzle(1, 3, 3)  # of rows of 16 f16, 32 bytes
    slots = (2, 32, 16) if across else (2, 16, 32)
    b_shape = (32 * steps, 16) if across else (16, 32 * steps)
    return kernel(
        (
            decode("thread", ("w", 4), ("g", 8), ("q", 4)),
            decode("thread", ("tid", 128)),
            InitPhases(("full", "empty")),
            Barrier(),
            loop,
            store,
        ),
        warps=4,
        tensors=(tensor("a", f16, Mode.IN, 64, 32 * steps), tensor("b", f16, Mode.IN, *b_shape),
                 tensor("c", f32, Mode.OUT, 64, 16)),
        shared=(Shared("as", f16, (2, 64, 32), SWIZZLE),
                Shared("bs", f16, slots, narrow if across else SWIZZLE, offset=8192)),
        registers=(Registers("acc", f32, (8,)),),
        phases=(Phases("full", 2, 1, 10240), Phases("empty", 2, 1, 10256)),
        maps=(TensorMap("am", "a", (64, 32), 64),
              TensorMap("bm", "b", slots[1:], 32 if across else 64)),
    )  # fmt: skip


def shared_operand(steps: int) -> Kernel:
    """``c[128, 16] = a[128, k] b[16, k]`` by two warpgroups that share one slot for b, written by
    threads; a comes from registers. Barriers stand before the products and at the back edge.
    """
    row = 64 * e("wg") + 16 * e("w") + "g"
    k = 16 * e("ko")
    body: Body = (
        decode("thread", ("wg", 2), ("w", 4), ("g", 8), ("q", 4)),
        decode("thread", ("n", 16), ("kt", 16)),
        Loop(
            "ko",
            e(steps),
            (
                Load((), reg("bf", 0), mem("b", "n", k + "kt"), span=HERE),
                Store((), mem("bs", "n", "kt"), reg("bf", 0), span=HERE),
                ProxyFence(),
                Load(
                    (("kh", 2), ("mh", 2)), reg("af", 4 * e("kh") + 2 * e("mh")),
                    mem("a", row + 8 * e("mh"), k + 8 * e("kh") + 2 * e("q")), 2, span=HERE,
                ),
                Barrier("written"),
                WarpgroupFence(),
                WarpgroupMma(
                    (), ATOM + ".rs", reg("acc", 0), reg("af", 0),
                    TileRef("bs", (e(0), e(0)), 0, 1), accumulate=(at_least("ko", 1),), span=HERE,
                ),
                WarpgroupCommit(),
                WarpgroupWait(0),
                Barrier("back edge"),
            ),
        ),
        Store(
            (("j", 2), ("h", 2)), mem("c", row + 8 * e("h"), 8 * e("j") + 2 * e("q")),
            reg("acc", 4 * e("j") + 2 * e("h")), 2, span=HERE,
        ),
    )  # fmt: skip
    return kernel(
        body,
        warps=8,
        tensors=(tensor("a", f16, Mode.IN, 128, 16 * steps),
                 tensor("b", f16, Mode.IN, 16, 16 * steps), tensor("c", f32, Mode.OUT, 128, 16)),
        shared=(Shared("bs", f16, (16, 16), Swizzle(1, 3, 3)),),
        registers=(Registers("acc", f32, (8,)), Registers("af", f16, (8,)),
                   Registers("bf", f16, (1,))),
    )  # fmt: skip


def cluster_product(steps: int) -> Kernel:
    """``c[128, 16] = a[128, k] b[16, k]`` by a cluster of two blocks, 64 rows each.

    Block 0 loads b for both, into two slots; both release them at barriers of block 0.
    """
    slot, turn = e("ko") % 2, e("ko") // 2
    producer = Loop(
        "ko",
        e(steps),
        (
            PhaseWait(phase("empty", slot), turn + 1, span=HERE),
            ArriveExpect(phase("full", slot), 64 * 32 * 2 + 16 * 32 * 2, span=HERE),
            BulkLoad(
                (), mem("as", slot, 0, 0), "am", (64 * e("r"), 32 * e("ko")), phase("full", slot),
                span=HERE,
            ),
            If(
                (equal("r", 0),),
                (
                    PhaseWait(phase("free", slot), turn + 1, span=HERE),
                    BulkLoad(
                        (), mem("bs", slot, 0, 0), "bm", (e(0), 32 * e("ko")),
                        phase("full", slot), multicast=e(3), span=HERE,
                    ),
                ),
            ),
        ),
    )  # fmt: skip
    mma = WarpgroupMma(
        (("kk", 2),), ATOM, reg("acc", 0), TileRef("as", (slot, e(0), 16 * e("kk")), 1, 2),
        TileRef("bs", (slot, e(0), 16 * e("kk")), 1, 2),
        accumulate=(at_least(e("ko") + "kk", 1),), span=HERE,
    )  # fmt: skip
    consumer = Loop(
        "ko",
        e(steps),
        (
            PhaseWait(phase("full", slot), turn, span=HERE),
            WarpgroupFence(),
            mma,
            WarpgroupCommit(),
            WarpgroupWait(0),
            elected(
                Arrive(phase("empty", slot), span=HERE),
                Arrive(phase("free", slot), block=e(0), span=HERE),
            ),
        ),
    )
    store = Store(
        (("j", 2), ("h", 2)),
        mem("c", 64 * e("r") + 16 * e("w") + 8 * e("h") + "g", 8 * e("j") + 2 * e("q")),
        reg("acc", 4 * e("j") + 2 * e("h")), 2, span=HERE,
    )  # fmt: skip
    meet = (ClusterArrive(), ClusterWait())
    body: Body = (
        decode("block", ("r", 2)),
        decode("thread", ("wg", 2), ("tid", 128)),
        decode("thread", ("wg_", 2), ("w", 4), ("g", 8), ("q", 4)),
        InitPhases(("full", "empty", "free")),
        *meet,
        If((equal("wg", 0),), (elected(producer),)),
        If((equal("wg", 1),), (consumer, store)),
        *meet,
    )
    program = kernel(
        body,
        grid=(2,),
        warps=8,
        tensors=(tensor("a", f16, Mode.IN, 128, 32 * steps),
                 tensor("b", f16, Mode.IN, 16, 32 * steps), tensor("c", f32, Mode.OUT, 128, 16)),
        shared=(Shared("as", f16, (2, 64, 32), SWIZZLE),
                Shared("bs", f16, (2, 16, 32), SWIZZLE, offset=8192)),
        registers=(Registers("acc", f32, (8,)),),
        phases=(Phases("full", 2, 1, 10240), Phases("empty", 2, 1, 10256),
                Phases("free", 2, 2, 10272)),
        maps=(TensorMap("am", "a", (64, 32), 64), TensorMap("bm", "b", (16, 32), 64)),
    )  # fmt: skip
    return replace(program, cluster=2)


def copied_operand(steps: int) -> Kernel:
    """`shared_operand`, with b copied to its slot by `AsyncCopy`."""
    copy = AsyncCopy(
        (), mem("bs", "cr", 8 * e("cc")), mem("b", "cr", 16 * e("ko") + 8 * e("cc")), 8, span=HERE
    )

    def change(s: Statement) -> Body:
        match s:
            case Load(src=MemRef("b")):
                return (If((equal("cx", 0),), (copy,)), AsyncCommit(), AsyncWait(0))
            case Store(dst=MemRef("bs")):
                return ()
            case _:
                return (s,)

    program = edit(shared_operand(steps), change)
    threads = decode("thread", ("cr", 16), ("cc", 2), ("cx", 8))
    return replace(program, body=(threads, *program.body))


def taking_turns(rounds: int) -> Kernel:
    """``y = 2 * rounds``: two warpgroups count in one element of shared memory, by turns."""
    r = reg("r", 0)
    count = elected(
        Load((), r, mem("s", 0), span=HERE),
        Assign((), r, Apply("add", (Read(r, f32), Const(1.0, f32)), f32), span=HERE),
        Store((), mem("s", 0), r, span=HERE),
    )
    body: Body = (
        decode("thread", ("wg", 2), ("tid", 128)),
        elected(If((equal("wg", 0),), (Assign((), r, Const(0.0, f32)), Store((), mem("s", 0), r)))),
        Barrier(),
        If((equal("wg", 1),), (NamedBarrier(e(1), 256, arrive=True, note="the first turn"),)),
        Loop(
            "i",
            e(rounds),
            (
                NamedBarrier(e("wg") + 1, 256, note="turn"),
                count,
                NamedBarrier(2 - e("wg"), 256, arrive=True, note="next"),
            ),
        ),
        If(
            (equal("wg", 0),),
            (
                NamedBarrier(e(1), 256, note="last"),
                elected(Load((), r, mem("s", 0), span=HERE), Store((), mem("y", 0), r)),
            ),
        ),
    )
    return kernel(
        body,
        warps=8,
        tensors=(tensor("y", f32, Mode.OUT, 1),),
        shared=(Shared("s", f32, (1,)),),
        registers=(Registers("r", f32, (1,)),),
    )


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
