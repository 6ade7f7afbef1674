"""A bench for machines without a device: NumPy arrays, the simulator, and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.runtime.arguments import TensorView


@dataclass
class HostBench:
    """Host tensors on the simulator; `seconds` gives the time of the n-th kernel that is timed.

    `after` may spoil what a run has written: the memories by name, and the number of the run.
    """

    seconds: Callable[[int], float] = lambda turn: 1e-5 * (1 + turn)
    name: str = "a bench"
    timed: int = 0
    log: list[str] = field(default_factory=list)

    def read(self, tensor: TensorView) -> np.ndarray[Any, Any]:
        return tensor.array().copy()

    def fill(self, tensor: TensorView, byte: int) -> None:
        array = tensor.array()
        array[...] = np.full(array.itemsize, byte, np.uint8).view(array.dtype)
        self.log.append(f"fill {byte:#x}")

    def snapshot(self, tensor: TensorView) -> Callable[[], None]:
        kept = tensor.array().copy()

        def put_back() -> None:
            tensor.array()[...] = kept
            self.log.append("restore")

        return put_back

    def time(self, launch: Callable[[], object], before: Callable[[], object]) -> float:
        before()
        launch()
        self.timed += 1
        return self.seconds(self.timed - 1)
