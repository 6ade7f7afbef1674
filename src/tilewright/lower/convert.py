"""Layout conversions: nothing, a move between registers, or a trip through shared memory."""

from __future__ import annotations

from tilewright.base.spans import Span
from tilewright.kernel.ops import Assign, Read
from tilewright.lower.access import load_shared, store_shared
from tilewright.lower.builder import Builder, Fragment
from tilewright.mapping.layouts import Tiled, register_units, same_elements, same_owner
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Layout, Place


def convert(b: Builder, value: Fragment, tiled: Tiled, span: Span | None) -> Fragment:
    """The same elements in another layout, by the cheapest means that suffices."""
    if value.tiled.inner == tiled.inner and same_elements(value.layout, tiled.layout):
        return value
    if same_owner(value.layout, tiled.layout):
        return _move(b, value, tiled, span)
    return through_shared(b, value, tiled, span, "the reader's threads hold other elements")


def _move(b: Builder, value: Fragment, tiled: Tiled, span: Span | None) -> Fragment:
    """Rename registers. Compilers make nothing of it once the loops are unrolled."""
    made = b.fragment(f"{value.name}_moved", value.dtype, tiled, span)
    units = {key: b.register_digit(f"u{i}") for i, key in enumerate(register_units(tiled.layout))}
    over = tuple((str(units[key]), extent) for key, extent in register_units(tiled.layout).items())
    source = _from_units(value.layout, units)
    b.emit(
        Assign(
            over, made.ref(_from_units(tiled.layout, units)),
            Read(value.ref(source), value.dtype), span,
            note="same owner: a move between registers",
        )
    )  # fmt: skip
    return made


def _from_units(layout: Layout, units: dict[tuple[str | None, int], Expr]) -> tuple[Expr, ...]:
    """Each register digit as a sum of the units that it is made of."""
    found: list[Expr] = []
    for digit in layout.at(Place.REGISTER):
        total = Expr.of(0)
        for (axis, stride), unit in units.items():
            if axis == digit.axis and digit.stride <= stride < digit.stride * digit.extent:
                total = total + unit * (stride // digit.stride)
        found.append(total)
    return tuple(found)


def through_shared(
    b: Builder, value: Fragment, tiled: Tiled, span: Span | None, why: str
) -> Fragment:
    """Write a tile to shared memory in one layout and read it in another."""
    axes = _buffer_axes(value.layout, tiled.layout)
    shape = tuple(value.layout.extent(a) for a in axes) or (1,)
    pitch = 0
    if len(shape) > 1:
        # One access width of padding keeps rows from starting in the same bank.
        pitch = shape[-1] + max(1, b.target.vector_bytes // value.dtype.bytes)
    buffer = b.buffer(f"{value.name}_exchange", value.dtype, shape, pitch=pitch, span=span)
    lead = () if axes else (Expr.of(0),)
    store_shared(b, buffer, axes, lead, value, span=span, note=f"exchange: {why}")
    made = b.fragment(f"{value.name}_exchanged", value.dtype, tiled, span)
    load_shared(b, buffer, axes, lead, made, span=span, note=f"exchange: {why}")
    return made


def sorted_axes(layout: Layout) -> list[str]:
    """A tile's axes in a buffer for one layout of it."""
    return _buffer_axes(layout, layout)


def _buffer_axes(source: Layout, target: Layout) -> list[str]:
    """The tile's axes with the one that vectors run along last."""

    def vector_axis(layout: Layout) -> str | None:
        digits = layout.at(Place.REGISTER)
        return digits[-1].axis if digits and digits[-1].stride == 1 else None

    axes = sorted(source.axes, key=lambda a: source.extent(a) > 1)
    last = vector_axis(target) or vector_axis(source)
    if last is not None and last in axes:
        axes.remove(last)
        axes.append(last)
    return axes
