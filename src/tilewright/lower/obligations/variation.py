"""Over which bits of the thread number the values of a fragment can differ.

A value differs over the digits in the addresses and guards that it was loaded with, and over
those of the values that it is computed from. A step ``x = op(x, lane_xor(x, m))`` makes lanes
that differ in m alike. The result may name too many bits, never too few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Cast,
    Decode,
    Holds,
    If,
    IndexValue,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mma,
    Over,
    Read,
    Reduce,
    RegRef,
    Statement,
    Store,
    Value,
    When,
)
from tilewright.poly.expr import Expr, Guard

Bits = dict[str, int]  # of each fragment


def digit_bits(kernel: Kernel, decode: Decode) -> Bits:
    """The bits of the thread number that each digit of a decode holds.

    A digit that is not cut at powers of two, or that is decoded from a sum, may hold any bit.
    """
    everything = _mask(kernel.threads)
    units = {"thread": 1, "lane": 1, "warp": kernel.warp_size}
    unit = units.get(str(decode.source))
    names = [n for n, _ in decode.digits]
    if unit is None:
        touched = decode.source.variables() & units.keys()
        return dict.fromkeys(names, everything if touched else 0)
    bits: Bits = {}
    for name, extent in reversed(decode.digits):
        size = extent.const if extent.is_const else 3
        exact = unit & (unit - 1) == 0 and size & (size - 1) == 0
        bits[name] = unit * (size - 1) if exact else everything
        unit *= size
    return bits


def _mask(count: int) -> int:
    return (1 << (count - 1).bit_length()) - 1


@dataclass(frozen=True, slots=True)
class Variation:
    """The bits over which stored values and conditions can differ, by statement identity."""

    stored: dict[int, int]  # of each `Store`
    conditions: dict[int, int]  # of each `When`


def varying(kernel: Kernel) -> Variation:
    """The variation of every stored value and every condition of the kernel."""
    walker = _Walker(kernel)
    walker.body(kernel.body, {}, walker.counters())
    return Variation(walker.stored, walker.conditions)


class _Walker:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes = {r.name: prod(r.shape) for r in kernel.registers}
        self.stored: dict[int, int] = {}
        self.conditions: dict[int, int] = {}

    def counters(self) -> Bits:
        threads, lanes = _mask(self.kernel.threads), _mask(self.kernel.warp_size)
        return {"thread": threads, "lane": lanes, "warp": threads & ~lanes}

    def body(self, body: Body, state: Bits, names: Bits) -> None:
        names = dict(names)
        for statement in body:
            match statement:
                case Decode():
                    source = self.of(statement.source, names)
                    for name, bits in digit_bits(self.kernel, statement).items():
                        names[name] = bits or (source and _mask(self.kernel.threads))
                case Loop():
                    self.loop(statement, state, names)
                case If():
                    guard = self.guard(statement.guard, names)
                    self.branch(statement.body, state, names, guard)
                case When(condition=condition):
                    bits = self.value(condition, state, names)
                    found = self.conditions.get(id(statement), 0)
                    self.conditions[id(statement)] = found | bits
                    self.branch(statement.body, state, names, bits)
                case _:
                    self.leaf(statement, state, names)

    def loop(self, loop: Loop, state: Bits, names: Bits) -> None:
        inside = {**names, loop.var: self.of(loop.extent, names)}
        before: Bits | None = None
        while before != state:
            before = dict(state)
            self.body(loop.body, state, inside)
            _join(state, before)

    def branch(self, body: Body, state: Bits, names: Bits, guard: int) -> None:
        inside = dict(state)
        self.body(body, inside, names)
        for name, bits in inside.items():
            if bits != state.get(name):
                state[name] = state.get(name, 0) | bits | guard

    def leaf(self, statement: Statement, state: Bits, names: Bits) -> None:
        match statement:
            case Load(src=src, guard=guard):
                bits = self.guard(guard, names)
                for expr in src.index:
                    bits |= self.of(expr, names)
                for coordinate in statement.indirect:
                    bits |= state.get(coordinate.ref.name, 0)
                whole = prod(n for _, n in statement.over) * statement.width
                self.put(statement.dst, whole, bits, state)
            case Assign(dst=dst, value=value):
                self.put(dst, _count(statement.over), self.value(value, state, names), state)
            case Reduce(dst=dst, value=value):
                state[dst.name] = state.get(dst.name, 0) | self.value(value, state, names)
            case Mma(a=a, b=b, d=d):
                bits = _mask(self.kernel.warp_size)
                for ref in (a, b, d):
                    bits |= state.get(ref.name, 0)
                state[d.name] = bits
            case WarpgroupMma(d=d):
                state[d.name] = _mask(self.kernel.threads)
            case Store(src=src):
                found = self.stored.get(id(statement), 0)
                self.stored[id(statement)] = found | state.get(src.name, 0)
            case _:
                pass

    def put(self, dst: RegRef, count: int, bits: int, state: Bits) -> None:
        """Set a fragment; one that is set in part keeps what the rest of it had."""
        whole = count >= self.sizes.get(dst.name, 0)
        state[dst.name] = bits if whole else bits | state.get(dst.name, 0)

    def value(self, value: Value, state: Bits, names: Bits) -> int:
        match value:
            case Read(ref=ref) | LaneXor(ref=ref):
                return state.get(ref.name, 0)
            case LaneRead(ref=ref, lane=lane):
                kept = state.get(ref.name, 0) & ~_mask(self.kernel.warp_size)
                return kept | self.of(lane, names)
            case Apply(args=args):
                bits = 0
                for argument in args:
                    bits |= self.value(argument, state, names)
                return bits & ~_alike(value)
            case Cast(value=inner):
                return self.value(inner, state, names)
            case IndexValue(expr=expr):
                return self.of(expr, names)
            case Holds(guard=guard):
                return self.guard(guard, names)
            case _:
                return 0

    def guard(self, guard: Guard, names: Bits) -> int:
        bits = 0
        for constraint in guard:
            bits |= self.of(constraint.expr, names)
        return bits

    def of(self, expr: Expr, names: Mapping[str, int]) -> int:
        bits = 0
        for name in expr.variables():
            bits |= names.get(name, 0)
        return bits


def _join(state: Bits, other: Bits) -> None:
    for name, bits in other.items():
        state[name] = state.get(name, 0) | bits


def _count(over: Over) -> int:
    return prod(n for _, n in over)


def _alike(value: Apply) -> int:
    """The bit of the lanes that the value makes alike: of ``op(x, lane_xor(x, bit))``."""
    if value.op not in ("add", "mul", "max", "min") or len(value.args) != 2:
        return 0
    one, two = value.args
    if isinstance(one, LaneXor):
        one, two = two, one
    if isinstance(one, Read) and isinstance(two, LaneXor) and one.ref == two.ref:
        return two.mask if two.mask & (two.mask - 1) == 0 else 0
    return 0
