"""Small changes to lowered kernels, each at one place: what a compiler bug would look like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Decode,
    If,
    Kernel,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Over,
    Reduce,
    RegRef,
    Statement,
    Store,
    Value,
    When,
    children,
    walk,
)
from tilewright.kernel.rewrite import with_body
from tilewright.poly.expr import Constraint, Expr

Variants = Iterator[tuple[str, Body]]


@dataclass(frozen=True)
class Mutation:
    """A change of one statement: the `number`-th in program order becomes `body`."""

    number: int
    name: str
    body: Body

    def apply(self, kernel: Kernel) -> Kernel:
        return replaced(kernel, self.number, self.body)


def replaced(kernel: Kernel, number: int, body: Body) -> Kernel:
    """The kernel with its `number`-th statement (as `walk` counts) replaced."""
    counter = iter(range(1 << 30))

    def visit(statements: Body) -> Body:
        done: list[Statement] = []
        for statement in statements:
            here = next(counter)
            inner = visit(children(statement))
            if here == number:
                done.extend(body)
            elif isinstance(statement, Loop | If | When):
                done.append(with_body(statement, inner))
            else:
                done.append(statement)
        return tuple(done)

    return replace(kernel, body=visit(kernel.body))


def statements(kernel: Kernel, kind: type[Statement]) -> list[tuple[int, Statement]]:
    """Every statement of a kind with its number."""
    return [(i, s) for i, s in enumerate(walk(kernel.body)) if isinstance(s, kind)]


def mutations(kernel: Kernel) -> Iterator[Mutation]:
    for number, statement in enumerate(walk(kernel.body)):
        for name, body in _variants(statement):
            yield Mutation(number, f"{type(statement).__name__} {name}", body)


def _variants(s: Statement) -> Variants:
    if not isinstance(s, Decode | When):
        yield "dropped", ()
    match s:
        case If():
            yield "lifted", s.body
            yield from _guards(s)
        case Loop():
            yield "halved", (replace(s, extent=s.extent // 2),)
            yield "one step short", (replace(s, extent=s.extent - 1),)
            yield "one step more", (replace(s, extent=s.extent + 1),)
        case Decode():
            yield from _decodes(s)
        case AsyncWait(pending):
            yield "one group laxer", (AsyncWait(pending + 1),)
        case Load() | Store() | AsyncCopy():
            yield from _guards(s)
            yield from _over(s)
            yield from _memory(s)
            yield from _registers(s)
        case Assign() | Reduce() | Mma():
            yield from _over(s)
            yield from _registers(s)
            yield from _values(s)
        case Barrier() | AsyncCommit() | When():
            pass


def _decodes(s: Decode) -> Variants:
    if len(s.digits) > 1:
        swapped = (s.digits[1], s.digits[0], *s.digits[2:])
        yield "digits swapped", (replace(s, digits=swapped),)
    for i, (name, extent) in enumerate(s.digits):
        if extent.is_const and extent.const > 1:
            shorter = (*s.digits[:i], (name, extent // 2), *s.digits[i + 1 :])
            yield f"{name} halved", (replace(s, digits=shorter),)


def _guards(s: If | Load | Store | AsyncCopy) -> Variants:
    for i, c in enumerate(s.guard):
        before, after = s.guard[:i], s.guard[i + 1 :]
        yield f"without guard {c}", (replace(s, guard=(*before, *after)),)
        for step in (-1, 1):
            moved = (*before, Constraint(c.expr + step, c.equality), *after)
            yield f"guard {c} moved by {step}", (replace(s, guard=moved),)


def _over(s: Load | Store | AsyncCopy | Assign | Reduce | Mma) -> Variants:
    def shorter(over: Over, i: int) -> Over:
        name, extent = over[i]
        return (*over[:i], (name, extent - 1), *over[i + 1 :])

    for i, (name, extent) in enumerate(s.over):
        if extent > 1:
            yield f"{name} one short", (replace(s, over=shorter(s.over, i)),)
    if isinstance(s, Reduce):
        for i, (name, extent) in enumerate(s.along):
            if extent > 1:
                yield f"along {name} one short", (replace(s, along=shorter(s.along, i)),)


def _memory(s: Load | Store | AsyncCopy) -> Variants:
    for field in ("src", "dst"):
        ref = getattr(s, field)
        if isinstance(ref, MemRef):
            for name, index in _indices(ref.index):
                yield f"{ref.name} {name}", (replace(s, **{field: replace(ref, index=index)}),)


def _registers(s: Load | Store | AsyncCopy | Assign | Reduce | Mma) -> Variants:
    for field in ("src", "dst", "d", "a", "b"):
        ref = getattr(s, field, None)
        if isinstance(ref, RegRef):
            for name, index in _indices(ref.index):
                yield f"{ref.name} {name}", (replace(s, **{field: replace(ref, index=index)}),)


def _indices(index: tuple[Expr, ...]) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    for i, e in enumerate(index):

        def put(changed: Expr, i: int = i) -> tuple[Expr, ...]:
            return (*index[:i], changed, *index[i + 1 :])

        yield f"axis {i} shifted", put(e + 1)
        yield f"axis {i} shifted back", put(e - 1)
        for term, coefficient in e.terms:
            rest = Expr(tuple(t for t in e.terms if t[0] != term), e.const)
            yield f"axis {i} without {term}", put(rest)
            yield f"axis {i} with {term} doubled", put(e + Expr(((term, coefficient),)))


def _values(s: Assign | Reduce | Mma) -> Variants:
    if isinstance(s, Assign):
        for name, value in _lanes(s.value):
            yield name, (replace(s, value=value),)
    if isinstance(s, Reduce | Mma):
        for i, r in enumerate(s.reduces):
            for name, (coordinate,) in _indices((r.coordinate,)):
                changed = replace(r, coordinate=coordinate)
                reduces = (*s.reduces[:i], changed, *s.reduces[i + 1 :])
                yield f"counts {r.axis} {name}", (replace(s, reduces=reduces),)


def _lanes(value: Value) -> Iterator[tuple[str, Value]]:
    if isinstance(value, LaneXor):
        yield f"lane mask {value.mask} doubled", replace(value, mask=value.mask * 2)
        if value.mask > 1:
            yield f"lane mask {value.mask} halved", replace(value, mask=value.mask // 2)
    if isinstance(value, Apply):
        for i, arg in enumerate(value.args):
            for name, changed in _lanes(arg):
                args = (*value.args[:i], changed, *value.args[i + 1 :])
                yield name, replace(value, args=args)


Rewrite = Callable[[Kernel], Kernel]
