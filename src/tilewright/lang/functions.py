"""The language's operations. Every function records one operation and returns its value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.diagnostics import DTypeError, ShapeError, TraceError
from tilewright.base.dtypes import DType, Kind, boolean, f32, f64, i32
from tilewright.base.spaces import Space
from tilewright.base.spans import Span, here
from tilewright.graph import ops
from tilewright.graph.ops import Type
from tilewright.lang.constraints import MMAType
from tilewright.lang.symbols import Size, axis_name
from tilewright.lang.tracing import (
    MemoryProxy,
    Operand,
    Value,
    allocate_memory,
    cast_value,
    elementwise,
    iterate_body,
    recorder,
    use,
)
from tilewright.lang.types import element_type


def _memory(memory: object, span: Span | None) -> ops.Memory:
    if isinstance(memory, MemoryProxy):
        if memory.owner is recorder(span):
            return memory.memory
        raise TraceError(
            f"{memory.memory.name} is a memory of another kernel",
            span=span,
            expected="a memory of the kernel that is being traced",
            mend="pass the tensor as an argument of this kernel too",
        )
    raise TraceError(
        f"{memory!r} is not a memory",
        span=span,
        expected="an argument of type Memory[...] or a buffer from tw.allocate",
        mend="pass the kernel's argument itself",
    )


def _check_elements(elements: int | None, span: Span | None) -> None:
    if elements is not None and (elements < 1 or elements & (elements - 1)):
        raise ShapeError(
            f"elements_per_thread is {elements}",
            span=span,
            expected="a power of two: the widest access of one thread",
            mend="leave it out to have it derived",
        )


def read(memory: MemoryProxy, *, elements_per_thread: int | None = None) -> Value:
    """Read a memory. `elements_per_thread` bounds the width of one access; derived if left out."""
    span = here()
    source = _memory(memory, span)
    _check_elements(elements_per_thread, span)
    current = recorder(span)
    return current.record(
        ops.ReadOp(
            id=current.fresh(),
            type=source.type,
            span=span,
            memory=source.name,
            elements_per_thread=elements_per_thread,
        )
    )


def write(value: Value, memory: MemoryProxy, *, elements_per_thread: int | None = None) -> None:
    """Write a value to a memory of the same axes (in any order) and element type."""
    span = here()
    value = use(value, span, "written value")
    target = _memory(memory, span)
    _check_elements(elements_per_thread, span)
    extra = set(value.type.axes) - set(target.type.axes)
    if extra:
        raise ShapeError(
            f"the value has axes {list(value.type.axes)}, the memory {list(target.type.axes)}",
            span=span,
            expected=f"a value over {', '.join(target.type.axes)}",
            mend=f"reduce the value along {', '.join(sorted(extra))} first",
        )
    if value.type.dtype != target.type.dtype:
        raise DTypeError(
            f"a value of {value.type.dtype.name} is written to a memory of "
            f"{target.type.dtype.name}",
            span=span,
            expected=f"a value of {target.type.dtype.name}",
            mend=f"tw.cast(value, tw.{target.type.dtype.name})",
        )
    current = recorder(span)
    current.record(
        ops.WriteOp(
            id=current.fresh(),
            type=target.type,
            span=span,
            memory=target.name,
            value=value.id,
            elements_per_thread=elements_per_thread,
        )
    )


def allocate(axes: Sequence[Size], dtype: DType, space: Space = Space.SHARED) -> MemoryProxy:
    """A buffer of shared memory that holds the block's tile of the axes."""
    span = here()
    if space is not Space.SHARED:
        raise ShapeError(
            f"a buffer cannot be allocated in {space.value} memory",
            span=span,
            expected="tw.SHARED",
            mend="pass a global tensor as an argument instead",
        )
    names = _axes(axes, span)
    return allocate_memory(names, element_type(dtype, span), space, span)


def _axes(axes: Sequence[Size], span: Span | None) -> tuple[str, ...]:
    names = tuple(axis_name(a, span) for a in axes)
    if len(set(names)) != len(names):
        raise ShapeError(
            f"the shape {list(names)} names an axis twice",
            span=span,
            expected="distinct axes",
            mend="give each axis a symbol of its own",
        )
    return names


def mma(
    lhs: Value, rhs: Value, acc: Value | None = None, *, mma_type: MMAType | str | None = None
) -> Value:
    """``acc + sum lhs * rhs`` over the axes that both operands have and the result lacks.

    Without `acc` the result has the axes of exactly one operand and starts at zero.
    `mma_type` overrides the kernel's MMA atom for this operation.
    """
    span = here()
    lhs, rhs = use(lhs, span), use(rhs, span)
    if lhs.type.dtype != rhs.type.dtype:
        raise DTypeError(
            f"mma of {lhs.type.dtype.name} and {rhs.type.dtype.name}",
            span=span,
            expected="operands of one element type",
            mend=f"tw.cast(operand, tw.{lhs.type.dtype.name})",
        )
    current = recorder(span)
    if acc is None:
        one = [a for a in lhs.type.axes if a not in rhs.type.axes]
        one += [a for a in rhs.type.axes if a not in lhs.type.axes]
        acc_type = Type(tuple(one), accumulator_dtype(lhs.type.dtype))
        acc = current.record(ops.Constant(id=current.fresh(), type=acc_type, span=span, value=0))
    acc = use(acc, span)
    _check_sum(lhs.type.dtype, acc.type.dtype, span)
    contracted = _contracted_axes(lhs.type, rhs.type, acc.type, span)
    return current.record(
        ops.Contract(
            id=current.fresh(),
            type=acc.type,
            span=span,
            lhs=lhs.id,
            rhs=rhs.id,
            acc=acc.id,
            atom=mma_type.value if isinstance(mma_type, MMAType) else mma_type,
            contracted=contracted,
        )
    )


def accumulator_dtype(dtype: DType) -> DType:
    """The element type in which products of `dtype` are summed."""
    if dtype.kind is not Kind.FLOAT:
        return i32
    return f64 if dtype == f64 else f32


def _check_sum(operand: DType, acc: DType, span: Span | None) -> None:
    if operand == boolean:
        raise DTypeError(
            "mma of bool values",
            span=span,
            expected="operands of a number type",
            mend="cast them first, for example tw.cast(x, tw.i8)",
        )
    if acc.kind is not operand.kind or acc.bits < operand.bits:
        raise DTypeError(
            f"mma of {operand.name} adds to an accumulator of {acc.name}",
            span=span,
            expected=f"an accumulator of {accumulator_dtype(operand).name}",
            mend=f"tw.Register[.., tw.{accumulator_dtype(operand).name}](0)",
        )


def _contracted_axes(lhs: Type, rhs: Type, acc: Type, span: Span | None) -> tuple[str, ...]:
    shared = [a for a in lhs.axes if a in rhs.axes]
    contracted = tuple(a for a in shared if a not in acc.axes)
    lost = [a for a in (*lhs.axes, *rhs.axes) if a not in acc.axes and a not in shared]
    strange = [a for a in acc.axes if a not in lhs.axes and a not in rhs.axes]
    if not contracted or lost or strange:
        if lost:
            reason = f"the axis {lost[0]} is in one operand only and not in the result"
        elif strange:
            reason = f"the axis {strange[0]} of the accumulator is in neither operand"
        else:
            reason = "the operands share no axis that the accumulator lacks"
        raise ShapeError(
            f"mma of {lhs} and {rhs} into {acc}: {reason}",
            span=span,
            expected="a contracted axis in both operands, and the other axes in the accumulator",
            mend="check the axes of the accumulator's Register[...] type",
        )
    return contracted


def permute(value: Value, target_shape: Sequence[Size]) -> Value:
    """The same value with its axes in another order."""
    span = here()
    return _view(value, target_shape, span, same=True)


def broadcast(value: Value, target_shape: Sequence[Size]) -> Value:
    """The value with axes added, along which it does not change."""
    span = here()
    return _view(value, target_shape, span, same=False)


def reshape(value: Value, target_shape: Sequence[Size]) -> Value:
    """The same elements in row-major order under other axes, whose sizes multiply to the same."""
    span = here()
    value = use(value, span)
    axes = _axes(target_shape, span)
    current = recorder(span)
    t = Type(axes, value.type.dtype)
    return current.record(ops.Reshape(id=current.fresh(), type=t, span=span, value=value.id))


def gather(source: MemoryProxy | Value, axis: Size, index: Value) -> Value:
    """The source at data: along `axis` its coordinate is the integer value `index`.

    The result has the source's other axes and those of the index, which may share axes with the
    source and may have `axis` itself. With a table over ``V, D``, indices over ``T`` give
    ``T, D`` (rows by index); with a source over ``M, V``, indices over ``M, N`` give ``M, N``
    (each row at indices of its own, as `take_along_axis` does). An index that is not in
    ``0 <= index < extent`` reads nothing and gives zero: negative ones do not count from the end.
    """
    span = here()
    value = read(source) if isinstance(source, MemoryProxy) else use(source, span, "source")
    index = use(index, span, "index")
    name = axis_name(axis, span)
    _check_gather(value.type, name, index.type, span)
    current = recorder(span)
    if name in current.iterated:
        raise TraceError(
            f"a gather along {name} inside a loop over {name}",
            span=span,
            expected="the whole axis: a step of the loop sees one tile of it only",
            mend="gather outside the loop, or loop over another axis",
        )
    axes: list[str] = []
    for own in value.type.axes:
        new = [a for a in index.type.axes if a not in value.type.axes or a == name]
        axes.extend(new if own == name else [own])
    t = Type(tuple(axes), value.type.dtype)
    return current.record(
        ops.Gather(id=current.fresh(), type=t, span=span, value=value.id, axis=name, index=index.id)
    )


def _check_gather(source: Type, axis: str, index: Type, span: Span | None) -> None:
    if axis not in source.axes:
        raise ShapeError(
            f"a source over {list(source.axes)} is gathered along {axis}",
            span=span,
            expected=f"one of {', '.join(source.axes) or 'no axes'}",
            mend="name an axis of the source",
        )
    if index.dtype.kind is not Kind.INT:
        raise DTypeError(
            f"the index of a gather is {index.dtype.name}",
            span=span,
            expected="an integer type",
            mend="tw.cast(index, tw.i32)",
        )


def _view(value: Value, target: Sequence[Size], span: Span | None, *, same: bool) -> Value:
    value = use(value, span)
    axes = _axes(target, span)
    missing = set(value.type.axes) - set(axes)
    if missing or (same and set(axes) != set(value.type.axes)):
        raise ShapeError(
            f"axes {list(value.type.axes)} cannot become {list(axes)}",
            span=span,
            expected="the same axes in another order" if same else "all of the value's axes",
            mend="list every axis of the value once",
        )
    current = recorder(span)
    t = Type(axes, value.type.dtype)
    return current.record(ops.View(id=current.fresh(), type=t, span=span, value=value.id))


def cast(value: Value, dtype: DType) -> Value:
    """Convert: round to nearest even, truncate to integers, saturate to fp8."""
    return cast_value(value, dtype, here())


def self_index(axis: Size, dtype: DType = i32) -> Value:
    """The coordinate along `axis`, as a value over that axis."""
    span = here()
    current = recorder(span)
    t = Type((axis_name(axis, span),), _counted(dtype, span))
    return current.record(ops.Index(id=current.fresh(), type=t, span=span))


def extent(axis: Size, dtype: DType = i32) -> Value:
    """The size of `axis`, as a value with no axes."""
    span = here()
    current = recorder(span)
    t = Type((), _counted(dtype, span))
    name = axis_name(axis, span)
    return current.record(ops.Extent(id=current.fresh(), type=t, span=span, axis=name))


def _counted(dtype: DType, span: Span | None) -> DType:
    """An element type that holds coordinates."""
    if element_type(dtype, span) == boolean:
        raise DTypeError(
            "a coordinate is asked for as a bool",
            span=span,
            expected="an integer or float type",
            mend="leave the type out, and compare the coordinate",
        )
    return dtype


def select(condition: Value, if_true: Operand, if_false: Operand) -> Value:
    """`if_true` where the condition holds, else `if_false`, element by element."""
    return elementwise("select", (condition, if_true, if_false), here())


def maximum(left: Operand, right: Operand) -> Value:
    """The larger of two values; NaN where either is NaN."""
    return elementwise("max", (left, right), here())


def minimum(left: Operand, right: Operand) -> Value:
    """The smaller of two values; NaN where either is NaN."""
    return elementwise("min", (left, right), here())


def _unary(name: str, doc: str) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        return elementwise(name, (value,), here())

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc
    return apply


exp = _unary("exp", "e to the power of the value.")
exp2 = _unary("exp2", "2 to the power of the value.")
log = _unary("log", "The natural logarithm.")
log2 = _unary("log2", "The logarithm to base 2.")
sqrt = _unary("sqrt", "The square root.")
rsqrt = _unary("rsqrt", "One over the square root.")
reciprocal = _unary("reciprocal", "One over the value.")
tanh = _unary("tanh", "The hyperbolic tangent.")
sin = _unary("sin", "The sine of radians.")
cos = _unary("cos", "The cosine of radians.")
erf = _unary("erf", "The error function.")
floor = _unary("floor", "The largest whole number not above the value.")
ceil = _unary("ceil", "The smallest whole number not below the value.")
round = _unary("round", "The nearest whole number, halves to even.")
abs = _unary("abs", "The absolute value.")


def _reduction(name: str, doc: str, public: str = "") -> Callable[..., Value]:
    public = public or name

    def reduce(value: Value, init: Value | None = None, *, dim: Size) -> Value:
        return _reduce(name, value, init, dim, here())

    reduce.__name__ = reduce.__qualname__ = public
    reduce.__doc__ = doc
    return reduce


def _reduce(name: str, value: Value, init: Value | None, dim: Size, span: Span | None) -> Value:
    value = use(value, span)
    axis = _combined_axis(value, dim, "reduced", span)
    rest = Type(tuple(a for a in value.type.axes if a != axis), value.type.dtype)
    if init is not None:
        init = use(init, span)
        if set(init.type.axes) != set(rest.axes) or init.type.dtype != rest.dtype:
            raise ShapeError(
                f"the initial value is {init.type}, the reduction {rest}",
                span=span,
                expected=f"{rest}",
                mend="make the initial value match the reduced value",
            )
    current = recorder(span)
    return current.record(
        ops.ReduceOp(
            id=current.fresh(),
            type=rest,
            span=span,
            name=name,
            value=value.id,
            axis=axis,
            init=None if init is None else init.id,
        )
    )


def _combined_axis(value: Value, dim: Size, how: str, span: Span | None) -> str:
    """The axis along which a value of numbers is reduced or scanned."""
    axis = axis_name(dim, span)
    if axis not in value.type.axes:
        raise ShapeError(
            f"a value over {list(value.type.axes)} is {how} along {axis}",
            span=span,
            expected=f"one of {', '.join(value.type.axes)}",
            mend="name an axis of the value in dim=",
        )
    if value.type.dtype == boolean:
        raise DTypeError(
            f"a bool value is {how}",
            span=span,
            expected="a number type",
            mend="cast it first, for example tw.cast(x, tw.i32)",
        )
    return axis


sum = _reduction("add", "The sum along an axis, added to `init` if given.", "sum")
max = _reduction("max", "The largest element along an axis (and of `init`); NaN spreads.")
min = _reduction("min", "The smallest element along an axis (and of `init`); NaN spreads.")
prod = _reduction("mul", "The product along an axis, times `init` if given.", "prod")


def _scan(name: str, doc: str, public: str) -> Callable[..., Value]:
    def scan(value: Value, *, dim: Size, exclusive: bool = False, reverse: bool = False) -> Value:
        span = here()
        value = use(value, span)
        axis = _combined_axis(value, dim, "scanned", span)
        current = recorder(span)
        return current.record(
            ops.Scan(
                id=current.fresh(), type=value.type, span=span, name=name, value=value.id,
                axis=axis, exclusive=exclusive, reverse=reverse,
            )
        )  # fmt: skip

    scan.__name__ = scan.__qualname__ = public
    scan.__doc__ = doc + _SCAN
    return scan


_SCAN = """

    Each element combines those up to its own; those from its own on with `reverse`. With
    `exclusive` its own is left out, and the first one is the identity. The element type stays;
    floats narrower than f32 are scanned in f32 and rounded once. In a loop over `dim` it is the
    scan of one tile.
    """
cumsum = _scan("add", "The running sum along an axis.", "cumsum")
cumprod = _scan("mul", "The running product along an axis.", "cumprod")
cummax = _scan("max", "The running maximum along an axis; NaN spreads.", "cummax")
cummin = _scan("min", "The running minimum along an axis; NaN spreads.", "cummin")


def iterate(axis: Size, init_args: Sequence[Value] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Decorate the body of a loop over the tiles of `axis`.

    The body takes the carried values and returns their new ones. The decorated name becomes
    the final value (a tuple of several), or None where nothing is carried.
    """
    span = here()
    name = axis_name(axis, span)
    inits = [use(v, span, "init_args entry") for v in init_args]

    def run(body: Callable[..., Any]) -> Any:
        results = iterate_body(name, inits, body, span)
        if len(results) == 1:
            return results[0]
        return results or None

    return run


def conditional(condition: Value) -> Callable[[Callable[[], None]], None]:
    """Decorate a part that runs only where the condition, a bool with no axes, holds."""
    span = here()
    condition = use(condition, span, "condition")
    if condition.type.axes or condition.type.dtype != boolean:
        raise ShapeError(
            f"the condition is {condition.type}",
            span=span,
            expected="a bool with no axes: one decision for the whole block",
            mend="reduce it along its axes, or use tw.select for a choice per element",
        )

    def run(body: Callable[[], None]) -> None:
        current = recorder(span)
        number = current.fresh()
        with current.body() as recorded:
            body()
            done = tuple(recorded)
        current.record(
            ops.Conditional(
                id=number, type=Type((), boolean), span=span, condition=condition.id, body=done
            )
        )

    return run
