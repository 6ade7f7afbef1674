"""Which values threads hold: what is evaluated at other coordinates only is never in registers."""

from __future__ import annotations

from tilewright.graph import ops
from tilewright.graph.ops import Graph, Op


def held_values(graph: Graph) -> frozenset[int]:
    """The values that come to be in their own axes, from the effects backwards.

    The operand of a reshape, a remap or a gather is not among them, unless something else
    reads it: it is read or computed where the result's coordinates lead.
    """
    pending = [op.id for op in ops.walk(graph.body) if _is_effect(op)]
    found: set[int] = set()
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending.extend(_followed(graph.by_id[number]))
    return frozenset(found)


def held_axes(graph: Graph) -> frozenset[str]:
    """The axes of these values, and those that the author loops over."""
    held = held_values(graph)
    axes = {a for op in ops.walk(graph.body) if op.id in held for a in op.type.axes}
    for op in ops.walk(graph.body):
        match op:
            case ops.Iterate() | ops.ReduceOp():
                axes.add(op.axis)
            case ops.Contract():
                axes.update(op.contracted)
            case _:
                pass
    return frozenset(axes)


def _is_effect(op: Op) -> bool:
    return isinstance(op, ops.WriteOp | ops.Conditional | ops.Iterate)


def _followed(op: Op) -> tuple[int, ...]:
    match op:
        case ops.Reshape() | ops.Remap():
            return ()
        case ops.Gather():
            return (op.index,)
        case _:
            return ops.operands(op)
