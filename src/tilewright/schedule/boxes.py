"""What the copy engine can move: boxes of tensors whose rows it can walk."""

from __future__ import annotations

from tilewright.kernel.ops import Tensor
from tilewright.poly.expr import Expr
from tilewright.schedule.tensors import Declared

BULK_ALIGN = 16  # bytes; of a tensor and of its strides, for the copy engine
BOX = 256  # elements along one axis of a box, at the most
LEAST_ROW, ROW_BYTES = 32, 128  # bytes of a row in shared memory: what swizzles permute
STRIP = 64  # rows of an output that leave together: those of one warpgroup instruction
PANELS = 2  # of a warpgroup: it fills one while the copy engine reads the other
MOST_PANELS = 4  # where there is room: more bring tiles of an epilogue earlier


def row_panels(tile: int, size: int) -> tuple[int, int]:
    """How a tile of elements of `size` bytes lies along its contiguous axis: the number of panels,
    and the elements of a row in each. Panels may go past the tile's end."""
    width = min(ROW_BYTES, max(LEAST_ROW, 1 << (tile * size - 1).bit_length())) // size
    return -(-tile // width), width


def bulk_problem(tensor: Tensor, declared: Declared) -> str | None:
    """Why the copy engine cannot move boxes of a tensor; None where it can."""
    size = tensor.dtype.bytes
    if tensor.align % BULK_ALIGN:
        return f"{tensor.name} is aligned to {tensor.align} bytes, not {BULK_ALIGN}"
    if not 1 <= len(tensor.shape) <= 5:
        return f"{tensor.name} has {len(tensor.shape)} axes"
    last = contiguous_position(tensor)
    if last is None:
        return f"no axis of {tensor.name} has stride 1"
    for position, stride in enumerate(tensor.strides):
        if position != last and (_multiple(stride, declared) * size) % BULK_ALIGN:
            return f"rows of {tensor.name} do not start at multiples of {BULK_ALIGN} bytes"
    return None


def contiguous_position(tensor: Tensor) -> int | None:
    """The position of the axis of stride 1; of several, the last with more than one element."""
    ones = [i for i, s in enumerate(tensor.strides) if s == Expr.of(1)]
    wide = [i for i in ones if tensor.shape[i] != Expr.of(1)]
    return (wide or ones or [None])[-1]


def _multiple(value: Expr, declared: Declared) -> int:
    """A number that divides a stride; 0 where it is zero, which no box can walk."""
    if value.is_const:
        return value.const or 1
    found = value.const
    for term, coefficient in value.terms:
        known = declared.symbols[term].multiple if isinstance(term, str) else 1
        step = abs(coefficient) * known
        while found % step if step else False:
            step, found = found % step, step
        found = step
    return found
