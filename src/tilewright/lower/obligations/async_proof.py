"""Proof of the synchronisation of kernels with asynchronous machinery.

The control flow of such kernels does not depend on data, so each way to choose sizes and block
has one order of events (see `async_run`). It is found by executing what orders the agents, at
the sizes and blocks that stand for all (see `async_cases`), and every access is checked in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from tilewright.base.rounding import round_up
from tilewright.kernel.async_ops import BulkLoad, BulkStore, RemoteStore, TileRef, WarpgroupMma
from tilewright.kernel.ops import AsyncCopy, Kernel, Load, Store, walk
from tilewright.kernel.refs import RegRef
from tilewright.lower.obligations.async_cases import CaseError, Findings, execute
from tilewright.lower.obligations.async_skeleton import Skeleton
from tilewright.lower.obligations.async_state import FaultError
from tilewright.lower.obligations.async_values import OpenError
from tilewright.lower.obligations.instances import at_sizes, complete
from tilewright.poly.expr import Div, Expr, Mod
from tilewright.poly.results import Kind, Obligation, Proved, Refuted, Result, Unknown, Witness
from tilewright.target.model import Target

KINDS = (
    Kind.PHASE, Kind.RELEASE, Kind.RACE, Kind.PROXY, Kind.FLIGHT, Kind.BARRIER, Kind.DEADLOCK,
    Kind.DRAIN,
)  # fmt: skip
_MOST_SIZES = 400  # combinations looked at to find sizes for a fault


def synchronisation(kernel: Kernel, target: Target) -> tuple[Obligation, ...]:
    """The obligations that order the agents of a kernel with asynchronous statements.

    A fault ends the execution: what else there is to prove is then unknown.
    """
    try:
        findings = execute(Skeleton.of(kernel, target))
    except CaseError as case:
        return (*_refuted(kernel, target, case), *_between_blocks(kernel))
    except OpenError as error:
        return (*_unknown(kernel, str(error)), *_between_blocks(kernel))
    return (*_proved(kernel, findings), *_between_blocks(kernel))


def _unknown(kernel: Kernel, reason: str, but: Kind | None = None) -> Iterator[Obligation]:
    for kind in KINDS:
        if kind is not but:
            yield Obligation(kind, kernel.name, Unknown(reason), None, "synchronisation")


# ---------------------------------------------------------------- proved


def _proved(kernel: Kernel, findings: Findings) -> Iterator[Obligation]:
    runs = "1 execution stands" if findings.runs == 1 else f"{findings.runs} executions stand"
    ground = f"{runs} for all"

    def proved(kind: Kind, subject: str, what: str, note: str = "") -> Obligation:
        return Obligation(kind, subject, Proved(note or ground), None, what)

    for phases in kernel.phases:
        counts = sorted(findings.counts.get(phases.name, set()))
        each = "; ".join(f"{n} arrival{'s' * (n > 1)} and {size} bytes" for n, size in counts)
        yield proved(Kind.PHASE, phases.name, "arrivals, bytes and parities", each or "never ends")
    by_agents = _touched_by_agents(kernel)
    for buffer in kernel.shared:
        yield proved(Kind.RACE, buffer.name, "accesses of threads are ordered")
        if buffer.name in by_agents:
            yield proved(Kind.RELEASE, buffer.name, "agents and threads take turns")
            yield proved(Kind.PROXY, buffer.name, "writes of threads are fenced for agents")
    for name in _held(kernel):
        yield proved(Kind.FLIGHT, name, "registers are left alone while instructions use them")
    yield proved(Kind.BARRIER, kernel.name, "threads meet with whole warps, in the right number")
    yield proved(Kind.DEADLOCK, kernel.name, "every wait ends")
    yield proved(Kind.DRAIN, kernel.name, "nothing is under way when a block ends")


def _touched_by_agents(kernel: Kernel) -> set[str]:
    names: set[str] = set()
    for s in walk(kernel.body):
        match s:
            case BulkLoad(dst=ref) | BulkStore(src=ref) | RemoteStore(dst=ref):
                names.add(ref.name)
            case WarpgroupMma(a=a, b=b):
                names |= {t.name for t in (a, b) if isinstance(t, TileRef)}
            case _:
                pass
    return names


def _held(kernel: Kernel) -> tuple[str, ...]:
    found = [
        ref.name
        for s in walk(kernel.body)
        if isinstance(s, WarpgroupMma)
        for ref in (s.d, s.a)
        if isinstance(ref, RegRef)
    ]
    return tuple(dict.fromkeys(found))


def _between_blocks(kernel: Kernel) -> Iterator[Obligation]:
    """Tensors that are read and written: which agent comes first is not decided here."""
    maps = {m.name: m.tensor for m in kernel.maps}
    reads: set[str] = set()
    writes: set[str] = set()
    for s in walk(kernel.body):
        match s:
            case BulkLoad(map=name):
                reads.add(maps[name])
            case BulkStore(map=name):
                writes.add(maps[name])
            case Load(src=ref) | AsyncCopy(src=ref):
                reads.add(ref.name)
            case Store(dst=ref):
                writes.add(ref.name)
            case _:
                pass
    for tensor in kernel.tensors:
        if tensor.name in reads & writes:
            result = Unknown("the tensor is read and written in a kernel with agents")
            yield Obligation(Kind.RACE, tensor.name, result, tensor.span, "accesses of a tensor")


# ---------------------------------------------------------------- refuted


def _refuted(kernel: Kernel, target: Target, case: CaseError) -> Iterator[Obligation]:
    """The fault, where sizes that a launch can have show it."""
    fault, sizes = case.fault, dict[str, int]()
    if case.sizes:
        found = _found_again(kernel, target, case)
        if found is None:
            yield from _unknown(kernel, f"maybe {case.fault.message}")
            return
        fault, sizes = found
    symbols = tuple(sizes.items())
    notes = fault.notes
    if symbols:
        notes = (*notes, f"with {', '.join(f'{n} = {v}' for n, v in symbols)}")
    result: Result = Refuted(fault.message, Witness((), symbols, ()), notes)
    title = fault.step.title if fault.step else "end"
    yield Obligation(fault.kind, fault.subject, result, fault.span, title)
    yield from _unknown(kernel, "an execution ends at the fault that is shown", fault.kind)


def _found_again(
    kernel: Kernel, target: Target, case: CaseError
) -> tuple[FaultError, dict[str, int]] | None:
    """A fault of the kernel at numbers."""
    wanted = {
        name: (size.expr, case.sizes[name])
        for name, size in Skeleton.of(kernel, target).sizes.items()
        if size.expr is not None
    }
    for sizes in _candidates(kernel, wanted):
        try:
            execute(Skeleton.of(at_sizes(kernel, sizes), target))
        except CaseError as concrete:
            return concrete.fault, sizes
        except OpenError:
            continue
    return None


def _candidates(kernel: Kernel, wanted: Mapping[str, tuple[Expr, int]]) -> Iterator[dict[str, int]]:
    """A few admitted sizes, best those at which the expressions have the values wanted."""
    base = [s for s in kernel.symbols if not s.product]
    choices: list[list[int]] = []
    for symbol in base:
        values = {symbol.low}
        for expr, value in wanted.values():
            values.update(_solutions(expr, symbol.name, value))
        multiple = symbol.multiple
        choices.append(sorted({round_up(max(v, symbol.low), multiple) for v in values}))
    scored: list[tuple[int, dict[str, int]]] = []
    for number, values in enumerate(product(*choices)):
        if number >= _MOST_SIZES:
            break
        sizes = complete(kernel, dict(zip((s.name for s in base), values, strict=True)))
        sides = [(c.expr.evaluate(sizes), c.equality) for c in kernel.contracts]
        if not all(side == 0 if equality else side >= 0 for side, equality in sides):
            continue
        missed = sum(
            not expr.variables() <= sizes.keys() or expr.evaluate(sizes) != value
            for expr, value in wanted.values()
        )
        scored.append((missed, sizes))
    scored.sort(key=lambda pair: (pair[0], sum(pair[1].values())))
    for _, sizes in scored[:3]:
        yield sizes


def _solutions(expr: Expr, name: str, value: int) -> Iterator[int]:
    """Values of a symbol at which a term that it stands in alone has a value."""
    for term, _ in expr.terms:
        match term:
            case str() if term == name:
                yield value
            case Div(num, den) if name in num.variables():
                yield den * value
                yield den * value - num.const if num.const < den else den * value
            case Mod(num, _) if name in num.variables():
                yield value
            case _:
                pass
