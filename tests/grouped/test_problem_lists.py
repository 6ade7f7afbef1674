"""Lists of products in one launch: against NumPy on the simulator and torch on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from grouped_programs import Case, Form, grouped
from list_programs import TILE, UNEVEN, Problem, problem, products, wanted

import tilewright as tw
from tilewright.base.diagnostics import CallError, ShapeError
from tilewright.driver import grouped as grouped_module
from tilewright.driver.grouped import GroupedKernel
from tilewright.kernel.problems import joining
from tilewright.poly.results import Assumed, Proved, Refuted
from tilewright.runtime.toolchain import Nvrtc, compile_source
from tilewright.target.nvidia import SM_90A


def runs(
    kernel: tw.TileKernel, sizes: Sequence[tuple[int, int, int]], dtype: tw.DType = tw.bf16,
    order: str = "NK", *, epilogue: bool = False,
) -> GroupedKernel:  # fmt: skip
    """Run a list of problems on the simulator; the kernel is proved, and each result right."""
    given = [problem(s, i, dtype, order) for i, s in enumerate(sizes)]
    reports = kernel.grouped(given)
    assert reports is not None
    assert len(reports) == len(sizes)
    compiled = kernel.compile_grouped(given)
    proofs = compiled.proofs(given)
    assert not any(isinstance(o.result, Refuted) for o in proofs)
    assert len(proofs) == len(compiled.compilation.obligations) + 2
    for one in given:
        found = one[3].astype(np.float64)
        assert np.array_equal(found, wanted(one, order, epilogue=epilogue))
    return compiled


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("tiles", [True, False], ids=["tiles given", "tiles chosen"])
def test_problems_of_different_sizes(tiles: bool) -> None:
    compiled = runs(products(tiles=tiles), UNEVEN)
    assert compiled.compilation.plan.roles is not None
    assert {s.name for s in compiled.kernel.symbols} == {"M", "N", "K"}
    assert all(isinstance(o.result, Proved) for o in compiled.compilation.obligations)


@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16], ids=str)
def test_each_problem_has_an_epilogue_and_scalars_of_its_own(dtype: tw.DType) -> None:
    compiled = runs(products(dtype, epilogue=True), UNEVEN, dtype, epilogue=True)
    assert compiled.compilation.plan.roles is not None


def test_stored_the_other_way() -> None:
    runs(products(order="KN", epilogue=True), UNEVEN[:3], order="KN", epilogue=True)


def test_a_type_without_a_matrix_unit() -> None:
    runs(products(tw.f32, ROWS=16, COLUMNS=16, STEP=8), [(20, 16, 9), (7, 33, 16)], tw.f32)


def test_one_problem_alone() -> None:
    runs(products(), [(130, 72, 136)])


def test_one_row_and_one_column() -> None:
    runs(products(), [(1, 8, 64), (64, 64, 64), (3, 8, 8)])


def test_sizes_that_the_copy_engine_cannot_take() -> None:
    """One problem with odd sizes: the kernel for all takes the way without roles."""
    compiled = runs(products(ROWS=32, COLUMNS=32, STEP=32), [(64, 64, 64), (33, 17, 19)])
    assert compiled.compilation.plan.roles is None


def test_what_problems_share_is_fixed() -> None:
    compiled = runs(products(), [(m, 64, 128) for m in (8, 64, 200)])
    assert {s.name for s in compiled.kernel.symbols} == {"M"}
    assert len(compiled.kernel.maps) == 3


def test_blocks_have_one_tile_each() -> None:
    """Also where all sizes are alike: turns would keep the blocks of later problems waiting."""
    sizes = [(64 * 140, 64, 64)] * 2
    given = [tuple(np.empty(s, ml_dtypes.bfloat16) for s in ((m, k), (n, k))) for m, n, k in sizes]
    whole = [
        (a, b, np.empty(64, np.float32), np.empty((len(a), 64), a.dtype), 1.0) for a, b in given
    ]
    compiled = products().compile_grouped(whole)
    assert "turn" not in compiled.compilation.plan.grid.order
    assert {s.name for s in compiled.kernel.symbols} == {"M"}


def test_as_many_problems_as_a_launch_takes() -> None:
    kernel = products(ROWS=64, COLUMNS=8)
    sizes = [(1 + i % 9, 8, 8 * (1 + i % 3)) for i in range(63)]
    compiled = runs(kernel, sizes)
    assert compiled.most == 63
    given = [problem(s, 0) for s in [*sizes, (8, 8, 8)]]
    with pytest.raises(CallError, match=r"64 problems at once[\s\S]*at most 63[\s\S]*at a time"):
        kernel.grouped(given)


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_targets(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TARGET", target)
    compiled = runs(products(epilogue=True), UNEVEN[:2], epilogue=True)
    assert compiled.target.name == target


def test_rows_with_a_distance_of_their_own() -> None:
    """Alike in all problems, it is the kernel's; otherwise tensors have to be contiguous."""
    given = [problem((m, 64, 64), m) for m in (20, 72)]
    wide = [(np.pad(a, ((0, 0), (0, 64)))[:, :64], *rest) for a, *rest in given]
    kernel = products()
    kernel.grouped(wide)
    for one in wide:
        assert np.array_equal(one[3].astype(np.float64), wanted(one))
    other = (np.pad(given[0][0], ((0, 0), (0, 8)))[:, :64], *given[0][1:])
    with pytest.raises(CallError, match=r"a has stride[\s\S]*in problem 0 of 2"):
        kernel.grouped([other, wide[1]])


def test_clusters_stay_within_a_problem() -> None:
    hardware = tw.HardwareConstraint(cluster=2)
    sizes = [(100, 256, 64), (8, 256, 64), (200, 256, 64)]
    kernel = runs(products(hardware=hardware), sizes).kernel
    assert kernel.cluster == 2
    (decode, _) = joining(kernel, (0, 3), (3, 4), 7)
    assert isinstance(decode.result, Refuted)
    assert decode.result.message == "the 3 blocks of problem 0 are no clusters of 2"


def test_schedules_by_hand() -> None:
    def tiled(s: tw.Schedule) -> tw.Schedule:
        s = s.split("M", 64, "mo", "mi").split("N", 64, "no", "ni").split("K", 64, "ko", "ki")
        return s.stage(4).specialize()

    program = products(tiles=False).program
    kernel = tw.kernel(schedule=tiled)(program.function)
    assert runs(kernel, UNEVEN).compilation.plan.roles is not None


def test_problems_with_groups_of_rows() -> None:
    form = Form(bias=True, scale=True)
    cases = [Case.of(form, (100, 0, 30), 64, 64), Case.of(form, (10, 20, 70), 64, 128)]
    given = [case.arrays for case in cases]
    kernel = tw.kernel(grouped(form).program.constraints, bindings=TILE)(
        grouped(form).program.function
    )
    kernel.grouped(given)
    assert all(case.right for case in cases)
    compiled = kernel.compile_grouped(given)
    assert compiled.compilation.plan.ragged is not None
    assert "from the start of each group on" in compiled.explain()


# ---------------------------------------------------------------- compilations


def test_other_lists_of_such_sizes_need_no_other_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = grouped_module.compile_program
    monkeypatch.setattr(grouped_module, "compile_program", lambda *a: made.append(a) or real(*a))
    kernel = products()
    for sizes in (UNEVEN[:3], UNEVEN[1:3], [(16, 136, 72), (24, 8, 64), (80, 64, 200)]):
        kernel.grouped([problem(s, i) for i, s in enumerate(sizes)])
    assert len(made) <= 2  # rows of all three, and of the last, have other common divisors
    before = len(made)
    kernel.grouped([problem(s, i) for i, s in enumerate(UNEVEN[:3])])
    assert len(made) == before


def test_a_bound_list_is_run_again() -> None:
    kernel, given = products(), [problem(s, i) for i, s in enumerate(UNEVEN[:2])]
    launch: Callable[[], Any] = kernel.bind_grouped(given)
    for one in given:
        assert np.isnan(one[3].astype(np.float32)).all()
    launch()
    for one in given:
        assert np.array_equal(one[3].astype(np.float64), wanted(one))


@pytest.mark.parametrize("form", ["rows differ", "all differ"])
def test_machine_code_spills_nothing(form: str) -> None:
    """With roles in branches, and a table in the parameters that is never copied."""
    sizes = UNEVEN if form == "all differ" else [(512, 2048, 2048), (4096, 2048, 2048)]
    given = [
        (np.empty((m, k), ml_dtypes.bfloat16), np.empty((n, k), ml_dtypes.bfloat16),
         np.empty(n, np.float32), np.empty((m, n), ml_dtypes.bfloat16), 1.0)
        for m, n, k in sizes
    ]  # fmt: skip
    kernel = products(epilogue=True, ROWS=128, COLUMNS=256).compile_grouped(given)
    source = kernel.source(len(sizes))
    assert "setmaxnreg" in source
    taken = Nvrtc().resources(source, SM_90A)
    assert (taken.stack, taken.spilled) == (0, 0)
    assert len(kernel.source(40)) - len(source) < 500  # the list costs a line each time it doubles


# ---------------------------------------------------------------- errors


def test_lists_that_are_none() -> None:
    kernel = products()
    with pytest.raises(CallError, match=r"gemm is called for no problems[\s\S]*a, b, bias, c"):
        kernel.grouped([])
    with pytest.raises(CallError, match="gemm is called for a ndarray"):
        kernel.grouped(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(CallError, match=r"problem 1 is a ndarray[\s\S]*a tuple of a, b, bias, c"):
        kernel.grouped([problem(UNEVEN[0], 0), np.zeros(3)])  # type: ignore[list-item]


def test_errors_of_one_problem_name_it() -> None:
    kernel, right = products(), problem(UNEVEN[0], 0)
    with pytest.raises(CallError, match=r"called with 2 arguments[\s\S]*in problem 1 of 2"):
        kernel.grouped([right, right[:2]])
    wrong = (right[0].astype(np.float32), *right[1:])
    with pytest.raises(tw.TilewrightError, match=r"a holds f32[\s\S]*in problem 1 of 2"):
        kernel.grouped([right, wrong])
    odd = (right[0], problem((8, 64, 72), 0)[1], *right[2:])
    with pytest.raises(ShapeError, match=r"b has 72 elements along K[\s\S]*in problem 1 of 2"):
        kernel.grouped([right, odd])


def test_what_blocks_of_one_tile_cannot_do_is_refused() -> None:
    asked = tw.HardwareConstraint(pingpong=True)
    kernel = products(hardware=asked, ROWS=64, COLUMNS=128)
    with pytest.raises(tw.TilewrightError, match="each block has one tile"):
        kernel.grouped([problem(s, i) for i, s in enumerate(UNEVEN[:2])])


def test_the_list_of_the_benchmark() -> None:
    """What `python -m benchmarks grouped` runs is proved and spills nothing."""
    benchmark = pytest.importorskip("benchmarks.grouped", reason="it needs torch")
    given = [
        tuple(np.empty(s, ml_dtypes.bfloat16) for s in ((m, 2048), (2048, 2048), (m, 2048)))
        for m in benchmark.LIST_ROWS
    ]
    for tile in (benchmark.TILE, (128, 128, 64)):
        compiled = benchmark.list_kernel(tile).compile_grouped(given, "sm_90a")
        assert compiled.compilation.plan.roles is not None
        assert all(isinstance(o.result, Proved | Assumed) for o in compiled.proofs(given))
        assert Nvrtc().resources(compiled.source(len(given)), SM_90A).spilled == 0


# ---------------------------------------------------------------- on the device

LISTS = {
    "rows differ": [(m, 512, 512) for m in (512, 1000, 64, 8, 2048, 136)],
    "all differ": [
        (1000, 512, 320), (8, 264, 1024), (2048, 768, 64), (130, 8, 72), (640, 1280, 512),
        (1, 1024, 2048), (384, 384, 384), (4096, 128, 256),
    ],
    "odd sizes": [(64, 64, 64), (133, 77, 51), (300, 90, 33), (5, 3, 7)],
}  # fmt: skip
FORMS = [(tw.bf16, "NK", True), (tw.f16, "KN", False)]


def for_device(name: str, dtype: tw.DType, order: str, tiles: bool) -> tuple[Any, list[Problem]]:
    given = [problem(s, i, dtype, order) for i, s in enumerate(LISTS[name])]
    tile = {"STEP": 32} if name == "odd sizes" else {"ROWS": 128, "COLUMNS": 128}
    return products(dtype, order=order, tiles=tiles, epilogue=True, **tile), given


@pytest.mark.parametrize(("dtype", "order", "tiles"), FORMS)
@pytest.mark.parametrize("name", LISTS)
def test_what_runs_on_the_device_is_proved(
    name: str, dtype: tw.DType, order: str, tiles: bool
) -> None:
    kernel, given = for_device(name, dtype, order, tiles)
    compiled = kernel.compile_grouped(given, "sm_90a")
    assert (compiled.compilation.plan.roles is None) == (name == "odd sizes")
    assert all(isinstance(o.result, Proved | Assumed) for o in compiled.proofs(given))
    assert compile_source(compiled.source(len(given)), SM_90A)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "order", "tiles"), FORMS)
@pytest.mark.parametrize("name", LISTS)
def test_on_the_device(name: str, dtype: tw.DType, order: str, tiles: bool) -> None:
    from tilewright.runtime.device_arrays import DeviceArray

    kernel, given = for_device(name, dtype, order, tiles)
    there = [(*(DeviceArray(x) for x in one[:4]), one[4]) for one in given]
    kernel.grouped(there)
    for one, found in zip(given, there, strict=True):
        result = found[3].numpy().astype(np.float64)
        assert np.array_equal(result, wanted(one, order, epilogue=True))


@pytest.mark.gpu
def test_bound_lists_against_torch() -> None:
    torch = pytest.importorskip("torch")
    kernel = products(ROWS=128, COLUMNS=256)
    given: list[Problem] = []
    for m in (512, 4096, 1000, 64):
        a, b = (torch.randn(r, 1024, device="cuda", dtype=torch.bfloat16) for r in (m, 768))
        bias = torch.zeros(768, device="cuda")
        given.append((a, b, bias, torch.full((m, 768), torch.nan, device="cuda",
                                             dtype=torch.bfloat16), 1.0))  # fmt: skip
    launch: Callable[[], Any] = kernel.bind_grouped(given)
    for _ in range(2):
        launch()
        for a, b, _, c, _ in given:
            torch.testing.assert_close(c, a @ b.T, rtol=2e-2, atol=2e-2)
            c.fill_(torch.nan)
