"""The programs of docs/tuning.md print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"


def test_the_page_shows_what_its_programs_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    program, shown = ("".join(b for kind, b in blocks if kind == k) for k in ("python", "text"))
    path = tmp_path / "page.py"  # a file of its own, so that its kernels have lines
    path.write_text(program, encoding="utf-8")
    exec(compile(program, str(path), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == shown
