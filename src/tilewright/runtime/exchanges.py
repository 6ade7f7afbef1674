"""Global memory through which the blocks of a launch exchange registers, one piece per stream."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.kernel.declared import Interface, exchange_bytes
from tilewright.runtime.cuda_driver import DeviceMemory, checked, launch_calls, load_driver

ATTRIBUTES = 40  # where the driver's CUlaunchConfig has a pointer to attributes, then their number
_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE: all blocks run at once, or none do
_ATTRIBUTE = struct.Struct("I4xI60x")  # CUlaunchAttribute: which, and its value
_CAPTURING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


class Exchanges:
    """The exchanges of a kernel, written into a launch's buffer: their memory and the demand that
    all blocks run at once.

    Launches of one stream follow one another and share the memory; each other stream gets its
    own, and so does each graph that launches are captured into.
    """

    __slots__ = ("_attribute", "_device", "_offsets", "_places", "_sizes")

    def __init__(self, kernel: Interface, blocks: int, offsets: Sequence[int], device: int) -> None:
        self._sizes = tuple(
            exchange_bytes(e, blocks, kernel.warps, kernel.threads) for e in kernel.exchanges
        )
        self._offsets = tuple(offsets)
        self._device = device
        self._places: dict[tuple[str, int], tuple[DeviceMemory, ...]] = {}
        self._attribute = ctypes.create_string_buffer(_ATTRIBUTE.pack(_COOPERATIVE, 1))

    def write(self, buffer: Any, stream: int) -> None:
        key = _order_of(stream)
        places = self._places.get(key)
        if places is None:
            places = self._places.setdefault(key, zeros(self._sizes, self._device))
        self._fill(buffer, places)

    def alone(self) -> Callable[[Any], None]:
        """How to write memory of its own into a launch's buffer. It lives as long as what is
        returned."""
        places = zeros(self._sizes, self._device)
        return lambda buffer: self._fill(buffer, places)

    def _fill(self, buffer: Any, places: Sequence[DeviceMemory]) -> None:
        struct.pack_into("PI", buffer, ATTRIBUTES, ctypes.addressof(self._attribute), 1)
        for offset, memory in zip(self._offsets, places, strict=True):
            struct.pack_into("P", buffer, offset, memory.pointer)


def _order_of(stream: int) -> tuple[str, int]:
    """What the stream's launches follow one another in: the stream, or the graph it is captured
    into."""
    state = ctypes.c_uint64(0)
    launch_calls().capturing(stream, ctypes.addressof(state))
    if state.value != _CAPTURING:
        return "stream", stream
    driver = load_driver()
    return "capture", int(checked(driver, driver.cuStreamGetCaptureInfo(stream))[1])


def zeros(sizes: Sequence[int], device: int) -> tuple[DeviceMemory, ...]:
    """New memory of zeros, ready on every stream; also while streams are captured."""
    driver = load_driver()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver, driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        places = tuple(DeviceMemory(size, device) for size in sizes)
        own = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = checked(driver, driver.cuStreamCreate(own))
        try:
            for memory in places:
                memory.fill(0, stream)
            checked(driver, driver.cuStreamSynchronize(stream))
        finally:
            driver.cuStreamDestroy(stream)
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)
    return places
