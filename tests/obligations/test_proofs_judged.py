"""Verdicts against the independent judge, on every small change of several kernels.

Sound: what the judge finds wrong at some size, the proofs do not call proved. Exact: what the
proofs refute with a witness, the judge finds wrong at the witness's sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
from faults import mutants
from lockstep import judge
from proof_kernels import TOY, copy_rows, pipelined_gemm, row_sums, transpose, warp_sums

from tilewright.kernel.ops import Kernel
from tilewright.lower.obligations import verify
from tilewright.poly.prove import Assumed, Kind, Obligation, Proved, Refuted, Unknown

SIZES = {"M": (1, 3, 5, 8), "N": (1, 2, 7, 8, 9), "K": (2, 6, 10, 18)}
# How many sizes to judge, and which share of the mutants: enumeration is slow, proofs are not.
KERNELS: dict[str, tuple[Callable[[], Kernel], int, int]] = {
    "copy": (copy_rows, 12, 1),
    "sums": (row_sums, 10, 2),
    "warp sums": (warp_sums, 2, 5),
    "transpose": (transpose, 6, 2),
    "gemm, 2 stages": (lambda: pipelined_gemm(2), 3, 9),
    "gemm, 3 stages": (pipelined_gemm, 3, 11),
}
# A fault in one of these makes others follow from it, or shows as another one to the judge.
ROOTS = (Kind.DECODE, Kind.BOUNDS, Kind.UNWRITTEN, Kind.COVERAGE)


def _sizes(kernel: Kernel, count: int) -> Iterator[dict[str, int]]:
    names = [s.name for s in kernel.symbols]
    options = [[v for v in SIZES[s.name] if v % s.multiple == 0] for s in kernel.symbols]
    every = [dict(zip(names, values, strict=True)) for values in product(*options)]
    step = max(1, len(every) // count)
    yield from every[step // 2 :: step]


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_proved_and_the_judge_agrees(name: str) -> None:
    make, count, _ = KERNELS[name]
    kernel = make()
    assert all(isinstance(o.result, Proved | Assumed) for o in verify(kernel, TOY))
    for sizes in _sizes(kernel, count):
        assert judge(kernel, TOY, sizes).faults == {}


@pytest.mark.parametrize("name", KERNELS)
def test_every_seeded_fault_is_judged_alike(name: str) -> None:
    make, count, share = KERNELS[name]
    refuted = 0
    for change, mutant in list(mutants(make()))[::share]:
        obligations = verify(mutant, TOY)
        found: dict[Kind, str] = {}
        for sizes in _sizes(mutant, count):
            found = judge(mutant, TOY, sizes).faults | found
        _check_sound(change, obligations, found)
        refuted += _check_exact(change, mutant, obligations, found)
        reasons = [o.result.reason for o in obligations if isinstance(o.result, Unknown)]
        # Whether two threads hold the same result is known from above only.
        assert all(r.startswith("partial results may be combined") for r in reasons), change
    assert refuted > 5


def _check_sound(change: str, obligations: tuple[Obligation, ...], found: dict[Kind, str]) -> None:
    refuted = {o.kind for o in obligations if isinstance(o.result, Refuted | Unknown)}
    for kind, text in found.items():
        if not refuted.intersection(ROOTS):
            assert kind in refuted, f"{change}: {kind.value} {text}"
    assert bool(found) <= bool(refuted), change


def _check_exact(
    change: str, mutant: Kernel, obligations: tuple[Obligation, ...], found: dict[Kind, str]
) -> int:
    """How many refutations the judge confirmed."""
    count = 0
    outside = any(isinstance(o.result, Refuted) and o.kind is Kind.BOUNDS for o in obligations)
    skipped = (Kind.ALIGNMENT, Kind.INDEX_WIDTH, *((Kind.REDUCTION,) if outside else ()))
    for o in obligations:
        if not isinstance(o.result, Refuted) or o.kind in skipped:
            continue
        if "mixes lanes" in o.result.message:
            continue  # the judge follows which terms a value holds, not of which column
        sizes = dict(o.result.witness.symbols)
        if o.kind not in found and all(v < 40 for v in sizes.values()):
            sizes = {**{s.name: 3 * s.multiple for s in mutant.symbols}, **sizes}
            found = judge(mutant, TOY, sizes).faults | found
        assert o.kind in found, f"{change}: {o.kind.value} {o.result.message} {o.result.notes}"
        count += 1
    return count
