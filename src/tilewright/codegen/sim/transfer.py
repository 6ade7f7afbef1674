"""Loads, stores and asynchronous copies."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.diagnostics import Diagnostic, LegalityError
from tilewright.codegen.sim import banks, guards
from tilewright.codegen.sim.guards import Place
from tilewright.codegen.sim.index import Affine, Scope, both, instances
from tilewright.codegen.sim.machine import Flight, Machine
from tilewright.codegen.sim.memory import GlobalTensor, SharedBuffer, linear, steps
from tilewright.codegen.sim.numeric import Array, BoolArray, IntArray, constant
from tilewright.codegen.sim.site import Site
from tilewright.codegen.sim.values import check_written, select, set_registers
from tilewright.kernel.ops import AsyncCommit, AsyncCopy, AsyncWait, Load, MemRef, Store


@dataclass(frozen=True, slots=True)
class _Address:
    """Element offsets in a shared buffer, and the key of their pattern."""

    at: IntArray
    key: Hashable


def _place(machine: Machine, ref: MemRef, axis: int, width: int, site: Site) -> Place:
    axes = tuple(machine.indexer.affine(index, site.scope) for index in ref.index)
    return Place(ref.name, axes, axis % len(axes) if axes else 0, width)


def _tensor_offsets(machine: Machine, ref: MemRef, place: Place, tensor: GlobalTensor) -> IntArray:
    key = ("tensor", id(ref), place.axis, place.width, *(axis.key for axis in place.axes))

    def compute() -> IntArray:
        base, _ = linear(place.axes, tensor.strides)
        along = tensor.strides[place.axis] if place.axes else 0
        return base + steps(place.width, along)

    # Data has no pattern to remember.
    base = compute() if place.data else machine.indexer.remember(key, compute, lambda a: a.nbytes)
    _, shift = linear(place.axes, tensor.strides)
    return base + shift if shift else base


def _shared_offsets(machine: Machine, ref: MemRef, place: Place, buffer: SharedBuffer) -> _Address:
    pattern = tuple((axis.key, axis.shift) for axis in place.axes)
    key = ("shared", id(ref), place.axis, place.width, pattern)

    def compute() -> IntArray:
        base, shift = linear(place.axes, buffer.declared.strides)
        along = buffer.declared.strides[place.axis]
        return buffer.physical(base + shift + steps(place.width, along))

    return _Address(machine.indexer.remember(key, compute, lambda a: a.nbytes), key)


def _count_banks(
    machine: Machine,
    buffer: SharedBuffer,
    address: _Address,
    mask: BoolArray | None,
    site: Site,
    whole_warp: bool = False,
) -> None:
    """Add the wavefronts of one access; a pattern that all blocks share is counted once."""
    crew = machine.crew
    alike = address.at.shape[-1] == 1 and (mask is None or mask.shape[-1] == 1)
    full = (*site.extents, crew.threads, 1 if alike else crew.blocks)

    def compute() -> tuple[int, int]:
        return banks.wavefronts(
            np.broadcast_to(address.at, full),
            mask,
            element_bytes=buffer.declared.dtype.bytes,
            first_byte=buffer.declared.offset,
            warp_size=crew.warp_size,
            whole_warp=whole_warp,
        )

    if mask is None:
        key = ("banks", address.key, full, whole_warp)
        needed, best = machine.indexer.remember(key, compute, lambda _: 64)
    else:
        needed, best = compute()
    times = crew.blocks if alike else 1
    tally = machine.tally.shared[buffer.name]
    tally.wavefronts += needed * times
    tally.ideal_wavefronts += best * times


def load(machine: Machine, s: Load, scope: Scope, mask: BoolArray | None) -> None:
    site = Site.of(s, machine.crew, scope, mask, s.over, s.width)
    at = select(machine, s.dst, site, s.width)
    if s.over and not at.distinct:
        for single in instances(scope, s.over):
            load(machine, replace(s, over=()), single, mask)
        return
    guard = machine.indexer.guard(s.guard, site.scope)
    place = _place(machine, s.src, s.axis, s.width, site)
    if s.indirect:
        place, inside = _gathered(machine, s, place, site, both(mask, guard))
        guard = both(guard, inside)
    bits = _read(machine, s.src, place, both(mask, guard), site, s.matrix is not None)
    fragment = machine.fragments[s.dst.name]
    if guard is not None:
        fill = constant(s.fill, fragment.declared.dtype).view(fragment.bits.dtype)
        bits = np.where(guard, bits, fill)
    set_registers(machine, s.dst, at, site, bits, mask)


def _gathered(
    machine: Machine, s: Load, place: Place, site: Site, mask: BoolArray | None
) -> tuple[Place, BoolArray]:
    """The place with the indices that registers hold, and where all of them are inside."""
    tensor = machine.tensors[s.src.name]
    axes = list(place.axes)
    inside: BoolArray = np.ones((1, 1), np.bool_)
    for c in s.indirect:
        at = select(machine, c.ref, site)
        check_written(machine, c.ref, at, site, mask)
        index = machine.fragments[c.ref.name].read(at).astype(np.int64)
        extent = tensor.shape[c.axis]
        inside = inside & (index >= 0) & (index < extent)
        data = index.clip(0, max(extent - 1, 0))
        axes[c.axis] = Affine(data, 0, int(data.min()), int(data.max()), (object(),))
    _report_outside(machine, s, site, inside, mask)
    return replace(place, axes=tuple(axes), data=True), inside


def _report_outside(
    machine: Machine, s: Load, site: Site, inside: BoolArray, mask: BoolArray | None
) -> None:
    outside = machine.active(both(mask, ~inside), site.shape)
    if outside and machine.checks:
        machine.tally.findings.setdefault(
            f"gather from {s.src.name}",
            Diagnostic(
                "TW302",
                f"an index that gathers from `{s.src.name}` lies outside its axis",
                span=site.span,
                expected="indices inside: the kernel gives the fill for others",
            ),
        )


def _read(
    machine: Machine,
    ref: MemRef,
    place: Place,
    mask: BoolArray | None,
    site: Site,
    whole_warp: bool = False,
) -> Array:
    """Bits of memory, broadcasting to the site's shape; anything where the mask fails."""
    tensor = machine.tensors.get(ref.name)
    asked = machine.active(mask, site.shape)
    if tensor is not None:
        guards.check_bounds(site, place, tensor.shape, mask, "read")
        at = _tensor_offsets(machine, ref, place, tensor)
        if machine.checks:
            guards.tensor_read(machine, site, place, tensor, at, mask)
        machine.tally.global_read_bytes += asked * tensor.dtype.bytes
        return tensor.gather(at, mask)
    buffer = machine.shared[ref.name]
    guards.check_bounds(site, place, buffer.declared.shape, mask, "read")
    address = _shared_offsets(machine, ref, place, buffer)
    if machine.checks:
        guards.shared_read(machine, site, place, buffer, address.at, mask)
    machine.tally.shared[ref.name].read_bytes += asked * buffer.declared.dtype.bytes
    _count_banks(machine, buffer, address, mask, site, whole_warp)
    return buffer.gather(address.at)


def store(machine: Machine, s: Store, scope: Scope, mask: BoolArray | None) -> None:
    site = Site.of(s, machine.crew, scope, mask, s.over, s.width)
    chosen = both(mask, machine.indexer.guard(s.guard, site.scope))
    if chosen is not None and not chosen.any():
        return
    at = select(machine, s.src, site, s.width)
    check_written(machine, s.src, at, site, chosen)
    bits = machine.fragments[s.src.name].read_bits(at)
    place = _place(machine, s.dst, s.axis, s.width, site)
    asked = machine.active(chosen, site.shape)
    tensor = machine.tensors.get(s.dst.name)
    if tensor is not None:
        guards.check_bounds(site, place, tensor.shape, chosen, "written")
        offsets = _tensor_offsets(machine, s.dst, place, tensor)
        if machine.checks:
            guards.tensor_write(machine, site, place, tensor, offsets, chosen)
        machine.tally.global_written_bytes += asked * tensor.dtype.bytes
        tensor.scatter(offsets, bits, chosen, site.shape)
        return
    buffer = machine.shared[s.dst.name]
    guards.check_bounds(site, place, buffer.declared.shape, chosen, "written")
    address = _shared_offsets(machine, s.dst, place, buffer)
    if machine.checks:
        guards.shared_write(machine, site, place, buffer, address.at, chosen)
    machine.tally.shared[s.dst.name].written_bytes += asked * buffer.declared.dtype.bytes
    _count_banks(machine, buffer, address, chosen, site, s.matrix is not None)
    buffer.scatter(address.at, bits, chosen, site.shape)


def async_copy(machine: Machine, s: AsyncCopy, scope: Scope, mask: BoolArray | None) -> None:
    """Start copies: the data is read now and lands at a wait, or at random before."""
    site = Site.of(s, machine.crew, scope, mask, s.over, s.width)
    buffer = machine.shared[s.dst.name]
    guard = machine.indexer.guard(s.guard, site.scope)
    source = _place(machine, s.src, s.src_axis, s.width, site)
    bits = _read(machine, s.src, source, both(mask, guard), site)
    if guard is not None:
        bits = np.where(guard, bits, np.zeros((), bits.dtype))
    place = _place(machine, s.dst, s.dst_axis, s.width, site)
    guards.check_bounds(site, place, buffer.declared.shape, mask, "written")
    address = _shared_offsets(machine, s.dst, place, buffer)
    if machine.checks:
        guards.copy_issued(machine, site, place, buffer, address.at, mask)
    asked = machine.active(mask, site.shape)
    machine.tally.shared[s.dst.name].written_bytes += asked * buffer.declared.dtype.bytes
    _count_banks(machine, buffer, address, mask, site)
    early = None
    if machine.random is not None:
        early = machine.random.random((machine.crew.threads, machine.crew.blocks)) < 0.5
        buffer.scatter(address.at, bits, both(early, mask), site.shape)
    machine.flights.append(
        Flight(buffer, address.at, bits, site.extents, mask, machine.groups, early)
    )


def async_commit(machine: Machine, _: AsyncCommit, mask: BoolArray | None) -> None:
    machine.groups = machine.groups + (1 if mask is None else mask.astype(np.int64))


def async_wait(machine: Machine, s: AsyncWait, mask: BoolArray | None) -> None:
    """Land the copies of groups that the wait covers, for the threads that wait."""
    remaining: list[Flight] = []
    for flight in machine.flights:
        done = flight.group < machine.groups - s.pending
        waiting = done if mask is None else done & mask
        left = _land(machine, flight, waiting)
        if left is not None:
            remaining.append(left)
    machine.flights = remaining


def _land(machine: Machine, flight: Flight, done: BoolArray) -> Flight | None:
    """Complete the copies of threads that are done; what is still under way afterwards."""
    if not done.any():
        return flight
    everyone = bool(done.all())
    landing = flight.issued if everyone else both(flight.issued, done)
    late = landing if flight.early is None else both(landing, ~flight.early)
    shape = (*flight.extents, machine.crew.threads, machine.crew.blocks)
    flight.buffer.scatter(flight.at, flight.bits, late, shape)
    if machine.checks:
        guards.copy_landed(machine, flight.buffer, flight.extents, flight.at, landing)
    left = np.zeros((1, 1), np.bool_) if everyone else both(flight.issued, ~done)
    if left is None or not left.any():
        return None
    return Flight(
        flight.buffer, flight.at, flight.bits, flight.extents, left, flight.group, flight.early
    )


def check_swizzle(buffer: SharedBuffer) -> None:
    """LegalityError where the swizzle of a buffer leads out of it."""
    swizzle = buffer.declared.swizzle
    if swizzle is None:
        return
    if buffer.declared.elements % (1 << (swizzle.base + swizzle.bits)):
        raise LegalityError(
            f"the swizzle of `{buffer.name}` leads out of its {buffer.declared.elements} elements",
            span=buffer.declared.span,
            expected=f"a multiple of {1 << (swizzle.base + swizzle.bits)} elements",
        )
