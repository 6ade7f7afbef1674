"""Shared memory that one role fills and reads: what was written there last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proof_kernels import TOY, e, tensor
from proof_kernels import kernel as small_kernel

from tilewright.base.dtypes import f16
from tilewright.kernel.async_ops import BulkLoad, InitPhases, PhaseRef, Phases
from tilewright.kernel.ops import (
    Body,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    Mode,
    Registers,
    RegRef,
    Shared,
    Store,
)
from tilewright.lower.obligations import verify
from tilewright.lower.obligations.elements import elements
from tilewright.lower.obligations.scope import Program
from tilewright.poly.expr import Expr, equal
from tilewright.poly.prove import Kind, Proved, Refuted


def load(register: str, source: str, first: Expr | int = 0) -> Load:
    return Load((), RegRef(register, (e(0),)), MemRef(source, (Expr.of(first),)), 4)


def kernel(body: Body, rows: tuple[str | int, ...]) -> Kernel:
    """One lane, with phases: as in kernels whose warps have roles."""
    made = small_kernel(
        (InitPhases(("ph",)), Decode(e("block"), (("b", e(2)),)), If((equal("lane", 0),), body)),
        (tensor("x", (16,)), tensor("y", rows, Mode.OUT)),
        grid=(2,),
        registers=(Registers("v", f16, (4,)), Registers("w", f16, (4,))),
        shared=(Shared("s", f16, (4,)),),
    )
    return replace(made, phases=(Phases("ph", 1, 1, offset=64),))


def turns(first: int, *, inside: bool) -> Kernel:
    """Each turn stores what s holds as y[t], and leaves x[first..] there for the next one."""
    to_s = Store((), MemRef("s", (e(0),)), RegRef("v", (e(0),)), 4)
    out = Store((), MemRef("y", (e("t"), e(0))), RegRef("w", (e(0),)), 4)
    begin: Body = (load("v", "x"), to_s)
    turn: Body = (load("w", "s"), out, load("v", "x", first), to_s)
    if inside:
        return kernel((Loop("t", e(2), (*begin, *turn)),), (2, 4))
    return kernel((*begin, Loop("t", e(2), turn)), (2, 4))


@pytest.mark.parametrize(("first", "inside", "right"), [
    (0, False, True), (4, True, True), (4, False, False),
])  # fmt: skip
def test_what_a_later_turn_reads(first: int, inside: bool, right: bool) -> None:
    """Right ones may stay open; wrong ones may not be proved."""
    found = [
        o.result
        for o in verify(turns(first, inside=inside), TOY, {"x": ("M",), "y": ("T", "M")})
        if o.kind is Kind.ELEMENT
    ]
    assert found
    if inside:
        assert all(isinstance(r, Proved) for r in found)
    elif not right:
        assert not any(isinstance(r, Proved) for r in found)


def test_digits_that_a_loop_decodes_are_those_of_its_turn() -> None:
    """The second turn stores x[4q - 4..] as y[4q..]: its copy has a digit of the same name."""

    def brought(first: Expr | int) -> BulkLoad:
        place = MemRef("s", (e(0),))
        return BulkLoad((), place, "xm", (Expr.of(first),), PhaseRef("ph", e(0)))

    turn: Body = (
        brought(e("p") * 4),
        load("w", "s"),
        Decode(e("b") * 2 + e("p"), (("q", e(4)),)),
        If((equal("p", 0),), (load("v", "x", e("q") * 4),)),
        Store((), MemRef("y", (e("b") * 8 + e("p") * 4,)), RegRef("v", (e(0),)), 4),
    )
    body: Body = (load("v", "x"), brought(0), Loop("p", e(2), turn, unroll=True))
    program = Program.of(kernel(body, (16,)), TOY)
    (found,) = (o.result for o in elements(program, {"x": ("M",), "y": ("M",)}))
    assert isinstance(found, Refuted)
