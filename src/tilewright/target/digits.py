"""Words for writing operand layouts as data: one call per digit, most significant first."""

from __future__ import annotations

from tilewright.poly.layout import Layout, LayoutDigit, Place


def lane(extent: int, axis: str, stride: int = 1) -> LayoutDigit:
    """A digit of the lane number."""
    return LayoutDigit(Place.LANE, extent, axis, stride)


def register(extent: int, axis: str, stride: int = 1) -> LayoutDigit:
    """A digit of the register number; the last one given counts within a 32-bit word."""
    return LayoutDigit(Place.REGISTER, extent, axis, stride)


def warp(extent: int, axis: str, stride: int = 1) -> LayoutDigit:
    """A digit of the warp's number within its group."""
    return LayoutDigit(Place.WARP, extent, axis, stride)


def over_mk(m: int, k: int, *digits: LayoutDigit) -> Layout:
    """The layout of operand a."""
    return Layout((("m", m), ("k", k)), digits)


def over_nk(n: int, k: int, *digits: LayoutDigit) -> Layout:
    """The layout of operand b."""
    return Layout((("n", n), ("k", k)), digits)


def over_mn(m: int, n: int, *digits: LayoutDigit) -> Layout:
    """The layout of the accumulator d."""
    return Layout((("m", m), ("n", n)), digits)
