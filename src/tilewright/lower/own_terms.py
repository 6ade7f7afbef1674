"""Tiles that sum the terms of one group: where they begin and end is looked up.

A tile runs through as many steps as its group has, so the ring's counter goes on by a number
that is data; both roles keep it, modulo the turns after which slots and parities repeat. The
last step may have rows of the next group: they are cleared in shared memory before the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dtypes import i32
from tilewright.base.spans import Span
from tilewright.kernel.async_ops import NamedBarrier, ProxyFence
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Const,
    DataIndex,
    If,
    IndexValue,
    Load,
    MemRef,
    Over,
    Read,
    Registers,
    RegRef,
    Store,
    Value,
)
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.builder import Builder
from tilewright.lower.bulk import EXCHANGE
from tilewright.lower.grid import Grid
from tilewright.lower.rings import Operand
from tilewright.poly.expr import Expr, Guard, at_least, less
from tilewright.schedule.own_terms import OwnTerms

V = Expr.of
VECTOR_BYTES = 16  # that one thread clears at once


def place_own_terms(b: Builder, grid: Grid, terms: OwnTerms) -> Grid:
    """The grid with each tile's terms found; sets where they start, and how many steps they are."""
    stem = terms.axis.lower()
    first, last, before = (b.name(f"{stem}_{word}") for word in ("first", "last", "slots"))
    begin, end, count = (_register(b, f"{stem}_{word}", holds) for word, holds in _HOLDS.items())
    plan = b.plan.axes[terms.axis]
    steps = (V(last) - first).ceildiv(plan.tile)
    b.plan = replace(b.plan, axes={**b.plan.axes, terms.axis: replace(plan, steps_override=steps)})
    b.starts[terms.axis] = V(first)
    b.last_term, b.counted = V(last), V(before)
    period = 2 * b.plan.stages
    own, groups = b.blocks[terms.groups], b.tensors[terms.ends].shape[0]
    rows, span = plan.extent, b.graph.span
    find: Body = (
        _load(terms.ends, begin, own - 1, groups, span),
        _load(terms.ends, end, own, groups, span),
        _set(begin, _inside(begin, rows)),
        _set(end, _inside(end, rows)),
        DataIndex(first, rows + 1, begin, span, "where the group's terms begin"),
        DataIndex(last, rows + 1, end, span, "and where they end"),
        DataIndex(before, V(period), count, span, "slots that tiles before have used"),
    )
    done = Apply("add", (Read(count, i32), IndexValue(steps, i32)), i32)
    more = Apply("max", (done, Read(count, i32)), i32)  # a group may have no terms
    advance = _set(count, Apply("mod", (more, Const(period, i32)), i32))
    start = _set(count, Const(0, i32))

    def wrap(body: Body) -> Body:
        return (start, *grid.wrap((*find, *body, advance)))

    return replace(grid, wrap=wrap)


_HOLDS = {
    "begin": "the group's first row",
    "end": "the row after its last",
    "count": "slots that tiles before have used",
}


def _register(b: Builder, wish: str, holds: str) -> RegRef:
    made = b.name(wish)
    b.registers.append(Registers(made, i32, (1,), holds))
    return RegRef(made, (V(0),))


def _load(ends: str, into: RegRef, number: Expr, count: Expr, span: Span | None) -> Load:
    guard: Guard = (at_least(number, 0), less(number, count))
    return Load((), into, MemRef(ends, (number,)), guard=guard, span=span)


def _set(into: RegRef, value: Value) -> Assign:
    return Assign((), into, value)


def _inside(ref: RegRef, rows: Expr) -> Value:
    above = Apply("max", (Read(ref, i32), Const(0, i32)), i32)
    return Apply("min", (above, IndexValue(rows, i32)), i32)


# ---------------------------------------------------------------- the last step


def clear_others(b: Builder, operands: Sequence[Operand], slot: Expr, step: Expr) -> None:
    """Zero what a slot has of other groups' rows, where its step is the last."""
    terms = b.plan.own_terms
    if terms is None:
        return
    tile = b.plan.axes[terms.axis].tile
    left = b.last_term - b.starts[terms.axis] - step * tile
    mine = [o for o in operands if o.read.id in terms.cleared]
    body: list[Assign | Store | ProxyFence | NamedBarrier] = []
    for operand in mine:
        body += _clear(b, operand, slot, left)
    threads = b.plan.warps * b.plan.warp_size
    note = "rows of other groups are cleared"
    body += [ProxyFence(), NamedBarrier(V(EXCHANGE), threads, note=note)]
    b.emit(If((less(left, tile),), tuple(body)))


def _clear(b: Builder, operand: Operand, slot: Expr, left: Expr) -> list[Assign | Store]:
    """Zeros in an operand's slot from term `left` on, by all threads that multiply."""
    ring, size = operand.ring, operand.ring.dtype.bytes
    _, panels, rows, width = ring.shape
    vector = VECTOR_BYTES // size
    pieces = width // vector
    threads = b.plan.warps * b.plan.warp_size
    thread = (V(b.role) * WARPGROUP_WARPS + b.role_warp) * b.plan.warp_size + b.role_lane
    zeros = b.name(f"{operand.read.memory}_zeros")
    b.registers.append(Registers(zeros, ring.dtype, (vector,), "zeros"))
    panel, line, term = (b.register_digit(f"clear_{word}") for word in ("panel", "row", "term"))
    at_once = threads // pieces
    passes = -(-rows // at_once)
    row = line * at_once + thread // pieces
    column = thread % pieces * vector
    guard: Guard = (less(row, rows),) if rows % at_once else ()
    lines: Over = ((str(panel), panels), (str(line), passes))
    set_zero = Assign(((str(term), vector),), RegRef(zeros, (term,)), Const(0, ring.dtype))
    if operand.across:
        whole = Store(
            lines, MemRef(ring.name, (slot, panel, row, column)), RegRef(zeros, (V(0),)), vector,
            guard=(*guard, at_least(row, left)),
        )  # fmt: skip
        return [set_zero, whole]
    each = Store(
        (*lines, (str(term), vector)), MemRef(ring.name, (slot, panel, row, column + term)),
        RegRef(zeros, (term,)), guard=(*guard, at_least(panel * width + column + term, left)),
    )  # fmt: skip
    return [set_zero, each]
