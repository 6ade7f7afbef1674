"""Faults seeded into the hand-built product: each is refused, with its kind and an element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from bulk_kernels import (
    SMALL,
    TILE_M,
    TILE_N,
    OpenRows,
    axes,
    gemm,
    open_rows,
    refutations,
    related,
    sized,
)
from proof_kernels import rewrite

from tilewright.base.diagnostics import CoverageError, ElementError
from tilewright.kernel.async_ops import BulkLoad, BulkStore, WarpgroupMma
from tilewright.kernel.ops import (
    Assign,
    Body,
    Cast,
    Decode,
    If,
    Kernel,
    Loop,
    Read,
    ReducedAxis,
    RegRef,
    Statement,
    Store,
)
from tilewright.lower.obligations import raise_first_refuted
from tilewright.poly.expr import Expr, at_least
from tilewright.poly.results import Kind, Refuted, Unknown

V = Expr.of
RIGHT = gemm(SMALL)
Change = Callable[[Any], Statement | Body]


def changed(chosen: Callable[[Statement], bool], change: Change, *, number: int = 0) -> Kernel:
    """The product with the `number`-th of the chosen statements changed."""
    seen: list[Statement] = []

    def visit(s: Statement) -> Statement | Body:
        if chosen(s):
            seen.append(s)
            if len(seen) == number + 1:
                return change(s)
        return s

    result = rewrite(RIGHT, visit)
    assert len(seen) > number, "nothing was changed"
    return result


def load(name: str, change: Change) -> Kernel:
    return changed(lambda s: isinstance(s, BulkLoad) and s.map == name, change)


def store(change: Change) -> Kernel:
    return changed(lambda s: isinstance(s, BulkStore), change)


def multiply(change: Change) -> Kernel:
    return changed(lambda s: isinstance(s, WarpgroupMma), change)


def loop(name: str, extent: Expr, number: int) -> Kernel:
    of = lambda s: isinstance(s, Loop) and s.var == name  # noqa: E731
    return changed(of, lambda s: replace(s, extent=extent), number=number)


def starts(guard: Expr) -> Kernel:
    """The sum goes on where the expression is positive."""
    return multiply(lambda s: replace(s, accumulate=(at_least(guard, 1),)))


def at(s: Any, axis: int, index: Expr) -> Any:
    """A reference with another index on one axis."""
    return replace(s, index=(*s.index[:axis], index, *s.index[axis + 1 :]))


STEP = V("kq") * 4 + "s"
FAULTS: dict[str, tuple[Kernel, Kind, str, tuple[int, ...]]] = {
    "panels that are not stored": (
        loop("j", V(3), 0), Kind.COVERAGE, "columns 192 to 511 of c are never written", (0, 192),
    ),
    "a store by every thread": (
        changed(lambda s: isinstance(s, If) and any(isinstance(x, BulkStore) for x in s.body),
                lambda s: s.body),
        Kind.COVERAGE, "c[0, 0] is written more than once", (0, 0),
    ),
    "a store at the wrong rows": (
        store(lambda s: replace(s, coordinates=(s.coordinates[0] + 64, s.coordinates[1]))),
        Kind.COVERAGE, "rows 0 to 63 of c are never written", (0, 0),
    ),
    "tiles that no block takes": (
        loop("i", V(2), 1), Kind.COVERAGE,
        "columns 256 to 511 in rows 256 to 511 of c are never written", (256, 256),
    ),
    "boxes that end before the tensor": (
        sized(RIGHT, SMALL, m=520), Kind.COVERAGE, "rows 512 to 519 of c are never written",
        (512, 0),
    ),
    "more roles than warps": (
        changed(lambda s: isinstance(s, Decode) and s.source == V("thread"),
                lambda s: replace(s, digits=(("role", V(4)), *s.digits[1:]))),
        Kind.DECODE, "thread: the digits run over 512 values, their source over 384", (),
    ),
    "a slot past the ring": (
        load("box_a", lambda s: replace(s, dst=at(s.dst, 0, V("s") + 1))),
        Kind.BOUNDS, "sa[4, 0, 0] is outside: axis 0 has 4 elements", (4, 0, 0),
    ),
    "rows past the slot": (
        multiply(lambda s: replace(s, a=at(s.a, 1, V("role") * 64))),
        Kind.BOUNDS, "sa[0, 128, 0] is outside: axis 1 has 128 elements", (0, 128, 0),
    ),
    "registers past the accumulator": (
        multiply(lambda s: replace(s, d=RegRef("d", (V(128),)))),
        Kind.BOUNDS, "d[128] is outside: axis 0 has 128 elements", (128,),
    ),
    "a panel past the buffer": (
        store(lambda s: replace(s, src=at(s.src, 0, V("role")))),
        Kind.BOUNDS, "sc[2, 0, 0, 0] is outside: axis 0 has 2 elements", (2, 0, 0, 0),
    ),
    "boxes that all miss the tensor": (
        load("box_b", lambda s: replace(s, coordinates=(s.coordinates[0] + 512, V(0)))),
        Kind.BOUNDS, "every box of the bulk load from b lies outside of b", (512, 0),
    ),
    "a box within the swizzle's pattern": (
        store(lambda s: replace(s, src=at(s.src, 2, V("j")))),
        Kind.ALIGNMENT,
        "the bulk store from sc begins at sc[0, 1, 1, 0], 128 bytes past a multiple of 1024",
        (0, 1, 1, 0),
    ),
    "an operand within a piece": (
        multiply(lambda s: replace(s, a=at(s.a, 2, s.a.index[2] + 4))),
        Kind.ALIGNMENT,
        (
            "the matrix instruction's read from sa begins at sa[0, 0, 4], "
            "8 bytes past a multiple of 16"
        ),
        (0, 0, 4),
    ),
    "a box in another order than its buffer": (
        replace(RIGHT, maps=(*RIGHT.maps[:2], replace(RIGHT.maps[2], swizzle=64))),
        Kind.ALIGNMENT, "sc has a swizzle of 128 bytes, box_c one of 64", (),
    ),
    "rows that are no pieces of 16 bytes": (
        sized(RIGHT, SMALL, k=500), Kind.ALIGNMENT,
        "the stride 500 of a is no multiple of 16 bytes", (),
    ),
    "a sum begun late": (
        starts(STEP + "kk" - 1), Kind.REDUCTION,
        "the sum in d[0] is begun again: its terms of k before are lost", (0,),
    ),
    "a sum begun in every step": (
        starts(V("kk")), Kind.REDUCTION,
        "the sum in d[0] is begun again: its terms of k before are lost", (0,),
    ),
    "a sum that nothing begins": (
        starts(V("kk") + 1), Kind.UNWRITTEN,
        "d[0] is added to before anything begins its sum", (0,),
    ),
    "a sum begun by the first tile alone": (
        starts(STEP + "kk" + "i"), Kind.UNWRITTEN,
        "d[0] is added to before anything begins its sum", (0,),
    ),
    "a sum without a beginning": (
        multiply(lambda s: replace(s, accumulate=())), Kind.UNWRITTEN,
        "the register d[0] is read before anything assigns it", (0,),
    ),
    "terms counted again": (
        multiply(lambda s: replace(s, reduces=(
            ReducedAxis("k", V(512), V("kq") * 256 + V("kk") * 16),))),
        Kind.REDUCTION, "k = 0 is counted more than once into d[0]", (0, 0, 1, 0, 0, 0, 0, 0, 0),
    ),
    "terms shared by the roles": (
        multiply(lambda s: replace(s, over=(("kk", 2),), reduces=(
            ReducedAxis("k", V(512), STEP * 64 + V("kk") * 32 + V("role") * 16 - 16),))),
        Kind.REDUCTION, "the partial results of d at different role are never combined", (),
    ),
    "terms left out": (
        multiply(lambda s: replace(s, over=(("kk", 3),))),
        Kind.REDUCTION, "k = 48 to 511 is never counted into d", (0, 0, 1, 0, 0, 0, 0, 0, 48),
    ),
    "another slot than the one filled": (
        multiply(lambda s: replace(s, b=at(s.b, 0, (V("s") + 1) % 4))),
        Kind.UNWRITTEN, "sb[1, 0, 0] is read before any turn has loaded it", (1, 0, 0),
    ),
    "half of a tile loaded": (
        replace(RIGHT, maps=(replace(RIGHT.maps[0], box=(64, 64)), *RIGHT.maps[1:])),
        Kind.UNWRITTEN, "sa[0, 64, 0] is read before any turn has loaded it", (0, 64, 0),
    ),
    "a panel half filled": (
        changed(lambda s: isinstance(s, Store),
                lambda s: replace(s, over=(("nq", 2), *s.over[1:]))),
        Kind.UNWRITTEN, "sc[0, 0, 0, 32] is read before anything writes it", (0, 0, 0, 32),
    ),
    "the next step's tile": (
        load("box_b", lambda s: replace(s, coordinates=(
            s.coordinates[0], s.coordinates[1] + 64))),
        Kind.ELEMENT, "b is loaded at k = 64 where k = 0 is wanted", (64, 0),
    ),
    "another tile's rows": (
        load("box_a", lambda s: replace(s, coordinates=(V("i") * 128, s.coordinates[1]))),
        Kind.ELEMENT, "a is loaded at m = 0 where m = 128 is wanted", (0, 128),
    ),
    "one slot for every step": (
        multiply(lambda s: replace(s, b=at(s.b, 0, V(0)))),
        Kind.ELEMENT, "sb[0, 0, 0] is read for n = 0, k = 64, which no turn loads there",
        (0, 0, 0),
    ),
    "tiles outside the tensor": (
        load("box_b", lambda s: replace(s, coordinates=(s.coordinates[0] + 512, V(0)))),
        Kind.ELEMENT, "zeros for b[512, 0], which is outside, where n = 0, k = 0 is wanted",
        (512, 0),
    ),
    "a panel at another panel's place": (
        store(lambda s: replace(s, coordinates=(
            s.coordinates[0], V("no") * 256 + 192 - V("j") * 64))),
        Kind.ELEMENT, "b is loaded at n = 0 where n = 192 is wanted", (0, 192),
    ),
    "another warpgroup's rows": (
        multiply(lambda s: replace(s, a=at(s.a, 1, V(128) - V("role") * 64))),
        Kind.ELEMENT, "a is loaded at m = 0 where m = 64 is wanted", (0, 64),
    ),
    "registers in another order": (
        changed(lambda s: isinstance(s, Assign),
                lambda s: replace(s, dst=RegRef("panel", (V(31) - V("x"),)))),
        Kind.ELEMENT, "a is loaded at m = 0 where m = 8 is wanted", (0, 8),
    ),
    "the panel before": (
        changed(lambda s: isinstance(s, Assign),
                lambda s: replace(s, value=Cast(Read(
                    RegRef("d", (V(96) - V("j") * 32 + "x",)), s.value.value.dtype),
                    s.value.dtype))),
        Kind.ELEMENT, "b is loaded at n = 64 where n = 128 is wanted", (64, 128),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(name: str) -> None:
    kernel, kind, message, element = FAULTS[name]
    found = {r.message: r for r in refutations(kernel, axes(SMALL), kind)}
    assert message in found, list(found)
    assert found[message].witness.element == element


def test_an_operand_read_as_it_does_not_lie() -> None:
    """The tensor has k first, the kernel takes it for rows of k."""
    found = refutations(RIGHT, {**axes(SMALL), "a": ("k", "m")}, Kind.ELEMENT)
    assert [r.message for r in found] == ["a is loaded at k = 0 where k = 1 is wanted"]


def test_turns_that_differ_are_open() -> None:
    """One turn of the ring fewer in the producer: nothing says which load a read belongs to."""
    found = related(loop("kq", V(1), 0), axes(SMALL))
    reasons = {o.result.reason for o in found if isinstance(o.result, Unknown)}
    both = "the loop over kq has 1 turns, kq 2"
    assert reasons == {f"the turns of the roles do not correspond: {both}"}


def test_a_read_that_an_earlier_turn_serves_is_open() -> None:
    """Only the first turn's tiles are loaded: later turns find what it left, perhaps rightly."""
    once = load("box_a", lambda s: If((at_least(0, V("kq")),), (s,)))
    found = [o.result for o in related(once, axes(SMALL), (Kind.UNWRITTEN,))]
    assert not any(isinstance(r, Refuted) for r in found)
    assert Unknown("sa is read in a turn that does not load it") in found
    (fault,) = refutations(once, axes(SMALL), Kind.ELEMENT)
    assert fault.message == "sa[0, 0, 0] is read for m = 0, k = 256, which no turn loads there"


def test_errors_name_the_fault_and_the_mend() -> None:
    coverage, element = FAULTS["panels that are not stored"][0], FAULTS["the next step's tile"][0]
    with pytest.raises(CoverageError, match="columns 192 to 511 of c are never written"):
        raise_first_refuted(related(coverage, axes(SMALL)))
    with pytest.raises(ElementError, match="load each element at the coordinates"):
        raise_first_refuted(related(element, axes(SMALL)))


@dataclass(frozen=True)
class WholeGroups(OpenRows):
    """Counts the groups of tiles that lie in M as a whole."""

    @property
    def tiles(self) -> tuple[int, int]:
        groups = (V("M") + 1) // (TILE_M * self.group)
        return groups * self.group, self.n // TILE_N  # type: ignore[return-value]


def test_rows_that_only_some_sizes_have() -> None:
    plan = WholeGroups(V("M"), 512, 512, group=2, blocks=3)  # type: ignore[arg-type]
    (fault,) = refutations(open_rows(plan), axes(plan), Kind.COVERAGE)
    rows = fault.witness.element[0]
    sizes = dict(fault.witness.symbols)
    assert rows >= (sizes["M"] + 1) // 256 * 256
    assert rows < sizes["M"]
    assert "never written" in fault.message


def test_coordinates_past_32_bits() -> None:
    far = load("box_a", lambda s: replace(s, coordinates=(V("i") * 2**31, s.coordinates[1])))
    (fault,) = refutations(far, axes(SMALL), Kind.INDEX_WIDTH)
    assert fault.message == "the coordinates a[2147483648, 0] pass 32 bits"
