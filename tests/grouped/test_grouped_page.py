"""The programs in docs/grouped.md run and do what the page says."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "grouped.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


SIZES = {"T": 200, "E": 3, "G": 3, "M": 64, "N": 64, "K": 64}
NAMES = ("experts", "gradient", "gemm")


@pytest.mark.parametrize(
    ("program", "kernel"), list(zip(PROGRAMS, NAMES, strict=True)),
    ids=["rows", "terms", "list"],
)  # fmt: skip
def test_programs_run(program: str, kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(program, encoding="utf-8")
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, str(path), "exec"), names)
    used = names[kernel].program.axes()
    compiled = names[kernel].compile("sm_90a", bindings={a: SIZES[a] for a in used})
    assert compiled.compilation.plan.roles is not None
