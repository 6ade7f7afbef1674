"""Stores to other blocks of a cluster: text, rules, what the simulator makes of them, CUDA."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.diagnostics import (
    BarrierError,
    BoundsError,
    LegalityError,
    RaceError,
    TilewrightError,
    UnwrittenReadError,
)
from tilewright.codegen import print_cuda
from tilewright.codegen.sim import simulate
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import check
from tilewright.runtime.toolchain import Nvrtc
from tilewright.target.amd import GFX942
from tilewright.target.nvidia import SM_90A

# y[0] = x[0] + x[1] and y[1] = x[1] + x[0], rows of 512: each of two blocks sends its row.
EXCHANGE = """\
kernel exchange target sm_90a warps 4x32 grid [6] cluster 2
  in x: f32[6, 512] strides [512, 1] align 16
  out y: f32[6, 512] strides [512, 1] align 16
  shared other: f32[128, 4] at 0
  phases landed: 1 arrivals 1 at 2048
  reg own: f32[4]
  reg more: f32[4]
  decode block -> m: 3, rank: 2
  decode thread -> t: 128
  init landed
  cluster arrive  // the peer's barrier is ready
  cluster wait
  if t == 0:
    arrive landed[0] expect 2048
  load 4 own[0] = x[2*m + rank, 4*t]
  remote store 4 other[t, 0] in block -rank + 1 = own[0] signals landed[0]
  wait landed[0] parity 0
  load 4 more[0] = other[t, 0]
  for i < 4: own[i] = own[i] + more[i]
  store 4 y[2*m + rank, 4*t] = own[0]
"""


def test_the_text_is_exact_and_legal() -> None:
    kernel = parse_kernel(EXCHANGE)
    assert print_kernel(kernel) == EXCHANGE
    check(kernel, SM_90A)


def run(text: str, seed: int | None) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((6, 512), np.float32)
    y = np.full_like(x, np.nan)
    simulate(parse_kernel(text), SM_90A, {"x": x, "y": y}, {}, seed=seed)
    return x, y


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_both_blocks_have_the_sum(seed: int | None) -> None:
    x, y = run(EXCHANGE, seed)
    sums = x[0::2] + x[1::2]
    assert np.array_equal(y, np.repeat(sums, 2, axis=0))


@pytest.mark.parametrize("width", [1, 2])
def test_narrower_stores_do_the_same(width: int) -> None:
    remote = "remote store 4 other[t, 0] in block -rank + 1 = own[0]"
    narrow = (
        f"for j < {4 // width}: remote store {width} other[t, {width}*j] in block -rank + 1 = "
        f"own[{width}*j]"
    )
    x, y = run(EXCHANGE.replace(remote, narrow), 0)
    assert np.array_equal(y, np.repeat(x[0::2] + x[1::2], 2, axis=0))


FAULTS = [
    # added before the other block's part has landed
    ("  wait landed[0] parity 0\n", "", (RaceError, UnwrittenReadError), "other"),
    # the block may have ended when the part arrives
    (
        EXCHANGE[EXCHANGE.index("  wait landed") : EXCHANGE.index("  store 4 y")],
        "",
        (RaceError,),
        "a block ends while a remote store still writes to its shared memory",
    ),
    # the peer's barrier may not be there yet
    (
        "  cluster arrive  // the peer's barrier is ready\n  cluster wait\n",
        "  barrier\n",
        (BarrierError,),
        "is used before it has begun",
    ),
    ("expect 2048", "expect 1024", (BarrierError,), "deadlock|bytes"),
    ("other[t, 0] in", "other[0, 0] in", (RaceError,), "two stores write one element of `other`"),
    (
        "other[t, 0] in block -rank + 1",
        "other[t, 0] in block rank + 1",
        (LegalityError, BoundsError),
        "block 2|block rank",
    ),
    # the peer may still read what is stored over
    (
        "  load 4 own[0] = x[2*m + rank, 4*t]\n",
        "  load 4 own[0] = x[2*m + rank, 4*t]\n  store 4 other[t, 0] = own[0]\n",
        (RaceError,),
        "written by thread .* while a remote store writes it|overwritten by a remote store",
    ),
]


@pytest.mark.parametrize(("old", "new", "kinds", "message"), FAULTS)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_fault_is_refused(
    old: str, new: str, kinds: tuple[type[TilewrightError], ...], message: str, seed: int | None
) -> None:
    assert old in EXCHANGE
    with pytest.raises(kinds, match=message):
        run(EXCHANGE.replace(old, new, 1), seed)


RULES = [
    ("remote store 4 other", "remote store 3 other", "stores 12 bytes together"),
    ("other[t, 0] in", "other[t, 1] in", "other is not indexed in steps of 16 bytes"),
    ("remote store 4 other[t, 0]", "remote store 4 y[t, 0]", "y is not a shared buffer"),
    ("other: f32[128, 4] at", "other: f32[128, 4] swizzle(1, 2, 2) at", "other is swizzled"),
    (
        "remote store 4 other[t, 0] in block -rank + 1",
        "for p < 2: remote store 4 other[t, 0] in block p",
        "its instances go to several blocks",
    ),
    ("in block -rank + 1", "in block -rank + 2", r"block -rank \+ 2 of a cluster of 2"),
    ("= own[0] signals", "= own[1] signals", r"axis 0 of own is indexed 1\.\.4"),
    ("signals landed[0]", "signals landed[1]", r"landed is indexed 1\.\.1"),
]


@pytest.mark.parametrize(("old", "new", "message"), RULES)
def test_an_illegal_form_is_refused(old: str, new: str, message: str) -> None:
    assert old in EXCHANGE
    with pytest.raises(LegalityError, match=message):
        check(parse_kernel(EXCHANGE.replace(old, new, 1)), SM_90A)


def test_the_types_must_agree() -> None:
    text = EXCHANGE.replace("  decode block", "  reg tag: i32[4]\n  decode block")
    with pytest.raises(LegalityError, match="remote: i32 where f32 is needed"):
        check(parse_kernel(text.replace("= own[0] signals", "= tag[0] signals")), SM_90A)


def test_a_target_without_clusters_has_no_such_store() -> None:
    text = EXCHANGE.replace("sm_90a", "gfx942").replace("4x32", "2x64").replace(" cluster 2", "")
    text = text.replace("block -rank + 1", "block 0")
    with pytest.raises(LegalityError, match="remote: gfx942 has no clusters"):
        check(parse_kernel(text), GFX942)


def test_the_source_maps_both_addresses_and_compiles() -> None:
    source = print_cuda(parse_kernel(EXCHANGE), SM_90A)
    assert "tw_remote_store_16(\n      other + t * 4,\n      -rank + 1,\n      landed,\n" in source
    assert "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there]" in source
    assert "tw_phase_wait_cluster(landed, 0);" in source
    assert Nvrtc().resources(source, SM_90A).spilled == 0
