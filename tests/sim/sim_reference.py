"""A second simulator, as plain as can be: one thread, one instance, one element at a time.

Threads go in lockstep, instance by instance. No checks, no matrix instructions, no copies.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, Kind, boolean, f16, f32, i32
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Barrier,
    Body,
    Cast,
    Const,
    Decode,
    Holds,
    If,
    IndexValue,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Read,
    Reduce,
    Store,
    Value,
    When,
)
from tilewright.poly.expr import Guard

Scope = dict[str, int]
TYPES: dict[DType, Any] = {f32: np.float32, f16: np.float16, i32: np.int32, boolean: np.bool_}


def cast(value: Any, dtype: DType) -> Any:
    if dtype.kind is Kind.INT and isinstance(value, float | np.floating):
        if np.isnan(value):
            return np.int32(0)
        return np.int32(min(max(int(np.clip(float(value), -1e18, 1e18)), -(2**31)), 2**31 - 1))
    if dtype.kind is Kind.INT:
        return np.int32((int(value) + 2**31) % 2**32 - 2**31)
    return TYPES[dtype](value)


def operate(op: str, args: list[Any], dtype: DType) -> Any:
    """The operations that the generated kernels use."""
    if op == "select":
        return cast(args[1] if args[0] else args[2], dtype)
    a, b = args
    if isinstance(a, np.integer):
        a, b = int(a), int(b)
    elif isinstance(a, np.floating):
        a, b = np.float32(a), np.float32(b)
    table = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "max": lambda: max(a, b),
        "min": lambda: min(a, b),
        "lt": lambda: a < b,
        "and": lambda: bool(a) and bool(b),
    }
    return cast(table[op](), dtype)


class Block:
    """One block: registers by (fragment, index, thread), shared memory by (buffer, index)."""

    def __init__(self, kernel: Kernel, block: int, arrays: dict[str, Any], symbols: Scope) -> None:
        self.kernel = kernel
        self.arrays = arrays
        self.registers: dict[Any, Any] = {}
        self.shared: dict[Any, Any] = {}
        size = kernel.warp_size
        self.scopes: list[Scope] = [
            {**symbols, "block": block, "thread": t, "warp": t // size, "lane": t % size}
            for t in range(kernel.threads)
        ]

    def run(self, body: Body, active: list[int]) -> None:
        for s in body:
            match s:
                case Decode():
                    for t in active:
                        self.decode(s, t)
                case Loop():
                    extents = {t: s.extent.evaluate(self.scopes[t]) for t in active}
                    for value in range(max(extents.values(), default=0)):
                        inside = [t for t in active if value < extents[t]]
                        for t in inside:
                            self.scopes[t][s.var] = value
                        self.run(s.body, inside)
                case If():
                    self.run(s.body, [t for t in active if self.holds(s.guard, self.scopes[t])])
                case When():
                    self.run(
                        s.body,
                        [t for t in active if self.value(s.condition, t, {})],
                    )
                case Barrier():
                    pass
                case Assign() | Reduce() | Load() | Store():
                    along = s.along if isinstance(s, Reduce) else ()
                    names = (*along, *s.over)
                    for values in product(*(range(n) for _, n in names)):
                        digits = {n: v for (n, _), v in zip(names, values, strict=True)}
                        self.instance(s, digits, active)
                case _:
                    raise NotImplementedError(s)

    def decode(self, s: Decode, t: int) -> None:
        scope = self.scopes[t]
        rest = s.source.evaluate(scope)
        for name, extent in reversed(s.digits):
            rest, scope[name] = divmod(rest, extent.evaluate(scope))

    def instance(self, s: Assign | Reduce | Load | Store, digits: Scope, active: list[int]) -> None:
        results: list[tuple[int, Any]] = []
        for t in active:
            scope = {**self.scopes[t], **digits}
            match s:
                case Assign():
                    results.append((t, self.value(s.value, t, digits)))
                case Reduce():
                    old = self.registers[self.key(s.dst, t, scope)]
                    new = operate(
                        s.op, [old, self.value(s.value, t, digits)], self.type(s.dst.name)
                    )
                    results.append((t, new))
                case Load():
                    self.load(s, t, scope)
                case Store():
                    self.store(s, t, scope)
        for t, value in results:
            scope = {**self.scopes[t], **digits}
            self.registers[self.key(s.dst, t, scope)] = value  # type: ignore[arg-type]

    def load(self, s: Load, t: int, scope: Scope) -> None:
        index = [i.evaluate(scope) for i in s.src.index]
        dtype = self.type(s.dst.name)
        for j in range(s.width):
            if self.holds(s.guard, scope):
                value = self.memory(s.src.name)[tuple(index)]
            else:
                value = cast(s.fill, dtype)
            self.registers[self.key(s.dst, t, scope, j)] = value
            index[s.axis] += 1

    def store(self, s: Store, t: int, scope: Scope) -> None:
        if not self.holds(s.guard, scope):
            return
        index = [i.evaluate(scope) for i in s.dst.index]
        for j in range(s.width):
            self.memory(s.dst.name)[tuple(index)] = self.registers[self.key(s.src, t, scope, j)]
            index[s.axis] += 1

    def memory(self, name: str) -> Any:
        return self.arrays[name] if name in self.arrays else self.shared.setdefault(name, {})

    def type(self, name: str) -> DType:
        return self.kernel.fragment(name).dtype

    def key(self, ref: Any, t: int, scope: Scope, step: int = 0) -> Any:
        index = [i.evaluate(scope) for i in ref.index]
        index[-1] += step
        return (ref.name, *index, t)

    def holds(self, guard: Guard, scope: Scope) -> bool:
        sides = [(c.expr.evaluate(scope), c.equality) for c in guard]
        return all(side == 0 if equality else side >= 0 for side, equality in sides)

    def value(self, value: Value, t: int, digits: Scope) -> Any:
        scope = {**self.scopes[t], **digits}
        match value:
            case Const(number, dtype):
                return cast(number, dtype)
            case Read(ref, _):
                return self.registers[self.key(ref, t, scope)]
            case IndexValue(expr, dtype):
                return cast(expr.evaluate(scope), dtype)
            case Holds(guard, _):
                return np.bool_(self.holds(guard, scope))
            case Apply(op, args, dtype):
                return operate(op, [self.value(arg, t, digits) for arg in args], dtype)
            case Cast(inner, dtype):
                return cast(self.value(inner, t, digits), dtype)
            case LaneXor(ref, mask, _):
                return self.other(ref, t ^ mask, digits)
            case LaneRead(ref, lane, _):
                size = self.kernel.warp_size
                return self.other(ref, t // size * size + lane.evaluate(scope), digits)
        raise NotImplementedError(value)

    def other(self, ref: Any, source: int, digits: Scope) -> Any:
        """What another thread offers: it names the register by its own digits."""
        return self.registers[self.key(ref, source, {**self.scopes[source], **digits})]


def simulate_plainly(kernel: Kernel, arrays: dict[str, Any], symbols: Scope) -> None:
    blocks = 1
    for extent in kernel.grid:
        blocks *= extent.evaluate(symbols)
    for block in range(blocks):
        machine = Block(kernel, block, arrays, symbols)
        machine.run(kernel.body, list(range(kernel.threads)))
