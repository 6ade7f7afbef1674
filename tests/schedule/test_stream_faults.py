"""Faults of kernels whose blocks share the steps of several tiles: refuted, and simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streamed_products import compiled, drawn

import tilewright as tw
from tilewright.base.diagnostics import TilewrightError
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
from tilewright.kernel.ops import Apply, Assign, Body, Const, If, Loop, RegRef, Statement, walk
from tilewright.kernel.parse import parse_kernel
from tilewright.kernel.rewrite import rewrite
from tilewright.lower.obligations import verify
from tilewright.poly.expr import Constraint, Expr, at_least, less
from tilewright.poly.results import Proved, Refuted, Unknown
from tilewright.target.nvidia import SM_90A

V = Expr.of

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


def owner_alone(s: Statement) -> bool:
    """The guard under which an owner takes others' sums, and uses the whole."""
    return isinstance(s, If) and any(
        isinstance(i, Loop) and any(map(takes, i.body)) for i in s.body
    )


def uses_first(s: Any) -> Body:
    first, values, *rest = s.body
    return (replace(s, body=(values, first, *rest)),)


def leaves_first(s: Statement) -> Body:
    """The deposit of a turn before the loop that adds up."""
    if isinstance(s, If) and any(map(leaves, s.body)):
        (left,) = filter(leaves, s.body)
        rest = [i for i in s.body if i is not left]
        loop = next(n for n, i in enumerate(rest) if isinstance(i, Loop))
        return (replace(s, body=(*rest[:loop], left, *rest[loop:])),)
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
    "the owner's values come before others' sums": (
        where(owner_alone, uses_first), "is never counted into", "",
    ),
    "the deposit comes before the sums": (leaves_first, "is never counted into", ""),
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


def test_sums_that_are_overwritten_before_they_are_added_are_not_proved() -> None:
    def clears(s: Any) -> Body:
        *taken, added = s.body
        none = Assign((("r", 32),), RegRef("sums_taken", (V("r"),)), Const(0.0, tw.f32))
        return (replace(s, body=(*taken, none, added)),)

    made = compiled(128, 256, 320, (64, 64), (4, 7))
    right = made.compilation.kernel
    wrong = replace(right, body=rewrite(right.body, where(takes, clears)))
    results = [o.result for o in verify(wrong, SM_90A, named_axes(made.compilation.graph))]
    reasons = [r.reason for r in results if isinstance(r, Unknown)]
    assert reasons == ["sums_taken is set to other values than those that are collected"]


def test_the_order_of_what_is_added_up_in_one_addition_does_not_matter() -> None:
    made = compiled(128, 256, 320, (64, 64), (4, 7))
    right = made.compilation.kernel

    def swapped(s: Any) -> Body:
        return (replace(s, value=replace(s.value, args=s.value.args[::-1])),)

    other = replace(right, body=rewrite(right.body, where(adds, swapped)))
    assert other != right
    proofs = verify(other, SM_90A, named_axes(made.compilation.graph))
    assert all(isinstance(o.result, Proved) for o in proofs)


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


WARPS_IN_ANOTHER_ORDER = """
kernel pair target sm_90a warps 3x32 grid [2]
  out y: f32[2, 384] strides [384, 1] align 16
  exchange left: f32 count 4
  reg mine: f32[4]
  reg other: f32[4]
  decode block -> b: 2
  decode warp -> w: 3
  decode lane -> l: 32
  decode b + w -> high: 2, low: 2
  for i < 4: mine[i] = f32(index(l + 32*b): i32)
  loop turn < 2:
    if turn == low:
      deposit 4 left[0] = mine[0]
      announce left
      await left of block 1 - b
      collect 4 other[0] = left[0] of block 1 - b
      store 4 y[b, 4*l + 128*w] = other[0]
    barrier
"""


def test_warps_that_wait_at_a_barrier_for_those_that_wait_for_other_blocks() -> None:
    """Each thread announces before it waits; but warps of two blocks do so in opposite orders."""
    kernel = parse_kernel(WARPS_IN_ANOTHER_ORDER.strip())
    results = [o.result for o in verify(kernel, SM_90A)]
    (unknown,) = (r for r in results if not isinstance(r, Proved))
    assert isinstance(unknown, Unknown)
    assert "before all threads of its own block have announced theirs" in unknown.reason
    with pytest.raises(TilewrightError, match="deadlock"):
        simulate(kernel, SM_90A, {"y": np.full((2, 384), np.nan, np.float32)}, {})


TWO_EXCHANGES = """
kernel pair target sm_90a warps 1x32 grid [2]
  out y: f32[2, 128] strides [128, 1] align 16
  exchange left: f32 count 4
  exchange right: f32 count 4
  reg mine: f32[4]
  reg other: f32[4]
  decode block -> b: 2
  decode lane -> l: 32
  for i < 4: mine[i] = f32(index(l + 32*b): i32)
  for i < 4: other[i] = 0.0:f32
  if b == 1:
    await left of block 0
    collect 4 other[0] = left[0] of block 0
    deposit 4 right[0] = mine[0]
    announce right
  if b == 0:
    await right of block 1
    collect 4 other[0] = right[0] of block 1
    deposit 4 left[0] = mine[0]
    announce left
  store 4 y[b, 4*l] = other[0]
"""


def test_two_blocks_that_wait_in_one_exchange_before_they_announce_in_another() -> None:
    kernel = parse_kernel(TWO_EXCHANGES.strip())
    reasons = [o.result.reason for o in verify(kernel, SM_90A) if isinstance(o.result, Unknown)]
    text = "a thread waits for what {} gets from another block before all threads of its own block "
    text += "have announced theirs in {}"
    assert reasons == [text.format("left", "right"), text.format("right", "left")]
    with pytest.raises(TilewrightError, match="deadlock"):
        simulate(kernel, SM_90A, {"y": np.full((2, 128), np.nan, np.float32)}, {})
