"""What blocks cannot do: they do not meet, so nothing is combined along an axis that they share.

Those of a cluster can meet: see `schedule.parts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.diagnostics import ReductionError
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Op
from tilewright.schedule.constraints import Workgroup


def refuse_block_reductions(graph: Graph, workgroups: Mapping[str, Workgroup]) -> None:
    """ReductionError where a reduction, a product or a loop with carried values runs along an
    axis of which each block has a part only."""
    for op in ops.walk(graph.body):
        for axis in _combined(op):
            workgroup = workgroups.get(axis)
            if workgroup is not None and _is_shared(graph, workgroup):
                raise ReductionError(
                    f"{_what(op)} runs along {axis}, which is given to blocks",
                    span=op.span,
                    expected=f"the whole of {axis} in one block; of a product's terms the blocks "
                    "of a cluster can have a share each (split_k)",
                    mend=f"remove the WorkgroupConstraint on {axis}, or make the whole axis its "
                    "tile",
                    notes=_given_at(workgroup),
                )


def _is_shared(graph: Graph, workgroup: Workgroup) -> bool:
    """Whether more than one block may have a part of the axis."""
    extent = graph.axes[workgroup.axis]
    tile = workgroup.tile
    return tile is not None and not (extent.is_const and extent.const <= tile)


def _combined(op: Op) -> tuple[str, ...]:
    """The axes along which an operation combines elements."""
    match op:
        case ops.ReduceOp() | ops.Scan():
            return (op.axis,)
        case ops.Contract():
            return op.contracted
        case ops.Iterate() if op.inits:
            return (op.axis,)
        case _:
            return ()


def combined_axes(graph: Graph) -> frozenset[str]:
    """The axes along which some operation combines elements."""
    return frozenset(axis for op in ops.walk(graph.body) for axis in _combined(op))


def _what(op: Op) -> str:
    match op:
        case ops.ReduceOp(name=name):
            return {"add": "a sum", "mul": "a product"}.get(name, f"a {name}imum")
        case ops.Contract():
            return "the sum of a matrix product"
        case ops.Scan():
            return "a scan"
        case _:
            return "a loop that carries values"


def _given_at(workgroup: Workgroup) -> tuple[str, ...]:
    span = workgroup.span
    given = f"{workgroup.axis} is given to blocks in tiles of {workgroup.tile}"
    return (f"{given} at {span.file}:{span.line}",) if span else (given,)
