"""Register layouts of tiles: how atoms and vector accesses spread a tile over the threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from tilewright.poly.layout import Layout, LayoutDigit, Place
from tilewright.schedule.plan import ContractPlan, Plan
from tilewright.target.model import MmaAtom

WARP, LANE, REGISTER = Place.WARP, Place.LANE, Place.REGISTER


@dataclass(frozen=True, slots=True)
class Tiled:
    """A layout, and how many of its last register digits one access or atom takes together."""

    layout: Layout
    inner: int

    def project(self, axes: Sequence[str]) -> Tiled:
        """The layout of an operand that lacks some of the axes."""
        layout = self.layout
        tail = layout.at(REGISTER)[len(layout.at(REGISTER)) - self.inner :]
        for axis in layout.axes:
            if axis not in axes:
                layout = layout.drop(axis)
        kept = make_layout(dict(layout.shape), layout.digits)
        return Tiled(kept, sum(d.axis in axes for d in tail))

    def with_units(self, axes: Sequence[str]) -> Tiled:
        """The layout with axes added of which the tile has one element."""
        shape = (*self.layout.shape, *((axis, 1) for axis in axes))
        return replace(self, layout=replace(self.layout, shape=shape)) if axes else self


def make_layout(shape: Mapping[str, int], digits: Sequence[LayoutDigit]) -> Layout:
    """A layout without digits of extent 1, and with neighbouring replicas of a place as one."""
    kept: list[LayoutDigit] = []
    for d in digits:
        last = kept[-1] if kept else None
        if d.extent == 1:
            continue
        if last is not None and last.axis is None and d.axis is None and last.place is d.place:
            kept[-1] = replace(last, extent=last.extent * d.extent)
        else:
            kept.append(d)
    return Layout(tuple(shape.items()), tuple(kept))


def warp_digits(
    plan: Plan,
    shape: Mapping[str, int],
    spread: Sequence[str],
    inside: Mapping[str, int] | None = None,
) -> list[LayoutDigit]:
    """One digit per axis that warps share. Axes outside `spread` replicate over their warps.

    `inside` says how many of an axis's warps share one atom: the digit counts such groups.
    """
    digits: list[LayoutDigit] = []
    for axis in plan.axes.values():
        count = axis.warps // (inside or {}).get(axis.axis, 1)
        if count > 1:
            mine = axis.axis in spread and axis.axis in shape
            stride = shape[axis.axis] // count if mine else 0
            digits.append(LayoutDigit(WARP, count, axis.axis if mine else None, stride))
    return digits


def operand_layout(
    plan: Plan, atom_layout: Layout, sizes: Mapping[str, int], names: Mapping[str, str],
    axes: Sequence[str], spread: Sequence[str],
) -> Tiled:  # fmt: skip
    """Repeat an atom's operand over a tile of an operand with these `axes`.

    `sizes` gives the atom's extent of ``m``, ``n``, ``k``; `names` their program axes. Each
    warp (or the warps that share an atom) takes one run of the axes in `spread`, and repeats the
    atom along it. Axes that the atom does not know are repeated element by element.
    """
    atom_size = {names[a]: sizes[a] for a in atom_layout.axes}
    shape = {a: plan.axes[a].tile for a in axes}
    inside = {names[d.axis]: d.extent for d in atom_layout.at(WARP) if d.axis}
    digits = warp_digits(plan, shape, spread, inside)
    for axis in sorted(axes, key=lambda a: a in atom_size):
        size = atom_size.get(axis, 1)
        warps = plan.axes[axis].warps // inside.get(axis, 1) if axis in spread else 1
        digits.append(LayoutDigit(REGISTER, shape[axis] // warps // size, axis, size))
    inner = [replace(d, axis=d.axis and names[d.axis]) for d in atom_layout.digits]
    registers = sum(d.place is REGISTER and d.extent > 1 for d in inner)
    return Tiled(make_layout(shape, [*digits, *inner]), registers)


def atom_layouts(
    plan: Plan, contract: ContractPlan, atom: MmaAtom, a_axes: Sequence[str],
    b_axes: Sequence[str], d_axes: Sequence[str],
) -> tuple[Tiled, Tiled, Tiled]:  # fmt: skip
    """The layouts of a, b and d for a contraction's tiles, over program axes."""
    names = {"m": contract.m or "", "n": contract.n or "", "k": contract.k}
    sizes = {"m": atom.m, "n": atom.n, "k": atom.k}
    rows = [a for a in d_axes if a != contract.k]
    a = operand_layout(plan, atom.a, sizes, names, a_axes, rows)
    b = operand_layout(plan, atom.b, sizes, names, b_axes, rows)
    d = operand_layout(plan, atom.d, sizes, names, d_axes, rows)
    return a, b, d


def blocked(plan: Plan, axes: Sequence[str], vector: int, *, flat: bool = False) -> Tiled:
    """Spread a tile over all threads: `vector` elements of the first axis to a register group,
    then lanes and warps along the axes in turn, and what is left to registers.

    `axes` runs from the fastest to the slowest. Where the plan gives warps to axes they stay
    there, unless `flat` is set: then warps continue where lanes end.
    """
    shape = {a: plan.axes[a].tile for a in axes}
    left = dict(shape)
    reach = dict.fromkeys(axes, 1)
    lanes: list[LayoutDigit] = []
    registers: list[LayoutDigit] = []
    warps = [] if flat else warp_digits(plan, shape, axes)
    for d in warps:
        if d.axis is not None:
            left[d.axis] //= d.extent

    def take(place: Place, axis: str, want: int) -> LayoutDigit:
        extent = gcd(left[axis], want)
        digit = LayoutDigit(place, extent, axis, reach[axis])
        left[axis] //= extent
        reach[axis] *= extent
        return digit

    inner = [take(REGISTER, axes[0], vector)] if axes else []
    for place, count, found in ((LANE, plan.warp_size, lanes), (WARP, plan.warps, warps)):
        if place is WARP and not flat:
            continue
        for axis in axes:
            digit = take(place, axis, count)
            found.insert(0, digit)
            count //= digit.extent
        found.insert(0, LayoutDigit(place, count, None, 0))
    for axis in reversed(axes):
        registers.append(take(REGISTER, axis, left[axis]))
    tail = sum(d.extent > 1 for d in inner)
    return Tiled(make_layout(shape, [*warps, *lanes, *registers, *inner]), tail)


def consecutive(tiled: Tiled, axis: str) -> Tiled:
    """The same digits, with each thread's elements of an axis side by side.

    Along the axis registers step by the least, then lanes, then warps.
    """
    order = (REGISTER, LANE, WARP)
    own = [d for d in tiled.layout.digits if d.axis == axis]
    strides: dict[LayoutDigit, int] = {}
    reach = 1
    for d in sorted(own, key=lambda d: (order.index(d.place), d.stride)):
        strides[d] = reach
        reach *= d.extent
    digits = tuple(replace(d, stride=strides.get(d, d.stride)) for d in tiled.layout.digits)
    return replace(tiled, layout=replace(tiled.layout, digits=digits))


def same_elements(left: Layout, right: Layout) -> bool:
    """Whether every register of every thread holds the same element under both."""
    return all(left.at(p) == right.at(p) for p in Place)


def register_units(layout: Layout) -> dict[tuple[str | None, int], int]:
    """Register digits split into steps of two (or of an odd extent): step to extent."""
    found: dict[tuple[str | None, int], int] = {}
    for d in layout.at(REGISTER):
        extent, stride = d.extent, d.stride
        while extent % 2 == 0:
            found[d.axis, stride] = 2
            extent, stride = extent // 2, stride * 2
        if extent > 1:
            found[d.axis, stride] = extent
    return found


def same_owner(left: Layout, right: Layout) -> bool:
    """Whether every thread holds the same elements under both, in whatever registers."""
    owners = all(left.at(p) == right.at(p) for p in (WARP, LANE))
    return owners and register_units(left) == register_units(right)


def registers_per_thread(layout: Layout) -> int:
    return prod(d.extent for d in layout.at(REGISTER))
