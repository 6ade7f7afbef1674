"""Importing tilewright is cheap: no tensor library, no GPU library, no compiler."""

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

# islpy is allowed (it is small, and the proofs need it); these are what would cost.
FORBIDDEN = {"cuda", "cupy", "numpy", "ml_dtypes", "torch", "triton", "hip", "nvidia"}


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
