"""Bijection lemmas: facts about digits that isl need not, or cannot, find again.

Each lemma states its side conditions. A function named ``.._fault`` checks them and says what
fails, or returns None where the lemma applies. The tests enumerate every lemma over many sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.poly.expr import Div, Expr, Mod
from tilewright.poly.sets import Dim

# ---------------------------------------------------------------- merge (mixed radix)


def radix(digits: Sequence[tuple[str, int | Expr]]) -> Expr | None:
    """The number that the digits write, most significant first.

    None where a digit but the first has a symbolic extent: the number is then not affine.
    """
    total, weight = Expr.of(0), 1
    for position, (name, extent) in reversed(list(enumerate(digits))):
        total = total + Expr.of(name) * weight
        if position == 0:
            break
        size = Expr.of(extent)
        if not size.is_const:
            return None
        weight *= size.const
    return total


def decode(value: int, extents: Sequence[int]) -> tuple[int, ...]:
    """The digits of `value`, most significant first; the first takes what is left."""
    digits: list[int] = []
    for extent in reversed(extents[1:]):
        value, digit = divmod(value, extent)
        digits.append(digit)
    return (value, *reversed(digits)) if extents else ()


Products = Mapping[str, tuple[Expr, ...]]  # symbols that stand for a product of sizes


def merge_fault(
    count: Sequence[Expr], extents: Sequence[Expr], products: Products | None = None
) -> str | None:
    """Merge: digits of these extents write each t in [0, product(count)) exactly once.

    Side condition: product(count) == product(extents). It is decided by cancelling equal
    factors, then constants; at most one factor that is symbolic may differ in form.
    """
    left, left_rest = _factors(count, products or {})
    right, right_rest = _factors(extents, products or {})
    for factor in tuple(left_rest):
        if factor in right_rest:
            left_rest.remove(factor)
            right_rest.remove(factor)
    if len(left_rest) <= 1 and len(right_rest) <= 1:
        one = Expr.of(1)
        a = (left_rest[0] if left_rest else one) * left
        b = (right_rest[0] if right_rest else one) * right
        if a == b:
            return None
    return f"the digits run over {_product(extents)} values, their source over {_product(count)}"


def _product(exprs: Sequence[Expr]) -> str:
    const, rest = _factors(exprs, {})
    factors = [str(const)] if const != 1 or not rest else []
    factors += [f"({f})" if f.const or not _is_name(f) else str(f) for f in rest]
    return "*".join(factors)


def _is_name(expr: Expr) -> bool:
    return len(expr.terms) == 1 and isinstance(expr.terms[0][0], str)


def _factors(exprs: Sequence[Expr], products: Products) -> tuple[int, list[Expr]]:
    """The constant factor and the symbolic ones, products written out."""
    const, rest = 1, list[Expr]()
    waiting = list(exprs)
    while waiting:
        expr = waiting.pop(0)
        if expr.is_const:
            const *= expr.const
        elif len(expr.terms) == 1 and not expr.const:
            ((term, coefficient),) = expr.terms
            const *= coefficient
            if isinstance(term, str) and term in products:
                waiting = [*products[term], *waiting]
            else:
                rest.append(Expr(((term, 1),)))
        else:
            rest.append(expr)
    return const, rest


# ---------------------------------------------------------------- chains of digits


@dataclass(frozen=True, slots=True)
class Compact:
    """Fewer dims for the same points: `high * extent + low` became one dim.

    The dims of `merges` are undone by `expand`.
    """

    dims: tuple[Dim, ...]
    exprs: tuple[Expr, ...]
    merges: tuple[tuple[str, str, str, int], ...]  # merged, high, low, extent of low

    def expand(self, values: Mapping[str, int]) -> dict[str, int]:
        """Values of the original dims."""
        result = dict(values)
        for merged, high, low, extent in reversed(self.merges):
            result[high], result[low] = divmod(result.pop(merged), extent)
        return result


def compact(dims: Sequence[Dim], exprs: Sequence[Expr]) -> Compact:
    """Merge digits that every expression uses only in one number.

    Lemma (merge): if ``a`` and ``b`` occur everywhere as ``c * (extent(b) * a + b)``, then
    ``t = extent(b) * a + b`` runs over [0, extent(a) * extent(b)) exactly once, and every
    expression is one of t. Side conditions: extent(b) is a number, and neither extent uses the
    other digit. Under a mod, coefficients count modulo its divisor.
    """
    rows = [row for e in (*exprs, *(d.extent for d in dims)) for row in _rows(e)]
    moduli = tuple(den for _, den in rows)
    columns = {d.name: tuple(row.get(d.name, 0) for row, _ in rows) for d in dims}
    extents = {d.name: d.extent for d in dims}
    merges: list[tuple[str, str, str, int]] = []
    becomes: dict[str, Expr | int | str] = {}
    while (pair := _mergeable(columns, extents, moduli)) is not None:
        high, low = pair
        merged, size = f"{high}.{low}", extents[low].const
        lowest = next((n for n, m in becomes.items() if m == low), low)
        becomes |= {n: 0 for n, m in becomes.items() if m == high} | {high: 0, lowest: merged}
        merges.append((merged, high, low, size))
        columns[merged], extents[merged] = columns[low], extents[high] * size
        for name in (high, low):
            del columns[name], extents[name]
    if not merges:
        return Compact(tuple(dims), tuple(exprs), ())
    left = tuple(Dim(n, e.substitute(becomes)) for n, e in extents.items())
    return Compact(left, tuple(e.substitute(becomes) for e in exprs), tuple(merges))


def _mergeable(
    columns: Mapping[str, tuple[int, ...]],
    extents: Mapping[str, Expr],
    moduli: tuple[int | None, ...],
) -> tuple[str, str] | None:
    plain = not any(moduli)
    where = {column: name for name, column in columns.items()}
    for low, column in columns.items():
        if not extents[low].is_const or not any(column):
            continue
        wanted = tuple(c * extents[low].const for c in column)
        high = where.get(wanted)
        if high is not None and high != low:
            return high, low
        if plain:
            continue
        exact = [(i, c) for i, c in enumerate(wanted) if moduli[i] is None]
        for high, other in columns.items():
            if high == low or any(other[i] != c for i, c in exact):
                continue
            if _same(other, wanted, moduli):
                return high, low
    return None


def _same(left: tuple[int, ...], right: tuple[int, ...], moduli: tuple[int | None, ...]) -> bool:
    return any(left) and all(
        a == b or (den is not None and (a - b) % den == 0)
        for a, b, den in zip(left, right, moduli, strict=True)
    )


def _rows(expr: Expr, modulus: int | None = None) -> Iterator[tuple[dict[str, int], int | None]]:
    """The affine parts of an expression with the modulus under which they are read."""
    yield {t: c for t, c in expr.terms if isinstance(t, str)}, modulus
    for term, _ in expr.terms:
        match term:
            case Div(num, _):
                yield from _rows(num)
            case Mod(num, den):
                yield from _rows(num, den)
            case str():
                pass


# ---------------------------------------------------------------- split, grid swizzle, persistence


def split_fault(extent: int, factor: int, outer: int) -> str | None:
    """Split with a guard: ``x = factor*o + i`` over 0 <= o < outer, 0 <= i < factor, x < extent.

    It gives each x in [0, extent) exactly once. Side conditions: factor > 0 and
    outer * factor >= extent.
    """
    if factor <= 0:
        return f"the factor is {factor}"
    if outer * factor < extent:
        return f"{outer} steps of {factor} end before {extent}"
    return None


def grid_swizzle_fault(rows: int, group: int, groups: int) -> str | None:
    """Grid swizzle: ``t = (mg*columns + no)*group + mr`` and ``mo = group*mg + mr``.

    Over t in [0, groups*columns*group) with the edge guard mo < rows it gives each (mo, no) of
    rows x columns exactly once. It is merge, then split with guard: the side condition is the
    latter's.
    """
    return split_fault(rows, group, groups)


def persistent_fault(tiles: int, blocks: int, steps: int) -> str | None:
    """Persistence: ``t = i*blocks + block`` over i < steps, block < blocks, with t < tiles.

    It gives each t in [0, tiles) exactly once. Side conditions: blocks > 0 and
    steps * blocks >= tiles.
    """
    return split_fault(tiles, blocks, steps)


# ---------------------------------------------------------------- XOR swizzle


def xor_matrix(bits: int, base: int, shift: int, width: int) -> tuple[int, ...]:
    """The swizzle ``a ^ (((a >> (base+shift)) & (2**bits-1)) << base)`` as a matrix over F2.

    Row i, a bit mask of `width` columns, gives the address bits whose sum is bit i of the result.
    """
    rows: list[int] = []
    for i in range(width):
        row = 1 << i
        if base <= i < base + bits and i + shift < width:
            row ^= 1 << (i + shift)
        rows.append(row)
    return tuple(rows)


def rank(rows: Sequence[int]) -> int:
    """The rank over F2 of the rows, given as bit masks."""
    basis: list[int] = []
    for row in rows:
        for vector in basis:
            row = min(row, row ^ vector)
        if row:
            basis.append(row)
    return len(basis)


def xor_fault(bits: int, base: int, shift: int, elements: int) -> str | None:
    """XOR swizzle: it permutes [0, elements).

    Side conditions: its matrix over F2 has full rank, and `elements` is a multiple of
    2**(base+bits), so that no aligned run of that length leaves the buffer.
    """
    width = max(base + bits + abs(shift), max(elements - 1, 1).bit_length())
    if rank(xor_matrix(bits, base, shift, width)) < width:
        return f"the matrix over F2 of swizzle({bits}, {base}, {shift}) is singular"
    if shift < bits:
        return f"swizzle({bits}, {base}, {shift}) changes the bits that it reads"
    if elements % (1 << (base + bits)):
        return f"{elements} elements are no multiple of {1 << (base + bits)}"
    return None
