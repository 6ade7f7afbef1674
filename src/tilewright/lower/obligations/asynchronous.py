"""Kernels with asynchronous machinery: which of their obligations cannot be decided yet."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernel.async_ops import AsyncStatement
from tilewright.kernel.ops import Kernel, walk
from tilewright.poly.prove import Kind, Obligation, Unknown

# Kinds for which no proof reads asynchronous statements yet.
_OPEN = frozenset[Kind]()


def is_asynchronous(kernel: Kernel) -> bool:
    """Whether agents beside the threads, or roles of their own, have a part in the kernel."""
    return any(isinstance(s, AsyncStatement) for s in walk(kernel.body))


def unmodelled(kernel: Kernel) -> Iterator[Obligation]:
    """An open obligation of each kind that no proof covers, for a kernel with such statements."""
    found = next((s for s in walk(kernel.body) if isinstance(s, AsyncStatement)), None)
    if found is None:
        return
    name = type(found).__name__
    for kind in Kind:
        if kind in _OPEN:
            result = Unknown(f"{name} is not modelled yet")
            yield Obligation(kind, kernel.name, result, getattr(found, "span", None), name)
