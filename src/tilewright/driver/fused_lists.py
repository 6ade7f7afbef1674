"""Products of a fusion that were asked for together: kernels that differ in sizes become one.

Such kernels do the same to tensors of their own, so one with open sizes serves all, in one launch
for all of them (see `kernel.problems`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.driver.compile import Compilation, compile_graph
from tilewright.driver.specialisation import Example, Specialisation, open_multiple
from tilewright.fusion import ops
from tilewright.fusion.ops import Program
from tilewright.fusion.segment import Segment
from tilewright.fusion.to_graph import Binding, Fused
from tilewright.graph import ops as graph_ops
from tilewright.graph.ops import Graph, Memory
from tilewright.graph.text import strip_spans
from tilewright.poly.expr import Expr
from tilewright.target.model import Target

# What means the same for all sizes.
_OPEN = (
    graph_ops.Constant, graph_ops.ScalarRead, graph_ops.Index, graph_ops.Extent, graph_ops.ReadOp,
    graph_ops.WriteOp, graph_ops.Elementwise, graph_ops.CastOp, graph_ops.View,
    graph_ops.Contract, graph_ops.Iterate, graph_ops.Param, graph_ops.Result,
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One problem of a kernel that serves several: its tensors, sizes and scalars, by their names
    in the kernel."""

    bindings: tuple[Binding, ...]
    symbols: Mapping[str, int]
    scalars: Mapping[str, int]


def together(
    program: Program, segments: Sequence[Segment], kernels: Sequence[Fused]
) -> Iterator[tuple[int, ...]]:
    """The kernels in an order in which they can run: those that one launch can do, together.

    These are kernels of one list that differ in sizes alone; what they read is there before the
    first of them.
    """
    written = [{b.buffer for b in fused.bindings if b.written} for fused in kernels]
    lists = [_list_of(program, part) for part in segments]
    forms = [
        _form(fused) if number is not None else None
        for fused, number in zip(kernels, lists, strict=True)
    ]
    done = set[int]()
    for first in range(len(kernels)):
        if first in done:
            continue
        found = [first]
        later = {b for i in range(first, len(kernels)) if i not in done for b in written[i]}
        for other in range(first + 1, len(kernels)):
            alike = forms[first] is not None and lists[other] == lists[first]
            read = {b.buffer for b in kernels[other].bindings if not b.written}
            if alike and other not in done and forms[other] == forms[first] and not read & later:
                found.append(other)
        done |= set(found)
        yield tuple(found)


def _list_of(program: Program, segment: Segment) -> int | None:
    """The list to which the one product of a kernel belongs."""
    products = [n for i in segment.nodes if isinstance(n := program.nodes[i], ops.Contract)]
    return products[0].listed if len(products) == 1 else None


def _form(fused: Fused) -> Graph | None:
    """The graph but for sizes and names; None where it may not mean the same for other sizes."""
    if not all(isinstance(op, _OPEN) for op in graph_ops.walk(fused.graph.body)):
        return None
    graph = strip_spans(renamed(fused.graph, _plain_names(fused.graph)))
    memories = tuple(replace(m, strides=None) for m in graph.memories)
    return replace(graph, name="", axes=dict.fromkeys(graph.axes, Expr.of(0)), memories=memories)


def _plain_names(graph: Graph) -> dict[str, str]:
    """Names of memories and scalars by their order."""
    declared = (*graph.memories, *graph.scalars)
    return {d.name: f"x{position}" for position, d in enumerate(declared)}


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for memories and scalars."""

    def rename(body: tuple[graph_ops.Op, ...]) -> tuple[graph_ops.Op, ...]:
        made: list[graph_ops.Op] = []
        for op in body:
            match op:
                case graph_ops.ReadOp() | graph_ops.WriteOp():
                    made.append(replace(op, memory=names[op.memory]))
                case graph_ops.ScalarRead():
                    made.append(replace(op, name=names[op.name]))
                case graph_ops.Iterate() | graph_ops.Conditional():
                    made.append(replace(op, body=rename(op.body)))
                case _:
                    made.append(op)
        return tuple(made)

    return replace(
        graph,
        memories=tuple(replace(m, name=names[m.name]) for m in graph.memories),
        scalars=tuple(replace(s, name=names[s.name]) for s in graph.scalars),
        body=rename(graph.body),
    )


# ---------------------------------------------------------------- one kernel for all


def compile_list(
    kernels: Sequence[Fused], target: Target, alignments: Sequence[Mapping[str, int]]
) -> tuple[Compilation, tuple[Problem, ...]]:
    """A kernel with open sizes, and each problem's. `alignments` are those of their tensors.

    Sizes that all share are fixed but for one, which keeps the number of tiles open: blocks then
    have a tile each (see `pipeline`).
    """
    first = kernels[0]
    names = _plain_names(first.graph)
    sizes = [{a: e.const for a, e in fused.graph.axes.items()} for fused in kernels]
    opened = [a for a in sizes[0] if len({own[a] for own in sizes}) > 1]
    opened = opened or [first.graph.memories[-1].type.axes[0]]
    symbols = [{a: own[a] for a in opened} for own in sizes]
    memories = tuple(
        _opened(names[memory.name], position, kernels, opened, symbols)
        for position, memory in enumerate(first.graph.memories)
    )
    graph = renamed(first.graph, names)
    graph = replace(
        graph,
        axes={a: Expr.of(a) if a in opened else e for a, e in graph.axes.items()},
        memories=memories,
    )
    largest = max(range(len(kernels)), key=lambda i: prod(sizes[i].values()))
    given = Specialisation(
        target=target,
        alignments={
            names[memory.name]: min(
                own[fused.graph.memories[i].name]
                for fused, own in zip(kernels, alignments, strict=True)
            )
            for i, memory in enumerate(first.graph.memories)
        },
        multiples={s: open_multiple(*(own[s] for own in symbols)) for s in symbols[0]},
        example=Example({**sizes[largest], **symbols[largest]}, len(kernels)),
    )
    problems = (_problem(fused, own) for fused, own in zip(kernels, symbols, strict=True))
    return compile_graph(graph, (), given), tuple(problems)


def _problem(fused: Fused, symbols: Mapping[str, int]) -> Problem:
    names = _plain_names(fused.graph)
    bindings = tuple(replace(b, name=names[b.name]) for b in fused.bindings)
    return Problem(bindings, symbols, {names[n]: p for n, p in fused.scalars.items()})


def _opened(
    name: str, position: int, kernels: Sequence[Fused], opened: Sequence[str],
    symbols: Sequence[dict[str, int]],
) -> Memory:  # fmt: skip
    """A memory with strides that all problems have: a number, an open size, or a new symbol."""
    each = [fused.graph.memories[position] for fused in kernels]
    strides: list[Expr] = []
    for dim in range(len(each[0].type.axes)):
        found = [memory.strides[dim].const for memory in each if memory.strides is not None]
        size = next(
            (a for a in opened if all(n == own[a] for n, own in zip(found, symbols, strict=True))),
            None,
        )
        if len(set(found)) == 1:
            strides.append(Expr.of(found[0]))
        elif size is not None:
            strides.append(Expr.of(size))
        else:
            symbol = f"{name}_stride{dim}"
            strides.append(Expr.of(symbol))
            for own, number in zip(symbols, found, strict=True):
                own[symbol] = number
    return replace(each[0], name=name, strides=tuple(strides))
