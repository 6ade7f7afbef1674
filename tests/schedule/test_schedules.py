"""Schedules by hand: right results under every order of tiles, and clear refusals of bad ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

import tilewright as tw
from tilewright.driver.compile import Rewrites
from tilewright.driver.trial import run_trial
from tilewright.kernel.ops import If, Kernel, Statement
from tilewright.kernel.rewrite import rewrite
from tilewright.poly.expr import Expr
from tilewright.poly.prove import Assumed, Proved
from tilewright.schedule.grid import GridPlace, GridPlan, visits
from tilewright.schedule.schedule import Schedule, read_schedule
from tilewright.schedule.text import draw_grid

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


@tw.kernel()
def gemm(
    a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.f16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(total, c)


def tiled(s: Schedule) -> Schedule:
    s = s.split("M", 32, "mo", "mi").split("N", 16, "no", "ni").split("K", 16, "ko", "ki")
    return s.split("mi", 16, "mw", "mii").parallelize("mw", "warp").stage(3)


def swizzled(factor: int, blocks: int):
    """A grid swizzled by `factor` (0: not), persistent on `blocks` blocks (0: one per tile)."""

    def schedule(s: Schedule) -> Schedule:
        s = tiled(s)
        if factor:
            s = s.swizzle("mo", "no", factor)
        return s.persistent(blocks) if blocks else s

    return schedule


SIZES = ({"M": 96, "N": 64, "K": 32}, {"M": 90, "N": 50, "K": 40}, {"M": 1, "N": 1, "K": 1})


@pytest.mark.parametrize(("factor", "blocks"), list(product((0, 2, 3, 16), (0, 1, 5, 6, 132))))
def test_swizzled_and_persistent(factor: int, blocks: int) -> None:
    for sizes in SIZES:
        compiled = gemm.compile("sm_90a", sizes, schedule=swizzled(factor, blocks))
        assert all(isinstance(o.result, Proved | Assumed) for o in compiled.proofs)
        assert all(o.right for o in run_trial(compiled, sizes, 3, simulate=True).outputs)


@pytest.mark.parametrize(("factor", "blocks"), list(product((0, 3, 4), (0, 1, 7, 132))))
def test_dynamic_sizes(factor: int, blocks: int) -> None:
    compiled = gemm.compile("sm_90a", schedule=swizzled(factor, blocks))
    assert all(isinstance(o.result, Proved | Assumed) for o in compiled.proofs)
    for sizes in SIZES[1:] if blocks else SIZES:
        assert all(o.right for o in run_trial(compiled, sizes, 3, simulate=True).outputs)


LARGE = (None, {"N": 64}, {"K": 16384}, {"M": 16384, "N": 16384, "K": 16384},
         {"M": 16383, "N": 10001, "K": 16381})  # fmt: skip


def large(s: Schedule) -> Schedule:
    s = s.split("M", 256, "mo", "mi").split("N", 128, "no", "ni").split("K", 64, "ko", "ki")
    s = s.split("mi", 64, "mw").parallelize("mw", "warp").split("ni", 64, "nw")
    return s.parallelize("nw", "warp").stage(3)


ORDERS = {
    "swizzled": lambda s: s.swizzle("mo", "no", 4),
    "persistent": lambda s: s.persistent(132),
    "both": lambda s: s.swizzle("mo", "no", 4).persistent(132),
    "by 3 on 7 blocks": lambda s: s.swizzle("mo", "no", 3).persistent(7),
    "two levels": lambda s: s.swizzle("mo", "no", 4).swizzle("mo.group", "mo.in_group", 2),
    "two levels on 7 blocks": lambda s: ORDERS["two levels"](s).persistent(7),
    "clusters": lambda s: s.split("no", 2, "nc", "nr").parallelize("nr", "cluster"),
    "swizzled clusters on 6 blocks": lambda s: ORDERS["clusters"](
        s.swizzle("mo", "no", 2)
    ).persistent(6),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_large_tiles_are_proved(order: str, sizes: dict[str, int] | None) -> None:
    compiled = gemm.compile("sm_90a", sizes, schedule=lambda s: ORDERS[order](large(s)))
    assert [o for o in compiled.proofs if not isinstance(o.result, Proved | Assumed)] == []


def test_two_levels_of_swizzle() -> None:
    def schedule(s: Schedule) -> Schedule:
        return tiled(s).swizzle("mo", "no", 4).swizzle("mo.group", "mo.in_group", 2)

    sizes = {"M": 300, "N": 40, "K": 20}
    compiled = gemm.compile("sm_90a", sizes, schedule=schedule)
    assert all(o.right for o in run_trial(compiled, sizes, 3, simulate=True).outputs)


def test_clusters() -> None:
    def schedule(s: Schedule) -> Schedule:
        return tiled(s).split("no", 2, "nc", "nr").parallelize("nr", "cluster")

    sizes = {"M": 70, "N": 40, "K": 20}
    compiled = gemm.compile("sm_90a", sizes, schedule=schedule)
    assert compiled.compilation.kernel.cluster == 2
    assert "__cluster_dims__(2, 1, 1)" in compiled.source
    assert all(o.right for o in run_trial(compiled, sizes, 3, simulate=True).outputs)


@pytest.mark.parametrize(("target", "blocks", "most"), [("gfx942", 2, 1), ("sm_90a", 16, 8)])
def test_clusters_beyond_the_target_are_refused(target: str, blocks: int, most: int) -> None:
    def schedule(s: Schedule) -> Schedule:
        return tiled(s).split("no", blocks, "nc", "nr").parallelize("nr", "cluster")

    with pytest.raises(tw.TilewrightError) as caught:
        gemm.compile(target, {"M": 64, "N": 256, "K": 16}, schedule=schedule)
    assert f"clusters of {blocks} blocks" in str(caught.value)
    assert f"1 to {most} on {target}" in str(caught.value)


def test_printed_form_reads_back() -> None:
    s = swizzled(4, 7)(Schedule(("M", "N", "K"), frozenset("K")))
    again = read_schedule(str(s), Schedule(("M", "N", "K"), frozenset("K")))
    assert again == s
    assert again.counters == s.counters
    with pytest.raises(tw.TilewrightError, match="is no step of a schedule"):
        read_schedule("schedule.import_('os')", Schedule(("M",)))


def test_explain_shows_the_order_of_tiles() -> None:
    text = gemm.compile("sm_90a", SIZES[0], schedule=swizzled(2, 5)).explain()
    assert "tiles: M = mo.group * 2 + mo.in_group" in text
    assert "tiles, slowest first: turn[4] loop, rank[5] block" in text


def test_every_tile_is_visited_once() -> None:
    """Against enumeration, for every mixture of splits, merges and persistence."""
    for rows, columns, factor, blocks in product((1, 4, 9), (1, 3, 8), (1, 2, 5), (0, 1, 7, 99)):
        plain = GridPlan.plain({"M": Expr.of(rows), "N": Expr.of(columns)})
        grid = plain.swizzled("M", "N", factor)
        if blocks:
            whole = grid.merge("M_group", "N", "a").merge("a", "M_in_group", "t")
            grid = whole.split("t", blocks, "turn", "rank").bind("turn", GridPlace.LOOP)
        tiles = [(v.tile["M"], v.tile["N"]) for v in visits(grid)]
        assert sorted(tiles) == sorted(product(range(rows), range(columns)))


def test_the_drawing_shows_turns_and_blocks() -> None:
    grid = GridPlan.plain({"M": Expr.of(4), "N": Expr.of(3)}).swizzled("M", "N", 2)
    grid = grid.merge("M_group", "N", "a").merge("a", "M_in_group", "t")
    grid = grid.split("t", 5, "turn", "rank").bind("turn", GridPlace.LOOP)
    assert draw_grid(grid) == [
        "order of tiles, M down and N across: turn.block",
        "0.0 0.2 0.4",
        "0.1 0.3 1.0",
        "1.1 1.3 2.0",
        "1.2 1.4 2.1",
    ]


def test_a_swizzle_without_its_edge_guard_is_refused() -> None:
    """Dropping the guard lets blocks past the edge write rows that do not exist."""

    def unguarded(kernel: Kernel) -> Kernel:
        def change(statement: Statement) -> tuple[Statement, ...]:
            if isinstance(statement, If) and "mo_group" in str(statement.guard):
                return statement.body
            return (statement,)

        return replace(kernel, body=rewrite(kernel.body, change))

    sizes = {"M": 160, "N": 32, "K": 16}
    assert gemm.compile("sm_90a", sizes, schedule=swizzled(2, 0))
    with pytest.raises(tw.TilewrightError) as caught:
        gemm.compile("sm_90a", sizes, schedule=swizzled(2, 0), rewrites=Rewrites(kernel=unguarded))
    assert caught.value.code in ("TW301", "TW302")


def test_staged_tensors() -> None:
    """An output gathered in shared memory is written in whole rows; an operand read through it."""
    sizes = {"M": 70, "N": 40, "K": 20}
    compiled = gemm.compile("sm_90a", sizes, schedule=lambda s: tiled(s).cache_before("c"))
    assert any("exchange" in s.name for s in compiled.compilation.kernel.shared)
    assert all(o.right for o in run_trial(compiled, sizes, 3, simulate=True).outputs)

    @tw.kernel()
    def double(x: tw.Memory[M, N, tw.GLOBAL, tw.f32], y: tw.Memory[M, N, tw.GLOBAL, tw.f32]):
        tw.write(tw.read(x) * 2.0, y)

    def schedule(s: Schedule) -> Schedule:
        s = s.split("M", 8).set_memory_type("x", tw.SHARED).inline_most()
        return s.inline_at("y", "M.outer")

    compiled = double.compile("sm_90a", sizes, schedule=schedule)
    assert [s.name for s in compiled.compilation.kernel.shared] == ["x_1_exchange"]
    assert all(o.right for o in run_trial(compiled, sizes, 3, simulate=True).outputs)


def refused(schedule) -> str:
    with pytest.raises(tw.TilewrightError) as caught:
        gemm.compile("sm_90a", SIZES[0], schedule=schedule)
    return str(caught.value)


def test_blocks_along_a_reduction_are_refused() -> None:
    text = refused(lambda s: tiled(s).parallelize("ko", "block"))
    assert "ko belongs to K, along which the program combines elements" in text
    assert "place ko on 'serial'" in text
    assert 'parallelize("ko", "block")' in text


def test_two_places_for_one_counter_are_refused() -> None:
    text = refused(lambda s: tiled(s).parallelize("mo", "block").parallelize("mo", "serial"))
    assert "mo is placed on block already" in text


def test_two_counters_on_one_place_are_refused() -> None:
    text = refused(lambda s: tiled(s).split("mii", 8).parallelize("mii.outer", "warp"))
    assert "mw and mii.outer are both placed on 'warp'" in text


def test_tiles_on_lanes_are_refused() -> None:
    text = refused(lambda s: tiled(s).parallelize("mo", "lane"))
    assert "mo counts tiles and cannot be placed on 'lane'" in text


def test_unknown_counters_are_refused() -> None:
    text = refused(lambda s: tiled(s).split("mo", 2).merge("mo", "no"))
    assert "the schedule has no counter mo" in text
    assert "mo.outer" in text


def test_inlining_a_result_into_its_own_reduction_is_refused() -> None:
    text = refused(lambda s: tiled(s).inline_at("c", "ko"))
    assert "c cannot be computed inside ko: each element combines all of K" in text


def test_staging_a_tensor_that_is_not_read_is_refused() -> None:
    text = refused(lambda s: tiled(s).cache_after("c"))
    assert "c is not read by the program" in text
    assert "one of a, b" in text


def roles(how: str, *, cluster: bool = False):
    """Warp roles on a swizzled and persistent grid, in clusters of neighbouring rows of tiles."""

    def schedule(s: Schedule) -> Schedule:
        s = s.split("M", 64, "mo", "mi").split("N", 64, "no", "ni").split("K", 64, "ko", "ki")
        s = s.stage(2).specialize(how)
        if cluster:
            s = s.split("mo", 2, "pack", "peer").parallelize("peer", "cluster")
            s = s.merge("pack", "no", "tile").split("tile", 3, "turn", "rank")
            return s.parallelize("turn", "serial").reorder("turn", "rank", "peer")
        return s.swizzle("mo", "no", 2).persistent(3)

    return schedule


@pytest.mark.parametrize("how", ["cooperative", "pingpong"])
@pytest.mark.parametrize("cluster", [False, True])
def test_warp_roles_by_hand(how: str, cluster: bool) -> None:
    sizes = {"M": 256, "N": 192, "K": 320}
    compiled = gemm.compile("sm_90a", sizes, schedule=roles(how, cluster=cluster))
    assert ("a tile each in turns" in compiled.explain()) == (how == "pingpong")
    assert [o for o in compiled.proofs if not isinstance(o.result, Proved | Assumed)] == []
    assert ("multicast" in compiled.ir) == cluster
    assert all(o.right for o in run_trial(compiled, sizes, 3, simulate=True).outputs)
    start = Schedule(("M", "N", "K"), frozenset({"K"}), frozenset({"a", "b"}), frozenset({"c"}))
    made = roles(how, cluster=cluster)(start)
    assert f"schedule.specialize('{how}')" in str(made)
    assert str(read_schedule(str(made), start)) == str(made)


def test_roles_that_are_unknown_or_cannot_be_are_refused() -> None:
    assert "'producer' is no way to share work" in refused(lambda s: s.specialize("producer"))
    text = refused(lambda s: tiled(s).specialize())
    assert "warps cannot have roles: constraints share the tile among warps" in text


def test_a_schedule_and_a_constraint_on_one_axis_are_refused() -> None:
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0)])
    def double(x: tw.Memory[M, tw.GLOBAL, tw.f32], y: tw.Memory[M, tw.GLOBAL, tw.f32]):
        tw.write(tw.read(x) * 2.0, y)

    with pytest.raises(tw.TilewrightError, match="which a constraint has placed"):
        double.compile("sm_90a", {"M": 40}, schedule=lambda s: s.split("M", 8))
