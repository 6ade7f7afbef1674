"""Where kernels are measured: access to tensors' memory from outside, and a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.arguments import Device, TensorView, numpy_dtype
from tilewright.runtime.cuda_driver import (
    DeviceMemory,
    checked,
    current_stream,
    device_name,
    load_driver,
    use_device,
)  # fmt: skip
from tilewright.runtime.timing import measure

BUDGET = 0.05  # seconds of measuring for one kernel, its least number of runs permitting
LEAST_RUNS, MOST_RUNS = 5, 50


class Bench(Protocol):
    """A device, as tuning sees it."""

    @property
    def name(self) -> str:
        """Which device it is: times of another one are not comparable."""
        ...

    def read(self, tensor: TensorView) -> NDArray[Any]:
        """A copy of the elements, after all work that was started before."""
        ...

    def fill(self, tensor: TensorView, byte: int) -> None:
        """Set each byte of each element."""
        ...

    def snapshot(self, tensor: TensorView) -> Callable[[], None]:
        """A function that starts to put the elements back as they are now."""
        ...

    def time(self, launch: Callable[[], object], before: Callable[[], object]) -> float:
        """Seconds of a run that `launch` starts; `before` precedes each and is not timed."""
        ...


def bench_for(device: Device) -> Bench | None:
    """The bench of a device; None for the CPU, where kernels are simulated and have no speed."""
    return CudaBench(device.index) if device.kind == "cuda" else None


@dataclass(frozen=True, slots=True)
class CudaBench:
    """A CUDA device, timed with events."""

    device: int = 0

    @property
    def name(self) -> str:
        return device_name(self.device)

    def read(self, tensor: TensorView) -> NDArray[Any]:
        low, size = reach(tensor)
        host = np.empty(size, np.uint8)
        self._copy("DtoH", host.ctypes.data, tensor.pointer + low, size)
        self._wait()
        return elements(host, tensor, low).copy()

    def fill(self, tensor: TensorView, byte: int) -> None:
        low, size = reach(tensor)
        start = tensor.pointer + low
        if size == prod(tensor.shape) * tensor.dtype.bytes:
            driver = load_driver()
            use_device(self.device)
            stream = current_stream(self.device)
            where = driver.CUdeviceptr(start)
            checked(driver, driver.cuMemsetD8Async(where, byte, size, stream))
            return
        # What lies between the elements is not ours to change.
        host = np.empty(size, np.uint8)
        self._copy("DtoH", host.ctypes.data, start, size)
        self._wait()
        found = elements(host, tensor, low)
        found[...] = np.full(found.itemsize, byte, np.uint8).view(found.dtype)
        self._copy("HtoD", start, host.ctypes.data, size)
        self._wait()

    def snapshot(self, tensor: TensorView) -> Callable[[], None]:
        low, size = reach(tensor)
        kept = DeviceMemory(size, self.device)
        self._copy("DtoD", kept.pointer, tensor.pointer + low, size)
        return lambda: self._copy("DtoD", tensor.pointer + low, kept.pointer, size)

    def time(self, launch: Callable[[], object], before: Callable[[], object]) -> float:
        first = measure(launch, warmup=1, repeats=2, device=self.device, before=before).best
        runs = min(MOST_RUNS, max(LEAST_RUNS, int(BUDGET * 1e6 / first)))
        timing = measure(launch, warmup=0, repeats=runs, device=self.device, before=before)
        return timing.median * 1e-6

    def _copy(self, way: str, to: int, source: int, size: int) -> None:
        driver = load_driver()
        use_device(self.device)
        ends = (
            to if way == "DtoH" else driver.CUdeviceptr(to),
            source if way == "HtoD" else driver.CUdeviceptr(source),
        )
        start = getattr(driver, f"cuMemcpy{way}Async")
        checked(driver, start(*ends, size, current_stream(self.device)))

    def _wait(self) -> None:
        driver = load_driver()
        checked(driver, driver.cuStreamSynchronize(current_stream(self.device)))


def reach(tensor: TensorView) -> tuple[int, int]:
    """Where a tensor's memory starts, from its pointer, and its length: both in bytes."""
    spread = [s * (n - 1) for s, n in zip(tensor.strides, tensor.shape, strict=True)]
    low, high = sum(min(0, s) for s in spread), sum(max(0, s) for s in spread)
    return low * tensor.dtype.bytes, (high - low + 1) * tensor.dtype.bytes


def elements(memory: NDArray[np.uint8], tensor: TensorView, low: int) -> NDArray[Any]:
    """A tensor's elements in a copy of the memory that it reaches from `low` on."""
    kind = numpy_dtype(tensor.dtype)
    steps = tuple(stride * kind.itemsize for stride in tensor.strides)
    return np.ndarray(tensor.shape, kind, memory, -low, steps)
