"""Boxes and operands in shared memory, and what boxes write, against plain enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from bulk_kernels import refutations, related

from tilewright.base.dtypes import f32
from tilewright.kernel.async_ops import BulkLoad, BulkStore, PhaseRef, TensorMap, TileRef
from tilewright.kernel.ops import (
    Body,
    Decode,
    If,
    Kernel,
    Loop,
    MemRef,
    Mode,
    Registers,
    RegRef,
    Shared,
    Store,
    Tensor,
)
from tilewright.kernel.scopes import unrolled_digits
from tilewright.lower.obligations.bulk_boxes import DEPTH, ROW, box_in, tile_steps
from tilewright.poly.expr import Expr, Guard, equal, less
from tilewright.poly.results import Kind, Proved, Refuted

V = Expr.of

# ---------------------------------------------------------------- boxes in buffers

BOXES = (
    ((2, 8, 4), (8, 4)), ((2, 8, 4), (1, 8, 4)), ((2, 8, 4), (16, 4)), ((2, 8, 4), (4, 4)),
    ((2, 4, 2, 4), (8, 4)), ((2, 4, 2, 4), (2, 2, 2, 4)), ((3, 2, 6, 4), (2, 3, 4)),
    ((3, 2, 6, 4), (4, 3, 4)), ((4, 4), (4, 4)), ((4,), (4,)), ((2, 3, 5, 4), (15, 4)),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "box"), BOXES, ids=str)
def test_a_box_is_dense_in_its_buffer(shape: tuple[int, ...], box: tuple[int, ...]) -> None:
    buffer = Shared("s", f32, shape)
    found = box_in(buffer, box)
    assert found is not None
    offsets: dict[tuple[int, ...], int] = {}
    for values in product(*(range(d.extent.const) for d in found.dims)):
        at = dict(zip((d.name for d in found.dims), values, strict=True))
        place = tuple(e.evaluate(at) for e in found.steps)
        assert all(0 <= i < n for i, n in zip(place, shape, strict=True))
        offset = sum(i * s for i, s in zip(place, buffer.strides, strict=True))
        offsets[tuple(e.evaluate(at) for e in found.position)] = offset
    dense = {i: n for n, i in enumerate(product(*map(range, box)))}
    assert offsets == dense


@pytest.mark.parametrize(
    ("shape", "box"),
    [((2, 8, 4), (12, 4)), ((2, 8, 4), (8, 2)), ((2, 6, 4), (4, 4, 4))],
    ids=str,
)
def test_a_box_that_does_not_follow_the_axes(shape: tuple[int, ...], box: tuple[int, ...]) -> None:
    assert box_in(Shared("s", f32, shape), box) is None


@pytest.mark.parametrize(("rows", "depth", "panel"), [(1, 2, -1), (2, 1, -1), (1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("first", [0, 4, 12])
def test_an_operand_goes_on_in_the_next_panel(
    rows: int, depth: int, panel: int, first: int
) -> None:
    buffer, size = Shared("s", f32, (4, 64, 16)), (8, 20) if panel >= 0 else (8, 4)
    tile = TileRef("s", (V(1), V(8), V(first)), rows, depth, panel)
    steps = tile_steps(buffer, tile, size if depth == 2 else size[::-1])
    for r, k in product(range(size[0]), range(size[1])):
        place = [1, 8, first]
        place[1], place[2] = place[1] + r, place[2] + k
        if panel >= 0:
            place[0], place[2] = place[0] + place[2] // 16, place[2] % 16
        at = {ROW: r, DEPTH: k} if depth == 2 else {ROW: k, DEPTH: r}
        got = [(i + s).evaluate(at) for i, s in zip(tile.index, steps, strict=True)]
        assert got == place


# ---------------------------------------------------------------- what boxes write


def writer(shape: tuple[int, int], box: tuple[int, int], grid: int, body: Body) -> Kernel:
    """Stores of boxes to y, in digits b of the block, w of the warp, t of the lane."""
    return Kernel(
        name="writer", target="sm_90a", warp_size=32, warps=2, grid=(V(grid),), symbols=(),
        tensors=(Tensor("y", f32, (V(shape[0]), V(shape[1])), (V(1024), V(1)), Mode.OUT, 16),),
        scalars=(), shared=(Shared("s", f32, box),),
        registers=(Registers("r", f32, (4,)),),
        body=(
            Decode(V("block"), (("b", V(grid)),)),
            Decode(V("warp"), (("w", V(2)),)),
            Decode(V("lane"), (("t", V(32)),)),
            *body,
        ),
        maps=(TensorMap("box", "y", box),),
    )  # fmt: skip


def instances(kernel: Kernel, body: Body, values: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Every element that the body's stores write, once for each time."""
    (declared,), (tensor,) = kernel.maps, kernel.tensors
    sizes = [e.const for e in tensor.shape]
    for s in body:
        match s:
            case Loop(var, extent, inner):
                for turn in range(extent.evaluate(values)):
                    yield from instances(kernel, inner, {**values, var: turn})
            case If(guard, inner) if holds(guard, values):
                yield from instances(kernel, inner, values)
            case BulkStore() | Store():
                over = unrolled_digits(s)
                for digits in product(*(range(n) for _, n in over)):
                    here = {**values, **dict(zip((n for n, _ in over), digits, strict=True))}
                    boxed = isinstance(s, BulkStore)
                    at = s.coordinates if boxed else s.dst.index
                    corner = [e.evaluate(here) for e in at]
                    for step in product(*map(range, declared.box if boxed else (1, 4))):
                        place = tuple(c + x for c, x in zip(corner, step, strict=True))
                        if all(0 <= i < n for i, n in zip(place, sizes, strict=True)):
                            yield place  # type: ignore[misc]
            case _:
                pass


def holds(guard: Guard, values: dict[str, int]) -> bool:
    found = [(c.expr.evaluate(values), c.equality) for c in guard]
    return all(n == 0 if equality else n >= 0 for n, equality in found)


def written(kernel: Kernel) -> Counter[tuple[int, int]]:
    count: Counter[tuple[int, int]] = Counter()
    for b, w, t in product(range(kernel.grid[0].const), range(2), range(32)):
        count.update(instances(kernel, kernel.body, {"b": b, "w": w, "t": t}))
    return count


def some_writer(random: Random) -> Kernel:
    """Boxes at places that are nearly, and now and then exactly, a tiling of the tensor."""
    box = (random.choice((1, 2, 4)), random.choice((4, 8)))
    down, along, grid = random.choice((1, 2, 3)), random.choice((1, 2)), random.choice((1, 2))
    turns = random.choice((1, 2))
    row = V("o") * box[0] + V("b") * (box[0] * down) - random.choice((0, 0, 0, 1))
    column = V("i") * (box[1] * along) + V("c") * box[1] + random.choice((0, 0, 0, 4))
    store = BulkStore((("o", down), ("c", along)), "box", (row, column), MemRef("s", (V(0), V(0))))
    lane = () if random.random() < 0.1 else (equal("t", 0),)
    warp = (equal("w", 0),)
    body: Body = (Loop("i", V(turns), (If((*warp, *lane), (store,)),)),)
    shape = (
        box[0] * down * grid - random.choice((0, 0, 0, 1)),
        box[1] * along * turns - random.choice((0, 0, 2)) + random.choice((0, 0, 0, 4)),
    )
    if random.random() < 0.3:  # the first rows of warp 1 are stored from registers
        guard = (equal("w", 1), equal("t", 0), equal("b", 0))
        plain = Store((), MemRef("y", (V(0), V(0))), RegRef("r", (V(0),)), 4)
        body = (*body, If(guard, (plain,)))
    return writer((max(shape[0], 1), max(shape[1], 4)), box, grid, body)


@pytest.mark.parametrize("seed", range(60))
def test_coverage_is_that_of_enumeration(seed: int) -> None:
    kernel = some_writer(Random(seed))
    count = written(kernel)
    every = set(product(*(range(e.const) for e in kernel.tensors[0].shape)))
    right = set(count) == every and set(count.values()) == {1}
    (result,) = (o.result for o in related(kernel, kinds=(Kind.COVERAGE,)))
    assert isinstance(result, Proved) is right, result
    if not right:
        assert isinstance(result, Refuted)
        assert count[result.witness.element] != 1  # type: ignore[index]


def test_the_seeds_have_both_kinds() -> None:
    ends = Counter(
        type(o.result).__name__
        for seed in range(60) for o in related(some_writer(Random(seed)), kinds=(Kind.COVERAGE,))
    )  # fmt: skip
    assert min(ends["Proved"], ends["Refuted"]) >= 10


def test_a_box_that_the_buffer_does_not_fit_is_open() -> None:
    kernel = writer((12, 4), (12, 4), 1, (If((equal("t", 0), equal("w", 0)), (
        BulkStore((), "box", (V(0), V(0)), MemRef("s", (V(0), V(0), V(0)))),)),))  # fmt: skip
    kernel = replace(kernel, shared=(Shared("s", f32, (2, 8, 4)),))
    found = related(kernel)
    open_ones = {o.kind for o in found if not isinstance(o.result, Proved)}
    assert open_ones == {Kind.BOUNDS, Kind.UNWRITTEN}
    assert "a box does not follow the axes of s" in str(found)


def test_loads_before_the_first_row_read_zeros() -> None:
    """A box that begins before its tensor is legal; one that lies before it is refused."""

    def loading(row: Expr) -> Kernel:
        load = BulkLoad((), MemRef("s", (V(0), V(0))), "box", (row, V(0)), PhaseRef("p", V(0)))
        return writer(
            (8, 4), (4, 4), 4, (If((equal("t", 0), equal("w", 0), less("b", 2)), (load,)),)
        )

    assert not refutations(loading(V("b") * 4 - 3), {}, Kind.BOUNDS)
    (fault,) = refutations(loading(V("b") - 5), {}, Kind.BOUNDS)
    assert fault.message == "every box of the bulk load from y lies outside of y"
    assert fault.witness.element == (-5, 0)
