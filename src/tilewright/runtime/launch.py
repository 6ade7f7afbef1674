"""Launches: parameters packed once, checked against the kernel's contracts, started cheaply."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.base.diagnostics import CallError
from tilewright.base.dtypes import DType
from tilewright.kernel.declared import Interface
from tilewright.runtime.arguments import numpy_dtype
from tilewright.runtime.cuda_driver import Module, checked, load_driver
from tilewright.runtime.tensor_maps import (
    MAP_ALIGN,
    MAP_FORMAT,
    MapEncoder,
    Maps,
    map_encoders,
)

_FORMATS = {
    "f64": "d",
    "f32": "f",
    "f16": "e",
    "i64": "q",
    "i32": "i",
    "i16": "h",
    "i8": "b",
    "bool": "?",
}


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Where each parameter of a kernel lies in one buffer: pointers, maps, symbols, scalars."""

    formats: tuple[str, ...]
    offsets: tuple[int, ...]
    size: int

    @staticmethod
    def of(kernel: Interface) -> ParameterBlock:
        """The order is that of the printed kernel: tensors, maps, symbols, then scalars."""
        formats = (
            *("P" for _ in kernel.tensors),
            *(MAP_FORMAT for _ in kernel.maps),
            *("i" for _ in kernel.symbols),
            *(_FORMATS.get(s.dtype.name, f"{s.dtype.bytes}s") for s in kernel.scalars),
        )
        offsets: list[int] = []
        size = 0
        for code in formats:
            width = struct.calcsize(code)
            step = min(width, MAP_ALIGN)
            size = -(-size // step) * step
            offsets.append(size)
            size += width
        return ParameterBlock(formats, tuple(offsets), size)


def scalar_value(value: float | int | bool, dtype: DType) -> Any:
    """A scalar as `struct` packs it: element types that it lacks become their bytes."""
    if dtype.name in _FORMATS:
        return value
    return np.asarray(value).astype(numpy_dtype(dtype)).tobytes()


class _Frame(threading.local):
    """One thread's parameter buffer, with the array of pointers that the driver reads."""

    def __init__(self, template: bytes, offsets: Sequence[int]) -> None:
        self.buffer = ctypes.create_string_buffer(template, max(len(template), 1))
        base = ctypes.addressof(self.buffer)
        self.addresses = (ctypes.c_void_p * max(len(offsets), 1))(*(base + o for o in offsets))
        self.parameters = ctypes.addressof(self.addresses)


class BoundLaunch:
    """A launch with everything fixed but pointers and stream; a call costs about a microsecond.

    Threads may share it.
    """

    __slots__ = (
        "_blocks",
        "_context",
        "_driver",
        "_frame",
        "_maps",
        "_module",
        "_pack",
        "_shared",
        "_threads",
    )

    def __init__(
        self,
        module: Module,
        kernel: Interface,
        blocks: int,
        values: Sequence[Any],
        encoders: tuple[MapEncoder, ...] = (),
    ) -> None:
        block = ParameterBlock.of(kernel)
        pointers, maps = len(kernel.tensors), len(kernel.maps)
        self._maps = Maps(encoders, block.offsets[pointers]) if encoders else None
        template = bytearray(block.size)
        first = pointers + maps
        fixed = zip(block.formats[first:], block.offsets[first:], values, strict=True)
        for code, offset, value in fixed:
            struct.pack_into(code, template, offset, value)
        self._frame = _Frame(bytes(template), block.offsets)
        self._pack = struct.Struct("P" * pointers).pack_into
        self._driver = load_driver()
        self._module = module
        self._context = int(module.context)
        self._blocks = blocks
        self._threads = kernel.threads
        self._shared = kernel.shared_bytes

    def __call__(self, stream: int, *pointers: int) -> None:
        """Start the kernel on `stream`, a stream of its device. ToolchainError where it fails.

        The thread's current device may be another one, and stays so.
        """
        driver = self._driver
        if int(driver.cuCtxGetCurrent()[1]) == self._context:
            self._start(stream, pointers)
            return
        checked(driver, driver.cuCtxPushCurrent(self._module.context))
        try:
            self._start(stream, pointers)
        finally:
            driver.cuCtxPopCurrent()

    def _start(self, stream: int, pointers: Sequence[int]) -> None:
        frame = self._frame
        self._pack(frame.buffer, 0, *pointers)
        if self._maps is not None:
            self._maps.write(frame.buffer, pointers)
        result = self._driver.cuLaunchKernel(
            self._module.function, self._blocks, 1, 1, self._threads, 1, 1,
            self._shared, stream, frame.parameters, 0,
        )  # fmt: skip
        if result[0]:
            checked(self._driver, result)


def bind_launch(
    module: Module,
    kernel: Interface,
    symbols: Mapping[str, int],
    scalars: Mapping[str, float | int | bool],
) -> BoundLaunch:
    """A launch for these sizes and scalars.

    CallError where a symbol or scalar is missing or a contract does not hold.
    """
    missing = [s.name for s in kernel.symbols if s.name not in symbols]
    missing += [s.name for s in kernel.scalars if s.name not in scalars]
    if missing:
        raise CallError(
            f"{kernel.name} is launched without {', '.join(missing)}",
            expected="a value for each symbol and scalar of the kernel",
        )
    check_contracts(kernel, symbols)
    blocks = prod(extent.evaluate(symbols) for extent in kernel.grid)
    if not 0 < blocks < 1 << 31:
        raise CallError(
            f"{kernel.name} would be launched with {blocks} blocks",
            expected="between 1 and 2**31 - 1",
        )
    values = [
        *(symbols[s.name] for s in kernel.symbols),
        *(scalar_value(scalars[s.name], s.dtype) for s in kernel.scalars),
    ]
    return BoundLaunch(module, kernel, blocks, values, map_encoders(kernel, symbols))


def check_contracts(kernel: Interface, symbols: Mapping[str, int]) -> None:
    """CallError where a symbol leaves its range or a contract of the kernel does not hold."""
    for symbol in kernel.symbols:
        value = symbols[symbol.name]
        if not symbol.low <= value < 1 << 31 or value % symbol.multiple:
            raise CallError(
                f"{kernel.name} is compiled for other sizes than {symbol.name} = {value}",
                expected=f"{symbol.low} <= {symbol.name} < 2**31, a multiple of {symbol.multiple}",
                mend="pad the tensor, or compile without the assumption",
            )
    for contract in kernel.contracts:
        value = contract.expr.evaluate(symbols)
        if value < 0 or (contract.equality and value != 0):
            given = ", ".join(f"{s.name} = {symbols[s.name]}" for s in kernel.symbols)
            raise CallError(
                f"{kernel.name} assumes {contract}, which does not hold",
                expected="sizes within the kernel's contracts",
                notes=(given,),
            )
