"""Run neighbouring elementwise statements element by element, so that few values live at once.

before -> after::

    for i < 32, j < 2: x[i, j] = f(acc[i, j])        unroll i < 32:
    for i < 32, j < 2: y[i, j] = g(x[i, j])      ->    for j < 2: x[0, j] = f(acc[i, j])
    for i < 32: store 2 c[.. i ..] = y[i, 0]            for j < 2: y[0, j] = g(x[0, j])
                                                        store 2 c[.. i ..] = y[0, 0]

Statements join where they share their leading digits and no instance of one needs a register of
another's other instances. Fragments that nothing else uses shrink to one instance's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tilewright.kernel.ops import (
    Assign,
    Body,
    If,
    Kernel,
    Load,
    Loop,
    Over,
    Read,
    RegRef,
    Statement,
    Store,
    Value,
    When,
    walk,
)  # fmt: skip
from tilewright.kernel.pressure import read_fragments, written_fragment
from tilewright.kernel.rewrite import map_registers, map_values, with_body
from tilewright.poly.expr import Expr

Simple = Assign | Load | Store
_Change = Callable[[RegRef], RegRef]
MOST_INSTANCES = 4096  # registers of one group: legality is checked by enumeration
MOST_PARTS = 8  # elements that one instance may have: a vector


@dataclass(frozen=True, slots=True)
class _Touch:
    """A register that a statement uses, and `width` - 1 more along the last axis."""

    ref: RegRef
    width: int
    inner: Over
    writes: bool


def interleave(kernel: Kernel) -> Kernel:
    """Join statements wherever it is legal: see the module's text."""
    users: dict[str, int] = {}
    for statement in walk(kernel.body):
        for name in _names(statement):
            users[name] = users.get(name, 0) + 1
    shapes = {r.name: r.shape for r in kernel.registers}
    body = _body(kernel.body, users, shapes)
    kept = tuple(replace(r, shape=shapes[r.name]) for r in kernel.registers)
    return replace(kernel, body=body, registers=kept)


def _names(statement: Statement) -> set[str]:
    """The fragments that a statement reads or writes."""
    written = written_fragment(statement)
    names = {ref.name for ref in read_fragments(statement)}
    return names if written is None else names | {written.name}


def _body(body: Body, users: Mapping[str, int], shapes: dict[str, tuple[int, ...]]) -> Body:
    done: list[Statement] = []
    position = 0
    while position < len(body):
        statement = body[position]
        group, shared = _group(body, position)
        if len(group) > 1:
            done.append(_joined(group, shared, users, shapes))
        elif isinstance(statement, Loop | If | When):
            done.append(with_body(statement, _body(statement.body, users, shapes)))
        else:
            done.append(statement)
        position += max(1, len(group))
    return tuple(done)


def _group(body: Body, start: int) -> tuple[list[Simple], Over]:
    """The statements from `start` on that can be joined, and the digits that they share."""
    group: list[Simple] = []
    shared: Over = ()
    for candidate in body[start:]:
        statement = _simple(candidate)
        if statement is None:
            break
        common = statement.over if not group else _common(shared, statement.over)
        if len(group) > 1 and prod(n for _, n in shared[len(common) :]) > MOST_PARTS:
            break
        if not _is_legal([*group, statement], common):
            break
        group.append(statement)
        shared = common
    return (group, shared) if prod(n for _, n in shared) > 1 else (group[:1], ())


def _simple(statement: Statement) -> Simple | None:
    """The statement, if it is an assignment of a thread's own registers or a plain access."""
    match statement:
        case Assign(value=value, scans=None) if not _crosses_lanes(value):
            return statement
        case Load(matrix=None, indirect=()):
            return statement
        case Store():
            return statement
        case _:
            return None


def _crosses_lanes(value: Value) -> bool:
    found = [False]

    def look(part: Value) -> Value:
        found[0] = found[0] or (not isinstance(part, Read) and hasattr(part, "ref"))
        return part

    map_values(value, look)
    return found[0]


def _common(left: Over, right: Over) -> Over:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return left[:count]


def _is_legal(group: Sequence[Simple], shared: Over) -> bool:
    """Whether instances of the shared digits are independent of each other.

    Each register that is written belongs to one instance, and no memory is read and written.
    """
    if not shared:
        return False
    loads = {s.src.name for s in group if isinstance(s, Load)}
    if loads & {s.dst.name for s in group if isinstance(s, Store)}:
        return False
    touches = [t for s in group for t in _touches(s, len(shared))]
    written = {t.ref.name for t in touches if t.writes}
    owner: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    for touch in touches:
        if touch.ref.name not in written:
            continue
        for instance, register in _registers(touch, shared):
            if owner.setdefault((touch.ref.name, register), instance) != instance:
                return False
        if len(owner) > MOST_INSTANCES:
            return False
    return True


def _touches(statement: Simple, shared: int) -> Iterator[_Touch]:
    inner = statement.over[shared:]
    match statement:
        case Assign(dst=dst, value=value):
            for ref in _refs(value):
                yield _Touch(ref, 1, inner, writes=False)
            yield _Touch(dst, 1, inner, writes=True)
        case Load(dst=dst):
            yield _Touch(dst, statement.width, inner, writes=True)
        case Store(src=src):
            yield _Touch(src, statement.width, inner, writes=False)


def _refs(value: Value) -> list[RegRef]:
    found: list[RegRef] = []

    def look(part: Value) -> Value:
        if isinstance(part, Read):
            found.append(part.ref)
        return part

    map_values(value, look)
    return found


def _registers(touch: _Touch, shared: Over) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each instance of the shared digits, with each register that it uses."""
    digits = (*shared, *touch.inner)
    names = {n for n, _ in digits}
    # Counters of unrolled loops further out select registers alike for all instances.
    rest = {v: 0 for e in touch.ref.index for v in e.variables() - names}
    for values in product(*(range(n) for _, n in digits)):
        point = {**rest, **dict(zip((n for n, _ in digits), values, strict=True))}
        *outer, last = (e.evaluate(point) for e in touch.ref.index)
        for lane in range(touch.width):
            yield values[: len(shared)], (*outer, last + lane)


def _joined(
    group: Sequence[Simple],
    shared: Over,
    users: Mapping[str, int],
    shapes: dict[str, tuple[int, ...]],
) -> Statement:
    """One loop nest over the shared digits, with private fragments shrunk."""
    zero = {name: Expr.of(0) for name, _ in shared}
    private: dict[str, tuple[int, ...]] = {}
    counts: dict[str, int] = {}
    for statement in group:
        for name in _names(statement):
            counts[name] = counts.get(name, 0) + 1
    written = {t.ref.name for s in group for t in _touches(s, len(shared)) if t.writes}
    for name in written:
        if counts[name] == users[name]:
            parts = [t for s in group for t in _touches(s, len(shared)) if t.ref.name == name]
            shrunk = [register for t in parts for _, register in _registers(_moved(t, zero), ())]
            private[name] = tuple(max(r[i] for r in shrunk) + 1 for i in range(len(shrunk[0])))
    shapes.update(private)
    # Counters of unrolled loops further out choose no register of what one instance needs.
    inner = {name for s in group for name, _ in s.over[len(shared) :]}
    touched = [t.ref for s in group for t in _touches(s, len(shared)) if t.ref.name in private]
    outer = {v for ref in touched for e in ref.index for v in e.variables()} - inner
    zero |= {name: Expr.of(0) for name in outer}

    def change(ref: RegRef) -> RegRef:
        return map_registers(ref, lambda e: e.substitute(zero)) if ref.name in private else ref

    body: Body = tuple(_changed(s, len(shared), change) for s in group)
    for name, extent in reversed(shared):
        body = (Loop(name, Expr.of(extent), body, unroll=True),)
    return body[0]


def _moved(touch: _Touch, values: Mapping[str, Expr]) -> _Touch:
    return replace(touch, ref=map_registers(touch.ref, lambda e: e.substitute(values)))


def _changed(statement: Simple, shared: int, change: _Change) -> Simple:
    over = statement.over[shared:]
    match statement:
        case Assign(dst=dst, value=value):
            moved = map_values(
                value, lambda v: replace(v, ref=change(v.ref)) if isinstance(v, Read) else v
            )
            return replace(statement, over=over, dst=change(dst), value=moved)
        case Load(dst=dst):
            return replace(statement, over=over, dst=change(dst))
        case Store(src=src):
            return replace(statement, over=over, src=change(src))
