"""Where statements put what: the elements that a write fills, and what a value reads."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernel.async_ops import BulkLoad, RemoteStore
from tilewright.kernel.ops import (
    Apply,
    AsyncCopy,
    Cast,
    Kernel,
    LaneXor,
    Over,
    Read,
    RegRef,
    Store,
    Value,
)
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.bulk_boxes import box_of
from tilewright.lower.obligations.scope import Site
from tilewright.poly.expr import Expr


def vector(index: tuple[Expr, ...], axis: int, width: int) -> tuple[Expr, ...]:
    """The index of each element of a vector along an axis."""
    if width == 1:
        return index
    along = axis % len(index)
    return tuple(e + VECTOR if i == along else e for i, e in enumerate(index))


def added(one: Sequence[Expr], two: Sequence[Expr]) -> tuple[Expr, ...]:
    """Coordinate by coordinate."""
    return tuple(a + b for a, b in zip(one, two, strict=True))


def written(kernel: Kernel, site: Site) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Over]:
    """The elements that a write fills, what else it uses, and its digits; empty: not plain."""
    match site.statement:
        case Store() | AsyncCopy() as s:
            axis = s.axis if isinstance(s, Store) else s.dst_axis
            exprs = (*s.src.index, *(c.expr for c in s.guard))
            return vector(s.dst.index, axis, s.width), exprs, (*s.over, (VECTOR, s.width))
        case RemoteStore() as s:
            index = vector(s.dst.index, -1, s.width)
            return index, s.src.index, (*s.over, (VECTOR, s.width))
        case BulkLoad() as s if found := box_of(kernel, s):
            _, box = found
            digits = tuple((d.name, d.extent.const) for d in box.dims)
            return added(s.dst.index, box.steps), s.coordinates, (*s.over, *digits)
        case _:
            return (), (), ()


def sources(value: Value) -> dict[RegRef, int]:
    """The registers that a value reads, with the bit of the lane number in which the lanes may
    differ: 0 for the own lane alone."""
    match value:
        case Read(ref=ref):
            return {ref: 0}
        case LaneXor(ref=ref, mask=mask) if mask & (mask - 1) == 0:
            return {ref: mask}
        case Apply(args=args):
            found: dict[RegRef, int] = {}
            for argument in args:
                for ref, mask in sources(argument).items():
                    found[ref] = found.get(ref, 0) | mask
            return found
        case Cast(value=inner):
            return sources(inner)
        case _:
            return {}
