"""Stream-K: blocks that share the steps of several tiles. Results, proofs, faults, refusals."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import CompiledKernel
from tilewright.base.diagnostics import ConstraintError, TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.driver.axes import named_axes
from tilewright.kernel.async_ops import (
    Announce,
    Await,
    BulkLoad,
    Collect,
    Deposit,
    WarpgroupMma,
)
from tilewright.kernel.ops import Apply, Assign, Body, Const, If, RegRef, Statement, walk
from tilewright.kernel.parse import parse_kernel
from tilewright.kernel.rewrite import rewrite, strip_spans
from tilewright.kernel.text import print_kernel
from tilewright.lower.obligations import verify
from tilewright.poly.expr import Constraint, Expr, at_least, less
from tilewright.poly.results import Proved, Refuted
from tilewright.runtime.toolchain import compile_source
from tilewright.schedule.schedule import Schedule, read_schedule
from tilewright.target.nvidia import SM_90A

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BF16 = ml_dtypes.bfloat16
V = Expr.of


def product(tile: tuple[int, int], shares: tuple[int, int], out: Any = tw.bf16, **more: Any) -> Any:
    """c = a b^T, plus a row of x where the program has one."""
    hardware = tw.HardwareConstraint(stream_k=shares, **more)

    @tw.kernel([
        tw.WorkgroupConstraint(M, tile[0], 0), tw.WorkgroupConstraint(N, tile[1], 1),
        tw.TilingConstraint(K, 64), hardware,
    ])  # fmt: skip
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        x: tw.Memory[N, tw.GLOBAL, tw.f32],
        c: tw.Memory[M, N, tw.GLOBAL, out],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        total = tw.maximum(total, 0.0) + tw.read(x)
        tw.write(total if out is tw.f32 else tw.cast(total, out), c)

    return gemm


@cache
def compiled(
    m: int, n: int, k: int, tile: tuple[int, int], shares: tuple[int, int]
) -> CompiledKernel:
    return product(tile, shares).compile("sm_90a", {M: m, N: n, K: k})


def drawn(m: int, n: int, k: int) -> tuple[dict[str, Any], Any]:
    """Whole numbers, whose sums are exact in any order; a poisoned output; and the result."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, s).astype(BF16) for s in ((m, k), (n, k)))
    x = rng.integers(-9, 9, n).astype(np.float32)
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T, 0) + x
    return {"a": a, "b": b, "x": x, "c": np.full((m, n), np.nan, BF16)}, wanted.astype(BF16)


CASES = [
    (128, 128, 384, (64, 64), (2, 3)),  # each tile by two blocks
    (128, 128, 384, (64, 64), (1, 4)),  # split-K through global memory, uneven: 6 steps by 4
    (64, 192, 256, (64, 64), (3, 2)),  # more tiles than blocks
    (128, 192, 320, (64, 64), (4, 7)),  # two groups, the last one of two tiles only
    (72, 88, 136, (64, 64), (3, 4)),  # ragged everywhere
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

    @tw.kernel([])
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    made = gemm.compile("sm_90a", {M: 256, N: 192, K: 320}, schedule=shared)
    assert "4 blocks share the 15 steps of 3 tiles, 4 each" in made.explain()
    assert all(isinstance(o.result, Proved) for o in made.proofs)
    arguments, _ = drawn(256, 192, 320)
    del arguments["x"]
    simulate(made.compilation.kernel, SM_90A, arguments, {})
    a, b = (arguments[n].astype(np.float64) for n in "ab")
    assert np.array_equal(arguments["c"].astype(np.float64), (a @ b.T).astype(BF16).astype(float))
    with pytest.raises(ConstraintError, match="0 blocks share the steps of 2 tiles"):
        start.stream(2, 0)


@pytest.mark.skipif(shutil.which("nvdisasm") is None, reason="no nvdisasm on the path")
def test_the_instructions_of_a_step_overlap(tmp_path: Path) -> None:
    """Sums begun by a guard, in a loop that may have no turns, would not let them."""
    binary = tmp_path / "kernel.cubin"
    made = compiled(1280, 1280, 8192, (128, 256), (5, 13))
    binary.write_bytes(compile_source(made.source, SM_90A))
    shown = subprocess.run(["nvdisasm", "-c", binary], capture_output=True, text=True, check=True)
    words = re.findall(r"HGMMA\.|DEPBAR\.LE gsb0", shown.stdout)
    assert words[:5] == ["HGMMA."] * 4 + ["DEPBAR.LE gsb0"]


@pytest.mark.parametrize(("tile", "shares"), [((128, 256), (5, 13)), ((128, 192), (7, 13))])
def test_what_the_device_runs_compiles(tile: tuple[int, int], shares: tuple[int, int]) -> None:
    made = compiled(1280, 1280, 8192, tile, shares)
    assert all(isinstance(o.result, Proved) for o in made.proofs)
    assert compile_source(made.source, SM_90A)


# ---------------------------------------------------------------- faults

Change = Callable[[Statement], Body]


def without(kind: type[Statement]) -> Change:
    return lambda s: () if isinstance(s, kind) else (s,)


def changed(kind: type[Statement], make: Callable[[Any], Statement]) -> Change:
    return lambda s: (make(s),) if isinstance(s, kind) else (s,)


def where(found: Callable[[Any], bool], make: Callable[[Any], Body]) -> Change:
    return lambda s: make(s) if found(s) else (s,)


def adds(s: Statement) -> bool:
    return isinstance(s, Assign) and isinstance(s.value, Apply) and s.dst.name.endswith("_acc")


def takes(s: Statement) -> bool:
    """The guard under which an owner takes another block's sums."""
    return isinstance(s, If) and any(isinstance(i, Await) for i in s.body)


def leaves(s: Statement) -> bool:
    return isinstance(s, If) and any(isinstance(i, Announce) for i in s.body)


def multiplies(s: Statement) -> bool:
    return isinstance(s, If) and any(isinstance(i, WarpgroupMma | BulkLoad) for i in s.body)


def tightened(s: If) -> Body:
    """One step less at the end."""
    first, last = s.guard
    return (replace(s, guard=(first, Constraint(last.expr - 1))),)


def in_other_group(s: Any) -> Statement:
    return replace(s, block=s.block.substitute({"group_block": V(1) - V("group_block")}))


def zeroes(s: Statement) -> bool:
    return isinstance(s, Assign) and isinstance(s.value, Const) and s.dst.name.endswith("_acc")


def half(s: Assign) -> Body:
    (name, count), *rest = s.over
    return (replace(s, over=((name, count // 2), *rest)),)


def again_in_each_step(s: Statement) -> Body:
    if isinstance(s, If) and any(isinstance(i, WarpgroupMma) for i in s.body):
        again = Assign((("r", 32),), RegRef("v6_acc", (V("r"),)), Const(0.0, tw.f32))
        return (replace(s, body=(again, *s.body)),)
    return (s,)


# How the kernel is spoiled, the refutation's words, and the simulator's (empty: a wrong result).
FAULTS: dict[str, tuple[Change, str, str]] = {
    "nothing is announced": (without(Announce), "no block announces a deposit", "deadlock"),
    "nobody waits": (without(Await), "is never awaited", "collected before it is awaited"),
    "nothing is deposited": (without(Deposit), "never deposited", "nothing was deposited"),
    "nothing is collected": (without(Collect), "read before anything assigns", "nothing has"),
    "nothing is added": (where(adds, lambda s: ()), "is never counted into", ""),
    "sums are added twice": (where(adds, lambda s: (s, s)), "more than once", ""),
    "a block is left out": (
        where(takes, lambda s: (replace(s, guard=(*s.guard, less("sharer", 6))),)),
        "is never awaited", "is never awaited",
    ),
    "a block waits for itself": (
        where(takes, lambda s: (replace(s, guard=(at_least(V("sharer") + "tile_sharer_block", 6),
                                                  *s.guard[1:])),)),
        "never announces in sums_left is awaited", "deadlock",
    ),
    "sums come from another group": (
        lambda s: (in_other_group(s),) if isinstance(s, Await | Collect) else (s,),
        "is loaded at M = 0 where M = 64 is wanted", "",
    ),
    "who does not own a tile writes it": (
        where(lambda s: isinstance(s, If) and any(map(takes, walk(s.body))) and not takes(s)
              and len(s.guard) == 1 and "role" not in s.guard[0].expr.variables(),
              lambda s: s.body),
        "is written more than once", "",
    ),
    "the deposit is announced first": (
        where(leaves, lambda s: (replace(s, body=s.body[::-1]),)),
        "comes after it is announced", "after it was announced",
    ),
    "registers change places": (
        changed(Deposit, lambda s: replace(s, index=V(28) - s.index)), "is loaded at N =", "",
    ),
    "a tile begins with what registers held": (
        where(zeroes, lambda s: ()), "goes on from the sum of another tile", "nothing has written",
    ),
    "half a tile does": (
        where(zeroes, half), "goes on from the sum of another tile", "nothing has written",
    ),
    "sums are begun again in each step": (
        again_in_each_step, "while a matrix instruction writes it", "matrix instruction",
    ),
    "each block leaves out its last step": (
        where(multiplies, tightened), "is never counted into", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refuted_and_simulated(fault: str) -> None:
    """Two whole groups of 4 tiles and 7 blocks."""
    m, n, k = 128, 256, 320
    change, refutation, failure = FAULTS[fault]
    made = compiled(m, n, k, (64, 64), (4, 7))
    right = made.compilation.kernel
    wrong = replace(right, body=rewrite(right.body, change))
    assert wrong != right
    proofs = verify(wrong, SM_90A, named_axes(made.compilation.graph))
    refuted = [o.result.message for o in proofs if isinstance(o.result, Refuted)]
    assert any(refutation in r for r in refuted), refuted
    arguments, wanted = drawn(m, n, k)
    if failure:
        with pytest.raises(TilewrightError, match=failure):
            simulate(wrong, SM_90A, arguments, {})
        return
    try:
        simulate(wrong, SM_90A, arguments, {})
    except TilewrightError:
        return
    assert not np.array_equal(arguments["c"].astype(np.float32), wanted.astype(np.float32))


EACH_FOR_THE_OTHER = """
kernel pair target sm_90a warps 1x32 grid [2]
  out y: f32[2, 128] strides [128, 1] align 16
  exchange left: f32 count 4
  reg mine: f32[4]
  reg other: f32[4]
  decode block -> b: 2
  decode lane -> l: 32
  for i < 4: mine[i] = f32(index(l + 32*b): i32)
  await left of block 1 - b
  deposit 4 left[0] = mine[0]
  announce left
  collect 4 other[0] = left[0] of block 1 - b
  store 4 y[b, 4*l] = other[0]
"""


def test_blocks_that_wait_before_they_announce_wait_for_ever() -> None:
    lines = EACH_FOR_THE_OTHER.strip().split("\n")
    wrong = parse_kernel("\n".join(lines))
    proofs = verify(wrong, SM_90A)
    refuted = [o.result.message for o in proofs if isinstance(o.result, Refuted)]
    assert refuted == ["block 0 waits for another's deposit before it announces its own"]
    y = np.full((2, 128), np.nan, np.float32)
    with pytest.raises(TilewrightError, match="deadlock"):
        simulate(wrong, SM_90A, {"y": y}, {})
    await_ = next(i for i, line in enumerate(lines) if "await" in line)
    lines.insert(await_ + 2, lines.pop(await_))
    right = parse_kernel("\n".join(lines))
    assert all(isinstance(o.result, Proved) for o in verify(right, SM_90A))
    simulate(right, SM_90A, {"y": y}, {})
    assert np.array_equal(y, np.repeat(np.arange(64).reshape(2, 32)[::-1], 4, axis=1))


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


def test_open_sizes_are_refused() -> None:
    with pytest.raises(ConstraintError, match="number of tiles, or of their steps, is not known"):
        product((64, 64), (2, 3)).compile("sm_90a", {N: 128, K: 384}, multiples={"M": 8})


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
