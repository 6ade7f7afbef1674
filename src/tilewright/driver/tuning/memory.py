"""The tensors that a kernel writes, while its configs are tried on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilewright.base.diagnostics import AccuracyError, CallError
from tilewright.base.spans import Span
from tilewright.driver.tuning.accuracy import Array, any_still, difference, poisons, unwritten
from tilewright.driver.tuning.options import Reference
from tilewright.runtime.arguments import TensorView, view
from tilewright.runtime.bench import Bench

BOOLEAN, OTHER = np.dtype(np.bool_), np.dtype(np.uint8)


@dataclass(frozen=True)
class Runnable:
    """One config, ready to run. `overwritten` names the written tensors that it does not read.

    `allowed` is the error that rounding explains, relative to the largest magnitude of an output.
    """

    start: Callable[[], object]
    written: Mapping[str, TensorView]
    overwritten: frozenset[str]
    allowed: float


@dataclass(frozen=True)
class Memory:
    """The way back, for each written tensor, to what it holds now; `span` is the program's."""

    bench: Bench
    span: Span | None
    originals: Mapping[str, Callable[[], None]]

    @staticmethod
    def of(runnable: Runnable, bench: Bench, span: Span | None) -> Memory:
        return Memory(bench, span, {n: bench.snapshot(v) for n, v in runnable.written.items()})

    def restore(self) -> None:
        """Put everything back."""
        for put_back in self.originals.values():
            put_back()

    def time(self, runnable: Runnable) -> float:
        """Seconds of a run."""
        return self.bench.time(runnable.start, lambda: self._restore_read(runnable))

    def results(self, runnable: Runnable, config: str) -> dict[str, Array]:
        """What a run writes. AccuracyError where it leaves out an element of an output."""
        first = self._run(runnable, 0)
        bytes_of = {n: poisons(first[n].dtype) for n in runnable.overwritten}
        if any(any_still(first[n], low) for n, (low, _) in bytes_of.items()):
            second = self._run(runnable, 1)
            for name, (low, high) in bytes_of.items():
                index = unwritten(first[name], low, second[name], high)
                if index is not None:
                    raise AccuracyError(
                        f"the config {config} never writes {element(name, index)}",
                        span=self.span,
                        expected="every element of an output written",
                        notes=("the tensor was filled with two patterns, and kept both there",),
                        mend="leave the config out, and report it: the proof should have found it",
                    )
        return first

    def _run(self, runnable: Runnable, turn: int) -> dict[str, Array]:
        self._restore_read(runnable)
        for name in runnable.overwritten:
            tensor = runnable.written[name]
            kind = BOOLEAN if tensor.dtype.name == "bool" else OTHER
            self.bench.fill(tensor, poisons(kind)[turn])
        runnable.start()
        return {n: self.bench.read(v) for n, v in runnable.written.items()}

    def _restore_read(self, runnable: Runnable) -> None:
        for name in runnable.written.keys() - runnable.overwritten:
            self.originals[name]()

    def expected(
        self, reference: Reference, arguments: Sequence[Any], runnable: Runnable
    ) -> dict[str, Array]:
        """What a user's reference says. CallError where it does not fit the outputs."""
        given = reference(*arguments)
        if not isinstance(given, Mapping):
            many = isinstance(given, tuple | list)
            several = cast("Sequence[object]", given) if many else [given]
            given = dict(zip(runnable.written, several, strict=False))
        found: dict[str, Array] = {}
        for name, value in cast("Mapping[str, object]", given).items():
            seen = view(value, f"the reference's {name}")
            host = seen.device.kind == "cpu"
            found[name] = seen.array().copy() if host else self.bench.read(seen)
        shapes = {n: v.shape for n, v in runnable.written.items()}
        if {n: a.shape for n, a in found.items()} != shapes:
            said = ", ".join(f"{n} {list(a.shape)}" for n, a in found.items()) or "nothing"
            raise CallError(
                f"the reference gives {said}",
                span=self.span,
                expected=", ".join(f"{n} {list(s)}" for n, s in shapes.items()),
                mend="return one tensor for each output, in the order of the arguments",
            )
        return found

    def agreement(
        self, found: Mapping[str, Array], wanted: Mapping[str, Array], allowed: float,
        config: str, source: str,
    ) -> float:  # fmt: skip
        """The largest error of the outputs. AccuracyError where it is more than is allowed."""
        largest = 0.0
        for name, array in found.items():
            apart = difference(array, wanted[name])
            largest = max(largest, apart.error)
            if apart.error > allowed:
                raise AccuracyError(
                    f"the config {config} computes {element(name, apart.index)} = "
                    f"{apart.found:.6g}, {source} {apart.wanted:.6g}",
                    span=self.span,
                    expected=f"errors of at most {allowed:.1e} of the largest magnitude",
                    notes=(f"the error of this element, the largest, is {apart.error:.1e}",),
                    mend="leave the config out, or allow more with tolerance=",
                )
        return largest


def element(name: str, index: Sequence[int]) -> str:
    """An element as messages name it."""
    return f"{name}[{', '.join(map(str, index))}]"
