"""Kernels with asynchronous machinery."""

from __future__ import annotations

from tilewright.kernel.async_ops import AsyncStatement
from tilewright.kernel.ops import Kernel, walk


def is_asynchronous(kernel: Kernel) -> bool:
    """Whether agents beside the threads, or roles of their own, have a part in the kernel."""
    return any(isinstance(s, AsyncStatement) for s in walk(kernel.body))
