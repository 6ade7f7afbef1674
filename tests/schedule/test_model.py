"""The model of a matrix product: its ranking against measurements, counting and brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.diagnostics import UnsupportedError
from tilewright.poly.expr import Expr
from tilewright.schedule.grid import GridPlan, visits
from tilewright.schedule.model import (
    GROUPS,
    Candidate,
    Problem,
    candidates,
    predict,
    rank,
    raster_group,
    shares,
)
from tilewright.target.amd import GFX942
from tilewright.target.model import Scope
from tilewright.target.nvidia import SM_90A

HAND_BUILT = Candidate(128, 256, 64, 4, 2, persistent=True, group=16)

# TFLOP/s of cuBLAS on one H200. The card's power sways long products by up to 12%.
MEASURED = [
    (Problem(1024, 1024, 1024), 214),
    (Problem(2048, 2048, 2048), 605),
    (Problem(4096, 4096, 4096), 750),
    (Problem(8192, 8192, 8192), 730),
    (Problem(16384, 8192, 1280), 690),
    (Problem(8192, 28672, 4096), 690),
    (Problem(16, 8192, 8192), 48),
    (Problem(128, 8192, 8192), 372),
    (Problem(4096, 4096, 128), 240),
    (Problem(2048, 2048, 2048, batch=64), 668),
    (Problem(4096, 4096, 4096, operand_bytes=1), 1227),
    (Problem(8192, 8192, 8192, operand_bytes=1), 1259),
]


def tflops(problem: Problem, seconds: float) -> float:
    return problem.operations / seconds * 1e-12


@pytest.mark.parametrize(("problem", "measured"), MEASURED, ids=str)
def test_the_best_plan_is_about_as_fast_as_the_best_known_kernel(
    problem: Problem, measured: float
) -> None:
    best = rank(problem, candidates(problem, SM_90A), SM_90A)[0]
    assert 0.85 < tflops(problem, best.seconds) / measured < 1.25


@pytest.mark.parametrize(
    ("problem", "candidate", "measured"),
    [
        (Problem(2048, 2048, 2048), HAND_BUILT, 604),
        (Problem(4096, 4096, 4096), HAND_BUILT, 784),
        (Problem(4096, 4096, 4096), replace(HAND_BUILT, cluster=2), 779),
        (Problem(8192, 8192, 8192), HAND_BUILT, 780),
        (Problem(16384, 8192, 1280), HAND_BUILT, 766),
        (Problem(4096, 4096, 128), replace(HAND_BUILT, stages=2), 255),
        (Problem(4096, 4096, 4096), Candidate(128, 128, 32, 4, 1, scope=Scope.WARP), 403),
        (Problem(2048, 2048, 2048), Candidate(128, 128, 32, 4, 1, scope=Scope.WARP), 335),
        (Problem(8192, 8192, 8192), Candidate(128, 128, 32, 4, 1, scope=Scope.WARP), 362),
    ],
    ids=str,
)
def test_measured_plans_are_predicted(
    problem: Problem, candidate: Candidate, measured: float
) -> None:
    predicted = tflops(problem, predict(problem, candidate, SM_90A).seconds)
    assert 0.75 < predicted / measured < 1.25


def test_plans_that_are_known_to_be_slower_rank_lower() -> None:
    worse = [
        replace(HAND_BUILT, tile_n=128, stages=6),  # more is read for each product
        replace(HAND_BUILT, stages=2),  # latency
        replace(HAND_BUILT, tile_m=64, consumers=1),
        replace(HAND_BUILT, scope=Scope.WARP, tile_n=128, tile_k=32),
    ]
    ranked = rank(Problem(4096, 4096, 4096), [*worse, HAND_BUILT], SM_90A)
    assert ranked[0].candidate == HAND_BUILT
    assert ranked[0].bound == "tensor cores"
    bounds = {r.candidate: r.bound for r in ranked}
    assert bounds[worse[0]] in ("the L2 cache", "shared memory")
    assert bounds[worse[1]] == "latency"


def test_a_wave_that_is_just_passed_costs_a_whole_turn() -> None:
    one = predict(Problem(128 * 132, 256, 8192), HAND_BUILT, SM_90A)
    two = predict(Problem(128 * 133, 256, 8192), HAND_BUILT, SM_90A)
    assert two.seconds > 1.8 * one.seconds
    assert "133 tiles in 2 turns, 50% filled" in two.reason


def test_ping_pong_hides_the_ends_of_tiles() -> None:
    problem = Problem(8192, 8192, 512)
    shared = Candidate(128, 192, 64, 4, 2, persistent=True, group=8)
    own = predict(problem, replace(shared, pingpong=True), SM_90A).seconds
    assert own < predict(problem, shared, SM_90A).seconds
    found = [c for c in candidates(problem, SM_90A, pingpong=True) if c.pingpong]
    assert {c.tile_m for c in found} == {64, 128}
    assert all(c.persistent and c.tile_m * c.tile_n // 128 <= 136 for c in found)
    assert not any(c.pingpong for c in candidates(problem, SM_90A))
    few = candidates(Problem(128, 512, 4096), SM_90A, pingpong=True)
    assert not any(c.pingpong for c in few)


def test_few_tokens_swap_the_roles_and_are_bound_by_memory() -> None:
    best = rank(
        Problem(16, 8192, 8192), candidates(Problem(16, 8192, 8192), SM_90A), SM_90A
    )[0]  # fmt: skip
    assert best.candidate.swapped
    assert best.candidate.tile_n <= 16
    assert best.bound == "memory"


def test_few_tiles_with_many_terms_are_split() -> None:
    problem = Problem(256, 256, 65536)
    best = rank(problem, candidates(problem, SM_90A), SM_90A)[0]
    assert best.candidate.split_k > 1 or best.candidate.stream is not None
    alone = (c for c in candidates(problem, SM_90A) if c.split_k == 1)
    whole = [c for c in alone if c.stream is None]
    assert rank(problem, whole, SM_90A)[0].seconds > 2 * best.seconds
    many = Problem(8192, 8192, 65536)
    assert all(c.split_k == 1 for c in candidates(many, SM_90A))


# Microseconds on one H200 with a cold L2 cache: tile, blocks that share its terms, stages.
SPLIT = {
    Problem(512, 512, 16384): [
        (29.9, 128, 96, 4, 6), (31.8, 128, 128, 4, 5), (40.2, 128, 128, 8, 5),
        (48.5, 128, 128, 2, 5),
    ],
    Problem(256, 256, 16384): [(14.5, 64, 128, 8, 8), (16.8, 64, 64, 4, 8), (20.3, 64, 64, 8, 8)],
    Problem(1024, 1024, 8192): [(36.9, 128, 128, 2, 5), (39.9, 128, 64, 1, 8),
                                (59.6, 128, 128, 1, 6)],
    Problem(64, 4096, 8192): [(28.0, 64, 64, 2, 8), (32.6, 64, 64, 1, 8)],
}  # fmt: skip


@pytest.mark.parametrize("problem", SPLIT, ids=str)
def test_split_plans_rank_as_measured(problem: Problem) -> None:
    predicted = [
        predict(problem, Candidate(m, n, 64, stages, m // 64, split_k=parts), SM_90A).seconds
        for _, m, n, parts, stages in SPLIT[problem]
    ]
    assert predicted == sorted(predicted)
    for (measured, *_), seconds in zip(SPLIT[problem], predicted, strict=True):
        assert 0.7 < seconds * 1e6 / measured < 1.3


# The same where blocks share steps through global memory: tile, then tiles and blocks of a group.
STREAM = {
    Problem(1280, 1280, 8192): [
        (51.7, 128, 256, (5, 13)), (54.7, 128, 192, (7, 13)), (57.7, 128, 128, (10, 13)),
        (80.3, 64, 128, (20, 13)),
    ],
    Problem(512, 512, 16384): [
        (29.6, 128, 128, (1, 8)), (30.8, 64, 128, (1, 4)), (37.1, 128, 192, (1, 11)),
        (44.3, 128, 256, (1, 16)),
    ],
    Problem(1024, 1024, 8192): [(34.3, 128, 128, (1, 2)), (35.0, 128, 256, (1, 4)),
                                (45.4, 128, 192, (4, 11))],
    Problem(3072, 3072, 3072): [(90.8, 128, 256, (24, 11))],
    Problem(2304, 2304, 4096): [(71.9, 128, 256, (5, 4)), (75.6, 128, 192, (18, 11)),
                                (82.8, 128, 128, (27, 11))],
}  # fmt: skip


@pytest.mark.parametrize("problem", STREAM, ids=str)
def test_shared_steps_rank_as_measured(problem: Problem) -> None:
    predicted = [
        predict(problem, Candidate(m, n, 64, 4, m // 64, stream=shares), SM_90A).seconds
        for _, m, n, shares in STREAM[problem]
    ]
    assert predicted == sorted(predicted)
    for (measured, *_), seconds in zip(STREAM[problem], predicted, strict=True):
        assert 0.9 < seconds * 1e6 / measured < 1.1


@pytest.mark.parametrize(("tiles", "steps", "blocks"), [
    (50, 128, 132), (16, 256, 132), (4, 64, 132), (133, 8, 132), (500, 48, 132), (1, 1000, 132),
    (3, 7, 8), (1, 1, 1),
])  # fmt: skip
def test_shares_are_the_best_of_all(tiles: int, steps: int, blocks: int) -> None:
    """All groups of up to 16 blocks, tried one by one."""
    found = shares(tiles, steps, blocks)
    each = {
        (count, sharers): -(-count * steps // sharers)
        for sharers in range(1, min(16, blocks) + 1) for count in range(1, tiles + 1)
        if -(-tiles // count) * sharers <= blocks
    }  # fmt: skip
    assert found is not None
    assert each[found] == min(each.values())


def test_many_tiles_are_not_shared() -> None:
    assert shares(529, 64, 132) is None
    large = candidates(Problem(8192, 8192, 8192), SM_90A)
    assert not any(c.stream for c in large)


def test_clusters_that_find_no_room_together_take_turns() -> None:
    """A card of 132 multiprocessors has room for 15 clusters of 8 blocks, not for 16."""
    few, many = Problem(128 * 15, 64, 8192), Problem(128 * 16, 64, 8192)
    plan = Candidate(128, 64, 64, 6, 2, split_k=8)
    assert "1 turn," in predict(few, plan, SM_90A).reason
    assert "2 turns" in predict(many, plan, SM_90A).reason
    machine = SM_90A.machine
    assert machine is not None
    assert [machine.seats(n, 132) for n in (1, 2, 3, 4, 6, 8)] == [132, 132, 120, 120, 102, 120]


# What tuning measured on one H200, in microseconds: rows, columns, terms and splits of a tile.
TUNED = {
    Problem(4096, 4096, 4096): {
        (128, 256, 64, 1): 176.8, (256, 128, 64, 1): 177.6, (192, 128, 64, 1): 202.9,
        (128, 192, 64, 1): 206.6, (192, 192, 64, 1): 212.9, (256, 96, 64, 1): 215.4,
        (128, 128, 64, 1): 223.9, (128, 160, 64, 1): 234.6, (128, 128, 32, 1): 261.4,
        (64, 64, 32, 1): 484.1,
    },
    Problem(2048, 2048, 2048): {
        (128, 256, 64, 1): 27.6, (64, 256, 64, 1): 29.0, (128, 128, 64, 1): 29.8,
        (256, 128, 64, 1): 30.7, (256, 64, 64, 1): 34.0, (128, 160, 64, 1): 35.4,
        (128, 128, 32, 1): 35.4, (128, 192, 64, 1): 36.6, (128, 96, 64, 1): 39.9,
        (64, 64, 32, 1): 64.9,
    },
    Problem(128, 8192, 8192): {
        (128, 128, 64, 2): 47.0, (128, 64, 64, 1): 47.7, (128, 160, 64, 2): 48.8,
        (64, 128, 64, 1): 51.8, (128, 96, 64, 1): 56.9, (64, 192, 64, 1): 64.5,
        (64, 64, 32, 1): 98.9,
    },
    Problem(1024, 1024, 1024): {
        (64, 128, 64, 1): 8.5, (128, 64, 64, 1): 9.2, (64, 128, 32, 1): 10.0,
        (128, 128, 64, 2): 10.1, (256, 64, 64, 2): 10.5, (128, 96, 64, 1): 11.7,
        (128, 192, 64, 2): 12.0, (64, 64, 32, 1): 12.5,
    },
    Problem(256, 256, 16384): {
        (64, 128, 64, 8): 15.1, (128, 64, 64, 8): 15.7, (64, 96, 64, 6): 16.2,
        (64, 64, 64, 4): 17.5, (128, 128, 64, 8): 20.2, (64, 64, 32, 1): 64.7,
    },
}  # fmt: skip


def as_measured(problem: Problem, tile: tuple[int, int, int, int]) -> Candidate:
    """The plan that the policy makes of a tile: as many stages as fit, persistent for many."""
    m, n, k, split = tile
    made = Candidate(m, n, k, 0, {64: 1, 128: 2, 192: 3, 256: 2}[m], split_k=split)
    room = 232_448 - made.shared_bytes(problem)
    tiles = -(-problem.m // m) * -(-problem.n // n) * split
    return replace(
        made, stages=min(8, room // made.stage_bytes(problem)), persistent=tiles > 132
    )  # fmt: skip


@pytest.mark.parametrize("problem", TUNED, ids=str)
def test_the_first_choice_is_what_tuning_finds(problem: Problem) -> None:
    times = {as_measured(problem, tile): time for tile, time in TUNED[problem].items()}
    ranked = rank(problem, times, SM_90A)
    assert times[ranked[0].candidate] < 1.03 * min(times.values())
    for one in ranked:
        assert 0.7 < one.seconds * 1e6 / times[one.candidate] < 1.3


sizes = st.integers(1, 5000)


@settings(max_examples=30)
@given(m=sizes, n=sizes, k=sizes, batch=st.integers(1, 5), width=st.sampled_from([1, 2, 4]))
def test_every_candidate_fits_the_machine(m: int, n: int, k: int, batch: int, width: int) -> None:
    problem = Problem(m, n, k, batch, width)
    found = candidates(problem, SM_90A)
    assert found
    assert len(set(found)) == len(found)
    for c in found:
        rows, columns = (n, m) if c.swapped else (m, n)
        slots = c.stages * (c.tile_m + c.tile_n) * 128
        out = min(c.tile_m * c.tile_n * 2, c.tile_m * 256)
        out += c.tile_m * (c.tile_n // c.owners) * (c.split_k - 1) * 4  # sums of the others
        assert c.tile_k * width == 128
        assert slots + out <= 232_448
        assert 2 <= c.stages <= 8
        registers = c.tile_m // (64 * c.consumers) * c.tile_n // 2
        assert registers <= 200
        # With 32 of its own for all else, a thread stays within its share of the registers.
        assert registers + 32 <= 65_536 // (128 * (c.consumers + 1))
        assert 1 <= c.split_k <= 8  # blocks of a cluster
        assert c.tile_n % (8 * c.owners) == 0
        assert c.split_k % c.owners == 0
        assert c.split_k == 1 or c.split_k <= -(-k // c.tile_k)
        assert (
            c.tile_m - rows < 64 or c.tile_m == 64
        )  # no rows of instructions that are all padding
        assert c.tile_n - columns < 8 or c.tile_n == 8
        assert not c.persistent or -(-rows // c.tile_m) * -(-columns // c.tile_n) * batch > 132


@settings(max_examples=40)
@given(m=sizes, n=sizes, k=sizes, more=st.integers(1, 4))
def test_more_work_is_never_faster(m: int, n: int, k: int, more: int) -> None:
    base = predict(Problem(m, n, k), HAND_BUILT, SM_90A).seconds
    for grown in (Problem(m, n, k * more), Problem(m, n, k, batch=more)):
        assert predict(grown, HAND_BUILT, SM_90A).seconds >= base * 0.999


def read_by(tile_m: int, tile_n: int, group: int, rows: int, columns: int, blocks: int) -> int:
    """Rows and columns that the first `blocks` tiles read, by walking the grid."""
    grid = GridPlan.plain({"M": Expr.of(rows), "N": Expr.of(columns)}).swizzled("M", "N", group)
    seen = [visit.tile for visit in islice(visits(grid), blocks)]
    return tile_m * len({t["M"] for t in seen}) + tile_n * len({t["N"] for t in seen})


@pytest.mark.parametrize(("tile_m", "tile_n"), [(128, 256), (256, 128), (128, 128), (64, 256)])
def test_the_raster_group_reads_the_least(tile_m: int, tile_n: int) -> None:
    chosen = raster_group(tile_m, tile_n, 48, 132)
    read = {g: read_by(tile_m, tile_n, g, 48, 200, 132) for g in GROUPS}
    assert read[chosen] == min(read.values())


def test_memory_traffic_is_what_a_walk_over_the_tiles_counts() -> None:
    problem = Problem(128 * 64, 256 * 66, 8192)
    walked = 0
    grid = GridPlan.plain({"M": Expr.of(64), "N": Expr.of(66)}).swizzled("M", "N", 16)
    walk = visits(grid)
    while wave := [visit.tile for visit in islice(walk, 132)]:
        walked += 128 * len({t["M"] for t in wave}) + 256 * len({t["N"] for t in wave})
    wanted = walked * problem.k * 2 + problem.m * problem.n * 2
    reason = predict(problem, HAND_BUILT, SM_90A).reason
    found = float(reason.rpartition(" MB of memory")[0].rpartition(" ")[2]) * 1e6
    assert found == pytest.approx(wanted, rel=0.1)


def test_a_target_without_figures_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="nothing is known of how fast gfx942 multiplies"):
        candidates(Problem(64, 64, 64), GFX942)
    with pytest.raises(UnsupportedError, match="elements of 8 bytes"):
        rank(Problem(64, 64, 64, operand_bytes=8), [HAND_BUILT], SM_90A)
    bare = replace(SM_90A, mma_atoms=tuple(a for a in SM_90A.mma_atoms if a.scope is Scope.WARP))
    with pytest.raises(UnsupportedError, match="no warpgroup instruction"):
        candidates(Problem(64, 64, 64), bare)
