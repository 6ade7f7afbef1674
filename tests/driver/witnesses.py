"""Whether the witness of a refuted obligation is true, found out without the proofs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from tilewright import CompiledKernel
from tilewright.base.diagnostics import BoundsError
from tilewright.codegen.sim import simulate
from tilewright.driver.reference import evaluate, tolerance
from tilewright.driver.trial import poisoned, random_array
from tilewright.kernel.ops import (
    AsyncCopy,
    Kernel,
    Load,
    MemRef,
    Mode,
    Statement,
    Store,
    walk,
)
from tilewright.poly.prove import Kind, Obligation, Refuted


def arguments(right: CompiledKernel) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Random inputs and poisoned outputs, what the outputs should be, and the error allowed."""
    graph, random = right.compilation.graph, np.random.default_rng(5)
    sizes = {a: e.const for a, e in graph.axes.items()}
    arrays = {
        m.name: random_array(random, [sizes[a] for a in m.type.axes], m.type.dtype)
        for m in graph.memories if not m.allocated
    }  # fmt: skip
    tiles = {a: p.tile for a, p in right.compilation.plan.axes.items()}
    wanted = evaluate(graph, arrays, {}, sizes, tiles)
    for tensor in right.compilation.kernel.tensors:
        if tensor.mode is Mode.OUT:
            arrays[tensor.name] = poisoned(arrays[tensor.name])
    return arrays, wanted, tolerance(graph, sizes)


def instances(
    kernel: Kernel, name: str, instance: Mapping[str, int], *, writes: bool | None = None
) -> list[tuple[int, ...]]:
    """The elements of a memory that statements access at an instance whose guards hold."""
    found: list[tuple[int, ...]] = []
    for s in walk(kernel.body):
        for ref, is_write in _references(s):
            names = {v for e in ref.index for v in e.variables()}
            if ref.name != name or writes not in (None, is_write) or not names <= set(instance):
                continue
            if all(_holds(c, instance) for c in getattr(s, "guard", ())):
                base = tuple(e.evaluate(instance) for e in ref.index)
                found += _vector(s, ref, base)
    return found


def _references(s: Statement) -> list[tuple[MemRef, bool]]:
    match s:
        case Load():
            return [(s.src, False)]
        case Store():
            return [(s.dst, True)]
        case AsyncCopy():
            return [(s.src, False), (s.dst, True)]
        case _:
            return []


def _holds(constraint: Any, values: Mapping[str, int]) -> bool:
    """Digits that the witness leaves open, those of blocks in a race, are taken as zero."""
    side = constraint.expr.evaluate(defaultdict(int, values))
    return side == 0 if constraint.equality else side >= 0


def _vector(s: Any, ref: MemRef, base: tuple[int, ...]) -> list[tuple[int, ...]]:
    axis = getattr(s, "axis", None)
    if axis is None:
        axis = s.dst_axis if ref is s.dst else s.src_axis
    spread = [list(base) for _ in range(s.width)]
    for step, element in enumerate(spread):
        element[axis] += step
    return [tuple(e) for e in spread]


def out_of_bounds(right: CompiledKernel, wrong: Kernel, found: Obligation) -> None:
    witness = refuted(found).witness
    memory = wrong.tensor(found.subject) or wrong.shared_buffer(found.subject)
    assert memory is not None
    shape = [n if isinstance(n, int) else n.const for n in memory.shape]
    assert any(not 0 <= e < n for e, n in zip(witness.element, shape, strict=True))
    assert witness.element in instances(wrong, found.subject, dict(witness.instances[0]))


def missing_or_twice(right: CompiledKernel, wrong: Kernel, found: Obligation) -> None:
    witness = refuted(found).witness
    if witness.instances:
        one, two = (
            instances(wrong, found.subject, dict(i), writes=True) for i in witness.instances
        )
        assert witness.instances[0] != witness.instances[1]
        assert witness.element in one
        assert witness.element in two
        return
    arrays, wanted, _ = arguments(right)
    with suppress(BoundsError):  # it stops before the tensor is given back
        simulate(wrong, right.target, arrays, {}, checks=False)
    assert np.isfinite(wanted[found.subject][witness.element])
    assert np.isnan(arrays[found.subject][witness.element])


def race(right: CompiledKernel, wrong: Kernel, found: Obligation) -> None:
    witness = refuted(found).witness
    one, two = (instances(wrong, found.subject, dict(i)) for i in witness.instances)
    assert witness.element in one
    assert witness.element in two


def term_never_counted(right: CompiledKernel, wrong: Kernel, found: Obligation) -> None:
    """With ones in the missing term alone, the right kernel gives ones and the wrong one zeros."""
    axis = refuted(found).message.split(" = ")[0]
    term = refuted(found).witness.element[-1]
    graph = right.compilation.graph
    arrays, _, _ = arguments(right)
    for memory in graph.memories:
        if arrays[memory.name].dtype.kind == "f" and axis in memory.type.axes:
            arrays[memory.name][...] = 0
            where = tuple(term if a == axis else slice(None) for a in memory.type.axes)
            arrays[memory.name][where] = 1
    (output,) = [t.name for t in wrong.tensors if t.mode is Mode.OUT]
    fine = {n: a.copy() for n, a in arrays.items()}
    simulate(right.compilation.kernel, right.target, fine, {})
    simulate(wrong, right.target, arrays, {})
    assert (fine[output] == 1).all()
    assert (arrays[output] == 0).any()


def refuted(found: Obligation) -> Refuted:
    assert isinstance(found.result, Refuted)
    return found.result


JUDGES: dict[Kind, Callable[[CompiledKernel, Kernel, Obligation], None]] = {
    Kind.BOUNDS: out_of_bounds,
    Kind.COVERAGE: missing_or_twice,
    Kind.RACE: race,
    Kind.REDUCTION: term_never_counted,
}
