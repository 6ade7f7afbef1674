"""Statements in order, each over all its instances, threads and blocks at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from tilewright.base.diagnostics import BarrierError, BoundsError, LegalityError
from tilewright.codegen.sim.asynchronous import perform
from tilewright.codegen.sim.index import Scope, Variable, both, evaluate, instances, number
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.matrix import mma
from tilewright.codegen.sim.numeric import Array, BoolArray, IntArray
from tilewright.codegen.sim.operations import apply
from tilewright.codegen.sim.site import Site
from tilewright.codegen.sim.transfer import async_commit, async_copy, async_wait, load, store
from tilewright.codegen.sim.values import check_written, select, set_registers
from tilewright.codegen.sim.values import evaluate as value_of
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Cast,
    DataIndex,
    Decode,
    If,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mma,
    Read,
    Reduce,
    RegRef,
    Statement,
    Store,
    Value,
    When,
)


def run(machine: Machine, body: Body, scope: Scope, mask: BoolArray | None) -> None:
    """Execute a body for the threads that `mask` selects (None: all)."""
    here = dict(scope)
    for statement in body:
        step(machine, statement, here, mask)


def step(
    machine: Machine, s: Statement, scope: dict[str, Variable], mask: BoolArray | None
) -> None:
    """Execute one statement; a `Decode` or a `DataIndex` adds its variables to the scope."""
    match s:
        case Decode():
            scope.update(_decode(machine, s, scope, mask))
        case DataIndex():
            scope[s.var] = _data_index(machine, s, scope, mask)
        case Loop():
            _loop(machine, s, scope, mask)
        case If():
            _enter(machine, s.body, scope, both(mask, machine.indexer.guard(s.guard, scope)))
        case When():
            _when(machine, s, scope, mask)
        case Assign():
            _assign(machine, s, scope, mask)
        case Reduce():
            _reduce(machine, s, scope, mask)
        case Load():
            load(machine, s, scope, mask)
        case Store():
            store(machine, s, scope, mask)
        case AsyncCopy():
            async_copy(machine, s, scope, mask)
        case AsyncCommit():
            async_commit(machine, s, mask)
        case AsyncWait():
            async_wait(machine, s, mask)
        case Mma():
            mma(machine, s, scope, mask)
        case Barrier():
            _barrier(machine, s, scope, mask)
        case _:
            perform(machine, s, scope, mask)


def _enter(machine: Machine, body: Body, scope: Scope, mask: BoolArray | None) -> None:
    """Run a body under a mask, with masks that say nothing made small."""
    if mask is not None:
        if not mask.any():
            return
        if mask.all():
            mask = None
    run(machine, body, scope, mask)


def _decode(
    machine: Machine, s: Decode, scope: Scope, mask: BoolArray | None
) -> dict[str, Variable]:
    source = machine.indexer.affine(s.source, scope)
    extents = [evaluate(extent, scope) for _, extent in s.digits]
    if machine.checks:
        _check_decode(machine, s, source.value, extents, scope, mask)
    fixed = all(isinstance(extent, int) for extent in extents)
    # Digits of the same source are the same variable: what is computed from them stays valid.
    key = (id(s), source.key, source.shift, *extents) if fixed else object()
    rest: int | IntArray = source.value if source.moves else source.shift
    digits: dict[str, Variable] = {}
    for position in range(len(s.digits) - 1, -1, -1):
        digit = rest % extents[position] if position else rest
        rest = rest // extents[position]
        if isinstance(digit, int):
            digits[s.digits[position][0]] = number(digit)
        else:
            digits[s.digits[position][0]] = Variable(digit, ("decoded", position, key))
    return digits


def _check_decode(
    machine: Machine,
    s: Decode,
    source: IntArray,
    extents: list[int | IntArray],
    scope: Scope,
    mask: BoolArray | None,
) -> None:
    total: int | IntArray = prod(extents, start=1)
    bad = (source < 0) | (source >= total)
    if mask is not None:
        bad = bad & mask
    if bad.any():
        site = Site.of(s, machine.crew, scope, mask)
        position = site.first(bad)
        raise site.fault(
            LegalityError,
            f"`{s.source}` is {site.pick(source, position)}, which the digits "
            f"{', '.join(name for name, _ in s.digits)} cannot write",
            position,
            expected=f"0 <= {s.source} < {site.pick(np.asarray(total), position)}",
        )


def _data_index(machine: Machine, s: DataIndex, scope: Scope, mask: BoolArray | None) -> Variable:
    """The register's value in each block. Blocks in which no thread is active have 0."""
    crew = machine.crew
    site = Site.of(s, crew, scope, mask)
    read = value_of(machine, Read(s.ref, machine.fragments[s.ref.name].declared.dtype), site)
    values = np.broadcast_to(read.astype(np.int64), (crew.threads, crew.blocks))
    active = np.broadcast_to(True if mask is None else mask, values.shape)
    check_alike(site, values, f"`{s.var}`")
    bad = active & ((values < 0) | (values >= evaluate(s.extent, scope)))
    if bad.any():
        position = site.first(bad)
        raise site.fault(
            BoundsError,
            f"`{s.var}` is {site.pick(values, position)}",
            position,
            expected=f"0 <= {s.var} < {s.extent}",
        )
    leader = np.argmax(active, axis=0)
    found = np.where(active.any(axis=0), values[leader, np.arange(crew.blocks)], 0)
    alone = found[active.any(axis=0)]
    if alone.size and (alone == alone[0]).all():
        return number(int(alone[0]))  # the others do not look at it
    return Variable(found[None, :], ("data", found.tobytes()))


def _loop(machine: Machine, s: Loop, scope: Scope, mask: BoolArray | None) -> None:
    extent = evaluate(s.extent, scope)
    if isinstance(extent, int):
        for value in range(extent):
            run(machine, s.body, {**scope, s.var: number(value)}, mask)
        return
    site = Site.of(s, machine.crew, scope, mask)
    check_alike(site, extent, f"the extent of loop `{s.var}`")
    longest = extent if mask is None else np.where(mask, extent, 0)
    for value in range(int(longest.max())):
        inner = {**scope, s.var: number(value)}
        _enter(machine, s.body, inner, both(mask, value < extent))


def _when(machine: Machine, s: When, scope: Scope, mask: BoolArray | None) -> None:
    site = Site.of(s, machine.crew, scope, mask)
    condition = value_of(machine, s.condition, site)
    # A copy: the body may write the register that was read.
    condition = condition.reshape(condition.shape or (1, 1)).copy()
    check_alike(site, condition, "the condition")
    _enter(machine, s.body, scope, both(mask, condition))


def check_alike(site: Site, values: Array, what: str) -> None:
    """BarrierError where the active threads of one block disagree."""
    if values.shape[-2] == 1:
        return
    full = np.broadcast_to(values, site.shape)
    mask = np.broadcast_to(True if site.mask is None else site.mask, site.shape)
    leader = np.argmax(mask, axis=0)
    bad = mask & (full != full[leader, np.arange(site.crew.blocks)])
    if bad.any():
        position = site.first(bad)
        first = int(leader[position[1]])
        raise site.fault(
            BarrierError,
            f"{what} is {full[first, position[1]]} for thread {first} "
            f"and {full[position]} for thread {position[0]}",
            position,
            expected="a value that all threads of a block agree on",
        )


def _barrier(machine: Machine, s: Barrier, scope: Scope, mask: BoolArray | None) -> None:
    crew = machine.crew
    if mask is None:
        machine.tally.barriers += crew.blocks
        machine.epoch = machine.epoch + 1
        return
    full = np.broadcast_to(mask, (crew.threads, crew.blocks))
    arrives = full.any(axis=0, keepdims=True)
    missing = arrives & ~full
    if missing.any():
        site = Site.of(s, crew, scope, mask)
        position = site.first(missing)
        raise site.fault(
            BarrierError,
            f"thread {position[0]} does not reach a barrier that other threads of its block reach",
            position,
            expected="a barrier under conditions that all threads of the block agree on",
            mend="move the Barrier out of the condition",
        )
    machine.tally.barriers += int(np.count_nonzero(arrives))
    machine.epoch = machine.epoch + arrives.astype(np.int64)


def _assign(machine: Machine, s: Assign, scope: Scope, mask: BoolArray | None) -> None:
    site = Site.of(s, machine.crew, scope, mask, s.over)
    at = select(machine, s.dst, site)
    crossing = any(r.name == s.dst.name and r.index != s.dst.index for r in _reads(s.value))
    if s.over and (crossing or not at.distinct):
        for single in instances(scope, s.over):
            _assign(machine, replace(s, over=()), single, mask)
        return
    value = value_of(machine, s.value, site)
    fragment = machine.fragments[s.dst.name]
    set_registers(machine, s.dst, at, site, value.view(fragment.bits.dtype), mask)


def _reduce(machine: Machine, s: Reduce, scope: Scope, mask: BoolArray | None) -> None:
    site = Site.of(s, machine.crew, scope, mask, s.over)
    at = select(machine, s.dst, site)
    fragment = machine.fragments[s.dst.name]
    dtype = fragment.declared.dtype
    if (s.over or s.along) and (
        not at.distinct or any(r.name == s.dst.name for r in _reads(s.value))
    ):
        for single in instances(scope, s.over, s.along):
            _reduce(machine, replace(s, over=(), along=()), single, mask)
        return
    check_written(machine, s.dst, at, site, mask)
    terms = Site.of(s, machine.crew, scope, mask, (*s.along, *s.over))
    value = value_of(machine, s.value, terms)
    value = value.reshape(value.shape or (1, 1))
    full = np.broadcast_to(value, (*terms.extents, *value.shape[-2:]))
    total = fragment.read(at)
    for term in full.reshape(-1, *full.shape[len(s.along) :]):
        total = apply(s.op, (total, term), (dtype, s.value.dtype), dtype)
    set_registers(machine, s.dst, at, site, total.view(fragment.bits.dtype), mask)


def _reads(value: Value) -> Iterator[RegRef]:
    match value:
        case Read(ref, _) | LaneXor(ref, _, _) | LaneRead(ref, _, _):
            yield ref
        case Apply(_, args, _):
            for arg in args:
                yield from _reads(arg)
        case Cast(inner, _):
            yield from _reads(inner)
        case _:
            return
