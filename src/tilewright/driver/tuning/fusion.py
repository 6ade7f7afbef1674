"""Tuning of fusions: each config is a schedule by hand, or the compiler's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilewright.base.diagnostics import CallError
from tilewright.base.spans import Span
from tilewright.driver.fused_run import FusedRunner, Inputs
from tilewright.driver.reference import tolerance
from tilewright.driver.tuning.config import Config
from tilewright.driver.tuning.memory import Runnable
from tilewright.driver.tuning.options import Options
from tilewright.driver.tuning.report import Tuned
from tilewright.driver.tuning.search import search
from tilewright.fusion.records import OutputRecord, Record, TensorRecord
from tilewright.fusion.sched import Scheduler
from tilewright.graph.ops import Graph
from tilewright.runtime.arguments import Device, view
from tilewright.schedule.forecast import forecast
from tilewright.schedule.model import Ranked


@dataclass
class FusionSubject:
    """A fusion's configs for inputs; `make` compiles what a scheduler has recorded."""

    records: Sequence[Record]
    given: Inputs
    configs: Sequence[Config]
    make: Callable[[Scheduler], FusedRunner]
    runners: dict[int, FusedRunner] = field(default_factory=dict[int, FusedRunner])

    @staticmethod
    def of(
        records: Sequence[Record],
        given: Inputs,
        configs: Sequence[Config],
        make: Callable[[Scheduler], FusedRunner],
    ) -> FusionSubject:
        """CallError where there are no configs, or one has more than a schedule."""
        subject = FusionSubject(records, given, configs, make)
        for config in configs:
            if config.symbols or config.hardware:
                raise CallError(
                    f"the config {config} of a fusion has more than a schedule",
                    span=config.span,
                    expected="tw.Config(schedule=function), or tw.Config() for the compiler's own",
                    mend="say it in the schedule: s.split, s.stage",
                )
        if not configs:
            raise CallError(
                "a fusion is tuned without configs",
                span=subject.span,
                expected="at least one tw.Config",
                mend="give [tw.Config(), tw.Config(schedule=function), ..]",
            )
        return subject

    @property
    def name(self) -> str:
        return "fusion"

    @property
    def span(self) -> Span | None:
        return next((r.span for r in self.records if isinstance(r, OutputRecord)), None)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Those of the inputs, named as the scheduler names its axes."""
        numbers = {r.position: r.result for r in self.records if isinstance(r, TensorRecord)}
        return {
            f"T{numbers[position]}.{dim}": size
            for position, tensor in self.given.tensors.items()
            for dim, size in enumerate(tensor.shape)
        }

    @property
    def device(self) -> Device:
        return self.given.device

    @property
    def arguments(self) -> Sequence[Any]:
        return self.given.originals

    def runner(self, number: int) -> FusedRunner:
        """A config compiled."""
        if number not in self.runners:
            recorder, schedule = Scheduler(), self.configs[number].schedule
            if schedule is not None:
                schedule(recorder)
            self.runners[number] = self.make(recorder)
        return self.runners[number]

    def forecast(self, number: int) -> Ranked | None:
        kernels = self.runner(number).compiled.kernels
        if len(kernels) != 1:
            return None
        return forecast(kernels[0].graph, kernels[0].plan, kernels[0].target)

    def build(self, number: int) -> Runnable:
        runner = self.runner(number)
        start, made = runner.prepared(self.given)
        outputs = {f"output {i}": view(made[n]) for i, n in enumerate(runner.outputs)}
        written = {name: seen for name, seen in outputs.items() if prod(seen.shape)}
        allowed = max(_allowed(kernel.graph) for kernel in runner.compiled.kernels)
        return Runnable(start, written, frozenset(written), allowed)

    def tuned(self, options: Options) -> Tuned:
        """The outcome of the search."""
        return search(self, options.bench_on(self.device), options)


def _allowed(graph: Graph) -> float:
    return tolerance(graph, {axis: extent.const for axis, extent in graph.axes.items()})
