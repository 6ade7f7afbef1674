"""`Definition`: builds a fusion call by call, and prints it as Python that builds it again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Self, cast

from tilewright.base import dtypes
from tilewright.base.diagnostics import (
    CallError,
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from tilewright.base.dtypes import DType
from tilewright.base.spans import Span, here
from tilewright.fusion.grouped import LISTS
from tilewright.fusion.ops import Program, TensorType
from tilewright.fusion.promotion import Number
from tilewright.fusion.records import (
    OPERATIONS,
    Argument,
    OperationRecord,
    OutputRecord,
    Record,
    Ref,
    Replay,
    ScalarRecord,
    SizeRef,
    TensorRecord,
    size_name,
)  # fmt: skip
from tilewright.fusion.sched import Scheduler
from tilewright.poly.expr import Expr

# Writes at data, and orders that data decide.
UNSUPPORTED = frozenset(("scatter", "index_put", "argsort", "sort", "topk"))


class DataType:
    """Element types under nvFuser's names."""

    Double = dtypes.f64
    Float = dtypes.f32
    Half = dtypes.f16
    BFloat16 = dtypes.bf16
    Float8_e4m3fn = dtypes.f8e4m3
    Float8_e5m2 = dtypes.f8e5m2
    Int = dtypes.i64
    Int32 = dtypes.i32
    Int16 = dtypes.i16
    Int8 = dtypes.i8
    Bool = dtypes.boolean


_NAMES = {v: k for k, v in vars(DataType).items() if isinstance(v, DType)}


class _Operators:
    """Python's operators, for tensors and scalars."""

    definition: Definition
    __hash__ = object.__hash__


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def apply(self: _Operators, *others: object) -> Any:
        arguments = (*others, self) if swapped else (self, *others)
        return self.definition.call(name, arguments, {}, here())

    return apply


for _name, _row in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floordiv",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "matmul": "matmul", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}.items():  # fmt: skip
    setattr(_Operators, f"__{_name}__", _operator(_row))
    setattr(_Operators, f"__r{_name}__", _operator(_row, swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs"):
    setattr(_Operators, f"__{_name}__", _operator(_name))
_Operators.__invert__ = _operator("bitwise_not")  # type: ignore[attr-defined]


class Tensor(_Operators):
    """A tensor of a definition."""

    def __init__(self, definition: Definition, number: int, type_: TensorType) -> None:
        self.definition = definition
        self.number = number
        self.type = type_

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def size(self, dim: int) -> Size:
        """The size of a dimension, for the shape arguments of operations."""
        if not -self.ndim <= dim < self.ndim:
            raise ShapeError(
                f"there is no dimension {dim}", span=here(),
                expected=f"{-self.ndim} to {self.ndim - 1}", mend="check the dimension's number",
            )  # fmt: skip
        return Size(Expr.of(size_name(self.number, dim % self.ndim)))

    def shape(self) -> tuple[Size, ...]:
        """All sizes."""
        return tuple(self.size(d) for d in range(self.ndim))

    def __repr__(self) -> str:
        return f"T{self.number}: {self.type}"


class Scalar(_Operators):
    """A scalar of a definition; it promotes like a Python number."""

    def __init__(self, definition: Definition, number: int, type_: TensorType) -> None:
        self.definition = definition
        self.number = number
        self.type = type_

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"S{self.number}: {self.type.dtype.name}"


class Size:
    """A size known when the fusion is called. Sums, and products with numbers, are sizes too."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __add__(self, other: Size | int) -> Size:
        return Size(self.expr + _expr(other))

    __radd__ = __add__

    def __sub__(self, other: Size | int) -> Size:
        return Size(self.expr - _expr(other))

    def __mul__(self, factor: int) -> Size:
        return Size(self.expr * factor)

    __rmul__ = __mul__

    def __floordiv__(self, den: int) -> Size:
        return Size(self.expr // den)

    def __mod__(self, den: int) -> Size:
        return Size(self.expr % den)

    def __repr__(self) -> str:
        return f"size {self.expr}"


def _expr(value: Size | int) -> Expr:
    return value.expr if isinstance(value, Size) else Expr.of(value)


class Operations:
    """`fd.ops`: every operation by name."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in UNSUPPORTED:
            raise UnsupportedError(
                f"`{name}` cannot be compiled yet",
                span=here(),
                expected="operations that read where a coordinate or an index tells",
                mend="compute it outside the fusion and pass the result as an input",
            )
        if name not in OPERATIONS:
            raise TraceError(
                f"there is no operation `{name}`",
                span=here(),
                expected="one of " + ", ".join(sorted(OPERATIONS)),
                mend="compose it from others",
            )
        definition = self._definition

        def operation(*args: Any, **options: Any) -> Any:
            return definition.call(name, args, options, here())

        operation.__name__ = name
        operation.__doc__ = OPERATIONS[name].__doc__
        return operation

    def __dir__(self) -> list[str]:
        return sorted(OPERATIONS)

    def size(self, tensor: Tensor, dim: int) -> Size:
        return tensor.size(dim)

    def shape(self, tensor: Tensor) -> tuple[Size, ...]:
        return tensor.shape()


class Definition:
    """A fusion under construction, and what it recorded.

    Give a function that defines it, use it as a context manager, or derive a class with a
    method `definition`.
    """

    def __init__(self, build: Callable[[Self], object] | None = None) -> None:
        self.records: list[Record] = []
        self.ops = Operations(self)
        self.sched = Scheduler()
        self._replay = Replay()
        self._count = 0
        self._inputs = 0
        self._closed = False
        build = build or getattr(type(self), "definition", None)
        if build is not None:
            build(self)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._closed = True

    # ------------------------------------------------------------ inputs and outputs

    def define_tensor(
        self,
        shape: Sequence[int] | None = None,
        contiguity: Sequence[bool | None] | bool | None = None,
        dtype: DType = dtypes.f32,
        is_cpu: bool = False,
        stride_order: Sequence[int] | None = None,
        *,
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> Tensor:
        """An input tensor; -1 is a size that each call tells.

        `contiguity` promises that a dimension's stride is that of dense memory; `stride_order`
        ranks the dimensions by stride, 0 the innermost. `sizes` with `strides` describes the
        same by example. `is_cpu` is for nvFuser's signature only.
        """
        span = here()
        given = tuple(shape if shape is not None else sizes or ())
        self._check_dtype(dtype, span)
        if any(not isinstance(n, int) or n < -1 for n in given):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ShapeError(f"the shape {list(given)}", span=span, expected="sizes from 0, or -1",
                             mend="use -1 for a size that is not known yet")  # fmt: skip
        if strides is not None and stride_order is None:
            ranked = sorted(range(len(given)), key=lambda d: (strides[d], -d))
            stride_order = [ranked.index(d) for d in range(len(given))]
        order = None if stride_order is None else tuple(stride_order)
        if order is not None and sorted(order) != list(range(len(given))):
            raise ShapeError(
                f"the stride order {list(order)} of {len(given)} dimensions", span=span,
                expected="each rank from 0 once", mend="rank the innermost dimension 0",
            )  # fmt: skip
        if isinstance(contiguity, bool):
            contiguity = [contiguity] * len(given)
        promise = tuple(contiguity) if contiguity is not None else (None,) * len(given)
        if len(promise) != len(given):
            raise ShapeError(
                f"{len(promise)} contiguity flags for {len(given)} dimensions", span=span,
                expected="one for each dimension", mend="leave contiguity out",
            )  # fmt: skip
        record = TensorRecord(self._fresh(), self._inputs, given, promise, dtype, order, span)
        self._inputs += 1
        return self._tensors(record)[0]

    def define_scalar(
        self, value: Number | DType | None = None, dtype: DType | None = None
    ) -> Scalar:
        """A constant where a value is given, else an input of this element type."""
        span = here()
        if isinstance(value, DType):
            value, dtype = None, value
        if dtype is None:
            kind = dtypes.f64 if value is None or isinstance(value, float) else dtypes.i64
            dtype = dtypes.boolean if isinstance(value, bool) else kind
        self._check_dtype(dtype, span)
        position = None
        if value is None:
            position = self._inputs
            self._inputs += 1
        record = ScalarRecord(self._fresh(), position, value, dtype, span)
        made = self._record(record)[0]
        return Scalar(self, record.result, made.type)

    def define_vector(self, values: Sequence[int | Size | Scalar]) -> tuple[int | Size, ...]:
        """A list of sizes, for the shape arguments of operations."""
        span = here()
        for value in values:
            if not isinstance(value, int | Size):
                raise ShapeError(
                    f"{value!r} is no size", span=span,
                    expected="numbers and the sizes of tensors",
                    mend="a size cannot depend on data or scalar inputs",
                )  # fmt: skip
        return tuple(v for v in values if not isinstance(v, Scalar))

    def add_output(
        self,
        output: Tensor,
        alias_input: Tensor | None = None,
        stride_order: Sequence[int] | None = None,
    ) -> None:
        """A result. With `alias_input` it is written to that input and not returned."""
        span = here()
        for tensor in (output, alias_input):
            if not isinstance(tensor, Tensor | Scalar | None):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TraceError(f"the output {tensor!r}", span=span,
                                 expected="a tensor of this definition",
                                 mend="add one output after the other")  # fmt: skip
        order = None if stride_order is None else tuple(stride_order)
        alias = None if alias_input is None else alias_input.number
        if alias is not None and alias not in self._input_numbers():
            raise TraceError(
                f"the output is aliased to {alias_input!r}, which is no input", span=span,
                expected="a tensor from define_tensor", mend="leave the alias out",
            )  # fmt: skip
        self._record(OutputRecord(output.number, alias, order, span))

    def _input_numbers(self) -> set[int]:
        return {r.result for r in self.records if isinstance(r, TensorRecord)}

    # ------------------------------------------------------------ operations

    def call(
        self, name: str, args: Sequence[Any], options: Mapping[str, Any], span: Span | None
    ) -> Any:
        """Record an operation; its results are handles of tensors (or scalars)."""
        signature = _signature(name)
        try:
            bound = signature.bind(None, *args, **options)
        except TypeError as cause:
            raise TraceError(
                f"`{name}`: {cause}",
                span=span,
                expected=f"{name}({', '.join(list(map(str, signature.parameters.values()))[1:])})",
                mend="check the arguments",
            ) from cause
        given = dict(list(bound.arguments.items())[1:])
        arguments = {parameter: self._argument(value, span) for parameter, value in given.items()}
        record = OperationRecord(name, tuple(arguments.items()), (), span)
        scalar = any(isinstance(v, Scalar) for v in given.values()) and not any(
            isinstance(v, Tensor) for v in given.values()
        )
        made = self._replay.play(record)
        results = tuple(self._fresh() for _ in made)
        self._append(OperationRecord(name, record.arguments, results, span))
        self._replay.values.update(zip(results, made, strict=True))
        handle = Scalar if scalar else Tensor
        handles = tuple(handle(self, r, v.type) for r, v in zip(results, made, strict=True))
        if name in LISTS and any(isinstance(a, tuple) for a in arguments.values()):
            return list(handles)
        return handles if len(handles) > 1 else next(iter(handles))

    def _argument(self, value: object, span: Span | None) -> Argument:
        match value:
            case Tensor() | Scalar():
                if value.definition is not self:
                    raise TraceError(f"{value!r} belongs to another definition", span=span,
                                     expected="a value of this definition",
                                     mend="define it here")  # fmt: skip
                return Ref(value.number)
            case Size():
                return SizeRef(value.expr)
            case list() | tuple():
                items = cast("Sequence[object]", value)
                return tuple(self._argument(v, span) for v in items)
            case None | bool() | int() | float() | str() | DType():
                return value
            case _ if hasattr(value, "__index__"):
                return int(value)  # type: ignore[call-overload]
            case _:
                raise TraceError(
                    f"{value!r} cannot be an argument of an operation", span=span,
                    expected="tensors and scalars of this definition, numbers, sizes, types",
                    mend="define an input for it with define_tensor or define_scalar",
                )  # fmt: skip

    # ------------------------------------------------------------ the record

    def program(self, shapes: Mapping[int, Sequence[int]] | None = None) -> Program:
        """The primitive program, with the inputs' sizes by position where some are open."""
        if shapes is None:
            return self._replay.program()
        replay = Replay(shapes)
        for record in self.records:
            replay.play(record)
        return replay.program()

    @property
    def is_dynamic(self) -> bool:
        """Whether a size of an input is open."""
        return any(isinstance(r, TensorRecord) and -1 in r.shape for r in self.records)

    def inputs(self) -> tuple[TensorRecord | ScalarRecord, ...]:
        """The inputs, in order of position."""
        return tuple(
            r for r in self.records
            if isinstance(r, TensorRecord)
            or (isinstance(r, ScalarRecord) and r.position is not None)
        )  # fmt: skip

    def results(self) -> tuple[OutputRecord, ...]:
        return tuple(r for r in self.records if isinstance(r, OutputRecord))

    def _fresh(self) -> int:
        self._count += 1
        return self._count - 1

    def _append(self, record: Record) -> None:
        if self._closed:
            raise CallError(
                "the definition is finished", span=record.span,
                expected="operations within the `with` block, or the defining function",
                mend="make a new FusionDefinition",
            )  # fmt: skip
        self.records.append(record)

    def _record(self, record: Record):
        made = self._replay.play(record)
        self._append(record)
        return made

    def _tensors(self, record: TensorRecord) -> tuple[Tensor, ...]:
        return tuple(Tensor(self, record.result, v.type) for v in self._record(record))

    def _check_dtype(self, dtype: object, span: Span | None) -> None:
        if not isinstance(dtype, DType):
            raise DTypeError(f"{dtype!r} is not an element type", span=span,
                             expected="one of DataType", mend="DataType.Float")  # fmt: skip

    def __repr__(self) -> str:
        from tilewright.fusion.text import print_definition

        return print_definition(self.records)


@cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(OPERATIONS[name])


def dtype_text(dtype: DType) -> str:
    """How Python names an element type in a definition."""
    return f"DataType.{_NAMES[dtype]}" if dtype in _NAMES else f"dtype_named({dtype.name!r})"
