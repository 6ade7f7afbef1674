"""Tuning of fusions: schedules by hand against the compiler's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_bench import HostBench

import tilewright as tw
from tilewright.base.diagnostics import CallError, TuningError
from tilewright.driver.tuning.report import Verdict


class Linear(tw.FusionDefinition):
    """relu(x @ w.T) of float16."""

    def definition(self) -> None:
        x = self.define_tensor([-1, -1], dtype=tw.f16)
        w = self.define_tensor([-1, -1], dtype=tw.f16)
        self.y = self.ops.relu(self.ops.linear(x, w))
        self.add_output(self.y)

    def tiles(self, rows: int, columns: int) -> tw.Config:
        def schedule(s: Any) -> None:
            s.split(s.axis(self.y, 0), rows, "mo", "mi")
            s.split(s.axis(self.y, 1), columns, "no", "ni")
            s.split(s.terms(), 32, "ko", "ki")

        schedule.__name__ = f"{rows}x{columns}"
        return tw.Config(schedule=schedule)


def inputs() -> list[Any]:
    random = np.random.default_rng(3)
    return [random.standard_normal(s).astype(np.float16) for s in ((96, 64), (48, 64))]


def wanted(x: Any, w: Any) -> Any:
    return np.maximum(x.astype(np.float32) @ w.astype(np.float32).T, 0)


def on_bench(monkeypatch: pytest.MonkeyPatch, bench: HostBench) -> None:
    monkeypatch.setattr("tilewright.runtime.bench.bench_for", lambda device: bench)


def test_the_fastest_schedule_serves_later_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = Linear()
    bench = HostBench(lambda turn: [3e-5, 1e-5, 2e-5, 1e-5][turn])
    on_bench(monkeypatch, bench)
    configs = [tw.Config(), fd.tiles(32, 16), fd.tiles(64, 48)]
    given = inputs()
    tuned = fd.tune(given, configs, reference=lambda x, w: wanted(x, w).astype(np.float16))
    assert tuned.best is configs[1]
    assert tuned.number == 1
    assert {row.verdict for row in tuned.rows} == {Verdict.CHOSEN, Verdict.RIGHT}
    title = str(tuned).splitlines()[0]
    assert title == "fusion on a bench, T0.0=96, T0.1=64, T1.0=48, T1.1=64: 3 of 3 measured"
    assert "schedule 32x16" in str(tuned)
    axes = fd.compile(given).kernels[0].plan.axes.values()
    assert sorted(a.block_tile for a in axes if a.block_tile) == [16, 32]
    (result,) = fd.execute(given)
    assert np.abs(result - wanted(*given)).max() < 1e-2 * np.abs(result).max()
    assert bench.timed == 4


def test_without_a_device_the_model_chooses() -> None:
    fd = Linear()
    configs = [fd.tiles(32, 16), fd.tiles(64, 48)]
    tuned = fd.tune(inputs(), configs)
    assert tuned.where == "no device"
    assert all((row.predicted or 0) > 0 for row in tuned.rows)


def test_a_wrong_result_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = Linear()
    on_bench(monkeypatch, HostBench())
    with pytest.raises(TuningError, match=r"TW504 the config as the program says computes output"):
        fd.tune(inputs(), [tw.Config()], reference=lambda x, w: -wanted(x, w) - 1)


def test_configs_of_fusions_are_schedules() -> None:
    fd = Linear()
    with pytest.raises(CallError, match="the config stages=3 of a fusion has more than a schedule"):
        fd.tune(inputs(), [tw.Config(stages=3)])
    with pytest.raises(CallError, match="a fusion is tuned without configs"):
        fd.tune(inputs(), [])
