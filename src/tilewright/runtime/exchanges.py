"""Global memory through which the blocks of a launch exchange registers, one piece per stream."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.kernel.declared import Interface, exchange_bytes
from tilewright.runtime.cuda_driver import DeviceMemory, synchronize

ATTRIBUTES = 40  # where the driver's CUlaunchConfig has a pointer to attributes, then their number
_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE: all blocks run at once, or none do
_ATTRIBUTE = struct.Struct("I4xI60x")  # CUlaunchAttribute: which, and its value


class Exchanges:
    """The exchanges of a kernel, written into a launch's buffer: their memory and the demand that
    all blocks run at once.

    Launches of one stream follow one another and share the memory; each other stream gets its
    own at its first launch, which therefore cannot be captured into a graph. So do the launches of
    a recorded graph: `alone` is theirs.
    """

    __slots__ = ("_attribute", "_device", "_offsets", "_places", "_sizes")

    def __init__(self, kernel: Interface, blocks: int, offsets: Sequence[int], device: int) -> None:
        self._sizes = tuple(
            exchange_bytes(e, blocks, kernel.warps, kernel.threads) for e in kernel.exchanges
        )
        self._offsets = tuple(offsets)
        self._device = device
        self._places: dict[int, tuple[DeviceMemory, ...]] = {}
        self._attribute = ctypes.create_string_buffer(_ATTRIBUTE.pack(_COOPERATIVE, 1))

    def write(self, buffer: Any, stream: int) -> None:
        places = self._places.get(stream)
        if places is None:
            places = self._places.setdefault(stream, self._allocated(stream))
        self._fill(buffer, places)

    def alone(self) -> Callable[[Any], None]:
        """How to write memory that is ready on every stream into a launch's buffer. It lives as
        long as what is returned."""
        places = self._allocated(0)
        synchronize(self._device)
        return lambda buffer: self._fill(buffer, places)

    def _fill(self, buffer: Any, places: Sequence[DeviceMemory]) -> None:
        struct.pack_into("PI", buffer, ATTRIBUTES, ctypes.addressof(self._attribute), 1)
        for offset, memory in zip(self._offsets, places, strict=True):
            struct.pack_into("P", buffer, offset, memory.pointer)

    def _allocated(self, stream: int) -> tuple[DeviceMemory, ...]:
        """New memory, its flags zero."""
        places = tuple(DeviceMemory(size, self._device) for size in self._sizes)
        for memory in places:
            memory.fill(0, stream)
        return places
