"""`@tw.autotune`: a tile program that picks the fastest of its configs for each kind of call."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tilewright.base.diagnostics import CallError, TilewrightError
from tilewright.base.spans import here
from tilewright.driver.kernel import Bindings, TileKernel, Transform
from tilewright.driver.tuning.config import Config, variant
from tilewright.driver.tuning.options import Options, Reference
from tilewright.driver.tuning.report import TunedKernel, none_works
from tilewright.lang.symbols import Size, axis_name

if TYPE_CHECKING:
    from tilewright.driver.call import Call
    from tilewright.driver.compile import Rewrites
    from tilewright.driver.compiled import CompiledKernel
    from tilewright.driver.tuning.tile import TileSubject
    from tilewright.runtime.bench import Bench

SWITCH = "TILEWRIGHT_AUTOTUNE"  # set to 0, nothing is measured


class AutotunedKernel(TileKernel):
    """A tile program with configs. The first call of each kind tunes it, or finds the winner.

    `reports` has what this process found by tuning, the last one last.
    """

    def __init__(
        self,
        kernel: TileKernel,
        configs: Sequence[Config] | None,
        keyed: tuple[str, ...],
        options: Options,
        *,
        enabled: bool,
    ) -> None:
        super().__init__(kernel.program, kernel.bindings, kernel.dynamic, kernel.schedule)
        self.configs = None if configs is None else tuple(configs)
        self.reports: list[TunedKernel] = []
        self._variants = [variant(kernel, config) for config in configs or ()]
        self._keyed = keyed
        self._options = options
        self._enabled = enabled
        self._chosen: dict[object, TileKernel] = {}

    def specialised(self, call: Call) -> CompiledKernel:
        """The winner, compiled for a call."""
        entry = (call.device, *self._entry(call))
        chosen = self._chosen.get(entry)
        if chosen is None:
            chosen = self._chosen[entry] = self._choose(call)
        try:
            return chosen.specialised(call)
        except TilewrightError:
            # Sizes beyond the key may ask for another one.
            return self._tuned(self._subject(call), None).kernel.specialised(call)

    def compile(
        self,
        target: str | None = None,
        bindings: Bindings | None = None,
        *,
        strides: Mapping[str, tuple[int, ...]] | None = None,
        alignments: Mapping[str, int] | None = None,
        multiples: Mapping[str, int] | None = None,
        schedule: Transform | None = None,
        rewrites: Rewrites | None = None,
    ) -> CompiledKernel:
        """Compile the first config that can be, without measuring: see `TileKernel.compile`."""
        failures: dict[str, TilewrightError] = {}
        for config in self._configs_for(target, bindings or {}):
            try:
                return variant(self, config).compile(
                    target, bindings, strides=strides, alignments=alignments,
                    multiples=multiples, schedule=schedule, rewrites=rewrites,
                )  # fmt: skip
            except TilewrightError as error:
                failures[str(config)] = error
        raise none_works(self.program.name, self.program.span, failures)

    def tune(
        self,
        *arguments: Any,
        configs: Sequence[Config] | None = None,
        top: int | None = None,
        reference: Reference | None = None,
        tolerance: float | None = None,
        **named: Any,
    ) -> TunedKernel:
        """Tune for these arguments now, by the decorator's configs where none are given."""
        return super().tune(
            *arguments,
            configs=self.configs if configs is None else configs,
            top=self._options.top if top is None else top,
            reference=reference or self._options.reference,
            tolerance=self._options.tolerance if tolerance is None else tolerance, **named,
        )  # fmt: skip

    def _configs_for(self, target: str | None, bindings: Bindings) -> Sequence[Config]:
        """The configs, or those that the model suggests for the sizes that are bound."""
        if self.configs is not None:
            return self.configs
        from tilewright.driver.tuning.suggest import suggested

        given = self.specialisation(target, bindings)
        return suggested(self, given.sizes, given.target)

    def _subject(self, call: Call) -> TileSubject:
        from tilewright.driver.tuning.tile import TileSubject

        if self.configs is None:
            return TileSubject.of(self, None, call)
        return TileSubject(self, self.configs, self._variants, call)

    def _entry(self, call: Call) -> tuple[object, ...]:
        """What selects a winner: the target, the key's sizes, how tensors lie in memory."""
        from tilewright.driver.tuning.planning import target_of
        from tilewright.runtime.arguments import dense_strides

        sizes = call.axis_sizes(self.bindings)
        layouts = tuple(
            (min(16, v.alignment), "dense" if v.strides == dense_strides(v.shape) else v.strides)
            for v in call.tensors.values()
        )
        return target_of(self, call), *((axis, sizes[axis]) for axis in self._keyed), *layouts

    def _choose(self, call: Call) -> TileKernel:
        measuring = self._enabled and os.environ.get(SWITCH) != "0"
        bench = self._options.bench_on(call.device) if measuring else None
        subject = self._subject(call)
        if bench is None:
            return self._tuned(subject, None).kernel
        cache, key = self._options.disk(), self._place(subject, bench)
        kept = _read(cache.get(key) if cache else None, len(subject.variants))
        if kept is not None:
            return subject.variants[kept]
        tuned = self._tuned(subject, bench)
        for row in tuned.wrong:
            warnings.warn(str(row.failure), RuntimeWarning, stacklevel=2)
        if cache:
            cache.put(key, json.dumps({"config": tuned.number}).encode())
        return tuned.kernel

    def _tuned(self, subject: TileSubject, bench: Bench | None) -> TunedKernel:
        tuned = subject.tuned(bench, self._options)
        self.reports.append(tuned)
        return tuned

    def _place(self, subject: TileSubject, bench: Bench) -> str:
        """The winner's name on disk: all that may change which config wins."""
        from tilewright.driver.cache_key import compiler_identity
        from tilewright.driver.tuning.planning import described
        from tilewright.runtime.cache import cache_key
        from tilewright.runtime.toolchain import toolchain_for
        from tilewright.target import target_named

        call = subject.call
        fixed = {axis: subject.sizes[axis] for axis in self._keyed}
        entry = self._entry(call)
        target = target_named(str(entry[0]))
        return cache_key(
            "tuning", compiler_identity(), toolchain_for(target).identity(target), bench.name,
            str(entry), str(self.dynamic and sorted(self.dynamic)), str(self._options.top),
            *(described(made, call, fixed) for made in subject.variants),
        )  # fmt: skip


def _read(content: bytes | None, configs: int) -> int | None:
    """The number of a config as the cache has it."""
    if content is None:
        return None
    number = cast("dict[str, object]", json.loads(content)).get("config")
    return number if isinstance(number, int) and 0 <= number < configs else None


def autotune(
    configs: Sequence[Config] | None = None,
    key: Sequence[Size | str] | None = None,
    *,
    top: int | None = None,
    reference: Reference | None = None,
    tolerance: float | None = None,
    enabled: bool = True,
    options: Options | None = None,
) -> Callable[[TileKernel], AutotunedKernel]:
    """Let a tile program choose among configs: a decorator above `@tw.kernel(..)`.

    Without configs those are tried that the model suggests, which it can for a matrix product
    whose tile sizes are symbols. `key` names the axes whose sizes select a winner, by default
    all; element types, strides, the target and the device always do. The first call with a new
    key measures the `top` best configs of the analytic model, checks them (see
    `TileKernel.tune`), and keeps the winner, also on disk. With `enabled=False`, or
    TILEWRIGHT_AUTOTUNE=0, and without a device, the model's first choice is taken.

    `options` replaces `top`, `reference` and `tolerance`, and says where to measure and to keep.

    CallError for no configs, or a key that is no axis; TuningError at a call where none works.
    """
    if configs is not None and not configs:
        raise CallError(
            "@tw.autotune is given no configs",
            span=here(),
            expected="at least one tw.Config, or nothing",
            mend="give configs, for example [tw.Config({BLOCK_M: 128}), tw.Config({BLOCK_M: 64})]",
        )
    span = here()
    chosen = options or Options.of(top, reference, tolerance)

    def mark(kernel: TileKernel) -> AutotunedKernel:
        if not isinstance(kernel, TileKernel):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CallError(
                f"@tw.autotune is put on a {type(kernel).__name__}",
                span=span,
                expected="a function marked @tw.kernel(..)",
                mend="write @tw.autotune above @tw.kernel",
            )
        axes = kernel.program.axes()
        names = axes if key is None else tuple(_key_axis(k) for k in key)
        for name in names:
            if name not in axes:
                raise CallError(
                    f"the key names {name}, which is no axis of {kernel.program.name}'s tensors",
                    span=span,
                    expected=f"axes among {', '.join(axes)}",
                    mend="remove it, or name an axis",
                )
        return AutotunedKernel(kernel, configs, names, chosen, enabled=enabled)

    return mark


def _key_axis(axis: Size | str) -> str:
    return axis if isinstance(axis, str) else axis_name(axis, here())
