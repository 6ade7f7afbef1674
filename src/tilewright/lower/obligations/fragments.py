"""Operands of matrix instructions in digits: who holds which element."""

from __future__ import annotations

from tilewright.kernel.ops import Over
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Layout, Place


class Atom:
    """A variable for each digit of an operand's layout in an atom."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout = layout
        self.registers = self._digits(Place.REGISTER, f"{name} register ")
        self.lanes = self._digits(Place.LANE, f"{name} lane ")
        self.warps = self._digits(Place.WARP, f"{name} warp ")
        self.register = number(self.registers)
        self.lane = number(self.lanes)
        self.warp = number(self.warps)

    @property
    def digits(self) -> Over:
        return (*self.registers, *self.lanes, *self.warps)

    def _digits(self, place: Place, name: str) -> Over:
        return tuple((f"{name}{i}", d.extent) for i, d in enumerate(self.layout.at(place)))

    def position(self, axis: str) -> Expr:
        """The coordinate on an axis of the operand's tile."""
        total = Expr.of(0)
        places = (Place.REGISTER, Place.LANE, Place.WARP)
        groups = (self.registers, self.lanes, self.warps)
        for place, digits in zip(places, groups, strict=True):
            for digit, (name, _) in zip(self.layout.at(place), digits, strict=True):
                if digit.axis == axis:
                    total = total + Expr.of(name) * digit.stride
        return total


def number(digits: Over) -> Expr:
    """The number that the digits write, most significant first."""
    total = Expr.of(0)
    for name, extent in digits:
        total = total * extent + name
    return total
