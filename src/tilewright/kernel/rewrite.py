"""Rewriting kernel IR: new data out, what does not change is shared with the input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    AsyncStatement,
    Await,
    BulkLoad,
    BulkStore,
    Collect,
    Deposit,
    NamedBarrier,
    PhaseRef,
    PhaseWait,
    RemoteStore,
    TileRef,
    WarpgroupMma,
)
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Cast,
    DataIndex,
    Decode,
    Holds,
    If,
    IndexValue,
    Indirect,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Read,
    Reduce,
    ReducedAxis,
    RegRef,
    Scanned,
    Statement,
    Store,
    Value,
    When,
)
from tilewright.poly.expr import Constraint, Expr, Guard

Mapped = Callable[[Expr], Expr]


def rewrite(body: Body, change: Callable[[Statement], Body]) -> Body:
    """Replace each statement by what `change` makes of it, inner statements before outer ones.

    `change` returns ``(statement,)`` to keep one, ``()`` to drop it, several to expand it.
    """
    result: list[Statement] = []
    for statement in body:
        match statement:
            case Loop() | If() | When():
                result.extend(change(with_body(statement, rewrite(statement.body, change))))
            case _:
                result.extend(change(statement))
    same = len(result) == len(body) and all(a is b for a, b in zip(result, body, strict=True))
    return body if same else tuple(result)


def with_body(statement: Loop | If | When, body: Body) -> Loop | If | When:
    return statement if body is statement.body else replace(statement, body=body)


def strip_spans(kernel: Kernel) -> Kernel:
    """The kernel without source spans, as it comes back from text."""

    def strip(statement: Statement) -> Body:
        spanless = getattr(statement, "span", None) is None
        return (statement if spanless else replace(statement, span=None),)

    return replace(
        kernel,
        tensors=tuple(replace(tensor, span=None) for tensor in kernel.tensors),
        shared=tuple(replace(buffer, span=None) for buffer in kernel.shared),
        phases=tuple(replace(phases, span=None) for phases in kernel.phases),
        maps=tuple(replace(tensor_map, span=None) for tensor_map in kernel.maps),
        exchanges=tuple(replace(exchange, span=None) for exchange in kernel.exchanges),
        body=rewrite(kernel.body, strip),
    )


def substitute(body: Body, values: Mapping[str, Expr | int | str]) -> Body:
    """Replace variables in every expression. The caller sees to it that none is bound within."""
    return rewrite(body, lambda s: (map_expressions(s, lambda e: e.substitute(values)),))


def unrolled(body: Body, counters: Collection[str]) -> Body:
    """Without the loops that have these counters: their bodies for one number after the other.

    What the bodies declare is declared as often, so a counter's loop should declare nothing.
    """

    def copies(statement: Statement) -> Body:
        match statement:
            case Loop(var, extent) if var in counters and extent.is_const:
                turns = (substitute(statement.body, {var: n}) for n in range(extent.const))
                return tuple(s for turn in turns for s in turn)
            case _:
                return (statement,)

    return rewrite(body, copies)


# ---------------------------------------------------------------- expressions of a statement


def map_expressions(statement: Statement, f: Mapped) -> Statement:
    """Apply `f` to every index expression of one statement, not to those in its body."""
    match statement:
        case Decode(source, digits):
            return Decode(f(source), tuple((name, f(extent)) for name, extent in digits))
        case DataIndex():
            ref = map_registers(statement.ref, f)
            return replace(statement, extent=f(statement.extent), ref=ref)
        case Loop():
            return replace(statement, extent=f(statement.extent))
        case If():
            return replace(statement, guard=map_guard(statement.guard, f))
        case When():
            return replace(statement, condition=map_value(statement.condition, f))
        case Assign():
            dst, value = map_registers(statement.dst, f), map_value(statement.value, f)
            return replace(statement, dst=dst, value=value, scans=_map_scan(statement.scans, f))
        case Reduce():
            return replace(
                statement,
                dst=map_registers(statement.dst, f),
                value=map_value(statement.value, f),
                reduces=_map_reduced(statement.reduces, f),
            )
        case Mma():
            return replace(
                statement,
                d=map_registers(statement.d, f),
                a=map_registers(statement.a, f),
                b=map_registers(statement.b, f),
                reduces=_map_reduced(statement.reduces, f),
            )
        case Load():
            return replace(
                statement,
                dst=map_registers(statement.dst, f),
                src=map_memory(statement.src, f),
                guard=map_guard(statement.guard, f),
                indirect=tuple(
                    Indirect(c.axis, map_registers(c.ref, f)) for c in statement.indirect
                ),
            )
        case Store():
            dst, src = map_memory(statement.dst, f), map_registers(statement.src, f)
            return replace(statement, dst=dst, src=src, guard=map_guard(statement.guard, f))
        case AsyncCopy():
            dst, src = map_memory(statement.dst, f), map_memory(statement.src, f)
            return replace(statement, dst=dst, src=src, guard=map_guard(statement.guard, f))
        case AsyncCommit() | AsyncWait() | Barrier():
            return statement
        case _:
            return _map_async(statement, f)


def _map_async(statement: AsyncStatement, f: Mapped) -> AsyncStatement:
    match statement:
        case Arrive():
            block = None if statement.block is None else f(statement.block)
            return replace(statement, phase=_map_phase(statement.phase, f), block=block)
        case ArriveExpect():
            return replace(statement, phase=_map_phase(statement.phase, f))
        case PhaseWait():
            parity = f(statement.parity)
            return replace(statement, phase=_map_phase(statement.phase, f), parity=parity)
        case BulkLoad():
            return replace(
                statement,
                dst=map_memory(statement.dst, f),
                coordinates=tuple(f(c) for c in statement.coordinates),
                phase=_map_phase(statement.phase, f),
                multicast=None if statement.multicast is None else f(statement.multicast),
            )
        case BulkStore():
            coordinates = tuple(f(c) for c in statement.coordinates)
            return replace(statement, coordinates=coordinates, src=map_memory(statement.src, f))
        case RemoteStore():
            return replace(
                statement,
                dst=map_memory(statement.dst, f),
                src=map_registers(statement.src, f),
                block=f(statement.block),
                phase=_map_phase(statement.phase, f),
            )
        case WarpgroupMma(a=a):
            return replace(
                statement,
                d=map_registers(statement.d, f),
                a=map_registers(a, f) if isinstance(a, RegRef) else _map_tile(a, f),
                b=_map_tile(statement.b, f),
                accumulate=map_guard(statement.accumulate, f),
                reduces=_map_reduced(statement.reduces, f),
            )
        case NamedBarrier():
            return replace(statement, barrier=f(statement.barrier))
        case Deposit():
            src = map_registers(statement.src, f)
            return replace(statement, index=f(statement.index), src=src)
        case Await():
            return replace(statement, block=f(statement.block))
        case Collect():
            dst, index = map_registers(statement.dst, f), f(statement.index)
            return replace(statement, dst=dst, index=index, block=f(statement.block))
        case _:
            return statement


def _map_phase(ref: PhaseRef, f: Mapped) -> PhaseRef:
    return PhaseRef(ref.name, f(ref.index))


def _map_tile(ref: TileRef, f: Mapped) -> TileRef:
    return replace(ref, index=tuple(f(index) for index in ref.index))


def map_registers(ref: RegRef, f: Mapped) -> RegRef:
    return RegRef(ref.name, tuple(f(index) for index in ref.index))


def map_memory(ref: MemRef, f: Mapped) -> MemRef:
    return MemRef(ref.name, tuple(f(index) for index in ref.index))


def map_guard(guard: Guard, f: Mapped) -> Guard:
    return tuple(Constraint(f(c.expr), c.equality) for c in guard)


def _map_reduced(axes: tuple[ReducedAxis, ...], f: Mapped) -> tuple[ReducedAxis, ...]:
    return tuple(ReducedAxis(r.axis, f(r.extent), f(r.coordinate)) for r in axes)


def _map_scan(scan: Scanned | None, f: Mapped) -> Scanned | None:
    if scan is None:
        return None
    others = tuple(f(coordinate) for coordinate in scan.others)
    return replace(scan, extent=f(scan.extent), coordinate=f(scan.coordinate), others=others)


def map_value(value: Value, f: Mapped) -> Value:
    """Apply `f` to every index expression in a value."""
    match value:
        case IndexValue(expr):
            return replace(value, expr=f(expr))
        case Holds(guard):
            return replace(value, guard=map_guard(guard, f))
        case Read(ref) | LaneXor(ref):
            return replace(value, ref=map_registers(ref, f))
        case LaneRead(ref, lane):
            return replace(value, ref=map_registers(ref, f), lane=f(lane))
        case Cast(inner):
            return replace(value, value=map_value(inner, f))
        case Apply(_, args):
            return replace(value, args=tuple(map_value(arg, f) for arg in args))
        case _:
            return value


def map_values(value: Value, f: Callable[[Value], Value]) -> Value:
    """Replace each value by what `f` makes of it, operands before what uses them."""
    match value:
        case Cast(inner):
            return f(replace(value, value=map_values(inner, f)))
        case Apply(_, args):
            return f(replace(value, args=tuple(map_values(arg, f) for arg in args)))
        case _:
            return f(value)
