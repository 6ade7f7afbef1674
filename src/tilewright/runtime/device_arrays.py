"""NumPy arrays on a CUDA device, for machines where nothing else provides device tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime.cuda_driver import DeviceMemory, device_count, synchronize


class DeviceArray:
    """A copy of a NumPy array in device memory. It quacks like a tensor: see `arguments.view`."""

    def __init__(self, array: NDArray[Any], index: int = 0) -> None:
        data = np.ascontiguousarray(array)
        self.shape = array.shape
        self.dtype = array.dtype
        self.device = SimpleNamespace(type="cuda", index=index)
        self._strides = tuple(s // array.itemsize for s in data.strides)
        self._memory = DeviceMemory(data.nbytes, index)
        self._memory.write(data.ctypes.data)

    def data_ptr(self) -> int:
        """The device address."""
        return self._memory.pointer

    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self._strides

    def numpy(self) -> NDArray[Any]:
        """A copy on the host, after all work of the device."""
        synchronize(self.device.index)
        out = np.empty(self.shape, self.dtype)
        self._memory.read(out.ctypes.data)
        return out


def has_device() -> bool:
    """Whether there is a CUDA device and the means to use it."""
    try:
        return device_count() > 0
    except ToolchainError:
        return False


def to_device(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Copies of the arrays on the first device, other values as they are; None without a device."""
    if not has_device():
        return None
    found: dict[str, Any] = {}
    for name, value in values.items():
        found[name] = DeviceArray(value) if type(value) is np.ndarray else value
    return found
