"""Tiles that an epilogue reads come by the copy engine, where warpgroups take turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from role_programs import Array, G, K, M, N, poison, tiles, whole, wide

import tilewright as tw
from tilewright import TileKernel
from tilewright.base.diagnostics import TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.driver.axes import named_axes
from tilewright.driver.compile import Compilation, Specialisation, compile_program
from tilewright.kernel.async_ops import ArriveExpect, BulkLoad, BulkWait, PhaseWait, ProxyFence
from tilewright.kernel.ops import Body, If, Kernel, Load, Loop, Statement, Store, walk
from tilewright.kernel.rewrite import rewrite
from tilewright.lower.obligations import verify
from tilewright.poly.expr import Expr
from tilewright.poly.results import Proved, Refuted
from tilewright.schedule.text import print_plan
from tilewright.target.nvidia import SM_90A

FEW = replace(SM_90A, multiprocessors=3)  # fewer than tiles: blocks go on to further ones


def residual(
    m: int, n: int, *, turned: bool = False, dtype: tw.DType = tw.bf16, twice: bool = False,
    **hardware: Any,
) -> TileKernel:  # fmt: skip
    """c = max(a b' + bias, 0) / 2 + r, perhaps with r and c stored with M last."""
    axes = (N, M) if turned else (M, N)

    @tw.kernel(tiles(m, n, 64, **hardware))
    def product(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        bias: tw.Memory[N, G, tw.bf16],
        r: tw.Memory[(*axes, G, dtype)],
        c: tw.Memory[(*axes, G, dtype)],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        shifted = total + tw.cast(tw.read(bias), tw.f32)
        made = tw.cast(tw.maximum(shifted, 0.0) * 0.5, dtype)
        rest = tw.read(r)
        if turned:
            made = tw.permute(made, (N, M))
        made = made + rest
        tw.write(made * rest if twice else made, c)

    return product


def compiled(kernel: TileKernel, m: int, n: int, k: int, *, target: Any = FEW) -> Compilation:
    made = compile_program(
        kernel.program, Specialisation(target=target, sizes={"M": m, "N": n, "K": k})
    )
    assert made.plan.roles is not None
    open_ones = [o for o in made.obligations if not isinstance(o.result, Proved)]
    assert not open_ones, open_ones
    return made


def operands(
    m: int, n: int, k: int, *, turned: bool = False, dtype: tw.DType = tw.bf16
) -> dict[str, Array]:
    shape = (n, m) if turned else (m, n)
    return {
        "a": whole((m, k), tw.bf16, 1), "b": whole((n, k), tw.bf16, 2),
        "bias": whole((n,), tw.bf16, 3), "r": whole(shape, dtype, 4), "c": poison(shape, dtype),
    }  # fmt: skip


def expected(arrays: dict[str, Array], *, turned: bool = False) -> Array:
    """In float64, rounded where the program rounds."""
    kind = arrays["c"].dtype
    total = wide(arrays["a"]) @ wide(arrays["b"]).T + wide(arrays["bias"])
    made = (np.maximum(total, 0) * 0.5).astype(kind)
    return (wide(made.T if turned else made) + wide(arrays["r"])).astype(kind)


def brought(kernel: Kernel) -> list[BulkLoad]:
    """The copies of r."""
    return [s for s in walk(kernel.body) if isinstance(s, BulkLoad) and s.map.startswith("r_box")]


# Tile and sizes: even and odd numbers of panels, edges within a panel and whole panels outside.
CASES: dict[str, tuple[tuple[int, int], tuple[int, int, int]]] = {
    "whole tiles": ((128, 128), (256, 384, 128)),
    "ragged rows and columns": ((128, 128), (200, 328, 192)),
    "a panel outside": ((128, 192), (256, 456, 64)),
    "an odd number of panels": ((64, 192), (192, 384, 64)),
    "narrow panels": ((128, 96), (384, 280, 64)),
    "many turns": ((64, 128), (640, 256, 320)),
}


@pytest.mark.parametrize("dtype", [tw.bf16, tw.f16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_residual_is_brought(case: str, dtype: tw.DType) -> None:
    (tile_m, tile_n), (m, n, k) = CASES[case]
    made = compiled(residual(tile_m, tile_n, dtype=dtype, pingpong=True), m, n, k)
    ahead = {"a panel outside": 2, "narrow panels": 1}.get(case, 0)
    assert len(brought(made.kernel)) == 1 + ahead
    assert not any(isinstance(s, Load) and s.src.name == "r" for s in walk(made.kernel.body))
    for seed in (0, 5):
        arrays = operands(m, n, k, dtype=dtype)
        simulate(made.kernel, FEW, arrays, {}, seed=seed)
        np.testing.assert_array_equal(wide(arrays["c"]), wide(expected(arrays)))


@pytest.mark.parametrize(
    ("tile", "stages", "panels", "copies"),
    [
        ((128, 128), 4, 4, 2),  # 4 panels: two are on their way, three would not divide them
        ((128, 192), 4, 4, 3),
        ((128, 160), 2, 4, 2),  # 10 narrow ones
        ((64, 160), 4, 4, 1),  # 5
        ((64, 224), 4, 4, 1),  # 7
        ((128, 112), 4, 4, 2),  # 14
    ],
)
def test_what_the_ring_leaves_brings_panels_ahead(
    tile: tuple[int, int], stages: int, panels: int, copies: int
) -> None:
    m, n, k = 712, 904, 128
    made = compiled(residual(*tile, pingpong=True, stages=stages), m, n, k)
    assert made.plan.panels == panels
    assert f"room for {panels} panels of an output" in print_plan(made.plan)
    assert len(brought(made.kernel)) == copies
    for seed in (0, 5)[: 1 if tile[0] == 64 else 2]:
        arrays = operands(m, n, k)
        simulate(made.kernel, FEW, arrays, {}, seed=seed)
        np.testing.assert_array_equal(wide(arrays["c"]), wide(expected(arrays)))


def test_a_residual_along_the_rows_is_brought() -> None:
    made = compiled(residual(128, 128, turned=True, pingpong=True), 200, 328, 128)
    assert len(brought(made.kernel)) == 1
    arrays = operands(200, 328, 128, turned=True)
    simulate(made.kernel, FEW, arrays, {})
    np.testing.assert_array_equal(wide(arrays["c"]), wide(expected(arrays, turned=True)))


def test_a_residual_is_brought_to_each_block_of_a_cluster() -> None:
    target = replace(SM_90A, multiprocessors=4)
    kernel = residual(128, 128, pingpong=True, cluster=2)
    made = compiled(kernel, 512, 328, 128, target=target)
    assert made.kernel.cluster == 2
    assert len(brought(made.kernel)) == 1
    arrays = operands(512, 328, 128)
    simulate(made.kernel, target, arrays, {})
    np.testing.assert_array_equal(wide(arrays["c"]), wide(expected(arrays)))


PLAIN: dict[str, tuple[dict[str, Any], tuple[int, int], tuple[int, int, int]]] = {
    "nobody multiplies meanwhile": ({}, (128, 128), (256, 384, 64)),
    "rows the copy engine cannot walk": ({"pingpong": True}, (128, 128), (256, 388, 64)),
    "one panel": ({"pingpong": True}, (64, 64), (256, 192, 64)),
}


@pytest.mark.parametrize("case", PLAIN)
def test_others_are_loaded_by_threads(case: str) -> None:
    hardware, (tile_m, tile_n), (m, n, k) = PLAIN[case]
    made = compiled(residual(tile_m, tile_n, **hardware), m, n, k)
    assert not brought(made.kernel)
    arrays = operands(m, n, k)
    simulate(made.kernel, FEW, arrays, {})
    np.testing.assert_array_equal(wide(arrays["c"]), wide(expected(arrays)))


def test_a_tile_that_is_used_twice_is_loaded_by_threads() -> None:
    made = compiled(residual(128, 128, twice=True, pingpong=True), 256, 384, 64)
    assert not brought(made.kernel)
    arrays = operands(256, 384, 64)
    simulate(made.kernel, FEW, arrays, {})
    wanted = (wide(expected(arrays)) * wide(arrays["r"])).astype(arrays["c"].dtype)
    np.testing.assert_array_equal(wide(arrays["c"]), wide(wanted))


def test_outputs_that_share_panels() -> None:
    """One without a residual, one with it, and one that is made of the second."""

    @tw.kernel(tiles(64, 128, 64, pingpong=True))
    def product(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        r: tw.Memory[M, N, G, tw.bf16],
        c: tw.Memory[M, N, G, tw.bf16],
        d: tw.Memory[M, N, G, tw.bf16],
        e: tw.Memory[M, N, G, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        narrow = tw.cast(total, tw.bf16)
        tw.write(narrow, c)
        summed = narrow + tw.read(r)
        tw.write(summed, d)
        tw.write(tw.maximum(summed, 0.0), e)

    m, n, k = 200, 328, 64
    made = compiled(product, m, n, k)
    assert len(brought(made.kernel)) == 1
    arrays = operands(m, n, k)
    del arrays["bias"]
    arrays |= {"d": poison((m, n), tw.bf16), "e": poison((m, n), tw.bf16)}
    simulate(made.kernel, FEW, arrays, {})
    kind = arrays["c"].dtype
    first = (wide(arrays["a"]) @ wide(arrays["b"]).T).astype(kind)
    second = (wide(first) + wide(arrays["r"])).astype(kind)
    np.testing.assert_array_equal(wide(arrays["c"]), wide(first))
    np.testing.assert_array_equal(wide(arrays["d"]), wide(second))
    np.testing.assert_array_equal(wide(arrays["e"]), np.maximum(wide(second), 0))


def test_a_tile_that_a_condition_may_leave_out_is_loaded_by_threads() -> None:
    """The phases of its panels would lag behind the turns."""

    @tw.kernel(tiles(64, 128, 64, pingpong=True))
    def product(
        a: tw.Memory[M, K, G, tw.bf16],
        b: tw.Memory[N, K, G, tw.bf16],
        r: tw.Memory[M, N, G, tw.bf16],
        c: tw.Memory[M, N, G, tw.bf16],
        some: tw.i32,
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        @tw.conditional(some > 0)
        def _():
            tw.write(tw.cast(total, tw.bf16) + tw.read(r), c)

    made = compile_program(
        product.program, Specialisation(target=FEW, sizes={"M": 256, "N": 384, "K": 64})
    )
    assert not brought(made.kernel)


# ---------------------------------------------------------------- faults


@cache
def right() -> Compilation:
    return compiled(residual(128, 128, pingpong=True), 512, 384, 128)


def lands(statement: Statement) -> bool:
    return isinstance(statement, PhaseWait) and statement.phase.name == "r_landed"


def moved(statement: Statement) -> Body:
    """The panel beside it is brought."""
    if not (isinstance(statement, BulkLoad) and statement.map == "r_box"):
        return (statement,)
    rows, columns = statement.coordinates
    return (replace(statement, coordinates=(rows, columns + 64)),)


def halved(statement: Statement) -> Body:
    """One of two pieces of each panel is left as it was brought."""
    if not (isinstance(statement, Loop) and statement.var.startswith("piece")):
        return (statement,)
    return (replace(statement, extent=statement.extent // 2),)


def late(statement: Statement) -> Body:
    """The wait is for the other parity."""
    if not lands(statement) or not isinstance(statement, PhaseWait):
        return (statement,)
    return (replace(statement, parity=statement.parity + 1),)


def misread(statement: Statement) -> Body:
    """Pieces are read from the other slot."""
    if not (isinstance(statement, Load) and statement.src.name == "c_panels"):
        return (statement,)
    role, slot, *rest = statement.src.index
    return (replace(statement, src=replace(statement.src, index=(role, (slot + 1) % 2, *rest))),)


def without(gone: Callable[[Statement], bool]) -> Callable[[Statement], Body]:
    return lambda statement: () if gone(statement) else (statement,)


def is_first(statement: Statement) -> bool:
    """One of the copies of panels that are started before the first one is computed."""
    return (
        isinstance(statement, BulkLoad)
        and statement.map == "r_box"
        and statement.dst.index[1].is_const
    )


def place(shift: int) -> Callable[[Statement], Body]:
    """Panels are brought to another place."""

    def change(statement: Statement) -> Body:
        if not (isinstance(statement, BulkLoad) and statement.map == "r_box"):
            return (statement,)
        role, number, *rest = statement.dst.index
        index = (role, (number + shift) % 4, *rest)
        return (replace(statement, dst=replace(statement.dst, index=index)),)

    return change


def fewer(statement: Statement) -> Body:
    """The last panel is not brought."""
    if not isinstance(statement, If):
        return (statement,)
    if not any(isinstance(s, BulkLoad) and s.map == "r_box" for s in statement.body):
        return (statement,)
    within, *rest = statement.guard
    return (replace(statement, guard=(replace(within, expr=within.expr - 1), *rest)),)


def other_phase(statement: Statement) -> Body:
    """Each panel is waited for as if it were the one before."""
    if not lands(statement) or not isinstance(statement, PhaseWait):
        return (statement,)
    index = statement.phase.index
    role = Expr.of("role") * 3
    return (
        replace(statement, phase=replace(statement.phase, index=role + (index - role + 2) % 3)),
    )


AHEAD: dict[str, Callable[[Statement], Body]] = {
    "no wait for the panel": without(lands),
    "the first panels are not copied": without(is_first),
    "the tile before may be leaving": without(
        lambda s: isinstance(s, BulkWait) and s.read and s.pending == 0
    ),
    "the panel before may be leaving": without(
        lambda s: isinstance(s, BulkWait) and s.read and s.pending == 1
    ),
    "the panel beside it": moved,
    "the place beside it": place(1),
    "the last panel is not copied": fewer,
    "the wait for another panel": other_phase,
    "the wrong parity": late,
}


@cache
def ahead() -> Compilation:
    return compiled(residual(128, 192, pingpong=True), 512, 576, 64)


def assert_refuted(made: Compilation, fault: Callable[[Statement], Body]) -> None:
    wrong = replace(made.kernel, body=rewrite(made.kernel.body, fault))
    assert wrong.body != made.kernel.body
    found = verify(wrong, FEW, named_axes(made.graph))
    assert any(isinstance(o.result, Refuted) for o in found), [
        o for o in found if not isinstance(o.result, Proved)
    ]


@pytest.mark.parametrize("fault", AHEAD)
def test_a_fault_of_panels_ahead_is_refuted(fault: str) -> None:
    assert_refuted(ahead(), AHEAD[fault])


@pytest.mark.parametrize("fault", AHEAD)
def test_a_fault_of_panels_ahead_is_simulated(fault: str) -> None:
    """It fails, or computes something else."""
    wrong = replace(ahead().kernel, body=rewrite(ahead().kernel.body, AHEAD[fault]))
    arrays = operands(512, 576, 64)
    try:
        simulate(wrong, FEW, arrays, {})
    except TilewrightError:
        return
    assert not np.array_equal(wide(arrays["c"]), wide(expected(arrays)))


FAULTS: dict[str, Callable[[Statement], Body]] = {
    "no wait for the panel": without(lands),
    "no copy of the panel": without(lambda s: isinstance(s, BulkLoad) and s.map == "r_box"),
    "no arrival": without(lambda s: isinstance(s, ArriveExpect) and s.phase.name == "r_landed"),
    "no wait for the slot": without(lambda s: isinstance(s, BulkWait) and s.read),
    "no fence": without(lambda s: isinstance(s, ProxyFence)),
    "nothing is stored": without(lambda s: isinstance(s, Store) and s.dst.name == "c_panels"),
    "half of a panel": halved,
    "the panel beside it": moved,
    "the wrong parity": late,
    "the other slot": misread,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refuted(fault: str) -> None:
    assert_refuted(right(), FAULTS[fault])


@pytest.mark.parametrize("fault", ["no wait for the panel", "no wait for the slot", "no fence"])
def test_a_fault_is_simulated(fault: str) -> None:
    wrong = replace(right().kernel, body=rewrite(right().kernel.body, FAULTS[fault]))
    with pytest.raises(TilewrightError):
        simulate(wrong, FEW, operands(512, 384, 128), {})
