"""Tuning of tile programs: each config is a variant of the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.base.diagnostics import CallError
from tilewright.base.spans import Span
from tilewright.driver.call import Call
from tilewright.driver.reference import tolerance
from tilewright.driver.tuning.config import Config, variant
from tilewright.driver.tuning.memory import Runnable
from tilewright.driver.tuning.options import Options
from tilewright.driver.tuning.planning import forecast_call, target_of
from tilewright.driver.tuning.report import TunedKernel
from tilewright.driver.tuning.search import search
from tilewright.driver.tuning.suggest import suggested
from tilewright.kernel.declared import Mode
from tilewright.runtime.arguments import Device
from tilewright.schedule.model import Ranked
from tilewright.target import target_named

if TYPE_CHECKING:
    from tilewright.driver.kernel import TileKernel
    from tilewright.runtime.bench import Bench


def tune(
    kernel: TileKernel, configs: Sequence[Config] | None, call: Call, options: Options
) -> TunedKernel:
    """Find the fastest config for a call; None: of those that the model suggests.

    Tensors are left as they are. CallError where there is no config or one does not fit the
    program; TuningError where none works.
    """
    subject = TileSubject.of(kernel, configs, call)
    return subject.tuned(options.bench_on(call.device), options)


@dataclass(frozen=True)
class TileSubject:
    """A tile program's configs, and the variants that they make of it, for one call."""

    kernel: TileKernel
    configs: Sequence[Config]
    variants: Sequence[TileKernel]
    call: Call

    @staticmethod
    def of(kernel: TileKernel, configs: Sequence[Config] | None, call: Call) -> TileSubject:
        """With the configs that the model suggests where none are given."""
        if configs is None:
            sizes = call.axis_sizes(kernel.bindings)
            configs = suggested(kernel, sizes, target_named(target_of(kernel, call)))
        if not configs:
            raise CallError(
                f"{kernel.program.name} is tuned without configs",
                span=kernel.program.span,
                expected="at least one tw.Config",
                mend="give configs=[tw.Config({BLOCK_M: 128}), ..], or none to have them suggested",
            )
        return TileSubject(kernel, configs, [variant(kernel, c) for c in configs], call)

    @property
    def name(self) -> str:
        return self.kernel.program.name

    @property
    def span(self) -> Span:
        return self.kernel.program.span

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.call.axis_sizes(self.kernel.bindings)

    @property
    def device(self) -> Device:
        return self.call.device

    @property
    def arguments(self) -> Sequence[Any]:
        found: list[Any] = []
        for name in self.call.program.arguments:
            if name in self.call.scalars:
                found.append(self.call.scalars[name])
            else:
                owner = self.call.tensors[name].owner
                # A DLPack capsule comes with the tensor that made it.
                found.append(owner[-1] if isinstance(owner, tuple) else owner)
        return found

    def forecast(self, number: int) -> Ranked | None:
        return forecast_call(self.variants[number], self.call)

    def build(self, number: int) -> Runnable:
        compiled = self.variants[number].specialised(self.call)
        launcher, tensors = compiled.launcher, self.call.tensors
        if self.device.kind != "cpu":
            launcher.module(self.device)  # a config that the assembler refuses is none
        modes = {t.name: t.mode for t in compiled.compilation.interface.tensors}
        written = [n for n in tensors if modes.get(n, Mode.IN) is not Mode.IN]
        return Runnable(
            lambda: launcher.run(self.call),
            {n: tensors[n] for n in written},
            frozenset(n for n in written if modes[n] is Mode.OUT),
            tolerance(compiled.compilation.graph, self.sizes),
        )

    def tuned(self, bench: Bench | None, options: Options) -> TunedKernel:
        """The outcome of the search, with the winner's variant."""
        found = search(self, bench, options)
        fields = (found.name, found.where, found.sizes, found.rows, found.best, found.number)
        return TunedKernel(*fields, self.variants[found.number])
