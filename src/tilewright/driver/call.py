"""The arguments of one call: seen alike, checked against the program, and turned into sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from tilewright.base.diagnostics import (
    CallError,
    DTypeError,
    ShapeError,
    TilewrightError,
    TraceError,
)
from tilewright.base.dtypes import DType
from tilewright.base.spaces import Space
from tilewright.base.spans import Span, here
from tilewright.driver.overlaps import refuse_overlap
from tilewright.kernel.declared import Interface, Mode, Tensor
from tilewright.lang.literals import Number, fitting, plain_number
from tilewright.lang.program import Program
from tilewright.lang.tracing import MemoryProxy, Value
from tilewright.lang.types import MemoryType
from tilewright.runtime.arguments import CPU, Device, TensorView, view


@dataclass(frozen=True)
class Call:
    """Tensors and scalars by argument name, all tensors on one device."""

    program: Program
    tensors: Mapping[str, TensorView]
    scalars: Mapping[str, Number]
    device: Device

    @property
    def key(self) -> object:
        """What a compilation may depend on."""
        return tuple((v.shape, v.strides, min(16, v.alignment)) for v in self.tensors.values())

    def axis_sizes(self, bindings: Mapping[str, int | Space]) -> dict[str, int]:
        """Each axis's size from the tensors' shapes. ShapeError where two tensors disagree."""
        sizes: dict[str, int] = {}
        source: dict[str, str] = {}
        for name, tensor in self.tensors.items():
            kind = self.program.arguments[name]
            axes = kind.axes if isinstance(kind, MemoryType) else ()
            for axis, size in zip(axes, tensor.shape, strict=True):
                bound = bindings.get(axis)
                known = sizes.get(axis, bound)
                if known is not None and known != size:
                    by = source.get(axis, "the bindings")
                    raise ShapeError(
                        f"{name} has {size} elements along {axis}, {by} {known}",
                        span=kind.span if isinstance(kind, MemoryType) else None,
                        expected=f"one size of {axis} in all arguments",
                        mend="check the shapes and the order of the arguments",
                    )
                sizes[axis] = size
                source[axis] = name
        return sizes


def read_call(
    program: Program, arguments: Sequence[Any], named: Mapping[str, Any] | None = None
) -> Call:
    """Look at the arguments, given in order or by name.

    CallError for their number, kind or devices; DTypeError for element types; ShapeError for
    ranks and for empty tensors.
    """
    if named or len(arguments) != len(program.arguments):
        arguments = _in_order(program, arguments, named or {})
    tensors: dict[str, TensorView] = {}
    scalars: dict[str, Number] = {}
    for (name, kind), value in zip(program.arguments.items(), arguments, strict=True):
        if isinstance(kind, DType):
            scalars[name] = _scalar(program, name, kind, value)
        else:
            tensors[name] = _tensor(name, kind, value)
    return Call(program, tensors, scalars, _device(program, tensors))


def _in_order(
    program: Program, arguments: Sequence[Any], named: Mapping[str, Any]
) -> Sequence[Any]:
    """One argument for each parameter, defaults filled in."""
    try:
        bound = program.signature.bind(*arguments, **named)
    except TypeError as cause:
        given = len(arguments) + len(named)
        raise CallError(
            f"{program.name} is called with {given} argument{'s' * (given != 1)}"
            + (f": {cause}" if named else ""),
            span=program.span,
            expected=f"{len(program.arguments)}: {', '.join(program.arguments)}",
            mend="pass one argument for each parameter",
        ) from cause
    bound.apply_defaults()
    return tuple(bound.arguments.values())


def _scalar(program: Program, name: str, dtype: DType, value: object) -> Number:
    if isinstance(value, np.generic):  # those of ml_dtypes too, which are no Python numbers
        value = cast("object", value.item())
    if plain_number(value) is None:
        raise CallError(
            f"{name} is a {type(value).__name__}, not a number",
            span=program.span,
            expected=f"a number of {dtype.name}",
            mend="pass a Python number",
        )
    return fitting(value, dtype, program.span, f"{name} = {value!r}")


def _tensor(name: str, kind: MemoryType, value: object) -> TensorView:
    if isinstance(value, MemoryProxy | Value):
        raise TraceError(
            f"a kernel is called inside a kernel, with {name} = {value!r}",
            span=here(),
            expected="a call with tensors",
            mend="make the called kernel a plain Python function of memories or values",
        )
    try:
        found = view(value, name)
    except TilewrightError as error:
        raise error.at(kind.span) from None
    if found.dtype != kind.dtype:
        raise DTypeError(
            f"{name} holds {found.dtype.name}",
            span=kind.span,
            expected=f"{kind.dtype.name}",
            mend="convert the tensor, or change the argument's type",
        )
    if len(found.shape) != len(kind.axes):
        raise ShapeError(
            f"{name} has {len(found.shape)} dimensions",
            span=kind.span,
            expected=f"{len(kind.axes)}: {', '.join(kind.axes)}",
            mend="reshape the tensor, or change the argument's type",
        )
    if 0 in found.shape:
        raise ShapeError(
            f"{name} has 0 elements along {kind.axes[found.shape.index(0)]}",
            span=kind.span,
            expected="at least one element along each axis",
            mend="do not call the kernel where a tensor is empty",
        )
    return found


def _device(program: Program, tensors: Mapping[str, TensorView]) -> Device:
    if not tensors:
        return CPU
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.device != first.device:
            kind = program.arguments[name]
            raise CallError(
                f"{name} is on {tensor.device}, {first_name} on {first.device}",
                span=kind.span if isinstance(kind, MemoryType) else None,
                expected="all tensors on one device",
                mend=f"move {name} to {first.device}",
            )
    return first.device


def bind_symbols(kernel: Interface, call: Call) -> dict[str, int]:
    """The kernel's symbols from the call's shapes and strides, and a check of what it assumes."""
    values: dict[str, int] = {}
    for tensor in kernel.tensors:
        found = call.tensors[tensor.name]
        for expr, actual in (
            *zip(tensor.shape, found.shape, strict=True),
            *zip(tensor.strides, found.strides, strict=True),
        ):
            if len(expr.terms) == 1 and expr.const == 0 and expr.terms[0][1] == 1:
                term = expr.terms[0][0]
                if isinstance(term, str) and term not in values:
                    values[term] = actual
    for tensor in kernel.tensors:
        _check_tensor(tensor, call, values)
    for symbol in kernel.symbols:
        if symbol.product:
            values[symbol.name] = prod(e.evaluate(values) for e in symbol.product)
        value = values[symbol.name]
        if value < symbol.low or value % symbol.multiple or value >= 2**31:
            divisor = f", a multiple of {symbol.multiple}" if symbol.multiple > 1 else ""
            raise ShapeError(
                f"{symbol.name} is {value}",
                span=_user_of(symbol.name, kernel) or call.program.span,
                expected=f"at least {symbol.low}, below 2**31{divisor}",
                mend="compile without that assumption, or pass other shapes",
            )
    return values


def _user_of(symbol: str, kernel: Interface) -> Span | None:
    """The declaration of the first tensor whose size or stride is the symbol."""
    for tensor in kernel.tensors:
        if any(symbol in e.variables() for e in (*tensor.shape, *tensor.strides)):
            return tensor.span
    return None


def _check_tensor(tensor: Tensor, call: Call, values: Mapping[str, int]) -> None:
    name = tensor.name
    found = call.tensors[name]
    kind = call.program.arguments[name]
    axes = kind.axes if isinstance(kind, MemoryType) else ()
    for axis, expr, actual in zip(axes, tensor.shape, found.shape, strict=True):
        if expr.evaluate(values) != actual:
            raise ShapeError(
                f"{name} has {actual} elements along {axis}",
                span=tensor.span,
                expected=f"{expr.evaluate(values)}, for which the kernel was compiled",
                mend=f"compile without binding {axis}, or pass a tensor of that size",
            )
    for axis, expr, actual, size in zip(
        axes, tensor.strides, found.strides, found.shape, strict=True
    ):
        if size > 1 and expr.evaluate(values) != actual:
            raise CallError(
                f"{name} has stride {actual} along {axis}",
                span=tensor.span,
                expected=f"{expr.evaluate(values)}, for which the kernel was compiled",
                mend=f"make the tensor contiguous, or compile with strides={{'{name}': ...}}",
            )
    refuse_overlap(tensor, found.shape, found.strides)
    if found.alignment % tensor.align and found.alignment < tensor.align:
        raise CallError(
            f"{name} is aligned to {found.alignment} bytes",
            span=tensor.span,
            expected=f"{tensor.align} bytes, for which the kernel was compiled",
            mend=f"compile with alignments={{'{name}': {found.alignment}}}",
        )
    if tensor.mode is not Mode.IN and not found.writable:
        raise CallError(
            f"{name} is written but cannot be",
            span=tensor.span,
            expected="a writable tensor",
            mend="pass a tensor that is not read-only",
        )
