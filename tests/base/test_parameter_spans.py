"""Where parameters are declared, for the errors that blame them."""

from __future__ import annotations

from typing import Literal

from tilewright.base.spans import parameter_spans


def shown(function: object) -> dict[str, str]:
    spans = parameter_spans(function.__code__)  # type: ignore[attr-defined]
    return {name: span.source()[span.column : span.end] for name, span in spans.items()}


def plain(x: int, y: float = 2.0) -> None: ...


def test_at_module_level() -> None:
    assert shown(plain) == {"x": "x: int", "y": "y: float"}


def test_indented_over_several_lines_with_letters_of_two_bytes() -> None:
    def mark(function: object) -> object:
        return function

    @mark
    def spread(
        first: int, second: Literal["ä", "ö"],
        tail: tuple[
            int, ...
        ], *rest: str,
    ) -> None:  # fmt: skip
        """Text that stands at the margin:
        there."""

    assert shown(spread) == {
        "first": "first: int",
        "second": 'second: Literal["ä", "ö"]',
        "tail": "tail: tuple[",
        "rest": "rest: str",
    }


def test_no_source_no_spans() -> None:
    names: dict[str, object] = {}
    exec("def made(x): pass", names)
    assert shown(names["made"]) == {}
