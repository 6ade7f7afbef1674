"""Give every shared buffer its place in the block's shared memory."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.diagnostics import ResourceError
from tilewright.base.spans import Span
from tilewright.kernel.ops import Kernel, Shared
from tilewright.target.model import Target

ALIGNMENT = 128  # bytes: a whole line of banks, so that swizzles see the address bits they expect


def place_shared(kernel: Kernel, target: Target, span: Span | None) -> Kernel:
    """Lay the buffers out one after the other; ResourceError where they do not fit."""
    placed: list[Shared] = []
    end = 0
    for buffer in kernel.shared:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        placed.append(replace(buffer, offset=offset))
        end = offset + buffer.elements * buffer.dtype.bytes
    if end > target.shared_bytes:
        sizes = tuple(f"{s.name}: {s.elements * s.dtype.bytes} bytes" for s in placed)
        raise ResourceError(
            f"{kernel.name} needs {end} bytes of shared memory",
            span=span,
            expected=f"at most {target.shared_bytes} bytes on {target.name}",
            mend="use smaller tiles or fewer pipeline stages",
            notes=sizes,
        )
    return replace(kernel, shared=tuple(placed))
