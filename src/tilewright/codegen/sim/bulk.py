"""The copy engine: boxes of tensors to and from shared memory, as late as the program allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.base.diagnostics import BarrierError, BoundsError, LegalityError
from tilewright.codegen.sim import guards
from tilewright.codegen.sim.agents import LOAD, STORE, Groups, Landing, Operation, Region
from tilewright.codegen.sim.guards import Place
from tilewright.codegen.sim.index import Affine, Scope, evaluate, instances
from tilewright.codegen.sim.machine import Asynchrony, Machine
from tilewright.codegen.sim.memory import GlobalTensor, SharedBuffer
from tilewright.codegen.sim.numeric import Array, BoolArray, IntArray
from tilewright.codegen.sim.site import Site
from tilewright.kernel.async_ops import BulkLoad, BulkStore, TensorMap
from tilewright.kernel.ops import MemRef
from tilewright.poly.expr import Expr

_PIECE = 16  # bytes that a swizzle of the copy engine moves together
_PIECES_SHIFT = 3  # a row of 128 bytes has 2**3 pieces: they move by the number of the row
_SWIZZLE_BITS = {0: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True, slots=True)
class _Box:
    """A box of a tensor: element offsets in row-major order, and which lie inside."""

    tensor: GlobalTensor
    coordinates: tuple[IntArray, ...]  # along the tensor's axes
    offsets: IntArray
    inside: BoolArray

    @staticmethod
    def of(tensor: GlobalTensor, tensor_map: TensorMap, origin: tuple[int, ...]) -> _Box:
        grid = np.indices(tensor_map.box, np.int64).reshape(len(tensor_map.box), -1)
        coordinates = [np.zeros(grid.shape[1], np.int64) for _ in tensor.shape]
        for number, axis in enumerate(tensor_map.order):
            coordinates[axis] = grid[number] + origin[number]
        inside = np.ones(grid.shape[1], np.bool_)
        offsets = np.zeros(grid.shape[1], np.int64)
        for along, extent, stride in zip(coordinates, tensor.shape, tensor.strides, strict=True):
            inside &= (along >= 0) & (along < extent)
            offsets += along * stride
        return _Box(tensor, tuple(coordinates), offsets, inside)

    def read(self) -> Array:
        """The box's bits, zeros outside the tensor."""
        bits = np.zeros(self.offsets.size, self.tensor.bits.dtype)
        bits[self.inside] = self.tensor.bits[self.offsets[self.inside]]
        return bits


def issuers(
    scope: Scope, mask: BoolArray, over: tuple[tuple[str, int], ...]
) -> Iterator[tuple[int, int, Scope]]:
    """Every active thread, its block, and the scope of every instance of its statement."""
    for thread, block in np.argwhere(mask):
        for single in instances(scope, over):
            yield int(thread), int(block), single


def at_thread(expr: Expr, scope: Scope, mask: BoolArray, thread: int, block: int) -> int:
    return int(np.broadcast_to(np.asarray(evaluate(expr, scope)), mask.shape)[thread, block])


def load(machine: Machine, s: BulkLoad, scope: Scope, mask: BoolArray) -> None:
    asynchrony = machine.asynchrony
    tensor_map = _tensor_map(machine, s)
    site = Site.of(s, machine.crew, scope, mask)
    for thread, block, single in issuers(scope, mask, s.over):

        def value(expr: Expr, at: tuple[int, int] = (thread, block), own: Scope = single) -> int:
            return at_thread(expr, own, mask, *at)

        box = _box(
            machine, tensor_map, tuple(value(c) for c in s.coordinates), site, (thread, block)
        )
        index = tuple(value(i) for i in s.dst.index)
        phase = value(s.phase.index)
        ranks = 1 if s.multicast is None else value(s.multicast)
        targets = [block] if s.multicast is None else _ranks(machine, ranks)
        for target in targets:
            barrier = asynchrony.meetings.barrier(
                s.phase.name, phase, target, site, (thread, block)
            )
            buffer, at = _slot(machine, s.dst, index, tensor_map, site, (thread, block))
            operation = Operation(
                LOAD, asynchrony.agents.next_bit(), ((block, thread),), site.who((thread, block)),
                s.span, (Region.of(buffer, at, target, writes=True),),
                _landing(machine, site, box, buffer, at, target, (thread, block)),
            )  # fmt: skip
            asynchrony.agents.begin(operation, site, machine.checks)
            size = at.size * buffer.declared.dtype.bytes
            asynchrony.landings.append(Landing(operation, barrier, size))
            machine.tally.shared[buffer.name].written_bytes += size
        inside = int(np.count_nonzero(box.inside))
        machine.tally.global_read_bytes += inside * box.tensor.dtype.bytes


def _ranks(machine: Machine, mask: int) -> list[int]:
    return [rank for rank in range(machine.crew.blocks) if mask >> rank & 1]


def _landing(
    machine: Machine, site: Site, box: _Box, buffer: SharedBuffer, at: IntArray, block: int,
    by: tuple[int, int],
) -> Callable[[], None]:  # fmt: skip
    def land() -> None:
        if machine.checks:
            _touch(machine, site, box, by, write=False)
        buffer.put(at, box.read(), block)
        arena = buffer.arena
        arena.written[(buffer.granules(at) * arena.apart + block).reshape(-1)] = True

    return land


def store(machine: Machine, s: BulkStore, scope: Scope, mask: BoolArray) -> None:
    asynchrony = machine.asynchrony
    tensor_map = _tensor_map(machine, s)
    site = Site.of(s, machine.crew, scope, mask)
    for thread, block, single in issuers(scope, mask, s.over):
        by = (thread, block)
        origin = tuple(at_thread(c, single, mask, *by) for c in s.coordinates)
        index = tuple(at_thread(i, single, mask, *by) for i in s.src.index)
        box = _box(machine, tensor_map, origin, site, by)
        buffer, at = _slot(machine, s.src, index, tensor_map, site, by)
        sending = _Sending(machine, site, box, buffer, at, by)
        operation = Operation(
            STORE, asynchrony.agents.next_bit(), ((block, thread),), site.who(by), s.span,
            (Region.of(buffer, at, block, writes=False),), sending.read,
        )  # fmt: skip
        asynchrony.agents.begin(operation, site, machine.checks)
        asynchrony.sendings[operation] = sending.write
        groups(asynchrony, block, thread).open.append(operation)
        machine.tally.shared[buffer.name].read_bytes += at.size * buffer.declared.dtype.bytes


@dataclass(slots=True)
class _Sending:
    """A bulk store under way: it reads shared memory, later it writes the tensor."""

    machine: Machine
    site: Site
    box: _Box
    buffer: SharedBuffer
    at: IntArray
    by: tuple[int, int]
    bits: Array | None = None

    def read(self) -> None:
        self.bits = self.buffer.get(self.at, self.by[1])

    def write(self) -> None:
        box, machine = self.box, self.machine
        if machine.checks:
            _touch(machine, self.site, box, self.by, write=True)
        if self.bits is not None:
            box.tensor.bits[box.offsets[box.inside]] = self.bits[box.inside]
        machine.tally.global_written_bytes += (
            int(np.count_nonzero(box.inside)) * box.tensor.dtype.bytes
        )


def groups(asynchrony: Asynchrony, block: int, thread: int) -> Groups:
    """The bulk stores of one thread."""
    return asynchrony.agents.stores.setdefault((block, thread), Groups())


def commit(machine: Machine, mask: BoolArray) -> None:
    for thread, block in np.argwhere(mask):
        groups(machine.asynchrony, int(block), int(thread)).commit()


def wait(machine: Machine, pending: int, read: bool, mask: BoolArray) -> None:
    asynchrony = machine.asynchrony
    crew = machine.crew
    for thread, block in np.argwhere(mask):
        own = groups(asynchrony, int(block), int(thread))
        for operation in own.covered(pending):
            operation.run()
            unit = int(block) * crew.warps + int(thread) // crew.warp_size
            asynchrony.clocks.learn((unit,), operation.bit)
            if not read:
                finish(asynchrony, operation)
        if not read:
            own.drop(pending)


def finish(asynchrony: Asynchrony, operation: Operation) -> None:
    """Let a bulk store write its tensor, where it has not yet."""
    operation.run()
    sending = asynchrony.sendings.pop(operation, None)
    if sending is not None:
        sending()


# ---------------------------------------------------------------- where


def _tensor_map(machine: Machine, s: BulkLoad | BulkStore) -> TensorMap:
    found = machine.kernel.tensor_map(s.map)
    if found is None:
        raise LegalityError(f"no tensor map `{s.map}` is declared", span=s.span)
    return found


def _box(
    machine: Machine,
    tensor_map: TensorMap,
    origin: tuple[int, ...],
    site: Site,
    by: tuple[int, int],
) -> _Box:
    """The box at `origin`; LegalityError where its rows do not begin at whole pieces."""
    tensor = machine.tensors[tensor_map.tensor]
    if origin[-1] * tensor.dtype.bytes % _PIECE:
        raise site.fault(
            LegalityError,
            f"a box of {tensor_map.tensor} begins at element {origin[-1]} of its last axis",
            by,
            expected=f"a multiple of {_PIECE} bytes",
            mend="begin boxes at whole pieces, and make them wider where a tile is narrow",
        )
    return _Box.of(tensor, tensor_map, origin)


def _slot(
    machine: Machine,
    ref: MemRef,
    index: tuple[int, ...],
    tensor_map: TensorMap,
    site: Site,
    position: tuple[int, int],
) -> tuple[SharedBuffer, IntArray]:
    """Where the box lies in shared memory: offsets of its elements, as the engine swizzles."""
    buffer = machine.shared[ref.name]
    declared = buffer.declared
    first = sum(i * stride for i, stride in zip(index, declared.strides, strict=True))
    count = prod(tensor_map.box)
    if first < 0 or first + count > declared.elements:
        inner = ", ".join(str(i) for i in index)
        raise site.fault(
            BoundsError,
            f"a box of {count} elements from `{ref.name}[{inner}]` on leaves the buffer",
            position,
            expected=f"at most {declared.elements} elements",
        )
    size = declared.dtype.bytes
    address = declared.offset + (first + np.arange(count, dtype=np.int64)) * size
    mask = (1 << _SWIZZLE_BITS[tensor_map.swizzle]) - 1
    row = address // _PIECE >> _PIECES_SHIFT
    address = address ^ ((row & mask) * _PIECE)
    at = (address - declared.offset) // size
    if at.size and (int(at.min()) < 0 or int(at.max()) >= declared.elements):
        raise site.fault(
            BoundsError,
            f"the swizzle of map `{tensor_map.name}` leads out of `{ref.name}`",
            position,
            expected=f"a buffer that begins at a multiple of {_PIECE << 2 * _PIECES_SHIFT} bytes",
        )
    return buffer, at


def _touch(machine: Machine, site: Site, box: _Box, by: tuple[int, int], *, write: bool) -> None:
    """The shadow checks of a tensor, as if the thread that started the copy did it."""
    if box.tensor.written is None and box.tensor.log is None:
        return
    crew = machine.crew
    shape = (-1, 1, 1)
    mask = np.zeros((1, crew.threads, crew.blocks), np.bool_)
    mask[0, by[0], by[1]] = True
    axes = tuple(
        Affine(c.reshape(shape), 0, int(c.min()), int(c.max()), (object(),))
        for c in box.coordinates
    )
    place = Place(box.tensor.name, axes, 0, 1, data=True)
    whole = Site(site.statement, crew, site.scope, (("element", box.offsets.size),), site.mask)
    check = guards.tensor_write if write else guards.tensor_read
    chosen = mask & box.inside.reshape(shape)
    check(machine, whole, place, box.tensor, box.offsets.reshape(shape), chosen)


def check_single(site: Site, mask: BoolArray, what: str) -> None:
    """BarrierError where more than one thread of a block executes a statement."""
    counts = np.count_nonzero(mask, axis=0)
    if (counts > 1).any():
        block = int(np.argmax(counts > 1))
        thread = int(np.flatnonzero(mask[:, block])[1])
        raise site.fault(
            BarrierError,
            f"{what} is executed by {int(counts[block])} threads",
            (thread, block),
            expected="one thread",
            mend="put it under a guard that one thread passes",
        )
