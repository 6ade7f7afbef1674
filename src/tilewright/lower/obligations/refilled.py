"""Definitions of a fragment that leave nothing of earlier ones."""

from __future__ import annotations

from itertools import product
from math import prod

from tilewright.kernel.ops import Assign, Load, Loop, RegRef
from tilewright.kernel.scopes import written_fragment
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.holdings import vector
from tilewright.lower.obligations.scope import Frame, Program, Site

_MOST = 1 << 10  # registers of a fragment that are counted


def refills(program: Program, site: Site, reader: Frame) -> bool:
    """Whether a statement before the reader defines its whole fragment, whenever the reader runs.

    It stands in no condition that the reader does not stand in, and in loops of a fixed number of
    turns besides those around the reader, which it has then gone through. Nothing else in these
    loops defines the fragment: that would come again after a part of it was filled.
    """
    match site.statement:
        case Load(over=over, dst=dst, width=width):
            index = vector(dst.index, -1, width)
        case Assign(over=over, dst=dst):
            index, width = dst.index, 1
        case _:
            return False
    outer = len(site.frame.common(reader))
    extents: dict[str, int] = dict(over) | {VECTOR: width}
    for statement in site.frame.around[outer:]:
        if not isinstance(statement, Loop) or not statement.extent.is_const:
            return False
        extents[statement.var] = statement.extent.const
    if min(extents.values()) < 1 or _defined_beside(program, site, dst.name, outer):
        return False
    return _covers(program, RegRef(dst.name, index), extents)


def _defined_beside(program: Program, site: Site, name: str, outer: int) -> bool:
    """Whether the loops around the site, but for the outer ones, define the fragment elsewhere."""
    within = site.frame.path[: outer + 1]
    return len(site.frame.around) > outer and any(
        other is not site
        and other.frame.path[: outer + 1] == within
        and (ref := written_fragment(other.statement)) is not None
        and ref.name == name
        for other in program.sites
    )


def _covers(program: Program, ref: RegRef, extents: dict[str, int]) -> bool:
    """Whether the counters' values name every register of the fragment."""
    shape = program.kernel.fragment(ref.name).shape
    used = frozenset[str]().union(*(e.variables() for e in ref.index))
    ranges = {name: extents[name] for name in used if name in extents}
    if len(ranges) < len(used) or prod(shape) > _MOST or prod(ranges.values()) > _MOST:
        return False
    found = {
        tuple(e.evaluate(dict(zip(ranges, values, strict=True))) for e in ref.index)
        for values in product(*map(range, ranges.values()))
    }
    return len(found) == prod(shape)
