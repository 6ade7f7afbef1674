"""Shared by every test: the `gpu` mark, golden files, and a compile cache of the test run's own."""

from __future__ import annotations

import ctypes
import difflib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# Times are not asserted: the machine may be busy. CI tries the same examples each time, so that
# a change is judged by itself; elsewhere new ones are searched.
settings.register_profile("search", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "search")

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing with them",
    )
    parser.addoption(
        "--exhaustive", action="store_true", help="run the tests that take hours as well"
    )


@cache
def missing_gpu() -> str:
    """Why there is no CUDA device; empty where there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver on this machine"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the CUDA driver reports error {status}"
    return "" if count.value else "no CUDA device on this machine"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("exhaustive") and not config.getoption("--exhaustive"):
            item.add_marker(pytest.mark.skip(reason="takes hours; --exhaustive runs it"))
        if item.get_closest_marker("gpu") and missing_gpu():
            item.add_marker(pytest.mark.skip(reason=missing_gpu()))


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled kernels, empty at the start of the run."""
    folder = tmp_path_factory.mktemp("tilewright-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)` compares `text` with ``golden/<module>/<name>`` beside the test.

    `pytest --update-golden` writes the file; review it as part of the change.
    """
    folder = request.path.parent / "golden" / request.path.stem
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = folder / name
        text = text if text.endswith("\n") else text + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} is missing; run pytest --update-golden to write it", pytrace=False)
        kept = path.read_text(encoding="utf-8")
        if kept != text:
            lines = difflib.unified_diff(
                kept.splitlines(), text.splitlines(), str(path), "this run", lineterm=""
            )
            pytest.fail("\n".join(lines), pytrace=False)

    return compare
