"""Evaluation of register values: every instance, thread and block at once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tilewright.base.diagnostics import BarrierError, BoundsError, RaceError, UnwrittenReadError
from tilewright.codegen.sim.fragments import Selection
from tilewright.codegen.sim.index import evaluate as evaluate_index
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.memory import steps
from tilewright.codegen.sim.numeric import Array, BoolArray, IntArray, constant, convert
from tilewright.codegen.sim.operations import apply
from tilewright.codegen.sim.site import Site
from tilewright.kernel.ops import (
    Apply,
    Cast,
    Const,
    Holds,
    IndexValue,
    LaneRead,
    LaneXor,
    Read,
    RegRef,
    ScalarValue,
    Value,
)


def select(machine: Machine, ref: RegRef, site: Site, width: int | None = None) -> Selection:
    """The registers that a reference names; with `width`, that many along the last axis."""
    axes = [machine.indexer.affine(index, site.scope) for index in ref.index]
    shape = machine.fragments[ref.name].declared.shape
    key: tuple[Hashable, ...] = ("registers", id(ref), width, site.extents)
    key += tuple((axis.key, axis.shift) for axis in axes)

    def compute() -> Selection:
        flat = np.zeros((1, 1), np.int64)
        for number, (axis, extent) in enumerate(zip(axes, shape, strict=True)):
            value = axis.value
            if width is not None and number == len(axes) - 1:
                value = value + steps(width, 1)
            bad = (value < 0) | (value >= extent)
            if bad.any():
                position = site.first(bad)
                raise site.fault(
                    BoundsError,
                    f"register {site.pick(value, position)} of axis {number} of `{ref.name}` "
                    "does not exist",
                    position,
                    expected=f"0 <= index < {extent}",
                )
            flat = flat * extent + value
        return Selection.of(flat, site.extents)

    return machine.indexer.remember(key, compute, lambda s: s.index.nbytes)


def check_written(
    machine: Machine, ref: RegRef, at: Selection, site: Site, mask: BoolArray | None
) -> None:
    """UnwrittenReadError where a thread that the mask selects reads a register never written."""
    if not machine.checks:
        return
    check_idle(machine, ref, at, site, mask, "read")
    check_initialised(machine, ref, at, site, mask)


def set_registers(
    machine: Machine, ref: RegRef, at: Selection, site: Site, bits: Array, mask: BoolArray | None
) -> None:
    """Write the registers of the threads that the mask selects."""
    if machine.checks:
        check_idle(machine, ref, at, site, mask, "written")
    machine.fragments[ref.name].write(at, bits, mask)


def check_idle(
    machine: Machine, ref: RegRef, at: Selection, site: Site, mask: BoolArray | None, verb: str
) -> None:
    """RaceError where a matrix instruction in flight uses the registers.

    Of those it only reads, reading is allowed.
    """
    if machine.beside is None:
        return
    agents, crew = machine.beside.agents, machine.crew
    if ref.name not in agents.touched:
        return
    # A thread counts for all its instances where it accesses the registers of one.
    some = np.ones((1, 1), np.bool_) if mask is None else mask
    some = some.any(axis=tuple(range(some.ndim - 2)))
    full = np.broadcast_to(some, (crew.threads, crew.blocks))
    rows = np.unique(at.index)
    for operation, held in agents.held(ref.name):
        if verb == "read" and not held.written:
            continue
        shared = np.intersect1d(rows, held.rows)
        own = full[held.threads, held.block]
        if shared.size and own.any():
            thread = int(held.threads.start) + int(np.argmax(own))
            position = (*(0 for _ in site.digits), thread, held.block)
            where = np.unravel_index(int(shared[0]), machine.fragments[ref.name].declared.shape)
            inner = ", ".join(str(int(i)) for i in where)
            raise site.fault(
                RaceError,
                f"register `{ref.name}[{inner}]` is {verb} while a matrix instruction "
                f"{'writes' if held.written else 'reads'} it",
                position,
                expected="a WarpgroupWait that covers the instruction before",
                notes=(operation.note,),
            )
    units = machine.beside.clocks.units_of(full)
    agents.touched[ref.name][rows[:, None], units] = True


def check_initialised(
    machine: Machine, ref: RegRef, at: Selection, site: Site, mask: BoolArray | None
) -> None:
    """UnwrittenReadError where a selected thread has never written a register."""
    bad = machine.fragments[ref.name].unwritten(at, mask)
    if bad is not None:
        position = site.first(bad)
        raise site.fault(
            UnwrittenReadError,
            f"`{ref.name}` is read in register {_register(machine, ref, at, site, position)}, "
            "but nothing has written it",
            position,
            mend="set the fragment before, over all its registers",
        )


def _register(
    machine: Machine, ref: RegRef, at: Selection, site: Site, position: tuple[int, ...]
) -> str:
    index = at.index if at.by_thread else at.index[..., None, None]
    row = site.pick(index, position)
    where = np.unravel_index(row, machine.fragments[ref.name].declared.shape)
    return "[" + ", ".join(str(int(i)) for i in where) + "]"


def evaluate(machine: Machine, value: Value, site: Site) -> Array:
    """The value in its own element type; broadcasts to ``[*instances, threads, blocks]``."""
    match value:
        case Const(number, dtype):
            return constant(number, dtype)
        case Read(ref, _):
            at = select(machine, ref, site)
            check_written(machine, ref, at, site, site.mask)
            return machine.fragments[ref.name].read(at)
        case ScalarValue(name, _):
            return machine.scalars[name]
        case IndexValue(expr, dtype):
            return convert(np.asarray(evaluate_index(expr, site.scope), np.int64), dtype)
        case Holds(guard, _):
            holds = machine.indexer.guard(guard, site.scope)
            return np.ones((1, 1), np.bool_) if holds is None else holds
        case Apply(op, args, dtype):
            arrays = tuple(evaluate(machine, arg, site) for arg in args)
            return apply(op, arrays, tuple(arg.dtype for arg in args), dtype)
        case Cast(inner, dtype):
            return convert(evaluate(machine, inner, site), dtype)
        case LaneXor(ref, mask, _):
            own = np.arange(machine.crew.threads, dtype=np.int64)[:, None]
            return _exchange(machine, ref, own % machine.crew.warp_size ^ mask, site)
        case LaneRead(ref, lane, _):
            number = np.asarray(evaluate_index(lane, site.scope), np.int64)
            return _exchange(machine, ref, number.reshape(number.shape or (1, 1)), site)


def _exchange(machine: Machine, ref: RegRef, lane: IntArray, site: Site) -> Array:
    """Each thread's value of a register of lane `lane` of its warp."""
    crew = machine.crew
    bad = (lane < 0) | (lane >= crew.warp_size)
    if site.mask is not None:
        bad = bad & site.mask
    if bad.any():
        position = site.first(bad)
        raise site.fault(
            BoundsError,
            f"lane {site.pick(lane, position)} of `{ref.name}` does not exist",
            position,
            expected=f"0 <= lane < {crew.warp_size}",
        )
    own = np.arange(crew.threads, dtype=np.int64)[:, None]
    source = own - own % crew.warp_size + lane.clip(0, crew.warp_size - 1)
    at = select(machine, ref, site)
    if machine.checks:
        _check_exchange(machine, ref, at, source, site)
    return _along_threads(machine.fragments[ref.name].read(at), source)


def _check_exchange(
    machine: Machine, ref: RegRef, at: Selection, source: IntArray, site: Site
) -> None:
    """The lanes that are read from must run the statement, and have written the register."""
    crew = machine.crew
    mask = site.mask
    if mask is not None:
        absent = mask & ~_along_threads(np.broadcast_to(mask, (crew.threads, crew.blocks)), source)
        if absent.any():
            position = site.first(absent)
            raise site.fault(
                BarrierError,
                f"lane {site.pick(source, position) % crew.warp_size} of `{ref.name}` is read, "
                "but that lane does not reach the statement",
                position,
                expected="all lanes that exchange registers run the statement together",
            )
    check_idle(machine, ref, at, site, mask, "read")
    unwritten = machine.fragments[ref.name].unwritten(at, None)
    if unwritten is None:
        return
    shape = (*unwritten.shape[:-2], crew.threads, crew.blocks)
    bad = _along_threads(np.broadcast_to(unwritten, shape), source)
    if mask is not None:
        bad = bad & mask
    if bad.any():
        position = site.first(bad)
        raise site.fault(
            UnwrittenReadError,
            f"`{ref.name}` is read in lane {site.pick(source, position) % crew.warp_size}, "
            "but nothing has written it there",
            position,
            mend="set the fragment in all lanes before the exchange",
        )


def _along_threads(data: Array, source: IntArray) -> Array:
    """``data[.., source[.., t, b], b]``; `source` may lack axes or have extent 1 in them."""
    if source.size == source.shape[-2]:
        return data[..., source.reshape(-1), :]
    rank = max(data.ndim, source.ndim)
    data = data.reshape(*(1,) * (rank - data.ndim), *data.shape)
    source = source.reshape(*(1,) * (rank - source.ndim), *source.shape)
    lead = np.broadcast_shapes(data.shape[:-2], source.shape[:-2])
    shape = (*lead, *data.shape[-2:])
    rows = np.broadcast_to(source, shape)
    others = np.ogrid[tuple(slice(n) for n in shape)]
    return np.broadcast_to(data, shape)[(*others[:-2], rows, others[-1])]
