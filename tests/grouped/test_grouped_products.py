"""Products whose rows belong to groups: against NumPy on the simulator and on the device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from grouped_programs import ROWS, Case, E, Form, G, K, N, T, grouped
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.base.diagnostics import ConstraintError, CoverageError, DTypeError, ShapeError
from tilewright.codegen.sim import simulate
from tilewright.driver.compiled import CompiledKernel
from tilewright.poly.expr import Expr
from tilewright.poly.results import Assumed, Kind, Proved, Refuted
from tilewright.runtime.toolchain import compile_source
from tilewright.schedule.ragged import Ragged
from tilewright.target.nvidia import SM_90A

TILE = {"ROWS": 128, "COLUMNS": 64, "STEP": 64}
UNEVEN = (100, 0, 130, 28, 126)


def compiled(
    form: Form, counts: Sequence[int], n: int, k: int, rest: int = 0, **tile: int
) -> CompiledKernel:
    sizes = {"T": sum(counts) + rest, "E": len(counts), "N": n, "K": k}
    return grouped(form).compile("sm_90a", bindings={**sizes, **TILE, **tile})


def runs(
    form: Form, counts: Sequence[int], n: int = 64, k: int = 128, rest: int = 0, **tile: int
) -> None:
    case = Case.of(form, counts, n, k, rest)
    kernel = compiled(form, counts, n, k, rest, **tile)
    assert kernel.compilation.plan.ragged is not None
    kernel(*case.arrays)
    assert case.right


@pytest.mark.parametrize(
    "counts",
    [UNEVEN, (384, 0, 0), (0, 0, 384), (1,) * 40, (129,), (127, 1), (0, 256, 0, 128)],
    ids=str,
)
def test_groups_of_every_kind(counts: tuple[int, ...]) -> None:
    runs(Form(), counts)


@pytest.mark.parametrize(
    "form",
    [
        Form("KN"),
        Form(out=tw.f32),
        Form(bias=True),
        Form(scale=True),
        Form("KN", tw.f16, True, True),
    ],
    ids=str,
)
def test_forms(form: Form) -> None:
    runs(form, UNEVEN, n=128, COLUMNS=128)


@pytest.mark.parametrize("dtype", [tw.f16, tw.f8e4m3], ids=str)
def test_other_element_types(dtype: tw.DType) -> None:
    runs(Form(dtype=dtype), UNEVEN, k=256, STEP=128)


def test_rows_of_no_group_are_zero() -> None:
    runs(Form(), (100, 60), rest=200)


def test_all_rows_belong_to_no_group() -> None:
    runs(Form(), (0, 0), rest=130)


def test_columns_and_terms_that_tiles_do_not_divide() -> None:
    runs(Form(), (70, 90), n=136, k=72)


def test_more_groups_than_lanes() -> None:
    counts = np.random.default_rng(0).integers(0, 3, 100)
    runs(Form(), counts.tolist(), n=16, k=64, COLUMNS=16)


def test_the_number_of_rows_may_stay_open() -> None:
    form, counts = Form(), (100, 0, 30)
    case = Case.of(form, counts, 128, 128)
    kernel = grouped(form).compile("sm_90a", bindings={"E": 3, "N": 128, "K": 128, **TILE})
    assert kernel.compilation.plan.ragged is not None
    kernel(*case.arrays)
    assert case.right


def test_blocks_take_tiles_in_turns() -> None:
    counts = (100, 0, 90)
    kernel = compiled(Form(), counts, n=512, k=64, COLUMNS=16)
    assert "turn" in kernel.compilation.plan.grid.order
    case = Case.of(Form(), counts, 512, 64)
    kernel(*case.arrays)
    assert case.right


def test_any_order_of_completion() -> None:
    counts = (30, 0, 90)
    kernel = compiled(Form(), counts, n=288, k=64, COLUMNS=8)
    assert "turn" in kernel.compilation.plan.grid.order
    case = Case.of(Form(), counts, 288, 64)
    names = ("x", "w", "ends", "bias", "scale", "y")
    arguments = dict(zip(names, case.arrays, strict=True))
    simulate(kernel.compilation.kernel, kernel.target, arguments, {}, seed=1)
    assert case.right


@pytest.mark.parametrize(
    ("target", "specialize"), [("sm_90a", False), ("gfx942", None)], ids=["no roles", "gfx942"]
)
def test_the_same_program_without_roles(target: str, specialize: bool | None) -> None:
    form, counts = Form(specialize=specialize), (20, 0, 33, 1, 20)
    case = Case.of(form, counts, 48, 64)
    sizes = {"T": 74, "E": 5, "N": 48, "K": 64, "ROWS": 16, "COLUMNS": 16, "STEP": 16}
    kernel = grouped(form).compile(target, bindings=sizes)
    assert kernel.compilation.plan.ragged is None
    kernel(*case.arrays)
    assert case.right


@pytest.mark.parametrize("matrices", [3, 5, 2])
def test_ends_over_an_axis_of_their_own(matrices: int) -> None:
    """Fewer matrices than groups: the rows of the last group have none, and are zero."""
    counts = (60, 40, 50)
    case = Case.of(Form(), counts, 64, 64)
    x, w, ends, _, _, y = case.arrays

    def moe(x, w, ends, y):
        group = tw.group_of(T, ends)

        @tw.iterate(K, init_args=[tw.Register[T, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(x), tw.gather(w, E, group), acc)

        tw.write(tw.cast(total, tw.bf16), y)

    own = grouped(Form()).program
    moe.__annotations__ = {n: own.arguments[n] for n in ("x", "w", "y")} | {
        "ends": tw.Memory[G, tw.GLOBAL, tw.i32]
    }
    more = np.concatenate([w, w])[:matrices]
    sizes = {"T": 150, "E": matrices, "G": 3, "N": 64, "K": 64}
    kernel = tw.kernel(own.constraints)(moe).compile("sm_90a", bindings={**sizes, **TILE})
    assert kernel.compilation.plan.ragged is not None
    kernel(x, more, ends, y)
    exact = case.wanted.astype(np.float32)
    exact[sum(counts[:matrices]) :] = 0
    assert np.array_equal(y.astype(np.float32), exact)


def test_tiles_are_chosen_where_none_are_given() -> None:
    form, counts = Form(bias=True), (100, 0, 150, 50)
    kernel = tw.kernel()(grouped(form).program.function)
    compiled = kernel.compile("sm_90a", bindings={"T": 300, "E": 4, "N": 256, "K": 128})
    assert compiled.compilation.plan.ragged is not None
    case = Case.of(form, counts, 256, 128)
    compiled(*case.arrays)
    assert case.right


def test_wide_ends_do_without_roles() -> None:
    form = Form(index=tw.i64)
    kernel = compiled(form, (20, 12), 32, 32, ROWS=16, COLUMNS=16, STEP=16)
    assert kernel.compilation.plan.ragged is None
    case = Case.of(form, (20, 12), 32, 32)
    kernel(*case.arrays)
    assert case.right


# ---------------------------------------------------------------- what is known of tiles


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(0, 300),
       st.sampled_from([64, 128, 192]))  # fmt: skip
@settings(max_examples=200)
def test_there_are_slots_for_every_tile(counts: list[int], rest: int, tile: int) -> None:
    ragged = Ragged("T", "E", "G", "ends", 0, 0)
    tiles = sum(-(-count // tile) for count in (*counts, rest))
    slots = ragged.slots(Expr.of(sum(counts) + rest), Expr.of(len(counts)), tile)
    assert tiles <= slots.const


def test_proofs_state_what_data_must_be() -> None:
    kernel = compiled(Form(), UNEVEN, 128, 128)
    assert not any(isinstance(o.result, Refuted) for o in kernel.proofs)
    assumed = [o for o in kernel.proofs if isinstance(o.result, Assumed)]
    contracts = {o.result.contract for o in assumed if isinstance(o.result, Assumed)}
    assert "ends ascends" in contracts
    assert {o.subject for o in assumed if o.kind is Kind.BOUNDS} == {
        "t_group", "t_first", "t_last",
    }  # fmt: skip
    assert any("have each element once" in contract for contract in contracts)


@pytest.mark.parametrize("ends", [(100, 60, 160), (500, 600, 700), (-90, -80, 160), (160, 0, 0)])
def test_ends_that_break_the_contract_touch_no_other_memory(ends: tuple[int, ...]) -> None:
    """The simulator would report an access outside; a row written twice it does report."""
    case = Case.of(Form(), (60, 60, 40), 128, 64)
    arrays = list(case.arrays)
    arrays[2] = np.array(ends, np.int32)
    kernel = compiled(Form(), (60, 60, 40), 128, 64)
    try:
        kernel(*arrays)
    except CoverageError as error:
        assert "`y" in str(error)  # noqa: PT017


# ---------------------------------------------------------------- errors


def test_ends_are_whole_numbers_over_one_axis() -> None:
    @tw.kernel()
    def floats(ends: tw.Memory[E, tw.GLOBAL, tw.f32], y: tw.Memory[T, tw.GLOBAL, tw.i32]):
        tw.write(tw.group_of(T, ends), y)

    with pytest.raises(DTypeError, match=r"the ends of groups are f32[\s\S]*i32 or i64"):
        floats.compile("sm_90a", bindings={"E": 4, "T": 64})

    @tw.kernel()
    def table(ends: tw.Memory[E, N, tw.GLOBAL, tw.i32], y: tw.Memory[T, tw.GLOBAL, tw.i32]):
        tw.write(tw.group_of(T, ends), y)

    with pytest.raises(ShapeError, match=r"the ends of groups are i32\[E, N\]"):
        table.compile("sm_90a", bindings={"E": 4, "N": 4, "T": 64})


def test_roles_that_are_asked_for_and_cannot_be() -> None:
    form = Form(specialize=True)
    with pytest.raises(ConstraintError, match="the number of groups, E, is not known"):
        grouped(form).compile("sm_90a", bindings={"T": 256, "N": 128, "K": 128, **TILE})
    with pytest.raises(ConstraintError, match="2000 groups are more than 1024"):
        compiled(form, (1,) * 2000, 128, 128)
    asked = tw.HardwareConstraint(specialize=True, pingpong=True)
    program = grouped(Form()).program
    paired = tw.kernel([*program.constraints[:3], asked])(program.function)
    with pytest.raises(ConstraintError, match="neither shared nor paired"):
        paired.compile("sm_90a", bindings={"T": 256, "E": 2, "N": 128, "K": 128, **TILE})
    with pytest.raises(ConstraintError, match="ends is not i32"):
        compiled(Form(specialize=True, index=tw.i64), (128, 128), 128, 128)


def test_a_sum_over_rows_is_no_part_of_a_tile() -> None:
    def moe(x, w, ends, y, total):
        group = tw.group_of(T, ends)

        @tw.iterate(K, init_args=[tw.Register[T, N, tw.f32](0.0)])
        def product(acc):
            return tw.mma(tw.read(x), tw.gather(w, E, group), acc)

        tw.write(product, y)
        tw.write(tw.sum(product, dim=N), total)

    moe.__annotations__ = {
        "x": tw.Memory[T, K, tw.GLOBAL, tw.bf16],
        "w": tw.Memory[E, N, K, tw.GLOBAL, tw.bf16],
        "ends": tw.Memory[E, tw.GLOBAL, tw.i32],
        "y": tw.Memory[T, N, tw.GLOBAL, tw.f32],
        "total": tw.Memory[E, tw.GLOBAL, tw.f32],
    }
    kernel = tw.kernel([tw.WorkgroupConstraint(T, ROWS, 0)])(moe)
    with pytest.raises(tw.TilewrightError, match="total"):
        kernel.compile("sm_90a", bindings={"T": 256, "E": 2, "N": 128, "K": 128, "ROWS": 128})


# ---------------------------------------------------------------- on the device


ON_DEVICE = [
    pytest.param(Form(order, bias=True, scale=True), counts, id=f"{order}-{counts[:5]}")
    for order in ("NK", "KN")
    for counts in ((1000, 0, 300, 1, 747), (2048, 0), (0, 2048), (37,) * 100)
]


def for_device(form: Form, counts: Sequence[int]) -> CompiledKernel:
    return compiled(form, counts, 512, 192, rest=77, COLUMNS=256)


@pytest.mark.parametrize(("form", "counts"), ON_DEVICE)
def test_what_runs_on_the_device_is_proved(form: Form, counts: Sequence[int]) -> None:
    """Gathered biases and scaled results of a wide tile are made piece by piece."""
    kernel = for_device(form, counts)
    assert kernel.compilation.plan.ragged is not None
    assert all(isinstance(o.result, Proved | Assumed) for o in kernel.proofs)
    assert compile_source(kernel.source, SM_90A)
    made = {r.name: r.shape for r in kernel.compilation.kernel.registers}
    assert prod(made["bias_gathered"]) == 8


def test_a_wide_tile_with_a_gathered_bias() -> None:
    runs(Form(bias=True, scale=True), (130, 0, 40), n=256, k=64, rest=9, COLUMNS=256)


def test_two_outputs_of_tiles_that_begin_where_data_says() -> None:
    """The second one's panels are made of values that the first one's left."""

    def moe(x, w, ends, bias, y, z):
        group = tw.group_of(T, ends)

        @tw.iterate(K, init_args=[tw.Register[T, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(x), tw.gather(w, E, group), acc)

        total = total + tw.gather(bias, E, group)
        tw.write(tw.cast(total, tw.bf16), y)
        tw.write(tw.cast(tw.maximum(total, 0.0), tw.bf16), z)

    program, case = grouped(Form()).program, Case.of(Form(bias=True), (100, 0, 130, 28), 128, 64)
    kinds = {n: k for n, k in program.arguments.items() if n != "scale"}
    moe.__annotations__ = {**kinds, "z": kinds["y"]}
    sizes = {"T": 258, "E": 4, "N": 128, "K": 64, **TILE, "COLUMNS": 128}
    kernel = tw.kernel(program.constraints)(moe).compile("sm_90a", bindings=sizes)
    assert kernel.compilation.plan.ragged is not None
    assert all(isinstance(o.result, Proved | Assumed) for o in kernel.proofs)
    x, w, ends, bias, _, y = case.arrays
    z = np.full_like(y, np.nan)
    kernel(x, w, ends, bias, y, z)
    assert case.right
    assert np.array_equal(z.astype(np.float32), np.maximum(case.wanted.astype(np.float32), 0))


@pytest.mark.gpu
@pytest.mark.parametrize(("form", "counts"), ON_DEVICE)
def test_on_the_device(form: Form, counts: Sequence[int]) -> None:
    from tilewright.runtime.device_arrays import DeviceArray

    case = Case.of(form, counts, 512, 192, rest=77)
    arrays: list[Any] = [DeviceArray(a) for a in case.arrays]
    for_device(form, counts)(*arrays)
    assert np.array_equal(arrays[-1].numpy().astype(np.float32), case.wanted.astype(np.float32))
