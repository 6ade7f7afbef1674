"""How configs are measured and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.base.diagnostics import CallError
from tilewright.base.spans import here

if TYPE_CHECKING:
    from tilewright.runtime.arguments import Device
    from tilewright.runtime.bench import Bench
    from tilewright.runtime.cache import DiskCache

TOP = 8
Reference = Callable[..., Any]


@dataclass(frozen=True)
class Options:
    """`top` configs are measured, and the first one that compiles.

    `reference` gets the call's arguments and returns what the outputs should be: a tensor, several
    in the order of the kernel's arguments, or a mapping by name. Without it the first config that
    compiles is trusted. `tolerance` is relative to an output's largest magnitude; None: what
    rounding explains. `bench` finds where to measure on a device (None there: nowhere), `cache`
    where winners are kept.
    """

    top: int = TOP
    reference: Reference | None = None
    tolerance: float | None = None
    bench: Callable[[Device], Bench | None] | None = None
    cache: Callable[[], DiskCache | None] | None = None

    @staticmethod
    def of(top: int | None, reference: Reference | None, tolerance: float | None) -> Options:
        """Options as a user gives them. CallError where `top` is no positive number."""
        if top is not None and (isinstance(top, bool) or top < 1):
            raise CallError(
                f"top is {top!r}",
                span=here(),
                expected="how many configs to measure, at least 1",
                mend="leave top out, or set enabled=False to measure none",
            )
        return Options(TOP if top is None else top, reference, tolerance)

    def bench_on(self, device: Device) -> Bench | None:
        """Where to measure kernels of a device."""
        if self.bench is not None:
            return self.bench(device)
        from tilewright.runtime.bench import bench_for

        return bench_for(device)

    def disk(self) -> DiskCache | None:
        """Where winners are kept between processes."""
        if self.cache is not None:
            return self.cache()
        from tilewright.runtime.cache import default_cache

        return default_cache()
