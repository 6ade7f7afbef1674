"""Kernels whose blocks exchange registers: what is legal, and what each rule refuses."""

from __future__ import annotations

import pytest

from tilewright.base.diagnostics import LegalityError
from tilewright.kernel.parse import parse_kernel
from tilewright.kernel.rules_exchange import EXCHANGE
from tilewright.kernel.text import print_kernel
from tilewright.kernel.verify import check
from tilewright.target.nvidia import SM_90A

PAIR = """
kernel pair target sm_90a warps 1x32 grid [2]
  symbol N >= 2
  out y: f32[2, 256] strides [256, 1] align 16
  exchange left: f32 count 8
  reg mine: f32[8]
  reg other: f32[8]
  decode block -> b: 2
  decode lane -> l: 32
  for i < 8: mine[i] = f32(index(l + 32*b): i32)
  for p < 2: deposit 4 left[4*p] = mine[4*p]
  announce left
  await left of block 1 - b  // the other one's
  for p < 2: collect 4 other[4*p] = left[4*p] of block 1 - b
  for p < 2: store 4 y[b, 8*l + 4*p] = other[4*p]
"""


def test_a_pair_of_blocks_is_legal_and_reads_back() -> None:
    kernel = parse_kernel(PAIR)
    check(kernel, SM_90A)
    assert parse_kernel(print_kernel(kernel)) == kernel


EDITS: list[tuple[str, str, str, str]] = [
    ("exchange", "f32 count 8", "f32 count 9", "left has 9 elements of f32"),
    ("exchange", "grid [2]", "grid [N]", "a number of blocks that only a launch knows"),
    ("exchange", "announce left", "announce right", "no exchange right is declared"),
    ("exchange", "exchange left: f32", "exchange left: i32", "mine holds f32, left i32"),
    ("exchange", "deposit 4", "deposit 2", "moves 8 bytes together, not 16"),
    ("exchange", "left[4*p] = mine", "left[2*p] = mine", "left is not indexed in steps of 4"),
    ("exchange", "left[4*p] = mine", "left[8*p] = mine", "indexed outside its 8 elements"),
    ("exchange", "await left of block 1 - b", "await left of block 2 - b",
     r"block 1\.\.2 of a grid of 2"),
    ("collect", "  await left of block 1 - b  // the other one's\n", "",
     r"left of block .* is collected before it is awaited"),
    ("collect", "await left of block 1 - b", "await left of block b", "before it is awaited"),
    ("collect", "  await left of block 1 - b  // the other one's\n",
     "  if b < 1:\n    await left of block 1 - b\n", "before it is awaited"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "old", "new", "message"), EDITS)
def test_each_rule_refuses(rule: str, old: str, new: str, message: str) -> None:
    assert PAIR.count(old) == 1
    with pytest.raises(LegalityError, match=message) as caught:
        check(parse_kernel(PAIR.replace(old, new)), SM_90A)
    assert caught.value.diagnostic.message.startswith(f"{rule}: ")


def test_every_rule_has_a_kernel_that_breaks_it() -> None:
    assert {rule for rule, *_ in EDITS} == {rule.name for rule in EXCHANGE}
