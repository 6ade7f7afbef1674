"""The programs in README.md and docs/errors.md do what the text beside them says."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

import tilewright
from tilewright.base.diagnostics import TilewrightError

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not hasattr(tilewright, "kernel"), reason="the package does not export the language yet"
)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(program: str, folder: Path) -> dict[str, object]:
    """Execute a program from a file of its own, so that its errors have lines to show."""
    path = folder / "example.py"
    path.write_text(program, encoding="utf-8")
    linecache.checkcache(str(path))
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(program, str(path), "exec"), names)
    return names


PRELUDE, *FAILING = blocks("docs/errors.md", "python")
MESSAGES = re.findall(
    r"^```python\n(?:(?!^```).)*?^```\n\n^```text\n(error.*?)\n",
    (ROOT / "docs/errors.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize(
    ("program", "message"),
    list(zip(FAILING, MESSAGES, strict=True)),
    ids=[m[6:11] for m in MESSAGES],
)
def test_an_example_fails_as_the_page_says(program: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TilewrightError) as caught:
        run(PRELUDE + program, tmp_path)
    assert str(caught.value).split("\n")[0] == message
    assert caught.value.diagnostic.mend


@pytest.mark.parametrize(
    ("target", "instruction"), [("sm_90a", "mma.sync"), ("gfx942", "__builtin_amdgcn_mfma")]
)
def test_the_tour_compiles(target: str, instruction: str, tmp_path: Path) -> None:
    (tour,) = blocks("README.md", "python")
    compiled = run(f'{tour}\nresult = gemm.compile(target="{target}")\n', tmp_path)["result"]
    assert instruction in getattr(compiled, "source")  # noqa: B009
