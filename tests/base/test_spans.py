"""Spans come from real calls in real files, and name the characters that were written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import tilewright
from tilewright.base.spans import Span, frame_span, user_span

# Passes for tilewright's own code: it stands between the user's line and `here`.
LIBRARY = """
from dataclasses import dataclass
from tilewright.base.spans import here

def probe(*args, **kwargs):
    return probe_inner()

def probe_inner():
    return here()

@dataclass
class Probe:
    size: int = 0
    def __post_init__(self):
        self.span = here()
    def __getitem__(self, key):
        return here()
    def __add__(self, other):
        return here()
    @property
    def where(self):
        return here()
"""

Run = Callable[..., Span]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Execute a user's program and return what it calls `span`."""
    library = ModuleType("tilewright.lang.probe")
    monkeypatch.setitem(sys.modules, library.__name__, library)
    exec(compile(LIBRARY, "probe.py", "exec"), library.__dict__)

    def execute(source: str, file: str = "user.py", module: str = "__main__") -> Span:
        path = tmp_path / file
        path.write_text(source, encoding="utf-8")
        names = {"__name__": module, "probe": library.probe, "Probe": library.Probe}
        exec(compile(source, str(path), "exec"), names)
        span = names["span"]
        assert isinstance(span, Span)
        assert span.file == str(path)
        return span

    return execute


def blamed(span: Span) -> str:
    return span.source()[span.column : span.end]


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("span = probe()", 1, "probe()"),
        ("x = 1\nspan = [1, probe(x, y=2)][1]", 2, "probe(x, y=2)"),
        ("if True:\n\tspan = probe(1)", 2, "probe(1)"),
        ("span = Probe(size=3).span", 1, "Probe(size=3)"),
        ("p = Probe()\nspan = p[1, 2]", 2, "p[1, 2]"),
        ("p = Probe()\nspan = 'é', p + 1\nspan = span[1]", 2, "p + 1"),
        ("p = Probe()\nspan = ('größer → ü', p.where)[1]", 2, "p.where"),
        ("def f():\n    return probe()\nspan = f()", 2, "probe()"),
        ("span = (lambda: probe(2))()", 1, "probe(2)"),
        ("span = [probe(i) for i in range(1)][0]", 1, "probe(i)"),
    ],
)
def test_span_is_the_innermost_call_of_the_user(
    run: Run, source: str, line: int, text: str
) -> None:
    span = run(source)
    assert span.line == line
    assert blamed(span) == text


def test_call_over_several_lines_is_cut_after_the_first(run: Run) -> None:
    span = run("span = probe(  \n    1,\n    2,\n)\n")
    assert (span.line, span.column) == (1, 7)
    assert blamed(span) == "probe("


def test_argument_on_a_later_line_blames_that_line(run: Run) -> None:
    span = run("span = max(\n    [1],\n    key=lambda _: 0,\n) and probe(\n    3)\n")
    assert span.line == 4
    assert blamed(span) == "probe("


@pytest.mark.parametrize("module", ["tilewright_models", "tilewrightx.kernels", "mine"])
def test_modules_of_like_names_are_the_users(run: Run, module: str) -> None:
    assert run("span = probe()", file="tilewright_kernels.py", module=module).line == 1


def test_no_span_where_no_user_is() -> None:
    assert user_span(None) is None


def test_source_of_a_missing_file_is_empty() -> None:
    assert Span("/nowhere/kernel.py", 3, 1, 2).source() == ""


def test_code_without_a_file_keeps_line_and_columns() -> None:
    names: dict[str, object] = {"span_of": lambda: frame_span(sys._getframe(1))}
    exec(compile("\nspan = span_of()", "<made up>", "exec"), names)
    assert names["span"] == Span("<made up>", 2, 7, 16)


def test_whole_line_is_blamed_where_the_interpreter_keeps_no_columns(tmp_path: Path) -> None:
    program = tmp_path / "user.py"
    program.write_text(
        "from tilewright.base.spans import here\n"
        "if True:\n"
        "    span = here()  # a call\n"
        "print(span.line, span.source()[span.column:span.end])\n"
    )
    source_root = str(Path(tilewright.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-X", "no_debug_ranges", str(program)],
        env={"PYTHONPATH": source_root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "3 span = here()  # a call\n"
