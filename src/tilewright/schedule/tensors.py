"""A graph's tensors and open sizes as the kernel declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.graph.ops import Graph, Memory
from tilewright.kernel.ops import Mode, Symbol, Tensor
from tilewright.poly.expr import Expr


@dataclass(frozen=True, slots=True)
class Declared:
    """The tensor of each memory that is an argument, and every size that launches give."""

    tensors: Mapping[str, Tensor]
    symbols: Mapping[str, Symbol]


def declare(
    graph: Graph,
    strides: Mapping[str, tuple[int, ...]] | None = None,
    alignments: Mapping[str, int] | None = None,
    multiples: Mapping[str, int] | None = None,
) -> Declared:
    """`strides` (elements) and `alignments` (bytes) specialise tensors; `multiples` open sizes."""
    strides, alignments, multiples = strides or {}, alignments or {}, multiples or {}
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
    return Declared(tensors, symbols)


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
