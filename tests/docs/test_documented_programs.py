"""The programs in README.md and docs/errors.md do what the text beside them says."""

from __future__ import annotations

import linecache
import re
from dataclasses import replace
from math import erf
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tilewright.base.diagnostics import TilewrightError
from tilewright.driver.compile import Rewrites
from tilewright.driver.compiled import CompiledKernel
from tilewright.driver.kernel import TileKernel
from tilewright.poly.expr import Expr
from tilewright.poly.results import Proved
from tilewright.schedule.plan import Plan

ROOT = Path(__file__).parents[2]


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
    tour, *_ = blocks("README.md", "python")
    gemm = run(tour, tmp_path)["gemm"]
    assert isinstance(gemm, TileKernel)
    compiled = gemm.compile(target)
    assert isinstance(compiled, CompiledKernel)
    assert instruction in compiled.source
    assert compiled.ir.startswith(f"kernel gemm target {target}")


def test_the_schedule_compiles_and_draws_what_the_readme_shows(tmp_path: Path) -> None:
    tour, schedule, *_ = blocks("README.md", "python")
    compiled = run(tour + schedule, tmp_path)["compiled"]
    assert isinstance(compiled, CompiledKernel)
    (drawing,) = (t for t in blocks("README.md", "text") if t.startswith("order of tiles"))
    explained = [line.strip() for line in compiled.explain().splitlines()]
    start = explained.index(drawing.splitlines()[0])
    assert explained[start : start + 5] == drawing.splitlines()


def test_warpgroups_take_turns_with_every_proof(tmp_path: Path) -> None:
    tour, schedule, turns, *_ = blocks("README.md", "python")
    compiled = run(tour + schedule + turns, tmp_path)["compiled"]
    assert isinstance(compiled, CompiledKernel)
    assert all(isinstance(o.result, Proved) for o in compiled.proofs)
    assert "2 multiply, a tile each in turns" in compiled.explain()


def test_blocks_share_terms_with_every_proof(tmp_path: Path) -> None:
    tour, schedule, _, shared, streamed, _ = blocks("README.md", "python")
    compiled = run(tour + schedule + shared, tmp_path)["compiled"]
    assert isinstance(compiled, CompiledKernel)
    assert compiled.compilation.kernel.cluster == 4
    assert all(isinstance(o.result, Proved) for o in compiled.proofs)
    assert "K = 256*step[4] + 64*part[4] + tile[64]" in compiled.explain()
    compiled = run(tour + schedule + streamed, tmp_path)["compiled"]
    assert isinstance(compiled, CompiledKernel)
    assert all(isinstance(o.result, Proved) for o in compiled.proofs)
    assert "5 blocks share the 32 steps of 2 tiles, 7 each" in compiled.explain()


def test_the_fusion_gives_what_numpy_gives(tmp_path: Path) -> None:
    tour, *_, fusion = blocks("README.md", "python")
    names = run(tour + fusion, tmp_path)
    x, w, bias = (a.astype(np.float64) for a in cast(list[Any], names["arrays"]))
    wanted = x @ w.T + bias
    wanted = 0.5 * wanted * (1.0 + np.vectorize(erf)(wanted / np.sqrt(2.0)))
    found = cast(Any, names["result"]).astype(np.float64)
    assert np.abs(found - wanted).max() < 4e-3 * np.abs(wanted).max()


def without_half_of_n(plan: Plan) -> Plan:
    half = replace(plan.axes["N"], tile=16, steps_override=Expr.of(1))
    return replace(plan, axes={**plan.axes, "N": half})


def test_half_an_axis_left_out_is_refuted_as_the_readme_shows(tmp_path: Path) -> None:
    example = (ROOT / "examples" / "chained_gemm.py").read_text(encoding="utf-8")
    kernel = run(example, tmp_path)["chained_gemm"]
    assert isinstance(kernel, TileKernel)
    with pytest.raises(TilewrightError) as caught:
        kernel.compile("gfx942", rewrites=Rewrites(plan=without_half_of_n))
    said = str(caught.value).replace(str(tmp_path / "example.py"), "examples/chained_gemm.py")
    shown = next(text for text in blocks("README.md", "text") if text.startswith("error"))
    assert said.splitlines()[:8] == shown.splitlines()[:8]
