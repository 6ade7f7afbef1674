"""Kernels that multiply paths, turns and pairs: each proof ends, and none is proved wrongly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proof_checks import results
from proof_kernels import TOY, e, tensor
from test_grid_proofs import R, grid

from tilewright.base.dtypes import f16
from tilewright.kernel.ops import (
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    RegRef,
    Shared,
    Statement,
    Store,
)
from tilewright.lower.obligations.order import EndlessError, ahead
from tilewright.lower.obligations.scope import Program
from tilewright.poly.expr import Expr, less
from tilewright.poly.prove import Kind, Proved

WRITE = Store((), MemRef("s", (e("lane"),)), R)
READ = Load((), RegRef("q", (e(0),)), MemRef("s", (3 - e("lane"),)))
COPY = AsyncCopy((), MemRef("s", (4 * e("lane"),)), MemRef("x", (e(0), 4 * e("lane"))), 4,
                 guard=(less(4 * e("lane"), e("N") - 4),))  # fmt: skip


def kernel(body: Body) -> Kernel:
    k = grid(*body, blocks=(1,))
    tensors = (*k.tensors, tensor("x", ("M", "N")))
    return replace(k, tensors=tensors, shared=(Shared("s", f16, (64,)),))


def nested(depth: int, body: Body, extent: str = "M") -> Body:
    for d in range(depth):
        body = (Loop(f"i{d}", e(extent), body),)
    return body


def maybe(inner: Statement, counter: str = "i0", number: int = 0) -> If:
    return If((less(counter, e("M") - number), less(number, "N")), (inner,))


def loops_in_a_row(count: int) -> Body:
    return tuple(
        Loop(f"j{j}", e("N"), (COPY, maybe(AsyncWait(0), f"j{j}", 3), AsyncCommit()))
        for j in range(count)
    )


def in_one_another(count: int) -> Body:
    body: Body = (COPY, AsyncCommit(), AsyncWait(3))
    for j in range(count):
        turn = (*body, maybe(Barrier(), f"j{j}", 3), AsyncCommit(), maybe(AsyncWait(1), f"j{j}"))
        body = (Loop(f"j{j}", e("N"), turn), READ)
    return body


def waits(count: int) -> Body:
    return tuple(maybe(AsyncWait(0), number=j) for j in range(count))


def commits(count: int) -> Body:
    return tuple(maybe(AsyncCommit(), number=j) for j in range(count))


RACES = {
    "barriers under guards": nested(5, (WRITE, maybe(Barrier()), READ, maybe(Barrier(), "i1"))),
    "waits under guards": nested(1, (COPY, AsyncCommit(), *waits(30), READ, Barrier())),
    "waits in nested loops": nested(3, (COPY, AsyncCommit(), *waits(8), READ, Barrier())),
    "commits under guards": nested(1, (COPY, AsyncCommit(), *commits(30), AsyncWait(20), READ)),
    "loops in a row": nested(1, (*loops_in_a_row(8), READ)),
    "loops in loops": in_one_another(5),
    "many accesses": nested(2, (*[WRITE, READ] * 40, Barrier(), *[READ] * 40, Barrier())),
}


@pytest.mark.parametrize("name", RACES)
def test_it_ends(name: str) -> None:
    found = results(kernel(RACES[name]), Kind.RACE)
    assert not any(isinstance(r, Proved) for r in found)


def test_deep_loops_with_barriers_are_proved() -> None:
    k = kernel(nested(6, (WRITE, Barrier(), READ, Barrier())))
    assert all(isinstance(r, Proved) for r in results(k, Kind.RACE))


def test_a_walk_with_too_many_steps_says_so() -> None:
    turn: Body = (*[READ] * 300,)
    for depth in range(5):
        turn = (Loop(f"i{depth}", Expr.of(20), (*turn, maybe(Barrier(), f"i{depth}", 19))),)
    program = Program.of(kernel((WRITE, *turn)), TOY)
    site = next(s for s in program.sites if s.statement is WRITE)
    with pytest.raises(EndlessError, match="more than 5000 statements may follow"):
        list(ahead(program, site, asynchronous=False))
