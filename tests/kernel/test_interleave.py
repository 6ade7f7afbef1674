"""Joined statements: what is joined, what shrinks, and what must stay apart."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dtypes import f32
from tilewright.kernel.interleave import interleave
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Const,
    Kernel,
    Load,
    Loop,
    MemRef,
    Mode,
    Read,
    Registers,
    RegRef,
    Statement,
    Store,
    Tensor,
)
from tilewright.kernel.text import print_kernel
from tilewright.poly.expr import Expr

ROW, COL = Expr.of("i"), Expr.of("j")
OVER = (("i", 4), ("j", 2))


def reg(name: str, *index: Expr) -> RegRef:
    return RegRef(name, index)


def read(name: str, *index: Expr) -> Read:
    return Read(reg(name, *index), f32)


def twice(value: Read) -> Apply:
    return Apply("mul", (value, Const(2.0, f32)), f32)


def kernel(*body: Statement) -> Kernel:
    start = Assign(OVER, reg("a", ROW, COL), Const(1.0, f32))
    return Kernel(
        name="k", target="sm_90a", warp_size=32, warps=1, grid=(Expr.of(1),), symbols=(),
        tensors=(Tensor("c", f32, (Expr.of(8),), (Expr.of(1),), Mode.OUT, 16),), scalars=(),
        shared=(), registers=tuple(Registers(n, f32, (4, 2)) for n in "axy"),
        body=(start, *body),
    )  # fmt: skip


def store(name: str) -> Store:
    return Store((("i", 4),), MemRef("c", (ROW * 2,)), reg(name, ROW, Expr.of(0)), 2)


def test_a_chain_runs_element_by_element_in_one_element_s_registers() -> None:
    before = kernel(
        Assign(OVER, reg("x", ROW, COL), twice(read("a", ROW, COL))),
        Assign(OVER, reg("y", ROW, COL), twice(read("x", ROW, COL))),
        store("y"),
    )
    after = interleave(before)
    assert [type(s) for s in after.body] == [Loop]
    assert {r.name: r.shape for r in after.registers} == {"a": (1, 2), "x": (1, 2), "y": (1, 2)}
    text = print_kernel(after)
    assert "unroll i < 4:" in text
    assert "for j < 2: y[0, j] = x[0, j] * 2.0:f32" in text
    assert "store 2 c[2*i] = y[0, 0]" in text


def test_an_element_of_another_instance_keeps_statements_apart() -> None:
    turned = Assign(OVER, reg("y", ROW, COL), twice(read("x", 3 - ROW, COL)))
    after = interleave(kernel(Assign(OVER, reg("x", ROW, COL), twice(read("a", ROW, COL))), turned))
    assert after.body[-1] == turned
    assert next(r for r in after.registers if r.name == "x").shape == (4, 2)


def test_a_register_that_every_instance_writes_keeps_statements_apart() -> None:
    """The last instance's value is read by all: joined, each would read its own."""
    one = Assign(OVER, reg("x", Expr.of(0), COL), read("a", ROW, COL))
    spread = Assign(OVER, reg("y", ROW, COL), read("x", Expr.of(0), COL))
    assert interleave(kernel(one, spread)).body[-1] == spread


def test_memory_that_is_read_and_written_keeps_statements_apart() -> None:

    before = kernel(
        store("a"), Load((("i", 4),), reg("y", ROW, Expr.of(0)), MemRef("c", (ROW * 2,)), 2)
    )
    before = replace(before, tensors=(replace(before.tensors[0], mode=Mode.INOUT),))
    assert interleave(before).body[-1] == before.body[-1]


def test_values_used_later_keep_their_registers() -> None:
    before = kernel(
        Assign(OVER, reg("x", ROW, COL), twice(read("a", ROW, COL))),
        Assign(OVER, reg("y", ROW, COL), twice(read("x", ROW, COL))),
        Assign((), reg("a", Expr.of(0), Expr.of(0)), Const(0.0, f32)),
        store("y"),
    )
    after = interleave(before)
    assert {r.name: r.shape for r in after.registers} == {"a": (4, 2), "x": (1, 1), "y": (4, 2)}
