"""Global memory through which the blocks of a launch exchange registers, one piece per stream."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from tilewright.kernel.declared import (
    Exchange,
    Interface,
    block_count,
    exchange_bytes,
    exchange_flags,
)
from tilewright.runtime.cuda_driver import (
    DeviceMemory,
    address,
    beside_captures,
    checked,
    launch_calls,
    load_driver,
    place_of,
    primary_context,
)

ATTRIBUTES = 40  # where the driver's CUlaunchConfig has a pointer to attributes, then their number
OF_THE_THREAD = 2  # CU_STREAM_PER_THREAD: one handle for another stream in each thread
_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE: all blocks run at once, or none do
_ATTRIBUTE = struct.Struct("I4xI60x")  # CUlaunchAttribute: which, and its value


class Exchanges:
    """The exchanges of a kernel on a device, written into a launch's buffer: their memory and the
    demand that all blocks run at once. All launches of the kernel share it.

    Launches of one stream follow one another and share the memory; each other stream gets its
    own at its first launch. A graph's launches may run beside those: what a stream captures into it
    has memory of its own, kept as long as this object, and `alone` is for a recorded launch.
    """

    __slots__ = (
        "_attribute", "_capturing", "_device", "_flags", "_offsets", "_places", "_sizes",
    )  # fmt: skip

    def __init__(self, kernel: Interface, offsets: Sequence[int], device: int) -> None:
        """`offsets`: where the pointer to each exchange lies in a launch's buffer, in bytes."""
        blocks = block_count(kernel, {})

        def size(exchange: Exchange) -> int:
            return exchange_bytes(exchange, blocks, kernel.warps, kernel.threads)

        self._sizes = tuple(size(e) for e in kernel.exchanges)
        self._flags = exchange_flags(blocks, kernel.warps)
        self._offsets = tuple(offsets)
        self._device = device
        self._places: dict[object, tuple[DeviceMemory, ...]] = {}
        self._capturing = launch_calls().capturing
        self._attribute = ctypes.create_string_buffer(_ATTRIBUTE.pack(_COOPERATIVE, 1))

    def write(self, buffer: Any, stream: int) -> None:
        """Write what a launch on the stream needs into its buffer."""
        key = self._order(stream)
        places = self._places.get(key)
        if places is None:
            places = self._places.setdefault(key, self._allocated(stream))
        self._fill(buffer, places)

    def alone(self) -> Callable[[Any], None]:
        """How to write memory that is ready on every stream into a launch's buffer. It lives as
        long as what is returned."""
        places = self._allocated(None)
        return lambda buffer: self._fill(buffer, places)

    def _order(self, stream: int) -> object:
        """What launches follow one another in: a stream, or one that a graph captures."""
        state = ctypes.c_int()
        if not self._capturing(address(stream), place_of(state)) and state.value:
            driver = load_driver()
            _, capture, *_ = checked(driver, driver.cuStreamGetCaptureInfo(stream))
            return "capture", int(capture), stream
        return (stream, get_ident()) if stream == OF_THE_THREAD else stream

    def _fill(self, buffer: Any, places: Sequence[DeviceMemory]) -> None:
        struct.pack_into("PI", buffer, ATTRIBUTES, ctypes.addressof(self._attribute), 1)
        for offset, memory in zip(self._offsets, places, strict=True):
            struct.pack_into("P", buffer, offset, memory.pointer)

    def _allocated(self, stream: int | None) -> tuple[DeviceMemory, ...]:
        """New memory, its flags zero for what comes next on the stream, or on any.

        The thread's current device stays. While the stream is captured, the allocation is no part
        of the graph; setting the flags is.
        """
        driver = load_driver()
        with beside_captures(primary_context(self._device)) as own:
            places = tuple(DeviceMemory(size, self._device) for size in self._sizes)
            for memory in places:
                memory.fill(0, own if stream is None else stream, self._flags)
            if stream is None:
                checked(driver, driver.cuStreamSynchronize(own))
        return places
