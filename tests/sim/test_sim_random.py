"""Random kernels: the simulator agrees, bit for bit, with the plain one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from sim_kernels import decode, e, kernel, mem, reg, tensor
from sim_reference import simulate_plainly

from tilewright.base.dtypes import DType, boolean, f16, f32, i32
from tilewright.codegen.sim import simulate
from tilewright.codegen.sim.numeric import NUMPY
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Barrier,
    Cast,
    Const,
    Holds,
    If,
    IndexValue,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mode,
    Over,
    Read,
    Reduce,
    Registers,
    Shared,
    Store,
    Swizzle,
    Symbol,
    Value,
    When,
)
from tilewright.poly.expr import Constraint, Expr, Guard
from tilewright.target.nvidia import SM_90A

LANES = 4
TARGET = replace(SM_90A, warp_size=LANES)
WARPS, ROWS, COLUMNS = 2, 6, 40
THREADS = WARPS * LANES
TYPES = {"p": f32, "q": i32, "h": f16}
SHAPES = {"p": (2, 3), "q": (4,), "h": (2, 4)}


class Maker:
    """Makes up a kernel. `here` are the variables in scope, with exclusive upper bounds."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def over(self, *limits: int) -> Over:
        return tuple((self.name(), self.random.randint(1, limit)) for limit in limits)

    def below(self, here: dict[str, int], limit: int) -> Expr:
        """An expression in [0, limit), whatever the variables are."""
        total = e(self.random.randrange(5))
        for name in self.random.sample(sorted(here), min(len(here), self.random.randint(0, 3))):
            term = e(name) * self.random.choice((1, 1, 2, 3))
            total = total + self.random.choice((term, term // 2, term % 3))
        return total % limit

    def register(self, name: str, here: dict[str, int], width: int = 1) -> Any:
        *outer, last = SHAPES[name]
        return reg(name, *(self.below(here, n) for n in outer), self.below(here, last - width + 1))

    def guard(self, here: dict[str, int]) -> Guard:
        side = self.below(here, 7) - self.random.randint(0, 5)
        return (Constraint(side, equality=self.random.random() < 0.2),)

    def value(self, dtype: DType, here: dict[str, int], depth: int, lanes: bool) -> Value:
        name = next(n for n, t in TYPES.items() if t is dtype)
        if depth == 0:
            options: list[Value] = [
                Const(self.random.randint(-4, 4), dtype),
                IndexValue(self.below(here, 9) - 4, dtype),
                Read(self.register(name, here), dtype),
            ]
            if lanes:
                ref = self.register(name, {k: v for k, v in here.items() if k != "t"})
                options.append(LaneXor(ref, self.random.randrange(LANES), dtype))
                options.append(LaneRead(ref, self.below(here, LANES), dtype))
            return self.random.choice(options)
        kind = self.random.random()
        if kind < 0.2:
            other = self.random.choice(list(TYPES.values()))
            return Cast(self.value(other, here, depth - 1, lanes), dtype)
        a = self.value(dtype, here, depth - 1, lanes)
        b = self.value(dtype, here, depth - 1, lanes)
        if kind < 0.4:
            test: Value = Apply("lt", (a, b), boolean)
            if self.random.random() < 0.5:
                test = Apply("and", (test, Holds(self.guard(here))), boolean)
            return Apply("select", (test, b, a), dtype)
        return Apply(self.random.choice(("add", "sub", "mul", "max", "min")), (a, b), dtype)

    def statement(self, here: dict[str, int], depth: int, whole: bool) -> list[object]:
        """Some statements. `whole`: all threads run them, so lanes may exchange registers."""
        kind = self.random.random()
        name = self.random.choice(list(TYPES))
        dtype = TYPES[name]
        if kind < 0.3 or depth == 0:
            over = self.over(*[2, 3][: self.random.randint(0, 2)])
            inner = {**here, **dict(over)}
            return [
                Assign(
                    over,
                    self.register(name, inner),
                    self.value(dtype, inner, self.random.randint(0, 2), whole and not over),
                )
            ]
        if kind < 0.45:
            over, along = self.over(2), self.over(3, 2)
            dst = self.register(name, {**here, **dict(over)})
            value = self.value(dtype, {**here, **dict(over), **dict(along)}, 1, False)
            if any(r.name == name for r in _reads(value)):
                value = IndexValue(self.below(dict(along), 5), dtype)
            return [Reduce(self.random.choice(("add", "max")), over, along, dst, value)]
        if kind < 0.6:
            over = self.over(3)
            inner = {**here, **dict(over)}
            width = self.random.choice((1, 2))
            column = self.below(inner, COLUMNS // 2) * 2
            return [
                Load(
                    over, self.register(name, inner, width),
                    mem(f"x{name}", self.below(inner, ROWS), column), width=width,
                    guard=self.guard(inner) if self.random.random() < 0.5 else (),
                    fill=self.random.randint(-3, 3),
                )
            ]  # fmt: skip
        if kind < 0.7 and whole:
            return self.round_trip(here)
        body = self.body({**here}, depth - 1, False)
        if kind < 0.8:
            return [If(self.guard(here), tuple(body))]
        if kind < 0.9:
            return [
                When(Holds(self.guard({"b": here["b"]})), tuple(self.body(here, depth - 1, whole)))
            ]
        var = self.name()
        extent = e(self.random.randint(0, 3)) + self.random.choice((e(0), e("b")))
        return [Loop(var, extent, tuple(self.body({**here, var: 5}, depth - 1, whole)))]

    def round_trip(self, here: dict[str, int]) -> list[object]:
        """Through shared memory: each thread writes its row, and reads anybody's."""
        over = (("i", 4),)
        inner = {**here, "i": 4}
        return [
            Store(over, mem("s", "t", "i"), reg("q", "i")),
            Barrier(),
            Load(over, reg("q", "i"), mem("s", self.below(inner, THREADS), self.below(inner, 4))),
            Barrier(),
        ]

    def body(self, here: dict[str, int], depth: int, whole: bool) -> list[object]:
        return [
            s for _ in range(self.random.randint(1, 3)) for s in self.statement(here, depth, whole)
        ]

    def kernel(self) -> Kernel:
        a, b = self.random.choice(((2, 4), (4, 2), (8, 1)))
        here = {"t": THREADS, "u": a, "v": b, "b": 3}
        body: list[object] = [
            decode("block", ("b", "N")),
            decode("thread", ("t", THREADS)),
            decode("thread", ("u", a), ("v", b)),
        ]
        for name, shape in SHAPES.items():
            over = tuple((f"i{k}", n) for k, n in enumerate(shape))
            body.append(Assign(over, reg(name, *(n for n, _ in over)), Const(1, TYPES[name])))
        for _ in range(4):
            body += self.body(here, 2, True)
        for name, shape in SHAPES.items():
            over = tuple((f"i{k}", n) for k, n in enumerate(shape))
            index = tuple(n for n, _ in over)
            body.append(Store(over, mem(f"y{name}", "b", "t", *index), reg(name, *index)))
        swizzle = self.random.choice((None, Swizzle(2, 0, 2), Swizzle(1, 1, 2)))
        return kernel(
            body,
            grid=("N",),
            warps=WARPS,
            warp_size=LANES,
            symbols=(Symbol("N"),),
            tensors=(
                *(tensor(f"x{n}", t, Mode.IN, ROWS, COLUMNS) for n, t in TYPES.items()),
                *(tensor(f"y{n}", t, Mode.OUT, "N", THREADS, *SHAPES[n]) for n, t in TYPES.items()),
            ),
            shared=(Shared("s", i32, (THREADS, 4), swizzle),),
            registers=tuple(Registers(n, t, SHAPES[n]) for n, t in TYPES.items()),
        )


def _reads(value: Value) -> list[Any]:
    match value:
        case Read(ref, _) | LaneXor(ref, _, _) | LaneRead(ref, _, _):
            return [ref]
        case Apply(_, args, _):
            return [r for arg in args for r in _reads(arg)]
        case Cast(inner, _):
            return _reads(inner)
        case _:
            return []


@pytest.mark.parametrize("group", range(8))
def test_random_kernels(group: int) -> None:
    rng = np.random.default_rng(group)
    for seed in range(14 * group, 14 * group + 14):
        program = Maker(seed).kernel()
        blocks = 1 + seed % 3
        arrays = {
            t.name: rng.integers(-5, 6, tuple(s.evaluate({"N": blocks}) for s in t.shape)).astype(
                NUMPY[t.dtype]
            )
            for t in program.tensors
        }
        plain = {name: array.copy() for name, array in arrays.items()}
        simulate(program, TARGET, arrays, {"N": blocks})
        with np.errstate(all="ignore"):
            simulate_plainly(program, plain, {"N": blocks})
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, plain[name], err_msg=f"seed {seed}, {name}")
