"""Values that a loop carries: fragments of their own, and what a step makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph import ops
from tilewright.graph.ops import Op
from tilewright.kernel.ops import Assign, Read, Reduce, ReducedAxis
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.dependencies import carried_layout, layout_of
from tilewright.lower.reductions import emit_contract
from tilewright.lower.values import demand, expression, remembered
from tilewright.mapping.layouts import same_elements


def carry(b: Builder, op: ops.Iterate, position: int) -> Fragment:
    """A fragment for a carried value, set to its initial value."""
    init = b.graph.by_id[op.inits[position]]
    tiled = carried_layout(b, op, position)
    made = b.fragment(f"carried{position}", init.type.dtype, tiled, init.span)
    placed = b.place(tiled.layout)
    value = expression(b, init.id, placed, tiled)
    b.emit(Assign(placed.over, made.ref(placed.registers()), value, init.span))
    return made


def remember_params(b: Builder, op: ops.Iterate, carried: Sequence[Fragment]) -> None:
    """Make the carried values known in the loop that is open."""
    for param, fragment in zip(op.params, carried, strict=True):
        b.scopes[-1].memo[param, None] = fragment
        b.scopes[-1].memo[param, fragment.tiled] = fragment


def advance(b: Builder, op: ops.Iterate, carried: Sequence[Fragment]) -> None:
    """Compute what the body returns; all of it before any carried fragment changes."""
    updates: list[tuple[Fragment, Fragment]] = []
    later: list[tuple[Fragment, Op]] = []
    for position, number in enumerate(op.results):
        result = b.graph.by_id[number]
        target = carried[position]
        if _accumulates(b, op, result, position) or _added(b, op, position) is not None:
            later.append((target, result))
            continue
        value = demand(b, number, target.tiled)
        if value.name != target.name:
            if any(value.name == c.name for c in carried):
                value = _copy(b, value, result)
            updates.append((target, value))
    for target, result in later:
        if isinstance(result, ops.Contract):
            emit_contract(b, result, target)
        else:
            _add(b, op, target, carried.index(target))
    for target, value in updates:
        placed = b.place(target.layout)
        registers = placed.registers()
        b.emit(
            Assign(placed.over, target.ref(registers), Read(value.ref(registers), value.dtype),
                   op.span, note="carried to the next step")
        )  # fmt: skip


def _accumulates(b: Builder, op: ops.Iterate, result: Op, position: int) -> bool:
    """Whether a contraction may add onto the carried value in place: nobody else reads it."""
    param = op.params[position]
    return (
        isinstance(result, ops.Contract)
        and remembered(b, result.id, None) is None
        and result.acc == param
        and b.graph.uses.get(param) == (result.id,)
        and b.graph.uses.get(result.id) == (op.id,)
    )


def _added(b: Builder, op: ops.Iterate, position: int) -> ops.ReduceOp | None:
    """The sum along the loop's own axis, of one element a step, that is all that a step adds."""
    param, result = op.params[position], b.graph.by_id[op.results[position]]
    if b.graph.uses.get(param) != (result.id,) or b.graph.uses.get(result.id) != (op.id,):
        return None
    match result:
        case ops.Elementwise(name="add", args=(left, right)) if param in (left, right):
            found = b.graph.by_id[right if left == param else left]
            if b.graph.uses.get(found.id) != (result.id,):
                return None
        case ops.ReduceOp(init=init) if init == param:
            found = result
        case _:
            return None
    if not isinstance(found, ops.ReduceOp) or (found.init is not None and found is not result):
        return None
    alone = found.axis == op.axis and b.plan.axes[op.axis].tile == 1 and found.name == "add"
    layouts = carried_layout(b, op, position), layout_of(b, found.value)
    same = same_elements(*(tiled.layout for tiled in layouts))
    return found if alone and same and found.type.dtype.bits >= 32 else None


def _add(b: Builder, op: ops.Iterate, target: Fragment, position: int) -> None:
    """Add the step's one term onto the carried value."""
    found = _added(b, op, position)
    if found is None:
        raise TypeError(f"value {position} of the loop is no sum")
    tiled = layout_of(b, found.value)
    placed = b.place(tiled.layout)
    value = expression(b, found.value, placed, tiled)
    term = ReducedAxis(op.axis, b.plan.axes[op.axis].extent, b.base(op.axis))
    ref = target.ref(placed.registers())
    b.emit(Reduce("add", placed.over, (), ref, value, (term,), found.span))


def _copy(b: Builder, value: Fragment, result: Op) -> Fragment:
    made = b.fragment(f"{value.name}_kept", value.dtype, value.tiled, result.span)
    placed = b.place(value.layout)
    registers = placed.registers()
    b.emit(Assign(placed.over, made.ref(registers), Read(value.ref(registers), value.dtype)))
    return made
