"""Launches: parameters packed once, checked against the kernel's contracts, started cheaply."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.base.diagnostics import CallError
from tilewright.base.dtypes import DType
from tilewright.kernel.declared import Interface, block_count
from tilewright.kernel.problems import laid_out
from tilewright.runtime.arguments import numpy_dtype
from tilewright.runtime.cuda_driver import Module, checked, launch_calls, load_driver
from tilewright.runtime.exchanges import Exchanges
from tilewright.runtime.graphs import BoundCall, as_graph
from tilewright.runtime.tensor_maps import (
    MAP_FORMAT,
    MapEncoder,
    Maps,
    map_encoders,
)

# A launch's buffer: the driver's CUlaunchConfig (blocks, threads, shared memory, stream, no
# attributes), then the parameters.
STREAM, HEAD = 32, 64

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
    """Where each parameter of a kernel lies in one buffer: pointers, maps, symbols, scalars,
    exchanges."""

    formats: tuple[str, ...]
    offsets: tuple[int, ...]
    size: int

    @staticmethod
    def of(kernel: Interface) -> ParameterBlock:
        """The order is that of the printed kernel: tensors, maps, symbols, scalars, then
        exchanges."""
        formats = (
            *("P" for _ in kernel.tensors),
            *(MAP_FORMAT for _ in kernel.maps),
            *("i" for _ in kernel.symbols),
            *(_FORMATS.get(s.dtype.name, f"{s.dtype.bytes}s") for s in kernel.scalars),
            *("P" for _ in kernel.exchanges),
        )
        offsets, size = laid_out(struct.calcsize(code) for code in formats)
        return ParameterBlock(formats, offsets, size)


def scalar_value(value: float | int | bool, dtype: DType) -> Any:
    """A scalar as `struct` packs it: element types that it lacks become their bytes."""
    if dtype.name in _FORMATS:
        return value
    return np.asarray(value).astype(numpy_dtype(dtype)).tobytes()


class Frame(NamedTuple):
    """A configuration and parameters in one buffer, and the addresses that the driver takes."""

    buffer: Any
    configuration: int
    parameters: int
    context: ctypes.c_void_p  # receives the current context
    context_place: int
    addresses: Any  # of each parameter; `parameters` is where they lie

    @staticmethod
    def of(template: bytes, offsets: Sequence[int]) -> Frame:
        buffer = ctypes.create_string_buffer(template, len(template))
        start = ctypes.addressof(buffer)
        places = (start + HEAD + offset for offset in offsets)
        addresses = (ctypes.c_void_p * max(len(offsets), 1))(*places)
        context = ctypes.c_void_p()
        return Frame(
            buffer, start, ctypes.addressof(addresses), context, ctypes.addressof(context),
            addresses,
        )  # fmt: skip


class Frames(threading.local):
    """A frame for each thread, and the `owners` of what its pointers lead to."""

    def __init__(self, template: bytes, offsets: Sequence[int], owners: object = None) -> None:
        self.own = Frame.of(template, offsets)
        self.owners = owners


class Starter:
    """Starts a module's kernel, whichever context is current."""

    __slots__ = ("_context", "_current", "_function", "_launch", "_module")

    def __init__(self, module: Module) -> None:
        calls = launch_calls()
        self._launch, self._current = calls.launch, calls.context
        self._module = module  # its code stays loaded
        self._function = int(module.function)
        self._context = int(module.context)

    @property
    def context(self) -> Any:
        """Of the module's device."""
        return self._module.context

    def start(self, frame: Frame) -> None:
        """Launch. The thread's current device may be another one, and stays so."""
        _, configuration, parameters, context, place, _ = frame
        self._current(place)
        if context.value == self._context:
            status = self._launch(configuration, self._function, parameters, None)
        else:
            status = self._start_elsewhere(frame)
        if status:
            driver = load_driver()
            checked(driver, (driver.CUresult(status),))

    def _start_elsewhere(self, frame: Frame) -> int:
        """Launch in the kernel's context, and return to the current one."""
        driver = load_driver()
        checked(driver, driver.cuCtxPushCurrent(self._module.context))
        try:
            return self._launch(frame.configuration, self._function, frame.parameters, None)
        finally:
            driver.cuCtxPopCurrent()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a launch with everything fixed: its stream by default, the pointers' owners."""

    stream: Callable[[], int]
    owners: object = None


def fixed_start(
    starter: Starter,
    template: bytes,
    offsets: Sequence[int],
    caller: Caller,
    exchanges: Exchanges | None = None,
) -> BoundCall:
    """A launch with everything fixed but the stream. It keeps its owners alive."""
    frames = Frames(template, offsets, caller.owners)
    pack, begin = struct.Struct("P").pack_into, starter.start

    def start(stream: int) -> None:
        frame = frames.own
        pack(frame[0], STREAM, stream)
        if exchanges is not None:
            exchanges.write(frame[0], stream)
        begin(frame)

    def record(stream: int) -> None:
        frame = Frame.of(template, offsets)
        pack(frame[0], STREAM, stream)
        if own is not None:
            own(frame[0])
        begin(frame)

    own = None if exchanges is None else exchanges.alone()
    return as_graph(start, record, starter.context, caller.stream)


class BoundLaunch:
    """A launch with everything fixed but pointers and stream; a call costs about a microsecond.

    Threads may share it.
    """

    __slots__ = (
        "_begin", "_exchanges", "_frames", "_maps", "_offsets", "_pack", "_starter", "_template",
    )  # fmt: skip

    def __init__(
        self,
        module: Module,
        kernel: Interface,
        blocks: int,
        values: Sequence[Any],
        encoders: tuple[MapEncoder, ...] = (),
        exchanges: Exchanges | None = None,
    ) -> None:
        block = ParameterBlock.of(kernel)
        self._offsets = block.offsets
        pointers, maps = len(kernel.tensors), len(kernel.maps)
        self._maps = Maps(encoders, HEAD + block.offsets[pointers]) if encoders else None
        self._template = bytearray(HEAD + block.size)
        write_configuration(self._template, kernel, blocks)
        first = pointers + maps
        last = len(block.offsets) - len(kernel.exchanges)
        fixed = zip(block.formats[first:last], block.offsets[first:last], values, strict=True)
        for code, offset, value in fixed:
            struct.pack_into(code, self._template, HEAD + offset, value)
        self._exchanges = exchanges
        self._frames = Frames(bytes(self._template), block.offsets)
        self._pack = struct.Struct(f"P{HEAD - STREAM - 8}x{pointers}P").pack_into
        self._starter = Starter(module)
        self._begin = self._starter.start

    def __call__(self, stream: int, *pointers: int) -> None:
        """Start the kernel on `stream`, a stream of its device. ToolchainError where it fails.

        The thread's current device may be another one, and stays so.
        """
        frame = self._frames.own
        self._pack(frame[0], STREAM, stream, *pointers)
        if self._maps is not None:
            self._maps.write(frame[0], pointers)
        if self._exchanges is not None:
            self._exchanges.write(frame[0], stream)
        self._begin(frame)

    def fixed(self, caller: Caller, *pointers: int) -> BoundCall:
        """The launch with its pointers fixed too: it takes the stream."""
        template = bytearray(self._template)
        self._pack(template, STREAM, 0, *pointers)
        if self._maps is not None:
            self._maps.write(template, pointers)
        return fixed_start(self._starter, bytes(template), self._offsets, caller, self._exchanges)


def write_configuration(buffer: bytearray, kernel: Interface, blocks: int) -> None:
    """The driver's configuration of a launch of so many blocks."""
    struct.pack_into("7I", buffer, 0, blocks, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes)


@dataclass(frozen=True, slots=True)
class Bound:
    """What is known of a launch without pointers: blocks, symbols and scalars, maps."""

    blocks: int
    values: tuple[Any, ...]
    encoders: tuple[MapEncoder, ...]


def bind_launch(
    module: Module,
    kernel: Interface,
    symbols: Mapping[str, int],
    scalars: Mapping[str, float | int | bool],
    exchanges: Exchanges | None = None,
) -> BoundLaunch:
    """A launch for these sizes and scalars, with the `exchanges_of` the kernel.

    CallError where a symbol or scalar is missing or a contract does not hold.
    """
    bound = bound_arguments(kernel, symbols, scalars)
    return BoundLaunch(module, kernel, bound.blocks, bound.values, bound.encoders, exchanges)


def exchanges_of(kernel: Interface, device: int) -> Exchanges | None:
    """The memory of the kernel's exchanges, for all its launches on a device; None without any."""
    if not kernel.exchanges:
        return None
    offsets = ParameterBlock.of(kernel).offsets[-len(kernel.exchanges) :]
    return Exchanges(kernel, [HEAD + offset for offset in offsets], device)


def bound_arguments(
    kernel: Interface,
    symbols: Mapping[str, int],
    scalars: Mapping[str, float | int | bool],
) -> Bound:
    """What a launch for these sizes and scalars needs. Errors are those of `bind_launch`."""
    missing = [s.name for s in kernel.symbols if s.name not in symbols]
    missing += [s.name for s in kernel.scalars if s.name not in scalars]
    if missing:
        raise CallError(
            f"{kernel.name} is launched without {', '.join(missing)}",
            expected="a value for each symbol and scalar of the kernel",
        )
    check_contracts(kernel, symbols)
    blocks = block_count(kernel, symbols)
    if not 0 < blocks < 1 << 31:
        raise CallError(
            f"{kernel.name} would be launched with {blocks} blocks",
            expected="between 1 and 2**31 - 1",
        )
    values = (
        *(symbols[s.name] for s in kernel.symbols),
        *(scalar_value(scalars[s.name], s.dtype) for s in kernel.scalars),
    )
    return Bound(blocks, values, map_encoders(kernel, symbols))


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
