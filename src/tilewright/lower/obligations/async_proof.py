"""Proof of the synchronisation of kernels with asynchronous machinery."""

from __future__ import annotations

from tilewright.kernel.ops import Kernel
from tilewright.poly.results import Kind, Obligation, Unknown
from tilewright.target.model import Target

KINDS = (
    Kind.RACE, Kind.BARRIER, Kind.PHASE, Kind.RELEASE, Kind.PROXY, Kind.FLIGHT, Kind.DRAIN,
    Kind.DEADLOCK,
)  # fmt: skip


def synchronisation(kernel: Kernel, target: Target) -> tuple[Obligation, ...]:
    """The obligations that order the agents of a kernel with asynchronous statements."""
    return tuple(Obligation(k, kernel.name, Unknown("not proved yet")) for k in KINDS)
