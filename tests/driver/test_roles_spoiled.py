"""Spoiled kernels: what the simulator computes wrongly is refuted, at the program's line.

One statement of a proved kernel is dropped, or goes through fewer elements. Every access stays in
order: only what is stored tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
from mutations import Mutation, mutations
from random_products import Case, arrays, compiled, draw, symbols
from role_programs import Array, G, K, M, N, poison, whole, wide

import tilewright as tw
from tilewright.base.diagnostics import ElementError, ReductionError, TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.driver.axes import named_axes
from tilewright.driver.compile import Compilation, Rewrites, Specialisation, compile_program
from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Kernel,
    Loop,
    Mma,
    Reduce,
    Statement,
    Value,
    walk,
)
from tilewright.kernel.rewrite import map_values, rewrite
from tilewright.kernel.verify import check
from tilewright.lower.obligations import verify
from tilewright.lower.obligations.made import made
from tilewright.poly.results import Assumed, Proved, Refuted
from tilewright.target.nvidia import SM_90A

PRODUCT = Case(
    0, tw.bf16, tw.f32, {"M": 64, "N": 32, "K": 128}, {"M": 64, "N": 32, "K": 64},
    {"a": "MK", "b": "NK", "c": "MN"}, {},
)  # fmt: skip
ONE_STEP = replace(PRODUCT, sizes={"M": 64, "N": 32, "K": 64})
PLAIN = {"specialize": False}


def adds_up(s: Statement) -> bool:
    """Whether it gives the next step a sum: a statement, or an unrolled loop with one."""
    inner = walk(s.body) if isinstance(s, Loop) and s.unroll else (s,)
    return any(isinstance(x, Assign) and "carried to" in x.note for x in inner)


@dataclass(frozen=True)
class Fault:
    """Which statement is changed how, and what is said of it."""

    case: Case
    kind: type[Statement]
    change: str
    message: str
    line: str


FAULTS = {
    "sum in steps, a loop short": Fault(
        replace(PRODUCT, start="bias", loop="doubled"), Loop, "one step short",
        "which lacks the sum over K", "tw.mma(",
    ),
    "sum in steps, a loop halved": Fault(
        replace(PRODUCT, loop="columns", epilogue=("most",)), Loop, "halved",
        "which lacks the sum over K", "tw.mma(",
    ),
    "product onto a bias, digits short": Fault(
        replace(PRODUCT, start="bias", hardware=PLAIN), Mma, "m_atom one short",
        "which lacks the sum over K", "tw.mma(",
    ),
    "product onto a number, beside another sum": Fault(
        replace(PRODUCT, start="number", epilogue=("columns",)), WarpgroupMma, "dropped",
        "c is stored from v9[0], which lacks the sum over K", "tw.mma(",
    ),
    "product onto a tensor, beside another sum": Fault(
        replace(PRODUCT, start="tensor", epilogue=("rows",)), WarpgroupMma, "dropped",
        "which lacks the sum over K", "tw.mma(",
    ),
    "sum of rows": Fault(
        replace(PRODUCT, epilogue=("residual", "rows")), Reduce, "dropped",
        "rows is stored from v14_add[0], which lacks the sum over N", "tw.sum(",
    ),
    "sum carried on, in one step": Fault(
        replace(ONE_STEP, start="number", loop="rescaled", hardware=PLAIN), Assign, "dropped",
        "which lacks the sum over K", "tw.mma(",
    ),
}  # fmt: skip


def spoiled(kernel: Kernel, fault: Fault) -> list[Kernel]:
    """The kernels with one such statement changed."""
    every = list(walk(kernel.body))
    return [
        m.apply(kernel) for m in mutations(kernel)
        if isinstance(s := every[m.number], fault.kind) and m.name.endswith(fault.change)
        and (not isinstance(s, Loop | Assign) or adds_up(s))
    ]  # fmt: skip


def is_right(compilation: Compilation, case: Case, kernel: Kernel) -> bool:
    """Whether the simulator gets what NumPy does; it raises where an access is out of order."""
    given, wanted = arrays(case)
    simulate(kernel, case.target, given, symbols(compilation, case, given))
    return all(np.array_equal(wide(given[n]), wide(v), equal_nan=True) for n, v in wanted.items())


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_what_a_store_lacks_is_refuted(fault: Fault) -> None:
    given, _ = arrays(fault.case)
    compilation = compiled(fault.case, given)
    assert (compilation.plan.roles is None) == (fault.case.hardware == PLAIN)
    assert is_right(compilation, fault.case, compilation.kernel)
    wrong = spoiled(compilation.kernel, fault)
    assert wrong
    for kernel in wrong:
        assert not is_right(compilation, fault.case, kernel)
        proofs = verify(kernel, fault.case.target, named_axes(compilation.graph))
        assert all(isinstance(o.result, Proved) for o in proofs)  # nothing else shows it
        with pytest.raises(ReductionError) as caught:
            compiled(fault.case, given, Rewrites(kernel=lambda _, k=kernel: k))
        assert fault.message in str(caught.value)
        assert fault.line in str(caught.value)


LEFT_OUT = {
    "mul": (replace(PRODUCT, loop="doubled"), "which lacks the operation mul", "* 2"),
    "max": (replace(PRODUCT, epilogue=("relu",)), "which lacks the operation max", "tw.maximum("),
    "add": (
        replace(PRODUCT, epilogue=("residual",)),
        "which lacks the tensor residual",
        "tw.read(",
    ),
}


@pytest.mark.parametrize("op", LEFT_OUT)
def test_an_operation_that_is_left_out_is_refuted(op: str) -> None:
    """Its first operand takes its place."""
    case, message, line = LEFT_OUT[op]

    def first_operand(value: Value) -> Value:
        return value.args[0] if isinstance(value, Apply) and value.op == op else value

    def without(kernel: Kernel) -> Kernel:
        def change(s: Statement) -> Body:
            if isinstance(s, Assign):
                return (replace(s, value=map_values(s.value, first_operand)),)
            return (s,)

        return replace(kernel, body=rewrite(kernel.body, change))

    given, _ = arrays(case)
    compilation = compiled(case, given)
    assert not is_right(compilation, case, without(compilation.kernel))
    with pytest.raises(ElementError) as caught:
        compiled(case, given, Rewrites(kernel=without))
    assert message in str(caught.value)
    assert line in str(caught.value)


@tw.kernel(
    [
        tw.WorkgroupConstraint(M, 32, 0), tw.WorkgroupConstraint(N, 32, 1),
        tw.TilingConstraint(K, 32),
    ]
)  # fmt: skip
def twice(
    a: tw.Memory[M, K, G, tw.bf16], b: tw.Memory[N, K, G, tw.bf16], c: tw.Memory[M, N, G, tw.f32]
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](1)])
    def total(acc):
        acc = tw.mma(tw.read(a), tw.read(b), acc)
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(total, c)


def test_two_products_into_one_sum() -> None:
    """Both are over the same axis of the same tensors: how many there are tells."""
    sizes = Specialisation(SM_90A, {"M": 32, "N": 32, "K": 64})
    right = compile_program(twice.program, sizes)
    given = {n: whole((32, 64), tw.bf16, seed) for seed, n in enumerate("ab")}
    wanted = 1 + 2 * wide(given["a"]) @ wide(given["b"]).T
    assert np.array_equal(result(right.kernel, given), wanted)
    every = list(walk(right.kernel.body))
    dropped = [
        m.apply(right.kernel) for m in mutations(right.kernel)
        if isinstance(every[m.number], Mma) and m.name.endswith("dropped")
    ]  # fmt: skip
    assert len(dropped) == 2
    for kernel in dropped:
        assert not np.array_equal(result(kernel, given), wanted)
        with pytest.raises(ReductionError) as caught:
            compile_program(twice.program, sizes, Rewrites(kernel=lambda _, k=kernel: k))
        assert "which lacks sum over K, 1 of 2" in str(caught.value)
        assert "tw.mma(" in str(caught.value)


def result(kernel: Kernel, given: Mapping[str, Array]) -> Array:
    found = poison((32, 32), tw.f32)
    simulate(kernel, SM_90A, {**given, "c": found}, {})
    return found


# ---------------------------------------------------------------- at random

SPOILS = 4  # of each kernel
FEW = range(5000, 5012, 3)
MANY = range(6000, 7000, 5)


def spoil_some(seeds: range) -> Counter[str]:
    """How often a spoiled kernel is proved, or not, and right or wrong; none is proved wrong."""
    ends: Counter[str] = Counter()
    for seed in seeds:
        case = draw(seed)
        given, _ = arrays(case)
        try:
            compilation = compiled(case, given)
        except TilewrightError:
            continue
        if not all(isinstance(o.result, Proved | Assumed) for o in compilation.obligations):
            continue
        every = list(mutations(compilation.kernel))
        for mutation in Random(seed).sample(every, min(SPOILS, len(every))):
            ends[judged(compilation, case, mutation)] += 1
    return ends


def judged(compilation: Compilation, case: Case, mutation: Mutation) -> str:
    kernel = mutation.apply(compilation.kernel)
    try:
        check(kernel, case.target)
    except TilewrightError:
        return "illegal"
    try:
        right = is_right(compilation, case, kernel)
    except TilewrightError:
        right = False
    proofs = [*made(compilation.graph, kernel, case.target)]
    if not any(isinstance(o.result, Refuted) for o in proofs):
        proofs += verify(kernel, case.target, named_axes(compilation.graph))
    proved = all(isinstance(o.result, Proved | Assumed) for o in proofs)
    assert right or not proved, (case, mutation.number, mutation.name)
    return f"{'right' if right else 'wrong'}, {'proved' if proved else 'not proved'}"


@pytest.mark.parametrize("first", FEW)
def test_random_spoiled_kernels(first: int) -> None:
    spoil_some(range(first, first + 3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", MANY)
def test_many_random_spoiled_kernels(first: int) -> None:
    spoil_some(range(first, first + 5))
