"""Tile graphs as text: `print_graph` writes it, `parse_graph` reads it back.

The round trip is exact, except that spans are dropped. One operation a line, with its number,
its type and its operands: ``%3: f32[M, K2] = mma %1, %2 into %0 over K1``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.base.spaces import Space
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Memory, Op
from tilewright.graph.parse import parse_graph
from tilewright.poly.expr import Expr

__all__ = ["parse_graph", "print_graph", "show_op", "strip_spans"]


def print_graph(graph: Graph) -> str:
    """The whole graph, ending in a newline."""
    lines = [f"graph {graph.name}", *_declarations(graph), *_body(graph.body, 1)]
    return "\n".join(lines) + "\n"


def strip_spans(graph: Graph) -> Graph:
    """The graph without source positions: what its text holds."""
    memories = tuple(replace(m, span=None) for m in graph.memories)
    return replace(graph, memories=memories, body=_bare(graph.body), span=None)


def _bare(body: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(
        replace(op, span=None, body=_bare(op.body))
        if isinstance(op, ops.Iterate | ops.Conditional)
        else replace(op, span=None)
        for op in body
    )


def _declarations(graph: Graph) -> Iterator[str]:
    for axis, extent in graph.axes.items():
        size = "" if extent == Expr.of(axis) else f": {extent}"
        yield f"  axis {axis}{size}"
    for memory in graph.memories:
        yield f"  {_memory(memory)}"
    for scalar in graph.scalars:
        yield f"  scalar {scalar.name}: {scalar.dtype}"


def _memory(memory: Memory) -> str:
    word = "buffer" if memory.allocated else memory.space.value
    elsewhere = memory.allocated and memory.space is not Space.SHARED
    space = f" in {memory.space.value}" if elsewhere else ""
    strides = "" if memory.strides is None else f" strides {_list(memory.strides)}"
    return f"{word} {memory.name}: {memory.type}{space}{strides}"


def _body(body: Sequence[Op], depth: int) -> Iterator[str]:
    for op in body:
        yield "  " * depth + show_op(op)
        if isinstance(op, ops.Iterate | ops.Conditional):
            yield from _body(op.body, depth + 1)
            if isinstance(op, ops.Iterate):
                yield "  " * (depth + 1) + f"yield {_numbers(op.results)}".rstrip()


def show_op(op: Op) -> str:
    """One line for an operation, without the operations in its body."""
    return f"%{op.id}: {op.type} = {_text(op)}"


def _text(op: Op) -> str:
    match op:
        case ops.Constant(value=value):
            return f"constant {show_number(value)}"
        case ops.ScalarRead(name=name):
            return f"scalar {name}"
        case ops.Index():
            return "index"
        case ops.Extent(axis=axis):
            return f"extent {axis}"
        case ops.ReadOp(memory=memory):
            return f"read {memory}{_width(op.elements_per_thread)}"
        case ops.WriteOp(memory=memory, value=value):
            return f"write %{value} to {memory}{_width(op.elements_per_thread)}"
        case ops.Elementwise(name=name, args=args):
            return f"apply {name} {_numbers(args)}"
        case ops.CastOp(value=value):
            return f"cast %{value}"
        case ops.View(value=value):
            return f"view %{value}"
        case ops.Reshape(value=value):
            return f"reshape %{value}"
        case ops.Remap(value=value, coordinates=coordinates, fill=fill):
            other = "" if fill is None else f" else {show_number(fill)}"
            return f"remap %{value} at {_list(coordinates)}{other}"
        case ops.Gather(value=value, axis=axis, index=index):
            return f"gather %{value} along {axis} by %{index}"
        case ops.Contract(lhs=lhs, rhs=rhs, acc=acc, contracted=axes, atom=atom):
            by = "" if atom is None else f" by {atom}"
            return f"mma %{lhs}, %{rhs} into %{acc} over {', '.join(axes)}{by}"
        case ops.ReduceOp(name=name, value=value, axis=axis, init=init):
            start = "" if init is None else f" from %{init}"
            return f"reduce {name} %{value} over {axis}{start}"
        case ops.Scan(name=name, value=value, axis=axis):
            words = (("exclusive", op.exclusive), ("reverse", op.reverse))
            how = "".join(f" {word}" for word, holds in words if holds)
            return f"scan {name} %{value} along {axis}{how}"
        case _:
            return _flow(op)


def _flow(op: Op) -> str:
    """The operations of loops and conditions."""
    match op:
        case ops.Param(position=position):
            return f"param {position}"
        case ops.Iterate(axis=axis, inits=inits):
            start = f" from {_numbers(inits)}" if inits else ""
            return f"iterate {axis}{start}:"
        case ops.Result(iterate=iterate, position=position):
            return f"result {position} of %{iterate}"
        case ops.Conditional(condition=condition):
            return f"when %{condition}:"
        case _:
            raise TypeError(f"{type(op).__name__} has no text")


def _width(elements: int | None) -> str:
    return "" if elements is None else f" width {elements}"


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"%{v}" for v in values)


def _list(expressions: Sequence[Expr]) -> str:
    return f"[{', '.join(str(e) for e in expressions)}]"


def show_number(value: float | int | bool) -> str:
    """A number as it is read back: integers without a point, floats with one or an exponent."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return repr(value)
