"""A bf16 product for Hopper, written by hand as kernel IR: c[m, n] = sum over k of a[m, k] b[n, k],
each operand stored with k last or k first.

One producer warpgroup keeps a ring of stages filled through tensor maps; two consumer warpgroups
split the 128 rows of a tile and multiply from shared memory. The grid is persistent; tiles go in
groups of `group` rows. The epilogue goes through shared memory and the copy engine, panel by
panel, while the producer already fills the ring for the next tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.dtypes import bf16, f32
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
    Assign,
    Barrier,
    Body,
    Cast,
    Decode,
    If,
    Kernel,
    Loop,
    MatrixShape,
    MemRef,
    Mode,
    Read,
    ReducedAxis,
    Registers,
    RegRef,
    Shared,
    Statement,
    Store,
    Swizzle,
    Tensor,
)
from tilewright.poly.expr import Expr, at_least, equal

V = Expr.of
TILE_M, TILE_N, TILE_K = 128, 256, 64
CONSUMERS = 2
PANEL = 64  # columns of c that one store of the copy engine takes
_SWIZZLE = Swizzle(3, 3, 3)  # of 128-byte rows, in elements of 16 bits
_ATOM = "wgmma.m64n256k16.f32.bf16"


@dataclass(frozen=True)
class Plan:
    """Sizes of the product, and how it is scheduled. Sizes are multiples of the tile's."""

    m: int
    n: int
    k: int
    stages: int = 4
    group: int = 8
    blocks: int = 132
    cluster: int = 1  # blocks with neighbouring rows of tiles, which share the tile of b
    a_across: bool = False  # a is stored as a[k, m]
    b_across: bool = False  # b is stored as b[k, n]

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along m, counted by clusters, and along n."""
        return self.m // (TILE_M * self.cluster), self.n // TILE_N

    @property
    def turns(self) -> int:
        """Rounds of the ring in one tile."""
        return self.k // (TILE_K * self.stages)


def gemm(plan: Plan) -> Kernel:
    """The kernel of a plan; its tensors are a, b and c."""
    stages = plan.stages
    b_start = stages * TILE_M * TILE_K * 2
    c_start = b_start + stages * TILE_N * TILE_K * 2
    phase_start = c_start + CONSUMERS * 2 * 64 * PANEL * 2
    return Kernel(
        name="gemm",
        target="sm_90a",
        warp_size=32,
        warps=4 * (1 + CONSUMERS),
        grid=(V(plan.blocks),),
        symbols=(),
        tensors=(
            _tensor("a", (plan.k, plan.m) if plan.a_across else (plan.m, plan.k), Mode.IN),
            _tensor("b", (plan.k, plan.n) if plan.b_across else (plan.n, plan.k), Mode.IN),
            _tensor("c", (plan.m, plan.n), Mode.OUT),
        ),
        scalars=(),
        shared=(
            Shared("sa", bf16, _staged(stages, TILE_M, plan.a_across), _SWIZZLE, offset=0),
            Shared("sb", bf16, _staged(stages, TILE_N, plan.b_across), _SWIZZLE, offset=b_start),
            Shared("sc", bf16, (CONSUMERS, 2, 64, PANEL), _SWIZZLE, offset=c_start),
        ),
        registers=(
            Registers("d", f32, (TILE_N // 2,), "64 rows of the tile of c"),
            Registers("panel", bf16, (PANEL // 2,), "a panel of them, rounded"),
        ),
        cluster=plan.cluster,
        body=(
            Decode(
                V("block"),
                (("first", V(plan.blocks // plan.cluster)), ("rank", V(plan.cluster))),
            ),
            Decode(V("thread"), (("role", V(3)), ("w", V(4)), ("g", V(8)), ("p", V(4)))),
            InitPhases(("full", "empty")),
            *_meet(plan),
            If((equal("role", 0),), _producer(plan)),
            If((at_least("role", 1),), _consumer(plan)),
            *(_meet(plan) if plan.cluster > 1 else ()),  # the peers' barriers live until then
        ),
        phases=(
            Phases("full", stages, 1, phase_start),
            Phases("empty", stages, 4 * CONSUMERS * plan.cluster, phase_start + 8 * stages),
        ),
        maps=(
            TensorMap("box_a", "a", _box(TILE_M, plan.a_across), 128),
            TensorMap("box_b", "b", _box(TILE_N // plan.cluster, plan.b_across), 128),
            TensorMap("box_c", "c", (64, PANEL), 128),
        ),
    )


def _tensor(name: str, shape: tuple[int, int], mode: Mode) -> Tensor:
    return Tensor(name, bf16, (V(shape[0]), V(shape[1])), (V(shape[1]), V(1)), mode, 16)


def _staged(stages: int, rows: int, across: bool) -> tuple[int, ...]:
    """A ring of tiles: rows of k, or panels of 64 with k rows each."""
    return (stages, rows // 64, TILE_K, 64) if across else (stages, rows, TILE_K)


def _box(rows: int, across: bool) -> tuple[int, int]:
    return (TILE_K, 64) if across else (rows, TILE_K)


def _load(name: str, across: bool, start: Expr, within: Expr, rows: int, k: Expr) -> BulkLoad:
    """Fill the slot's rows from `within` on, with those of the tensor from `start` on."""
    full = PhaseRef("full", V("s"))
    if not across:
        corner = MemRef(f"s{name}", (V("s"), within, V(0)))
        return BulkLoad((), corner, f"box_{name}", (start + within, k), full)
    row = within + V("panel") * 64
    corner = MemRef(f"s{name}", (V("s"), within // 64 + "panel", V(0), V(0)))
    return BulkLoad((("panel", rows // 64),), corner, f"box_{name}", (k, start + row), full)


def _tile(name: str, across: bool, rows: Expr) -> TileRef:
    k = V("kk") * 16
    if across:
        return TileRef(f"s{name}", (V("s"), rows // 64, k, V(0)), 3, 2, 1)
    return TileRef(f"s{name}", (V("s"), rows, k), 1, 2)


def _meet(plan: Plan) -> Body:
    return (Barrier(),) if plan.cluster == 1 else (ClusterArrive(), ClusterWait())


def _release(plan: Plan, slot: Expr) -> Body:
    """The slot is free for every block of the cluster that writes to it."""
    phase = PhaseRef("empty", slot)
    if plan.cluster == 1:
        return (Arrive(phase),)
    return tuple(Arrive(phase, V(rank)) for rank in range(plan.cluster))


def _tile_loop(plan: Plan, *body: Statement) -> Loop:
    """The block's tiles, by `row` groups: tile = (mg, no, mr) of a counter that goes round."""
    rows, columns = plan.tiles
    count = rows * columns
    group, step = plan.group // plan.cluster, plan.blocks // plan.cluster
    digits = (("mg", V(rows // group)), ("no", V(columns)), ("mr", V(group)))
    extent = (V(count - 1 + step) - V("first")) // step
    return Loop("i", extent, (Decode(V("i") * step + "first", digits), *body))


def _row(plan: Plan) -> Expr:
    first = V("mg") * plan.group + V("mr") * plan.cluster
    return (first + "rank" if plan.cluster > 1 else first) * TILE_M


_LANE = (equal("g", 0), equal("p", 0))  # one thread of each warp
_ONE = (equal("w", 0), *_LANE)  # one thread of each warpgroup


def _producer(plan: Plan) -> Body:
    k = (V("kq") * plan.stages + "s") * TILE_K
    turn = V("i") * plan.turns + "kq"
    full, empty = PhaseRef("full", V("s")), PhaseRef("empty", V("s"))
    part = TILE_N // plan.cluster  # each block loads its part of b's tile, for all of them
    within = V("rank") * part if plan.cluster > 1 else V(0)
    load_a = _load("a", plan.a_across, _row(plan), V(0), TILE_M, k)
    load_b = _load("b", plan.b_across, V("no") * TILE_N, within, part, k)
    if plan.cluster > 1:
        load_b = replace(load_b, multicast=V((1 << plan.cluster) - 1))
    step: Body = (
        PhaseWait(empty, turn + 1, note="the slot's last readers released it"),
        ArriveExpect(full, (TILE_M + TILE_N) * TILE_K * 2),
        load_a,
        load_b,
    )
    ring = Loop("kq", V(plan.turns), (Loop("s", V(plan.stages), step, unroll=True),))
    return (SetRegisters(56, grow=False), If(_ONE, (_tile_loop(plan, ring),)))


def _consumer(plan: Plan) -> Body:
    stages = plan.stages
    turn = V("i") * plan.turns + "kq"
    step = V("kq") * stages + "s"
    multiply = WarpgroupMma(
        (("kk", TILE_K // 16),),
        _ATOM,
        RegRef("d", (V(0),)),
        _tile("a", plan.a_across, (V("role") - 1) * 64),
        _tile("b", plan.b_across, V(0)),
        accumulate=(at_least(step + "kk", 1),),
        reduces=(ReducedAxis("k", V(plan.k), step * TILE_K + V("kk") * 16),),
    )
    before = (V("s") + stages - 1) % stages
    body: Body = (
        PhaseWait(PhaseRef("full", V("s")), turn),
        WarpgroupFence(),
        multiply,
        WarpgroupCommit(),
        WarpgroupWait(1),
        If((*_LANE, at_least(step, 1)), _release(plan, before)),  # the products before are done
    )
    ring = Loop("kq", V(plan.turns), (Loop("s", V(stages), body, unroll=True),))
    last = _release(plan, V(stages - 1))
    return (
        SetRegisters(224, grow=True),
        _tile_loop(plan, ring, WarpgroupWait(0), If(_LANE, last), _epilogue(plan)),
        If(_ONE, (BulkWait(0),)),
    )


def _epilogue(plan: Plan) -> Statement:
    """Panels of 64 columns through two buffers of each warpgroup."""
    half = V("j") % 2
    columns = V("nq") * 16 + V("nt") * 8 + V("p") * 2
    rows = V("w") * 16 + V("mh") * 8 + "g"
    group = V("role") - 1
    tile = NamedBarrier(V("role"), 128)
    body: Body = (
        Assign(
            (("x", PANEL // 2),),
            RegRef("panel", (V("x"),)),
            Cast(Read(RegRef("d", (V("j") * 32 + "x",)), f32), bf16),
        ),
        If(_ONE, (BulkWait(1, read=True),)),
        tile,
        Store(
            (("nq", PANEL // 16), ("nt", 2), ("mh", 2)),
            MemRef("sc", (group, half, rows, columns)),
            RegRef("panel", (V("nq") * 8 + V("nt") * 4 + V("mh") * 2,)),
            2,
            matrix=MatrixShape("x4", "g", "p", ("nt", "mh")),
        ),
        ProxyFence(),
        tile,
        If(
            _ONE,
            (
                BulkStore(
                    (),
                    "box_c",
                    (_row(plan) + group * 64, V("no") * TILE_N + V("j") * PANEL),
                    MemRef("sc", (group, half, V(0), V(0))),
                ),
                BulkCommit(),
            ),
        ),
    )
    return Loop("j", V(TILE_N // PANEL), body, unroll=True)
