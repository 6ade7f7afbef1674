"""Definitions of a fragment that leave nothing of earlier ones."""

from __future__ import annotations

from itertools import product
from math import prod

from tilewright.kernel.ops import Assign, Load, Loop, RegRef
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.holdings import vector
from tilewright.lower.obligations.scope import Frame, Program, Site

_MOST = 1 << 10  # registers of a fragment that are counted


def refills(program: Program, site: Site, reader: Frame) -> bool:
    """Whether a statement before the reader defines its whole fragment, whenever the reader runs.

    It stands in no condition that the reader does not stand in, and in loops of a fixed number of
    turns besides those around the reader, which it has then gone through.
    """
    match site.statement:
        case Load(over=over, dst=dst, width=width):
            index = vector(dst.index, -1, width)
        case Assign(over=over, dst=dst):
            index, width = dst.index, 1
        case _:
            return False
    inner = site.frame.around[_shared(site.frame, reader) :]
    extents: dict[str, int] = dict(over) | {VECTOR: width}
    for statement in inner:
        if not isinstance(statement, Loop) or not statement.extent.is_const:
            return False
        extents[statement.var] = statement.extent.const
    return _covers(program, RegRef(dst.name, index), extents)


def _shared(one: Frame, two: Frame) -> int:
    """How many of the statements around `one` are around `two` as well."""
    pairs = zip(one.around, two.around, one.path, two.path, strict=False)
    same = [a is b and i == j for a, b, i, j in pairs]
    return same.index(False) if False in same else len(same)


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
