"""A trial run of any kernel: random inputs, and the outputs against what the program means."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, Kind
from tilewright.driver.compiled import CompiledKernel
from tilewright.driver.reference import Array, evaluate, tolerance
from tilewright.kernel.ops import Mode
from tilewright.lang.types import MemoryType
from tilewright.runtime.arguments import numpy_dtype

DEFAULT_SIZE = 48  # of an axis that nothing binds


@dataclass(frozen=True, slots=True)
class Output:
    """One output tensor. `error` and `allowed` are relative to the largest magnitude."""

    name: str
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed


@dataclass(frozen=True, slots=True)
class Trial:
    where: str
    sizes: Mapping[str, int]
    outputs: tuple[Output, ...]
    seconds: float

    @property
    def sizes_text(self) -> str:
        return ", ".join(f"{a}={n}" for a, n in self.sizes.items())


def run_trial(
    compiled: CompiledKernel, sizes: Mapping[str, int], seed: int, *, simulate: bool
) -> Trial:
    """Run on random inputs, on the simulator unless a device can take the kernel."""
    graph = compiled.compilation.graph
    whole = {
        axis: extent.const if extent.is_const else sizes.get(axis, DEFAULT_SIZE)
        for axis, extent in graph.axes.items()
    }
    random = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for name, kind in compiled.program.arguments.items():
        if isinstance(kind, MemoryType):
            values[name] = random_array(random, [whole[a] for a in kind.axes], kind.dtype)
        else:
            values[name] = random_array(random, [], kind).item()
    tensors: dict[str, Array] = {n: v for n, v in values.items() if isinstance(v, np.ndarray)}
    scalars = {n: v for n, v in values.items() if not isinstance(v, np.ndarray)}
    tiles = {a: p.tile for a, p in compiled.compilation.plan.axes.items()}
    expected = evaluate(graph, tensors, scalars, whole, tiles)
    kernel = compiled.compilation.kernel
    for tensor in kernel.tensors:
        if tensor.mode is Mode.OUT:
            values[tensor.name] = poisoned(tensors[tensor.name])
    started = time.perf_counter()
    where = f"the simulator of {compiled.target.name}"
    device = None if simulate else _device_arrays(compiled, values)
    if device is None:
        compiled(*values.values())
    else:
        where = f"a {compiled.target.name} device"
        compiled(*device.values())
        values.update({n: device[n].numpy() for n in expected})
    seconds = time.perf_counter() - started
    allowed = tolerance(graph, whole)
    outputs = tuple(
        Output(name, relative_error(values[name], wanted), allowed)
        for name, wanted in expected.items()
    )
    return Trial(where, whole, outputs, seconds)


def random_array(random: np.random.Generator, shape: list[int], dtype: DType) -> Array:
    """Standard normal floats, small integers, fair bools."""
    if dtype.kind is Kind.FLOAT:
        return np.asarray(random.standard_normal(shape)).astype(numpy_dtype(dtype))
    if dtype.kind is Kind.BOOL:
        return np.asarray(random.integers(0, 2, shape)).astype(np.bool_)
    return np.asarray(random.integers(-8, 9, shape)).astype(numpy_dtype(dtype))


def poisoned(like: Array) -> Array:
    """An array of bytes that no kernel writes by chance (a NaN in every float type but fnuz)."""
    byte = b"\xff" if like.dtype.kind != "b" else b"\x01"
    return np.frombuffer(byte * like.nbytes, like.dtype).reshape(like.shape).copy()


def relative_error(found: Array, wanted: Array) -> float:
    """The largest difference over the largest finite magnitude; infinite where NaNs differ."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    if not (finite | same).all():
        return float("inf")
    scale = np.abs(b[finite]).max(initial=0.0) or 1.0
    return float(np.abs(a - b)[finite].max(initial=0.0) / scale)


def _device_arrays(compiled: CompiledKernel, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments on a CUDA device that runs the kernel; None where there is none."""
    from tilewright.runtime.device_arrays import to_device

    if compiled.target.printer != "cuda":
        return None
    return to_device(values)
