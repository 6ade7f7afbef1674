"""Scans: over a thread's registers in order, then lanes, warps and serial steps.

Every level adds what lies before it. A butterfly over the lanes keeps two values: the total of
the lanes met so far, alike in all of them, and what of it lies before this lane; each step takes
in a group of lanes as large as the own one. Totals of warps go through shared memory, the total
of all steps so far is carried. A reverse scan is the mirror image throughout.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilewright.base.diagnostics import UnsupportedError
from tilewright.base.dtypes import DType, boolean
from tilewright.graph import ops
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Cast,
    Const,
    Holds,
    LaneXor,
    Part,
    Read,
    Reduce,
    Scanned,
    Value,
)  # fmt: skip
from tilewright.lower.builder import Builder, Fragment, Placed
from tilewright.lower.dependencies import layout_of
from tilewright.lower.reductions import accumulated, identity, share_warps
from tilewright.lower.values import masked
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr, Guard, equal, less
from tilewright.poly.layout import Place


@dataclass(frozen=True, slots=True)
class _Scan:
    """What every step needs: the operation, its layouts, and the type it is done in."""

    b: Builder
    op: ops.Scan
    tiled: Tiled
    rest: Tiled  # without the scanned axis
    dtype: DType

    @property
    def neutral(self) -> Const:
        return Const(identity(self.op.name, self.op.type.dtype), self.dtype)

    def combined(self, left: Value, right: Value) -> Value:
        return Apply(self.op.name, (left, right), self.dtype)

    def fragment(self, wish: str, tiled: Tiled) -> Fragment:
        return self.b.fragment(f"v{self.op.id}_{wish}", self.dtype, tiled, self.op.span)

    def set(self, target: Fragment, value: Value, note: str = "") -> None:
        """Assign every register of a fragment over the other axes."""
        placed = self.b.place(self.rest.layout)
        self.b.emit(Assign(placed.over, target.ref(placed.registers()), value, self.op.span, note))

    def read(self, source: Fragment) -> Value:
        return Read(source.ref(self.b.place(self.rest.layout).registers()), self.dtype)

    def scanned(self, part: Part, placed: Placed) -> Scanned:
        """The claim that an assignment over `placed` makes: in an author's loop, of one tile."""
        b, axis = self.b, self.op.axis
        others = tuple(b.base(a) + placed.position(a) for a in self.op.type.axes if a != axis)
        coordinate, extent = placed.position(axis), Expr.of(b.plan.axes[axis].tile)
        if axis not in b.enclosing[self.op.id]:
            coordinate, extent = coordinate + b.base(axis), b.plan.axes[axis].extent
        return Scanned(self.op.name, part, axis, extent, coordinate, others)


def emit_scan(b: Builder, op: ops.Scan) -> Fragment:
    """The scan of one tile, with what the tiles before it add up to."""
    tiled = layout_of(b, op.id)
    rest = tiled.project([a for a in op.type.axes if a != op.axis])
    scan = _Scan(b, op, tiled, rest, accumulated(op.type.dtype))
    carry = _carry(scan)
    terms = _terms(scan)
    total = scan.fragment("total", rest)
    part = _within_threads(scan, terms, total)
    before = _across_lanes(scan, total)
    before = _across_warps(scan, total, before)
    if carry is not None:
        value = scan.read(carry)
        if before is None:
            before = scan.fragment("before", rest)
        else:
            value = scan.combined(value, scan.read(before))
        scan.set(before, value, f"steps of {op.axis}")
        carried = scan.combined(scan.read(carry), scan.read(total))
        scan.set(carry, carried, "carried to the next step")
    return _finish(scan, part, before)


def _carry(scan: _Scan) -> Fragment | None:
    """The total of all steps so far, set before the loop; None where one step is all."""
    b, op = scan.b, scan.op
    if not b.is_serial(op.axis) or op.axis in b.enclosing[op.id]:
        return None
    if b.scopes[-1].axis != op.axis:
        raise UnsupportedError(
            f"a scan along {op.axis} in a loop that is not the innermost one",
            span=op.span,
            expected=f"the loop over the steps of {op.axis} inside all others",
            mend=f"give the other axes to blocks, or make {op.axis} one step with a smaller size",
        )
    carry = scan.fragment("carried", scan.rest)
    with b.at(len(b.scopes) - 2):
        scan.set(carry, scan.neutral)
    return carry


def _terms(scan: _Scan) -> Fragment:
    """The operand, with the identity past the end of the axis."""
    b, op = scan.b, scan.op
    placed = b.place(scan.tiled.layout)
    neutral = identity(op.name, op.type.dtype)
    value = masked(b, op.value, placed, scan.tiled, (op.axis,), neutral, scan.dtype)
    made = scan.fragment("terms", scan.tiled)
    claim = scan.scanned(Part.TERM, placed)
    target = made.ref(placed.registers())
    b.emit(Assign(placed.over, target, value, op.span, scans=claim))
    return made


def _within_threads(scan: _Scan, terms: Fragment, total: Fragment) -> Fragment:
    """Scan each thread's registers in order; `total` ends as all of them."""
    b, op = scan.b, scan.op
    scan.set(total, scan.neutral)
    part = scan.fragment(op.name, scan.tiled)
    placed = b.place(scan.tiled.layout)
    with _in_order(scan, placed) as one:
        sum_ref = total.ref(one.registers(scan.rest.layout.axes))
        here = part.ref(one.registers())
        term = Read(terms.ref(one.registers()), scan.dtype)
        add = Assign(one.over, sum_ref, scan.combined(Read(sum_ref, scan.dtype), term), op.span)
        keep = Assign(one.over, here, Read(sum_ref, scan.dtype), op.span)
        for statement in (keep, add) if op.exclusive else (add, keep):
            b.emit(statement)
    return part


@contextmanager
def _in_order(scan: _Scan, placed: Placed) -> Generator[Placed]:
    """Unrolled loops over the registers along the axis, in the order of the scan."""
    b, op = scan.b, scan.op
    own = [
        (d, v) for d, v in zip(placed.layout.digits, placed.variables, strict=True)
        if d.place is Place.REGISTER and d.axis == op.axis
    ]  # fmt: skip
    own.sort(key=lambda pair: -pair[0].stride)
    chosen: dict[str, Expr] = {}
    loops = [b.unrolled(f"{op.axis.lower()}_in_order", d.extent, op.span) for d, _ in own]
    for (digit, variable), loop in zip(own, loops, strict=True):
        counter = loop.__enter__()
        chosen[str(variable)] = digit.extent - 1 - counter if op.reverse else counter
    yield _substituted(placed, chosen)
    for loop in reversed(loops):
        loop.__exit__(None, None, None)


def _substituted(placed: Placed, values: Mapping[str, Expr]) -> Placed:
    variables = tuple(v.substitute(values) for v in placed.variables)
    over = tuple(digit for digit in placed.over if digit[0] not in values)
    return replace(placed, variables=variables, over=over)


def _across_lanes(scan: _Scan, total: Fragment) -> Fragment | None:
    """What lies in the lanes before this one; `total` becomes that of all of them."""
    op = scan.op
    steps = _lane_steps(scan.b.place(scan.tiled.layout), op)
    if not steps:
        return None
    note = f"lanes of {op.axis}"
    before, other = scan.fragment("before", scan.rest), scan.fragment("other", scan.rest)
    scan.set(before, scan.neutral)
    for mask, follows in steps:
        reached = total.ref(scan.b.place(scan.rest.layout).registers())
        scan.set(other, LaneXor(reached, mask, scan.dtype), note)
        taken = scan.combined(scan.read(other), scan.read(before))
        choice = (Holds(follows, boolean), taken, scan.read(before))
        scan.set(before, Apply("select", choice, scan.dtype), note)
        scan.set(total, scan.combined(scan.read(total), scan.read(other)), note)
    return before


def _lane_steps(placed: Placed, op: ops.Scan) -> list[tuple[int, Guard]]:
    """For each bit of the lanes' position on the axis, from the least significant: the mask that
    flips it, and the guard that the lane follows the one with the bit flipped."""
    found: list[tuple[int, int, Guard]] = []
    weight = 1
    pairs = zip(placed.layout.digits, placed.variables, strict=True)
    for digit, variable in reversed([p for p in pairs if p[0].place is Place.LANE]):
        step = 1
        while digit.axis == op.axis and step < digit.extent:
            follows = equal((variable // step) % 2, 0 if op.reverse else 1)
            found.append((digit.stride * step, weight * step, (follows,)))
            step *= 2
        weight *= digit.extent
    return [(mask, follows) for _, mask, follows in sorted(found, key=lambda f: f[0])]


def _across_warps(scan: _Scan, total: Fragment, before: Fragment | None) -> Fragment | None:
    """Add the totals of the warps before this one; `total` becomes that of all of them."""
    b, op = scan.b, scan.op
    shared = share_warps(b, op.axis, total, scan.tiled.layout, op.span)
    if shared is None:
        return before
    if before is None:
        before = scan.fragment("before", scan.rest)
        scan.set(before, scan.neutral)
    note = f"warps of {op.axis}"
    whole = b.place(shared.parts.layout)
    kept = scan.rest.layout.axes
    over, along = whole.over_on(kept), whole.over_on((shared.digit,))
    value = Read(shared.parts.ref(whole.registers()), scan.dtype)
    other = whole.position(shared.digit)
    earlier = less(shared.own, other) if op.reverse else less(other, shared.own)
    some = Apply("select", (Holds((earlier,), boolean), value, scan.neutral), scan.dtype)
    b.emit(Reduce(op.name, over, along, before.ref(whole.registers(kept)), some, (), op.span, note))
    scan.set(total, scan.neutral)
    b.emit(Reduce(op.name, over, along, total.ref(whole.registers(kept)), value, (), op.span, note))
    return before


def _finish(scan: _Scan, part: Fragment, before: Fragment | None) -> Fragment:
    """Each element with what lies before its thread, rounded to the result's element type."""
    b, op = scan.b, scan.op
    placed = b.place(scan.tiled.layout)
    value: Value = Read(part.ref(placed.registers()), scan.dtype)
    if before is not None:
        kept = before.ref(placed.registers(scan.rest.layout.axes))
        value = scan.combined(Read(kept, scan.dtype), value)
    if scan.dtype != op.type.dtype:
        value = Cast(value, op.type.dtype)
    parts = (Part.AFTER, Part.FROM) if op.reverse else (Part.BEFORE, Part.THROUGH)
    claim = scan.scanned(parts[0 if op.exclusive else 1], placed)
    made = b.fragment(f"v{op.id}", op.type.dtype, scan.tiled, op.span)
    b.emit(Assign(placed.over, made.ref(placed.registers()), value, op.span, scans=claim))
    return made
