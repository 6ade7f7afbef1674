"""Strips: small tiles that are copied ahead with the operands of a product."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.kernel.async_ops import BulkLoad, PhaseRef, TensorMap
from tilewright.kernel.ops import Load, MemRef, Shared
from tilewright.lower.access import vectorise
from tilewright.lower.builder import Builder, Fragment
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr
from tilewright.schedule.strips import Strip


@dataclass(frozen=True, slots=True)
class StripRing:
    """A small tile that is copied ahead with the operands: its ring and its box."""

    strip: Strip
    ring: Shared
    box: TensorMap


def declare_strip(b: Builder, strip: Strip) -> StripRing:
    """Declare the ring of a strip and its box."""
    read, line = strip.read, strip.line
    shape = (b.plan.stages, strip.lines, strip.width)
    ring = b.buffer(f"{read.memory}_ring", read.type.dtype, shape, managed=True, span=read.span)
    order = (*(a for a in read.type.axes if a not in (line, strip.along)),
             *((line,) if line else ()), strip.along)  # fmt: skip
    extents = {strip.along: strip.width} | ({line: strip.rows} if line else {})
    box = TensorMap(
        b.name(f"{read.memory}_box"), read.memory, tuple(extents.get(a, 1) for a in order), 0,
        tuple(read.type.axes.index(a) for a in order), read.span,
    )  # fmt: skip
    b.maps.append(box)
    return StripRing(strip, ring, box)


def copy_strip(b: Builder, held: StripRing, looped: str, full: PhaseRef, step: Expr) -> BulkLoad:
    """One step's box."""
    read = held.strip.read
    start = {a: b.base(a) for a in read.type.axes}
    start[looped] = b.step_start(looped, step)
    width = held.strip.width
    start[held.strip.along] = start[held.strip.along] // width * width
    coordinates = tuple(start[read.type.axes[i]] for i in held.box.order)
    corner = MemRef(held.ring.name, (full.index, Expr.of(0), Expr.of(0)))
    return BulkLoad((), corner, held.box.name, coordinates, full, span=read.span)


def _inside(held: StripRing, start: Expr) -> Expr:
    """Where the tile begins in its box."""
    return start % held.strip.width


def load_strip(b: Builder, held: StripRing, slot: Expr, tiled: Tiled) -> Fragment:
    """A strip in a layout. The open scope remembers it as the value of its read."""
    strip, read = held.strip, held.strip.read
    made = b.fragment(read.memory, read.type.dtype, tiled, read.span)
    limit = gcd(b.target.vector_bytes // read.type.dtype.bytes, b.plan.axes[strip.along].tile)
    placed = b.place(tiled.layout)
    vector = vectorise(placed, tiled.inner, (strip.along,), strip.along, limit)
    line = vector.placed.position(strip.line) if strip.line else Expr.of(0)
    inside = _inside(held, b.base(strip.along))
    index = (slot, line, inside + vector.placed.position(strip.along))
    b.emit(
        Load(
            vector.over, made.ref(vector.placed.registers()), MemRef(held.ring.name, index),
            vector.width, vector.axis, span=read.span,
        )
    )  # fmt: skip
    b.scopes[-1].memo[read.id, tiled] = made
    return made
