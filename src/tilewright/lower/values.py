"""Values on demand: code is emitted where, and in the layout, that a reader asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from ctypes import c_float

from tilewright.base.diagnostics import UnsupportedError
from tilewright.base.dtypes import DType, Kind, boolean, f32, i64
from tilewright.graph import ops
from tilewright.graph.ops import Op
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Cast,
    Const,
    Holds,
    IndexValue,
    Read,
    ScalarValue,
    Shared,
    Value,
)  # fmt: skip
from tilewright.lower.access import contiguous, is_coalesced, load_global, load_shared
from tilewright.lower.builder import Builder, Fragment, Placed, shared_memory_axes
from tilewright.lower.convert import convert, through_shared
from tilewright.lower.dependencies import default_layout, is_group, natural_layout, scope_depth
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr, Guard
from tilewright.schedule.plan import Staging

INLINE = (ops.Constant, ops.ScalarRead, ops.Index, ops.Extent)


def demand(b: Builder, number: int, tiled: Tiled) -> Fragment:
    """The value's fragment in a layout, from the open scopes or emitted now."""
    found = remembered(b, number, tiled)
    if found is not None:
        return found
    op = b.graph.by_id[number]
    with b.at(scope_depth(b, op)):
        if natural_layout(b, number) is not None and not isinstance(
            op, ops.Elementwise | ops.CastOp | ops.View
        ):
            made = convert(b, anchored(b, op), tiled, op.span)
        elif isinstance(op, ops.ReadOp):
            made = _read(b, op, tiled)
        elif isinstance(op, ops.Reshape | ops.Remap | ops.Gather):
            made = emit_remap(b, op, tiled)
        elif _is_converted(b, op, tiled):
            natural = natural_layout(b, number)
            made = convert(b, demand(b, number, natural or tiled), tiled, op.span)
        else:
            made = _materialise(b, op, tiled)
        b.scopes[-1].memo[number, tiled] = made
    return made


def remembered(b: Builder, number: int, tiled: Tiled | None) -> Fragment | None:
    """The fragment made for a value in the open loops that it depends on, if there is one.

    What an outer loop over the same axis made is another part of the value.
    """
    op = b.graph.by_id[number]
    settled = isinstance(op, ops.ReadOp) and op.memory in b.written
    for scope in reversed(b.scopes[0 if settled else scope_depth(b, op) :]):
        found = scope.memo.get((number, tiled))
        if found is not None:
            return found
    return None


def emit_remap(b: Builder, op: ops.Reshape | ops.Remap | ops.Gather, tiled: Tiled) -> Fragment:
    from tilewright.lower.remap import remapped  # it evaluates operands as this module does

    return remapped(b, op, tiled)


def anchored(b: Builder, op: Op) -> Fragment:
    """The fragment of a value that comes to be in a layout of its own."""
    from tilewright.lower.loops import emit_iterate
    from tilewright.lower.reductions import emit_contract, emit_reduce
    from tilewright.lower.scans import emit_scan

    found = remembered(b, op.id, None)
    if found is not None:
        return found
    with b.at(scope_depth(b, op)):
        match op:
            case ops.Contract():
                made = emit_contract(b, op, None)
            case ops.ReduceOp():
                made = emit_reduce(b, op)
            case ops.Scan():
                made = emit_scan(b, op)
            case ops.Result():
                owner = b.graph.by_id[op.iterate]
                if not isinstance(owner, ops.Iterate):
                    raise TypeError(f"%{op.id} is the result of no loop")
                emit_iterate(b, owner)
                done = remembered(b, op.id, None)
                if done is None:
                    raise LookupError(f"%{op.id} was not emitted with its loop")
                return done
            case _:
                raise TypeError(f"{type(op).__name__} has no layout of its own")
        b.scopes[-1].memo[op.id, None] = made
    return made


def _is_converted(b: Builder, op: Op, tiled: Tiled) -> bool:
    """Whether an elementwise value is computed in its natural layout and converted then."""
    natural = natural_layout(b, op.id)
    return natural is not None and natural != tiled


def _read(b: Builder, op: ops.ReadOp, tiled: Tiled) -> Fragment:
    memory = b.graph.memory(op.memory)
    if op.id in b.rings:
        return read_ring(b, op, tiled, {})
    if memory.allocated:
        made = b.fragment(op.memory, op.type.dtype, tiled, op.span)
        buffer = allocated(b, memory)
        offsets = {a: b.base(a) - block_start(b, a) for a in op.type.axes}
        load_shared(b, buffer, op.type.axes, (), made, offsets=offsets, whole=False, span=op.span)
        return made
    tensor = b.tensors[op.memory]
    fast = contiguous(tensor, op.type.axes)
    if b.plan.staging.get(op.id) is Staging.SHARED:
        part = load_global(b, op, default_layout(b, op.type.axes, fast))
        return through_shared(b, part, tiled, op.span, "the schedule stages the tensor")
    if fast is not None and not is_coalesced(tensor, op.type.axes, tiled.layout):
        coalesced = default_layout(b, op.type.axes, fast)
        if is_coalesced(tensor, op.type.axes, coalesced.layout):
            return convert(b, load_global(b, op, coalesced), tiled, op.span)
    return load_global(b, op, tiled)


def read_ring(b: Builder, op: ops.ReadOp, tiled: Tiled, offsets: Mapping[str, Expr]) -> Fragment:
    """A fragment of the step's staged tile, shifted in it by `offsets`."""
    buffer, slot = b.rings[op.id]
    made = b.fragment(op.memory, op.type.dtype, tiled, op.span)
    load_shared(b, buffer, buffer_order(b, op), (slot,), made, offsets=offsets, span=op.span)
    return made


def buffer_order(b: Builder, op: ops.ReadOp) -> list[str]:
    """A staged tile's axes, the one contiguous in global memory last."""
    axes = list(op.type.axes)
    fast = contiguous(b.tensors[op.memory], axes)
    if fast is not None:
        axes.remove(fast)
        axes.append(fast)
    return axes


def block_start(b: Builder, axis: str) -> Expr:
    """The coordinate of the block's first element along an axis."""
    plan = b.plan.axes[axis]
    if axis in b.blocks and plan.block_tile is not None:
        return b.blocks[axis] * plan.block_tile + b.step_start(axis, Expr.of(0))
    return Expr.of(0)


def allocated(b: Builder, memory: ops.Memory) -> Shared:
    """The shared buffer behind a memory that the program allocates."""
    found = next((s for s in b.shared if s.name == memory.name), None)
    if found is None:
        found = Shared(
            memory.name, memory.type.dtype, shared_memory_axes(b, memory), span=memory.span
        )
        b.shared.append(found)
    return found


def _materialise(b: Builder, op: Op, tiled: Tiled) -> Fragment:
    """Compute an elementwise value into a fragment."""
    placed = b.place(tiled.layout)
    value = apply_op(b, op, placed, tiled)
    made = b.fragment(_wish(op), op.type.dtype, tiled, op.span)
    b.emit(Assign(placed.over, made.ref(placed.registers()), value, op.span))
    return made


def _wish(op: Op) -> str:
    match op:
        case ops.Elementwise(name=name):
            return f"v{op.id}_{name}"
        case ops.CastOp():
            return f"v{op.id}_{op.type.dtype.name}"
        case _:
            return f"v{op.id}"


def expression(b: Builder, number: int, placed: Placed, tiled: Tiled) -> Value:
    """The value at the element that `placed` names, reading fragments where it must."""
    op = b.graph.by_id[number]
    if isinstance(op, INLINE) or is_group(b, number):
        return apply_op(b, op, placed, tiled)
    if isinstance(op, ops.View) and natural_layout(b, number) is None:
        return expression(b, op.value, placed, tiled)
    if _inlines(b, op, tiled):
        return apply_op(b, op, placed, tiled)
    part = demand(b, number, tiled.project(op.type.axes))
    return Read(part.ref(placed.registers(op.type.axes)), op.type.dtype)


def _inlines(b: Builder, op: Op, tiled: Tiled) -> bool:
    """Whether an elementwise value is folded into its only reader's expression."""
    if not isinstance(op, ops.Elementwise | ops.CastOp | ops.View):
        return False
    if remembered(b, op.id, tiled) is not None:
        return False
    once = len(b.graph.uses.get(op.id, ())) == 1
    natural = natural_layout(b, op.id)
    fits = natural is None or natural == tiled
    here = scope_depth(b, op) == len(b.scopes) - 1
    return once and fits and here and set(op.type.axes) == set(tiled.layout.axes)


def apply_op(b: Builder, op: Op, placed: Placed, tiled: Tiled) -> Value:
    """The operation at one element, its operands read or folded in."""
    match op:
        case ops.ReduceOp() if b.plan.ragged is not None and is_group(b, op.id):
            return index_value(b.starts[b.plan.ragged.groups], op.type.dtype)
        case ops.Constant():
            return Const(op.value, op.type.dtype)
        case ops.ScalarRead():
            return ScalarValue(op.name, op.type.dtype)
        case ops.Index():
            axis = op.type.axes[0]
            return index_value(b.base(axis) + placed.position(axis), op.type.dtype)
        case ops.Extent():
            return index_value(b.plan.axes[op.axis].extent, op.type.dtype)
        case ops.View():
            return expression(b, op.value, placed, tiled)
        case ops.CastOp():
            return Cast(expression(b, op.value, placed, tiled), op.type.dtype)
        case ops.Elementwise():
            args = tuple(expression(b, a, placed, tiled) for a in op.args)
            return _recognised(Apply(op.name, args, op.type.dtype))
        case _:
            raise UnsupportedError(
                f"{type(op).__name__} cannot be computed element by element",
                span=op.span,
                expected="an elementwise operation",
                mend="report this program",
            )


def _recognised(value: Apply) -> Apply:
    """The same value by fewer instructions; `kernel.values.MERGED` counts what is merged.

    Before -> after: ``erf(x) + 1 -> one_plus_erf(x)``, and
    ``(x * 0.5) * one_plus_erf(x * sqrt(0.5)) -> gelu(x)``.
    """
    if value.dtype != f32:
        return value
    match value:
        case Apply("add", (Apply("erf", (x,)), Const(1)) | (Const(1), Apply("erf", (x,)))):
            return Apply("one_plus_erf", (x,), f32)
        case Apply(
            "mul",
            (half, Apply("one_plus_erf", (bend,))) | (Apply("one_plus_erf", (bend,)), half),
        ) if (x := _times(half, 0.5)) is not None and x == _times(bend, math.sqrt(0.5)):
            return Apply("gelu", (x,), f32)
        case _:
            return value


def _times(value: Value, factor: float) -> Read | None:
    """The register that is multiplied by `factor`, which rounds to f32 as the constant does.

    A value that is used twice is in a register: two that are only alike stay two.
    """
    match value:
        case Apply("mul", (Read() as x, Const(by)) | (Const(by), Read() as x)):
            return x if c_float(by).value == c_float(factor).value else None
        case _:
            return None


def index_value(expr: Expr, dtype: DType) -> Value:
    """An index as a value; floats get it from a 64-bit integer."""
    if dtype.kind is Kind.INT:
        return IndexValue(expr, dtype)
    return Cast(IndexValue(expr, i64), dtype)


def masked(
    b: Builder, number: int, placed: Placed, tiled: Tiled, axes: Sequence[str], identity: float,
    dtype: DType,
) -> Value:  # fmt: skip
    """The value, or the identity where a coordinate on `axes` is past the end of its axis."""
    value = expression(b, number, placed, tiled)
    kind = b.graph.by_id[number].type.dtype
    if kind != dtype:
        value = Cast(value, dtype)
    guard: Guard = ()
    for axis in axes:
        guard += b.extent_guard(axis, b.base(axis) + placed.position(axis))
    if not guard or (identity == 0 and is_zero_outside(b, number)):
        return value
    return Apply("select", (Holds(guard, boolean), value, Const(identity, dtype)), dtype)


def is_zero_outside(b: Builder, number: int) -> bool:
    """Whether elements past the end of an axis are zero: those of a read are."""
    op = b.graph.by_id[number]
    match op:
        case ops.ReadOp():
            return not b.graph.memory(op.memory).allocated
        case ops.CastOp():
            return is_zero_outside(b, op.value)
        case ops.View():
            kept = set(op.type.axes) == set(b.graph.by_id[op.value].type.axes)
            return kept and is_zero_outside(b, op.value)
        case _:
            return False
