"""How an error reads: code, the user's line, a caret, what was expected, how to mend it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tilewright.base import diagnostics
from tilewright.base.diagnostics import Diagnostic, ShapeError, TilewrightError, render
from tilewright.base.spans import Span


def subclasses(kind: type[TilewrightError]) -> list[type[TilewrightError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in subclasses(child))]


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "kernel.py"
    path.write_text("import x\n\n\ty = tw.mma(a,\tb)\n\tz = tw.read(\n\t\ta)\n" * 3)
    return str(path)


def lines(diagnostic: Diagnostic) -> list[str]:
    return render(diagnostic).split("\n")


def test_everything_in_order(source: str) -> None:
    span = Span(source, 8, 5, 17)
    found = Diagnostic("TW102", "axes differ", span, "axis K", "rename J", ("a has K", "b has J"))
    assert lines(found) == [
        "error[TW102]: axes differ",
        f" --> {source}:8:6",
        "  |",
        "8 | \ty = tw.mma(a,\tb)",
        "  | \t    ^^^^^^^^^^^^",
        "  expected: axis K",
        "  note: a has K",
        "  note: b has J",
        "  mend: rename J",
    ]


@pytest.mark.parametrize("tab", [2, 4, 8])
@pytest.mark.parametrize("line", [3, 13])
def test_caret_stands_under_the_span_at_any_tab_width(source: str, line: int, tab: int) -> None:
    found = lines(Diagnostic("TW102", "m", Span(source, line, 5, 13)))
    shown, caret = (text.expandtabs(tab) for text in found[3:5])
    start = caret.index("^")
    assert shown[start : caret.rindex("^") + 1] == "tw.mma(a"


def test_line_numbers_of_any_width_keep_the_bars_in_one_column(source: str) -> None:
    for line in (3, 13):
        found = lines(Diagnostic("TW102", "m", Span(source, line, 5, 6)))
        assert len({text.index("|") for text in found[2:5]}) == 1


@pytest.mark.parametrize(("column", "end"), [(0, 0), (4, 4), (5, 3), (7, 1000), (1000, 1001)])
def test_caret_is_there_and_never_past_the_line(source: str, column: int, end: int) -> None:
    found = lines(Diagnostic("TW102", "m", Span(source, 1, column, end)))
    assert found[3] == "1 | import x"
    carets = found[4].removeprefix("  | ")
    assert carets.count("^") >= 1
    assert len(carets) <= len("import x") + 1


def test_without_a_source_file_the_place_is_still_named() -> None:
    assert render(Diagnostic("TW102", "m", Span("<stdin>", 2, 4, 9))) == (
        "error[TW102]: m\n --> <stdin>:2:5"
    )


def test_without_a_span() -> None:
    assert render(Diagnostic("TW502", "no compiler", mend="install one")) == (
        "error[TW502]: no compiler\n  mend: install one"
    )


def test_error_prints_its_diagnostic(source: str) -> None:
    error = ShapeError("m", span=Span(source, 3, 5, 6), expected="e", mend="f", notes=("n",))
    assert error.diagnostic == Diagnostic("TW102", "m", Span(source, 3, 5, 6), "e", "f", ("n",))
    assert str(error) == render(error.diagnostic)


@pytest.mark.parametrize("kind", subclasses(TilewrightError))
def test_errors_survive_a_process_boundary(kind: type[TilewrightError]) -> None:
    error = kind("m", span=Span("k.py", 3, 5, 6), expected="e", mend="f", notes=("n",))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.diagnostic == error.diagnostic
    assert str(copy) == str(error)


def test_codes_are_unique_and_well_formed() -> None:
    kinds = [k for k in subclasses(TilewrightError) if k.__module__ == diagnostics.__name__]
    codes = [kind.code for kind in kinds]
    assert len(kinds) > 15
    assert len(set(codes)) == len(codes)
    for kind in kinds:
        assert len(kind.code) == 5
        assert kind.code.startswith("TW")
        assert kind.code[2:].isdigit()
        assert "code" in vars(kind)
        assert kind.__doc__
