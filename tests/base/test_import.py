"""Importing tilewright is cheap: no GPU library, no framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tilewright

PROGRAM = """
import sys
before = set(sys.modules)
import tilewright
print("\\n".join(sorted(set(sys.modules) - before)))
"""

# NumPy and islpy are dependencies and load fast; these are what would cost.
FORBIDDEN = {"cuda", "cupy", "hip", "jax", "nvidia", "tensorflow", "torch", "triton"}


def loaded_by_import() -> set[str]:
    source_root = str(Path(tilewright.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": source_root},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(result.stdout.split())


def test_import_loads_no_heavy_library() -> None:
    loaded = loaded_by_import()
    assert "tilewright" in loaded
    assert {name.partition(".")[0] for name in loaded} & FORBIDDEN == set()
