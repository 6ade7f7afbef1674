"""Rows of the instruction tables: enumerated, compared with known positions, and multiplied out."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from tilewright.base.diagnostics import UnsupportedError
from tilewright.base.dtypes import f8e4m3, f8e4m3fnuz
from tilewright.poly.layout import Layout, Place
from tilewright.target import ALL_TARGETS, target_named
from tilewright.target.model import MmaAtom, Scope, Source, Target

ROWS = [(target, atom) for target in ALL_TARGETS for atom in target.mma_atoms]
# Every warp row, and of the warpgroup rows (which differ in n alone) the ends and two between.
SAMPLED = [r for r in ROWS if r[1].scope is Scope.WARP or r[1].n in (8, 24, 128, 256)]


def ids(row: tuple[Target, MmaAtom]) -> str:
    return f"{row[0].name}-{row[1].name}"


def register_operands(atom: MmaAtom) -> list[tuple[str, Layout]]:
    operands = [("d", atom.d)]
    if atom.a_source is Source.REGISTER:
        operands.append(("a", atom.a))
    if atom.b_source is Source.REGISTER:
        operands.append(("b", atom.b))
    return operands


def threads(target: Target, atom: MmaAtom) -> list[tuple[int, int]]:
    warps = 4 if atom.scope is Scope.WARPGROUP else 1
    return list(product(range(warps), range(target.warp_size)))


@pytest.mark.parametrize("row", SAMPLED, ids=ids)
def test_every_element_of_an_operand_is_held_exactly_once(row: tuple[Target, MmaAtom]) -> None:
    target, atom = row
    for name, layout in register_operands(atom):
        held = Counter(
            tuple(layout.coordinates(warp, lane, register).values())
            for warp, lane in threads(target, atom)
            for register in range(layout.count(Place.REGISTER))
        )
        tile = product(*(range(extent) for _, extent in layout.shape))
        assert held == Counter(tile), f"operand {name}"


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_the_places_of_a_row_match_its_scope_and_shape(row: tuple[Target, MmaAtom]) -> None:
    target, atom = row
    shapes = {
        "a": {"m": atom.m, "k": atom.k},
        "b": {"n": atom.n, "k": atom.k},
        "d": {"m": atom.m, "n": atom.n},
    }
    for name, layout in (("a", atom.a), ("b", atom.b), ("d", atom.d)):
        assert dict(layout.shape) == shapes[name]
    for _, layout in register_operands(atom):
        assert layout.fault() is None
        assert layout.count(Place.LANE) == target.warp_size
        assert layout.count(Place.WARP) == (4 if atom.scope is Scope.WARPGROUP else 1)
    if atom.b_source is Source.SHARED:
        assert atom.b.digits == ()


@pytest.mark.parametrize("row", SAMPLED, ids=ids)
def test_a_product_through_the_layouts_equals_matmul(row: tuple[Target, MmaAtom]) -> None:
    target, atom = row
    generator = np.random.default_rng(7)
    a = generator.integers(-8, 8, (atom.m, atom.k)).astype(np.int64)
    b = generator.integers(-8, 8, (atom.n, atom.k)).astype(np.int64)
    everyone = threads(target, atom)

    def gather(layout: Layout, tile: np.ndarray) -> np.ndarray:
        """The tile as threads hold it, then put together again as the hardware sees it."""
        if not layout.digits:
            return tile
        seen = np.zeros_like(tile)
        for warp, lane in everyone:
            for register in range(layout.count(Place.REGISTER)):
                at = layout.coordinates(warp, lane, register)
                index = tuple(at[axis] for axis in layout.axes)
                seen[index] += tile[index]
        return seen

    d = gather(atom.a, a) @ gather(atom.b, b).T
    assert np.array_equal(gather(atom.d, d), a @ b.T)


def nvidia(name: str) -> MmaAtom:
    atom = target_named("sm_90a").atom(name)
    assert atom is not None
    return atom


def amd(name: str, target: str = "gfx942") -> MmaAtom:
    atom = target_named(target).atom(name)
    assert atom is not None
    return atom


def all_positions(layout: Layout, warps: int, lanes: int) -> list[tuple[int, ...]]:
    return [
        tuple(layout.coordinates(warp, lane, register).values())
        for warp in range(warps)
        for lane in range(lanes)
        for register in range(layout.count(Place.REGISTER))
    ]


def test_m16n8k16_lane_5_register_3_of_a() -> None:
    a = nvidia("mma.sync.m16n8k16.f32.f16").a
    assert a.coordinates(0, 5, 3) == {"m": 1 + 8, "k": 3}


# The formulas of the PTX ISA: i numbers a fragment's elements, g = lane / 4, t = lane % 4.
@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        (
            "mma.sync.m16n8k16.f32.bf16",
            lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + 8 * (i >= 4)),
            lambda g, t, i: (g, t * 2 + (i & 1) + 8 * (i >= 2)),
        ),
        (
            "mma.sync.m16n8k8.f32.f16",
            lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
            lambda g, t, i: (g, t * 2 + i),
        ),
        (
            "mma.sync.m16n8k8.f32.tf32",
            lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
            lambda g, t, i: (g, t if i == 0 else t + 4),
        ),
        (
            "mma.sync.m16n8k32.s32.s8",
            lambda g, t, i: (
                g if i < 4 or 8 <= i < 12 else g + 8,
                t * 4 + (i & 3) + (16 if i >= 8 else 0),
            ),
            lambda g, t, i: (g, t * 4 + (i & 3) + (16 if i >= 4 else 0)),
        ),
    ],
)
def test_mma_sync_matches_the_ptx_formulas(name: str, a, b) -> None:
    atom = nvidia(name)
    lanes = [(lane // 4, lane % 4) for lane in range(32)]
    for layout, formula in ((atom.a, a), (atom.b, b)):
        registers = layout.count(Place.REGISTER)
        expected = [formula(g, t, i) for g, t in lanes for i in range(registers)]
        assert all_positions(layout, 1, 32) == expected
    expected = [(g if i < 2 else g + 8, t * 2 + (i & 1)) for g, t in lanes for i in range(4)]
    assert all_positions(atom.d, 1, 32) == expected


def test_the_double_atom_holds_one_element_of_each_operand() -> None:
    atom = nvidia("mma.sync.m8n8k4.f64.f64")
    assert atom.a.coordinates(0, 13, 0) == {"m": 3, "k": 1}
    assert atom.b.coordinates(0, 13, 0) == {"n": 3, "k": 1}
    assert atom.d.coordinates(0, 13, 1) == {"m": 3, "n": 3}


def test_wgmma_rows_match_the_ptx_formulas() -> None:
    atom = nvidia("wgmma.m64n96k16.f32.f16.rs")
    everyone = list(product(range(4), range(8), range(4)))
    assert all_positions(atom.d, 4, 32) == [
        (16 * w + g + 8 * ((i >> 1) & 1), 8 * (i >> 2) + 2 * t + (i & 1))
        for w, g, t in everyone
        for i in range(48)
    ]
    assert all_positions(atom.a, 4, 32) == [
        (16 * w + g + 8 * ((i >> 1) & 1), 8 * (i >> 2) + 2 * t + (i & 1))
        for w, g, t in everyone
        for i in range(8)
    ]
    assert nvidia("wgmma.m64n96k16.f32.f16").a.digits == ()


def test_a_wgmma_accumulator_is_the_next_operand_from_registers() -> None:
    d = nvidia("wgmma.m64n16k16.f32.bf16").d
    a = nvidia("wgmma.m64n128k16.f32.bf16.rs").a
    assert d.rename({"n": "k"}).digits == a.digits


def test_wgmma_spans_every_width() -> None:
    names = {atom.name for atom in target_named("sm_90a").mma_atoms}
    for n in range(8, 257, 8):
        assert {f"wgmma.m64n{n}k16.f32.f16", f"wgmma.m64n{n}k16.f32.bf16.rs"} <= names


@pytest.mark.parametrize(
    ("name", "side", "per_lane"),
    [
        ("F32_16x16x16_F16", 16, 4), ("F32_32x32x8_BF16", 32, 4), ("F32_16x16x32_F8", 16, 8),
        ("F32_32x32x16_F8", 32, 8), ("I32_16x16x32_I8", 16, 8), ("F32_32x32x2_F32", 32, 1),
    ],
)  # fmt: skip
def test_mfma_matches_the_published_formulas(name: str, side: int, per_lane: int) -> None:
    atom = amd(name)
    expected = [
        (lane % side, per_lane * (lane // side) + i) for lane in range(64) for i in range(per_lane)
    ]
    assert all_positions(atom.a, 1, 64) == expected
    assert all_positions(atom.b, 1, 64) == expected
    registers = side * side // 64
    rows_per_block = 4 * (64 // side)
    assert all_positions(atom.d, 1, 64) == [
        (rows_per_block * (i // 4) + 4 * (lane // side) + i % 4, lane % side)
        for lane in range(64)
        for i in range(registers)
    ]


def test_a_permuted_mfma_accumulator_is_the_next_operand() -> None:
    first, second = amd("F32_16x16x16_F16"), amd("F32_16x16x16_F16")
    flipped = first.d.rename({"m": "k", "n": "m"})
    for lane, register in product(range(64), range(4)):
        held = flipped.coordinates(0, lane, register)
        assert held == second.a.coordinates(0, lane, register)


def test_the_k4_row_takes_two_accumulators_as_its_operand() -> None:
    a = amd("F32_16x16x32_K4_F8").a
    d = amd("F32_16x16x32_F8").d
    for lane, register in product(range(64), range(8)):
        block, inner = divmod(register, 4)
        held = d.coordinates(0, lane, inner)
        expected = {"m": held["n"], "k": 16 * block + held["m"]}
        assert a.coordinates(0, lane, register) == expected


def test_fp8_means_another_format_on_each_generation() -> None:
    assert amd("F32_16x16x32_F8", "gfx942").a_dtype is f8e4m3fnuz
    assert amd("F32_16x16x32_F8", "gfx950").a_dtype is f8e4m3


@pytest.mark.parametrize("target", ALL_TARGETS, ids=lambda t: t.name)
def test_names_of_a_table_are_unique(target: Target) -> None:
    names = [atom.name for atom in target.mma_atoms]
    assert len(names) == len(set(names))
    loads = [load.name for load in target.matrix_loads]
    assert len(loads) == len(set(loads))


def test_an_unknown_target_names_the_alternatives() -> None:
    assert target_named("gfx942").warp_size == 64
    with pytest.raises(UnsupportedError, match="no target 'sm_9'") as caught:
        target_named("sm_9")
    assert "one of sm_90a, gfx942, gfx950" in str(caught.value)
