"""`FusionDefinition`: a fusion that compiles itself to its inputs and runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.diagnostics import CallError, DTypeError, ShapeError
from tilewright.base.dtypes import DType
from tilewright.codegen.sim import simulate
from tilewright.driver.fused import CompiledFusion, FusedKernel, Scheduled, compile_fusion
from tilewright.driver.launch import device_target
from tilewright.fusion import ops
from tilewright.fusion.access import dense
from tilewright.fusion.definition import Definition, Tensor
from tilewright.fusion.records import OutputRecord, TensorRecord
from tilewright.fusion.to_graph import Binding
from tilewright.runtime.arguments import CPU, DTYPE_NAMES, Device, TensorView, numpy_dtype, view
from tilewright.runtime.cache import default_cache
from tilewright.runtime.cuda_driver import Module, current_stream, load_module, use_device
from tilewright.runtime.launch import BoundLaunch, bind_launch
from tilewright.runtime.toolchain import compile_source
from tilewright.target import ALL_TARGETS, target_named
from tilewright.target.model import Target

_SPELLINGS = {dtype: name for name, dtype in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class _Inputs:
    """The arguments of one execution: tensors seen alike, scalars, the device, an example."""

    tensors: Mapping[int, TensorView]
    scalars: Mapping[int, float | int | bool]
    originals: Sequence[Any]
    device: Device

    @property
    def key(self) -> object:
        views = ((p, v.shape, v.strides, min(16, v.alignment)) for p, v in self.tensors.items())
        return self.device, tuple(views)

    @property
    def example(self) -> object:
        """A tensor to make others like; None where there is none."""
        return next((self.originals[p] for p in self.tensors), None)


class FusionDefinition(Definition):
    """Tensor operations, compiled together.

    As a context manager::

        with FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], dtype=DataType.Half)
            fd.add_output(fd.ops.softmax(x, dim=1))
        (y,) = fd.execute([array])

    or from a function that takes the definition: ``FusionDefinition(build)``.
    """

    _compiled: dict[object, tuple[CompiledFusion, _Runner]]

    def execute(self, inputs: Sequence[Any], *, target: str | None = None) -> list[Any]:
        """Run on the inputs' device; NumPy arrays and CPU tensors run on a simulator.

        Results are new tensors of the inputs' library, in the order of `add_output`. Those that
        are aliased to an input are written there instead. `target` names the simulated target.
        """
        given = self._look_at(inputs)
        compiled, runner = self._compile(given, target)
        return runner.run(compiled, given, self.results(), self._aliased())

    def compile(self, inputs: Sequence[Any], *, target: str | None = None) -> CompiledFusion:
        """The kernels for inputs such as these, without running them."""
        return self._compile(self._look_at(inputs), target)[0]

    def from_tensor(self, tensor: Any) -> Tensor:
        """Define an input with the sizes open, and the element type and order, of a tensor.

        Dimensions of size 1 stay such; the others may change between calls.
        """
        seen = view(tensor, "tensor")
        shape = [1 if n == 1 else -1 for n in seen.shape]
        order = _stride_order(seen)
        packed = dense(seen.shape, order)
        flags = [None if n == 1 else s == p
                 for n, s, p in zip(seen.shape, seen.strides, packed, strict=True)]  # fmt: skip
        return self.define_tensor(shape, flags, seen.dtype, stride_order=order)

    from_pytorch = from_tensor

    def _aliased(self) -> dict[int, int]:
        """The position of each input tensor, by its number."""
        return {r.result: r.position for r in self.records if isinstance(r, TensorRecord)}

    # ------------------------------------------------------------ compilation

    def _compile(self, given: _Inputs, target: str | None) -> tuple[CompiledFusion, _Runner]:
        chosen = self._target(given.device, target)
        key = (chosen.name, given.key)
        cache = self.__dict__.setdefault("_compiled", {})
        found = cache.get(key)
        if found is None:
            shapes = {p: v.shape for p, v in given.tensors.items()}
            program = self.program(shapes)
            orders = {
                node: record.stride_order
                for node, record in zip(program.outputs, self.results(), strict=True)
                if record.stride_order is not None
            }
            compiled = compile_fusion(
                program, chosen, {p: v.strides for p, v in given.tensors.items()},
                {p: min(16, v.alignment) for p, v in given.tensors.items()}, orders,
                self._scheduled(program),
            )  # fmt: skip
            found = cache[key] = (compiled, _Runner(chosen))
        return found

    def _scheduled(self, program: ops.Program) -> Scheduled | None:
        """The schedule by hand, where there is one, with the nodes of inputs and results."""
        if not self.sched.calls:
            return None
        inputs = {n.position: i for i, n in enumerate(program.nodes) if isinstance(n, ops.Input)}
        nodes = {
            r.result: inputs[r.position]
            for r in self.records
            if isinstance(r, TensorRecord) and r.position in inputs
        }
        results = zip(self.results(), program.outputs, strict=True)
        return Scheduled(self.sched, {**nodes, **{r.value: node for r, node in results}})

    @staticmethod
    def _target(device: Device, named: str | None) -> Target:
        of_device = device_target(device)
        if of_device is not None:
            return target_named(of_device)
        named = named or os.environ.get("TILEWRIGHT_TARGET")
        return target_named(named) if named else ALL_TARGETS[0]

    def _look_at(self, inputs: Sequence[Any]) -> _Inputs:
        """Check the inputs against the definition."""
        records = self.inputs()
        if len(inputs) != len(records):
            raise CallError(
                f"the fusion is executed with {len(inputs)} inputs",
                expected=f"{len(records)}, as it defines",
                mend="pass one value for each define_tensor and define_scalar, in order",
            )
        tensors: dict[int, TensorView] = {}
        scalars: dict[int, float | int | bool] = {}
        for position, (record, value) in enumerate(zip(records, inputs, strict=True)):
            if isinstance(record, TensorRecord):
                tensors[position] = _checked(record, view(value, f"input {position}"))
            elif isinstance(value, float | int | bool | np.generic):
                scalars[position] = value.item() if isinstance(value, np.generic) else value
            else:
                raise CallError(f"input {position} is a {type(value).__name__}", span=record.span,
                                expected="a number", mend="pass a Python number")  # fmt: skip
        devices = {v.device for v in tensors.values()}
        if len(devices) > 1:
            raise CallError(
                f"the inputs are on {' and '.join(sorted(map(str, devices)))}",
                expected="all tensors on one device",
                mend="move them to one device",
            )
        return _Inputs(tensors, scalars, inputs, next(iter(devices), CPU))


def _checked(record: TensorRecord, found: TensorView) -> TensorView:
    name = f"input {record.position}"
    if found.dtype != record.dtype:
        raise DTypeError(f"{name} holds {found.dtype.name}", span=record.span,
                         expected=record.dtype.name, mend="convert the tensor")  # fmt: skip
    fits = len(found.shape) == len(record.shape) and all(
        n in (-1, m) for n, m in zip(record.shape, found.shape, strict=True)
    )
    if not fits:
        raise ShapeError(f"{name} has shape {list(found.shape)}", span=record.span,
                         expected=f"{list(record.shape)}, -1 for any size",
                         mend="reshape the tensor, or define other sizes")  # fmt: skip
    packed = dense(found.shape, record.stride_order)
    for dim, (promise, size, stride, wanted) in enumerate(
        zip(record.contiguity, found.shape, found.strides, packed, strict=True)
    ):
        if promise and size > 1 and stride != wanted and all(found.shape):
            raise CallError(
                f"{name} has stride {stride} in dimension {dim}", span=record.span,
                expected=f"{wanted}: the definition promises that it is contiguous",
                mend="make the tensor contiguous, or leave contiguity out",
            )  # fmt: skip
    return found


def _stride_order(seen: TensorView) -> list[int] | None:
    rank = len(seen.shape)
    ranked = sorted(range(rank), key=lambda d: (seen.strides[d], -d))
    order = [ranked.index(d) for d in range(rank)]
    return None if order == list(range(rank - 1, -1, -1)) else order


class _Runner:
    """Runs compiled fusions: holds loaded modules, and allocates what they write."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._modules: dict[tuple[int, int], Module] = {}
        self._launches: dict[object, BoundLaunch] = {}

    def run(
        self, compiled: CompiledFusion, given: _Inputs, results: Sequence[OutputRecord],
        positions: Mapping[int, int],
    ) -> list[Any]:  # fmt: skip
        """Start the kernels in order; the results that are returned."""
        nodes = compiled.program.nodes
        views: dict[int, TensorView] = {}
        made: dict[int, Any] = {}
        orders = {n: r.stride_order for n, r in zip(compiled.program.outputs, results, strict=True)}
        for number, node in enumerate(nodes):
            if isinstance(node, ops.Input):
                views[number] = given.tensors[node.position]

        def allocate(number: int) -> None:
            kind = nodes[number].type
            made[number] = _empty(given, kind.shape, kind.dtype, orders.get(number))
            views[number] = view(made[number])

        for number, kernel in enumerate(compiled.kernels):
            for binding in kernel.bindings:
                if binding.written:
                    allocate(binding.buffer)
            arguments = {b.name: _window(views[b.buffer], b) for b in kernel.bindings}
            scalars = {n: given.scalars[p] for n, p in kernel.fused.scalars.items()}
            self._start(number, kernel, arguments, scalars, given.device)
        for output in compiled.program.outputs:
            if output not in made:
                allocate(output)  # without elements: nothing to compute
        returned: list[Any] = []
        for output, record in zip(compiled.program.outputs, results, strict=True):
            if record.alias is None:
                returned.append(made[output])
            else:
                _copy_back(given, positions[record.alias], made[output])
        return returned

    def _start(
        self, number: int, kernel: FusedKernel, arguments: Mapping[str, TensorView],
        scalars: Mapping[str, float | int | bool], device: Device,
    ) -> None:  # fmt: skip
        if device.kind == "cpu":
            arrays = {n: v.array() for n, v in arguments.items()}
            numbers = {n: np.asarray(s) for n, s in scalars.items()}
            simulate(kernel.kernel, self._target, {**arrays, **numbers}, {})
            return
        key = (number, device.index, tuple(scalars.items()))
        launch = self._launches.get(key)
        if launch is None:
            module = self._module(number, kernel, device)
            launch = self._launches[key] = bind_launch(module, kernel.kernel, {}, scalars)
        pointers = (arguments[t.name].pointer for t in kernel.kernel.tensors)
        launch(current_stream(device.index), *pointers)

    def _module(self, number: int, kernel: FusedKernel, device: Device) -> Module:
        key = (number, device.index)
        if key not in self._modules:
            cubin = compile_source(
                kernel.source, self._target, cache=default_cache(), name=kernel.kernel.name
            )
            use_device(device.index)
            self._modules[key] = load_module(cubin, kernel.kernel.shared_bytes, device.index)
        return self._modules[key]


def _window(buffer: TensorView, binding: Binding) -> TensorView:
    pointer = buffer.pointer + binding.offset * binding.dtype.bytes
    return TensorView(
        pointer, binding.shape, binding.strides, binding.dtype, buffer.device, buffer.owner,
        buffer.writable,
    )  # fmt: skip


def _empty(given: _Inputs, shape: Sequence[int], dtype: DType, order: Sequence[int] | None) -> Any:
    """A new tensor of the library and on the device of the inputs."""
    rank = len(shape)
    back = list(range(rank)) if order is None else [rank - 1 - r for r in order]
    outer_first = [shape[back.index(i)] for i in range(rank)]
    like: Any = given.example
    if hasattr(like, "new_empty"):
        library = sys.modules[type(like).__module__.partition(".")[0]]
        made: Any = like.new_empty(outer_first, dtype=getattr(library, _SPELLINGS[dtype]))
        return made.permute(back)
    array = np.empty(outer_first, numpy_dtype(dtype)).transpose(back)
    if given.device.kind == "cpu":
        return array
    from tilewright.runtime.device_arrays import DeviceArray

    return DeviceArray(array, given.device.index)


def _copy_back(given: _Inputs, position: int, value: Any) -> None:
    """Write a result to the input that it is aliased to."""
    target = given.originals[position]
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
