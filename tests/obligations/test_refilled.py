"""Which definitions of a fragment hide the earlier ones."""

from __future__ import annotations

import pytest
from proof_kernels import TOY, e, tensor
from proof_kernels import kernel as small_kernel

from tilewright.base.dtypes import boolean, f16
from tilewright.kernel.ops import (
    Assign,
    Const,
    Holds,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    Mode,
    Registers,
    RegRef,
    Statement,
    Store,
    When,
)
from tilewright.kernel.rewrite import unrolled
from tilewright.lower.obligations import verify
from tilewright.poly.expr import Expr, equal, less
from tilewright.poly.prove import Kind, Proved, Refuted, Result


def load(first: Expr | str | int, register: Expr | str | int = 0, width: int = 4) -> Load:
    """Elements of x from `first` on."""
    source = MemRef("x", (Expr.of(first),))
    return Load((), RegRef("v", (Expr.of(register),)), source, width)


def kernel(*made: Statement) -> Kernel:
    """One lane stores registers as y[4] to y[7]: first x[0] to x[3], then what is made."""
    store = Store((), MemRef("y", (e(4),)), RegRef("v", (e(0),)), 4)
    return small_kernel(
        (If((equal("lane", 0),), (load(0), *made, store)),),
        (tensor("x", (8,)), tensor("y", (8,), Mode.OUT)),
        registers=(Registers("v", f16, (4,)),),
    )


def element(k: Kernel) -> Result | None:
    """The proof that y[m] is made of x[m]; None where no load is met."""
    found = [o.result for o in verify(k, TOY, {"x": ("M",), "y": ("M",)}) if o.kind is Kind.ELEMENT]
    return found[0] if found else None


halves = Loop("i", e(2), (load(e("i") * 2 + 4, e("i") * 2, 2),), unroll=True)
RIGHT: dict[str, tuple[Statement, ...]] = {
    "all registers at once": (load(4),),
    "in the turns of a loop": (halves,),
    "in both": (load(0), halves),
}
WRONG: dict[str, tuple[Statement, ...]] = {
    "nothing": (),
    "half of them": (load(4, 0, 2),),
    "one turn of two": (Loop("i", e(1), halves.body, unroll=True),),
    "the same half twice": (Loop("i", e(2), (load(4, 0, 2),), unroll=True),),
    "under a guard": (If((less("lane", 0),), (load(4),)),),
    "under a condition": (When(Holds((less("lane", 0),), boolean), (load(4),)),),
    "the wrong ones last": (load(4), load(0)),
    "wrong ones again in each turn": (Loop("i", e(2), (load(0, 0, 2), *halves.body), unroll=True),),
    "wrong ones again around the turns": (Loop("j", e(2), (load(0, 0, 1), halves)),),
    "a loop of no turns": (Loop("i", e(0), (load(4),)),),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_whole_definition_hides_those_before(case: str) -> None:
    assert isinstance(element(kernel(*RIGHT[case])), Proved)


@pytest.mark.parametrize("case", WRONG)
def test_others_do_not(case: str) -> None:
    assert isinstance(element(kernel(*WRONG[case])), Refuted)


def test_an_assignment_hides_as_a_load_does() -> None:
    zeros = Assign((("i", 4),), RegRef("v", (e("i"),)), Const(0.0, f16))
    assert element(kernel(zeros)) is None


def test_a_loop_is_taken_apart() -> None:
    body = (Loop("i", e(2), (Loop("j", e(2), (load(e("i") * 2 + "j", 0, 1),)),), unroll=True),)
    (first, second) = unrolled(body, {"i"})
    assert isinstance(first, Loop)
    assert isinstance(second, Loop)
    assert first.body == (load(e("j"), 0, 1),)
    assert second.body == (load(e("j") + 2, 0, 1),)
    assert unrolled(body, {"k"}) is body
