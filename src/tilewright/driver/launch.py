"""Running a compiled kernel: on the simulator for host tensors, on the device for device ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.base.diagnostics import CallError
from tilewright.driver.call import Call, bind_symbols
from tilewright.driver.compile import Compilation
from tilewright.driver.overlaps import Footprint
from tilewright.runtime.arguments import Device
from tilewright.runtime.cache import default_cache
from tilewright.runtime.cuda_driver import (
    Module,
    architecture,
    current_stream,
    load_module,
    use_device,
)  # fmt: skip
from tilewright.runtime.launch import BoundLaunch, bind_launch
from tilewright.runtime.toolchain import compile_source

if TYPE_CHECKING:
    from tilewright.codegen.sim import SimReport as SimulationResult

ARCHITECTURES = {"sm_90": "sm_90a"}  # the target that serves each device architecture


def device_target(device: Device) -> str | None:
    """The target for a device; None for the CPU, where any target is simulated."""
    if device.kind == "cpu":
        return None
    if device.kind == "cuda":
        found = architecture(device.index)
        if found in ARCHITECTURES:
            return ARCHITECTURES[found]
        what = f"{device} has the architecture {found}"
    else:
        what = f"the tensors are on {device}"
    raise CallError(
        what,
        expected="a CUDA device of architecture " + " or ".join(ARCHITECTURES),
        mend="pass NumPy arrays to run on the simulator",
    )


class Launcher:
    """Builds and loads the machine code once per device, and keeps bound launches."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._modules: dict[int, Module] = {}
        self._launches: dict[object, tuple[BoundLaunch, Footprint]] = {}

    def run(self, call: Call) -> SimulationResult | None:
        """Run on the call's device, writing outputs in place."""
        if call.device.kind == "cpu":
            from tilewright.codegen.sim import simulate

            kernel = self._compilation.kernel
            arguments: dict[str, Any] = {n: v.array() for n, v in call.tensors.items()}
            arguments.update(call.scalars)
            symbols = bind_symbols(kernel, call)
            views = tuple(call.tensors.values())
            Footprint.of(kernel, views).check(views)
            return simulate(kernel, self._compilation.specialisation.target, arguments, symbols)
        key = (call.device.index, call.key, *call.scalars.values())
        views = tuple(call.tensors.values())
        found = self._launches.get(key)
        if found is None:
            found = self._bind(call), Footprint.of(self._compilation.interface, views)
            self._launches[key] = found
        launch, footprint = found
        footprint.check(views)
        launch(current_stream(call.device.index), *(v.pointer for v in views))
        return None

    def _bind(self, call: Call) -> BoundLaunch:
        kernel = self._compilation.interface
        target = self._compilation.specialisation.target
        wanted = device_target(call.device)
        if wanted != target.name:
            raise CallError(
                f"the kernel is compiled for {target.name}, the tensors are on a {wanted} device",
                span=call.program.span,
                expected=f"tensors on a {target.name} device, or NumPy arrays to simulate",
                mend=f"compile(target={wanted!r})",
            )
        return bind_launch(self.module(call.device), kernel, bind_symbols(kernel, call),
                           call.scalars)  # fmt: skip

    def module(self, device: Device) -> Module:
        """The loaded machine code for a device, from the disk cache where it is there."""
        if device.index not in self._modules:
            kernel = self._compilation.interface
            cubin = compile_source(
                self._compilation.source,
                self._compilation.specialisation.target,
                cache=default_cache(),
                name=kernel.name,
            )
            use_device(device.index)
            self._modules[device.index] = load_module(cubin, kernel.shared_bytes, device.index)
        return self._modules[device.index]
