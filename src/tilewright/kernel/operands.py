"""How matrix operands lie in shared memory, as the matrix unit can read them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernel.async_ops import TileRef
from tilewright.kernel.ops import Shared


@dataclass(frozen=True, slots=True)
class Descriptor:
    """How the matrix unit walks an operand in shared memory; strides are bytes.

    Eight rows (or, `across`, eight steps of depth) of `swizzle` bytes make a group; `stride`
    leads to the next group, `leading` to the next panel. `across`: the operand's rows, not its
    depth, run along the buffer's last axis.
    """

    leading: int
    stride: int
    swizzle: int
    across: bool


def swizzle_bytes(buffer: Shared) -> int | None:
    """Which of the hardware's swizzles the buffer has: 0, 32, 64 or 128; None for another."""
    swizzle = buffer.swizzle
    if swizzle is None or swizzle.bits == 0:
        return 0
    pieces = (swizzle.base, swizzle.shift) == ((16 // buffer.dtype.bytes).bit_length() - 1, 3)
    return 16 << swizzle.bits if pieces and swizzle.bits in (1, 2, 3) else None


def describe(buffer: Shared, ref: TileRef, rows: int, depth: int) -> Descriptor | str:
    """The descriptor of a rows x depth operand, or why there is none."""
    size, last = buffer.dtype.bytes, len(buffer.shape) - 1
    swizzle = swizzle_bytes(buffer)
    if not swizzle or buffer.shape[-1] * size != swizzle or buffer.pitch:
        return f"{buffer.name} has no dense rows as long as a swizzle of 32, 64 or 128 bytes"
    axes = (ref.rows, ref.depth, *([ref.panel] if ref.panel >= 0 else []))
    if len(set(axes)) != len(axes) or not all(0 <= axis <= last for axis in axes):
        return f"{buffer.name} has no axes {', '.join(map(str, axes))} apart"
    if last not in (ref.rows, ref.depth):
        return f"neither rows nor depth run along the last axis of {buffer.name}"
    across = ref.rows == last
    if across and size != 2:
        return f"rows of {buffer.dtype} cannot run along the last axis of {buffer.name}"
    outer, along = (ref.depth, rows) if across else (ref.rows, depth)
    if along * size > swizzle and ref.panel < 0:
        return f"{along} elements pass the end of the rows of {buffer.name}, with no panel axis"
    strides = [stride * size for stride in buffer.strides]
    if strides[outer] != swizzle:
        return f"rows of {buffer.name} do not follow one another along axis {outer}"
    leading = strides[ref.panel] if ref.panel >= 0 else 16
    return Descriptor(leading, 8 * swizzle, swizzle, across)
