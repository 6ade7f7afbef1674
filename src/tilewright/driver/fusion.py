"""`FusionDefinition`: a fusion that compiles itself to its inputs and runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.diagnostics import CallError, DTypeError, ShapeError
from tilewright.driver.fused import CompiledFusion, Scheduled, compile_fusion
from tilewright.driver.fused_run import FusedRunner, Inputs, StartedFusion
from tilewright.driver.launch import device_target, recall, remember
from tilewright.fusion import ops
from tilewright.fusion.access import dense
from tilewright.fusion.definition import Definition, Tensor
from tilewright.fusion.records import TensorRecord
from tilewright.fusion.sched import Scheduler
from tilewright.runtime.arguments import CPU, Device, TensorView, glance, view
from tilewright.target import ALL_TARGETS, target_named
from tilewright.target.model import Target

if TYPE_CHECKING:
    from tilewright.driver.tuning.config import Config
    from tilewright.driver.tuning.report import Tuned


class FusionDefinition(Definition):
    """Tensor operations, compiled together.

    As a context manager::

        with FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], dtype=DataType.Half)
            fd.add_output(fd.ops.softmax(x, dim=1))
        (y,) = fd.execute([array])

    or from a function that takes the definition: ``FusionDefinition(build)``.
    """

    @cached_property
    def _compiled(self) -> dict[object, FusedRunner]:
        return {}

    @cached_property
    def _started(self) -> dict[object, StartedFusion]:
        """How to launch, by what `glance` sees of the inputs."""
        return {}

    def execute(self, inputs: Sequence[Any], *, target: str | None = None) -> list[Any]:
        """Run on the inputs' device; NumPy arrays and CPU tensors run on a simulator.

        Results are new tensors of the inputs' library, in the order of `add_output`. Those that
        are aliased to an input are written there instead. `target` names the simulated target.
        """
        seen = glance(inputs)
        started = recall(self._started, seen[0]) if seen else None
        if seen and started:
            return started(inputs, seen[1])
        given = self._look_at(inputs)
        runner = self._compile(given, target)
        results = runner.run(given)
        if seen and given.device.kind != "cpu":
            remember(self._started, seen[0], runner.started(given))
        return results

    def compile(self, inputs: Sequence[Any], *, target: str | None = None) -> CompiledFusion:
        """The kernels for inputs such as these, without running them."""
        return self._compile(self._look_at(inputs), target).compiled

    def tune(
        self,
        inputs: Sequence[Any],
        configs: Sequence[Config],
        *,
        top: int | None = None,
        reference: Callable[..., Any] | None = None,
        tolerance: float | None = None,
    ) -> Tuned:
        """Find the fastest schedule for such inputs; `execute` takes it for them from then on.

        The `schedule` of a config is a function that gets an empty `sched` and calls its methods;
        a config without one leaves the schedule to the compiler. All else is as in
        `TileKernel.tune`. TuningError where no config works.
        """
        from tilewright.driver.tuning.fusion import FusionSubject
        from tilewright.driver.tuning.options import Options

        given = self._look_at(inputs)
        target = self._target(given.device, None)
        subject = FusionSubject.of(
            self.records, given, configs, lambda recorder: self._runner(given, target, recorder)
        )
        tuned = subject.tuned(Options.of(top, reference, tolerance))
        self._compiled[target.name, given.key] = subject.runner(tuned.number)
        self._started.clear()  # it may hold launches of another schedule
        return tuned

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

    # ------------------------------------------------------------ compilation

    def _compile(self, given: Inputs, target: str | None) -> FusedRunner:
        chosen = self._target(given.device, target)
        key = (chosen.name, given.key)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._runner(given, chosen, self.sched)
        return found

    def _runner(self, given: Inputs, target: Target, scheduler: Scheduler) -> FusedRunner:
        """The kernels for such inputs, by hand where the scheduler has recorded anything."""
        program = self.program({p: v.shape for p, v in given.tensors.items()})
        orders = {
            node: record.stride_order
            for node, record in zip(program.outputs, self.results(), strict=True)
            if record.stride_order is not None
        }
        compiled = compile_fusion(
            program, target, {p: v.strides for p, v in given.tensors.items()},
            {p: min(16, v.alignment) for p, v in given.tensors.items()}, orders,
            self._scheduled(program, scheduler),
        )  # fmt: skip
        positions = {r.result: r.position for r in self.records if isinstance(r, TensorRecord)}
        return FusedRunner(compiled, self.results(), positions)

    def _scheduled(self, program: ops.Program, scheduler: Scheduler) -> Scheduled | None:
        """The schedule by hand, where there is one, with the nodes of inputs and results."""
        if not scheduler.calls:
            return None
        inputs = {n.position: i for i, n in enumerate(program.nodes) if isinstance(n, ops.Input)}
        nodes = {
            r.result: inputs[r.position]
            for r in self.records
            if isinstance(r, TensorRecord) and r.position in inputs
        }
        results = zip(self.results(), program.outputs, strict=True)
        return Scheduled(scheduler, {**nodes, **{r.value: node for r, node in results}})

    @staticmethod
    def _target(device: Device, named: str | None) -> Target:
        of_device = device_target(device)
        if of_device is not None:
            return target_named(of_device)
        named = named or os.environ.get("TILEWRIGHT_TARGET")
        return target_named(named) if named else ALL_TARGETS[0]

    def _look_at(self, inputs: Sequence[Any]) -> Inputs:
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
        return Inputs(tensors, scalars, inputs, next(iter(devices), CPU))


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
