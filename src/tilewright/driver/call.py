"""The arguments of one call: seen alike, checked against the program, and turned into sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.diagnostics import CallError, DTypeError, ShapeError
from tilewright.base.dtypes import DType
from tilewright.base.spaces import Space
from tilewright.kernel.ops import Kernel, Mode
from tilewright.lang.program import Program
from tilewright.lang.types import MemoryType
from tilewright.runtime.arguments import Device, TensorView, view


@dataclass(frozen=True)
class Call:
    """Tensors and scalars by argument name, all tensors on one device."""

    program: Program
    tensors: Mapping[str, TensorView]
    scalars: Mapping[str, float | int | bool]
    device: Device

    @property
    def key(self) -> object:
        """What a compilation may depend on."""
        return tuple(
            (v.shape, v.strides, min(16, v.alignment)) for v in self.tensors.values()
        )

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


def read_call(program: Program, arguments: Sequence[Any]) -> Call:
    """Look at the arguments. CallError for their number, rank or devices; DTypeError for types."""
    if len(arguments) != len(program.arguments):
        raise CallError(
            f"{program.name} is called with {len(arguments)} arguments",
            span=program.span,
            expected=f"{len(program.arguments)}: {', '.join(program.arguments)}",
            mend="pass one argument for each parameter, in order",
        )
    tensors: dict[str, TensorView] = {}
    scalars: dict[str, float | int | bool] = {}
    for (name, kind), value in zip(program.arguments.items(), arguments, strict=True):
        if isinstance(kind, DType):
            scalars[name] = value
        else:
            tensors[name] = _tensor(name, kind, value)
    return Call(program, tensors, scalars, _device(program, tensors))


def _tensor(name: str, kind: MemoryType, value: object) -> TensorView:
    found = view(value, name)
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
    return found


def _device(program: Program, tensors: Mapping[str, TensorView]) -> Device:
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


def bind_symbols(kernel: Kernel, call: Call) -> dict[str, int]:
    """The kernel's symbols from the call's shapes and strides, and a check of what it assumes."""
    values: dict[str, int] = {}
    for tensor in kernel.tensors:
        found = call.tensors[tensor.name]
        for expr, actual, what in (
            *((e, n, "elements along") for e, n in zip(tensor.shape, found.shape, strict=True)),
            *((e, n, "as the stride of") for e, n in zip(tensor.strides, found.strides, strict=True)),
        ):  # fmt: skip
            if len(expr.terms) == 1 and expr.const == 0 and expr.terms[0][1] == 1:
                term = expr.terms[0][0]
                if isinstance(term, str) and term not in values:
                    values[term] = actual
    for tensor in kernel.tensors:
        _check_tensor(kernel, call, tensor.name, values)
    for symbol in kernel.symbols:
        value = values[symbol.name]
        if value < symbol.low or value % symbol.multiple or value >= 2**31:
            raise ShapeError(
                f"{symbol.name} is {value}",
                span=call.program.span,
                expected=f"at least {symbol.low}, below 2**31, a multiple of {symbol.multiple}",
                mend="compile without that assumption, or pass other shapes",
            )
    return values


def _check_tensor(kernel: Kernel, call: Call, name: str, values: Mapping[str, int]) -> None:
    tensor = kernel.tensor(name)
    found = call.tensors[name]
    if tensor is None:
        return
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
