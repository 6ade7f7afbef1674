"""Small changes of kernels with agents: each statement of synchronisation, changed in each way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    AsyncStatement,
    BulkLoad,
    BulkStore,
    BulkWait,
    NamedBarrier,
    PhaseWait,
    SetRegisters,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import Barrier, Body, If, Kernel, Loop, Statement, children, walk

Variant = tuple[str, Body]


def mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Each kernel that differs in one place, with the name of the change."""
    for number, s in enumerate(walk(kernel.body)):
        for name, body in _variants(s, kernel):
            yield f"{number} {type(s).__name__}: {name}", _put(kernel, s, body)
    for number, body in enumerate(_bodies(kernel.body)):
        for at in range(len(body) - 1):
            if _orders(body[at]) and _orders(body[at + 1]):
                what = f"{type(body[at]).__name__} and {type(body[at + 1]).__name__}"
                changed = (*body[:at], body[at + 1], body[at], *body[at + 2 :])
                yield f"body {number}: {what} change places", _put_body(kernel, body, changed)
    for i, phases in enumerate(kernel.phases):
        for step in (-1, 1):
            if phases.arrivals + step >= 1:
                more = replace(phases, arrivals=phases.arrivals + step)
                all_ = (*kernel.phases[:i], more, *kernel.phases[i + 1 :])
                yield f"{phases.name}: arrivals {step:+}", replace(kernel, phases=all_)


def _orders(s: Statement) -> bool:
    return bool(children(s)) or isinstance(s, AsyncStatement | Barrier)


def _bodies(body: Body) -> Iterator[Body]:
    yield body
    for s in body:
        if children(s):
            yield from _bodies(children(s))


def _variants(s: Statement, kernel: Kernel) -> Iterator[Variant]:
    if isinstance(s, AsyncStatement | Barrier) and not isinstance(s, BulkStore | SetRegisters):
        yield "left out", ()
    match s:
        case PhaseWait(phase=phase, parity=parity):
            count = next(p.count for p in kernel.phases if p.name == phase.name)
            yield "other parity", (replace(s, parity=parity + 1),)
            if count > 1:
                index = (phase.index + 1) % count
                yield "other barrier", (replace(s, phase=replace(phase, index=index)),)
        case Arrive(phase=phase):
            count = next(p.count for p in kernel.phases if p.name == phase.name)
            yield "twice", (s, s)
            if count > 1:
                index = (phase.index + 1) % count
                yield "other barrier", (replace(s, phase=replace(phase, index=index)),)
        case ArriveExpect(size=size):
            yield "more bytes", (replace(s, size=size + 16),)
            yield "fewer bytes", (replace(s, size=size - 16),)
        case BulkLoad(dst=dst) if dst.index[0].variables():
            other = (dst.index[0] + 1) % 2
            yield "other slot", (replace(s, dst=replace(dst, index=(other, *dst.index[1:]))),)
        case WarpgroupMma():
            yield "twice", (s, s)
        case WarpgroupWait(pending=pending):
            yield "one more pending", (replace(s, pending=pending + 1),)
        case BulkWait(pending=pending):
            yield "one more pending", (replace(s, pending=pending + 1),)
        case NamedBarrier(threads=threads, arrive=arrive):
            yield "fewer threads", (replace(s, threads=threads - 32),)
            yield "arrive or wait", (replace(s, arrive=not arrive),)
        case If(guard=guard):
            for i in range(len(guard)):
                yield f"without guard {i}", (replace(s, guard=(*guard[:i], *guard[i + 1 :])),)
        case Loop(extent=extent) if not s.unroll:
            yield "a turn less", (replace(s, extent=extent - 1),)
        case _:
            pass


def _put(kernel: Kernel, target: Statement, changed: Body) -> Kernel:
    """The kernel with the statement, found by identity, replaced."""

    def visit(body: Body) -> Body:
        done: list[Statement] = []
        for s in body:
            if s is target:
                done += changed
            elif inner := children(s):
                done.append(replace(s, body=visit(inner)))  # type: ignore[call-arg]
            else:
                done.append(s)
        return tuple(done)

    return replace(kernel, body=visit(kernel.body))


def _put_body(kernel: Kernel, target: Body, changed: Body) -> Kernel:
    def visit(body: Body) -> Body:
        if body is target:
            return changed
        return tuple(
            replace(s, body=visit(children(s))) if children(s) else s  # type: ignore[call-arg]
            for s in body
        )

    return replace(kernel, body=visit(kernel.body))
