"""Tiles of a ring's slot in registers, for operands that threads compute."""

from __future__ import annotations

from math import gcd

from tilewright.kernel.ops import Load, MemRef
from tilewright.lower.access import matrix_load, vectorise
from tilewright.lower.builder import Builder, Fragment, Placed
from tilewright.lower.rings import Operand
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr


def load_tile(b: Builder, operand: Operand, slot: Expr, tiled: Tiled) -> Fragment:
    """The tile in a layout, by matrix loads where it lies as they take it.

    The open scope remembers it as what the program makes of the tile's read.
    """
    read, ring = operand.read, operand.ring
    made = b.fragment(read.memory, read.type.dtype, tiled, read.span)
    lines = operand.terms if operand.across else operand.rows
    axes = (lines, operand.along)
    limit = gcd(b.target.vector_bytes // ring.dtype.bytes, operand.width)
    plain = vectorise(b.place(tiled.layout), tiled.inner, axes, operand.along, limit)
    matrix, vector = matrix_load(b, axes, made, plain)
    panel, within = _in_panels(vector.placed, operand.along, operand.width)
    index = (slot, panel, vector.placed.position(lines), within)
    b.emit(
        Load(
            vector.over, made.ref(vector.placed.registers()), MemRef(ring.name, index),
            vector.width, vector.axis, matrix=matrix, span=read.span,
        )
    )  # fmt: skip
    b.scopes[-1].memo[operand.split.value, tiled] = made
    return made


def _in_panels(placed: Placed, axis: str, width: int) -> tuple[Expr, Expr]:
    """A position along an axis as a panel of `width` elements and a place in it.

    Digit by digit: their parts within a panel add up to less than a panel.
    """
    panel, within = Expr.of(0), Expr.of(0)
    for digit, variable in zip(placed.layout.digits, placed.variables, strict=True):
        if digit.axis != axis:
            continue
        position = variable * digit.stride
        if digit.stride * digit.extent <= width:
            within = within + position
        else:
            panel, within = panel + position // width, within + position % width
    return panel, within
