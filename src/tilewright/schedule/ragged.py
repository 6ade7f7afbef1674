"""Grouped products: rows that are sorted by group, each group with a matrix of its own.

The program says which group a row belongs to (the number of groups that end at or before it),
and gathers the group's matrix by it::

    group[t] = sum over e of (ends[e] <= t)
    out[t, n] = sum over k of x[t, k] * w[group[t], n, k]

Rows of one group are neighbours, so a tile that starts at a group's first row, or a whole number
of tiles further, needs one matrix only. How many tiles there are is data; that each group ends
in at most one partial tile bounds it. Rows after the last end belong to no group: their matrix is
zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtypes import i32, i64
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Op
from tilewright.poly.expr import Expr

LANES = 32  # that share the groups when a tile is looked for
MOST_GROUPS = 1024  # a lane holds so many by LANES of them in registers


@dataclass(frozen=True, slots=True)
class Ragged:
    """`axis` is cut at `ends`, a memory over `counted`; `group` is each row's number, `matrix` the
    gather by it along `groups`."""

    axis: str
    groups: str
    counted: str
    ends: str
    group: int
    matrix: int

    def slots(self, extent: Expr, count: Expr, tile: int) -> Expr:
        """How many tiles there are at the most, with those of no group."""
        return extent.ceildiv(tile) + count


def ragged_of(graph: Graph, contract: ops.Contract) -> Ragged | None:
    """How a product's rows are grouped; None where they are not."""
    for number in (contract.lhs, contract.rhs):
        found = group_gather(graph, number)
        if found is not None and found.axis in contract.type.axes:
            return found
    return None


def group_gather(graph: Graph, number: int) -> Ragged | None:
    """What a gather by a row's group says; None for any other value."""
    op = unpermuted(graph, number)
    if not isinstance(op, ops.Gather):
        return None
    source = unpermuted(graph, op.value)
    ends = counted_ends(graph, op.index)
    if ends is None or not isinstance(source, ops.ReadOp):
        return None
    (axis,) = graph.by_id[op.index].type.axes
    if axis in source.type.axes:
        return None
    return Ragged(axis, op.axis, ends.type.axes[0], ends.memory, op.index, op.id)


def unpermuted(graph: Graph, number: int) -> Op:
    """The operation behind a value's views that only reorder axes."""
    op = graph.by_id[number]
    while isinstance(op, ops.View) and set(op.type.axes) == set(graph.by_id[op.value].type.axes):
        op = graph.by_id[op.value]
    return op


def counted_ends(graph: Graph, number: int) -> ops.ReadOp | None:
    """The ends of which a value counts those at or before its coordinate."""
    total = graph.by_id[number]
    if not (isinstance(total, ops.ReduceOp) and total.name == "add" and total.init is None):
        return None
    if total.type.dtype not in (i32, i64):
        return None  # another type may not count so far
    term = graph.by_id[total.value]
    past = graph.by_id[term.value] if isinstance(term, ops.CastOp) else term
    if len(total.type.axes) != 1 or not isinstance(past, ops.Elementwise):
        return None
    pair = [graph.by_id[a] for a in past.args]
    if past.name == "ge":
        pair.reverse()
    elif past.name != "le":
        return None
    ends, row = pair
    if not (isinstance(ends, ops.ReadOp) and isinstance(row, ops.Index)):
        return None
    fits = ends.type.axes == (total.axis,) and row.type.axes == total.type.axes
    memory = graph.memory(ends.memory)
    written = {op.memory for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)}
    return ends if fits and not memory.allocated and memory.name not in written else None


def ragged_problem(graph: Graph, ragged: Ragged) -> str | None:
    """Why the groups' rows cannot be found by the kernel that multiplies; None where they can."""
    count = graph.axes[ragged.counted]
    if not count.is_const:
        return f"the number of groups, {ragged.counted}, is not known"
    if graph.memory(ragged.ends).type.dtype != i32:
        return f"{ragged.ends} is not i32"
    if count.const > MOST_GROUPS:
        return f"{count} groups are more than {MOST_GROUPS}"
    counting = _behind(graph, ragged.group)
    for op in ops.walk(graph.body):
        moved = isinstance(op, ops.ReadOp | ops.View)
        if op.id in counting or (moved and _only_gathered(graph, op.id, ragged.groups)):
            continue
        if both := {ragged.groups, ragged.counted} & {*op.type.axes}:
            return f"a value runs over all of {min(both)}"
        if isinstance(op, ops.WriteOp) and ragged.axis not in op.type.axes:
            return f"{op.memory} has no rows of {ragged.axis}"
        if isinstance(op, ops.ReduceOp | ops.Scan) and op.axis == ragged.axis:
            return f"a value is combined along {op.axis}"
        if isinstance(op, ops.Iterate) and op.axis == ragged.axis:
            return f"a loop runs along {op.axis}"
    return None


def _behind(graph: Graph, number: int) -> set[int]:
    """A value and those that it is computed from."""
    found, pending = set[int](), [number]
    while pending:
        value = pending.pop()
        found.add(value)
        pending.extend(ops.operands(graph.by_id[value]))
    return found


def _only_gathered(graph: Graph, number: int, axis: str) -> bool:
    """Whether a value is read by gathers along an axis alone."""
    users = [graph.by_id[u] for u in graph.uses.get(number, ())]
    return all(
        (isinstance(u, ops.Gather) and u.axis == axis and u.value == number)
        or (isinstance(u, ops.View) and _only_gathered(graph, u.id, axis))
        for u in users
    )
