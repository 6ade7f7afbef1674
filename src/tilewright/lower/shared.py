"""Give every shared buffer its place in the block's shared memory."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.diagnostics import ResourceError
from tilewright.base.rounding import round_up
from tilewright.base.spans import Span
from tilewright.kernel.async_ops import PHASE_BYTES, Phases
from tilewright.kernel.ops import Kernel, Shared
from tilewright.target.model import Target

ALIGNMENT = 128  # bytes: a whole line of banks, so that swizzles see the address bits they expect


def place_shared(kernel: Kernel, target: Target, span: Span | None) -> Kernel:
    """Lay buffers and barriers out one after the other; ResourceError where they do not fit."""
    placed: list[Shared] = []
    end = 0
    for buffer in kernel.shared:
        offset = round_up(end, _alignment(buffer))
        placed.append(replace(buffer, offset=offset))
        end = offset + buffer.elements * buffer.dtype.bytes
    phases: list[Phases] = []
    for array in kernel.phases:
        offset = round_up(end, PHASE_BYTES)
        phases.append(replace(array, offset=offset))
        end = offset + array.count * PHASE_BYTES
    if end > target.shared_bytes:
        sizes = tuple(f"{s.name}: {s.elements * s.dtype.bytes} bytes" for s in placed)
        raise ResourceError(
            f"{kernel.name} needs {end} bytes of shared memory",
            span=span,
            expected=f"at most {target.shared_bytes} bytes on {target.name}",
            mend="use smaller tiles or fewer pipeline stages",
            notes=sizes,
        )
    return replace(kernel, shared=tuple(placed), phases=tuple(phases))


def _alignment(buffer: Shared) -> int:
    """Bytes; a swizzle of 16-byte pieces repeats after eight of its rows."""
    swizzle = buffer.swizzle
    return ALIGNMENT if swizzle is None else max(ALIGNMENT, (16 << swizzle.bits) * 8)
