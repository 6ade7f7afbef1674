"""Timing on the device, with events, and the L2 cache flushed before each run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tilewright.runtime.cuda_driver import (
    DeviceMemory,
    attribute,
    checked,
    current_stream,
    load_driver,
    use_device,
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of single runs, in microseconds."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def best(self) -> float:
        return min(self.runs)

    def quantile(self, part: float) -> float:
        """The time that `part` of the runs stay below."""
        ordered = sorted(self.runs)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)]

    def tflops(self, operations: float) -> float:
        """TFLOP/s at the median, for so many operations a run."""
        return operations / self.median * 1e-6

    def bandwidth(self, moved: float) -> float:
        """TB/s at the median, for so many bytes a run."""
        return moved / self.median * 1e-6


def measure(
    launch: Callable[[], object],
    *,
    warmup: int = 10,
    repeats: int = 50,
    flush: bool = True,
    device: int = 0,
    stream: int | None = None,
    before: Callable[[], object] | None = None,
) -> Timing:
    """Time `launch`, which starts work on `stream` (by default the current one), run by run.

    `before` starts work that precedes each run and is not timed.
    """
    driver = load_driver()
    use_device(device)
    stream = current_stream(device) if stream is None else stream
    names = driver.CUdevice_attribute
    size = 2 * attribute(names.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device) if flush else 0
    events: list[tuple[Any, Any]] = []
    with DeviceMemory(size, device) as scratch:
        for run in range(warmup + repeats):
            if before is not None:
                before()
            if flush:
                scratch.fill(run & 255, stream)
            start, end = (checked(driver, driver.cuEventCreate(0)) for _ in range(2))
            checked(driver, driver.cuEventRecord(start, stream))
            launch()
            checked(driver, driver.cuEventRecord(end, stream))
            events.append((start, end))
        checked(driver, driver.cuStreamSynchronize(stream))
        runs = [checked(driver, driver.cuEventElapsedTime(*pair)) * 1e3 for pair in events]
    for pair in events:
        for event in pair:
            driver.cuEventDestroy(event)
    return Timing(tuple(float(run) for run in runs[warmup:]))
