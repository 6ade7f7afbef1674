"""Stores of threads to the shared memory of other blocks: they land as late as the program allows.

The stores that warps start together with one statement land together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.base.diagnostics import BoundsError, RaceError
from tilewright.codegen.sim import guards
from tilewright.codegen.sim.agents import REMOTE, Landing, Operation, Region
from tilewright.codegen.sim.guards import Place
from tilewright.codegen.sim.index import Scope, evaluate
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.meeting import first_of, parties
from tilewright.codegen.sim.memory import SharedBuffer, linear, steps
from tilewright.codegen.sim.numeric import Array, BoolArray, IntArray
from tilewright.codegen.sim.site import Site
from tilewright.codegen.sim.values import check_written, select
from tilewright.kernel.async_ops import RemoteStore


def store(machine: Machine, s: RemoteStore, scope: Scope, mask: BoolArray | None) -> None:
    """Read the registers now, and start one operation for each block and phase."""
    crew, asynchrony = machine.crew, machine.asynchrony
    site = Site.of(s, crew, scope, mask, s.over, s.width)
    registers = select(machine, s.src, site, s.width)
    check_written(machine, s.src, registers, site, mask)
    bits = np.broadcast_to(machine.fragments[s.src.name].read_bits(registers), site.shape)
    buffer = machine.shared[s.dst.name]
    offsets = np.broadcast_to(_offsets(machine, s, site, buffer, mask), site.shape)
    full = np.broadcast_to(True if mask is None else mask, (crew.threads, crew.blocks))
    for own, (target, index), who in parties(
        full, evaluate(s.block, scope), evaluate(s.phase.index, scope)
    ):
        position = (*(0 for _ in site.digits), *first_of(who))
        if not 0 <= target < crew.blocks:
            raise site.fault(
                BoundsError, f"there is no block {target} in the cluster", position,
                expected=f"0 <= block < {crew.blocks}",
            )  # fmt: skip
        barrier = asynchrony.meetings.barrier(s.phase.name, index, target, site, position)
        threads = who[:, own]
        at = offsets[..., threads, own].reshape(-1)
        values = bits[..., threads, own].reshape(-1)
        if np.unique(at).size != at.size:
            raise site.fault(
                RaceError, f"two stores write one element of `{buffer.name}`", position,
                expected="an element of its own for each thread and instance",
            )  # fmt: skip
        operation = Operation(
            REMOTE, asynchrony.agents.next_bit(), _one_of_each_warp(machine, threads, own),
            site.who(position), s.span, (Region.of(buffer, at, target, writes=True),),
            _landing(buffer, at, values, target),
        )  # fmt: skip
        asynchrony.agents.begin(operation, site, machine.checks)
        size = at.size * buffer.declared.dtype.bytes
        asynchrony.landings.append(Landing(operation, barrier, size))
        machine.tally.shared[buffer.name].written_bytes += size


def _offsets(
    machine: Machine, s: RemoteStore, site: Site, buffer: SharedBuffer, mask: BoolArray | None
) -> IntArray:
    axes = tuple(machine.indexer.affine(index, site.scope) for index in s.dst.index)
    place = Place(s.dst.name, axes, len(axes) - 1, s.width)
    guards.check_bounds(site, place, buffer.declared.shape, mask, "written")
    base, shift = linear(axes, buffer.declared.strides)
    return buffer.physical(base + shift + steps(s.width, 1))


def _one_of_each_warp(
    machine: Machine, threads: BoolArray, block: int
) -> tuple[tuple[int, int], ...]:
    active = np.flatnonzero(threads)
    _, first = np.unique(active // machine.crew.warp_size, return_index=True)
    return tuple((block, int(thread)) for thread in active[first])


def _landing(buffer: SharedBuffer, at: IntArray, values: Array, block: int) -> Callable[[], None]:
    def land() -> None:
        buffer.put(at, values, block)
        arena = buffer.arena
        arena.written[(buffer.granules(at) * arena.apart + block).reshape(-1)] = True

    return land
