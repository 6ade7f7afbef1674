"""Grids one after the other: the lemma against every block of small launches."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.poly.concatenation import concatenation_fault, located, starts_of


def is_bijection(starts: tuple[int, ...], blocks: tuple[int, ...], total: int) -> bool:
    """By enumeration: each block of each grid is run by exactly one block of the launch."""
    if starts[0] > 0:
        return False  # block 0 has no grid
    found = sorted(located(starts, block) for block in range(total))
    return found == [(i, own) for i, count in enumerate(blocks) for own in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_lemma_agrees_with_enumeration(count: int) -> None:
    seen = {True: 0, False: 0}
    for blocks in product((1, 2, 3), repeat=count):
        for starts in product(range(7), repeat=count):
            if list(starts) != sorted(starts):
                continue
            for total in range(1, 10):
                right = concatenation_fault(starts, blocks, total) is None
                assert right == is_bijection(starts, blocks, total), (starts, blocks, total)
                seen[right] += 1
    assert min(seen.values()) >= 3**count


def test_starts_are_running_totals() -> None:
    assert starts_of(()) == ()
    for blocks in ((4,), (1, 1, 1), (5, 2, 9)):
        assert concatenation_fault(starts_of(blocks), blocks, sum(blocks)) is None


@pytest.mark.parametrize(
    ("starts", "total", "message"),
    [
        ((0, 4, 5), 9, "block 3 is block 3 of grid 0, which has 3"),
        ((0, 2, 5), 9, "block 2 of grid 0 is run by nobody: grid 1 starts there"),
        ((1, 3, 5), 9, "block 0 belongs to no grid"),
        ((0, 3, 5), 8, "block 3 of grid 2 is run by nobody"),
        ((0, 3, 5), 10, "block 9 is block 4 of grid 2, which has 4"),
        ((0, 3), 9, "2 starts for 3 grids"),
    ],
)
def test_what_fails_is_said_of_one_block(starts: tuple[int, ...], total: int, message: str) -> None:
    fault = concatenation_fault(starts, (3, 2, 4), total)
    assert fault is not None
    assert fault.startswith(message)


def test_a_grid_without_blocks_is_refused() -> None:
    assert concatenation_fault((0, 2), (2, 0), 2) == "grid 1 has 0 blocks"
