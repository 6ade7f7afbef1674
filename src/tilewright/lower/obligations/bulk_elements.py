"""Elements of a ring that a turn reads and does not load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.kernel.async_ops import BulkLoad
from tilewright.lower.obligations.bulk_boxes import box_of, in_tensor
from tilewright.lower.obligations.bulk_turns import turns
from tilewright.lower.obligations.holdings import added, written
from tilewright.lower.obligations.scope import Program, Site
from tilewright.lower.obligations.tracing import Wanted, fault_at
from tilewright.poly.expr import Expr, equal
from tilewright.poly.prove import Piece, image
from tilewright.poly.results import Result, Unknown
from tilewright.poly.sets import Point


def in_no_turn(
    program: Program, named: Mapping[str, Sequence[str]], wanted: Wanted, what: tuple[Site, str],
    loads: Sequence[Site], suffix: str,
) -> Result:  # fmt: skip
    """A fault where no turn of the loads puts there what is wanted; else it is open.

    `what` is the read and its buffer's name, `named` are the axes of tensors. An earlier turn may
    have left what a turn wants and does not load, but only something that some turn loads.
    """
    read, name = what
    names = [Expr.of(n) for n in wanted.dims]
    otherwise = Unknown(f"{name} is read in a turn that does not load it")
    world = program.world
    world.fresh()
    axes: Sequence[str] = ()
    rest = image(world, Piece(tuple(wanted.dims.values()), wanted.guard, tuple(names)))
    for site in loads:
        load, link = site.statement, turns(program, read, site)
        found = box_of(program.kernel, load) if isinstance(load, BulkLoad) else None
        if isinstance(link, str) or not isinstance(load, BulkLoad) or found is None:
            return otherwise
        declared, box = found
        axes = named.get(declared.tensor, ())
        at = in_tensor(declared, added(load.coordinates, box.position))
        index, exprs, over = written(program.kernel, site)
        for there in wanted.across(
            program, site, over, index, exprs, link, suffix=suffix, any_turn=True
        ):
            pairs = zip(axes, there.mapped(at), strict=False)
            there = there.under(*(equal(e, there.tags[a]) for a, e in pairs if a in there.tags))
            back = tuple(there.resolved(e) for e in names)
            piece = Piece(tuple(there.dims.values()), there.guard, back)
            rest = rest.subtract(image(world, piece))
    point = rest.first()
    if point is None:
        return otherwise
    point = Point(point.symbols, tuple(zip(wanted.dims, (v for _, v in point.values), strict=True)))
    values = point.bindings()
    element = tuple(e.evaluate(values) for e in wanted.ref)
    tags = ((a, wanted.tags[a]) for a in axes if a in wanted.tags)
    wants = ", ".join(f"{a} = {e.evaluate(values)}" for a, e in tags)
    place = f"{name}[{', '.join(map(str, element))}]"
    text = f"{place} is read for {wants}, which no turn loads there"
    return fault_at(wanted, text, element, point)
