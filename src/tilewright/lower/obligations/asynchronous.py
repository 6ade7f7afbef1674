"""Kernels with asynchronous machinery: which of their obligations cannot be decided yet."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernel.async_ops import AsyncStatement
from tilewright.kernel.ops import Kernel, walk
from tilewright.poly.prove import Kind, Obligation, Unknown


def unmodelled(kernel: Kernel) -> Iterator[Obligation]:
    """An open obligation of each kind, where the kernel has statements that no proof reads."""
    found = next((s for s in walk(kernel.body) if isinstance(s, AsyncStatement)), None)
    if found is None:
        return
    name = type(found).__name__
    for kind in Kind:
        result = Unknown(f"{name} is not modelled yet")
        yield Obligation(kind, kernel.name, result, getattr(found, "span", None), name)
