"""Register layouts: `fault` against the enumeration of every register of every thread."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from math import prod

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tilewright.poly.layout import Layout, LayoutDigit, Place

# The accumulator of MFMA 16x16x16: row 4*(lane/16) + register, column lane mod 16.
ACCUMULATOR = Layout(
    (("m", 16), ("n", 16)),
    (
        LayoutDigit(Place.LANE, 4, "m", 4),
        LayoutDigit(Place.LANE, 16, "n"),
        LayoutDigit(Place.REGISTER, 4, "m"),
    ),
)


def held(layout: Layout) -> Counter[tuple[int, ...]]:
    """How many registers of the block hold each element."""
    numbers = product(*(range(layout.count(place)) for place in Place))
    return Counter(
        tuple(layout.coordinates(warp, lane, register)[axis] for axis in layout.axes)
        for warp, lane, register in numbers
    )


def replication(layout: Layout) -> int:
    return prod(d.extent for d in layout.digits if d.axis is None)


def expected(layout: Layout) -> Counter[tuple[int, ...]]:
    """Each element of the tile, as often as the layout replicates."""
    elements = product(*(range(extent) for _, extent in layout.shape))
    return Counter(dict.fromkeys(elements, replication(layout)))


digits = st.builds(
    LayoutDigit,
    st.sampled_from(Place),
    st.integers(1, 4),
    st.sampled_from(["m", "n", None]),
    st.sampled_from([0, 1, 2, 3, 4, 6, 8]),
)
layouts = st.builds(
    lambda m, n, parts: Layout((("m", m), ("n", n)), tuple(parts)),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.sampled_from([1, 2, 4]),
    st.lists(digits, max_size=5),
)


@st.composite
def chains(draw: st.DrawFn) -> Layout:
    """A layout without fault: each axis a mixed-radix number, its digits placed at random."""
    parts: list[LayoutDigit] = []
    shape: list[tuple[str, int]] = []
    for axis in ("m", "n"):
        stride = 1
        for extent in draw(st.lists(st.integers(1, 4), max_size=3)):
            parts.append(LayoutDigit(draw(st.sampled_from(Place)), extent, axis, stride))
            stride *= extent
        shape.append((axis, stride))
    if draw(st.booleans()):
        parts.append(LayoutDigit(draw(st.sampled_from(Place)), 2, None, 0))
    return Layout(tuple(shape), tuple(draw(st.permutations(parts))))


def witness(fault: str) -> tuple[str, int]:
    found = re.match(r"axis (\w+): element (-?\d+) is ", fault)
    assert found, fault
    return found[1], int(found[2])


def check(layout: Layout) -> None:
    """`fault` is None exactly where each element is held once; else its witness is real."""
    counts = held(layout)
    fault = layout.fault()
    if fault is None:
        assert counts == expected(layout)
        return
    assert counts != expected(layout)
    axis, element = witness(fault)
    where = layout.axes.index(axis)
    line = Counter[int]()
    for coordinate, count in counts.items():
        line[coordinate[where]] += count
    if "is missing" in fault:
        assert 0 <= element < layout.extent(axis)
        assert line[element] == 0
    elif "outside" in fault:
        assert not 0 <= element < layout.extent(axis)
        assert line[element] > 0
    else:
        own = tuple(d for d in layout.digits if d.axis == axis)
        assert "held twice" in fault
        assert held(Layout(((axis, layout.extent(axis)),), own))[(element,)] > 1


@given(layouts)
@settings(max_examples=300)
@example(Layout((("m", 4), ("n", 1)), (LayoutDigit(Place.LANE, 2, "m"),)))
@example(Layout((("m", 4), ("n", 1)), (LayoutDigit(Place.LANE, 8, "m"),)))
@example(Layout((("m", 4), ("n", 1)), (LayoutDigit(Place.LANE, 4, "m", -1),)))
@example(Layout((("m", 4), ("n", 1)), (LayoutDigit(Place.LANE, 2, "m", 2),)))
def test_fault_agrees_with_enumeration(layout: Layout) -> None:
    check(layout)


@given(chains())
def test_mixed_radix_numbers_have_no_fault(layout: Layout) -> None:
    assert layout.fault() is None
    assert held(layout) == expected(layout)


@given(chains(), st.data())
def test_one_changed_digit_is_a_fault(layout: Layout, data: st.DataObject) -> None:
    used = [i for i, d in enumerate(layout.digits) if d.axis is not None and d.extent > 1]
    assume(used)
    where = data.draw(st.sampled_from(used))
    old = layout.digits[where]
    new = LayoutDigit(old.place, old.extent, old.axis, old.stride + 1)
    broken = Layout(layout.shape, (*layout.digits[:where], new, *layout.digits[where + 1 :]))
    assert broken.fault() is not None
    check(broken)


def test_matrix_core_accumulator() -> None:
    assert ACCUMULATOR.fault() is None
    assert ACCUMULATOR.count(Place.LANE) == 64
    assert ACCUMULATOR.count(Place.REGISTER) == 4
    assert ACCUMULATOR.count(Place.WARP) == 1
    for lane, register in product(range(64), range(4)):
        at = ACCUMULATOR.coordinates(0, lane, register)
        assert at == {"m": 4 * (lane // 16) + register, "n": lane % 16}


def test_fault_names_an_axis_that_the_tile_lacks() -> None:
    layout = Layout((("m", 2),), (LayoutDigit(Place.LANE, 2, "m"), LayoutDigit(Place.LANE, 2, "k")))
    assert layout.fault() == "axis k: the tile has no such axis"


@given(chains())
def test_rename_renames_only(layout: Layout) -> None:
    renamed = layout.rename({"m": "row"})
    assert renamed.axes == ("row", "n")
    assert held(renamed) == held(layout)
    assert renamed.rename({"row": "m"}) == layout
    swapped = layout.rename({"m": "n", "n": "m"})
    assert swapped.fault() is None
    assert held(swapped) == held(layout)


@given(chains())
def test_drop_keeps_every_element_of_the_other_axes(layout: Layout) -> None:
    dropped = layout.drop("m")
    assert dropped.axes == ("n",)
    assert dropped.fault() is None
    for place in (Place.LANE, Place.WARP):
        assert dropped.count(place) == layout.count(place)
    kept = {n for (_, n) in held(layout)}
    assert {n for (n,) in held(dropped)} == kept
    # Threads keep the elements they had: dropping an axis moves no data.
    for warp, lane in product(range(layout.count(Place.WARP)), range(layout.count(Place.LANE))):
        before = {
            layout.coordinates(warp, lane, register)["n"]
            for register in range(layout.count(Place.REGISTER))
        }
        after = {
            dropped.coordinates(warp, lane, register)["n"]
            for register in range(dropped.count(Place.REGISTER))
        }
        assert after == before


def test_text() -> None:
    layout = ACCUMULATOR.drop("m")
    assert str(ACCUMULATOR) == "[m:16, n:16] lane:4->4m lane:16->1n register:4->1m"
    assert str(layout) == "[n:16] lane:4->* lane:16->1n"


def test_unknown_axis_has_no_extent() -> None:
    with pytest.raises(KeyError, match="k"):
        ACCUMULATOR.extent("k")
