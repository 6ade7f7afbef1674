"""The source spans of a kernel, apart from it: the text form drops them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tilewright.base.spans import Span
from tilewright.kernel.ops import Body, Kernel, children, walk

_Part = TypeVar("_Part")


def spans_of(kernel: Kernel) -> tuple[Span | None, ...]:
    """The span of each declaration and statement that may have one; tensors come first."""
    declared = (
        *kernel.tensors, *kernel.shared, *kernel.phases, *kernel.maps, *kernel.exchanges,
    )  # fmt: skip
    return tuple(getattr(part, "span", None) for part in (*declared, *walk(kernel.body)))


def with_spans(kernel: Kernel, spans: Sequence[Span | None]) -> Kernel:
    """A kernel without spans, with those that `spans_of` gave."""
    rest = iter(spans)
    return replace(
        kernel,
        tensors=_placed(kernel.tensors, rest),
        shared=_placed(kernel.shared, rest),
        phases=_placed(kernel.phases, rest),
        maps=_placed(kernel.maps, rest),
        exchanges=_placed(kernel.exchanges, rest),
        body=_body(kernel.body, rest),
    )


def _body(body: Body, spans: Iterator[Span | None]) -> Body:
    result: list[Any] = []
    for statement in body:
        (now,) = _placed((statement,), spans)
        inner = children(statement)
        result.append(replace(now, body=_body(inner, spans)) if inner else now)
    return tuple(result)


def _placed(parts: tuple[_Part, ...], spans: Iterator[Span | None]) -> tuple[_Part, ...]:
    """The parts, each with the next of the spans."""
    found: list[Any] = []
    for part in parts:
        span = next(spans)
        changed: Any = part
        found.append(part if span is None else replace(changed, span=span))
    return tuple(found)
