"""Seeds faults into kernels: every small change at every place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from proof_kernels import rewrite

from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    If,
    Kernel,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Reduce,
    RegRef,
    Statement,
    Store,
    walk,
)
from tilewright.poly.expr import Constraint, Expr

Variant = Statement | tuple[Statement, ...]


def mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Each kernel that differs in one place, with the name of the change."""
    for number, statement in enumerate(walk(kernel.body)):
        for name, changed in _variants(statement):
            yield f"{number} {type(statement).__name__}: {name}", _replace(kernel, number, changed)
    for i, extent in enumerate(kernel.grid):
        for step in (-1, 1):
            grid = tuple(e + step if i == j else e for j, e in enumerate(kernel.grid))
            if not (extent.is_const and extent.const + step < 1):
                yield f"grid {i} by {step}", replace(kernel, grid=grid)


def _replace(kernel: Kernel, number: int, changed: Variant) -> Kernel:
    target = list(walk(kernel.body))[number]
    done: list[Statement] = []

    def change(s: Statement) -> Variant:
        same = s == target or (isinstance(s, Loop | If) and type(s) is type(target) and s == target)
        if same and not done:
            done.append(s)
            return changed
        return s

    return rewrite(kernel, change)


def _variants(s: Statement) -> Iterator[tuple[str, Variant]]:
    if isinstance(s, Load | Store | AsyncCopy | Assign | Barrier | AsyncWait | AsyncCommit | If):
        yield "dropped", ()
    if isinstance(s, If):
        yield "guard lifted", s.body
    if isinstance(s, If | Load | Store | AsyncCopy):
        yield from _guards(s)
    if isinstance(s, Loop):
        for step in (-1, 1):
            yield f"extent {step}", replace(s, extent=s.extent + step)
    if isinstance(s, AsyncWait):
        for step in (-1, 1):
            if s.pending + step >= 0:
                yield f"pending {step}", replace(s, pending=s.pending + step)
    if isinstance(s, Load | Store | AsyncCopy | Assign | Reduce | Mma):
        yield from _instances(s)
    if isinstance(s, Reduce | Mma):
        yield from _coordinates(s)
    if isinstance(s, Assign) and isinstance(s.value, Apply):
        yield from _masks(s, s.value)


def _guards(s: If | Load | Store | AsyncCopy) -> Iterator[tuple[str, Variant]]:
    for i, c in enumerate(s.guard):
        before, after = s.guard[:i], s.guard[i + 1 :]
        yield f"guard {i} dropped", replace(s, guard=(*before, *after))
        for step in (-1, 1):
            moved = (*before, Constraint(c.expr + step, c.equality), *after)
            yield f"guard {i} moved {step}", replace(s, guard=moved)


def _instances(
    s: Load | Store | AsyncCopy | Assign | Reduce | Mma,
) -> Iterator[tuple[str, Variant]]:
    for i, (name, extent) in enumerate(s.over):
        for step in (-1, 1):
            over = (*s.over[:i], (name, extent + step), *s.over[i + 1 :])
            yield f"over {name} {step}", replace(s, over=over)
    for field in ("dst", "src", "d", "a", "b"):
        ref = getattr(s, field, None)
        if isinstance(ref, RegRef | MemRef):
            for name, index in _indices(ref.index):
                yield f"{field} {name}", replace(s, **{field: replace(ref, index=index)})


def _coordinates(s: Reduce | Mma) -> Iterator[tuple[str, Variant]]:
    for i, r in enumerate(s.reduces):
        for name, (coordinate,) in _indices((r.coordinate,)):
            changed = (*s.reduces[:i], replace(r, coordinate=coordinate), *s.reduces[i + 1 :])
            yield f"coordinate {name}", replace(s, reduces=changed)


def _masks(s: Assign, value: Apply) -> Iterator[tuple[str, Variant]]:
    for arg in value.args:
        if isinstance(arg, LaneXor):
            for mask in sorted({1, 2, 3} - {arg.mask}):
                args = tuple(
                    replace(a, mask=mask) if isinstance(a, LaneXor) else a for a in value.args
                )
                yield f"mask {mask}", replace(s, value=replace(value, args=args))


def _indices(index: tuple[Expr, ...]) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    for i, expr in enumerate(index):
        rest = lambda new, i=i: (*index[:i], new, *index[i + 1 :])  # noqa: E731
        yield f"axis {i} shifted", rest(expr + 1)
        for term, coefficient in expr.terms:
            part = Expr(((term, coefficient),))
            yield f"axis {i} without {term}", rest(expr - part)
            yield f"axis {i} twice {term}", rest(expr + part)
