"""What tuning found: each config with its predicted and measured time, its error, a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tilewright.base.diagnostics import TilewrightError, TuningError
from tilewright.base.spans import Span
from tilewright.driver.tuning.config import Config

if TYPE_CHECKING:
    from tilewright.driver.kernel import TileKernel

MOST_REASONS = 8  # of an error that no config works


class Verdict(Enum):
    """What became of a config."""

    CHOSEN = "chosen"
    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"
    LEFT_OUT = "not measured"


@dataclass(frozen=True, slots=True)
class Row:
    """One config. Times are seconds; `error` is relative to the output's largest magnitude.

    `reason` says how the time was predicted, `failure` what is wrong with the config.
    """

    config: Config
    verdict: Verdict
    predicted: float | None = None
    measured: float | None = None
    error: float | None = None
    reason: str = ""
    failure: TilewrightError | None = None

    def cells(self) -> tuple[str, ...]:
        """The columns of the table."""
        times = ("" if t is None else f"{t * 1e6:.1f}" for t in (self.predicted, self.measured))
        error = "" if self.error is None else f"{self.error:.1e}"
        verdict = self.verdict.value
        if self.failure is not None:
            verdict += f": {self.failure.code} {self.failure.diagnostic.message}"
        return (str(self.config), *times, error, verdict)


HEADER = ("config", "model, µs", "measured, µs", "error", "verdict")


@dataclass(frozen=True)
class Tuned:
    """The outcome of tuning one program for one call. `str` is a table.

    `best` is the chosen config, the `number`-th of those that were given, from 0.
    """

    name: str
    where: str
    sizes: Mapping[str, int]
    rows: tuple[Row, ...]
    best: Config
    number: int

    @property
    def wrong(self) -> tuple[Row, ...]:
        """The configs whose results differ: faults of a schedule by hand, or of the compiler."""
        return tuple(row for row in self.rows if row.verdict is Verdict.WRONG)

    def __str__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        measured = sum(row.measured is not None for row in self.rows)
        title = f"{self.name} on {self.where}, {sizes}: {measured} of {len(self.rows)} measured"
        return "\n".join((title, *table((HEADER, *(row.cells() for row in self.rows)))))


@dataclass(frozen=True)
class TunedKernel(Tuned):
    """The outcome for a tile program. `kernel` has the config filled in: call it, or compile it."""

    kernel: TileKernel


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines: the first and the last column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell if i == last else cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def none_works(
    name: str, span: Span | None, failures: Mapping[str, TilewrightError]
) -> TuningError:
    """The error that no config works, with the reason of each."""
    reasons = [f"{config}: {e.code} {e.diagnostic.message}" for config, e in failures.items()]
    if len(reasons) > MOST_REASONS:
        reasons = [*reasons[:MOST_REASONS], f"and {len(reasons) - MOST_REASONS} more"]
    return TuningError(
        f"none of the {len(failures)} configs of {name} works"
        if len(failures) != 1
        else f"the only config of {name} does not work",
        span=span,
        expected="a config that compiles and computes what the program means",
        notes=tuple(reasons),
        mend="see the reasons, and add a config for these sizes",
    )
