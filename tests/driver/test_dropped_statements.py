"""A sum that the lowered program leaves out as a whole is refuted at the program's line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import tilewright as tw
from tilewright.base.diagnostics import ReductionError
from tilewright.driver.compile import Rewrites, Specialisation, compile_program
from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import Body, Kernel, Mma, Reduce, Statement
from tilewright.kernel.rewrite import rewrite
from tilewright.target.nvidia import SM_90A

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


def product(start: float, **hardware: bool) -> tw.TileKernel:
    @tw.kernel(
        [
            tw.WorkgroupConstraint(M, 64, 0),
            tw.WorkgroupConstraint(N, 32, 1),
            tw.HardwareConstraint(**hardware),
        ]
    )
    def product(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](start)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total, c)

    return product


def row_sums() -> tw.TileKernel:
    @tw.kernel()
    def row_sums(x: tw.Memory[M, K, tw.GLOBAL, tw.f32], y: tw.Memory[M, tw.GLOBAL, tw.f32]):
        tw.write(tw.sum(tw.read(x), dim=K), y)

    return row_sums


def without(*kinds: type) -> Callable[[Kernel], Kernel]:
    """The kernel with no statement of these kinds."""

    def drop(kernel: Kernel) -> Kernel:
        def change(statement: Statement) -> Body:
            return () if isinstance(statement, kinds) else (statement,)

        return replace(kernel, body=rewrite(kernel.body, change))

    return drop


DROPPED = {
    "wgmma": (product(1.0), WarpgroupMma, {"M": 64, "N": 32, "K": 128}),
    "mma": (product(1.0, specialize=False), Mma, {"M": 64, "N": 32, "K": 128}),
    "reduce": (row_sums(), Reduce, {"M": 40, "K": 100}),
}


@pytest.mark.parametrize("case", DROPPED)
def test_a_sum_that_is_left_out_is_refuted(case: str) -> None:
    kernel, kind, sizes = DROPPED[case]
    right = compile_program(kernel.program, Specialisation(SM_90A, sizes))
    assert any(o.statement == "sums of the program" for o in right.obligations)
    with pytest.raises(ReductionError) as caught:
        compile_program(
            kernel.program, Specialisation(SM_90A, sizes), Rewrites(kernel=without(kind))
        )
    text = str(caught.value)
    assert "no term of K is ever counted" in text
    assert ("tw.mma(" if kind is not Reduce else "tw.sum(") in text
