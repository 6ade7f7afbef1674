"""Stores to other blocks: their order is proved, and each fault refuted."""

from __future__ import annotations

import re

import pytest
from agent_kernels import ends, fault, is_proved, prove
from test_sim_remote import EXCHANGE, FAULTS

import tilewright as tw
from tilewright.kernel.text import parse_kernel
from tilewright.poly.results import Kind, Proved

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K

REFUTED = [
    (Kind.DRAIN, "block 1 may have ended when warp 0 .* of block 0 uses its shared memory"),
    (Kind.DRAIN, "block 1 may have ended when warp 0 .* of block 0 uses its shared memory"),
    (Kind.PHASE, r"landed\[0\] of block 1 is used by .*, to which nothing says that it has begun"),
    (Kind.PHASE, r"landed\[0\] in block 0 bring 2048 bytes, but 1024 are expected"),
    (Kind.RACE, r"other\[0, 0\] is written by two threads of warp 3"),
    (Kind.PHASE, r"landed\[0\] of block 2 is used by"),
    (Kind.RELEASE, r"other\[0, 0\] is written by warp 0 .* while a remote store writes it"),
]


def test_the_exchange_is_proved() -> None:
    assert set(ends(prove(parse_kernel(EXCHANGE)))) == {"Proved"}


@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [(*f[:2], *r) for f, r in zip(FAULTS, REFUTED, strict=True)],
)
def test_a_fault_is_refuted(old: str, new: str, kind: Kind, message: str) -> None:
    found, text, _ = fault(parse_kernel(EXCHANGE.replace(old, new, 1)))
    assert found is kind
    assert re.search(message, text)


def test_parts_read_before_they_land_are_refuted() -> None:
    """The wait comes after the read, so that nothing but the order is wrong."""
    wait, load = "  wait landed[0] parity 0\n", "  load 4 more[0] = other[t, 0]\n"
    assert wait + load in EXCHANGE
    found, text, notes = fault(parse_kernel(EXCHANGE.replace(wait + load, load + wait)))
    assert found is Kind.RELEASE
    assert "while a remote store writes it" in text or "overwritten by a remote store" in text
    assert "remote store" in text + notes


@pytest.mark.parametrize("parts", [2, 4])
def test_split_sums_are_ordered(parts: int) -> None:
    constraints = [
        tw.WorkgroupConstraint(M, 128, 0),
        tw.WorkgroupConstraint(N, 64, 1),
        tw.TilingConstraint(K, 64),
        tw.HardwareConstraint(split_k=parts),
    ]

    @tw.kernel(constraints)
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    compiled = gemm.compile("sm_90a", {"M": 256, "N": 128, "K": 4096})
    assert is_proved(compiled.compilation.kernel)
    landed = [o.result for o in compiled.proofs if o.kind is Kind.PHASE and o.subject == "landed"]
    part = 64 * 64 // parts * 4  # bytes of one warpgroup's sums for one block
    assert landed == [Proved(f"1 arrival and {(parts - 1) * part} bytes")]
