"""Stream-K: blocks that share the steps of several tiles. Results, proofs, refusals."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamed_products import BF16, K, M, N, compiled, drawn, plain, product

import tilewright as tw
from tilewright import CompiledKernel
from tilewright.base.diagnostics import ConstraintError
from tilewright.codegen.sim import simulate
from tilewright.kernel.async_ops import (
    Deposit,
)
from tilewright.kernel.ops import walk
from tilewright.kernel.parse import parse_kernel
from tilewright.kernel.rewrite import strip_spans
from tilewright.kernel.text import print_kernel
from tilewright.poly.results import Proved
from tilewright.runtime.toolchain import compile_source
from tilewright.schedule.schedule import Schedule, read_schedule
from tilewright.target.nvidia import SM_90A

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
from machine_code import instructions

CASES = [
    (128, 128, 384, (64, 64), (2, 3)),  # each tile by two blocks
    (128, 128, 384, (64, 64), (1, 4)),  # split-K through global memory, uneven: 6 steps by 4
    (64, 192, 256, (64, 64), (3, 2)),  # more tiles than blocks
    (128, 192, 320, (64, 64), (4, 7)),  # two groups, the last one of two tiles only
    (72, 88, 136, (64, 64), (3, 5)),  # ragged everywhere
    (128, 256, 256, (128, 128), (2, 3)),  # two warpgroups share a tile
    (16, 128, 640, (16, 64), (2, 5)),  # N gives the rows
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k", "tile", "shares"), CASES)
def test_shared_steps(
    m: int, n: int, k: int, tile: tuple[int, int], shares: tuple[int, int]
) -> None:
    kernel = compiled(m, n, k, tile, shares).compilation.kernel
    assert any(isinstance(s, Deposit) for s in walk(kernel.body))
    for seed in (None, 7):
        arguments, wanted = drawn(m, n, k)
        simulate(kernel, SM_90A, arguments, {}, seed=seed)
        assert np.array_equal(arguments["c"].astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize(("m", "n", "k", "tile", "shares"), CASES)
def test_everything_is_proved(
    m: int, n: int, k: int, tile: tuple[int, int], shares: tuple[int, int]
) -> None:
    made = compiled(m, n, k, tile, shares)
    assert all(isinstance(o.result, Proved) for o in made.proofs), made.proof_report()
    assert f"each of {k} terms is counted once, by all blocks" in made.proof_report()
    assert "sums_left: each announcement is awaited once" in made.proof_report()


def test_the_order_of_completion_does_not_matter() -> None:
    """Real numbers: the sums are added in one order, so the bits are the same."""
    made = product((64, 64), (2, 5), tw.f32).compile("sm_90a", {M: 128, N: 64, K: 640})
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((128, 640), (64, 640)))
    runs: list[Any] = []
    for seed in (None, 1, 2):
        c = np.full((128, 64), np.nan, np.float32)
        arguments = {"a": a, "b": b, "x": np.zeros(64, np.float32), "c": c}
        simulate(made.compilation.kernel, SM_90A, arguments, {}, seed=seed)
        runs.append(c)
    assert all(np.array_equal(runs[0].view(np.int32), c.view(np.int32)) for c in runs[1:])
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T, 0)
    assert np.abs(runs[0] - exact).max() < 1e-4 * exact.max()


def test_the_kernel_is_read_back_from_its_text() -> None:
    kernel = compiled(*CASES[0]).compilation.kernel
    text = print_kernel(kernel)
    assert "exchange sums_left: f32 count 32" in text
    assert strip_spans(parse_kernel(text)) == strip_spans(kernel)


def test_the_plan_says_who_shares_what() -> None:
    text = compiled(128, 128, 384, (64, 64), (2, 3)).explain()
    assert "3 blocks share the 12 steps of 2 tiles, 4 each" in text
    assert "tile sharer[3] block" in text


def test_a_schedule_by_hand_makes_the_same_kernel() -> None:
    def shared(s: Schedule) -> Schedule:
        s = s.split("M", 64, "mo", "mi").split("N", 64, "no", "ni").split("K", 64, "ko", "ki")
        return s.swizzle("mo", "no", 2).stream(3, 4)

    start = Schedule(("M", "N", "K"), frozenset("K"))
    assert read_schedule(str(shared(start)), start) == shared(start)

    made = plain.compile("sm_90a", {M: 256, N: 192, K: 320}, schedule=shared)
    assert "4 blocks share the 15 steps of 3 tiles, 4 each" in made.explain()
    assert all(isinstance(o.result, Proved) for o in made.proofs)
    arguments, _ = drawn(256, 192, 320)
    del arguments["x"]
    simulate(made.compilation.kernel, SM_90A, arguments, {})
    a, b = (arguments[n].astype(np.float64) for n in "ab")
    assert np.array_equal(arguments["c"].astype(np.float64), (a @ b.T).astype(BF16).astype(float))
    with pytest.raises(ConstraintError, match="0 blocks share the steps of 2 tiles"):
        start.stream(2, 0)


def test_the_instructions_of_a_step_overlap(tmp_path: Path) -> None:
    """Sums begun by a guard, in a loop that may have no turns, would not let them."""
    made = compiled(1280, 1280, 8192, (128, 256), (5, 13))
    lines = instructions(made.source, tmp_path)
    words = re.findall(r"HGMMA\.|DEPBAR\.LE gsb0", "\n".join(lines))
    assert words[:5] == ["HGMMA."] * 4 + ["DEPBAR.LE gsb0"]


@pytest.mark.parametrize(("tile", "shares"), [((128, 256), (5, 13)), ((128, 192), (7, 13))])
def test_what_the_device_runs_compiles(tile: tuple[int, int], shares: tuple[int, int]) -> None:
    made = compiled(1280, 1280, 8192, tile, shares)
    assert all(isinstance(o.result, Proved) for o in made.proofs)
    assert compile_source(made.source, SM_90A)


@pytest.mark.parametrize(
    ("k", "shares"), [(320, (3, 1)), (320, (2, 2)), (64, (2, 3)), (64, (3, 2))]
)
def test_blocks_with_whole_tiles_exchange_nothing(k: int, shares: tuple[int, int]) -> None:
    made = compiled(128, 192, k, (64, 64), shares)
    assert made.compilation.kernel.exchanges == ()
    assert all(isinstance(o.result, Proved) for o in made.proofs), made.proof_report()
    arguments, wanted = drawn(128, 192, k)
    simulate(made.compilation.kernel, SM_90A, arguments, {})
    assert np.array_equal(arguments["c"].astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("reduced", [M, N])
def test_an_epilogue_that_adds_up_rows_or_columns(reduced: Any) -> None:
    """Of the sums of whole tiles: registers are cleared in a loop that both clear in."""
    kept, m, n = (N, 64, 192) if reduced is M else (M, 192, 64)

    @tw.kernel([
        tw.WorkgroupConstraint(M, 64, 0), tw.WorkgroupConstraint(N, 64, 1),
        tw.TilingConstraint(K, 64), tw.HardwareConstraint(stream_k=(3, 4)),
    ])  # fmt: skip
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        s: tw.Memory[kept, tw.GLOBAL, tw.f32],
        c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.sum(total, dim=reduced), s)
        tw.write(tw.cast(total, tw.bf16), c)

    made = gemm.compile("sm_90a", {M: m, N: n, K: 320})
    assert made.compilation.kernel.exchanges
    assert all(isinstance(o.result, Proved) for o in made.proofs), made.proof_report()
    given, _ = drawn(m, n, 320)
    given = {**given, "s": np.full(192, np.nan, np.float32)}
    del given["x"]
    simulate(made.compilation.kernel, SM_90A, given, {})
    exact = given["a"].astype(np.float64) @ given["b"].astype(np.float64).T
    assert np.array_equal(given["s"], exact.sum(0 if reduced is M else 1).astype(np.float32))
    assert np.array_equal(given["c"].astype(np.float32), exact.astype(BF16).astype(np.float32))


# ---------------------------------------------------------------- refusals

REFUSED: list[tuple[dict[str, Any], tuple[int, int, int], str]] = [
    ({"shares": (2, 3), "pingpong": True}, (128, 128, 384), "have tiles of their own"),
    ({"shares": (2, 3), "cluster": 2}, (128, 128, 384), "work together already"),
    ({"shares": (2, 100)}, (128, 128, 384), "groups of 100 blocks are larger than 64"),
    ({"shares": (1, 2)}, (1024, 1024, 384), "512 blocks wait for one another, but 132 run at once"),
]


@pytest.mark.parametrize(("more", "size", "message"), REFUSED)
def test_what_cannot_be_shared_is_refused(
    more: dict[str, Any], size: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        product((64, 64), **more).compile("sm_90a", dict(zip((M, N, K), size, strict=True)))
    assert "leave stream_k out, or change the tiles" in str(caught.value)
    assert "hardware = tw.HardwareConstraint(stream_k=shares" in str(caught.value)


def test_tiles_of_which_data_says_what_they_have_are_refused() -> None:
    rows, groups = tw.sym.T, tw.sym.E

    @tw.kernel([
        tw.WorkgroupConstraint(rows, 64, 0), tw.WorkgroupConstraint(N, 64, 1),
        tw.TilingConstraint(K, 64), tw.HardwareConstraint(stream_k=(2, 3)),
    ])  # fmt: skip
    def grouped(
        x: tw.Memory[rows, K, tw.GLOBAL, tw.bf16],
        w: tw.Memory[groups, N, K, tw.GLOBAL, tw.bf16],
        ends: tw.Memory[groups, tw.GLOBAL, tw.i32],
        y: tw.Memory[rows, N, tw.GLOBAL, tw.bf16],
    ):
        group = tw.group_of(rows, ends)

        @tw.iterate(K, init_args=[tw.Register[rows, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(x), tw.gather(w, groups, group), acc)

        tw.write(tw.cast(total, tw.bf16), y)

    with pytest.raises(ConstraintError, match=r"data says what tiles .* neither shared nor paired"):
        grouped.compile("sm_90a", {rows: 256, N: 64, K: 320, groups: 3})


def test_open_sizes_are_refused() -> None:
    with pytest.raises(ConstraintError, match="number of tiles, or of their steps, is not known"):
        product((64, 64), (2, 3)).compile("sm_90a", {N: 128, K: 384}, multiples={"M": 8})


def scheduled(make: Callable[[Schedule], Schedule]) -> CompiledKernel:
    """192 by 192 elements, by a schedule by hand."""
    return plain.compile("sm_90a", {M: 192, N: 192, K: 320}, schedule=make)


def test_tiles_that_do_not_exist_are_refused_between_those_that_do() -> None:
    def edge(s: Schedule) -> Schedule:
        s = s.split("M", 64, "mo", "mi").split("N", 64, "no", "ni").split("K", 64, "ko", "ki")
        return s.swizzle("mo", "no", 2).stream(12, 7)

    with pytest.raises(ConstraintError, match="2 does not divide the tiles of M: turns are empty"):
        scheduled(edge)


def test_an_output_without_tiles_is_refused() -> None:
    with pytest.raises(ConstraintError, match="the output is not divided into tiles"):
        scheduled(lambda s: s.stream(3, 4))


@pytest.mark.parametrize("tiles", ["two", 2.5])
def test_schedules_take_whole_numbers(tiles: Any) -> None:
    start = Schedule(("M", "N", "K"), frozenset("K"))
    with pytest.raises(ConstraintError, match=f"stream is given {tiles!r} where it") as caught:
        start.stream(tiles, 4)
    assert "give argument 0 of stream as an int" in str(caught.value)


@pytest.mark.parametrize("shares", [(0, 3), (2,), 4, (2, -1)])
def test_shares_are_two_positive_numbers(shares: Any) -> None:
    with pytest.raises(ConstraintError, match="stream_k is") as caught:
        tw.HardwareConstraint(stream_k=shares)
    assert "for example stream_k=(2, 5)" in str(caught.value)


# ---------------------------------------------------------------- on the device


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "k", "tile", "shares"), [
    *CASES,
    (1280, 1280, 8192, (128, 256), (5, 13)),
    (1024, 1024, 8192, (128, 256), (8, 33)),
    (2048, 2048, 1024, (128, 128), (32, 16)),
])  # fmt: skip
def test_the_device_agrees(
    m: int, n: int, k: int, tile: tuple[int, int], shares: tuple[int, int]
) -> None:
    """Several launches one after the other: the announcements of each are taken back."""
    torch = pytest.importorskip("torch")
    launch = product(tile, shares)
    torch.manual_seed(0)
    a, b = (torch.randint(-3, 4, s, device="cuda").bfloat16() for s in ((m, k), (n, k)))
    x = torch.randint(-9, 9, (n,), device="cuda").float()
    wanted = ((a.double() @ b.double().T).clamp(min=0) + x).bfloat16()
    for _ in range(5):
        c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        launch(a, b, x, c)
        assert torch.equal(c, wanted)
