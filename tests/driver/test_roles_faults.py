"""Each wait, fence and release of a loop with arithmetic or with a computed operand is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from role_programs import KB, KI, Array, G, M, N, poison, powers, tiles, whole, with_roles

import tilewright as tw
from tilewright import CompiledKernel
from tilewright.base.diagnostics import TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.driver.axes import named_axes
from tilewright.kernel.async_ops import (
    Arrive,
    BulkLoad,
    PhaseWait,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import Body, If, Kernel, Load, Loop, Statement, walk
from tilewright.kernel.rewrite import rewrite
from tilewright.lower.obligations import verify
from tilewright.poly.results import Proved, Refuted
from tilewright.target.nvidia import SM_90A

STEPS = 12  # more than there are slots


@cache
def scaled(rows_computed: bool) -> CompiledKernel:
    """Scales of each row and block of terms: of the product, or of the row operand itself."""
    kind = tw.i8 if rows_computed else tw.f16

    @tw.kernel([*tiles(64, 32), tw.TilingConstraint(KB, 1), tw.HardwareConstraint(stages=3)])
    def product(
        a: tw.Memory[M, KB, KI, G, kind],
        s: tw.Memory[M, KB, G, tw.f32],
        b: tw.Memory[N, KB, KI, G, tw.f16],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            if rows_computed:
                rows = tw.cast(tw.cast(tw.read(a), tw.f32) * tw.read(s), tw.f16)
                return tw.mma(rows, tw.read(b), acc)
            each = tw.mma(tw.read(a), tw.read(b), tw.Register[M, N, KB, tw.f32](0.0))
            return acc + tw.sum(each * tw.read(s), dim=KB)

        tw.write(total, c)

    return with_roles(product, M=64, N=32, KB=STEPS, KI=64)


def operands(rows_computed: bool) -> dict[str, Array]:
    kind = tw.i8 if rows_computed else tw.f16
    return {
        "a": whole((64, STEPS, 64), kind, 1), "s": powers((64, STEPS), 2),
        "b": whole((32, STEPS, 64), tw.f16, 3), "c": poison((64, 32), tw.f32),
    }  # fmt: skip


def without(kernel: Kernel, gone: Callable[[Statement], bool]) -> Kernel:
    """The kernel without the statements, and without what is then empty."""

    def change(statement: Statement) -> Body:
        empty = isinstance(statement, If | Loop) and not statement.body
        return () if gone(statement) or empty else (statement,)

    return replace(kernel, body=rewrite(kernel.body, change))


def is_wait(statement: Statement, name: str) -> bool:
    return isinstance(statement, PhaseWait) and statement.phase.name == name


FAULTS: dict[str, Callable[[Statement], bool]] = {
    "the wait for a full slot": lambda s: is_wait(s, "full"),
    "the wait for an empty slot": lambda s: is_wait(s, "empty"),
    "the fence": lambda s: isinstance(s, WarpgroupFence),
    "the wait for the products": lambda s: isinstance(s, WarpgroupWait),
    "the group's end": lambda s: isinstance(s, WarpgroupCommit),
    "the release": lambda s: isinstance(s, Arrive),
    "the copy of the scales": lambda s: isinstance(s, BulkLoad) and s.map == "s_box",
    "the load of the scales": lambda s: isinstance(s, Load) and s.src.name == "s_ring",
}


@pytest.mark.parametrize("rows_computed", [False, True], ids=["product", "operand"])
def test_the_kernel_without_faults(rows_computed: bool) -> None:
    compiled, arrays = scaled(rows_computed), operands(rows_computed)
    assert all(isinstance(p.result, Proved) for p in compiled.proofs)
    simulate(compiled.compilation.kernel, SM_90A, arrays, {})
    a, s, b = (arrays[n].astype(np.float64) for n in "asb")
    assert (arrays["c"] == np.einsum("mkq,mk,nkq->mn", a, s, b)).all()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rows_computed", [False, True], ids=["product", "operand"])
def test_a_fault_is_refuted_and_simulated(rows_computed: bool, fault: str) -> None:
    compiled = scaled(rows_computed)
    right = compiled.compilation.kernel
    wrong = without(right, FAULTS[fault])
    assert sum(1 for _ in walk(wrong.body)) < sum(1 for _ in walk(right.body))
    found = verify(wrong, SM_90A, named_axes(compiled.compilation.graph))
    assert any(isinstance(o.result, Refuted) for o in found)
    with pytest.raises(TilewrightError):
        simulate(wrong, SM_90A, operands(rows_computed), {})


def test_a_product_that_goes_on_from_the_step_before_is_refuted() -> None:
    """Each step's product begins at zero; without its guard it would add up all steps'."""
    compiled = scaled(False)

    def change(statement: Statement) -> Body:
        if not isinstance(statement, WarpgroupMma):
            return (statement,)
        return (replace(statement, accumulate=()),)

    right = compiled.compilation.kernel
    wrong = replace(right, body=rewrite(right.body, change))
    found = verify(wrong, SM_90A, named_axes(compiled.compilation.graph))
    assert any(isinstance(o.result, Refuted) for o in found)
