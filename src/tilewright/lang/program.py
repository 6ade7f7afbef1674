"""From a decorated Python function to a tile graph."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from traceback import walk_tb
from types import CodeType
from typing import Any

from tilewright.base.diagnostics import TilewrightError, TraceError, UndefinedSymbolError
from tilewright.base.dtypes import DType
from tilewright.base.spaces import Space
from tilewright.base.spans import Span, parameter_spans, user_span
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Type
from tilewright.lang.constraints import Constraint, HardwareConstraint
from tilewright.lang.symbols import Size, evaluate, size_of
from tilewright.lang.tracing import MemoryProxy, Recorder, trace
from tilewright.lang.types import MemoryType
from tilewright.poly.expr import Expr


@dataclass(frozen=True)
class Program:
    """A tile program: the function, the types of its arguments and its constraints."""

    function: Callable[..., None]
    arguments: Mapping[str, MemoryType | DType]
    constraints: tuple[Constraint, ...]
    span: Span
    signature: inspect.Signature

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def memories(self) -> Mapping[str, MemoryType]:
        return {n: t for n, t in self.arguments.items() if isinstance(t, MemoryType)}

    def axes(self) -> tuple[str, ...]:
        """Every axis of an argument, in order of first mention."""
        return tuple(dict.fromkeys(a for t in self.memories.values() for a in t.axes))


def program(
    function: Callable[..., None], constraints: Sequence[Constraint], scope: Mapping[str, Any]
) -> Program:
    """Read the signature of `function`; `scope` holds the names its annotations may use."""
    span = _definition(function.__code__)
    arguments: dict[str, MemoryType | DType] = {}
    signature = inspect.signature(function)
    spans = parameter_spans(function.__code__)
    for name, parameter in signature.parameters.items():
        where = spans.get(name, span)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TraceError(
                f"the argument {name} stands for any number of arguments",
                span=where,
                expected="one parameter for each tensor and scalar",
                mend="name the arguments one by one",
            )
        annotation = _evaluated(parameter.annotation, function, scope, where)
        if not isinstance(annotation, MemoryType | DType):
            raise TraceError(
                f"the argument {name} has no tile type",
                span=where,
                expected="every argument annotated with Memory[axes.., space, dtype] or a dtype",
                mend=f"for example {name}: Memory[M, N, tw.GLOBAL, tw.f16]",
            )
        arguments[name] = (
            replace(annotation, span=where) if isinstance(annotation, MemoryType) else annotation
        )
    return Program(function, arguments, tuple(constraints), span, signature)


def _evaluated(
    annotation: object, function: Callable[..., None], scope: Mapping[str, Any], span: Span
) -> object:
    """What an annotation stands for. The future import keeps annotations as text."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__, dict(scope))  # noqa: S307
    except NameError as cause:
        raise TraceError(
            f"an annotation of {function.__name__} names {cause.name}, which cannot be found",
            span=span,
            expected="annotations that name what is visible where the kernel is defined",
            mend="define the name beside the kernel, or drop `from __future__ import annotations`",
        ) from cause
    except TilewrightError as error:
        raise error.at(span) from None


def _definition(code: CodeType) -> Span:
    line = code.co_firstlineno
    span = Span(code.co_filename, line, 0, 0)
    text = span.source()
    while text.lstrip().startswith("@") or (text and "def " not in text):
        line += 1
        span = Span(code.co_filename, line, 0, 0)
        text = span.source()
    start = len(text) - len(text.lstrip())
    return Span(code.co_filename, line, start, len(text))


def trace_program(
    source: Program, bindings: Mapping[str, int], spaces: Mapping[str, Space]
) -> Graph:
    """Run the body once with proxies. Axes that `bindings` lacks keep a symbolic extent."""
    recorder = Recorder()
    proxies: list[Any] = []
    memories: list[ops.Memory] = []
    scalars: list[ops.ScalarArgument] = []
    with trace(recorder):
        for name, kind in source.arguments.items():
            if isinstance(kind, DType):
                scalars.append(ops.ScalarArgument(name, kind))
                op = ops.ScalarRead(id=recorder.fresh(), type=Type((), kind), name=name)
                proxies.append(recorder.record(op))
            else:
                memories.append(_memory(name, kind, bindings, spaces))
                proxies.append(MemoryProxy(recorder, memories[-1]))
        try:
            source.function(*proxies)
        except TypeError as cause:
            raise TraceError(
                f"the program fails while it is traced: {cause}",
                span=_raised_at(cause) or source.span,
                expected="tile operations on values, and Python on everything else",
                mend="see the cause above",
            ) from cause
    memories += recorder.memories
    body = tuple(recorder.bodies[0])
    return Graph(
        name=source.name,
        axes=_axes(memories, body, source, bindings),
        memories=tuple(memories),
        scalars=tuple(scalars),
        body=body,
        span=source.span,
    )


def _raised_at(error: Exception) -> Span | None:
    """The innermost line outside tilewright that an exception passed."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    spans = (user_span(frame, outwards=False) for frame in reversed(frames))
    return next((span for span in spans if span is not None), None)


def _memory(
    name: str, kind: MemoryType, bindings: Mapping[str, int], spaces: Mapping[str, Space]
) -> ops.Memory:
    space = kind.space
    if isinstance(space, Size):
        if str(space) not in spaces:
            raise UndefinedSymbolError(
                f"the memory space {space} of {name} has no value",
                span=kind.span,
                expected="a symbol that the bindings set to tw.GLOBAL or tw.SHARED",
                mend=f"bindings={{{space}: tw.SHARED}}",
            )
        space = spaces[str(space)]
    strides = None
    if kind.strides is not None:
        strides = tuple(_stride(s, bindings, kind.span) for s in kind.strides)
    return ops.Memory(name, Type(kind.axes, kind.dtype), space, strides, span=kind.span)


def _stride(stride: Size | int, bindings: Mapping[str, int], span: Span | None) -> Expr:
    size = size_of(stride)
    if size.op == "symbol" and str(size.value) not in bindings:
        return Expr.of(str(size.value))
    return Expr.of(evaluate(size, bindings, span))


def _axes(
    memories: Sequence[ops.Memory],
    body: tuple[ops.Op, ...],
    source: Program,
    bindings: Mapping[str, int],
) -> Mapping[str, Expr]:
    known = {a: None for m in memories if not m.allocated for a in m.type.axes}
    extents: dict[str, Expr] = {}
    for op in ops.walk(body):
        mentioned = [*op.type.axes]
        if isinstance(op, ops.Iterate | ops.Extent):
            mentioned.append(op.axis)
        for axis in mentioned:
            if axis not in known and axis not in bindings:
                raise UndefinedSymbolError(
                    f"the axis {axis} has no size",
                    span=op.span or source.span,
                    expected="an axis of a tensor argument, or a bound symbol",
                    mend=f"bind it: compile(bindings={{{axis}: 128}})",
                )
            known.setdefault(axis)
    for axis in known:
        extents[axis] = Expr.of(bindings.get(axis, axis))
    return extents


def tile_symbols(constraints: Sequence[Constraint]) -> frozenset[str]:
    """The symbols that set tile sizes, axes themselves not included."""
    names: set[str] = set()
    for constraint in constraints:
        if not isinstance(constraint, HardwareConstraint):
            names |= size_of(constraint.tile).symbols() - {constraint.axis.name}
    return frozenset(names)


def named_sizes(source: Program) -> frozenset[str]:
    """Every symbol that a binding may give a number: axes of tensors, tile sizes, strides."""
    strides = (size_of(s) for m in source.memories.values() for s in m.strides or ())
    named = {name for stride in strides for name in stride.symbols()}
    return tile_symbols(source.constraints) | named | frozenset(source.axes())


def caller_scope(depth: int) -> Mapping[str, Any]:
    """The local names of the caller `depth` frames out, for annotations kept as text."""
    return dict(sys._getframe(depth + 1).f_locals)  # pyright: ignore[reportPrivateUsage]
