"""Reads at data: which elements they give, what is proved of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from programs import CASES

import tilewright as tw
from tilewright import CompiledKernel, TileKernel, TilewrightError
from tilewright.base.diagnostics import DTypeError, ShapeError, TraceError, UnsupportedError
from tilewright.kernel.ops import Load, walk
from tilewright.poly.prove import Assumed, Kind, Proved
from tilewright.runtime.toolchain import Clang, Nvrtc, find_clang
from tilewright.target import target_named

sym = tw.sym
V, T, M, N, D, K = sym.V, sym.T, sym.M, sym.N, sym.D, sym.K
G = tw.GLOBAL
GATHERS = [c for c in CASES if "gather" in c.name or "embedding" in c.name or "axis" in c.name]


def compiled(name: str, target: str) -> CompiledKernel:
    case = next(c for c in CASES if c.name == name)
    size = {"D": 1, **case.sizes[0]}
    return case.make().compile(target, {a: n for a, n in size.items() if a not in case.dynamic})


def rows(dtype: tw.DType = tw.i64) -> TileKernel:
    @tw.kernel([tw.WorkgroupConstraint(T, 8, 0)])
    def rows(
        table: tw.Memory[V, D, G, tw.f32],
        tokens: tw.Memory[T, G, dtype],
        y: tw.Memory[T, D, G, tw.f32],
    ):
        tw.write(tw.gather(table, V, tw.read(tokens)), y)

    return rows


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int16])
def test_rows_by_index_are_those_of_numpy(kind: type[np.integer]) -> None:
    random = np.random.default_rng(3)
    table = random.standard_normal((100, 24)).astype(np.float32)
    tokens = random.integers(0, 100, 77).astype(kind)
    y = np.zeros((77, 24), np.float32)
    report = rows({np.int64: tw.i64, np.int32: tw.i32, np.int16: tw.i16}[kind])(table, tokens, y)
    np.testing.assert_array_equal(y, table[tokens])
    assert report is not None
    assert report.findings == ()


@pytest.mark.parametrize("strange", [-1, 5, 2**31, 2**32 + 1, -(2**63)])
def test_an_index_outside_reads_nothing_and_is_reported(strange: int) -> None:
    table = np.ones((5, 8), np.float32)
    tokens = np.array([4, strange, 0], np.int64)
    y = np.full((3, 8), 7, np.float32)
    report = rows()(table, tokens, y)
    np.testing.assert_array_equal(y, [[1] * 8, [0] * 8, [1] * 8])
    assert report is not None
    assert "gathers from `table` lies outside its axis" in report.findings[0].message


def test_the_guard_proves_the_bounds_and_the_data_are_a_contract() -> None:
    found = [o for o in rows().compile("sm_90a").proofs if o.subject == "table"]
    assert {type(o.result) for o in found if o.kind is Kind.BOUNDS} == {Proved, Assumed}
    (contract,) = [o.result for o in found if isinstance(o.result, Assumed)]
    assert "is on axis 0 of table, 0 <= index < V" in contract.contract


def test_rows_are_read_in_vectors() -> None:
    kernel = rows().compile("sm_90a", {"V": 50, "T": 16, "D": 256}).compilation.kernel
    loads = [s for s in walk(kernel.body) if isinstance(s, Load) and s.indirect]
    assert [s.width for s in loads] == [4]
    assert not kernel.shared  # the indices of a warp's row are one address


def test_a_gathered_axis_takes_no_registers() -> None:
    plan = rows().compile("sm_90a", {"V": 50000, "T": 64, "D": 64}).compilation.plan
    assert plan.axes["V"].tile == 1
    assert "other coordinates" in plan.axes["V"].reason


@pytest.mark.parametrize("case", GATHERS, ids=lambda c: c.name)
def test_it_compiles_for_cuda(case: object) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra `cuda`")
    kernel = compiled(case.name, "sm_90a")  # type: ignore[attr-defined]
    used = Nvrtc().resources(kernel.source, target_named("sm_90a"))
    assert used.stack == 0


@pytest.mark.parametrize("case", GATHERS, ids=lambda c: c.name)
def test_it_compiles_for_hip(case: object) -> None:
    try:
        find_clang()
    except TilewrightError as missing:
        pytest.skip(missing.diagnostic.message)
    kernel = compiled(case.name, "gfx942")  # type: ignore[attr-defined]
    assert Clang().build(kernel.source, target_named("gfx942"))


def float_index() -> None:
    @tw.kernel()
    def bad(x: tw.Memory[V, G, tw.f32], at: tw.Memory[M, G, tw.f32], y: tw.Memory[M, G, tw.f32]):
        tw.write(tw.gather(x, V, tw.read(at)), y)

    bad.compile("sm_90a")


def strange_axis() -> None:
    @tw.kernel()
    def bad(x: tw.Memory[V, G, tw.f32], at: tw.Memory[M, G, tw.i32], y: tw.Memory[M, G, tw.f32]):
        tw.write(tw.gather(x, N, tw.read(at)), y)

    bad.compile("sm_90a")


def in_its_own_loop() -> None:
    @tw.kernel([tw.TilingConstraint(V, 8)])
    def bad(x: tw.Memory[V, G, tw.f32], at: tw.Memory[M, G, tw.i32], y: tw.Memory[M, G, tw.f32]):
        @tw.iterate(V, init_args=[tw.Register[M, tw.f32](0.0)])
        def total(acc):
            return acc + tw.gather(x, V, tw.read(at))

        tw.write(total, y)

    bad.compile("sm_90a")


def of_a_reduction() -> None:
    @tw.kernel()
    def bad(x: tw.Memory[V, K, G, tw.f32], at: tw.Memory[M, G, tw.i32], y: tw.Memory[M, G, tw.f32]):
        tw.write(tw.gather(tw.sum(tw.read(x), dim=K), V, tw.read(at)), y)

    bad.compile("sm_90a", {"V": 8, "K": 8})


def of_an_output() -> None:
    @tw.kernel()
    def bad(x: tw.Memory[M, G, tw.f32], at: tw.Memory[M, G, tw.i32]):
        tw.write(tw.gather(x, M, tw.read(at)), x)

    bad.compile("sm_90a", {"M": 8})


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (float_index, DTypeError, "the index of a gather is f32"),
        (strange_axis, ShapeError, r"a source over \['V'\] is gathered along N"),
        (in_its_own_loop, TraceError, "a gather along V inside a loop over V"),
        (of_a_reduction, UnsupportedError, "the result of a reduction.* gathered from"),
        (of_an_output, UnsupportedError, "x is gathered from and written by the same kernel"),
    ],
)
def test_what_has_no_meaning_is_refused(
    make: Callable[[], None], kind: type[TilewrightError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        make()
    assert caught.value.diagnostic.mend
