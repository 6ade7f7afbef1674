"""The whole pipeline: from a tile program to a proved kernel, with every intermediate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.base.diagnostics import ResourceError
from tilewright.base.spaces import Space
from tilewright.base.spans import Span
from tilewright.codegen import emit
from tilewright.driver.assumptions import check_layouts, check_sizes
from tilewright.driver.axes import named_axes
from tilewright.driver.overlaps import refuse_known_overlap
from tilewright.graph.ops import Graph, ReadOp, WriteOp, walk
from tilewright.graph.verify import check_graph
from tilewright.kernel.ops import Kernel
from tilewright.kernel.passes import simplify
from tilewright.kernel.pressure import register_estimate, words
from tilewright.kernel.text import print_kernel
from tilewright.kernel.verify import check
from tilewright.lang.constraints import bind
from tilewright.lang.program import Program, trace_program
from tilewright.lower.lowering import lower
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.mapping.obligations import tile_obligations
from tilewright.poly.prove import Obligation
from tilewright.schedule.blocks import combined_axes
from tilewright.schedule.constraints import Constraint, merged
from tilewright.schedule.plan import Plan
from tilewright.schedule.policy import make_plan
from tilewright.schedule.schedule import Schedule
from tilewright.target.model import Target


@dataclass(frozen=True)
class Specialisation:
    """What a compilation fixes. Axes that `sizes` lacks stay dynamic.

    `sizes` binds axes and tile sizes; `spaces` binds memory-space symbols; `strides` (elements)
    and `alignments` (bytes) describe tensors; `multiples` states divisors of dynamic sizes;
    `schedule` transforms the iteration space by hand, on top of the program's constraints.
    """

    target: Target
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    spaces: Mapping[str, Space] = field(default_factory=dict[str, Space])
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    alignments: Mapping[str, int] = field(default_factory=dict[str, int])
    multiples: Mapping[str, int] = field(default_factory=dict[str, int])
    schedule: Callable[[Schedule], Schedule] | None = None


@dataclass(frozen=True)
class Rewrites:
    """Replacements of intermediates, for experiments and for tests that seed faults."""

    graph: Callable[[Graph], Graph] = lambda graph: graph
    plan: Callable[[Plan], Plan] = lambda plan: plan
    kernel: Callable[[Kernel], Kernel] = lambda kernel: kernel


@dataclass(frozen=True)
class Compilation:
    """Everything that a compilation made."""

    specialisation: Specialisation
    graph: Graph
    plan: Plan
    kernel: Kernel
    obligations: tuple[Obligation, ...]

    @cached_property
    def source(self) -> str:
        """The generated source for the target."""
        return emit(self.kernel, self.specialisation.target)

    @cached_property
    def ir(self) -> str:
        """The kernel IR as text."""
        return print_kernel(self.kernel)


def compile_program(
    program: Program, specialisation: Specialisation, rewrites: Rewrites | None = None
) -> Compilation:
    """Trace, plan, lower and prove. The first refuted obligation is raised as its error."""
    sizes = specialisation.sizes
    check_sizes(program, sizes)
    check_layouts(
        program, specialisation.strides, specialisation.alignments, specialisation.multiples
    )
    graph = trace_program(program, sizes, specialisation.spaces)
    return compile_graph(graph, bind(program.constraints, sizes), specialisation, rewrites)


def compile_graph(
    graph: Graph,
    constraints: Sequence[Constraint],
    specialisation: Specialisation,
    rewrites: Rewrites | None = None,
) -> Compilation:
    """Plan, lower and prove a tile graph, whichever door it came through."""
    target, multiples = specialisation.target, specialisation.multiples
    rewrites = rewrites or Rewrites()
    graph = rewrites.graph(graph)
    check_graph(graph)
    arrange, staged = None, frozenset[str]()
    if specialisation.schedule is not None:
        schedule = specialisation.schedule(_unscheduled(graph))
        constraints = merged(constraints, schedule.constraints())
        arrange = schedule.arrange
        staged = schedule.state.staged
    plan = rewrites.plan(make_plan(graph, constraints, target, multiples, arrange, staged))
    planned = tile_obligations(graph, plan, target)
    raise_first_refuted(planned)
    lowered = lower(
        graph, plan, target, specialisation.strides, specialisation.alignments, multiples
    )
    for tensor in lowered.tensors:
        refuse_known_overlap(tensor)
    refuse_register_overflow(lowered, target, graph.span)
    kernel, obligations = proved(graph, lowered, target, rewrites.kernel)
    return Compilation(specialisation, graph, plan, kernel, (*planned, *obligations))


def proved(
    graph: Graph,
    lowered: Kernel,
    target: Target,
    rewritten: Callable[[Kernel], Kernel] = lambda kernel: kernel,
) -> tuple[Kernel, tuple[Obligation, ...]]:
    """A lowered kernel checked, simplified and proved. The first refuted obligation is raised."""
    check(lowered, target)
    kernel = rewritten(simplify(lowered))
    check(kernel, target)
    obligations = verify(kernel, target, named_axes(graph))
    raise_first_refuted(obligations)
    return kernel, obligations


def refuse_register_overflow(kernel: Kernel, target: Target, span: Span | None) -> None:
    """ResourceError where the fragments that are in use at once need more registers than exist."""
    needed = register_estimate(kernel)
    if needed > target.registers_per_thread:
        largest = sorted(kernel.registers, key=words, reverse=True)[:3]
        raise ResourceError(
            f"{kernel.name} keeps {needed} registers of a thread in use at once",
            span=span,
            expected=f"at most {target.registers_per_thread} on {target.name}",
            notes=tuple(f"{f.name}: {words(f)} registers, holds {f.holds}" for f in largest),
            mend="use smaller tiles or more warps",
        )


def _unscheduled(graph: Graph) -> Schedule:
    """A schedule of the graph with no steps yet."""
    reads = (op.memory for op in walk(graph.body) if isinstance(op, ReadOp))
    writes = (op.memory for op in walk(graph.body) if isinstance(op, WriteOp))
    return Schedule(tuple(graph.axes), combined_axes(graph), frozenset(reads), frozenset(writes))
