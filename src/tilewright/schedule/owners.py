"""How the blocks that share a tile's terms share its columns."""

from __future__ import annotations

COLUMNS = 8  # of an instruction's result that stay together


def owners_of(columns: int, blocks: int) -> int:
    """How many of the blocks own a part of the columns: a divisor of their number, the largest
    for which the parts are whole pieces of an instruction's result."""
    divisors = (n for n in range(blocks, 0, -1) if blocks % n == 0)
    return next(n for n in divisors if n == 1 or columns % (COLUMNS * n) == 0)
