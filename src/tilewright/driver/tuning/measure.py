"""The configs of a kernel for one call: ranked, the best few run and checked, and timed.

Each run starts from the same memory: outputs are filled with a byte pattern, so that an element
that is not written shows, and tensors that are read and written are put back. When all is done,
every tensor is as the caller passed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tilewright.base.diagnostics import AccuracyError, CallError, TilewrightError
from tilewright.driver.call import Call
from tilewright.driver.reference import tolerance
from tilewright.driver.tuning.accuracy import Array, any_still, difference, poisons, unwritten
from tilewright.driver.tuning.config import Config, variant
from tilewright.driver.tuning.options import Options, Reference
from tilewright.driver.tuning.planning import forecast_call
from tilewright.driver.tuning.report import Row, Tuned, Verdict, none_works
from tilewright.kernel.ops import Mode
from tilewright.runtime.arguments import view
from tilewright.runtime.bench import Bench

if TYPE_CHECKING:
    from tilewright.driver.compiled import CompiledKernel
    from tilewright.driver.kernel import TileKernel

FINALISTS = 1.1  # times the best: those are timed once more, in the other order


def tune(kernel: TileKernel, configs: Sequence[Config], call: Call, options: Options) -> Tuned:
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
    return search(kernel, configs, variants, call, options.bench_on(call.device), options)


def search(
    kernel: TileKernel,
    configs: Sequence[Config],
    variants: Sequence[TileKernel],
    call: Call,
    bench: Bench | None,
    options: Options,
) -> Tuned:
    """`tune`, by the kernel's variants for the configs; without a bench the model chooses."""
    session = _Session.start(kernel, configs, variants, call)
    return session.by_model() if bench is None else session.by_measuring(bench, options)


@dataclass
class _Session:
    """One search: what became of each config so far, by its number."""

    kernel: TileKernel
    call: Call
    variants: Sequence[TileKernel]
    rows: dict[int, Row]
    compiled: dict[int, CompiledKernel] = field(default_factory=dict[int, "CompiledKernel"])

    @staticmethod
    def start(
        kernel: TileKernel, configs: Sequence[Config], variants: Sequence[TileKernel], call: Call
    ) -> _Session:
        """Every config with its predicted time."""
        session = _Session(kernel, call, variants, {})
        for number, (config, made) in enumerate(zip(configs, variants, strict=True)):
            row = Row(config, Verdict.LEFT_OUT)
            try:
                found = forecast_call(made, call)
            except TilewrightError as error:
                row = replace(row, verdict=Verdict.FAILED, failure=error)
            else:
                if found is not None:
                    row = replace(row, predicted=found.seconds, reason=found.reason)
            session.rows[number] = row
        return session

    def ranked(self) -> list[int]:
        """The configs that may work, the fastest by prediction first, then those without one."""
        able = [n for n, row in self.rows.items() if row.failure is None]
        return sorted(able, key=lambda n: (self.rows[n].predicted or float("inf"), n))

    def by_model(self) -> Tuned:
        """The first of the ranking that compiles."""
        for number in self.ranked():
            if self.build(number) is not None:
                where = str(self.call.device)
                return self.tuned(
                    number, f"{where}, by the model" if where != "cpu" else "no device"
                )
        raise self.none_works()

    def build(self, number: int) -> CompiledKernel | None:
        """The compiled config; None, noted in its row, where it does not compile."""
        if number not in self.compiled and self.rows[number].failure is None:
            try:
                self.compiled[number] = self.variants[number].specialised(self.call)
            except TilewrightError as error:
                self.note(number, verdict=Verdict.FAILED, failure=error)
        return self.compiled.get(number)

    def note(self, number: int, **found: Any) -> None:
        self.rows[number] = replace(self.rows[number], **found)

    def none_works(self) -> TilewrightError:
        program = self.kernel.program
        failures = {str(r.config): r.failure for r in self.rows.values() if r.failure is not None}
        return none_works(program.name, program.span, failures)

    def by_measuring(self, bench: Bench, options: Options) -> Tuned:
        """The fastest of those that compute what they should."""
        ranked = self.ranked()
        trusted = next((n for n in sorted(ranked) if self.build(n) is not None), None)
        if trusted is None:
            raise self.none_works()
        chosen = [n for n in ranked if self.build(n) is not None][: options.top]
        # The one that is trusted goes first: the others are compared with it.
        order = list(dict.fromkeys((trusted, *chosen)))
        memory = _Memory.of(self.compiled[trusted], self.call, bench)
        try:
            self._check(order, memory, options)
            self._time(order, memory)
        finally:
            memory.restore()
        timed = {n: row.measured for n, row in self.rows.items() if row.measured is not None}
        if not timed:
            raise self.none_works()
        return self.tuned(min(timed, key=lambda n: timed[n]), bench.name)

    def _check(self, order: Sequence[int], memory: _Memory, options: Options) -> None:
        allowed = options.tolerance
        if allowed is None:
            allowed = 2 * tolerance(
                self.compiled[order[0]].compilation.graph,
                self.call.axis_sizes(self.kernel.bindings),
            )
        wanted, source = None, "the reference"
        if options.reference is not None:
            wanted = memory.expected(options.reference)
        for number in order:
            config = self.rows[number].config
            try:
                found = memory.results(self.compiled[number], config)
                if wanted is None:
                    wanted, source = found, f"the config {config}"
                error = _agreement(found, wanted, allowed, config, source, self.kernel)
            except AccuracyError as wrong:
                self.note(number, verdict=Verdict.WRONG, failure=wrong)
            except TilewrightError as failure:
                self.note(number, verdict=Verdict.FAILED, failure=failure)
            else:
                self.note(number, verdict=Verdict.RIGHT, error=error)

    def _time(self, order: Sequence[int], memory: _Memory) -> None:
        right = [n for n in order if self.rows[n].verdict is Verdict.RIGHT]
        times = {n: memory.time(self.compiled[n]) for n in right}
        bound = FINALISTS * min(times.values(), default=0.0)
        for number in reversed([n for n in right if times[n] <= bound]):
            times[number] = min(times[number], memory.time(self.compiled[number]))
        for number, seconds in times.items():
            self.note(number, measured=seconds)

    def tuned(self, best: int, where: str) -> Tuned:
        """The report: measured configs by time, then the others by prediction, failures last."""
        self.note(best, verdict=Verdict.CHOSEN)
        never = float("inf")

        def place(number: int) -> tuple[bool, float, float]:
            row = self.rows[number]
            return row.failure is not None, row.measured or never, row.predicted or never

        rows = tuple(self.rows[n] for n in sorted(self.rows, key=place))
        sizes = self.call.axis_sizes(self.kernel.bindings)
        config = self.rows[best].config
        return Tuned(self.kernel.program.name, where, sizes, rows, config, self.variants[best])


@dataclass(frozen=True)
class _Memory:
    """The call's written tensors on the device, and the way back to what they hold now."""

    call: Call
    bench: Bench
    written: tuple[str, ...]
    overwritten: frozenset[str]  # those of them that are not read before
    originals: Mapping[str, Callable[[], None]]

    @staticmethod
    def of(compiled: CompiledKernel, call: Call, bench: Bench) -> _Memory:
        modes = {t.name: t.mode for t in compiled.compilation.kernel.tensors}
        written = tuple(n for n in call.tensors if modes.get(n, Mode.IN) is not Mode.IN)
        return _Memory(
            call,
            bench,
            written,
            frozenset(n for n in written if modes[n] is Mode.OUT),
            {n: bench.snapshot(call.tensors[n]) for n in written},
        )

    def restore(self) -> None:
        for put_back in self.originals.values():
            put_back()

    def _restore_inputs(self) -> None:
        for name in self.written:
            if name not in self.overwritten:
                self.originals[name]()

    def time(self, compiled: CompiledKernel) -> float:
        """Seconds of a run."""
        return self.bench.time(lambda: compiled.launcher.run(self.call), self._restore_inputs)

    def results(self, compiled: CompiledKernel, config: Config) -> dict[str, Array]:
        """What a run writes. AccuracyError where it leaves out an element of an output."""
        first = self._run(compiled, 0)
        kinds = {n: poisons(first[n].dtype) for n in self.overwritten}
        if any(any_still(first[n], kinds[n][0]) for n in kinds):
            second = self._run(compiled, 1)
            for name, (low, high) in kinds.items():
                index = unwritten(first[name], low, second[name], high)
                if index is not None:
                    raise AccuracyError(
                        f"the config {config} never writes {_element(name, index)}",
                        span=self.call.program.span,
                        expected="every element of an output written",
                        notes=("the tensor was filled with two patterns, and kept both there",),
                        mend="leave the config out, and report it: the proof should have found it",
                    )
        return first

    def _run(self, compiled: CompiledKernel, turn: int) -> dict[str, Array]:
        self._restore_inputs()
        for name in self.overwritten:
            tensor = self.call.tensors[name]
            kind = np.dtype(np.bool_) if tensor.dtype.name == "bool" else np.dtype(np.uint8)
            self.bench.fill(tensor, poisons(kind)[turn])
        compiled.launcher.run(self.call)
        return {n: self.bench.read(self.call.tensors[n]) for n in self.written}

    def expected(self, reference: Reference) -> dict[str, Array]:
        """What the user's reference says. CallError where it does not fit the outputs."""
        given = reference(*_arguments(self.call))
        if not isinstance(given, Mapping):
            many = isinstance(given, tuple | list)
            several = cast("Sequence[object]", given) if many else [given]
            given = dict(zip(self.written, several, strict=False))
        found: dict[str, Array] = {}
        for name, value in cast("Mapping[str, object]", given).items():
            seen = view(value, f"the reference's {name}")
            host = seen.device.kind == "cpu"
            found[name] = seen.array().copy() if host else self.bench.read(seen)
        shapes = {n: self.call.tensors[n].shape for n in self.written}
        if {n: a.shape for n, a in found.items()} != shapes:
            said = ", ".join(f"{n} {list(a.shape)}" for n, a in found.items()) or "nothing"
            raise CallError(
                f"the reference gives {said}",
                span=self.call.program.span,
                expected=", ".join(f"{n} {list(s)}" for n, s in shapes.items()),
                mend="return one tensor for each output, in the order of the arguments",
            )
        return found


def _arguments(call: Call) -> list[Any]:
    """What the caller passed, in order."""
    found: list[Any] = []
    for name in call.program.arguments:
        if name in call.scalars:
            found.append(call.scalars[name])
        else:
            owner = call.tensors[name].owner
            # A DLPack capsule comes with the tensor that made it.
            found.append(owner[-1] if isinstance(owner, tuple) else owner)
    return found


def _agreement(
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
    allowed: float,
    config: Config,
    source: str,
    kernel: TileKernel,
) -> float:
    """The largest error of the outputs. AccuracyError where it is more than is allowed."""
    largest = 0.0
    for name, array in found.items():
        apart = difference(array, wanted[name])
        largest = max(largest, apart.error)
        if apart.error > allowed:
            raise AccuracyError(
                f"the config {config} computes {_element(name, apart.index)} = {apart.found:.6g}, "
                f"{source} {apart.wanted:.6g}",
                span=kernel.program.span,
                expected=f"errors of at most {allowed:.1e} of the largest magnitude",
                notes=(f"the error of this element, the largest, is {apart.error:.1e}",),
                mend="leave the config out, or allow more with tolerance=",
            )
    return largest


def _element(name: str, index: Sequence[int]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"
