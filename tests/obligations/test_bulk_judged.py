"""Small changes of asynchronous kernels, judged by the simulator: relations never prove a wrong one
and refute no right one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import ml_dtypes
import numpy as np
import pytest
from bulk_kernels import Plan, axes, gemm, related

from tilewright.base.diagnostics import BarrierError, RaceError, TilewrightError
from tilewright.base.dtypes import DType, f32
from tilewright.codegen.sim import simulate
from tilewright.kernel.async_ops import BulkLoad, BulkStore, TileRef, WarpgroupMma
from tilewright.kernel.ops import Assign, Decode, Kernel, Loop, Mode, RegRef, Store, walk
from tilewright.kernel.verify import check
from tilewright.lower.obligations.elements import Axes
from tilewright.poly.expr import Constraint, Expr
from tilewright.poly.results import Proved, Refuted
from tilewright.target.nvidia import SM_90A

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
sys.path.append(str(Path(__file__).parents[1] / "driver"))
from async_kernels import CASES, Case, product
from mutations import Mutation, mutations

SAMPLE = 10
Index = tuple[Expr, ...]


def moved(index: Index) -> Iterator[tuple[str, Index]]:
    """The index with one coordinate shifted, or one of its terms left out or doubled."""
    for axis, e in enumerate(index):
        others = [("shifted", e + 1), ("shifted by 64", e + 64)]
        others += [(f"without {t}", e - Expr(((t, c),))) for t, c in e.terms]
        others += [(f"with {t} doubled", e + Expr(((t, c),))) for t, c in e.terms]
        yield from ((f"axis {axis} {n}", (*index[:axis], x, *index[axis + 1 :])) for n, x in others)


def boxes(kernel: Kernel) -> Iterator[Mutation]:
    """Changes of the places of boxes and operands, and of where sums begin."""
    for number, s in enumerate(walk(kernel.body)):
        match s:
            case BulkLoad() | BulkStore():
                for name, at in moved(s.coordinates):
                    yield Mutation(number, f"coordinates {name}", (replace(s, coordinates=at),))
                ref = s.dst if isinstance(s, BulkLoad) else s.src
                for name, at in moved(ref.index):
                    there = replace(ref, index=at)
                    changed = (
                        replace(s, dst=there) if isinstance(s, BulkLoad) else replace(s, src=there)
                    )
                    yield Mutation(number, f"{ref.name} {name}", (changed,))
            case WarpgroupMma():
                yield from _products(number, s)
            case _:
                pass


def _products(number: int, s: WarpgroupMma) -> Iterator[Mutation]:
    for field in ("a", "b", "d"):
        ref: TileRef | RegRef = getattr(s, field)
        for name, at in moved(ref.index):
            changed = replace(s, **{field: replace(ref, index=at)})
            yield Mutation(number, f"{field} {name}", (changed,))
    for c in s.accumulate:
        for name, (e,) in moved((c.expr,)):
            changed = replace(s, accumulate=(Constraint(e, c.equality),))
            yield Mutation(number, f"accumulate {name}", (changed,))


def every(kernel: Kernel) -> list[Mutation]:
    relevant = Loop | Decode | Store | Assign
    found = list(walk(kernel.body))
    plain = (m for m in mutations(kernel) if isinstance(found[m.number], relevant))
    return [*boxes(kernel), *plain]


def arguments(kernel: Kernel) -> dict[str, np.ndarray]:
    """Small integers, so that sums are exact; outputs are poisoned."""
    random = np.random.default_rng(3)
    given: dict[str, np.ndarray] = {}
    for t in kernel.tensors:
        shape = tuple(e.const for e in t.shape)
        kind = _numpy(t.dtype)
        fresh = random.integers(-3, 4, shape).astype(kind)
        given[t.name] = fresh if t.mode is Mode.IN else np.full(shape, np.nan, kind)
    return given


def _numpy(dtype: DType) -> np.dtype:
    return np.dtype(np.float32 if dtype == f32 else ml_dtypes.bfloat16)


def outcome(kernel: Kernel, output: str, wanted: np.ndarray) -> str:
    given = arguments(kernel)
    try:
        simulate(kernel, SM_90A, given, {})
    except (RaceError, BarrierError):
        return "order"  # the other proofs' business
    except TilewrightError:
        return "wrong"
    return "right" if np.array_equal(given[output], wanted) else "wrong"


def kernels() -> Iterator[tuple[str, Kernel, Axes, str]]:
    plan = Plan(256, 256, 256, group=2, blocks=1, stages=2)
    yield "one block", gemm(plan), axes(plan), "c"
    plan = Plan(256, 256, 128, group=2, blocks=2, stages=2, cluster=2, a_across=True, b_across=True)
    yield "cluster", gemm(plan), axes(plan), "c"
    named = {"a": ("m", "k"), "b": ("n", "k"), "d": ("m", "n")}
    small = [c for c in CASES if c.sizes == (64, 128, 128) and c.dtype.name == "bf16"]
    for case in (Case(64), *(c for c in small if c.a_registers)):
        yield str(case), product(case), named, "d"


KERNELS = {name: rest for name, *rest in kernels()}


@pytest.mark.parametrize("name", KERNELS)
def test_the_simulator_agrees(name: str) -> None:
    kernel, named, output = KERNELS[name]
    given = arguments(kernel)
    simulate(kernel, SM_90A, given, {})
    ends: Counter[str] = Counter()
    for mutation in Random(name).sample(every(kernel), SAMPLE):
        changed = mutation.apply(kernel)
        try:
            check(changed, SM_90A)
        except TilewrightError:
            continue
        found = [o.result for o in related(changed, named)]
        end = outcome(changed, output, given[output])
        ends[end] += 1
        if end == "wrong":
            assert not all(isinstance(r, Proved) for r in found), mutation.name
        if end == "right":
            assert not any(isinstance(r, Refuted) for r in found), mutation.name
    assert ends["wrong"] >= 2, ends
