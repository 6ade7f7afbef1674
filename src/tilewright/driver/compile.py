"""The whole pipeline: from a tile program to a proved kernel, with every intermediate.

A kernel that was compiled before is read from the disk cache; what compiles it is not even
imported then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tilewright.driver.assumptions import check_layouts, check_sizes
from tilewright.driver.kept import Entry, Kept, Outcome, Proven, entry_for, source_of
from tilewright.driver.specialisation import Request, Rewrites, Specialisation
from tilewright.graph.ops import Graph, ReadOp, WriteOp, walk
from tilewright.graph.verify import check_graph
from tilewright.lang.constraints import bind
from tilewright.lang.program import Program, trace_program
from tilewright.schedule.blocks import combined_axes
from tilewright.schedule.constraints import Constraint, merged
from tilewright.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tilewright.kernel.declared import Interface
    from tilewright.kernel.ops import Kernel
    from tilewright.poly.results import Obligation
    from tilewright.schedule.plan import Plan

__all__ = [
    "Compilation", "Rewrites", "Specialisation", "compile_graph", "compile_program",
]  # fmt: skip


@dataclass(frozen=True)
class Compilation:
    """Everything that a compilation made. What the cache does not hold is made when asked for."""

    request: Request
    rewrites: Rewrites
    outcome: Outcome
    entry: Entry | None
    """Where the disk cache keeps it; None where it does not."""

    @property
    def specialisation(self) -> Specialisation:
        return self.request.specialisation

    @property
    def graph(self) -> Graph:
        return self.request.graph

    @property
    def is_kept(self) -> bool:
        """Whether the kernel and its proofs were read from the disk cache."""
        return isinstance(self.outcome, Kept)

    @cached_property
    def plan(self) -> Plan:
        """The digits and their places."""
        from tilewright.driver.pipeline import planned

        return planned(self.request, self.rewrites)

    @property
    def kernel(self) -> Kernel:
        return self.outcome.kernel

    @property
    def interface(self) -> Interface:
        """What a launch reads of the kernel."""
        return self.outcome.interface

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        return self.outcome.obligations

    @cached_property
    def source(self) -> str:
        """The generated source for the target."""
        return source_of(self.outcome, self.specialisation.target, self.entry)

    @property
    def ir(self) -> str:
        """The kernel IR as text."""
        return self.outcome.ir


def compile_program(
    program: Program, specialisation: Specialisation, rewrites: Rewrites | None = None
) -> Compilation:
    """Trace, plan, lower and prove. The first refuted obligation is raised as its error."""
    graph, constraints = _traced(program, specialisation)
    return compile_graph(graph, constraints, specialisation, rewrites)


def request_for(program: Program, specialisation: Specialisation) -> Request:
    """What compiling the program would start from: enough to plan it."""
    return _requested(*_traced(program, specialisation), specialisation)


def _traced(
    program: Program, specialisation: Specialisation
) -> tuple[Graph, tuple[Constraint, ...]]:
    sizes = specialisation.sizes
    check_sizes(program, sizes)
    check_layouts(
        program, specialisation.strides, specialisation.alignments, specialisation.multiples
    )
    graph = trace_program(program, sizes, specialisation.spaces)
    return graph, bind(program.constraints, sizes)


def compile_graph(
    graph: Graph,
    constraints: Sequence[Constraint],
    specialisation: Specialisation,
    rewrites: Rewrites | None = None,
) -> Compilation:
    """Plan, lower and prove a tile graph, whichever door it came through."""
    graph = rewrites.graph(graph) if rewrites else graph
    request = _requested(graph, constraints, specialisation)
    entry = None if rewrites else _entry(request)
    kept = entry.outcome() if entry else None
    if kept is not None:
        return Compilation(request, Rewrites(), kept, entry)
    return _compiled(request, rewrites or Rewrites(), entry)


def _requested(
    graph: Graph, constraints: Sequence[Constraint], specialisation: Specialisation
) -> Request:  # fmt: skip
    check_graph(graph)
    schedule = None
    if specialisation.schedule is not None:
        schedule = specialisation.schedule(_unscheduled(graph))
        constraints = merged(constraints, schedule.constraints())
    return Request(graph, constraints, specialisation, schedule)


def _compiled(request: Request, rewrites: Rewrites, entry: Entry | None) -> Compilation:
    from tilewright.driver.pipeline import made, planned

    plan = planned(request, rewrites)
    outcome = Proven(*made(request, plan, rewrites))
    if entry:
        entry.keep(outcome)
    compilation = Compilation(request, rewrites, outcome, entry)
    compilation.__dict__["plan"] = plan  # at hand: no need to make it again
    return compilation


def _entry(request: Request) -> Entry | None:
    """The place in the cache for all that a request says; `schedule` is a function there."""
    given = request.specialisation
    return entry_for(
        given.target, request.graph, request.constraints, request.schedule,
        given.strides, given.alignments, given.multiples, given.example,
    )  # fmt: skip


def _unscheduled(graph: Graph) -> Schedule:
    """A schedule of the graph with no steps yet."""
    reads = (op.memory for op in walk(graph.body) if isinstance(op, ReadOp))
    writes = (op.memory for op in walk(graph.body) if isinstance(op, WriteOp))
    return Schedule(tuple(graph.axes), combined_axes(graph), frozenset(reads), frozenset(writes))
