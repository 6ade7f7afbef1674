"""Each lemma's implementation, broken: compiling refuses it, and the simulator fails on its own.

The code that places the order of tiles, or the kernel that it gave, is changed in one place.
With sizes known at launch only, the sizes of the witness are the ones that are simulated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

import pytest
from test_schedules import gemm, swizzled, tiled

import tilewright as tw
from tilewright.codegen.sim import simulate
from tilewright.driver.compile import Rewrites
from tilewright.driver.trial import relative_error
from tilewright.kernel.ops import Body, Decode, If, Kernel, Loop, Statement, walk
from tilewright.kernel.rewrite import rewrite
from tilewright.lower.obligations import verify
from tilewright.poly.expr import Constraint
from tilewright.poly.lemmas import decode as digits_of
from tilewright.poly.prove import Kind, Obligation, Refuted
from tilewright.schedule.grid import visits
from tilewright.schedule.schedule import Schedule
from tilewright.target import target_named

sys.path.append(str(Path(__file__).parents[1] / "driver"))
from witnesses import JUDGES, arguments

TARGET = target_named("sm_90a")
SIZES = {"M": 90, "N": 50, "K": 40}  # tiles: 3 x 4


@dataclass(frozen=True)
class Fault:
    """A change of the lowered kernel, the classes in which it may be refused, and its schedule."""

    change: Callable[[Kernel], Kernel]
    kinds: tuple[Kind, ...]
    schedule: Callable[[Schedule], Schedule]
    rows: int  # M is a multiple of it: with whole tiles no guard but the edge's keeps rows apart


FAULTS: dict[str, Fault] = {}


def fault(schedule: Callable[[Schedule], Schedule], *kinds: Kind, rows: int = 1):
    def add(change: Callable[[Kernel], Kernel]) -> Callable[[Kernel], Kernel]:
        FAULTS[change.__name__] = Fault(change, kinds, schedule, rows)
        return change

    return add


def changed(kernel: Kernel, change: Callable[[Statement], Statement | None]) -> Kernel:
    """The kernel with its statements changed (None: replaced by its body); at least one is."""
    done: list[Statement] = []

    def visit(s: Statement) -> tuple[Statement, ...]:
        new = change(s)
        if new is not s:
            done.append(s)
        return (new,) if new is not None else s.body if isinstance(s, If) else ()

    result = replace(kernel, body=rewrite(kernel.body, visit))
    assert done
    return result


def guards(s: Statement, name: str) -> bool:
    return isinstance(s, If) and any(name in v for c in s.guard for v in c.expr.variables())


def moved(s: If, by: int) -> If:
    return replace(s, guard=tuple(Constraint(c.expr + by, c.equality) for c in s.guard))


# ---------------------------------------------------------------- merge


@fault(swizzled(0, 7), Kind.BOUNDS, Kind.COVERAGE)
def extents_of_a_merge_swapped(kernel: Kernel) -> Kernel:
    def change(s: Statement) -> Statement:
        if not isinstance(s, Decode) or "turn_block" not in s.source.variables():
            return s
        (a, first), (b, second) = s.digits
        return replace(s, digits=((a, second), (b, first)))

    return changed(kernel, change)


@fault(swizzled(0, 7), Kind.DECODE, Kind.COVERAGE)
def merge_with_a_smaller_radix(kernel: Kernel) -> Kernel:
    def change(s: Statement) -> Statement:
        if not isinstance(s, Decode) or "turn_block" not in s.source.variables():
            return s
        (a, first), (b, second) = s.digits
        return replace(s, digits=((a, first), (b, second - 1)))

    return changed(kernel, change)


# ---------------------------------------------------------------- split with guard


@fault(tiled, Kind.BOUNDS)
def split_of_a_tile_without_its_guard(kernel: Kernel) -> Kernel:
    def change(s: Statement) -> Statement:
        name = getattr(getattr(s, "dst", None), "name", "")
        return replace(s, guard=()) if name == "c" else s

    return changed(kernel, change)


@fault(swizzled(2, 0), Kind.BOUNDS, Kind.COVERAGE, rows=32)
def swizzle_without_its_edge_guard(kernel: Kernel) -> Kernel:
    return changed(kernel, lambda s: None if guards(s, "in_group") else s)


@fault(swizzled(2, 5), Kind.BOUNDS, Kind.COVERAGE, rows=32)
def swizzle_without_its_edge_guard_in_turns(kernel: Kernel) -> Kernel:
    return changed(kernel, lambda s: None if guards(s, "in_group") else s)


@fault(swizzled(2, 5), Kind.COVERAGE)
def edge_guard_one_too_tight(kernel: Kernel) -> Kernel:
    return changed(kernel, lambda s: moved(s, -1) if guards(s, "in_group") else s)


@fault(swizzled(2, 5), Kind.BOUNDS, Kind.COVERAGE, rows=32)
def edge_guard_one_too_wide(kernel: Kernel) -> Kernel:
    return changed(kernel, lambda s: moved(s, 1) if guards(s, "in_group") else s)


# ---------------------------------------------------------------- grid swizzle


@fault(swizzled(2, 5), Kind.BOUNDS, Kind.COVERAGE, Kind.DECODE)
def groups_of_another_size(kernel: Kernel) -> Kernel:
    """The group is decoded by 3 where rows count it by 2."""

    def change(s: Statement) -> Statement:
        if not isinstance(s, Decode) or "turn_block" not in s.source.variables():
            return s
        (a, first), (b, second) = s.digits
        return replace(s, digits=((a, first), (b, second + 1)))

    return changed(kernel, change)


@fault(swizzled(2, 0), Kind.DECODE, Kind.COVERAGE)
def blocks_fewer_than_tiles(kernel: Kernel) -> Kernel:
    return replace(kernel, grid=(kernel.grid[0] - 1, *kernel.grid[1:]))


# ---------------------------------------------------------------- persistence


@fault(swizzled(0, 5), Kind.DECODE, Kind.COVERAGE)
def turns_rounded_down(kernel: Kernel) -> Kernel:
    def change(s: Statement) -> Statement:
        return replace(s, extent=s.extent - 1) if is_turns(s) else s

    return changed(kernel, change)


@fault(swizzled(2, 5), Kind.DECODE)
def guard_of_turns_off_by_one(kernel: Kernel) -> Kernel:
    return changed(kernel, lambda s: moved(s, 1) if guards(s, "turn") else s)


@fault(swizzled(0, 5), Kind.DECODE)
def no_guard_of_turns(kernel: Kernel) -> Kernel:
    return changed(kernel, lambda s: None if guards(s, "turn") else s)


@fault(swizzled(2, 5), Kind.DECODE, Kind.COVERAGE)
def turns_that_overlap(kernel: Kernel) -> Kernel:
    """``t = 4 * i + rank`` with five ranks."""

    def change(s: Statement) -> Statement:
        if isinstance(s, Decode) and "turn_block" in s.source.variables():
            return replace(s, source=s.source - "turn_block")
        if guards(s, "turn") and isinstance(s, If):
            return replace(s, guard=tuple(Constraint(c.expr + "turn_block") for c in s.guard))
        return s

    return changed(kernel, change)


def is_turns(s: Statement) -> bool:
    return isinstance(s, Loop) and s.var.startswith("turn")


# ---------------------------------------------------------------- XOR swizzle


@fault(swizzled(0, 0), Kind.ALIGNMENT)
def swizzle_that_folds(kernel: Kernel) -> Kernel:
    """``a ^ (((a >> base) & mask) << base)`` clears bits: shift 0, fewer than its bits."""
    return _swizzled(kernel, shift=0)


def _swizzled(kernel: Kernel, **fields: int) -> Kernel:
    shared = tuple(
        b if b.swizzle is None else replace(b, swizzle=replace(b.swizzle, **fields))
        for b in kernel.shared
    )
    assert shared != kernel.shared
    return replace(kernel, shared=shared)


# ---------------------------------------------------------------- the judge


def refusal(kernel: Kernel) -> Obligation:
    return next(o for o in verify(kernel, TARGET) if isinstance(o.result, Refuted))


def fails(wrong: Kernel, sizes: dict[str, int]) -> bool:
    """Whether the simulator refuses the kernel, or its results are wrong."""
    arrays, wanted, allowed = arguments(gemm.compile("sm_90a", sizes))
    try:
        simulate(wrong, TARGET, arrays, {})
    except tw.TilewrightError:
        return True
    return any(not relative_error(arrays[n], w) <= allowed for n, w in wanted.items())


def compiled(case: Fault, sizes: dict[str, int] | None, rewrites: Rewrites | None = None):
    return gemm.compile(
        "sm_90a", sizes, schedule=case.schedule, rewrites=rewrites, multiples={"M": case.rows}
    )


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_refused_and_fails(name: str) -> None:
    case = FAULTS[name]
    sizes = SIZES | {"M": -(-SIZES["M"] // case.rows) * case.rows}
    with pytest.raises(tw.TilewrightError):
        compiled(case, sizes, Rewrites(kernel=case.change))
    right = compiled(case, sizes)
    wrong = case.change(right.compilation.kernel)
    found = refusal(wrong)
    assert found.kind in case.kinds
    if found.kind in (Kind.BOUNDS, Kind.COVERAGE):
        JUDGES[found.kind](right, wrong, found)
    assert fails(wrong, sizes)


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_refused_and_fails_with_open_sizes(name: str) -> None:
    case = FAULTS[name]
    with pytest.raises(tw.TilewrightError):
        compiled(case, None, Rewrites(kernel=case.change))
    wrong = case.change(compiled(case, None).compilation.kernel)
    found = refusal(wrong)
    assert found.kind in case.kinds
    result = found.result
    assert isinstance(result, Refuted)
    sizes = dict(result.witness.symbols) or SIZES
    for symbol in wrong.symbols:
        if symbol.product and symbol.name in sizes:
            assert sizes[symbol.name] == prod(f.evaluate(sizes) for f in symbol.product)
    assert fails(wrong, {n: sizes[n] for n in SIZES}), (result, sizes)


def test_another_order_of_digits_is_another_order_of_tiles() -> None:
    """It is still a bijection, so nothing is refused and the results are right: only the order
    that the plan states is not kept. Enumeration of the lowered decodes against the plan tells."""
    schedule = swizzled(2, 5)

    def reordered(kernel: Kernel) -> Kernel:
        def change(s: Statement) -> Statement:
            if isinstance(s, Decode) and str(s.source).startswith("mo_group"):
                return replace(s, digits=(s.digits[1], s.digits[0]))
            return s

        return changed(kernel, change)

    right = gemm.compile("sm_90a", SIZES, schedule=schedule)
    wrong = gemm.compile("sm_90a", SIZES, schedule=schedule, rewrites=Rewrites(kernel=reordered))
    assert not fails(wrong.compilation.kernel, SIZES)
    planned = [(*v.leaves, v.tile["M"], v.tile["N"]) for v in visits(right.compilation.plan.grid)]
    assert list(lowered_visits(right.compilation.kernel)) == planned
    assert sorted(lowered_visits(wrong.compilation.kernel)) != sorted(planned)


def lowered_visits(kernel: Kernel) -> Iterator[tuple[int, ...]]:
    """(turn, rank, M tile, N tile) of every tile, as the loops and decodes of the kernel run."""
    (turns,) = (s for s in walk(kernel.body) if is_turns(s))
    assert isinstance(turns, Loop)
    for turn, rank in product(range(turns.extent.const), range(kernel.grid[0].const)):
        values = {"turn_block": turn, "rank_block": rank}
        if (tile := _tile(turns.body, values)) is not None:
            yield turn, rank, *tile


def _tile(body: Body, values: dict[str, int]) -> tuple[int, int] | None:
    for s in body:
        match s:
            case If(guard=guard):
                if all(c.expr.evaluate(values) >= 0 for c in guard):
                    return _tile(s.body, values)
                return None
            case Decode(source=source, digits=digits):
                numbers = digits_of(source.evaluate(values), [e.const for _, e in digits])
                values |= dict(zip((n for n, _ in digits), numbers, strict=True))
            case _:
                break
    return 2 * values["mo_group_block"] + values["mo_in_group_block"], values["n_block"]
