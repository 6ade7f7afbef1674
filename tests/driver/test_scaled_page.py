"""The programs in docs/scaled.md run, with warp roles, and do what the page says."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

from tilewright.poly.results import Proved

PAGE = Path(__file__).parents[2] / "docs" / "scaled.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_programs_run(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    for number, program in enumerate(PROGRAMS):
        path = tmp_path / f"example{number}.py"
        path.write_text(program, encoding="utf-8")
        linecache.checkcache(str(path))
        exec(compile(program, str(path), "exec"), names)
        compiled = names["compiled"]
        assert compiled.compilation.plan.roles is not None
        assert all(isinstance(p.result, Proved) for p in compiled.proofs)
    assert len(PROGRAMS) == 2
