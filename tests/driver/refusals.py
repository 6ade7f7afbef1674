"""Programs and calls that must fail, and the judge of how they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tilewright import TilewrightError

Run = Callable[[], object]


@dataclass(frozen=True)
class Refusal:
    """What an error must say. `at` is the text above the carets, "" where no line is to blame."""

    run: Run
    kind: type[TilewrightError]
    message: str
    at: str
    mend: str
    expected: str
    notes: tuple[str, ...]


class Refusals(list[Refusal]):
    """A list that grows by decorating functions."""

    def add(
        self, kind: type[TilewrightError], message: str, *, at: str, mend: str, expected: str = "",
        notes: tuple[str, ...] = (),
    ) -> Callable[[Run], Run]:  # fmt: skip
        def decorate(run: Run) -> Run:
            self.append(Refusal(run, kind, message, at, mend, expected, notes))
            return run

        return decorate


def name_of(refusal: Refusal) -> str:
    return refusal.run.__name__


def check_refusal(refusal: Refusal) -> None:
    """The error has the class, and its printed form every part that was promised."""
    with pytest.raises(TilewrightError) as caught:
        refusal.run()
    error, text = caught.value, str(caught.value)
    assert type(error) is refusal.kind, text
    assert text.startswith(f"error[{refusal.kind.code}]: {refusal.message}\n"), text
    assert above_carets(text) == refusal.at, text
    if refusal.at:
        assert f"{refusal.run.__code__.co_filename}:" in text
    assert f"\n  expected: {refusal.expected}" in text, text
    assert f"\n  mend: {refusal.mend}" in text, text
    for note in refusal.notes:
        assert f"\n  note: {note}" in text, text


def above_carets(text: str) -> str:
    """The source that the carets of a printed error stand under."""
    lines = text.splitlines()
    for source, line in pairwise(lines):
        if line.lstrip().startswith("|") and line.rstrip().endswith("^"):
            return source[line.index("^") : line.rindex("^") + 1]
    return ""
