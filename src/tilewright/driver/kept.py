"""Compilations in the disk cache: a kernel's text, where its lines come from, and its proofs.

An entry is read only as far as it is asked for: a launch needs the declarations, the simulator
the whole kernel, a report the obligations.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict, cast

from tilewright.base.spans import Span
from tilewright.driver.cache_key import NoKeyError, compilation_key, sources_changed
from tilewright.kernel.declared import Interface
from tilewright.runtime.cache import DiskCache, cache_key, default_cache
from tilewright.target.model import Target

if TYPE_CHECKING:
    from tilewright.kernel.ops import Kernel
    from tilewright.poly.results import Obligation, Result


class Record(TypedDict):
    """What an entry holds. Spans are numbered from 1, in the order of `spans`; 0 is none."""

    ir: str
    spans: list[tuple[str, int, int, int]]
    lines: list[int]  # the span of each of the kernel's parts (see `kernel.spans`)
    obligations: list[tuple[str, str, str, int, str, str, str]]


@dataclass(frozen=True)
class Proven:
    """A kernel that was just made and proved."""

    kernel: Kernel
    obligations: tuple[Obligation, ...]

    @property
    def interface(self) -> Interface:
        return self.kernel

    @property
    def ir(self) -> str:
        from tilewright.kernel.text import print_kernel

        return print_kernel(self.kernel)


@dataclass(frozen=True)
class Kept:
    """A kernel as the cache holds it."""

    record: Record

    @property
    def ir(self) -> str:
        return self.record["ir"]

    @cached_property
    def interface(self) -> Interface:
        from tilewright.kernel.parse_declared import parse_declarations

        declared = parse_declarations(self.ir)
        first = zip(declared.tensors, self._spans, strict=False)  # the tensors' come first
        return replace(declared, tensors=tuple(replace(t, span=span) for t, span in first))

    @cached_property
    def kernel(self) -> Kernel:
        from tilewright.kernel.parse import parse_kernel
        from tilewright.kernel.spans import with_spans

        return with_spans(parse_kernel(self.ir), self._spans)

    @cached_property
    def obligations(self) -> tuple[Obligation, ...]:
        return tuple(self._obligation(*row) for row in self.record["obligations"])

    @cached_property
    def _table(self) -> tuple[Span | None, ...]:
        return (None, *(Span(*row) for row in self.record["spans"]))

    @property
    def _spans(self) -> tuple[Span | None, ...]:
        return tuple(self._table[number] for number in self.record["lines"])

    def _obligation(
        self, kind: str, subject: str, statement: str, span: int, end: str, text: str, check: str
    ) -> Obligation:
        from tilewright.poly.results import Assumed, Kind, Obligation, Proved, Unknown
        from tilewright.poly.scan import Line

        result: Result
        match end:
            case "proved":
                result = Proved(text)
            case "assumed":
                result = Assumed(text, Line(1, check).guard())
            case _:
                result = Unknown(text)
        return Obligation(Kind[kind], subject, result, self._table[span], statement)


Outcome = Proven | Kept


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of one compilation in a cache."""

    cache: DiskCache
    key: str

    def outcome(self) -> Kept | None:
        """What was kept here; None where nothing was, or nothing whole."""
        content = self.cache.get(self.key)
        if content is None:
            return None
        try:
            record = cast("Record", json.loads(content))
            whole = record.keys() == Record.__annotations__.keys()
        except (ValueError, AttributeError):  # no JSON, or no object
            return None
        return Kept(record) if whole else None

    def keep(self, outcome: Proven) -> None:
        """Keep a kernel and its proofs, unless its text does not say all of it."""
        from tilewright.poly.results import Refuted

        refuted = any(isinstance(o.result, Refuted) for o in outcome.obligations)
        if refuted or sources_changed():
            return
        record = _record(outcome)
        content = json.dumps(record, separators=(",", ":"))
        kept = Kept(json.loads(content))
        # By representation: a NaN does not equal itself.
        if (repr(kept.kernel), kept.obligations) == (repr(outcome.kernel), outcome.obligations):
            self.cache.put(self.key, content.encode())

    def text(self, part: str, make: Callable[[], str]) -> str:
        """Text that follows from the kernel, made where it is not kept yet."""
        key = cache_key(self.key, part)
        content = self.cache.get(key)
        if content is not None:
            return content.decode()
        text = make()
        if not sources_changed():
            self.cache.put(key, text.encode())
        return text


def entry_for(target: Target, *parts: object) -> Entry | None:
    """The place for what `parts` decide; None where the cache is off or a part has no name.

    TILEWRIGHT_DUMP asks for the sources that are compiled now, so it turns the cache off.
    """
    cache = None if os.environ.get("TILEWRIGHT_DUMP") else default_cache()
    if cache is None:
        return None
    try:
        return Entry(cache, compilation_key(target, *parts))
    except (NoKeyError, OSError):
        return None


def source_of(outcome: Outcome, target: Target, entry: Entry | None) -> str:
    """The source that the target's printer prints of a kernel."""

    def make() -> str:
        from tilewright.codegen import emit

        return emit(outcome.kernel, target)

    return entry.text("source", make) if entry else make()


# ---------------------------------------------------------------- records


def _record(outcome: Proven) -> Record:
    from tilewright.kernel.spans import spans_of

    numbers: dict[Span | None, int] = {None: 0}

    def number(span: Span | None) -> int:
        return numbers.setdefault(span, len(numbers))

    lines = [number(span) for span in spans_of(outcome.kernel)]
    obligations = [
        (o.kind.name, o.subject, o.statement, number(o.span), *_end(o.result))
        for o in outcome.obligations
    ]
    spans = [(s.file, s.line, s.column, s.end) for s in numbers if s is not None]
    return {"ir": outcome.ir, "lines": lines, "obligations": obligations, "spans": spans}


def _end(result: Result) -> tuple[str, str, str]:
    """How an obligation ended, in words, and what is checked."""
    from tilewright.kernel.phrases import show_guard
    from tilewright.poly.results import Assumed, Proved, Refuted, Unknown

    match result:
        case Proved(note):
            return "proved", note, ""
        case Assumed(contract, check):
            return "assumed", contract, show_guard(check)
        case Unknown(reason):
            return "unknown", reason, ""
        case Refuted(message):
            raise RuntimeError(f"a refuted obligation is not kept: {message}")
