"""Run a kernel on arrays: check the arguments, run its blocks chunk by chunk, report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright.base.diagnostics import (
    CallError,
    Diagnostic,
    DTypeError,
    IndexWidthError,
    LegalityError,
    ResourceError,
    UndefinedSymbolError,
)
from tilewright.codegen.sim.asynchronous import finish, is_asynchronous, prepare
from tilewright.codegen.sim.execute import run
from tilewright.codegen.sim.fibers import Scheduler
from tilewright.codegen.sim.fragments import Fragment
from tilewright.codegen.sim.guards import check_covered
from tilewright.codegen.sim.index import Indexer, number
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.memory import GlobalTensor, SharedBuffer, lay_out
from tilewright.codegen.sim.numeric import NUMPY, Array, convert
from tilewright.codegen.sim.report import BufferTally, SimReport, Tally
from tilewright.codegen.sim.site import Crew
from tilewright.codegen.sim.transfer import check_swizzle
from tilewright.kernel.async_ops import BulkLoad, BulkStore
from tilewright.kernel.declared import block_count
from tilewright.kernel.ops import (
    Assign,
    AsyncCopy,
    Kernel,
    Load,
    Mma,
    Mode,
    Reduce,
    Scalar,
    Statement,
    Store,
    Tensor,
    walk,
)
from tilewright.poly.expr import Guard
from tilewright.target.model import Target

_MEMORY = 512 << 20  # bytes for the state of one chunk
_PATTERNS = 128 << 20  # bytes for kept index arrays
_SHADOW = 26  # bytes of shadow state per element of shared memory, at most
_TEMPORARY = 48  # bytes per instance and thread of a statement that are alive at a time


def simulate(
    kernel: Kernel,
    target: Target,
    arguments: Mapping[str, np.ndarray[Any, Any]],
    symbols: Mapping[str, int],
    *,
    checks: bool = True,
    seed: int | None = None,
) -> SimReport:
    """Execute `kernel` for all its blocks, as `target` would, and write its outputs.

    `arguments` holds an array for each tensor, of any strides, and a number or an array without
    axes for each scalar. Output arrays are written in place when all blocks have run.
    With `checks`, the first fault raises BoundsError, UnwrittenReadError, RaceError,
    BarrierError or CoverageError, with a witness; accesses outside an array raise without it
    too. Asynchronous copies, bulk copies and warpgroup matrix instructions act as late as the
    program allows; with a `seed`, some act earlier at random, and warps interleave at random.
    Kernels with such agents or roles run cluster by cluster: their warps wait for each other as
    on the device, and BarrierError reports a deadlock with what each of them waits for.
    """
    _check_machine(kernel, target)
    values = _bind_symbols(kernel, symbols)
    tensors = _tensors(kernel, arguments, values, checks=checks)
    scalars = {scalar.name: _scalar(scalar, arguments) for scalar in kernel.scalars}
    blocks = block_count(kernel, values)
    tally = Tally(shared={buffer.name: BufferTally() for buffer in kernel.shared})
    random = None if seed is None else np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        together = is_asynchronous(kernel)
        for crew in _chunks(kernel, blocks):
            shared = _shared(kernel, crew)
            machine = Machine(
                kernel=kernel,
                target=target,
                crew=crew,
                indexer=Indexer(_PATTERNS),
                tensors=tensors,
                scalars=scalars,
                shared=shared,
                fragments={
                    r.name: Fragment(r, crew.threads, crew.blocks) for r in kernel.registers
                },
                tally=tally,
                checks=checks,
                random=random,
                beside=prepare(kernel, target, crew, shared) if together else None,
            )
            scope = {name: number(value) for name, value in values.items()}
            scope.update(machine.counters())
            if together:
                Scheduler(machine).run(scope)
                finish(machine)
            else:
                run(machine, kernel.body, scope, None)
            _note_unfinished(machine)
    for tensor in tensors.values():
        check_covered(tensor)
        tensor.give_back()
    return tally.report(blocks, kernel.threads)


def _tensors(
    kernel: Kernel,
    arguments: Mapping[str, np.ndarray[Any, Any]],
    values: Mapping[str, int],
    *,
    checks: bool,
) -> dict[str, GlobalTensor]:
    read, written = _accessed(kernel)
    return {
        declared.name: GlobalTensor(
            declared,
            _array(declared, arguments, values),
            checks=checks,
            read=declared.name in read,
            written=declared.name in written,
        )
        for declared in kernel.tensors
    }


def _shared(kernel: Kernel, crew: Crew) -> dict[str, SharedBuffer]:
    shared = lay_out(kernel.shared, crew.blocks)
    for buffer in shared.values():
        check_swizzle(buffer)
    return shared


def _note_unfinished(machine: Machine) -> None:
    for flight in machine.flights:
        name = flight.buffer.name
        machine.tally.findings[name] = Diagnostic(
            "TW305",
            f"the kernel ends while asynchronous copies into `{name}` are under way",
            flight.buffer.declared.span,
            expected="an AsyncWait that covers every group before the end",
        )


# ---------------------------------------------------------------- chunks


def _chunks(kernel: Kernel, blocks: int) -> Iterator[Crew]:
    """Blocks that run at the same time: of cooperative kernels, those of one cluster, or all where
    blocks wait for one another."""
    if is_asynchronous(kernel):
        size = blocks if kernel.exchanges else kernel.cluster
    else:
        size = max(1, _MEMORY // _block_bytes(kernel))
    for first in range(0, blocks, size):
        yield Crew(kernel.threads, kernel.warp_size, first, min(size, blocks - first))


def _block_bytes(kernel: Kernel) -> int:
    """An upper estimate of the memory that simulating one block takes."""
    registers = sum(prod(r.shape) * (r.dtype.bytes + 1) for r in kernel.registers)
    shared = sum(b.elements * (b.dtype.bytes + _SHADOW) for b in kernel.shared)
    widest = max((_instances(s) for s in walk(kernel.body)), default=1)
    return kernel.threads * (registers + _TEMPORARY * widest) + shared + 1


def _instances(statement: Statement) -> int:
    match statement:
        case Load() | Store() | AsyncCopy():
            return statement.width * prod(extent for _, extent in statement.over)
        case Reduce():
            return prod(extent for _, extent in (*statement.over, *statement.along))
        case Assign() | Mma():
            return prod(extent for _, extent in statement.over)
        case _:
            return 1


def _accessed(kernel: Kernel) -> tuple[frozenset[str], frozenset[str]]:
    """Names of memory that is read, and that is written."""
    read: set[str] = set()
    written: set[str] = set()
    mapped = {m.name: m.tensor for m in kernel.maps}
    for statement in walk(kernel.body):
        match statement:
            case Load():
                read.add(statement.src.name)
            case Store():
                written.add(statement.dst.name)
            case AsyncCopy():
                read.add(statement.src.name)
                written.add(statement.dst.name)
            case BulkLoad():
                read.add(mapped[statement.map])
            case BulkStore():
                written.add(mapped[statement.map])
            case _:
                pass
    return frozenset(read), frozenset(written)


# ---------------------------------------------------------------- arguments


def _check_machine(kernel: Kernel, target: Target) -> None:
    if kernel.warp_size != target.warp_size:
        raise LegalityError(
            f"kernel `{kernel.name}` has warps of {kernel.warp_size} threads",
            expected=f"{target.warp_size}, as {target.name} has",
        )
    if kernel.threads > target.max_threads:
        raise ResourceError(
            f"kernel `{kernel.name}` has {kernel.threads} threads in a block",
            expected=f"at most {target.max_threads} on {target.name}",
        )
    if kernel.shared_bytes > target.shared_bytes:
        raise ResourceError(
            f"kernel `{kernel.name}` uses {kernel.shared_bytes} bytes of shared memory",
            expected=f"at most {target.shared_bytes} on {target.name}",
        )


def _bind_symbols(kernel: Kernel, symbols: Mapping[str, int]) -> dict[str, int]:
    values: dict[str, int] = {}
    for symbol in kernel.symbols:
        if symbol.name not in symbols:
            raise UndefinedSymbolError(f"`symbols` does not bind `{symbol.name}`")
        value = int(symbols[symbol.name])
        if not symbol.low <= value < 1 << 31 or value % symbol.multiple:
            raise CallError(
                f"symbol `{symbol.name}` is {value}",
                expected=f"{symbol.low} <= {symbol.name} < 2**31, a multiple of {symbol.multiple}",
            )
        values[symbol.name] = value
    _check_contracts(kernel.contracts, values)
    return values


def _check_contracts(contracts: Guard, values: Mapping[str, int]) -> None:
    for contract in contracts:
        side = contract.expr.evaluate(values)
        if side < 0 or (contract.equality and side != 0):
            bound = ", ".join(f"{n} = {values[n]}" for n in sorted(contract.expr.variables()))
            raise CallError(
                f"the kernel's contract does not hold for {bound}", expected=str(contract)
            )


def _array(
    tensor: Tensor, arguments: Mapping[str, np.ndarray[Any, Any]], values: Mapping[str, int]
) -> Array:
    if tensor.name not in arguments:
        raise CallError(f"no argument for tensor `{tensor.name}`", span=tensor.span)
    array: Array = arguments[tensor.name]
    if array.dtype != NUMPY[tensor.dtype]:
        raise DTypeError(
            f"argument `{tensor.name}` has element type {array.dtype}",
            span=tensor.span,
            expected=f"{NUMPY[tensor.dtype]} for {tensor.dtype}",
        )
    shape = tuple(extent.evaluate(values) for extent in tensor.shape)
    if array.shape != shape:
        raise CallError(
            f"argument `{tensor.name}` has shape {array.shape}", span=tensor.span,
            expected=str(shape),
        )  # fmt: skip
    if tensor.mode is not Mode.IN and not array.flags.writeable:
        raise CallError(f"argument `{tensor.name}` is read-only", span=tensor.span)
    strides = tuple(stride.evaluate(values) for stride in tensor.strides)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if last >= 1 << (tensor.index_bits - 1):
        raise IndexWidthError(
            f"the last element of `{tensor.name}` has offset {last}",
            span=tensor.span,
            expected=f"less than 2**{tensor.index_bits - 1}, for its index_bits",
        )
    return array


def _scalar(scalar: Scalar, arguments: Mapping[str, Any]) -> Array:
    if scalar.name not in arguments:
        raise CallError(f"no argument for scalar `{scalar.name}`")
    value = np.asarray(arguments[scalar.name])
    if value.ndim:
        raise CallError(f"argument `{scalar.name}` has shape {value.shape}", expected="a scalar")
    return convert(value, scalar.dtype)
