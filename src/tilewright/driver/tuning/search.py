"""The search for the fastest config: ranked by the model, the best few checked and timed.

Each run starts from the same memory: outputs are filled with a byte pattern, so that an element
that is not written shows, and tensors that are read and written are put back. When all is done,
every tensor is as the caller passed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from tilewright.base.diagnostics import AccuracyError, TilewrightError
from tilewright.base.spans import Span
from tilewright.driver.tuning.accuracy import Array
from tilewright.driver.tuning.config import Config
from tilewright.driver.tuning.memory import Memory, Runnable
from tilewright.driver.tuning.options import Options
from tilewright.driver.tuning.report import Row, Tuned, Verdict, none_works
from tilewright.runtime.arguments import Device
from tilewright.runtime.bench import Bench
from tilewright.schedule.model import Ranked

FINALISTS = 1.1  # times the best: those are timed once more, in the other order


class Subject(Protocol):
    """What is tuned, for one call: a program whose configs are numbered."""

    @property
    def name(self) -> str: ...
    @property
    def span(self) -> Span | None: ...
    @property
    def sizes(self) -> Mapping[str, int]: ...
    @property
    def device(self) -> Device: ...
    @property
    def configs(self) -> Sequence[Config]: ...
    @property
    def arguments(self) -> Sequence[Any]:
        """What the caller passed: a reference gets the same."""
        ...

    def forecast(self, number: int) -> Ranked | None:
        """The predicted time of a config; None where the model does not apply."""
        ...

    def build(self, number: int) -> Runnable:
        """A config compiled. Errors of the config are raised by either method."""
        ...


def search(subject: Subject, bench: Bench | None, options: Options) -> Tuned:
    """The fastest config; without a bench the model's first choice that can be built.

    TuningError where none works; CallError for a reference that does not fit.
    """
    found = _Search.start(subject)
    return found.by_model() if bench is None else found.by_measuring(bench, options)


@dataclass
class _Search:
    """What became of each config so far, by its number."""

    subject: Subject
    rows: dict[int, Row]
    built: dict[int, Runnable] = field(default_factory=dict[int, Runnable])

    @staticmethod
    def start(subject: Subject) -> _Search:
        """Every config with its predicted time."""
        found = _Search(subject, {})
        for number, config in enumerate(subject.configs):
            row = Row(config, Verdict.LEFT_OUT)
            try:
                ranked = subject.forecast(number)
            except TilewrightError as error:
                row = replace(row, verdict=Verdict.FAILED, failure=error)
            else:
                if ranked is not None:
                    row = replace(row, predicted=ranked.seconds, reason=ranked.reason)
            found.rows[number] = row
        return found

    def ranked(self) -> list[int]:
        """The configs that may work, the fastest by prediction first, then those without one."""
        able = [n for n, row in self.rows.items() if row.failure is None]
        return sorted(able, key=lambda n: (self.rows[n].predicted or float("inf"), n))

    def buildable(self, numbers: Sequence[int]) -> Iterator[int]:
        """Those that compile, built one after the other as they are asked for."""
        for number in numbers:
            if number not in self.built and self.rows[number].failure is None:
                try:
                    self.built[number] = self.subject.build(number)
                except TilewrightError as error:
                    self.note(number, verdict=Verdict.FAILED, failure=error)
            if number in self.built:
                yield number

    def note(self, number: int, **found: Any) -> None:
        self.rows[number] = replace(self.rows[number], **found)

    def none_works(self) -> TilewrightError:
        failures = {str(r.config): r.failure for r in self.rows.values() if r.failure is not None}
        return none_works(self.subject.name, self.subject.span, failures)

    def by_model(self) -> Tuned:
        """The first of the ranking that compiles."""
        for number in self.buildable(self.ranked()):
            device = self.subject.device
            return self.tuned(number, "no device" if device.kind == "cpu" else str(device))
        raise self.none_works()

    def by_measuring(self, bench: Bench, options: Options) -> Tuned:
        """The fastest of those that compute what they should."""
        ranked = self.ranked()
        trusted = next(self.buildable(sorted(ranked)), None)
        if trusted is None:
            raise self.none_works()
        # The one that is trusted goes first: the others are compared with it.
        order = list(dict.fromkeys((trusted, *islice(self.buildable(ranked), options.top))))
        memory = Memory.of(self.built[trusted], bench, self.subject.span)
        try:
            self._check(order, memory, options)
            self._time(order, memory)
        finally:
            memory.restore()
        timed = {n: row.measured for n, row in self.rows.items() if row.measured is not None}
        if not timed:
            raise self.none_works()
        return self.tuned(min(timed, key=lambda n: timed[n]), bench.name)

    def _check(self, order: Sequence[int], memory: Memory, options: Options) -> None:
        first = self.built[order[0]]
        # The trusted result is rounded as well.
        allowed = 2 * first.allowed if options.tolerance is None else options.tolerance
        wanted: dict[str, Array] | None = None
        source = "the reference"
        if options.reference is not None:
            wanted = memory.expected(options.reference, self.subject.arguments, first)
        for number in order:
            config = str(self.rows[number].config)
            try:
                found = memory.results(self.built[number], config)
                if wanted is None:
                    wanted, source = found, f"the config {config}"
                error = memory.agreement(found, wanted, allowed, config, source)
            except AccuracyError as wrong:
                self.note(number, verdict=Verdict.WRONG, failure=wrong)
            except TilewrightError as failure:
                self.note(number, verdict=Verdict.FAILED, failure=failure)
            else:
                self.note(number, verdict=Verdict.RIGHT, error=error)

    def _time(self, order: Sequence[int], memory: Memory) -> None:
        right = [n for n in order if self.rows[n].verdict is Verdict.RIGHT]
        times = {n: memory.time(self.built[n]) for n in right}
        bound = FINALISTS * min(times.values(), default=0.0)
        for number in reversed([n for n in right if times[n] <= bound]):
            times[number] = min(times[number], memory.time(self.built[number]))
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
        subject = self.subject
        return Tuned(subject.name, where, subject.sizes, rows, self.rows[best].config, best)
