"""Registers hold what stores name: seeded faults that only values would show."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tilewright import CompiledKernel
from tilewright.base.diagnostics import ElementError, TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.driver.axes import named_axes
from tilewright.driver.compile import Rewrites
from tilewright.driver.trial import relative_error
from tilewright.kernel.ops import AsyncCopy, Load, Loop, Mma, Statement
from tilewright.kernel.verify import check
from tilewright.lower.obligations import verify
from tilewright.poly.prove import Assumed, Kind, Obligation, Proved, Refuted, Unknown
from tilewright.target import target_named

sys.path.append(str(Path(__file__).parents[1] / "driver"))
sys.path.append(str(Path(__file__).parents[1] / "corpus"))
sys.path.append(str(Path(__file__).parents[1] / "schedule"))
from mutations import Mutation, mutations
from programs import CASES
from test_schedules import gemm, swizzled
from witnesses import arguments

MAKE = {case.name: case.make for case in CASES}
PROGRAMS = {
    "transpose": {"M": 33, "N": 5},
    "column_sums": {"M": 33, "N": 20},
    "gemm_mk_nk_f16": {"M": 65, "N": 40, "K": 70},
    "softmax_online": {"M": 5, "N": 300},
    "attention": {"M": 33, "N": 40, "K": 16, "D": 16},
}
GEMM = {"M": 90, "N": 50, "K": 90}
SAMPLE = 25


def compiled(name: str, target: str) -> CompiledKernel:
    if name == "persistent":
        return gemm.compile(target, GEMM, schedule=swizzled(2, 5))
    return MAKE[name]().compile(target, PROGRAMS[name])


def proofs(right: CompiledKernel, mutation: Mutation) -> tuple[Obligation, ...]:
    graph, kernel = right.compilation.graph, right.compilation.kernel
    return verify(mutation.apply(kernel), right.target, named_axes(graph))


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
@pytest.mark.parametrize("name", [*PROGRAMS, "persistent"])
def test_wrong_values_are_not_proved(name: str, target: str) -> None:
    """Changes of coordinates and guards, judged by the results of the simulator."""
    right = compiled(name, target)
    kernel = right.compilation.kernel
    assert any(o.kind is Kind.ELEMENT for o in right.proofs)
    arrays, wanted, allowed = arguments(right)
    moved = (Load, AsyncCopy, Mma)
    every = [m for m in mutations(kernel) if m.body and isinstance(m.body[0], moved)]
    wrong = 0
    for mutation in random.Random(name + target).sample(every, SAMPLE):
        changed = mutation.apply(kernel)
        got = {n: a.copy() for n, a in arrays.items()}
        try:
            check(changed, target_named(target))
            simulate(changed, right.target, got, {})
        except TilewrightError:
            continue
        if any(not relative_error(got[n], w) <= allowed for n, w in wanted.items()):
            wrong += 1
            found = proofs(right, mutation)
            assert not all(isinstance(o.result, Proved | Assumed) for o in found), mutation.name
    assert wrong >= 2


def find_mutation(right: CompiledKernel, kind: type[Statement], text: str) -> Mutation:
    every = mutations(right.compilation.kernel)
    return next(m for m in every if m.body and isinstance(m.body[0], kind) and text in m.name)


FAULTS = [
    ("transpose", Load, "x axis 1 without lane", "x is loaded at N = 0 where N = 4 is wanted"),
    ("column_sums", Load, "x axis 0 without", "x is loaded at M = 0 where M = "),
    ("gemm_mk_nk_f16", AsyncCopy, "b axis 1 without lane", "b is loaded at K = 0 where K = "),
    ("gemm_mk_nk_f16", Load, "a_tile axis 2 without k_chunk", "where K = 16 is wanted"),
    ("gemm_mk_nk_f16", Mma, "b_1 axis 0 without n_atom", "where N = 8 is wanted"),
    ("persistent", Load, "a_tile axis 0 without", "is wanted"),
    ("persistent", AsyncCopy, "moved by -1", "a fill takes the place of a["),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "text", "message"), FAULTS,
                         ids=[f"{f[0]} {f[2]}" for f in FAULTS])  # fmt: skip
def test_a_fault(name: str, kind: type[Statement], text: str, message: str) -> None:
    right = compiled(name, "sm_90a")
    mutation = find_mutation(right, kind, text)
    found = proofs(right, mutation)
    (fault,) = (o.result for o in found if o.kind is Kind.ELEMENT)
    assert isinstance(fault, Refuted)
    assert message in fault.message
    if name != "persistent":
        with pytest.raises(ElementError, match="is wanted"):
            MAKE[name]().compile("sm_90a", PROGRAMS[name], rewrites=Rewrites(kernel=mutation.apply))


def test_a_turn_past_the_end_of_a_reduction_is_not_proved() -> None:
    """The slot that it reads was filled, but with an earlier tile."""
    right = compiled("persistent", "sm_90a")
    every = [m for m in mutations(right.compilation.kernel) if m.name == "Loop one step more"]
    mutation = next(m for m in every if isinstance(m.body[0], Loop) and "k_step" in m.body[0].var)
    arrays, wanted, allowed = arguments(right)
    simulate(mutation.apply(right.compilation.kernel), right.target, arrays, {})
    assert any(not relative_error(arrays[n], w) <= allowed for n, w in wanted.items())
    (result,) = (o.result for o in proofs(right, mutation) if o.kind is Kind.REDUCTION)
    assert isinstance(result, Unknown)
    assert "past its end" in result.reason


def test_open_sizes_are_covered() -> None:
    found = gemm.compile("sm_90a", schedule=swizzled(4, 132)).proofs
    (result,) = (o.result for o in found if o.kind is Kind.ELEMENT)
    assert result == Proved("6 loads hold the elements that are stored")
