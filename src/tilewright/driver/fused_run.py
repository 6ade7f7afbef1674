"""Running a compiled fusion: what it writes is allocated, its kernels start one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.base.diagnostics import CallError
from tilewright.base.dtypes import DType
from tilewright.driver.fused import CompiledFusion, FusedKernel
from tilewright.driver.launch import remember
from tilewright.driver.loaded import Loaded
from tilewright.fusion import ops
from tilewright.fusion.records import OutputRecord
from tilewright.fusion.to_graph import Binding
from tilewright.runtime.arguments import (
    DTYPE_NAMES,
    Device,
    TensorView,
    dense_strides,
    numpy_dtype,
    view,
)
from tilewright.runtime.cuda_driver import stream_reader
from tilewright.runtime.launch import BoundLaunch, bind_launch, bound_arguments
from tilewright.runtime.launch_problems import ProblemsLaunch

_SPELLINGS = {dtype: name for name, dtype in DTYPE_NAMES.items()}
Scalars = Mapping[int, float | int | bool]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one execution: tensors seen alike, scalars, the device."""

    tensors: Mapping[int, TensorView]
    scalars: Scalars
    originals: Sequence[Any]
    device: Device

    @property
    def key(self) -> object:
        """What a compilation may depend on."""
        views = ((p, v.shape, v.strides, min(16, v.alignment)) for p, v in self.tensors.items())
        return self.device, tuple(views)

    @property
    def example(self) -> Any:
        """A tensor to make others like; None where there is none."""
        return next((self.originals[p] for p in self.tensors), None)


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A tensor to allocate: its sizes from the outermost in memory, and how they are seen."""

    number: int
    dense: tuple[int, ...]
    order: tuple[int, ...] | None  # the permutation that gives the result's dimensions
    dtype: DType

    @property
    def seen(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The result's sizes and strides, in elements."""
        strides = dense_strides(self.dense)
        if self.order is None:
            return self.dense, strides
        return tuple(self.dense[d] for d in self.order), tuple(strides[d] for d in self.order)


class FusedRunner:
    """Runs a compiled fusion again and again. It holds the loaded modules and bound launches."""

    def __init__(
        self,
        compiled: CompiledFusion,
        results: Sequence[OutputRecord],
        positions: Mapping[int, int],
    ) -> None:
        """`positions` gives the position of each input tensor by its number."""
        self.compiled = compiled
        nodes = compiled.program.nodes
        self._inputs = [(i, n.position) for i, n in enumerate(nodes) if isinstance(n, ops.Input)]
        outputs = compiled.program.outputs
        orders = {n: r.stride_order for n, r in zip(outputs, results, strict=True)}
        written = [b.buffer for k in compiled.kernels for b in k.bindings if b.written]
        self._buffers = [
            _buffer(n, nodes[n].type, orders.get(n)) for n in dict.fromkeys((*written, *outputs))
        ]
        self._results = [
            (n, None if r.alias is None else positions[r.alias])
            for n, r in zip(outputs, results, strict=True)
        ]
        self._pointers = [_pointers(kernel) for kernel in compiled.kernels]
        self._loaded = [
            Loaded(kernel.interface, kernel.target, lambda kernel=kernel: kernel.source)
            for kernel in compiled.kernels
        ]
        self._launches: dict[object, BoundLaunch | ProblemsLaunch] = {}

    @property
    def outputs(self) -> tuple[int, ...]:
        """The nodes of the results, in their order."""
        return tuple(self.compiled.program.outputs)

    def run(self, given: Inputs) -> list[Any]:
        """Start the kernels in order; the results that are returned."""
        if given.device.kind != "cpu":
            pointers = [v.pointer for v in given.tensors.values()]
            return self.started(given)(given.originals, pointers)
        start, made = self.prepared(given)
        start()
        return _returned(self._results, made, given.originals)

    def prepared(self, given: Inputs) -> tuple[Callable[[], None], dict[int, Any]]:
        """A function that starts the kernels, and the tensors that they write, by their nodes.

        Those that are aliased to an input are not copied there.
        """
        if given.device.kind != "cpu":
            started = self.started(given)
            made = {number: make() for number, make in started.buffers}
            slots = [v.pointer for v in given.tensors.values()]
            slots += [made[number].data_ptr() for number, _ in started.buffers]
            return partial(started.start, slots), made
        make = _maker(given)
        made = {buffer.number: make(buffer)() for buffer in self._buffers}
        return partial(self._simulate, given, made), made

    def _simulate(self, given: Inputs, made: Mapping[int, Any]) -> None:
        from tilewright.codegen.sim import simulate

        views = {number: given.tensors[position] for number, position in self._inputs}
        views |= {number: view(value) for number, value in made.items()}
        for kernel in self.compiled.kernels:
            for problem in kernel.each:
                arrays = {b.name: _window(views[b.buffer], b).array() for b in problem.bindings}
                scalars = problem.scalars.items()
                numbers = {n: np.asarray(given.scalars[p]) for n, p in scalars}
                simulate(kernel.kernel, kernel.target, {**arrays, **numbers}, problem.symbols)

    def started(self, given: Inputs) -> StartedFusion:
        """How to run on a device for inputs such as these again, given their pointers."""
        make = _maker(given)
        places = {p: i for i, p in enumerate(given.tensors)}
        slots = {number: places[position] for number, position in self._inputs}
        slots |= {b.number: len(places) + i for i, b in enumerate(self._buffers)}
        launches: list[_Launched] = []
        for number, kernel in enumerate(self.compiled.kernels):
            scalars = [
                {n: given.scalars[p] for n, p in problem.scalars.items()} for problem in kernel.each
            ]
            launch = self._bound(number, kernel, given.device, scalars)
            where = tuple((slots[b], offset) for b, offset in self._pointers[number])
            launches.append((launch, where))
        return StartedFusion(
            tuple(launches),
            tuple((b.number, make(b)) for b in self._buffers),
            tuple(self._results),
            given.device.index,
            stream_reader(),
        )

    def _bound(
        self, number: int, kernel: FusedKernel, device: Device,
        scalars: Sequence[Mapping[str, float | int | bool]],
    ) -> BoundLaunch | ProblemsLaunch:  # fmt: skip
        key = (number, device.index, *(repr(v) for own in scalars for v in own.values()))
        launch = self._launches.get(key)
        if launch is None:
            declared, loaded = kernel.interface, self._loaded[number]
            module = loaded.module(device)
            if kernel.problems:
                bound = [
                    bound_arguments(declared, problem.symbols, own)
                    for problem, own in zip(kernel.problems, scalars, strict=True)
                ]
                launch = ProblemsLaunch(module, declared, kernel.room, bound)
            else:
                exchanges = loaded.exchanges(device)
                launch = bind_launch(module, declared, {}, scalars[0], exchanges)
            remember(self._launches, key, launch)
        return launch


_Launched = tuple[BoundLaunch | ProblemsLaunch, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class StartedFusion:
    """A fusion on a device, for inputs of one kind (see `arguments.glance`).

    `launches` say of each pointer in which slot it lies, and the bytes from there: the slots
    are those of the input tensors, then those of the `buffers`, each with how to make it.
    """

    launches: tuple[_Launched, ...]
    buffers: tuple[tuple[int, Callable[[], Any]], ...]
    results: tuple[tuple[int, int | None], ...]
    device: int
    stream: Callable[[int], int]  # the current one of a device

    def __call__(self, originals: Sequence[Any], pointers: list[int]) -> list[Any]:
        """Make what is written and start the kernels in order; the results that are returned."""
        made: dict[int, Any] = {}
        slots = pointers.copy()
        for number, make in self.buffers:
            buffer = made[number] = make()
            slots.append(buffer.data_ptr())
        self.start(slots)
        return _returned(self.results, made, originals)

    def start(self, slots: Sequence[int]) -> None:
        """Start the kernels in order, given the pointers of all slots."""
        stream = self.stream(self.device)
        for launch, where in self.launches:
            launch(stream, *[slots[slot] + offset for slot, offset in where])


def _returned(
    results: Sequence[tuple[int, int | None]], made: Mapping[int, Any], originals: Sequence[Any]
) -> list[Any]:
    """The results in order; those with a position are written to that input instead."""
    returned: list[Any] = []
    for number, position in results:
        if position is None:
            returned.append(made[number])
        else:
            _copy_back(originals[position], position, made[number])
    return returned


def _pointers(kernel: FusedKernel) -> tuple[tuple[int, int], ...]:
    """The buffer and the offset in bytes of each of a kernel's tensors, in its order, problem by
    problem."""
    found: list[tuple[int, int]] = []
    for problem in kernel.each:
        named = {b.name: (b.buffer, b.offset * b.dtype.bytes) for b in problem.bindings}
        found += [named[t.name] for t in kernel.interface.tensors]
    return tuple(found)


def _buffer(number: int, kind: ops.TensorType, order: Sequence[int] | None) -> _Buffer:
    if order is None:
        return _Buffer(number, kind.shape, None, kind.dtype)
    back = tuple(kind.rank - 1 - r for r in order)
    outer_first = tuple(kind.shape[back.index(i)] for i in range(kind.rank))
    return _Buffer(number, outer_first, back, kind.dtype)


def _window(buffer: TensorView, binding: Binding) -> TensorView:
    pointer = buffer.pointer + binding.offset * binding.dtype.bytes
    return TensorView(
        pointer, binding.shape, binding.strides, binding.dtype, buffer.device, buffer.owner,
        buffer.writable,
    )  # fmt: skip


def _maker(given: Inputs) -> Callable[[_Buffer], Callable[[], Any]]:
    """How to make tensors of the library, and on the device, of the inputs."""
    like = given.example
    if hasattr(like, "new_empty"):
        library = sys.modules[type(like).__module__.partition(".")[0]]

        def of_library(buffer: _Buffer) -> Callable[[], Any]:
            dtype = getattr(library, _SPELLINGS[buffer.dtype])
            shape, strides = buffer.seen
            return partial(library.empty_strided, shape, strides, dtype=dtype, device=like.device)

        return of_library

    def array(buffer: _Buffer) -> Any:
        made = np.empty(buffer.dense, numpy_dtype(buffer.dtype))
        return made if buffer.order is None else made.transpose(buffer.order)

    if given.device.kind == "cpu":
        return lambda buffer: partial(array, buffer)
    from tilewright.runtime.device_arrays import DeviceArray

    return lambda buffer: lambda: DeviceArray(array(buffer), given.device.index)


def _copy_back(target: Any, position: int, value: Any) -> None:
    """Write a result to the input that it is aliased to."""
    if hasattr(target, "copy_"):
        target.copy_(value)
    elif isinstance(target, np.ndarray):
        target[...] = value
    else:
        raise CallError(
            f"input {position} is a {type(target).__name__}, which cannot be written",
            expected="a NumPy array, or a tensor with copy_",
            mend="pass a tensor of such a library, or return the value",
        )
