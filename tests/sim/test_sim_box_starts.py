"""Boxes begin at whole pieces of 16 bytes: the copy engine stops a kernel at any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim_async import edit, pipelined_gemm
from test_sim_async import multiply

from tilewright.base.diagnostics import LegalityError
from tilewright.kernel.async_ops import BulkLoad, BulkStore
from tilewright.kernel.ops import Body, Kernel, Statement
from tilewright.kernel.verify import check
from tilewright.target.nvidia import SM_90A

SIZES = (100, 28, 136)
RIGHT = pipelined_gemm(*SIZES, consumers=2, stages=2, tiles=2)


def shifted(kind: type[BulkLoad | BulkStore], by: int) -> Kernel:
    def change(statement: Statement) -> Body:
        if not isinstance(statement, kind):
            return (statement,)
        *outer, last = statement.coordinates
        return (replace(statement, coordinates=(*outer, last + by)),)

    return edit(RIGHT, change)


@pytest.mark.parametrize("kind", [BulkLoad, BulkStore])
def test_a_box_within_a_piece_is_refused(kind: type[BulkLoad | BulkStore]) -> None:
    with pytest.raises(LegalityError) as caught:
        multiply(shifted(kind, 1), SIZES)
    assert "begins at element 1 of its last axis" in str(caught.value)
    assert "a multiple of 16 bytes" in str(caught.value)


def test_a_box_at_whole_pieces_is_copied() -> None:
    assert multiply(RIGHT, SIZES)


@pytest.mark.parametrize("kind", [BulkLoad, BulkStore])
def test_a_box_that_may_begin_within_a_piece_is_no_legal_kernel(
    kind: type[BulkLoad | BulkStore],
) -> None:
    check(RIGHT, SM_90A)
    with pytest.raises(LegalityError) as caught:
        check(shifted(kind, 2), SM_90A)
    size = 2 if kind is BulkLoad else 4
    assert f"may begin at any multiple of {2 * size} bytes" in str(caught.value)
    assert "multiples of 16 bytes" in str(caught.value)
