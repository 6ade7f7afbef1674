"""Tracing: a kernel's body runs once with proxies, and each call records an operation.

The language's functions are free functions, as authors know them, so the recorder of the trace
in progress is found in a context variable. Nothing outside `lang` reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from tilewright.base.diagnostics import DTypeError, ShapeError, TraceError
from tilewright.base.dtypes import DType, Kind, boolean, f32, i32
from tilewright.base.spaces import Space
from tilewright.base.spans import Span, here
from tilewright.graph import ops
from tilewright.graph.ops import Type
from tilewright.kernel.values import INFIX, OPERATIONS
from tilewright.lang.literals import Number, fitting, plain_number
from tilewright.lang.opaque import OpaqueMemory, OpaqueValue
from tilewright.lang.types import RegisterType, element_type


class Recorder:
    """The operations recorded so far, as a stack of open bodies."""

    def __init__(self) -> None:
        self.bodies: list[list[ops.Op]] = [[]]
        self.regions: list[int] = [0]
        self.memories: list[ops.Memory] = []
        self.iterated: list[str] = []  # the axes of the open loops
        self._next = 0
        self._regions = 0

    def fresh(self) -> int:
        self._next += 1
        return self._next

    def record(self, op: ops.Op) -> Value:
        self.bodies[-1].append(op)
        return Value(self, op.id, op.type, self.regions[-1], op.span)

    @contextmanager
    def body(self) -> Generator[list[ops.Op]]:
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
def trace(recorder: Recorder) -> Generator[None]:
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


class MemoryProxy(OpaqueMemory):
    """A tensor argument or an allocated buffer, as the body sees it."""

    __slots__ = ("memory", "owner")

    def __init__(self, owner: Recorder, memory: ops.Memory) -> None:
        self.owner = owner
        self.memory = memory

    def __repr__(self) -> str:
        return f"memory {self.memory.name}: {self.memory.type}"


class Value(OpaqueValue):
    """A value of the program, as the body sees it. Operators record elementwise operations."""

    __slots__ = ("id", "owner", "region", "span", "type")

    def __init__(
        self, owner: Recorder, number: int, type_: Type, region: int, span: Span | None
    ) -> None:
        self.owner = owner
        self.id = number
        self.type = type_
        self.region = region
        self.span = span

    def __repr__(self) -> str:
        return f"value {self.type}"

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

    def __rfloordiv__(self, other: Operand) -> Value:
        return elementwise("floordiv", (other, self))

    def __mod__(self, other: Operand) -> Value:
        return elementwise("mod", (self, other))

    def __rmod__(self, other: Operand) -> Value:
        return elementwise("mod", (other, self))

    def __pow__(self, other: Operand) -> Value:
        return elementwise("pow", (self, other))

    def __rpow__(self, other: Operand) -> Value:
        return elementwise("pow", (other, self))

    def __and__(self, other: Operand) -> Value:
        return elementwise("and", (self, other))

    def __rand__(self, other: Operand) -> Value:
        return elementwise("and", (other, self))

    def __or__(self, other: Operand) -> Value:
        return elementwise("or", (self, other))

    def __ror__(self, other: Operand) -> Value:
        return elementwise("or", (other, self))

    def __xor__(self, other: Operand) -> Value:
        return elementwise("xor", (self, other))

    def __rxor__(self, other: Operand) -> Value:
        return elementwise("xor", (other, self))

    def __lshift__(self, other: Operand) -> Value:
        return elementwise("shl", (self, other))

    def __rshift__(self, other: Operand) -> Value:
        return elementwise("shr", (self, other))

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
        return cast_value(self, dtype, here())


Operand = Value | Number


def use(value: object, span: Span | None, what: str = "operand") -> Value:
    """Check that an operand is a value whose body is still open."""
    if not isinstance(value, Value):
        hint = "read it first: tw.read(x)" if isinstance(value, MemoryProxy) else ""
        raise TraceError(
            f"the {what} is {value!r}",
            span=span,
            expected="a value: what tw.read, an operation or a Register(...) gives",
            mend=hint or "pass a value of this kernel",
        )
    current = recorder(span)
    if value.owner is not current:
        raise TraceError(
            f"the {what} was made by another kernel",
            span=span,
            expected="a value of the kernel that is being traced",
            mend="compute it in this kernel, or pass it through a tensor",
        )
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
    number = fitting(value, type_.dtype, span)
    return current.record(ops.Constant(id=current.fresh(), type=t, span=span, value=number))


def scalar_constant(value: Number, dtype: DType, span: Span | None) -> Value:
    return constant(RegisterType((), dtype, span), value, span)


def join_axes(values: Sequence[Value]) -> tuple[str, ...]:
    """The axes of all operands, in the order of the one with the most."""
    widest = max(values, key=lambda v: len(v.type.axes))
    axes = list(widest.type.axes)
    for value in values:
        axes.extend(a for a in value.type.axes if a not in axes)
    return tuple(axes)


def elementwise(name: str, args: Sequence[Operand], span: Span | None = None) -> Value:
    """Record an elementwise operation. Python numbers take the other operands' element type."""
    span = span or here()
    row, shown = OPERATIONS[name], INFIX.get(name, name)
    data = args[1:] if name == "select" else args
    typed = [a for a in data if isinstance(a, Value)]
    dtype = typed[0].type.dtype if typed else _default_dtype(data)
    values = [_operand(a, dtype, span) for a in data]
    for value in values:
        if value.type.dtype != dtype:
            raise DTypeError(
                f"`{shown}` of {dtype.name} and {value.type.dtype.name}",
                span=span,
                expected="operands of one element type",
                mend=f"cast one of them, for example tw.cast(x, tw.{dtype.name})",
            )
    if name == "select":
        values.insert(0, _operand(args[0], boolean, span))
        if values[0].type.dtype != boolean:
            raise DTypeError(
                f"the condition of select is {values[0].type.dtype.name}",
                span=span,
                expected="a bool condition, as comparisons give",
                mend="compare the value with something",
            )
    counts = name in _ARITHMETIC and dtype.kind is Kind.BOOL
    if counts or not (row.c if dtype.kind is Kind.FLOAT else row.c_int):
        raise DTypeError(
            f"`{shown}` is not defined on {dtype.name}",
            span=span,
            expected=("an integer or float type" if counts
                      else "a float type" if row.c else "an integer or bool type"),
            mend="cast the operand first",
        )  # fmt: skip
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


# Operations that count: bools are no numbers until they are cast.
_ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "neg", "abs", "shl", "shr")


def _operand(value: object, dtype: DType, span: Span | None) -> Value:
    return use(value, span) if plain_number(value) is None else scalar_constant(value, dtype, span)  # type: ignore[arg-type]


def _default_dtype(numbers: Sequence[object]) -> DType:
    if any(isinstance(n, float) for n in numbers):
        return f32
    return boolean if all(isinstance(n, bool) for n in numbers) else i32


def cast_value(value: Value, dtype: DType, span: Span | None) -> Value:
    current = recorder(span)
    value = use(value, span)
    dtype = element_type(dtype, span)
    if dtype == boolean and value.type.dtype != boolean:
        raise DTypeError(
            f"a value of {value.type.dtype.name} is cast to bool",
            span=span,
            expected="a comparison",
            mend="write value != 0",
        )
    t = Type(value.type.axes, dtype)
    return current.record(ops.CastOp(id=current.fresh(), type=t, span=span, value=value.id))


def iterate_body(
    axis: str, inits: Sequence[Value], body: Callable[..., Any], span: Span | None
) -> tuple[Value, ...]:
    """Record a loop over the tiles of `axis` that carries `inits`."""
    current = recorder(span)
    _check_loop(current, axis, inits, body, span)
    number = current.fresh()
    current.iterated.append(axis)
    with current.body() as recorded:
        params = [
            current.record(ops.Param(id=current.fresh(), type=v.type, span=v.span, position=i))
            for i, v in enumerate(inits)
        ]
        returned = body(*params)
        results = _as_values(returned, inits, span)
        done = tuple(recorded)
    current.iterated.pop()
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


def _check_loop(
    current: Recorder, axis: str, inits: Sequence[Value], body: Callable[..., Any],
    span: Span | None,
) -> None:  # fmt: skip
    """Refuse what a loop over the tiles of `axis` cannot mean."""
    if axis in current.iterated:
        raise TraceError(
            f"a loop over {axis} inside a loop over {axis}",
            span=span,
            expected="nested loops over different axes",
            mend="let one loop do the work of both",
        )
    for init in inits:
        if axis in init.type.axes:
            raise ShapeError(
                f"the loop over {axis} carries {init.type}, which has that axis",
                span=span,
                expected=f"carried values without {axis}: a step sees one tile of it only",
                mend=f"reduce the value along {axis} in the body, or write it there",
            )
    try:
        inspect.signature(body).bind(*inits)
    except TypeError as cause:
        raise TraceError(
            f"the body of iterate cannot take {len(inits)} carried values: {cause}",
            span=span,
            expected="one parameter for each entry of init_args",
            mend="give the body a parameter per carried value, in order",
        ) from cause


def _as_values(returned: object, inits: Sequence[Value], span: Span | None) -> list[Value]:
    if returned is None:
        items: list[object] = []
    else:
        several = isinstance(returned, tuple | list)
        items = [*cast("Sequence[object]", returned)] if several else [returned]
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
    return MemoryProxy(current, memory)
