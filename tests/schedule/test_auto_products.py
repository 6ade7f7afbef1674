"""The tiles that products get where nobody says: which form, and when none."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tilewright.driver.compile import Specialisation, compile_program
from tilewright.graph import ops
from tilewright.lang.program import trace_program
from tilewright.schedule.auto import completed
from tilewright.schedule.constraints import Constraint, Hardware, Tiling, Workgroup
from tilewright.schedule.plan import Plan
from tilewright.schedule.policy import make_plan
from tilewright.schedule.tensors import declare
from tilewright.target.amd import GFX942
from tilewright.target.nvidia import SM_90A

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


def program(dtype: Any = tw.bf16, epilogue: Any = lambda total: total) -> tw.TileKernel:
    def gemm(a, b, c):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(epilogue(total), tw.bf16), c)

    gemm.__annotations__ = {
        "a": tw.Memory[M, K, tw.GLOBAL, dtype],
        "b": tw.Memory[N, K, tw.GLOBAL, dtype],
        "c": tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    }
    return tw.kernel()(gemm)


def chosen(
    sizes: tuple[int, int, int], kernel: tw.TileKernel | None = None, target: Any = SM_90A
) -> tuple[tuple[Constraint, ...], Plan]:
    names = dict(zip(("M", "N", "K"), sizes, strict=True))
    graph = trace_program((kernel or program()).program, names, {})
    declared = declare(graph)
    constraints = completed(graph, (), target, declared)
    return constraints, make_plan(graph, constraints, target, declared=declared)


def tiles(constraints: tuple[Constraint, ...]) -> tuple[int, ...]:
    found = [c for c in constraints if isinstance(c, Workgroup | Tiling)]
    return tuple(c.tile or 0 for c in found)


LARGE = {
    (4096, 4096, 4096): ((128, 256, 64), False),
    (8192, 8192, 8192): ((128, 192, 64), True),
    (16384, 8192, 1280): ((128, 192, 64), True),
    (4096, 4096, 128): ((128, 128, 64), True),
}


@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_many_tiles_take_a_form(sizes: tuple[int, int, int]) -> None:
    constraints, plan = chosen(sizes)
    assert tiles(constraints) == LARGE[sizes][0]
    assert plan.roles is not None
    assert plan.roles.pingpong == LARGE[sizes][1]
    assert "turn" in plan.grid.order


def test_few_rows_become_columns() -> None:
    constraints, plan = chosen((16, 8192, 8192))
    assert tiles(constraints)[:2] == (16, 64)
    assert plan.roles is not None
    contract = next(iter(plan.contracts.values()))
    assert (contract.m, contract.n, contract.lhs_is_a) == ("N", "M", False)


def test_all_of_a_short_side_is_in_one_tile() -> None:
    constraints, _ = chosen((128, 8192, 8192))
    assert tiles(constraints)[0] == 128


def test_arithmetic_after_the_product_runs_while_the_other_warpgroup_multiplies() -> None:
    twice = program(epilogue=lambda total: tw.tanh(tw.tanh(total)))
    constraints, plan = chosen((8192, 8192, 8192), twice)
    assert plan.roles is not None
    assert plan.roles.pingpong
    assert tiles(constraints)[:2] == (128, 192)


def test_a_reduction_after_the_product_keeps_the_warpgroups_together() -> None:
    def scaled(total: Any) -> Any:
        return total - tw.max(total, dim=N)

    _, plan = chosen((16384, 256, 4096), program(epilogue=scaled))
    assert plan.roles is None or not plan.roles.pingpong


@pytest.mark.parametrize(("dtype", "target"), [(tw.f32, SM_90A), (tw.bf16, GFX942)])
def test_others_have_no_roles(dtype: Any, target: Any) -> None:
    constraints, plan = chosen((1024, 1024, 256), program(dtype), target)
    assert plan.roles is None
    assert any(isinstance(c, Workgroup) for c in constraints)


def test_constraints_of_the_author_are_left_alone() -> None:
    kernel = program()
    graph = trace_program(kernel.program, {"M": 256, "N": 256, "K": 256}, {})
    assert any(isinstance(op, ops.Contract) for op in ops.walk(graph.body))
    given = (Workgroup("M", 64, 0),)
    assert completed(graph, given, SM_90A, declare(graph)) == given
    asked = (Hardware(stages=3),)
    assert completed(graph, asked, SM_90A, declare(graph))[-1:] == asked


def test_what_the_author_says_of_the_hardware_joins_what_is_chosen() -> None:
    names = {"M": 8192, "N": 8192, "K": 8192}
    graph = trace_program(program().program, names, {})
    declared = declare(graph)
    asked = Hardware(stages=3)
    plain, with_asked = (
        make_plan(graph, completed(graph, given, SM_90A, declared), SM_90A, declared=declared)
        for given in ((), (asked,))
    )
    assert plain.roles is not None
    assert with_asked.roles is not None
    assert (plain.roles.pingpong, with_asked.roles.pingpong) == (True, True)
    assert plain.stages != 3
    assert with_asked.stages == 3


def asking(sizes: tuple[int, int, int], asked: Hardware) -> Plan:
    graph = trace_program(program().program, dict(zip(("M", "N", "K"), sizes, strict=True)), {})
    declared = declare(graph)
    constraints = completed(graph, (asked,), SM_90A, declared)
    return make_plan(graph, constraints, SM_90A, declared=declared)


@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (4096, 4096, 4096)], ids=str)
def test_the_tiles_suit_what_the_author_asks_of_the_hardware(sizes: tuple[int, int, int]) -> None:
    shared, turns = asking(sizes, Hardware(split_k=2)), asking(sizes, Hardware(pingpong=True))
    assert shared.roles is not None
    assert (shared.roles.parts, shared.roles.pingpong) == (2, False)
    assert turns.roles is not None
    assert (turns.roles.parts, turns.roles.pingpong) == (1, True)
    assert asking(sizes, Hardware(specialize=False)).roles is None
    counted = asking(sizes, Hardware(waves_per_block=(2, 4)))
    assert counted.roles is None
    assert counted.warps == 8


def test_a_product_without_constraints_compiles() -> None:
    sizes = {"M": 300, "N": 520, "K": 72}
    compiled = compile_program(program().program, Specialisation(SM_90A, sizes))
    assert compiled.plan.roles is not None
