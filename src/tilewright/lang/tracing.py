"""Tracing: a kernel's body runs once with proxies, and each call records an operation.

The language's functions are free functions, as authors know them, so the recorder of the trace
in progress is found in a context variable. Nothing outside `lang` reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tilewright.base.diagnostics import DTypeError, ShapeError, TraceError
from tilewright.base.dtypes import DType, Kind, boolean
from tilewright.base.spaces import Space
from tilewright.base.spans import Span, user_span
from tilewright.graph import ops
from tilewright.graph.ops import Type
from tilewright.kernel.values import OPERATIONS
from tilewright.lang.types import RegisterType

Number = float | int | bool
OpT = TypeVar("OpT", bound=ops.Op)


class Recorder:
    """The operations recorded so far, as a stack of open bodies."""

    def __init__(self) -> None:
        self.bodies: list[list[ops.Op]] = [[]]
        self.regions: list[int] = [0]
        self.memories: list[ops.Memory] = []
        self._next = 0
        self._regions = 0

    def fresh(self) -> int:
        self._next += 1
        return self._next

    def record(self, op: ops.Op) -> Value:
        self.bodies[-1].append(op)
        return Value(self, op.id, op.type, self.regions[-1], op.span)

    @contextmanager
    def body(self) -> Iterator[list[ops.Op]]:
        """Record into a new body until the block ends."""
        self._regions += 1
        self.bodies.append([])
        self.regions.append(self._regions)
        try:
            yield self.bodies[-1]
        finally:
            self.bodies.pop()
            self.regions.pop()


_current: ContextVar[Recorder | None] = ContextVar("tilewright_trace", default=None)


@contextmanager
def trace(recorder: Recorder) -> Iterator[None]:
    token = _current.set(recorder)
    try:
        yield
    finally:
        _current.reset(token)


def recorder(span: Span | None) -> Recorder:
    """The recorder of the trace in progress."""
    found = _current.get()
    if found is None:
        raise TraceError(
            "a tile operation is used outside a kernel",
            span=span,
            expected="tile operations inside a function marked @tw.kernel",
            mend="move the operation into the kernel's body",
        )
    return found


class MemoryProxy:
    """A tensor argument or an allocated buffer, as the body sees it."""

    def __init__(self, memory: ops.Memory) -> None:
        self.memory = memory

    def __repr__(self) -> str:
        return f"memory {self.memory.name}: {self.memory.type}"


class Value:
    """A value of the program, as the body sees it. Operators record elementwise operations."""

    __slots__ = ("_recorder", "id", "region", "span", "type")

    def __init__(
        self, owner: Recorder, number: int, type_: Type, region: int, span: Span | None
    ) -> None:
        self._recorder = owner
        self.id = number
        self.type = type_
        self.region = region
        self.span = span

    def __repr__(self) -> str:
        return f"value {self.type}"

    def __bool__(self) -> bool:
        raise TraceError(
            "the truth of a value is not known while tracing",
            span=user_span(sys._getframe(1)),
            expected="tw.select for a choice per element, tw.conditional for a guarded part",
            mend="replace the Python `if`, `and`, `or` or `not` on a value",
        )

    def __add__(self, other: Operand) -> Value:
        return elementwise("add", (self, other))

    def __radd__(self, other: Operand) -> Value:
        return elementwise("add", (other, self))

    def __sub__(self, other: Operand) -> Value:
        return elementwise("sub", (self, other))

    def __rsub__(self, other: Operand) -> Value:
        return elementwise("sub", (other, self))

    def __mul__(self, other: Operand) -> Value:
        return elementwise("mul", (self, other))

    def __rmul__(self, other: Operand) -> Value:
        return elementwise("mul", (other, self))

    def __truediv__(self, other: Operand) -> Value:
        return elementwise("div", (self, other))

    def __rtruediv__(self, other: Operand) -> Value:
        return elementwise("div", (other, self))

    def __floordiv__(self, other: Operand) -> Value:
        return elementwise("floordiv", (self, other))

    def __mod__(self, other: Operand) -> Value:
        return elementwise("mod", (self, other))

    def __pow__(self, other: Operand) -> Value:
        return elementwise("pow", (self, other))

    def __and__(self, other: Operand) -> Value:
        return elementwise("and", (self, other))

    def __or__(self, other: Operand) -> Value:
        return elementwise("or", (self, other))

    def __xor__(self, other: Operand) -> Value:
        return elementwise("xor", (self, other))

    def __neg__(self) -> Value:
        return elementwise("neg", (self,))

    def __invert__(self) -> Value:
        return elementwise("not", (self,))

    def __abs__(self) -> Value:
        return elementwise("abs", (self,))

    def __lt__(self, other: Operand) -> Value:
        return elementwise("lt", (self, other))

    def __le__(self, other: Operand) -> Value:
        return elementwise("le", (self, other))

    def __gt__(self, other: Operand) -> Value:
        return elementwise("gt", (self, other))

    def __ge__(self, other: Operand) -> Value:
        return elementwise("ge", (self, other))

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return elementwise("eq", (self, other))  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return elementwise("ne", (self, other))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]

    def to(self, dtype: DType) -> Value:
        """The value cast to `dtype`."""
        return cast_value(self, dtype, user_span(sys._getframe(1)))


Operand = Value | Number


def use(value: object, span: Span | None, what: str = "operand") -> Value:
    """Check that an operand is a value whose body is still open."""
    if not isinstance(value, Value):
        hint = "read it first with tw.read" if isinstance(value, MemoryProxy) else ""
        raise TraceError(
            f"the {what} is {value!r}",
            span=span,
            expected="a value: what tw.read, an operation or a Register(...) gives",
            mend=hint or "pass a value of this kernel",
        )
    current = recorder(span)
    if value.region not in current.regions:
        raise TraceError(
            "a value is used outside the loop or condition that made it",
            span=span,
            expected="values of an iterate body returned from it and used through its result",
            mend="return the value from the body and add a matching entry to init_args",
        )
    return value


def constant(type_: RegisterType, value: Number, span: Span | None) -> Value:
    """A value whose every element is `value`."""
    current = recorder(span)
    t = Type(type_.axes, type_.dtype)
    return current.record(ops.Constant(id=current.fresh(), type=t, span=span, value=value))


def scalar_constant(value: Number, dtype: DType, span: Span | None) -> Value:
    current = recorder(span)
    t = Type((), dtype)
    return current.record(ops.Constant(id=current.fresh(), type=t, span=span, value=value))


def join_axes(values: Sequence[Value]) -> tuple[str, ...]:
    """The axes of all operands, in the order of the one with the most."""
    widest = max(values, key=lambda v: len(v.type.axes))
    axes = list(widest.type.axes)
    for value in values:
        axes.extend(a for a in value.type.axes if a not in axes)
    return tuple(axes)


def elementwise(name: str, args: Sequence[Operand], span: Span | None = None) -> Value:
    """Record an elementwise operation. Python numbers take the other operands' element type."""
    span = span or user_span(sys._getframe(1))
    given = [a for a in args if isinstance(a, Value)]
    row = OPERATIONS[name]
    typed = given[1:] if name == "select" and isinstance(args[0], Value) else given
    dtype = typed[0].type.dtype if typed else _default_dtype(args[-1])
    values = [
        use(a, span) if not isinstance(a, Number) else scalar_constant(a, dtype, span) for a in args
    ]
    data = values[1:] if name == "select" else values
    for value in data:
        if value.type.dtype != dtype:
            raise DTypeError(
                f"`{name}` of {dtype.name} and {value.type.dtype.name}",
                span=span,
                expected="operands of one element type",
                mend=f"cast one of them, for example tw.cast(x, tw.{dtype.name})",
            )
    if name == "select" and values[0].type.dtype != boolean:
        raise DTypeError(
            f"the condition of select is {values[0].type.dtype.name}",
            span=span,
            expected="a bool condition, as comparisons give",
            mend="compare the value with something",
        )
    if not (row.c if dtype.kind is Kind.FLOAT else row.c_int):
        raise DTypeError(
            f"`{name}` is not defined on {dtype.name}",
            span=span,
            expected="a float type" if row.c else "an integer or bool type",
            mend="cast the operand first",
        )
    result = boolean if row.gives_bool else dtype
    current = recorder(span)
    return current.record(
        ops.Elementwise(
            id=current.fresh(),
            type=Type(join_axes(values), result),
            span=span,
            name=name,
            args=tuple(v.id for v in values),
        )
    )


def _default_dtype(value: object) -> DType:
    from tilewright.base.dtypes import f32, i32

    if isinstance(value, bool):
        return boolean
    return i32 if isinstance(value, int) else f32


def cast_value(value: Value, dtype: DType, span: Span | None) -> Value:
    current = recorder(span)
    value = use(value, span)
    t = Type(value.type.axes, dtype)
    return current.record(ops.CastOp(id=current.fresh(), type=t, span=span, value=value.id))


def iterate_body(
    axis: str, inits: Sequence[Value], body: Callable[..., Any], span: Span | None
) -> tuple[Value, ...]:
    """Record a loop over the tiles of `axis` that carries `inits`."""
    current = recorder(span)
    number = current.fresh()
    with current.body() as recorded:
        params = [
            current.record(ops.Param(id=current.fresh(), type=v.type, span=v.span, position=i))
            for i, v in enumerate(inits)
        ]
        returned = body(*params)
        results = _as_values(returned, inits, span)
        done = tuple(recorded)
    current.record(
        ops.Iterate(
            id=number,
            type=Type((), boolean),
            span=span,
            axis=axis,
            inits=tuple(v.id for v in inits),
            params=tuple(p.id for p in params),
            body=done,
            results=tuple(v.id for v in results),
        )
    )
    return tuple(
        current.record(
            ops.Result(id=current.fresh(), type=v.type, span=span, iterate=number, position=i)
        )
        for i, v in enumerate(inits)
    )


def _as_values(returned: object, inits: Sequence[Value], span: Span | None) -> list[Value]:
    if returned is None:
        items: list[object] = []
    else:
        items = list(returned) if isinstance(returned, tuple | list) else [returned]
    if len(items) != len(inits):
        raise TraceError(
            f"the body of iterate returns {len(items)} values for {len(inits)} init_args",
            span=span,
            expected="one returned value for each carried value",
            mend="return the new value of each init_args entry, in order",
        )
    results = [use(item, span, "returned value") for item in items]
    for i, (result, init) in enumerate(zip(results, inits, strict=True)):
        if set(result.type.axes) != set(init.type.axes) or result.type.dtype != init.type.dtype:
            kind = DTypeError if result.type.dtype != init.type.dtype else ShapeError
            raise kind(
                f"the loop carries {init.type} in place {i}, but its body returns {result.type}",
                span=result.span,
                expected=f"{init.type}",
                mend="make the initial value and the returned value agree, with a cast if needed",
            )
    return results


def allocate_memory(
    axes: tuple[str, ...], dtype: DType, space: Space, span: Span | None
) -> MemoryProxy:
    """A buffer of the block's own."""
    current = recorder(span)
    taken = {m.name for m in current.memories}
    name = next(n for i in range(len(taken) + 1) if (n := f"buffer{i}") not in taken)
    memory = ops.Memory(name, Type(axes, dtype), space, None, allocated=True, span=span)
    current.memories.append(memory)
    return MemoryProxy(memory)
