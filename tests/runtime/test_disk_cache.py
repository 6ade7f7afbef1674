"""The disk cache: whole entries or none, also under processes that write at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.runtime.cache import DiskCache, cache_key, default_cache


def test_an_entry_comes_back(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "deep" / "folder")
    key = cache_key("source", "flags")
    assert cache.get(key) is None
    cache.put(key, b"machine code")
    assert cache.get(key) == b"machine code"
    assert DiskCache(cache.folder).get(key) == b"machine code"


def test_keys_tell_parts_apart() -> None:
    keys = {cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key("c", "ab")}
    assert len(keys) == 4
    assert cache_key("ab", "c") == cache_key("ab", "c")


@pytest.mark.parametrize("cut", [0, 10, 40])
def test_a_damaged_entry_is_built_again(tmp_path: Path, cut: int) -> None:
    cache = DiskCache(tmp_path)
    key = cache_key("x")
    cache.put(key, b"0123456789abcdef")
    (path,) = (p for p in tmp_path.rglob("*") if p.is_file())
    path.write_bytes(path.read_bytes()[:cut])
    assert cache.get(key) is None
    assert cache.get_or_build(key, lambda: b"new") == b"new"
    assert cache.get(key) == b"new"


def test_what_is_there_is_not_built(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    built: list[int] = []

    def build() -> bytes:
        built.append(1)
        return b"code"

    assert cache.get_or_build("k" * 64, build) == b"code"
    assert cache.get_or_build("k" * 64, build) == b"code"
    assert built == [1]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache")
    assert cache.get_or_build("k" * 64, lambda: b"code") == b"code"
    assert cache.get("k" * 64) is None


def test_the_environment_chooses_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert default_cache().folder == tmp_path
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    assert default_cache().folder.name == "tilewright"


_WRITER = """
import sys
from pathlib import Path
from tilewright.runtime.cache import DiskCache
cache = DiskCache(Path(sys.argv[1]))
content = sys.argv[2].encode() * 200_000
for _ in range(40):
    cache.put("a" * 64, content)
    found = cache.get("a" * 64)
    assert found is not None and found in (b"x" * 200_000, b"y" * 200_000, b"z" * 200_000)
"""


def test_processes_write_one_entry_at_once(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), letter], env=None)
        for letter in "xyz"
    ]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a" * 62]
