"""Right kernels with copy engine, warpgroup instructions and roles: every relation is proved."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bulk_kernels import (
    RELATIONS,
    SMALL,
    OpenRows,
    Plan,
    all_proved,
    axes,
    gemm,
    open_rows,
    related,
    sized,
)

import tilewright as tw
from tilewright.driver.axes import named_axes
from tilewright.driver.compile import compile_program
from tilewright.driver.kernel import TileKernel
from tilewright.driver.specialisation import Specialisation
from tilewright.kernel.async_ops import BulkLoad, BulkStore
from tilewright.kernel.ops import walk
from tilewright.lower.obligations.report import relations
from tilewright.poly.expr import Expr
from tilewright.poly.results import Assumed, Kind, Proved
from tilewright.target.nvidia import SM_90A

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
sys.path.append(str(Path(__file__).parents[1] / "kernel"))
from async_kernels import CASES, Case, product
from async_samples import pipeline

ORDERS = ((False, False), (False, True), (True, False), (True, True))


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("a_across", "b_across"), ORDERS)
def test_every_order_of_the_operands(cluster: int, a_across: bool, b_across: bool) -> None:
    plan = Plan(4096, 4096, 4096, cluster=cluster, a_across=a_across, b_across=b_across)
    assert all_proved(gemm(plan), axes(plan))


@pytest.mark.parametrize(
    "sizes",
    [{"m": 500}, {"n": 264}, {"k": 456}, {"m": 385, "n": 504, "k": 456}],
    ids=lambda sizes: ", ".join(f"{n} {v}" for n, v in sizes.items()),
)
def test_boxes_past_the_end_of_their_tensors(sizes: dict[str, int]) -> None:
    assert all_proved(sized(gemm(SMALL), SMALL, **sizes), axes(SMALL))


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("across", [False, True])
def test_any_number_of_rows(cluster: int, across: bool) -> None:
    rows = OpenRows(Expr.of("M"), 4096, 4096, cluster=cluster, a_across=across)  # type: ignore[arg-type]
    assert all_proved(open_rows(rows), axes(rows))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_role_that_does_everything(case: Case) -> None:
    """Also operands in registers, and every swizzle."""
    named = {
        "a": ("k", "m") if case.a_across else ("m", "k"),
        "b": ("k", "n") if case.b_across else ("n", "k"),
        "d": ("m", "n"),
    }
    found = related(product(case), named)
    assert all(isinstance(o.result, Proved) for o in found)
    (element,) = (o.result for o in found if o.kind is Kind.ELEMENT)
    assert element == Proved("2 loads hold the elements that are stored")


def test_one_load_for_both_blocks_of_a_cluster() -> None:
    assert all_proved(pipeline(), {"a": ("m", "k"), "b": ("n", "k"), "c": ("m", "n")})


# ---------------------------------------------------------------- kernels that are lowered

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, 128, 0),
        tw.WorkgroupConstraint(N, 256, 1),
        tw.TilingConstraint(K, 64),
    ]
)
def rows_by_columns(
    a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    b: tw.Memory[K, N, tw.GLOBAL, tw.bf16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, 192, 0),
        tw.WorkgroupConstraint(N, 160, 1),
        tw.TilingConstraint(K, 32),
    ]
)
def to_single(
    a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.f16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(total, c)


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (rows_by_columns, {"M": 4096, "N": 8192, "K": 512}),
        (rows_by_columns, {}),
        (to_single, {"M": 4001, "N": 4040, "K": 520}),
        (to_single, {"N": 320, "K": 520}),
    ],
)
def test_lowered_products(program: TileKernel, sizes: dict[str, int]) -> None:
    compiled = program.compile("sm_90a", sizes, multiples={} if "N" in sizes else {"N": 8, "K": 8})
    kernel = compiled.compilation.kernel
    assert kernel.phases
    assert compiled.target == SM_90A
    found = related(kernel, named_axes(compiled.compilation.graph))
    assert {o.kind for o in found} == set(RELATIONS)
    # Boxes that begin near 2**31 may end past it: sizes are bounded by a contract.
    allowed = {Kind.INDEX_WIDTH: Proved | Assumed}
    assert all(isinstance(o.result, allowed.get(o.kind, Proved)) for o in found), found


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, 128, 0),
        tw.WorkgroupConstraint(N, 128, 1),
        tw.TilingConstraint(K, 64),
    ]
)
def two_outputs(
    a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    d: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    rows: tw.Memory[M, tw.GLOBAL, tw.f32],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)
    tw.write(tw.cast(tw.maximum(total, 0.0) * tw.read(rows), tw.bf16), d)


def test_outputs_that_share_their_panels() -> None:
    """Both outputs go through one buffer: each element is traced to the panel written last."""
    compiled = two_outputs.compile("sm_90a", {"M": 500, "N": 520, "K": 200})
    kernel = compiled.compilation.kernel
    stores = [s for s in walk(kernel.body) if isinstance(s, BulkStore)]
    assert len({s.src.name for s in stores}) == 1
    found = related(kernel, named_axes(compiled.compilation.graph))
    assert all(isinstance(o.result, Proved) for o in found), found
    traced = {o.subject for o in found if o.kind is Kind.ELEMENT}
    assert traced == {"c", "d"}


FEW = replace(SM_90A, multiprocessors=4)  # so that blocks of a small problem have several turns


@pytest.mark.parametrize(
    "hardware", [{"pingpong": True}, {"cluster": 2}, {"pingpong": True, "cluster": 2}], ids=str
)
def test_warpgroups_that_take_turns_and_blocks_that_share_operands(
    hardware: dict[str, Any],
) -> None:
    """Each consumer has every other tile; a block loads for its neighbour as well."""
    constraints = [
        tw.WorkgroupConstraint(M, 64, 0), tw.WorkgroupConstraint(N, 128, 1),
        tw.TilingConstraint(K, 64), tw.HardwareConstraint(stages=2, **hardware),
    ]  # fmt: skip
    program = tw.kernel(constraints)(rows_by_columns.program.function).program
    compiled = compile_program(program, Specialisation(FEW, {"M": 256, "N": 504, "K": 328}))
    loads = [s for s in walk(compiled.kernel.body) if isinstance(s, BulkLoad)]
    assert any(s.multicast is not None for s in loads) is ("cluster" in hardware)
    found = relations(compiled.kernel, FEW, named_axes(compiled.graph))
    assert {o.kind for o in found} == set(RELATIONS)
    assert all(isinstance(o.result, Proved) for o in found), found
