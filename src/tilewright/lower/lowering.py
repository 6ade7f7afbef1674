"""From a graph and a plan to kernel IR."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph import ops
from tilewright.graph.ops import Graph, Memory
from tilewright.kernel.interleave import interleave
from tilewright.kernel.ops import Kernel, Mode, Scalar, Symbol, Tensor
from tilewright.lower.barriers import insert_barriers
from tilewright.lower.builder import Builder
from tilewright.lower.grid import place_grid
from tilewright.lower.loops import emit_effects
from tilewright.lower.shared import place_shared
from tilewright.poly.expr import Expr
from tilewright.schedule.plan import Plan
from tilewright.target.model import Target


def lower(
    graph: Graph,
    plan: Plan,
    target: Target,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    alignments: Mapping[str, int] | None = None,
    multiples: Mapping[str, int] | None = None,
) -> Kernel:
    """Build the kernel. `strides` (elements) and `alignments` (bytes) specialise tensors."""
    tensors, symbols = _declare(graph, strides or {}, alignments or {}, multiples or {})
    b = Builder(graph, plan, target, tensors, symbols)
    grid = place_grid(b)
    emit_effects(b, graph.body)
    kernel = Kernel(
        name=graph.name,
        target=target.name,
        warp_size=plan.warp_size,
        warps=plan.warps,
        grid=grid.factors,
        symbols=tuple(b.symbols.values()),
        tensors=tuple(tensors.values()),
        scalars=tuple(Scalar(s.name, s.dtype) for s in graph.scalars),
        shared=tuple(b.shared),
        registers=tuple(b.registers),
        body=(*b.decodes, *grid.wrap(tuple(b.scopes[0].body))),
        cluster=grid.cluster,
    )
    ordered = insert_barriers(kernel, frozenset(b.managed))
    return interleave(place_shared(ordered, target, graph.span))


# ---------------------------------------------------------------- declarations


def _declare(
    graph: Graph,
    strides: Mapping[str, tuple[int, ...]],
    alignments: Mapping[str, int],
    multiples: Mapping[str, int],
) -> tuple[dict[str, Tensor], dict[str, Symbol]]:
    tensors: dict[str, Tensor] = {}
    symbols = {
        axis: Symbol(axis, 1, multiples.get(axis, 1))
        for axis, extent in graph.axes.items()
        if not extent.is_const
    }
    for memory in graph.memories:
        if memory.allocated:
            continue
        shape = tuple(graph.axes[a] for a in memory.type.axes)
        steps = _strides(memory, shape, strides.get(memory.name))
        for step in steps:
            for name in step.variables():
                symbols.setdefault(name, Symbol(name, 1, multiples.get(name, 1)))
        tensors[memory.name] = Tensor(
            memory.name, memory.type.dtype, shape, steps, _mode(graph, memory),
            alignments.get(memory.name, 16), _index_bits(shape, steps), memory.span,
        )  # fmt: skip
    return tensors, symbols


def _strides(
    memory: Memory, shape: tuple[Expr, ...], given: tuple[int, ...] | None
) -> tuple[Expr, ...]:
    if given is not None:
        return tuple(Expr.of(s) for s in given)
    if memory.strides is not None:
        return memory.strides
    steps = [Expr.of(1)]
    for position, extent in reversed(list(enumerate(shape))[1:]):
        if extent.is_const:
            steps.insert(0, steps[0] * extent.const)
        elif steps[0].is_const:
            steps.insert(0, extent * steps[0].const)
        else:  # a product of symbols is a size of its own, given at launch
            steps.insert(0, Expr.of(f"{memory.name}_stride{position - 1}"))
    return tuple(steps[: len(shape)])


def _mode(graph: Graph, memory: Memory) -> Mode:
    reads = any(
        isinstance(op, ops.ReadOp) and op.memory == memory.name for op in ops.walk(graph.body)
    )
    writes = any(
        isinstance(op, ops.WriteOp) and op.memory == memory.name for op in ops.walk(graph.body)
    )
    if writes:
        return Mode.INOUT if reads else Mode.OUT
    return Mode.IN


def _index_bits(shape: tuple[Expr, ...], steps: tuple[Expr, ...]) -> int:
    """32 where the last element's offset is known to fit, with a tile of slack for lookahead."""
    if not all(e.is_const for e in (*shape, *steps)):
        return 64
    last = sum((n.const - 1) * abs(s.const) for n, s in zip(shape, steps, strict=True))
    return 32 if last < 2**31 else 64
