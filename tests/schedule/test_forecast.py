"""Plans in the terms of the model, and where it does not speak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.schedule.forecast import forecast, problem_of
from tilewright.schedule.model import Problem, Ranked
from tilewright.target import target_named
from tilewright.target.model import Scope

M, N, K, B = tw.sym.M, tw.sym.N, tw.sym.K, tw.sym.B


def product(constraints: list[Any], batched: bool = False) -> tw.TileKernel:
    def gemm(a: Any, b: Any, c: Any) -> None:
        over = (B, M, N) if batched else (M, N)
        zero = tw.Register[(*over, tw.f32)](0.0)

        @tw.iterate(K, init_args=[zero])
        def total(acc: Any) -> Any:
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    batch = (B,) if batched else ()
    gemm.__annotations__ = {
        "a": tw.Memory[(*batch, M, K, tw.GLOBAL, tw.bf16)],
        "b": tw.Memory[(*batch, N, K, tw.GLOBAL, tw.bf16)],
        "c": tw.Memory[(*batch, M, N, tw.GLOBAL, tw.bf16)],
    }
    return tw.kernel(constraints)(gemm)


TILES = [
    tw.WorkgroupConstraint(M, 64, 0),
    tw.WorkgroupConstraint(N, 32, 1),
    tw.TilingConstraint(K, 32),
]
PLAIN = tw.HardwareConstraint(specialize=False, stages=3)
SIZES = {M: 4096, N: 2048, K: 512}


def predicted(
    kernel: tw.TileKernel, sizes: dict[Any, int], target: str = "sm_90a",
    schedule: Callable[[tw.Schedule], tw.Schedule] | None = None,
) -> Ranked | None:  # fmt: skip
    done = kernel.compile(target, sizes, schedule=schedule).compilation
    return forecast(done.graph, done.plan, target_named(target))


def test_a_plan_is_told_in_the_models_terms() -> None:
    found = predicted(product([*TILES, PLAIN]), SIZES)
    assert found is not None
    one = found.candidate
    assert (one.tile_m, one.tile_n, one.tile_k, one.stages) == (64, 32, 32, 3)
    assert one.scope is Scope.WARP
    assert not one.persistent
    assert one.group == 8  # the policy's own


def test_warp_roles_are_told() -> None:
    tiles = [tw.WorkgroupConstraint(M, 128, 0), tw.WorkgroupConstraint(N, 256, 1)]
    found = predicted(product([*tiles, tw.TilingConstraint(K, 64)]), SIZES)
    assert found is not None
    one = found.candidate
    assert (one.tile_m, one.tile_n, one.tile_k) == (128, 256, 64)
    assert one.scope is Scope.WARPGROUP
    assert one.consumers == 2


def test_shared_steps_are_told() -> None:
    tiles = [tw.WorkgroupConstraint(M, 128, 0), tw.WorkgroupConstraint(N, 256, 1)]
    tiles = [*tiles, tw.TilingConstraint(K, 64), tw.HardwareConstraint(stream_k=(5, 13))]
    found = predicted(product(tiles), {M: 1280, N: 1280, K: 8192})
    assert found is not None
    assert (found.candidate.stream, found.candidate.persistent) == ((5, 13), False)
    assert "5 tiles by 13 blocks" in found.reason


def test_options_of_warp_roles_are_told() -> None:
    tiles = [tw.WorkgroupConstraint(M, 128, 0), tw.WorkgroupConstraint(N, 128, 1)]
    tiles = [*tiles, tw.TilingConstraint(K, 64)]
    shared = predicted(product([*tiles, tw.HardwareConstraint(cluster=2)]), SIZES)
    alone = predicted(product([*tiles, tw.HardwareConstraint(pingpong=True)]), SIZES)
    few = {M: 256, N: 256, K: 8192}
    split = predicted(product([*tiles, tw.HardwareConstraint(split_k=4)]), few)
    assert shared is not None
    assert alone is not None
    assert split is not None
    assert (shared.candidate.cluster, shared.candidate.split_k) == (2, 1)
    assert (alone.candidate.consumers, alone.candidate.pingpong) == (2, True)
    assert (split.candidate.cluster, split.candidate.split_k) == (1, 4)
    assert split.candidate.tile_n == 128


def test_a_schedule_is_told() -> None:
    def schedule(s: tw.Schedule) -> tw.Schedule:
        s = s.split("M", 64, "mo", "mi").split("N", 32, "no", "ni").split("K", 32, "ko", "ki")
        return s.swizzle("mo", "no", 4).persistent(132)

    found = predicted(product([PLAIN]), SIZES, schedule=schedule)
    assert found is not None
    assert found.candidate.persistent
    assert found.candidate.group == 4


def test_a_batch_multiplies_the_work() -> None:
    kernel = product([*TILES, tw.WorkgroupConstraint(B, 1, 2), PLAIN], batched=True)
    done = kernel.compile("sm_90a", {**SIZES, B: 6}).compilation
    (op,) = (op for op in done.graph.by_id.values() if type(op).__name__ == "Contract")
    assert problem_of(done.graph, op, "M", "N") == Problem(4096, 2048, 512, 6, 2, 2)


def test_nothing_is_said_where_the_model_does_not_apply() -> None:
    kernel = product([*TILES, PLAIN])
    assert predicted(kernel, {N: 2048, K: 512}) is None  # M is open
    assert predicted(product(TILES), SIZES, "gfx942") is None  # no figures

    @tw.kernel([tw.WorkgroupConstraint(M, 64, 0)])
    def double(x: tw.Memory[M, tw.GLOBAL, tw.f32], y: tw.Memory[M, tw.GLOBAL, tw.f32]):
        tw.write(tw.read(x) * 2.0, y)

    assert predicted(double, {M: 4096}) is None


@pytest.mark.parametrize("size", [1024, 4096])
def test_larger_tiles_are_predicted_faster_where_there_are_many(size: int) -> None:
    sizes = {M: size, N: size, K: size}
    large = predicted(product([
        tw.WorkgroupConstraint(M, 128, 0), tw.WorkgroupConstraint(N, 128, 1),
        tw.TilingConstraint(K, 32), tw.HardwareConstraint(specialize=False, stages=4),
    ]), sizes)  # fmt: skip
    small = predicted(product([
        tw.WorkgroupConstraint(M, 32, 0), tw.WorkgroupConstraint(N, 32, 1),
        tw.TilingConstraint(K, 32), tw.HardwareConstraint(specialize=False, stages=4),
    ]), sizes)  # fmt: skip
    assert large is not None
    assert small is not None
    assert large.seconds < small.seconds
