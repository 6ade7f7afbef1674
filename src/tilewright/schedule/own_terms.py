"""Products over each group's own terms: rows that are sorted by group, summed for each by itself.

The program says which group a row belongs to, and multiplies what is zero in all others' rows::

    group[t] = sum over g of (ends[g] <= t)
    out[e, m, n] = sum over t of (x[t, m] if group[t] == e else 0) * y[t, n]

Rows of one group are neighbours, so a tile of the result needs the steps from its group's first
row to its last only. How many these are is data. What the last step has of the next group's rows
is cleared in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtypes import i32
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.ragged import counted_ends, unpermuted


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """`axis` is cut at `ends`, a memory; `groups` is the result's axis that counts groups.

    `cleared` are the reads whose rows of other groups are zero.
    """

    axis: str
    groups: str
    ends: str
    cleared: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Masked:
    """A value with zeros in all rows but those of a group."""

    value: int
    terms: OwnTerms


def masked_by_group(graph: Graph, number: int) -> Masked | None:
    """What a choice by a row's group says; None for any other value."""
    op = unpermuted(graph, number)
    if not isinstance(op, ops.Elementwise) or op.name != "select":
        return None
    condition, value, other = (graph.by_id[a] for a in op.args)
    if not (isinstance(other, ops.Constant) and other.value == 0):
        return None
    if not isinstance(condition, ops.Elementwise) or condition.name != "eq":
        return None
    pair = [graph.by_id[a] for a in condition.args]
    if isinstance(pair[0], ops.Index):
        pair.reverse()
    group, own = pair
    ends = counted_ends(graph, group.id)
    if ends is None or not isinstance(own, ops.Index):
        return None
    (axis,), (groups,) = group.type.axes, own.type.axes
    if axis == groups or groups in value.type.axes or ends.type.axes == own.type.axes:
        return None
    return Masked(value.id, OwnTerms(axis, groups, ends.memory))


def own_terms_of(graph: Graph, product: ops.Contract) -> OwnTerms | None:
    """How a product's terms are shared out among groups; None where they are not."""
    found = [m for n in (product.lhs, product.rhs) if (m := masked_by_group(graph, n))]
    if not found or product.contracted != (found[0].terms.axis,):
        return None
    if any(m.terms != found[0].terms for m in found):
        return None
    reads = (unpermuted(graph, m.value).id for m in found)
    terms = found[0].terms
    return OwnTerms(terms.axis, terms.groups, terms.ends, tuple(reads))


def terms_problem(graph: Graph, terms: OwnTerms) -> str | None:
    """Why the kernel cannot look up its group's rows; None where it can."""
    if graph.memory(terms.ends).type.dtype != i32:
        return f"{terms.ends} is not i32"
    return None
