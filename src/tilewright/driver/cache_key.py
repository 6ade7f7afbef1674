"""Names of compilations in the disk cache: everything that can change what comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from tilewright.driver import LOADED_AT
from tilewright.target import ALL_TARGETS
from tilewright.target.model import Target

_PACKAGE = str(Path(__file__).parents[1])


class NoKeyError(TypeError):
    """A value that has no spelling, so what depends on it cannot be kept."""


def compilation_key(target: Target, *parts: object) -> str:
    """A name for the compiler, the target and all of `parts`, spans included.

    NoKeyError where a part holds anything but plain data; OSError where the compiler cannot be
    read.
    """
    digest = sha256(compiler_identity().encode())
    # The targets that the package brings are covered by its own sources.
    known = any(target is one for one in ALL_TARGETS)
    for part in (target.name if known else target, *parts):
        for word in spelled(part):
            digest.update(word.encode())
            digest.update(b"\0")
    return digest.hexdigest()


def spelled(value: object) -> Iterator[str]:
    """The words of a value: those of two values are equal exactly where the values are alike.

    The order of mappings counts, that of sets does not. NoKeyError for anything but numbers,
    text, enumerations, collections and data classes of them.
    """
    match value:
        case Enum():
            yield f"{type(value).__qualname__}.{value.name}"
        case None | bool() | int() | float() | str() if type(value).__module__ == "builtins":
            yield f"{type(value).__name__} {value!r}"
        case Mapping():
            yield f"mapping {len(cast('Mapping[object, object]', value))}"
            for key, item in cast("Mapping[object, object]", value).items():
                yield from spelled(key)
                yield from spelled(item)
        case tuple() | list():
            yield f"sequence {len(cast('Sequence[object]', value))}"
            for item in cast("Sequence[object]", value):
                yield from spelled(item)
        case frozenset() | set():
            words = sorted(" ".join(spelled(item)) for item in cast("AbstractSet[object]", value))
            yield f"set {len(words)}"
            yield from words
        case _:
            names = _field_names(type(value))
            yield f"{type(value).__qualname__} {len(names)}"
            for name in names:
                yield from spelled(getattr(value, name))


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    if not is_dataclass(kind):
        raise NoKeyError(f"a {kind.__qualname__} has no spelling")
    return tuple(field.name for field in fields(kind))


@cache
def compiler_identity() -> str:
    """A digest of the compiler: its sources, and which isl answers its questions.

    NoKeyError where a source has changed since this process loaded the compiler.
    """
    if sources_changed():
        raise NoKeyError("the compiler's sources are not those that run")
    digest = sha256()
    for path in _sources():
        with open(path, "rb") as file:  # noqa: PTH123 - a third of the time
            content = file.read()
        digest.update(f"{path[len(_PACKAGE) :]} {len(content)} ".encode())
        digest.update(content)
    # To name the library is enough: an import would cost more than all the rest.
    found = find_spec("islpy")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).glob("_isl*")):
            facts = path.stat()
            digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}".encode())
    return digest.hexdigest()


def sources_changed() -> bool:
    """Whether a source is newer than what this process has loaded."""
    return any(os.stat(path).st_mtime > LOADED_AT for path in _sources())  # noqa: PTH116


def _sources() -> Iterator[str]:
    for folder, folders, files in os.walk(_PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (f"{folder}/{name}" for name in sorted(files) if name.endswith(".py"))
