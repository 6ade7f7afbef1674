"""Hopper kernels for the proofs: the hand-built product in all its forms, and how proofs end."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.kernel.ops import Kernel, Symbol
from tilewright.lower.obligations.elements import Axes
from tilewright.lower.obligations.report import relations
from tilewright.poly.expr import Expr
from tilewright.poly.results import Kind, Obligation, Proved, Refuted
from tilewright.target.nvidia import SM_90A

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.hopper_gemm import TILE_M, TILE_N, Plan, gemm

RELATIONS = (
    Kind.DECODE, Kind.COVERAGE, Kind.BOUNDS, Kind.ALIGNMENT, Kind.REDUCTION, Kind.UNWRITTEN,
    Kind.INDEX_WIDTH, Kind.ELEMENT,
)  # fmt: skip
SMALL = Plan(512, 512, 512, group=2, blocks=3)


def axes(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The named axes of the product's tensors."""
    a = ("k", "m") if plan.a_across else ("m", "k")
    b = ("k", "n") if plan.b_across else ("n", "k")
    return {"a": a, "b": b, "c": ("m", "n")}


def sized(kernel: Kernel, plan: Plan, **sizes: int | str) -> Kernel:
    """The kernel of a plan on tensors of other sizes: its boxes pass their ends."""
    extents = {n: Expr.of(sizes.get(n, size)) for n, size in (("m", plan.m), ("n", plan.n),
                                                             ("k", plan.k))}  # fmt: skip
    shapes = {t: tuple(extents[a] for a in own) for t, own in axes(plan).items()}
    return replace(kernel, tensors=tuple(
        replace(t, shape=shapes[t.name], strides=(shapes[t.name][1], Expr.of(1)))
        for t in kernel.tensors
    ))  # fmt: skip


@dataclass(frozen=True)
class OpenRows(Plan):
    """A plan whose rows are the symbol M; the last group of tiles may pass its end."""

    @property
    def tiles(self) -> tuple[int, int]:
        groups = Expr.of("M").ceildiv(TILE_M * self.group)
        return groups * (self.group // self.cluster), self.n // TILE_N  # type: ignore[return-value]


def open_rows(plan: OpenRows) -> Kernel:
    """The plan's kernel for every M."""
    across = 8 if plan.a_across else 1  # rows of a have to be whole pieces of 16 bytes
    made = sized(gemm(plan), plan, m="M")
    return replace(made, symbols=(Symbol("M", multiple=across),))


def related(
    kernel: Kernel, named: Axes | None = None, kinds: Iterable[Kind] = RELATIONS
) -> list[Obligation]:
    """The kernel's obligations but for those of order."""
    return [o for o in relations(kernel, SM_90A, named) if o.kind in set(kinds)]


def all_proved(kernel: Kernel, named: Axes) -> bool:
    """Whether each relation holds, with something proved of each kind."""
    found = related(kernel, named)
    open_ones = [o for o in found if not isinstance(o.result, Proved)]
    assert not open_ones, open_ones
    return {o.kind for o in found} == set(RELATIONS)


def refutations(kernel: Kernel, named: Axes, kind: Kind) -> list[Refuted]:
    """The refuted obligations of one kind."""
    found = related(kernel, named, (kind,))
    return [o.result for o in found if isinstance(o.result, Refuted)]
