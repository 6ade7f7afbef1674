"""The legality of a tile graph: named rules, checked after tracing and after each rewrite."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.base.diagnostics import CoverageError, LegalityError, UnwrittenReadError
from tilewright.base.dtypes import Kind
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Op


def check_graph(graph: Graph) -> None:
    """Raise the first violation: LegalityError names the rule, user faults have their own class."""
    for op in ops.walk(graph.body):
        for name, rule in RULES.items():
            for problem in rule(graph, op):
                raise LegalityError(
                    f"{name}: %{op.id} ({type(op).__name__}) {problem}",
                    span=op.span,
                    expected=(rule.__doc__ or "").strip(),
                    mend="report this program",
                )
    _writes_something(graph)
    _written_once(graph)
    _written_before_read(graph)


def _operands_defined(graph: Graph, op: Op) -> Iterator[str]:
    """every operand is the value of an operation"""
    for operand in ops.operands(op):
        if operand not in graph.by_id:
            yield f"reads %{operand}, which nothing defines"


def _axes_known(graph: Graph, op: Op) -> Iterator[str]:
    """every axis has an extent"""
    for axis in op.type.axes:
        if axis not in graph.axes:
            yield f"has the axis {axis}, which has no extent"
    if len(set(op.type.axes)) != len(op.type.axes):
        yield "names an axis twice"


def _memory_known(graph: Graph, op: Op) -> Iterator[str]:
    """reads and writes name a memory of their own type"""
    if isinstance(op, ops.ReadOp | ops.WriteOp):
        memory = next((m for m in graph.memories if m.name == op.memory), None)
        if memory is None:
            yield f"names the memory {op.memory}, which does not exist"
        elif memory.type != op.type:
            yield f"has type {op.type}, the memory {memory.type}"


def _axes_covered(graph: Graph, op: Op) -> Iterator[str]:
    """an operand has no axis that the result lacks, unless the operation reduces it"""
    match op:
        case ops.Elementwise() | ops.CastOp() | ops.View() | ops.WriteOp() | ops.Scan():
            for operand in ops.operands(op):
                extra = set(graph.by_id[operand].type.axes) - set(op.type.axes)
                if extra:
                    yield f"loses the axes {sorted(extra)} of %{operand}"
        case ops.ReduceOp():
            if set(graph.by_id[op.value].type.axes) - {op.axis} != set(op.type.axes):
                yield "does not have the axes of its operand less the reduced one"
        case _:
            return


def _gathers(graph: Graph, op: Op) -> Iterator[str]:
    """a gather has its operand's axes but the gathered one, and those of an integer index"""
    if not isinstance(op, ops.Gather):
        return
    value, index = graph.by_id[op.value].type, graph.by_id[op.index].type
    if op.axis not in value.axes:
        yield f"gathers along {op.axis}, which its operand lacks"
    wanted = (set(value.axes) - {op.axis}) | set(index.axes)
    if set(op.type.axes) != wanted:
        yield f"has axes {list(op.type.axes)}, not {sorted(wanted)}"
    if index.dtype.kind is not Kind.INT:
        yield f"has an index of {index.dtype.name}"
    if value.dtype != op.type.dtype:
        yield f"gives {op.type.dtype.name} from {value.dtype.name}"


def _scans(graph: Graph, op: Op) -> Iterator[str]:
    """a scan has its operand's type, and the axis that it runs along"""
    if isinstance(op, ops.Scan):
        value = graph.by_id[op.value].type
        if set(value.axes) != set(op.type.axes) or value.dtype != op.type.dtype:
            yield f"is {op.type}, its operand {value}"
        if op.axis not in op.type.axes:
            yield f"runs along {op.axis}, which it lacks"


RULES: dict[str, Callable[[Graph, Op], Iterator[str]]] = {
    "operands-defined": _operands_defined,
    "axes-known": _axes_known,
    "memory-known": _memory_known,
    "axes-covered": _axes_covered,
    "gathers": _gathers,
    "scans": _scans,
}


def _writes_something(graph: Graph) -> None:
    writes = (op for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp))
    if all(graph.memory(op.memory).allocated for op in writes):
        raise CoverageError(
            f"{graph.name} writes no tensor",
            span=graph.span,
            expected="a tw.write to at least one argument",
            mend="write the result: tw.write(value, output)",
        )


def _written_once(graph: Graph) -> None:
    first: dict[str, ops.WriteOp] = {}
    for op in ops.walk(graph.body):
        if not isinstance(op, ops.WriteOp) or graph.memory(op.memory).allocated:
            continue
        if op.memory in first:
            span = first[op.memory].span
            raise CoverageError(
                f"{op.memory} is written twice",
                span=op.span,
                expected="one write that covers the tensor",
                mend="combine the values with tw.select, or write to a second tensor",
                notes=(f"the first write is at {span.file}:{span.line}",) if span else (),
            )
        first[op.memory] = op


def _written_before_read(graph: Graph) -> None:
    written: set[str] = set()
    for op in ops.walk(graph.body):
        if isinstance(op, ops.WriteOp):
            written.add(op.memory)
        if isinstance(op, ops.ReadOp) and op.memory not in written:
            memory = graph.memory(op.memory)
            if memory.allocated:
                raise UnwrittenReadError(
                    f"{op.memory} is read, but nothing has been written to it",
                    span=op.span,
                    expected="a tw.write to the buffer before it is read",
                    mend="write the buffer first",
                )
