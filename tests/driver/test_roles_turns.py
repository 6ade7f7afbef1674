"""Loops with arithmetic and computed operands in blocks that go on, take turns, or share copies."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from role_programs import KB, KI, G, M, N, poison, powers, tiles, whole, wide

import tilewright as tw
from tilewright import TileKernel
from tilewright.base.diagnostics import ConstraintError, TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.driver.compile import Rewrites, Specialisation, compile_program
from tilewright.kernel.ops import Kernel
from tilewright.poly.results import Proved
from tilewright.schedule import pipelined
from tilewright.target.nvidia import SM_90A

sys.path.append(str(Path(__file__).parents[1] / "schedule"))
from streamed_products import K as PK
from streamed_products import plain


def scaled_product(rows: int, hardware: dict[str, Any]) -> TileKernel:
    @tw.kernel(kernel_tiles(rows, hardware))
    def product(
        a: tw.Memory[M, KB, KI, G, tw.f16],
        b: tw.Memory[N, KB, KI, G, tw.f16],
        s: tw.Memory[M, KB, G, tw.f32],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            each = tw.mma(tw.read(a), tw.read(b), tw.Register[M, N, KB, tw.f32](0.0))
            return acc + tw.sum(each * tw.read(s), dim=KB)

        tw.write(total, c)

    return product


def scaled_operand(rows: int, hardware: dict[str, Any], *, divided: bool = False) -> TileKernel:
    """Made part by part, or (where the arithmetic branches) whole."""

    @tw.kernel(kernel_tiles(rows, hardware))
    def product(
        a: tw.Memory[M, KB, KI, G, tw.f16],
        b: tw.Memory[N, KB, KI, G, tw.f16],
        s: tw.Memory[M, KB, G, tw.f32],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(KB, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            value, scale = tw.cast(tw.read(a), tw.f32), tw.read(s)
            made = value / (1.0 / scale) if divided else value * scale
            return tw.mma(tw.cast(made, tw.f16), tw.read(b), acc)

        tw.write(total, c)

    return product


def kernel_tiles(rows: int, hardware: dict[str, Any]) -> list[Any]:
    return [*tiles(rows, 64), tw.TilingConstraint(KB, 1), tw.HardwareConstraint(**hardware)]


KERNELS = {
    "product": scaled_product,
    "operand": scaled_operand,
    "divided": lambda rows, hardware: scaled_operand(rows, hardware, divided=True),
}
FORMS: dict[str, tuple[int, dict[str, Any]]] = {
    "together": (128, {"stages": 3}),
    "alone": (64, {}),
    "in turns": (64, {"pingpong": True, "stages": 2}),
    "in clusters": (64, {"cluster": 2}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_go_on_to_further_tiles(kernel: str, form: str) -> None:
    """A machine with fewer multiprocessors than there are tiles: slots and phases run on."""
    rows, hardware = FORMS[form]
    target = replace(SM_90A, multiprocessors=4 if "cluster" in hardware else 3)
    program = KERNELS[kernel](rows, hardware).program
    m, n, kb, ki = 2 * rows, 192, 5, 64
    sizes = {"M": m, "N": n, "KB": kb, "KI": ki}
    compiled = compile_program(program, Specialisation(target=target, sizes=sizes))
    plan = compiled.plan
    assert plan.roles is not None
    assert plan.roles.pingpong == ("pingpong" in hardware)
    assert "turn" in plan.grid.order
    assert all(isinstance(o.result, Proved) for o in compiled.obligations)
    a, b = whole((m, kb, ki), tw.f16, 1), whole((n, kb, ki), tw.f16, 2)
    s, c = powers((m, kb), 3), poison((m, n), tw.f32)
    simulate(compiled.kernel, target, {"a": a, "b": b, "s": s, "c": c}, {})
    assert (c == np.einsum("mkq,mk,nkq->mn", wide(a), s, wide(b))).all()


# ---------------------------------------------------------------- turns without a tile

UNEVEN = (256, 576, 384)  # 4 by 9 tiles of 64 by 64


def by_eights(s: tw.Schedule) -> tw.Schedule:
    """Blocks go through groups of 8 rows of tiles, of which there are 4: half of their turns are
    empty, so that a warpgroup may have two tiles while the other one has none."""
    s = s.split("M", 64, "mo", "mi").split("N", 64, "no", "ni").split("K", 64, "ko", "ki")
    return s.stage(3).specialize("pingpong").swizzle("mo", "no", 8).persistent(3)


def test_warpgroups_that_would_not_alternate_are_refused() -> None:
    m, n, k = UNEVEN
    with pytest.raises(ConstraintError) as caught:
        plain.compile("sm_90a", {M: m, N: n, PK: k}, schedule=by_eights)
    text = str(caught.value)
    assert "warpgroups cannot take turns: 8 does not divide the tiles of M" in text
    assert "a block's tiles fall to its warpgroups one after the other" in text
    assert "use a group that divides the tiles of M, or leave pingpong out" in text


def test_a_warpgroup_that_takes_the_other_ones_load_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Phases, barriers and slots are in order; what is read was loaded for another turn."""
    monkeypatch.setattr(pipelined, "alternates", lambda *_: True)
    m, n, k = UNEVEN
    seen: list[Kernel] = []

    def note(kernel: Kernel) -> Kernel:
        seen.append(kernel)
        return kernel

    with pytest.raises(TilewrightError) as caught:
        plain.compile(
            "sm_90a", {M: m, N: n, PK: k}, schedule=by_eights, rewrites=Rewrites(kernel=note)
        )
    assert "_ring[0, 0, 0, 0] is read in turn 6, and holds what was loaded in turn 3" in str(
        caught.value
    )
    (kernel,) = seen
    a, b = whole((m, k), tw.bf16, 1), whole((n, k), tw.bf16, 2)
    c = poison((m, n), tw.bf16)
    simulate(kernel, SM_90A, {"a": a, "b": b, "c": c}, {})
    right = (wide(a) @ wide(b).T).astype(c.dtype)
    assert 0 < (c == right).mean() < 1
