"""Loops with arithmetic and computed operands in blocks that go on, take turns, or share copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from role_programs import KB, KI, G, M, N, poison, powers, tiles, whole, wide

import tilewright as tw
from tilewright import TileKernel
from tilewright.codegen.sim import simulate
from tilewright.driver.compile import Specialisation, compile_program
from tilewright.poly.results import Proved
from tilewright.target.nvidia import SM_90A


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
