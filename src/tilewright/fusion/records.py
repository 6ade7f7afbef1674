"""What a definition records: one entry for each call on it, enough to make it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.diagnostics import CallError
from tilewright.base.dtypes import DType
from tilewright.base.spans import Span
from tilewright.fusion import elementwise, grouped, indexing, movement, reductions
from tilewright.fusion.emit import Emitter, Value
from tilewright.fusion.ops import Program
from tilewright.fusion.promotion import Number
from tilewright.poly.expr import Expr

OPERATIONS: Mapping[str, Callable[..., object]] = {
    **elementwise.TABLE, **movement.TABLE, **reductions.TABLE, **indexing.TABLE,
    **grouped.TABLE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """The tensor or scalar that a definition counts as `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class SizeRef:
    """A size that follows from the inputs: an expression of the sizes ``s<number>_<dim>``."""

    expr: Expr


Argument = None | bool | int | float | str | DType | Ref | SizeRef | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """An input tensor. `contiguity` is a promise per dimension (None: size 1, or not said)."""

    result: int
    position: int
    shape: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    dtype: DType
    stride_order: tuple[int, ...] | None
    span: Span | None


@dataclass(frozen=True, slots=True)
class ScalarRecord:
    """An input scalar, or a constant where it has a value."""

    result: int
    position: int | None
    value: Number | None
    dtype: DType
    span: Span | None


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """A call of an operation, its arguments by parameter name."""

    name: str
    arguments: tuple[tuple[str, Argument], ...]
    results: tuple[int, ...]
    span: Span | None


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A result of the fusion. With `alias`, it is written to that input."""

    value: int
    alias: int | None
    stride_order: tuple[int, ...] | None
    span: Span | None


Record = TensorRecord | ScalarRecord | OperationRecord | OutputRecord


class Replay:
    """Turns records into a program, one after the other.

    `shapes` gives the inputs' sizes by position, where they are known better than declared.
    """

    def __init__(self, shapes: Mapping[int, Sequence[int]] | None = None) -> None:
        self.emitter = Emitter()
        self.values: dict[int, Value] = {}
        self.outputs: list[int] = []
        self._shapes = shapes or {}

    def program(self) -> Program:
        return self.emitter.program(self.outputs)

    def play(self, record: Record) -> tuple[Value, ...]:
        """The values that the record makes."""
        e = self.emitter
        e.span = record.span
        match record:
            case TensorRecord():
                shape = tuple(self._shapes.get(record.position, record.shape))
                made = (e.input(record.position, shape, record.dtype),)
                results = (record.result,)
            case ScalarRecord():
                made = (self._scalar(record),)
                results = (record.result,)
            case OperationRecord():
                made = self._operation(record)
                results = record.results or tuple(range(-len(made), 0))
            case OutputRecord():
                self._output(record)
                return ()
        self.values.update(zip(results, made, strict=True))
        return made

    def _scalar(self, record: ScalarRecord) -> Value:
        if record.position is not None:
            return self.emitter.scalar_input(record.position, record.dtype)
        return self.emitter.weak_constant(record.value or 0, record.dtype)

    def _operation(self, record: OperationRecord) -> tuple[Value, ...]:
        arguments = {name: self._argument(a) for name, a in record.arguments}
        made = OPERATIONS[record.name](self.emitter, **arguments)
        return made if isinstance(made, tuple) else (made,)  # type: ignore[return-value]

    def _argument(self, argument: Argument) -> object:
        match argument:
            case Ref(number):
                return self.values[number]
            case SizeRef(expr):
                return self._size(expr)
            case tuple():
                return [self._argument(a) for a in argument]
            case _:
                return argument

    def _size(self, expr: Expr) -> int:
        sizes = {name: self._named_size(name) for name in expr.variables()}
        return -1 if any(n < 0 for n in sizes.values()) else expr.evaluate(sizes)

    def _named_size(self, name: str) -> int:
        number, dim = name[1:].split("_")
        return self.values[int(number)].shape[int(dim)]

    def _output(self, record: OutputRecord) -> None:
        value = self.values[record.value]
        if record.alias is not None:
            target = self.values[record.alias]
            unknown = -1 in value.shape or -1 in target.shape
            if value.dtype != target.dtype or (value.shape != target.shape and not unknown):
                raise CallError(
                    f"a value {value.type} is to be written to an input {target.type}",
                    span=record.span,
                    expected="the same shape and element type",
                    mend="cast or expand the value first",
                )
        self.outputs.append(self.emitter.copy(value).id)


def size_name(number: int, dim: int) -> str:
    """How expressions of sizes name a dimension of a value."""
    return f"s{number}_{dim}"
