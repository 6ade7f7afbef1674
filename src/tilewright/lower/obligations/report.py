"""All obligations of a kernel, their report, and the error that the first refuted one becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tilewright.base.diagnostics import (
    BarrierError,
    BoundsError,
    CoverageError,
    ElementError,
    IndexWidthError,
    RaceError,
    ReductionError,
    TilewrightError,
    UnwrittenReadError,
)
from tilewright.kernel.ops import Kernel
from tilewright.lower.obligations.accesses import Access, accesses
from tilewright.lower.obligations.async_proof import KINDS, synchronisation
from tilewright.lower.obligations.asynchronous import is_asynchronous
from tilewright.lower.obligations.barriers import barriers
from tilewright.lower.obligations.bounds import alignment, bounds
from tilewright.lower.obligations.bulk_bounds import boxes_meet, bulk_alignment, left_out
from tilewright.lower.obligations.bulk_boxes import bulk_accesses
from tilewright.lower.obligations.bulk_parts import parts
from tilewright.lower.obligations.bulk_sums import warpgroup_starts, warpgroup_sums
from tilewright.lower.obligations.bulk_unwritten import loaded_before_read
from tilewright.lower.obligations.combining import combining
from tilewright.lower.obligations.coverage import coverage
from tilewright.lower.obligations.data import (
    data_indices,
    joined,
    under_contract,
    ways,
    with_data_as_sizes,
)
from tilewright.lower.obligations.decodes import decodes
from tilewright.lower.obligations.elements import Axes, elements
from tilewright.lower.obligations.exchanges import exchanges
from tilewright.lower.obligations.instances import settle
from tilewright.lower.obligations.reductions import reductions
from tilewright.lower.obligations.registers import assigned_before_read, register_bounds
from tilewright.lower.obligations.scans import scans
from tilewright.lower.obligations.scope import Program
from tilewright.lower.obligations.shared_memory import races
from tilewright.lower.obligations.stream_sums import stream_sums
from tilewright.lower.obligations.unwritten import unwritten_reads
from tilewright.lower.obligations.widths import index_widths
from tilewright.poly.prove import Assumed, Kind, Obligation, Proved, Refuted, Unknown
from tilewright.target.model import Target

_ERRORS: dict[Kind, tuple[type[TilewrightError], str, str]] = {
    Kind.COVERAGE: (
        CoverageError,
        "every element of an output written exactly once",
        "place or loop over every digit of the output, and guard digits that replicate",
    ),
    Kind.DECODE: (
        CoverageError,
        "digits whose extents multiply to the range of their source",
        "let the grid, the warps or the loop have the product of the digits' extents",
    ),
    Kind.BOUNDS: (BoundsError, "an index inside", "guard the access with the extent"),
    Kind.ALIGNMENT: (
        BoundsError,
        "vectors that start at a multiple of their size",
        "narrow the vector, or state that the size is a multiple of its length",
    ),
    Kind.REDUCTION: (
        ReductionError,
        "each term of the reduction counted exactly once",
        "let the loops and the lane steps run over the whole axis, once",
    ),
    Kind.UNWRITTEN: (UnwrittenReadError, "a write before each read", "initialise it first"),
    Kind.RACE: (
        RaceError,
        "a barrier between accesses of two threads to one element, one of them writing",
        "put a barrier between the two, or wait for the copy first",
    ),
    Kind.BARRIER: (
        BarrierError,
        "control flow on which all threads agree",
        "move the barrier out of the guard, or guard with block digits only",
    ),
    Kind.PHASE: (
        BarrierError,
        "in each phase the arrivals and bytes that it takes, and waits for the phase they mean",
        "count the threads that arrive and the bytes of the boxes; let the parity follow the turns",
    ),
    Kind.RELEASE: (
        RaceError,
        "shared memory left alone from the start of the copy or instruction to the wait for it",
        "wait for the phase, the group or the barrier that orders the two",
    ),
    Kind.PROXY: (
        RaceError,
        "a ProxyFence in the writing threads, then a barrier, before other agents touch it",
        "put a ProxyFence between the write and the barrier",
    ),
    Kind.FLIGHT: (
        RaceError,
        "a WarpgroupFence before the instruction, its registers left alone until the wait for it",
        "wait for the instruction first, or use other registers",
    ),
    Kind.DRAIN: (
        RaceError,
        "nothing under way that uses a block's shared memory when the block ends",
        "wait for it before the end; in a cluster, let all blocks meet there",
    ),
    Kind.DEADLOCK: (
        BarrierError,
        "for each wait, threads that arrive",
        "let as many threads arrive as wait for, in the same turns of their loops",
    ),
    Kind.ELEMENT: (
        ElementError,
        "registers that hold the elements that they are stored as",
        "load each element at the coordinates at which its value is used",
    ),
    Kind.INDEX_WIDTH: (IndexWidthError, "indices that fit their integer", "use index_bits=64"),
}


_Prover = Callable[[Program, Sequence[Access]], Iterable[Obligation]]
_PROVERS: tuple[tuple[Kind, _Prover], ...] = (
    (Kind.DECODE, lambda program, _: decodes(program)),
    (Kind.COVERAGE, coverage),
    (Kind.BOUNDS, bounds),
    (Kind.BOUNDS, boxes_meet),
    (Kind.BOUNDS, lambda program, _: register_bounds(program)),
    (Kind.ALIGNMENT, alignment),
    (Kind.ALIGNMENT, bulk_alignment),
    (Kind.REDUCTION, lambda program, _: reductions(program)),
    (Kind.REDUCTION, lambda program, _: warpgroup_sums(program)),
    (Kind.REDUCTION, lambda program, _: parts(program)),
    (Kind.REDUCTION, lambda program, _: stream_sums(program)),
    (Kind.DEADLOCK, lambda program, _: exchanges(program)),
    (Kind.REDUCTION, lambda program, _: combining(program)),
    (Kind.REDUCTION, lambda program, _: scans(program)),
    (Kind.UNWRITTEN, lambda program, _: assigned_before_read(program)),
    (Kind.UNWRITTEN, lambda program, _: warpgroup_starts(program)),
    (Kind.UNWRITTEN, unwritten_reads),
    (Kind.UNWRITTEN, loaded_before_read),
    (Kind.UNWRITTEN, lambda program, _: left_out(program)),
    (Kind.INDEX_WIDTH, index_widths),
)
# How threads without asynchronous machinery are ordered; with it, `synchronisation` says.
_BARRIERS: tuple[tuple[Kind, _Prover], ...] = (
    (Kind.RACE, races),
    (Kind.BARRIER, lambda program, _: barriers(program)),
)


def verify(kernel: Kernel, target: Target, axes: Axes | None = None) -> tuple[Obligation, ...]:
    """Prove, refute or bound everything that the kernel has to satisfy. Never raises for faults.

    Reads the kernel IR and, where they are given, the names of its tensors' axes: these tell
    whether a load gets the elements that a store names (see `elements`). Raises `LegalityError`
    where a name in the kernel is not defined.
    """
    if data_indices(kernel):
        found = relations(with_data_as_sizes(kernel), target, axes)
        return under_contract(kernel, (*found, *_ordered_by_data(kernel, target)))
    return (*relations(kernel, target, axes), *_ordered(kernel, target))


def _ordered(kernel: Kernel, target: Target) -> tuple[Obligation, ...]:
    return synchronisation(kernel, target) if is_asynchronous(kernel) else ()


def _ordered_by_data(kernel: Kernel, target: Target) -> tuple[Obligation, ...]:
    """The order of agents in each way through the guards that data decides."""
    found = ways(kernel)
    if found is not None:
        return joined([_ordered(way, target) for way in found])
    unknown = Unknown("data decides how often a loop runs")
    return tuple(Obligation(kind, kernel.name, unknown) for kind in KINDS)


def relations(kernel: Kernel, target: Target, axes: Axes | None = None) -> tuple[Obligation, ...]:
    """What `verify` proves without executing anything: all but the order of agents, where the
    kernel has some."""
    if data_indices(kernel):
        return under_contract(kernel, relations(with_data_as_sizes(kernel), target, axes))
    provers = _PROVERS if is_asynchronous(kernel) else (*_PROVERS, *_BARRIERS)

    def prove(some: Kernel, kinds: frozenset[Kind]) -> tuple[Obligation, ...]:
        program = Program.of(some, target)
        found = (*accesses(program), *bulk_accesses(program))
        proofs = [o for kind, prover in provers if kind in kinds for o in prover(program, found)]
        if axes and Kind.ELEMENT in kinds:
            proofs += elements(program, axes)
        return tuple(proofs)

    return settle(kernel, prove(kernel, frozenset(Kind)), prove)


def report(obligations: Sequence[Obligation]) -> str:
    """One line for each obligation that is not proved, grouped proofs, and a count of each end."""
    counts = Counter(type(o.result).__name__.lower() for o in obligations)
    words = ("proved", "refuted", "assumed", "unknown")
    lines = [", ".join(f"{counts[w]} {w}" for w in words)]
    for kind in Kind:
        own = [o for o in obligations if o.kind is kind]
        proved = [o for o in own if isinstance(o.result, Proved)]
        if proved:
            notes = list(dict.fromkeys(_note(o) for o in proved if _note(o)))
            text = f"{len(proved)} proved"
            lines.append(f"{kind.value}: {text}" + (f"; {'; '.join(notes)}" if notes else ""))
        lines += [f"{kind.value}: {_line(o)}" for o in own if not isinstance(o.result, Proved)]
    return "\n".join(lines)


def _note(obligation: Obligation) -> str:
    shown = (Kind.COVERAGE, Kind.REDUCTION, Kind.PHASE)
    result = obligation.result
    if obligation.kind not in shown or not isinstance(result, Proved):
        return ""
    return (
        result.note
        if obligation.kind is Kind.COVERAGE
        else (f"{obligation.subject}: {result.note}")
    )


def _line(obligation: Obligation) -> str:
    where = f"{obligation.subject}, {obligation.statement}"
    match obligation.result:
        case Refuted(message=message, notes=notes):
            text = f"REFUTED {message}" + "".join(f"; {n}" for n in notes)
        case Assumed(contract=contract):
            text = f"assumed {contract}"
        case Unknown(reason=reason):
            text = f"unknown: {reason}"
        case Proved():
            text = "proved"
    return f"{text} ({where})"


def error_of(obligation: Obligation) -> TilewrightError | None:
    """The typed error of a refuted obligation, None for any other."""
    result = obligation.result
    if not isinstance(result, Refuted):
        return None
    error, expected, mend = _ERRORS[obligation.kind]
    notes = (*result.notes, f"proof of {obligation.subject}: {obligation.statement}")
    return error(result.message, span=obligation.span, expected=expected, mend=mend, notes=notes)


def raise_first_refuted(obligations: Sequence[Obligation]) -> None:
    """Raise the typed error of the first refuted obligation; nothing where there is none."""
    for obligation in obligations:
        error = error_of(obligation)
        if error is not None:
            raise error
