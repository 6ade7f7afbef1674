"""What a value depends on, and the layout that it has by nature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.base.diagnostics import UnsupportedError
from tilewright.graph import ops
from tilewright.graph.ops import Op
from tilewright.lower.builder import Builder
from tilewright.mapping.layouts import Tiled, atom_layouts, blocked, consecutive
from tilewright.poly.layout import LayoutDigit, Place


def loops_of(b: Builder, number: int) -> frozenset[str]:
    """The serial axes whose loops must be open around the code of a value."""
    if number not in b.dependencies:
        b.dependencies[number] = _loops(b, b.graph.by_id[number])
    return b.dependencies[number]


def _loops(b: Builder, op: Op) -> frozenset[str]:
    found = {a for a in op.type.axes if b.is_serial(a)}
    for operand in ops.operands(op):
        found |= loops_of(b, operand)
    done: tuple[str, ...] = ()
    match op:
        case ops.ReduceOp():
            done = (op.axis,)
        case ops.Contract():
            done = op.contracted
        case ops.Iterate():
            done = (op.axis,)
        case ops.Reshape() | ops.Remap() | ops.Gather():
            found -= set(b.graph.by_id[op.value].type.axes) - set(op.type.axes)
        case ops.Param():
            found |= _param_loops(b, op)
        case _:
            pass
    return frozenset(found - (set(done) - set(b.enclosing[op.id])))


def _param_loops(b: Builder, param: ops.Param) -> frozenset[str]:
    owner = iterate_of(b, param)
    return loops_of(b, owner.inits[param.position]) | {owner.axis}


def iterate_of(b: Builder, param: ops.Param) -> ops.Iterate:
    return next(
        op for op in b.graph.by_id.values()
        if isinstance(op, ops.Iterate) and param.id in op.params
    )  # fmt: skip


def scope_depth(b: Builder, op: Op) -> int:
    """The innermost open scope that the code of a value must be in."""
    last = len(b.scopes) - 1
    if isinstance(op, ops.ReadOp) and op.memory in b.written:
        return last  # the order of reads and writes of one memory is the program's
    needed = loops_of(b, op.id)
    return max((i for i, s in enumerate(b.scopes) if s.axis in needed), default=0)


def natural_layout(b: Builder, number: int) -> Tiled | None:
    """The layout in which a value comes to be; None where it can be made in any."""
    if number not in b.natural:
        op = b.graph.by_id[number]
        if isinstance(op, ops.Param) and _result_of(b, op) in b.settling:
            return None  # a loop's value does not decide its own layout
        b.natural[number] = None
        b.settling.add(number)
        b.natural[number] = _natural(b, op)
        b.settling.discard(number)
    return b.natural[number]


def _result_of(b: Builder, param: ops.Param) -> int:
    return iterate_of(b, param).results[param.position]


def is_group(b: Builder, number: int) -> bool:
    """Whether a value is each row's group, of which a tile has one."""
    return b.plan.ragged is not None and b.plan.ragged.group == number


def _natural(b: Builder, op: Op) -> Tiled | None:
    match op:
        case ops.ReduceOp() if is_group(b, op.id):
            return None
        case ops.Contract():
            return contract_layouts(b, op)[2]
        case ops.ReduceOp():
            return layout_of(b, op.value).project(op.type.axes)
        case ops.Scan():
            return _scanned(b, op)
        case ops.CastOp() | ops.View():
            return _if_covering(b, (op.value,), op)
        case ops.Elementwise():
            return _if_covering(b, op.args, op)
        case ops.Param():
            return carried_layout(b, iterate_of(b, op), op.position)
        case ops.Result():
            owner = b.graph.by_id[op.iterate]
            return carried_layout(b, owner, op.position) if isinstance(owner, ops.Iterate) else None
        case _:
            return None


def _if_covering(b: Builder, args: Sequence[int], op: Op) -> Tiled | None:
    """The layout of an operand that has every axis of which a tile has several elements."""
    for arg in args:
        missing = [a for a in op.type.axes if a not in b.graph.by_id[arg].type.axes]
        if not missing or (b.plan.roles and all(b.plan.axes[a].tile == 1 for a in missing)):
            found = natural_layout(b, arg)
            if found is not None:
                return found.with_units(missing)
    return None


def _scanned(b: Builder, op: ops.Scan) -> Tiled:
    """The operand's layout where each thread's elements of the axis are side by side in it."""
    found = natural_layout(b, op.value)
    if found is not None and found == consecutive(found, op.axis):
        return found
    return consecutive(default_layout(b, op.type.axes), op.axis)


def scan_directions(b: Builder, axis: str, values: Sequence[int]) -> Mapping[bool, ops.Scan]:
    """The scans along an axis in the loop that computes these values: by `reverse`, one of each.

    Those of a loop that the author wrote do not count: they see one tile.
    """
    found: dict[bool, ops.Scan] = {}
    pending, seen = list(values), set[int]()
    while pending:
        number = pending.pop()
        if number in seen or axis not in loops_of(b, number):
            continue
        seen.add(number)
        op = b.graph.by_id[number]
        pending.extend(ops.operands(op))
        if isinstance(op, ops.Scan) and op.axis == axis and axis not in b.enclosing[op.id]:
            found.setdefault(op.reverse, op)
    return found


def runs_backwards(b: Builder, axis: str, values: Sequence[int]) -> bool:
    """Whether the loop over an axis that computes these values starts at the last step."""
    found = scan_directions(b, axis, values)
    if len(found) > 1:
        raise UnsupportedError(
            f"scans along {axis} in both directions meet in one value",
            span=found[True].span,
            expected=f"one direction, or the whole of {axis} in one step",
            mend="write one of the scans to a tensor, and read it in a second kernel",
        )
    return True in found


def carried_layout(b: Builder, owner: ops.Iterate, position: int) -> Tiled:
    """The layout of a value that a loop carries: that of what its body returns."""
    return layout_of(b, owner.results[position])


def layout_of(b: Builder, number: int) -> Tiled:
    """The natural layout of a value, or the default one for its axes."""
    found = natural_layout(b, number)
    return found if found is not None else default_layout(b, b.graph.by_id[number].type.axes)


def default_layout(b: Builder, axes: Sequence[str], first: str | None = None) -> Tiled:
    """Vectors along the axis that is most often contiguous (or `first`), lanes, then warps."""
    order = [a for a in b.plan.order if a in axes]
    if first is not None:
        order.remove(first)
        order.insert(0, first)
    flat = all(a.warps == 1 for a in b.plan.axes.values())
    return blocked(b.plan, order, vector_elements(b, order), flat=flat)


def vector_elements(b: Builder, order: Sequence[str]) -> int:
    """Elements in the widest access, for the widest element of the tensors along `order[0]`."""
    widest = max(
        (m.type.dtype.bytes for m in b.graph.memories if order and order[0] in m.type.axes),
        default=4,
    )
    return max(1, b.target.vector_bytes // widest)


def contract_layouts(b: Builder, op: ops.Contract) -> tuple[Tiled, Tiled, Tiled]:
    """The layouts of a contraction's row operand, column operand and result."""
    contract = b.plan.contracts[op.id]
    atom = b.target.atom(contract.atom) if contract.atom else None
    if atom is not None:
        lhs, rhs = b.graph.by_id[op.lhs].type.axes, b.graph.by_id[op.rhs].type.axes
        return atom_layouts(
            b.plan, contract, atom, *((lhs, rhs) if contract.lhs_is_a else (rhs, lhs)),
            op.type.axes,
        )  # fmt: skip
    d = default_layout(b, op.type.axes)
    lhs = b.graph.by_id[op.lhs].type.axes
    rhs = b.graph.by_id[op.rhs].type.axes
    a, c = (lhs, rhs) if contract.lhs_is_a else (rhs, lhs)
    terms = op.contracted
    return _with_terms(b, d, a, terms), _with_terms(b, d, c, terms), d


def _with_terms(b: Builder, d: Tiled, axes: Sequence[str], terms: Sequence[str]) -> Tiled:
    """The result's layout without the axes that an operand lacks, and its terms in registers."""
    kept = d.project(axes)
    tiles = [(k, b.plan.axes[k].tile) for k in terms]
    digits = tuple(LayoutDigit(Place.REGISTER, n, k, 1) for k, n in tiles if n > 1)
    layout = replace(
        kept.layout, shape=(*kept.layout.shape, *tiles), digits=(*kept.layout.digits, *digits)
    )
    return Tiled(layout, len(digits) and 1)
