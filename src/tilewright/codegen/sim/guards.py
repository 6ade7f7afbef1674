"""The shadow checks of memory accesses: each raises a typed error that names a witness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.base.diagnostics import (
    BoundsError,
    CoverageError,
    RaceError,
    TilewrightError,
    UnwrittenReadError,
)
from tilewright.codegen.sim.clocks import ClockStamps
from tilewright.codegen.sim.index import Affine
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.memory import GlobalTensor, SharedBuffer, steps
from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.codegen.sim.shadow import SEVERAL_BLOCKS, Stamps
from tilewright.codegen.sim.site import Site


@dataclass(frozen=True, slots=True)
class Place:
    """Which elements a statement touches: the coordinates of the first of `width` along `axis`.

    `data` says that a coordinate comes from registers, so that no key names its values.
    """

    name: str
    axes: tuple[Affine, ...]
    axis: int
    width: int
    data: bool = False

    def coordinates(self) -> list[IntArray]:
        values = [axis.value for axis in self.axes]
        if values:
            values[self.axis] = values[self.axis] + steps(self.width, 1)
        return values

    def element(self, site: Site, position: tuple[int, ...]) -> str:
        """The element at a position, as `name[i, j]`."""
        inner = ", ".join(str(site.pick(c, position)) for c in self.coordinates())
        return f"`{self.name}[{inner}]`"


def check_bounds(
    site: Site, place: Place, extents: Sequence[int], mask: BoolArray | None, verb: str
) -> None:
    """BoundsError where an access that the mask selects lies outside."""
    for number, (axis, extent) in enumerate(zip(place.axes, extents, strict=True)):
        width = place.width if number == place.axis else 1
        low, high = axis.low + axis.shift, axis.high + axis.shift + width - 1
        if low >= 0 and high < extent:
            continue
        values = axis.value + steps(width, 1) if width > 1 else axis.value
        bad = (values < 0) | (values >= extent)
        if mask is not None:
            bad = bad & mask
        if bad.any():
            position = site.first(bad)
            shape = ", ".join(str(e) for e in extents)
            raise site.fault(
                BoundsError,
                f"{place.element(site, position)} is {verb} outside its shape ({shape})",
                position,
                expected=f"0 <= index < {extent} on axis {number}",
                mend="guard the access, or give the loop the extent of the tensor",
            )


@dataclass(frozen=True, slots=True)
class _Touch:
    """Accesses as flat entries of shadow arrays, and how to get back to a position."""

    at: IntArray
    stamps: Stamps
    chosen: IntArray | None
    shape: tuple[int, ...]

    def position(self, bad: BoolArray) -> tuple[int, tuple[int, ...]]:
        """The first bad entry: its number and its position (digits, thread, block)."""
        number = int(np.argmax(bad))
        flat = number if self.chosen is None else int(self.chosen[number])
        _, *position = np.unravel_index(flat, self.shape)
        return number, tuple(int(p) for p in position)


def _touch(rows: IntArray, mask: BoolArray | None, stamps: Stamps) -> _Touch:
    """`rows` has a first axis of granules, then the shape of the accesses."""
    if mask is None:
        at, chosen = rows.reshape(-1), None
    else:
        chosen = np.flatnonzero(np.broadcast_to(mask, rows.shape))
        at = rows.reshape(-1)[chosen]

    def spread(values: IntArray) -> IntArray:
        if values.size == 1:
            return values.reshape(-1)
        full = np.broadcast_to(values, rows.shape).reshape(-1)
        return full if chosen is None else full[chosen]

    return _Touch(at, stamps.mapped(spread), chosen, rows.shape)


def _touch_shared(
    machine: Machine, buffer: SharedBuffer, extents: tuple[int, ...], at: IntArray,
    mask: BoolArray | None,
) -> _Touch:  # fmt: skip
    arena, stamps = buffer.arena, machine.shared_stamps()
    alike = at.shape[-1] == 1 and stamps.now.shape[-1] == 1
    if not alike or (mask is not None and mask.shape[-1] != 1):
        arena.spread()
    full = (*extents, machine.crew.threads, arena.apart)
    rows = buffer.granules(np.broadcast_to(at, full))
    if arena.apart > 1:
        rows = rows * arena.apart + np.arange(arena.apart)
    return _touch(rows, mask, stamps)


def _touch_tensor(
    machine: Machine, extents: tuple[int, ...], at: IntArray, mask: BoolArray | None
) -> _Touch:
    full = (*extents, machine.crew.threads, machine.crew.blocks)
    return _touch(np.broadcast_to(at, full)[None], mask, machine.global_stamps())


def _other(stamp: int, stamps: Stamps) -> str:
    if stamp == SEVERAL_BLOCKS:
        return "several blocks"
    thread = stamp % stamps.width
    return "several threads" if thread == stamps.width - 2 else f"thread {thread}"


def _race(
    site: Site,
    place: Place,
    touch: _Touch,
    found: tuple[BoolArray, IntArray],
    verb: str,
    shared: bool,
) -> TilewrightError:
    bad, last = found
    number, position = touch.position(bad)
    other = _other(int(last[number]), touch.stamps)
    if shared:
        order, mend = "no barrier between", "put a Barrier between the two accesses"
    else:
        order = "no order between them"
        mend = "let one thread do both, or put a Barrier between within one block"
    return site.fault(
        RaceError,
        f"{place.element(site, position)} is {verb} by thread {position[-2]} and {other}, "
        f"with {order}",
        position,
        mend=mend,
    )


def shared_read(
    machine: Machine, site: Site, place: Place, buffer: SharedBuffer, at: IntArray,
    mask: BoolArray | None,
) -> None:  # fmt: skip
    """Check and record reads of shared memory."""
    touch = _touch_shared(machine, buffer, site.extents, at, mask)
    arena = buffer.arena
    _not_flying(site, place, buffer, touch, "read")
    _not_under_way(machine, site, place, buffer, touch, write=False)
    bad = ~arena.written[touch.at]
    if bad.any():
        _, position = touch.position(bad)
        raise site.fault(
            UnwrittenReadError,
            f"{place.element(site, position)} is read, but nothing has written it",
            position,
            mend="write the element before, or guard the read",
        )
    found = arena.log.read(touch.at, touch.stamps)
    if found is not None:
        raise _race(site, place, touch, found, "read after a write", shared=True)


def shared_write(
    machine: Machine, site: Site, place: Place, buffer: SharedBuffer, at: IntArray,
    mask: BoolArray | None,
) -> None:  # fmt: skip
    """Check and record writes to shared memory."""
    touch = _touch_shared(machine, buffer, site.extents, at, mask)
    _not_flying(site, place, buffer, touch, "written")
    _not_under_way(machine, site, place, buffer, touch, write=True)
    _may_write(site, place, buffer, touch)
    found = buffer.arena.log.write(touch.at, touch.stamps)
    if found is not None:
        raise _race(site, place, touch, found, "written", shared=True)
    buffer.arena.written[touch.at] = True


def _may_write(site: Site, place: Place, buffer: SharedBuffer, touch: _Touch) -> None:
    found = buffer.arena.log.may_write(touch.at, touch.stamps)
    if found is not None:
        raise _race(site, place, touch, found, "written after an access", shared=True)


def _not_flying(site: Site, place: Place, buffer: SharedBuffer, touch: _Touch, verb: str) -> None:
    owner = buffer.arena.flying[touch.at]
    bad = owner != 0
    if bad.any():
        number, position = touch.position(bad)
        raise site.fault(
            RaceError,
            f"{place.element(site, position)} is {verb} while an asynchronous copy into it "
            f"by thread {int(owner[number]) - 1} is under way",
            position,
            expected="an AsyncWait that covers the copy's group, then a Barrier",
            mend="wait for the group, or use another stage of the buffer",
        )


def _not_under_way(
    machine: Machine, site: Site, place: Place, buffer: SharedBuffer, touch: _Touch, *, write: bool
) -> None:  # fmt: skip
    """RaceError where the copy engine or a matrix instruction uses the elements meanwhile."""
    if machine.beside is None or not isinstance(touch.stamps, ClockStamps):
        return
    found = machine.beside.agents.conflict(buffer, touch.at, touch.stamps, write)
    if found is not None:
        operation, doing, bad = found
        _, position = touch.position(bad)
        raise site.fault(
            RaceError,
            f"{place.element(site, position)} is {'written' if write else 'read'} by thread "
            f"{position[-2]} while a {operation.kind.name} {doing} it",
            position,
            expected=operation.kind.expected,
            notes=(operation.note,),
        )


def copy_issued(
    machine: Machine, site: Site, place: Place, buffer: SharedBuffer, at: IntArray,
    mask: BoolArray | None,
) -> None:  # fmt: skip
    """Check that an asynchronous copy may begin; its elements are under way from now on."""
    touch = _touch_shared(machine, buffer, site.extents, at, mask)
    _not_flying(site, place, buffer, touch, "written")
    _not_under_way(machine, site, place, buffer, touch, write=True)
    _not_under_way(machine, site, place, buffer, touch, write=True)
    _may_write(site, place, buffer, touch)
    threads = np.broadcast_to(touch.stamps.own - touch.stamps.now + 1, touch.at.shape)
    flying = buffer.arena.flying
    flying[touch.at] = threads
    bad = flying[touch.at] != threads
    if bad.any():
        other = touch.stamps.now + flying[touch.at] - 1
        raise _race(site, place, touch, (bad, other), "written", shared=True)


def copy_landed(
    machine: Machine, buffer: SharedBuffer, extents: tuple[int, ...], at: IntArray,
    mask: BoolArray | None,
) -> None:  # fmt: skip
    """Record that asynchronous copies have completed, for the threads that issued them."""
    touch = _touch_shared(machine, buffer, extents, at, mask)
    buffer.arena.flying[touch.at] = 0
    buffer.arena.written[touch.at] = True
    buffer.arena.log.write(touch.at, touch.stamps)


def tensor_read(
    machine: Machine, site: Site, place: Place, tensor: GlobalTensor, at: IntArray,
    mask: BoolArray | None,
) -> None:  # fmt: skip
    """Check and record reads of a tensor that the kernel also writes."""
    if tensor.written is None and tensor.log is None:
        return
    touch = _touch_tensor(machine, site.extents, at, mask)
    if tensor.written is not None:
        bad = ~tensor.written[touch.at]
        if bad.any():
            _, position = touch.position(bad)
            raise site.fault(
                UnwrittenReadError,
                f"{place.element(site, position)} is read, but it is an output that nothing "
                "has written yet",
                position,
                mend="write the element before, or make the tensor an inout",
            )
    if tensor.log is not None:
        found = tensor.log.read(touch.at, touch.stamps)
        if found is not None:
            raise _race(site, place, touch, found, "read after a write", shared=False)


def tensor_write(
    machine: Machine, site: Site, place: Place, tensor: GlobalTensor, at: IntArray,
    mask: BoolArray | None,
) -> None:  # fmt: skip
    """Check and record writes to a tensor: each element of an output is written once."""
    if tensor.written is None and tensor.log is None:
        return
    touch = _touch_tensor(machine, site.extents, at, mask)
    if tensor.log is not None:
        found = tensor.log.may_write(touch.at, touch.stamps)
        if found is not None:
            raise _race(site, place, touch, found, "written after an access", shared=False)
        found = tensor.log.write(touch.at, touch.stamps)
        if found is not None:
            raise _race(site, place, touch, found, "written", shared=False)
    if tensor.written is not None:
        bad = tensor.written[touch.at] | _repeated(tensor, touch.at)
        if bad.any():
            _, position = touch.position(bad)
            raise site.fault(
                CoverageError,
                f"{place.element(site, position)} is written more than once",
                position,
                expected="each element of an output written exactly once",
            )
        tensor.written[touch.at] = True


def _repeated(tensor: GlobalTensor, at: IntArray) -> BoolArray:
    """Which entries of `at` occur again later in it."""
    numbers = np.arange(at.size, dtype=np.int64)
    last = tensor.scratch()
    last[at] = numbers
    return last[at] != numbers


def check_covered(tensor: GlobalTensor) -> None:
    """CoverageError where an element of an output was never written."""
    if tensor.written is None or tensor.written.all():
        return
    missing = ~tensor.written
    element = np.unravel_index(int(np.argmax(missing)), tensor.shape)
    inner = ", ".join(str(int(i)) for i in element)
    raise CoverageError(
        f"{np.count_nonzero(missing)} of {prod(tensor.shape)} elements of `{tensor.name}` are "
        f"never written, the first is `{tensor.name}[{inner}]`",
        span=tensor.declared.span,
        expected="each element of an output written exactly once",
        mend="let the stores and their loops cover the whole tensor",
    )
