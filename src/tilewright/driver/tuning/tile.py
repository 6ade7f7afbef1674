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
from tilewright.driver.tuning.planning import forecast_call
from tilewright.driver.tuning.report import TunedKernel
from tilewright.driver.tuning.search import search
from tilewright.kernel.declared import Mode
from tilewright.runtime.arguments import Device
from tilewright.schedule.model import Ranked

if TYPE_CHECKING:
    from tilewright.driver.kernel import TileKernel
    from tilewright.runtime.bench import Bench


def tune(
    kernel: TileKernel, configs: Sequence[Config], call: Call, options: Options
) -> TunedKernel:  # fmt: skip
    """Find the fastest config for a call. Tensors are left as they are.

    CallError where there is no config or one does not fit the program; TuningError where none
    works.
    """
    if not configs:
        raise CallError(
            f"{kernel.program.name} is tuned without configs",
            span=kernel.program.span,
            expected="at least one tw.Config",
            mend="give configs=[tw.Config({BLOCK_M: 128}), ..]",
        )
    variants = [variant(kernel, config) for config in configs]
    subject = TileSubject(kernel, configs, variants, call)
    return subject.tuned(options.bench_on(call.device), options)


@dataclass(frozen=True)
class TileSubject:
    """A tile program's configs, and the variants that they make of it, for one call."""

    kernel: TileKernel
    configs: Sequence[Config]
    variants: Sequence[TileKernel]
    call: Call

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
