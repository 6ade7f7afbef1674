"""Products over each group's own rows: steps that are data, and rows of other groups cleared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grouped_programs import E, G, T, of_terms, terms_case

import tilewright as tw
from tilewright.base.diagnostics import ConstraintError, RaceError, ShapeError
from tilewright.codegen.sim import simulate
from tilewright.driver.compiled import CompiledKernel
from tilewright.kernel.async_ops import ProxyFence
from tilewright.kernel.ops import Body, Statement, Store
from tilewright.kernel.rewrite import rewrite
from tilewright.poly.results import Assumed, Kind, Proved, Refuted
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

TILE = {"ROWS": 64, "COLUMNS": 64, "STEP": 64}
UNEVEN = (100, 0, 130, 26)


def compiled(
    counts: Sequence[int], m: int = 64, n: int = 64, rest: int = 0, *, both: bool = True,
    across: bool = True, specialize: bool | None = None, **tile: int,
) -> CompiledKernel:  # fmt: skip
    sizes = {"T": sum(counts) + rest, "E": len(counts), "G": len(counts), "M": m, "N": n}
    program = of_terms(both=both, across=across, specialize=specialize)
    return program.compile("sm_90a", bindings={**sizes, **TILE, **tile})


def runs(counts: Sequence[int], m: int = 64, n: int = 64, rest: int = 0, **tile: int) -> None:
    kernel = compiled(counts, m, n, rest, **tile)
    assert kernel.compilation.plan.own_terms is not None
    case = terms_case(counts, m, n, rest)
    kernel(*case.arrays)
    assert case.right


@pytest.mark.parametrize(
    "counts", [UNEVEN, (64, 128, 64), (0, 0, 9), (200, 0), (1,) * 20, (63, 65)], ids=str
)
def test_groups_of_every_kind(counts: tuple[int, ...]) -> None:
    runs(counts)


def test_rows_of_no_group_are_not_even_multiplied() -> None:
    """They are not numbers: a product with zero would be none either."""
    runs((30, 50), rest=48)


def test_the_number_of_rows_may_stay_open() -> None:
    sizes = {"E": 3, "G": 3, "M": 64, "N": 64}
    kernel = of_terms().compile("sm_90a", bindings={**sizes, **TILE})
    assert kernel.compilation.plan.own_terms is not None
    for counts in ((100, 0, 36), (10, 200, 62)):
        case = terms_case(counts, 64, 64, rest=8)
        kernel(*case.arrays)
        assert case.right


def test_tiles_are_chosen_where_none_are_given() -> None:
    kernel = tw.kernel()(of_terms().program.function)
    sizes = {"T": sum(UNEVEN), "E": 4, "G": 4, "M": 128, "N": 128}
    compiled = kernel.compile("sm_90a", bindings=sizes)
    assert compiled.compilation.plan.own_terms is not None
    case = terms_case(UNEVEN, 128, 128)
    compiled(*case.arrays)
    assert case.right


def test_two_warpgroups_and_edges() -> None:
    runs(UNEVEN, 136, 72, ROWS=128)


def test_blocks_take_tiles_in_turns() -> None:
    """The ring's counter goes on by another number in each tile."""
    counts = (90, 10, 0, 150, 6) * 4
    kernel = compiled(counts, 64, 64, COLUMNS=8)
    assert "turn" in kernel.compilation.plan.grid.order
    case = terms_case(counts, 64, 64)
    kernel(*case.arrays)
    assert case.right


def test_any_order_of_completion() -> None:
    counts = (90, 10, 0, 30)
    case = terms_case(counts, 64, 16)
    kernel = compiled(counts, 64, 16, COLUMNS=16)
    arguments = dict(zip(("x", "y", "ends", "out"), case.arrays, strict=True))
    simulate(kernel.compilation.kernel, kernel.target, arguments, {}, seed=5)
    assert case.right


def test_one_operand_alone_may_be_cut() -> None:
    kernel = compiled(UNEVEN, both=False)
    own = kernel.compilation.plan.own_terms
    assert own is not None
    assert len(own.cleared) == 1
    case = terms_case(UNEVEN, 64, 64)
    kernel(*case.arrays)
    assert case.right


@pytest.mark.parametrize(
    ("across", "specialize"), [(True, False), (False, None)], ids=["no roles", "along the terms"]
)
def test_the_same_program_without_roles(across: bool, specialize: bool | None) -> None:
    counts = (20, 0, 9, 11)
    kernel = compiled(counts, 16, 16, across=across, specialize=specialize, ROWS=16, COLUMNS=16,
                      STEP=16)  # fmt: skip
    assert kernel.compilation.plan.roles is None
    case = terms_case(counts, 16, 16, across=across)
    kernel(*case.arrays)
    assert case.right


def test_proofs() -> None:
    proofs = compiled(UNEVEN).proofs
    assert not any(isinstance(o.result, Refuted) for o in proofs)
    sums = [o.result for o in proofs if o.kind is Kind.REDUCTION and "_acc" in o.subject]
    assert [type(r) for r in sums] == [Proved]
    contracts = [o.result.contract for o in proofs if isinstance(o.result, Assumed)]
    assert "ends ascends" in contracts


def test_clearing_without_its_fence_is_a_race() -> None:
    case = terms_case((30, 20), 64, 64)
    kernel = compiled((30, 20)).compilation.kernel
    cleared = [False]

    def change(statement: Statement) -> Body:
        if isinstance(statement, Store) and statement.dst.name.endswith("_ring"):
            cleared[0] = True
        if isinstance(statement, ProxyFence) and cleared[0]:
            cleared[0] = False
            return ()
        return (statement,)

    faulty = replace(kernel, body=rewrite(kernel.body, change))
    arguments = dict(zip(("x", "y", "ends", "out"), case.arrays, strict=True))
    with pytest.raises(RaceError, match="ring"):
        simulate(faulty, compiled((30, 20)).target, arguments, {})


def test_errors() -> None:
    with pytest.raises(ConstraintError, match="groups may begin within 16 bytes of x"):
        compiled(UNEVEN, across=False, specialize=True)

    @tw.kernel()
    def twice(x: tw.Memory[T, E, tw.GLOBAL, tw.bf16], ends: tw.Memory[G, tw.GLOBAL, tw.i32],
              y: tw.Memory[T, E, tw.GLOBAL, tw.bf16]):  # fmt: skip
        tw.write(tw.per_group(tw.read(x), E, tw.group_of(T, ends)), y)

    with pytest.raises(ShapeError, match=r"bf16\[T, E\] for each group along E"):
        twice.compile("sm_90a", bindings={"T": 64, "E": 4, "G": 4, "M": 4, "N": 4})


ON_DEVICE = [(1000, 0, 300, 1, 747), (37,) * 40]


def for_device(counts: Sequence[int]) -> CompiledKernel:
    return compiled(counts, 384, 512, rest=50, ROWS=128, COLUMNS=256)


@pytest.mark.parametrize("counts", ON_DEVICE, ids=lambda c: f"{c[:5]}")
def test_what_runs_on_the_device_compiles(counts: tuple[int, ...]) -> None:
    kernel = for_device(counts)
    assert kernel.compilation.plan.own_terms is not None
    assert not any(isinstance(o.result, Refuted) for o in kernel.proofs)
    assert compile_source(kernel.source, SM_90A)


@pytest.mark.gpu
@pytest.mark.parametrize("counts", ON_DEVICE, ids=lambda c: f"{c[:5]}")
def test_on_the_device(counts: tuple[int, ...]) -> None:
    from tilewright.runtime.device_arrays import DeviceArray

    case = terms_case(counts, 384, 512, rest=50)
    there: list[Any] = [DeviceArray(a) for a in case.arrays]
    for_device(counts)(*there)
    assert np.array_equal(there[-1].numpy().astype(np.float32), case.wanted.astype(np.float32))
