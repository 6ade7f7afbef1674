"""Tuning on a bench with a clock of its own, and the simulator behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from host_bench import HostBench

import tilewright as tw
from tilewright.base.diagnostics import AccuracyError, CallError, ConstraintError, TuningError
from tilewright.driver.call import read_call
from tilewright.driver.compiled import CompiledKernel
from tilewright.driver.tuning.options import Options
from tilewright.driver.tuning.report import TunedKernel, Verdict
from tilewright.driver.tuning.tile import tune

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BLOCK_M, BLOCK_N, BLOCK_K = tw.sym.BLOCK_M, tw.sym.BLOCK_N, tw.sym.BLOCK_K

CONSTRAINTS = [
    tw.WorkgroupConstraint(M, BLOCK_M, 0),
    tw.WorkgroupConstraint(N, BLOCK_N, 1),
    tw.TilingConstraint(K, BLOCK_K),
]


@tw.kernel(CONSTRAINTS, bindings={BLOCK_K: 16})
def gemm(
    a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.f16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(total, c)


@tw.kernel([tw.WorkgroupConstraint(M, BLOCK_M, 0)])
def add_to(x: tw.Memory[M, tw.GLOBAL, tw.f32], y: tw.Memory[M, tw.GLOBAL, tw.f32]):
    tw.write(tw.read(x) + tw.read(y), y)


def arrays(m: int = 64, n: int = 32, k: int = 48) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((n, k)).astype(np.float16)
    return a, b, np.full((m, n), 7.0, np.float32)


def measured(
    kernel: tw.TileKernel, arguments: tuple[Any, ...], configs: list[tw.Config],
    bench: HostBench, **options: Any,
) -> TunedKernel:  # fmt: skip
    call = read_call(kernel.program, arguments)
    return tune(kernel, configs, call, Options(bench=lambda device: bench, **options))


TILES = [tw.Config({BLOCK_M: m, BLOCK_N: n}) for m in (64, 32) for n in (32, 16)]


def spoiling(monkeypatch: pytest.MonkeyPatch, harm: Callable[[tw.Config, Mapping[str, Any]], None],
             configs: list[tw.Config]) -> None:  # fmt: skip
    """Let the compiled kernels of some configs do harm to what they have written."""
    from tilewright.driver import launch

    run = launch.Launcher.run

    def spoiled(self: Any, call: Any) -> object:
        result = run(self, call)
        sizes = self._compilation.specialisation.sizes
        for config in configs:
            if all(sizes[name] == value for name, value in config.symbols.items()):
                harm(config, {n: v.array() for n, v in call.tensors.items()})
        return result

    monkeypatch.setattr(launch.Launcher, "run", spoiled)


def test_the_fastest_right_config_wins_and_the_tensors_are_left_alone() -> None:
    a, b, c = arrays()
    times = [4e-5, 2e-5, 3e-5, 5e-5]
    bench = HostBench(lambda turn: times[turn] if turn < 4 else 2.1e-5)
    tuned = measured(gemm, (a, b, c), TILES, bench)
    assert (c == 7.0).all()
    by_config = {str(row.config): row for row in tuned.rows}
    assert len(by_config) == 4
    assert tuned.rows[0].verdict is Verdict.CHOSEN
    assert tuned.rows[0].config is tuned.best
    assert tuned.rows[0].measured == 2e-5
    assert [r.measured for r in tuned.rows] == [2e-5, 3e-5, 4e-5, 5e-5]
    assert all(row.error == 0.0 or (row.error or 1) < 1e-6 for row in tuned.rows)
    assert all((row.predicted or 0) > 0 for row in tuned.rows)
    tuned.kernel(a, b, c)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-3)


def test_the_report_is_a_table() -> None:
    tuned = measured(gemm, arrays(), [*TILES[:1], tw.Config({BLOCK_M: 512, BLOCK_N: 512})],
                     HostBench())  # fmt: skip
    title, header, first, last = str(tuned).splitlines()
    assert title == "gemm on a bench, M=64, K=48, N=32: 1 of 2 measured"
    assert header.split() == ["config", "model,", "µs", "measured,", "µs", "error", "verdict"]
    assert first.startswith("BLOCK_M=64, BLOCK_N=32 ")
    assert first.endswith("0.0e+00  chosen")
    assert "failed: TW104 64 warps of 32 lanes in a block" in last


def test_the_best_of_the_model_are_measured_and_the_first_that_works() -> None:
    tuned = measured(gemm, arrays(128, 96, 32), TILES, HostBench(), top=1)
    was = [row for row in tuned.rows if row.measured is not None]
    ranked = sorted(tuned.rows, key=lambda row: row.predicted or 0)
    assert {str(r.config) for r in was} == {str(TILES[0]), str(ranked[0].config)}
    assert {r.verdict for r in tuned.rows if r.measured is None} == {Verdict.LEFT_OUT}


def test_close_ones_are_timed_again_and_the_better_time_counts() -> None:
    times = [1.00e-5, 1.05e-5, 3e-5, 3e-5, 0.90e-5, 1.2e-5]
    bench = HostBench(lambda turn: times[turn])
    tuned = measured(gemm, arrays(), TILES, bench)
    assert bench.timed == 6
    assert [row.measured for row in tuned.rows[:2]] == [0.90e-5, 1.00e-5]


def test_without_a_device_the_model_chooses_and_nothing_is_timed() -> None:
    tuned = gemm.tune(*arrays(), configs=TILES)
    assert all(row.measured is None for row in tuned.rows)
    predicted = [row.predicted or 0.0 for row in tuned.rows]
    assert predicted == sorted(predicted)
    assert tuned.best is tuned.rows[0].config
    assert str(tuned).startswith("gemm on no device, M=64, K=48, N=32: 0 of 4 measured")


def test_without_a_model_the_given_order_counts() -> None:
    x, y = np.ones(100, np.float32), np.ones(100, np.float32)
    configs = [tw.Config({BLOCK_M: size}) for size in (256, 128, 512)]
    tuned = add_to.tune(x, y, configs=configs)
    assert tuned.best is configs[0]
    assert [row.predicted for row in tuned.rows] == [None] * 3


def test_tensors_that_are_read_and_written_start_alike_in_each_run() -> None:
    x, y = np.arange(100, dtype=np.float32), np.full(100, 3.0, np.float32)
    configs = [tw.Config({BLOCK_M: size}) for size in (128, 256)]
    bench = HostBench()
    tuned = measured(add_to, (x, y), configs, bench)
    assert [row.error for row in tuned.rows] == [0.0, 0.0]
    assert (y == 3.0).all()
    assert not any(entry.startswith("fill") for entry in bench.log)


def test_an_element_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = arrays()

    def leave_out(config: tw.Config, memory: Mapping[str, Any]) -> None:
        byte = 0xFF if not harmed else 0x5A
        harmed.append(config)
        memory["c"][5, 9:11] = np.full(4, byte, np.uint8).view(np.float32)

    harmed: list[tw.Config] = []
    spoiling(monkeypatch, leave_out, TILES[1:2])
    tuned = measured(gemm, (a, b, c), TILES, HostBench())
    (wrong,) = tuned.wrong
    assert wrong.config is TILES[1]
    assert wrong.measured is None
    assert isinstance(wrong.failure, AccuracyError)
    said = str(wrong.failure)
    assert "the config BLOCK_M=64, BLOCK_N=16 never writes c[5, 9]" in said
    assert len(harmed) == 2  # both patterns were tried
    assert tuned.best is not TILES[1]


def test_a_result_that_looks_like_the_pattern_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_ones(config: tw.Config, memory: Mapping[str, Any]) -> None:
        memory["c"][0, 0] = np.full(4, 0xFF, np.uint8).view(np.float32)[0]

    spoiling(monkeypatch, all_ones, TILES)
    tuned = measured(gemm, arrays(), TILES, HostBench())
    assert not tuned.wrong


def test_a_wrong_element_is_named_with_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = arrays()

    def double(config: tw.Config, memory: Mapping[str, Any]) -> None:
        memory["c"][3, 4] = 1000.0

    spoiling(monkeypatch, double, TILES[2:3])
    tuned = measured(gemm, (a, b, c), TILES, HostBench())
    (wrong,) = tuned.wrong
    assert str(wrong.failure).startswith(
        "error[TW504]: the config BLOCK_M=32, BLOCK_N=32 computes c[3, 4] = 1000, "
        "the config BLOCK_M=64, BLOCK_N=32 "
    )
    assert "expected: errors of at most" in str(wrong.failure)


def test_a_reference_decides_over_the_first_config(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = arrays()

    def negate(config: tw.Config, memory: Mapping[str, Any]) -> None:
        memory["c"][...] *= -1

    spoiling(monkeypatch, negate, TILES[:1])
    seen: list[Any] = []

    def product(a: Any, b: Any, c: Any) -> Any:
        seen.append(c.copy())
        return a.astype(np.float32) @ b.astype(np.float32).T

    tuned = measured(gemm, (a, b, c), TILES, HostBench(), reference=product)
    assert (seen[0] == 7.0).all()
    (wrong,) = tuned.wrong
    assert wrong.config is TILES[0]
    assert ", the reference " in str(wrong.failure)
    named = measured(
        gemm, (a, b, c), TILES, HostBench(), reference=lambda a, b, c: {"c": product(a, b, c)}
    )
    assert named.wrong[0].config is TILES[0]


def test_a_reference_of_another_shape_is_refused() -> None:
    with pytest.raises(CallError, match=r"the reference gives c \[2, 2\]"):
        measured(gemm, arrays(), TILES, HostBench(), reference=lambda *_: np.zeros((2, 2)))
    with pytest.raises(CallError, match="the reference gives nothing"):
        measured(gemm, arrays(), TILES, HostBench(), reference=lambda *_: ())


def test_where_all_are_wrong_each_reason_is_given() -> None:
    with pytest.raises(TuningError) as caught:
        measured(gemm, arrays(), TILES, HostBench(), reference=lambda a, b, c: c)
    said = str(caught.value)
    assert said.startswith("error[TW503]: none of the 4 configs of gemm works")
    for config in TILES:
        assert f"note: {config}: TW504 the config {config} computes c[" in said


def test_where_none_compiles_each_reason_is_given() -> None:
    configs = [tw.Config({BLOCK_M: m, BLOCK_N: 512}) for m in (512, 1024)]
    for run in (lambda: gemm.tune(*arrays(), configs=configs),
                lambda: measured(gemm, arrays(), configs, HostBench())):  # fmt: skip
        with pytest.raises(TuningError) as caught:
            run()
        said = str(caught.value)
        assert "BLOCK_M=512, BLOCK_N=512: TW104 64 warps of 32 lanes in a block" in said
        assert "BLOCK_M=1024, BLOCK_N=512: TW104 128 warps of 32 lanes in a block" in said


def swizzled(s: tw.Schedule) -> tw.Schedule:
    s = s.split("M", 32, "mo", "mi").split("N", 16, "no", "ni").split("K", 16, "ko", "ki")
    return s.swizzle("mo", "no", 2).persistent(3)


def test_a_config_may_have_a_schedule_and_options() -> None:
    @tw.kernel()
    def product(
        a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.f16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total, c)

    a, b, c = arrays()
    configs = [tw.Config(stages=2), tw.Config(schedule=swizzled)]
    tuned = measured(product, (a, b, c), configs, HostBench(lambda turn: [2e-5, 1e-5, 1e-5][turn]))
    assert tuned.best is configs[1]
    assert str(tuned.best) == "schedule swizzled"
    compiled: CompiledKernel = tuned.kernel.compile("sm_90a", {M: 64, N: 32, K: 48})
    assert compiled.compilation.plan.grid.order[0] == "turn"
    staged = product.tune(a, b, c, configs=configs[:1]).kernel
    assert staged.compile("sm_90a", {M: 64, N: 32, K: 48}).compilation.plan.stages == 2


def test_a_config_is_checked() -> None:
    with pytest.raises(CallError, match="a config has no option stage"):
        tw.Config(stage=3)
    with pytest.raises(ConstraintError, match="stages is 0"):
        tw.Config(stages=0)
    with pytest.raises(CallError, match=r"BLOCK_M is bound to 1\.5"):
        tw.Config({BLOCK_M: 1.5})  # type: ignore[dict-item]
    with pytest.raises(CallError, match="a config binds BLOCK, which gemm does not use") as caught:
        gemm.tune(*arrays(), configs=[tw.Config({tw.sym.BLOCK: 4})])
    assert "BLOCK_K, BLOCK_M, BLOCK_N" in str(caught.value)
    assert "tw.Config({tw.sym.BLOCK: 4})" in str(caught.value)
    with pytest.raises(CallError, match="a config binds M, an axis of gemm"):
        gemm.tune(*arrays(), configs=[tw.Config({M: 4})])
    with pytest.raises(CallError, match="gemm is tuned without configs"):
        gemm.tune(*arrays(), configs=[])
    with pytest.raises(CallError, match="top is 0"):
        gemm.tune(*arrays(), configs=TILES, top=0)
