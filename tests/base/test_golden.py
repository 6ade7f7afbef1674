"""The `golden` fixture, run as a test author sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TEST = '''
def test_text(golden):
    golden("kernel.txt", """{text}""")
'''


def pytest_run(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """The exit status and output of a test module that compares `text` with its golden file."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_print.py").write_text(TEST.format(text=text))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    return result.returncode, result.stdout


def test_golden_files(tmp_path: Path) -> None:
    kept = tmp_path / "golden" / "test_print" / "kernel.txt"

    status, output = pytest_run(tmp_path, "a\nb")
    assert status == 1
    assert "run pytest --update-golden to write it" in output
    assert not kept.exists()

    assert pytest_run(tmp_path, "a\nb", "--update-golden")[0] == 0
    assert kept.read_text() == "a\nb\n"
    assert pytest_run(tmp_path, "a\nb")[0] == 0

    status, output = pytest_run(tmp_path, "a\nc")
    assert status == 1
    assert "-b\n+c\n" in output
    assert kept.read_text() == "a\nb\n"
