"""A disk cache of compiled kernels, safe under processes that share it.

An entry is written to a file of its own and renamed into place, so a reader sees all of it or
none. Each carries a digest of its content; a damaged one counts as absent.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_DIGEST_BYTES = 32


def cache_key(*parts: str) -> str:
    """A name for everything in `parts`: equal for equal parts only, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class DiskCache:
    """Bytes by key in `folder`, which is made when first needed."""

    folder: Path

    def get(self, key: str) -> bytes | None:
        """The entry; None where there is none, or none that is whole."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, key: str, content: bytes) -> None:
        """Write the entry. A folder that cannot be written leaves the cache as it was."""
        import tempfile  # a reader does without

        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)

    def get_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """The entry, built and kept where it was absent. Processes may build one side by side."""
        content = self.get(key)
        if content is None:
            content = build()
            self.put(key, content)
        return content

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]


def default_cache() -> DiskCache | None:
    """The cache in TILEWRIGHT_CACHE_DIR, else in the platform's folder for caches.

    None where TILEWRIGHT_CACHE is 0.
    """
    if os.environ.get("TILEWRIGHT_CACHE") == "0":
        return None
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    return DiskCache(Path(chosen) if chosen else _platform_folder() / "tilewright")


def _platform_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
