"""A kernel on the devices that it is launched on: machine code, and memory of its exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.runtime.cache import default_cache
from tilewright.runtime.cuda_driver import Module, load_module, use_device
from tilewright.runtime.launch import exchanges_of
from tilewright.runtime.toolchain import compile_source

if TYPE_CHECKING:
    from tilewright.kernel.declared import Interface
    from tilewright.runtime.arguments import Device
    from tilewright.runtime.exchanges import Exchanges
    from tilewright.target.model import Target


class Loaded:
    """Both are made at the first launch on a device, and kept for the others."""

    __slots__ = ("_exchanges", "_kernel", "_modules", "_source", "_target")

    def __init__(self, kernel: Interface, target: Target, source: Callable[[], str]) -> None:
        self._kernel = kernel
        self._target = target
        self._source = source
        self._modules: dict[int, Module] = {}
        self._exchanges: dict[int, Exchanges | None] = {}

    def module(self, device: Device) -> Module:
        """The machine code, from the disk cache where it is there."""
        found = self._modules.get(device.index)
        if found is None:
            found = load(self._source(), self._kernel, self._target, device)
            self._modules[device.index] = found
        return found

    def exchanges(self, device: Device) -> Exchanges | None:
        """The memory that all launches there share; None where the kernel has no exchanges."""
        if device.index not in self._exchanges:
            self._exchanges[device.index] = exchanges_of(self._kernel, device.index)
        return self._exchanges[device.index]


def load(source: str, kernel: Interface, target: Target, device: Device) -> Module:
    """The machine code of a kernel's source, from the disk cache where it is there, loaded."""
    cubin = compile_source(source, target, cache=default_cache(), name=kernel.name)
    use_device(device.index)
    return load_module(cubin, kernel.shared_bytes, device.index)
