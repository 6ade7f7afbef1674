"""The page about fusions: its program runs, and it lists the operations that there are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tilewright.fusion.records import OPERATIONS

PAGE = (Path(__file__).parents[2] / "docs/fusion.md").read_text(encoding="utf-8")


def test_the_program_computes_what_it_says() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(program, "fusion.md", "exec"), names)
    found = names["y"].astype(np.float64)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-2)
    kernels = [k.kernel.name for k in names["compiled"].kernels]
    assert kernels == ["matmul0", "reduction1"]
    assert "contraction" in names["compiled"].explain()


def test_every_operation_is_listed_once() -> None:
    rows = re.findall(r"^\| [\w, ]+ \| (`.*) \|$", PAGE, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(OPERATIONS)
