"""Each bijection lemma against enumeration, also where its side condition fails."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from tilewright.kernel.ops import Swizzle
from tilewright.poly.expr import Expr
from tilewright.poly.lemmas import (
    compact,
    decode,
    grid_swizzle_fault,
    merge_fault,
    persistent_fault,
    radix,
    rank,
    split_fault,
    xor_fault,
    xor_matrix,
)
from tilewright.poly.sets import Dim


@pytest.mark.parametrize("extents", [(3,), (2, 5), (4, 1, 3), (2, 3, 4, 2), (7, 16)])
def test_merge_decodes_each_value_once(extents: tuple[int, ...]) -> None:
    digits = [decode(t, extents) for t in range(prod(extents))]
    assert digits == list(product(*(range(e) for e in extents)))
    names = [f"d{i}" for i in range(len(extents))]
    number = radix(list(zip(names, extents, strict=True)))
    assert number is not None
    for t, values in enumerate(digits):
        assert number.evaluate(dict(zip(names, values, strict=True))) == t


def test_merge_with_symbolic_extents_for_many_sizes() -> None:
    m, n = Expr.of("M").ceildiv(4), Expr.of("N").ceildiv(3)
    assert merge_fault((m, n, Expr.of(2)), (n, Expr.of(2), m)) is None
    for big_m, big_n in product(range(1, 12), range(1, 12)):
        sizes = {"M": big_m, "N": big_n}
        extents = tuple(e.evaluate(sizes) for e in (n, Expr.of(2), m))
        count = prod(extents)
        assert len({decode(t, extents) for t in range(count)}) == count
        assert all(
            all(0 <= d < e for d, e in zip(decode(t, extents), extents, strict=True))
            for t in range(count)
        )


def test_merge_fault_names_both_counts() -> None:
    fault = merge_fault((Expr.of(64),), (Expr.of(4), Expr.of(8)))
    assert fault == "the digits run over 32 values, their source over 64"
    fault = merge_fault((Expr.of("M"), Expr.of("N")), (Expr.of("M"),))
    assert fault == "the digits run over M values, their source over M*N"
    assert merge_fault((Expr.of("M"), Expr.of("N")), (Expr.of("K"), Expr.of("L"))) is not None
    assert merge_fault((Expr.of(4), Expr.of("M")), (Expr.of("M") * 2, Expr.of(2))) is None


def test_split_is_exactly_once_iff_the_side_condition_holds() -> None:
    for extent, factor, outer in product(range(1, 18), range(1, 6), range(1, 8)):
        seen = [
            factor * o + i for o in range(outer) for i in range(factor) if factor * o + i < extent
        ]
        assert (sorted(seen) == list(range(extent))) == (split_fault(extent, factor, outer) is None)
    assert split_fault(4, 0, 9) == "the factor is 0"


def test_grid_swizzle_is_exactly_once_iff_the_side_condition_holds() -> None:
    for rows, columns, group, groups in product(range(1, 9), range(1, 4), range(1, 5), range(1, 5)):
        seen: list[tuple[int, int]] = []
        for t in range(groups * columns * group):
            mg, no, mr = decode(t, (groups, columns, group))
            if group * mg + mr < rows:
                seen.append((group * mg + mr, no))
        exact = sorted(seen) == list(product(range(rows), range(columns)))
        assert exact == (grid_swizzle_fault(rows, group, groups) is None)


def test_persistence_is_exactly_once_iff_the_side_condition_holds() -> None:
    for tiles, blocks, steps in product(range(1, 20), range(1, 7), range(1, 8)):
        seen = [
            i * blocks + b for b in range(blocks) for i in range(steps) if i * blocks + b < tiles
        ]
        assert (sorted(seen) == list(range(tiles))) == (
            persistent_fault(tiles, blocks, steps) is None
        )


def test_xor_lemma_against_the_swizzle_itself() -> None:
    accepted = 0
    for bits, base, shift in product(range(4), range(4), range(1, 5)):
        swizzle = Swizzle(bits, base, shift)
        for elements in (8, 16, 24, 48, 64, 96, 128, 256):
            image = sorted(swizzle.apply(a) for a in range(elements))
            if xor_fault(bits, base, shift, elements) is None:
                accepted += 1
                assert image == list(range(elements))
                assert all(swizzle.apply(swizzle.apply(a)) == a for a in range(elements))
    assert accepted > 100


def test_xor_matrix_is_the_swizzle() -> None:
    for bits, base, shift in product(range(1, 4), range(3), range(1, 4)):
        rows = xor_matrix(bits, base, shift, 8)
        assert rank(rows) == 8
        for a in range(256):
            result = sum(((row & a).bit_count() & 1) << i for i, row in enumerate(rows))
            assert result == Swizzle(bits, base, shift).apply(a) & 255
    assert rank((3, 5, 6)) == 2


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (xor_fault(1, 0, 0, 16), "the matrix over F2 of swizzle(1, 0, 0) is singular"),
        (xor_fault(2, 0, 1, 16), "swizzle(2, 0, 1) changes the bits that it reads"),
        (xor_fault(3, 3, 3, 72), "72 elements are no multiple of 64"),
    ],
)
def test_xor_fault_says_why(fault: str | None, text: str) -> None:
    assert fault == text


def _points(dims: tuple[Dim, ...], exprs: tuple[Expr, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for values in product(*(range(d.extent.const) for d in dims)):
        bound = {d.name: v for d, v in zip(dims, values, strict=True)}
        found.append(tuple(e.evaluate(bound) for e in exprs))
    return sorted(found)


def test_compact_keeps_every_point() -> None:
    dims = tuple(Dim.of(n, e) for n, e in (("a", 3), ("b", 4), ("c", 2), ("d", 5), ("u", 2)))
    a, b, c, d = (Expr.of(n) for n in "abcd")
    cases = [
        ((a * 8 + b * 2 + c, d), 3),
        ((a * 8 + b * 2 + c, d + c), 4),
        (((a * 8 + b * 2 + c) % 8, d), 4),  # a vanished under the mod: it joins no chain
        ((a * 8 + b * 2 + c, (a * 8 + b * 2 + c) // 4), 4),  # the division let a go
        ((a * 8 + b * 2 + c, (a * 4 + b) % 3, d), 4),
        ((a * 4 + b, c * 5 + d), 3),
        ((a * 4 + b * 2, c * 5 + d), 4),
    ]
    for exprs, count in cases:
        small = compact(dims, exprs)
        assert _points(small.dims, small.exprs) == _points(dims, exprs)
        assert len(small.dims) == count, exprs
        for values in product(*(range(x.extent.const) for x in small.dims)):
            bound = {x.name: v for x, v in zip(small.dims, values, strict=True)}
            full = small.expand(bound)
            assert all(0 <= full[x.name] < x.extent.const for x in dims)
            assert [e.evaluate(bound) for e in small.exprs] == [e.evaluate(full) for e in exprs]
