"""Blocks of a cluster that share the terms of a tile: results, equal bits, faults, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.base.diagnostics import BarrierError, RaceError, TilewrightError, UnwrittenReadError
from tilewright.codegen import print_cuda
from tilewright.codegen.sim import simulate
from tilewright.kernel.async_ops import ArriveExpect, ClusterWait, PhaseWait, RemoteStore
from tilewright.kernel.ops import If, Kernel, Statement, walk
from tilewright.kernel.rewrite import rewrite
from tilewright.runtime.cuda_driver import DeviceMemory, load_module, synchronize, use_device
from tilewright.runtime.launch import bind_launch
from tilewright.runtime.toolchain import compile_source
from tilewright.schedule.owners import owners_of
from tilewright.schedule.schedule import Schedule, read_schedule
from tilewright.target.nvidia import SM_90A

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BM, BN, BK = tw.sym.BM, tw.sym.BN, tw.sym.BK
NUMPY = {
    tw.bf16: ml_dtypes.bfloat16, tw.f16: np.float16, tw.f32: np.float32,
    tw.f8e4m3: ml_dtypes.float8_e4m3fn, tw.i8: np.int8, tw.i32: np.int32,
}  # fmt: skip
TILES = [tw.WorkgroupConstraint(M, BM, 0), tw.WorkgroupConstraint(N, BN, 1),
         tw.TilingConstraint(K, BK)]  # fmt: skip


def product(
    constraints: list[Any], operand: Any = tw.bf16, out: Any = tw.bf16, sums: Any = tw.f32,
    orders: str = "NTN", start: float = 0.0,
) -> Any:  # fmt: skip
    """c = a b, with M before K in a, N after K in b, M before N in c; 'T' swaps the two."""
    a_axes, b_axes, c_axes = (
        pair if order == "N" else pair[::-1]
        for pair, order in zip(([M, K], [K, N], [M, N]), orders, strict=True)
    )

    type_of = int if sums == tw.i32 else float

    def gemm(a: Any, b: Any, c: Any) -> None:
        @tw.iterate(K, init_args=[tw.Register[M, N, sums](type_of(start))])
        def total(acc: Any) -> Any:
            x, y = tw.permute(tw.read(a), [M, K]), tw.permute(tw.read(b), [N, K])
            return tw.mma(x, y, acc)

        tw.write(tw.permute(tw.cast(total, out), c_axes), c)

    gemm.__annotations__ = {
        "a": tw.Memory[(*a_axes, tw.GLOBAL, operand)],
        "b": tw.Memory[(*b_axes, tw.GLOBAL, operand)],
        "c": tw.Memory[(*c_axes, tw.GLOBAL, out)],
    }
    return tw.kernel(constraints)(gemm)


def in_parts(count: int, **more: Any) -> list[Any]:
    return [*TILES, tw.HardwareConstraint(split_k=count, **more)]


def sizes(m: int, n: int, k: int, bm: int, bn: int, bk: int = 64) -> dict[str, int]:
    return {"M": m, "N": n, "K": k, "BM": bm, "BN": bn, "BK": bk}


def drawn(
    given: dict[str, int], types: tuple[Any, Any], orders: str, *, whole: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Arguments, and their product in f64; that of `whole` numbers is exact in any order."""
    operand, out = (NUMPY[t] for t in types)
    random = np.random.default_rng(0)
    m, n, k = (given[s] for s in "MNK")

    def draw(*shape: int) -> np.ndarray:
        some = random.integers(-3, 4, shape) if whole else random.standard_normal(shape)
        return some.astype(operand)

    a, b = draw(m, k), draw(k, n)
    arrays = {
        "a": np.ascontiguousarray(a if orders[0] == "N" else a.T),
        "b": np.ascontiguousarray(b if orders[1] == "N" else b.T),
        "c": np.full((m, n) if orders[2] == "N" else (n, m), 7, out),
    }
    return arrays, a.astype(np.float64) @ b.astype(np.float64)


def run(
    kernel: Kernel,
    given: dict[str, int],
    types: tuple[Any, Any],
    orders: str,
    *,
    whole: bool = True,
    seed: int | None = None,
    open_sizes: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel computes on the simulator, and what NumPy does."""
    arrays, wanted = drawn(given, types, orders, whole=whole)
    symbols = {s: given[s] for s in "MNK"} if open_sizes else {}
    simulate(kernel, SM_90A, arrays, symbols, seed=seed)
    return arrays["c"] if orders[2] == "N" else arrays["c"].T, wanted


def lowered(program: Any, given: dict[str, int]) -> Kernel:
    return program.compile("sm_90a", given).compilation.kernel


# ---------------------------------------------------------------- results

CASES = [
    (2, sizes(128, 128, 256, 128, 128), tw.bf16, tw.bf16, tw.f32, "NTN"),
    (4, sizes(64, 64, 640, 64, 64), tw.f16, tw.f32, tw.f32, "NTN"),
    (3, sizes(72, 88, 136, 64, 96), tw.bf16, tw.bf16, tw.f32, "NTN"),  # ragged everywhere
    (8, sizes(64, 64, 328, 64, 64), tw.bf16, tw.bf16, tw.f32, "NTN"),  # 6 steps for 8 blocks
    (4, sizes(64, 64, 328, 64, 64), tw.bf16, tw.bf16, tw.f32, "NTN"),  # and for 4
    (2, sizes(16, 128, 256, 16, 128), tw.bf16, tw.bf16, tw.f32, "NTN"),  # N gives the rows
    (2, sizes(128, 64, 192, 128, 64), tw.bf16, tw.bf16, tw.f32, "TNN"),
    (2, sizes(128, 64, 192, 128, 64), tw.bf16, tw.bf16, tw.f32, "NNT"),
    (2, sizes(192, 64, 128, 192, 64), tw.f16, tw.f16, tw.f32, "TTN"),  # three warpgroups
    (8, sizes(16, 64, 584, 16, 64), tw.bf16, tw.bf16, tw.f32, "NTN"),  # two own 8 columns each
    (4, sizes(8, 72, 328, 8, 64), tw.f16, tw.f32, tw.f32, "NTN"),  # one owns all of them
    (6, sizes(64, 64, 584, 64, 64), tw.bf16, tw.bf16, tw.f32, "NTT"),  # two of three pairs
    (2, sizes(64, 64, 512, 64, 64, 128), tw.f8e4m3, tw.bf16, tw.f32, "NTN"),
    (2, sizes(64, 64, 512, 64, 64, 128), tw.i8, tw.i32, tw.i32, "NTN"),
]  # fmt: skip


@pytest.mark.parametrize(("count", "given", "operand", "out", "sums", "orders"), CASES)
def test_sums_of_parts(
    count: int, given: dict[str, int], operand: Any, out: Any, sums: Any, orders: str
) -> None:
    program = product(in_parts(count), operand, out, sums, orders)
    kernel = lowered(program, given)
    assert kernel.cluster == count
    assert any(isinstance(s, RemoteStore) for s in walk(kernel.body))
    found, wanted = run(kernel, given, (operand, out), orders)
    assert np.array_equal(found.astype(np.float64), wanted.astype(NUMPY[out]).astype(np.float64))


def test_open_sizes() -> None:
    program = product(in_parts(2))
    given = sizes(72, 136, 200, 64, 128)
    tiles = {s: given[s] for s in ("BM", "BN", "BK")}
    compiled = program.compile("sm_90a", tiles, multiples={"M": 8, "N": 8, "K": 8})
    found, wanted = run(compiled.compilation.kernel, given, (tw.bf16, tw.bf16), "NTN",
                        open_sizes=True)  # fmt: skip
    assert np.array_equal(found, wanted.astype(ml_dtypes.bfloat16))


def with_epilogue(constraints: list[Any], after: Callable[[Any], Any]) -> Any:
    """c = after(a b), v[n] and x[m] in hand, and y[m] = 2 x[m] beside it."""

    @tw.kernel(constraints)
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        v: tw.Memory[N, tw.GLOBAL, tw.f32],
        x: tw.Memory[M, tw.GLOBAL, tw.f32],
        c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
        y: tw.Memory[M, tw.GLOBAL, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(after(total) + tw.read(v) * tw.read(x), c)
        tw.write(tw.read(x) * 2.0, y)

    return gemm


@pytest.mark.parametrize("swapped", [False, True])
def test_each_block_goes_on_with_its_part(swapped: bool) -> None:
    """The epilogue has coordinates and rows and columns of its own part; rows are written once."""
    given = sizes(24, 128, 136, 24, 128) if swapped else sizes(72, 56, 136, 64, 48)
    count = 3
    kernel = lowered(
        with_epilogue(
            in_parts(count),
            lambda s: tw.maximum(s, 0.0) + tw.self_index(N, tw.f32) - tw.self_index(M, tw.f32),
        ),
        given,
    )
    random = np.random.default_rng(1)
    m, n, k = (given[s] for s in "MNK")
    a, b = (random.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (n, k)))
    v, x = (random.integers(-9, 9, s).astype(np.float32) for s in (n, m))
    c, y = np.full((m, n), np.nan, np.float32), np.full(m, np.nan, np.float32)
    simulate(kernel, SM_90A, {"a": a, "b": b, "v": v, "x": x, "c": c, "y": y}, {})
    total = a.astype(np.float32) @ b.astype(np.float32).T
    wanted = np.maximum(total, 0) + np.arange(n) - np.arange(m)[:, None] + v * x[:, None]
    assert np.array_equal(c, wanted)
    assert np.array_equal(y, 2 * x)


BEYOND = [
    (lambda s: s - tw.max(s, dim=N), "the program combines elements along N"),
    (lambda s: s * tw.sum(s, dim=N), "the program combines elements along N"),
]


@pytest.mark.parametrize(("after", "message"), BEYOND)
def test_what_needs_other_blocks_parts_is_refused(after: Any, message: str) -> None:
    """One block would have whole rows; here none has."""
    given = sizes(64, 64, 512, 64, 64)
    assert lowered(with_epilogue(in_parts(1), after), given).cluster == 1
    with pytest.raises(tw.TilewrightError, match=message):
        lowered(with_epilogue(in_parts(2), after), given)


def test_every_order_of_completion_gives_the_same_bits() -> None:
    given = sizes(64, 64, 256, 64, 64)
    kernel = lowered(product(in_parts(4), out=tw.f32), given)
    types = (tw.bf16, tw.f32)
    runs = [run(kernel, given, types, "NTN", whole=False, seed=s)[0] for s in (None, 1, 2)]
    assert all(np.array_equal(runs[0].view(np.int32), r.view(np.int32)) for r in runs[1:])
    wanted = drawn(given, types, "NTN", whole=False)[1]
    assert np.abs(runs[0] - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "given", "operand", "out", "sums", "orders"), CASES)
def test_the_device_agrees_twice(
    count: int,
    given: dict[str, int],
    operand: Any,
    out: Any,
    sums: Any,
    orders: str,
) -> None:
    kernel = lowered(product(in_parts(count), operand, out, sums, orders), given)
    use_device(0)
    module = load_module(compile_source(print_cuda(kernel, SM_90A), SM_90A), kernel.shared_bytes)
    arrays, wanted = drawn(given, (operand, out), orders)
    memory = [DeviceMemory(array.nbytes) for array in arrays.values()]
    launch = bind_launch(module, kernel, {}, {})
    for _ in range(2):
        for array, block in zip(arrays.values(), memory, strict=True):
            block.write(array.ctypes.data)
        launch(0, *(block.pointer for block in memory))
        synchronize()
        found = np.empty_like(arrays["c"])
        memory[2].read(found.ctypes.data)
        found = found if orders[2] == "N" else found.T
        assert np.array_equal(
            found.astype(np.float64), wanted.astype(NUMPY[out]).astype(np.float64)
        )


# ---------------------------------------------------------------- faults


def without(kernel: Kernel, found: Callable[[Statement], bool]) -> Kernel:
    return replace(kernel, body=rewrite(kernel.body, lambda s: () if found(s) else (s,)))


def names(phase: str) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, PhaseWait) and s.phase.name == phase


def expects(s: Statement) -> bool:
    """The arrival that expects the parts, under its guard."""
    inner = s.body[0] if isinstance(s, If) else None
    return isinstance(inner, ArriveExpect) and inner.phase.name == "landed"


FAULTS = [
    ("added before the parts have landed", names("landed"), (RaceError, UnwrittenReadError),
     "parts"),
    ("stored before the peers have begun", lambda s: isinstance(s, ClusterWait), (BarrierError,),
     "is used before it has begun"),
    ("nobody expects the parts", expects, (BarrierError,), "deadlock"),
    ("a part is not sent", lambda s: isinstance(s, RemoteStore), (BarrierError,), "deadlock"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "kinds", "message"), [f[1:] for f in FAULTS],
                         ids=[f[0] for f in FAULTS])  # fmt: skip
@pytest.mark.parametrize("seed", [None, 5])
def test_faults_are_refused(
    found: Callable[[Statement], bool], kinds: tuple[type[TilewrightError], ...], message: str,
    seed: int | None,
) -> None:  # fmt: skip
    given = sizes(64, 64, 192, 64, 64)
    kernel = lowered(product(in_parts(2)), given)
    with pytest.raises(kinds, match=message):
        run(without(kernel, found), given, (tw.bf16, tw.bf16), "NTN", seed=seed)


# ---------------------------------------------------------------- plans


def by_hand(s: Schedule) -> Schedule:
    s = s.split("M", 64, "mo", "mi").split("N", 64, "no", "ni").split("K", 64, "ko", "ki")
    return s.split("ko", 4, "turn", "part").parallelize("part", "cluster")


def test_a_schedule_by_hand_makes_the_same_kernel() -> None:
    given = sizes(128, 64, 512, 64, 64)
    scheduled = product([]).compile("sm_90a", {s: given[s] for s in "MNK"}, schedule=by_hand)
    kernel = scheduled.compilation.kernel
    assert kernel.cluster == 4
    found, wanted = run(kernel, given, (tw.bf16, tw.bf16), "NTN")
    assert np.array_equal(found, wanted.astype(ml_dtypes.bfloat16))
    text = scheduled.explain()
    assert "K = 256*step[2] + 64*part[4] + tile[64]" in text
    assert "N = 64*block[1] + 16*part[4] + tile[16]" in text
    assert "part[4] cluster" in text
    assert "4 blocks share the terms of a tile" in text
    assert "store to parts of another block: the columns of a later one" in text


def test_the_plan_says_who_owns_the_columns() -> None:
    compiled = product(in_parts(8)).compile("sm_90a", sizes(16, 1024, 8192, 16, 64))
    text = compiled.explain()
    assert "M = 16*block[1] + 8*part[2] + tile[8]" in text
    assert "K = 512*step[16] + 64*part[8] + tile[64]" in text
    assert "tile helper[4] cluster, tile part[2] cluster" in text
    assert "8 blocks share the terms of a tile, 2 own a part of it" in text
    assert "the parts of all blocks of a cluster added, each once" in text


@pytest.mark.parametrize(("columns", "blocks", "owners"), [
    (128, 8, 8), (128, 6, 2), (16, 8, 2), (8, 8, 1), (96, 4, 4), (24, 6, 3), (64, 3, 1), (64, 1, 1),
])  # fmt: skip
def test_owners(columns: int, blocks: int, owners: int) -> None:
    assert owners_of(columns, blocks) == owners


def test_the_schedule_reads_back() -> None:
    start = Schedule(("M", "N", "K"), frozenset("K"))
    made = by_hand(start)
    assert "parallelize('part', 'cluster')" in str(made)
    assert read_schedule(str(made), start) == made


def test_terms_are_counted_once_and_nothing_is_refuted() -> None:
    compiled = product(in_parts(4)).compile("sm_90a", sizes(128, 128, 1000, 64, 64))
    words = [type(o.result).__name__ for o in compiled.proofs]
    assert "Refuted" not in words
    text = compiled.explain()
    assert "all 1000 elements of K are counted exactly once" in text
    assert "all 16384 elements of c are written exactly once" in text


def test_the_policy_splits_few_tiles_with_many_terms() -> None:
    def parts(constraints: list[Any], m: int, n: int, k: int) -> int:
        compiled = product(constraints).compile("sm_90a", {"M": m, "N": n, "K": k})
        return compiled.compilation.plan.roles.parts

    assert parts([], 256, 256, 16384) > 1
    assert parts([], 16, 1024, 8192) > 2  # more blocks than parts of the columns
    assert parts([], 4096, 4096, 4096) == 1
    assert parts([], 256, 256, 128) == 1
    # What the author says of the hardware stands.
    assert parts([tw.HardwareConstraint(stages=3)], 256, 256, 16384) == 1


REFUSED = [
    (in_parts(16), sizes(64, 256, 4096, 64, 256), {}, "sm_90a has clusters of 8 blocks, not 16"),
    (in_parts(2), sizes(64, 64, 512, 64, 64), {"start": 1.0}, "the sum does not start at zero"),
    (in_parts(8), sizes(192, 192, 512, 192, 192), {}, "shared memory holds no ring beside 7 parts"),
    (in_parts(2, stages=6), sizes(128, 128, 512, 128, 128), {}, "holds 5 slots beside parts, not"),
    (in_parts(2, pingpong=True), sizes(64, 64, 512, 64, 64), {}, "have tiles of their own"),
    (in_parts(2, cluster=2), sizes(128, 64, 512, 64, 64), {}, "load operands for each other"),
    (in_parts(2, specialize=False), sizes(64, 64, 512, 64, 64), {}, "turned off"),
    (in_parts(2), sizes(64, 60, 512, 64, 60), {}, "do not suit warpgroups"),
]  # fmt: skip


@pytest.mark.parametrize(("constraints", "given", "more", "message"), REFUSED)
def test_what_cannot_be_shared_is_refused(
    constraints: list[Any], given: dict[str, int], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(tw.TilewrightError, match=message) as caught:
        product(constraints, **more).compile("sm_90a", given)
    assert "cannot share the terms of a tile" in str(caught.value)
    assert "leave split_k out" in str(caught.value)


def test_a_target_without_clusters_is_refused() -> None:
    with pytest.raises(tw.TilewrightError, match=r"cannot share the terms.*no copy engine"):
        product(in_parts(2)).compile("gfx942", sizes(64, 64, 512, 64, 64))


def test_a_number_of_blocks_is_positive() -> None:
    with pytest.raises(tw.TilewrightError, match="split_k is 0"):
        tw.HardwareConstraint(split_k=0)


def test_other_counters_of_a_reduced_axis_do_not_go_to_clusters() -> None:
    def outer(s: Schedule) -> Schedule:
        s = s.split("M", 64).split("N", 64).split("K", 64, "ko", "ki").split("ko", 4, "x", "y")
        return s.parallelize("x", "cluster")

    with pytest.raises(tw.TilewrightError, match="x belongs to K, along which") as caught:
        product([]).compile("sm_90a", {"M": 64, "N": 64, "K": 512}, schedule=outer)
    assert "the inner part of a split of its steps" in str(caught.value)


def test_a_cluster_has_one_purpose() -> None:
    def twice(s: Schedule) -> Schedule:
        s = s.split("M", 64, "mo", "mi").split("N", 64).split("K", 64, "ko", "ki")
        s = s.split("mo", 2, "a", "b").parallelize("b", "cluster")
        return s.split("ko", 2, "turn", "part").parallelize("part", "cluster")

    with pytest.raises(tw.TilewrightError, match="b and part are both placed on 'cluster'"):
        product([]).compile("sm_90a", {"M": 128, "N": 64, "K": 512}, schedule=twice)


def test_counters_and_axes_may_have_the_same_names() -> None:
    """Whatever an author calls counters, those of the blocks that share a tile are others."""

    def schedule(s: Schedule) -> Schedule:
        s = s.split("M", 64, "part", "helper").split("N", 64, "no", "ni").split("K", 64, "ko", "ki")
        return s.split("ko", 2, "turn", "share").parallelize("share", "cluster")

    given = sizes(128, 64, 136, 64, 64)
    compiled = product([]).compile("sm_90a", {s: given[s] for s in "MNK"}, schedule=schedule)
    found, wanted = run(compiled.compilation.kernel, given, (tw.bf16, tw.bf16), "NTN")
    assert np.array_equal(found, wanted.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(("columns", "orders", "count"), [(72, "NNN", 1), (96, "TNT", 4)])
def test_rings_have_room_for_whole_rows(columns: int, orders: str, count: int) -> None:
    """Tiles of 72 or 96 columns that lie along rows of shared memory take two of 64 each."""
    kernel = lowered(
        product(in_parts(count), orders=orders), sizes(128, columns, 256, 128, columns)
    )
    ring = kernel.shared_buffer("b_ring")
    assert ring is not None
    assert ring.shape[1:] == (2, 64, 64)
    assert kernel.shared_bytes <= SM_90A.shared_bytes
