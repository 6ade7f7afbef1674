"""Variables whose values are data: text, rules, execution and printing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.diagnostics import BarrierError, BoundsError, LegalityError
from tilewright.base.dtypes import f32
from tilewright.codegen import emit
from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import Kernel
from tilewright.kernel.passes import simplify
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import check
from tilewright.target.nvidia import SM_90A

# Block b copies row `table[b]` of x to row b of y, as far as `counts[b]` says.
TEXT = """\
kernel pick target sm_90a warps 1x32 grid [4]
  in table: i32[4] strides [1] align 4
  in counts: i32[4] strides [1] align 4
  in x: f32[6, 64] strides [64, 1] align 16
  inout y: f32[4, 64] strides [64, 1] align 16
  reg row: i32[1]
  reg part: f32[1]
  decode block -> b: 4
  decode lane -> l: 32
  load row[0] = table[b]
  data r < 6 = row[0]  // the block's row
  load row[0] = counts[b]
  data n < 3 = row[0]
  loop i < n:
    load part[0] = x[r, 32*i + l]
    store y[b, 32*i + l] = part[0]
"""


def pick() -> Kernel:
    return parse_kernel(TEXT)


def test_text_reads_back() -> None:
    kernel = pick()
    check(kernel, SM_90A)
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert "data r < 6 = row[0]  // the block's row" in print_kernel(kernel)


@pytest.mark.parametrize("kernel", [pick(), simplify(pick())], ids=["as written", "simplified"])
def test_blocks_go_where_data_says(kernel: Kernel) -> None:
    x = np.arange(6 * 64, dtype=np.float32).reshape(6, 64)
    table, counts = np.array([5, 0, 2, 2], np.int32), np.array([1, 2, 0, 2], np.int32)
    y = np.full((4, 64), -1, np.float32)
    simulate(kernel, SM_90A, {"table": table, "counts": counts, "x": x, "y": y}, {})
    wanted = np.where(np.arange(64) < 32 * counts[:, None], x[table], -1)
    assert np.array_equal(y, wanted)


def test_a_value_past_its_extent_is_a_fault() -> None:
    arguments = {
        "table": np.array([5, 0, 6, 2], np.int32), "counts": np.ones(4, np.int32),
        "x": np.zeros((6, 64), np.float32), "y": np.zeros((4, 64), np.float32),
    }  # fmt: skip
    with pytest.raises(BoundsError, match=r"`r` is 6[\s\S]*expected: 0 <= r < 6"):
        simulate(pick(), SM_90A, arguments, {})


def test_threads_of_a_block_must_agree() -> None:
    text = TEXT.replace("load row[0] = table[b]", "load row[0] = table[b] if l < 16")
    arguments = {
        "table": np.array([5, 1, 3, 2], np.int32), "counts": np.ones(4, np.int32),
        "x": np.zeros((6, 64), np.float32), "y": np.zeros((4, 64), np.float32),
    }  # fmt: skip
    with pytest.raises(BarrierError, match=r"`r` is 5 for thread 0 and 0 for thread 16"):
        simulate(parse_kernel(text), SM_90A, arguments, {})


def test_rules() -> None:
    kernel = pick()
    floats = replace(
        kernel, registers=tuple(replace(r, dtype=f32) for r in kernel.registers)
    )  # fmt: skip
    with pytest.raises(LegalityError):
        check(floats, SM_90A)
    with pytest.raises(LegalityError, match="r is bound already"):
        check(parse_kernel(TEXT.replace("data n", "data r").replace("i < n", "i < r")), SM_90A)
    with pytest.raises(LegalityError, match="r is not in scope"):
        check(parse_kernel(TEXT.replace("  data r < 6 = row[0]  // the block's row\n", "")), SM_90A)
    with pytest.raises(LegalityError, match="indexed by r, a value"):
        check(parse_kernel(TEXT.replace("store y[b, 32*i + l] = part[0]",
                                        "store y[b, 32*i + l] = part[r]")), SM_90A)  # fmt: skip


def test_an_integer_is_needed() -> None:
    text = TEXT.replace("reg part: f32[1]", "reg part: f32[1]\n  reg bad: f32[1]").replace(
        "  loop i", "  load bad[0] = x[b, l]\n  data z < 4 = bad[0]\n  loop i"
    )
    with pytest.raises(LegalityError, match="f32 where an integer is needed"):
        check(parse_kernel(text), SM_90A)


def test_cuda_defines_a_constant() -> None:
    source = emit(pick(), SM_90A)
    assert "const int r = row[0];" in source
    assert "i < n" in source
