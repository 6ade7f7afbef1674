"""Running a compiled kernel: on the simulator for host tensors, on the device for device ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.base.diagnostics import CallError
from tilewright.driver.call import Call, bind_symbols
from tilewright.driver.compile import Compilation
from tilewright.driver.loaded import Loaded
from tilewright.driver.overlaps import Footprint
from tilewright.runtime.arguments import Device, TensorView, glance
from tilewright.runtime.cuda_driver import Module, architecture, current_stream, stream_reader
from tilewright.runtime.launch import BoundLaunch, Caller, bind_launch

if TYPE_CHECKING:
    from tilewright.codegen.sim import SimReport as SimulationResult

MOST_LAUNCHES = 1024  # that are kept for one kernel: a scalar may be another in each call
ARCHITECTURES = {"sm_90": "sm_90a"}  # the target that serves each device architecture


_Value = TypeVar("_Value")


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


class Started:
    """A launch for arguments of one kind (see `arguments.glance`), given by their pointers."""

    __slots__ = ("_device", "_launch", "_near", "_stream")

    def __init__(self, launch: BoundLaunch, footprint: Footprint, device: int) -> None:
        self._launch = launch
        self._near = footprint.near()
        self._device = device
        self._stream = stream_reader()

    def __call__(self, pointers: Sequence[int]) -> bool:
        """Launch on the current stream; False, and nothing done, where tensors may overlap."""
        for i, j, low, high in self._near:
            if low < pointers[i] - pointers[j] < high:
                return False
        self._launch(self._stream(self._device), *pointers)
        return True


class KnownCalls:
    """Launches by what `glance` sees of their arguments: the short way of a call."""

    __slots__ = ("_grain", "_known")

    def __init__(self, grain: int = 16) -> None:
        self._grain = grain
        self._known: dict[object, Started] = {}

    def start(self, arguments: Sequence[Any]) -> bool:
        """Launch where a call like this one was made before; False, and nothing done, elsewhere."""
        seen = glance(arguments, self._grain)
        if seen is None:
            return False
        found = recall(self._known, seen[0])
        return found is not None and found(seen[1])

    def add(self, arguments: Sequence[Any], started: Started | None) -> None:
        """Remember how to launch calls such as this one."""
        seen = glance(arguments, self._grain)
        if seen is not None and started is not None:
            remember(self._known, seen[0], started)


def recall(known: Mapping[object, _Value], key: object) -> _Value | None:
    """The value that was kept by a key; some libraries' shapes or types cannot be keys."""
    try:
        return known.get(key)
    except TypeError:
        return None


def remember(known: dict[object, _Value], key: object, value: _Value) -> None:
    """Keep a value by its key, if it can be one; where there are many, forget the others."""
    if len(known) >= MOST_LAUNCHES:
        known.clear()
    with suppress(TypeError):
        known[key] = value


def caller_of(calls: Sequence[Call]) -> Caller:
    """Who makes these calls with all arguments fixed: on the current stream, with their tensors."""
    return Caller(partial(stream_reader(), calls[0].device.index), calls)


class Launcher:
    """Builds and loads the machine code once per device, and keeps bound launches."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._loaded = Loaded(
            compilation.interface, compilation.specialisation.target, lambda: compilation.source
        )
        self._launches: dict[object, tuple[BoundLaunch, Footprint]] = {}
        # Calls whose addresses are alike modulo this need one check of what tensors promise.
        self.grain = max((t.align for t in compilation.interface.tensors), default=16)

    def run(self, call: Call) -> SimulationResult | None:
        """Run on the call's device, writing outputs in place."""
        views = tuple(call.tensors.values())
        if call.device.kind == "cpu":
            return self._simulate(call, views)
        launch, footprint = self._found(call, views)
        footprint.check(views)
        launch(current_stream(call.device.index), *(v.pointer for v in views))
        return None

    def started(self, call: Call) -> Started | None:
        """How to launch calls such as this one again; None where they are simulated."""
        if call.device.kind == "cpu":
            return None
        return Started(*self._found(call, tuple(call.tensors.values())), call.device.index)

    def bind(self, call: Call) -> Callable[[], SimulationResult | None]:
        """The call with its arguments fixed: a `BoundCall` for tensors on a device."""
        views = tuple(call.tensors.values())
        if call.device.kind == "cpu":
            return lambda: self._simulate(call, views)
        launch, footprint = self._found(call, views)
        footprint.check(views)
        return launch.fixed(caller_of((call,)), *(v.pointer for v in views))

    def _simulate(self, call: Call, views: Sequence[TensorView]) -> SimulationResult:
        from tilewright.codegen.sim import simulate

        kernel = self._compilation.kernel
        arguments: dict[str, Any] = {n: v.array() for n, v in call.tensors.items()}
        arguments.update(call.scalars)
        symbols = bind_symbols(kernel, call)
        Footprint.of(kernel, views).check(views)
        return simulate(kernel, self._compilation.specialisation.target, arguments, symbols)

    def _found(self, call: Call, views: Sequence[TensorView]) -> tuple[BoundLaunch, Footprint]:
        """The launch for the call's shapes, strides and scalars, made where it is new."""
        places = tuple(v.pointer % self.grain for v in views)
        key = (call.device.index, call.key, places, *map(repr, call.scalars.values()))
        found = self._launches.get(key)
        if found is None:
            found = (self._bind(call), Footprint.of(self._compilation.interface, views))
            remember(self._launches, key, found)
        return found

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
        return bind_launch(
            self.module(call.device), kernel, bind_symbols(kernel, call), call.scalars,
            self._loaded.exchanges(call.device),
        )  # fmt: skip

    def module(self, device: Device) -> Module:
        """The loaded machine code for a device, from the disk cache where it is there."""
        return self._loaded.module(device)
