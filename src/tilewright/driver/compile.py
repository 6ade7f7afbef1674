"""The whole pipeline: from a tile program to a proved kernel, with every intermediate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.base.spaces import Space
from tilewright.codegen import emit
from tilewright.driver.assumptions import check_layouts, check_sizes
from tilewright.driver.overlaps import refuse_known_overlap
from tilewright.graph.ops import Graph
from tilewright.graph.verify import check_graph
from tilewright.kernel.ops import Kernel
from tilewright.kernel.passes import simplify
from tilewright.kernel.text import print_kernel
from tilewright.kernel.verify import check
from tilewright.lang.constraints import bind
from tilewright.lang.program import Program, trace_program
from tilewright.lower.lowering import lower
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.mapping.obligations import tile_obligations
from tilewright.poly.prove import Obligation
from tilewright.schedule.grid import GridPlan
from tilewright.schedule.plan import Plan
from tilewright.schedule.policy import make_plan
from tilewright.target.model import Target


@dataclass(frozen=True)
class Specialisation:
    """What a compilation fixes. Axes that `sizes` lacks stay dynamic.

    `sizes` binds axes and tile sizes; `spaces` binds memory-space symbols; `strides` (elements)
    and `alignments` (bytes) describe tensors; `multiples` states divisors of dynamic sizes;
    `arrange` orders the tiles.
    """

    target: Target
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    spaces: Mapping[str, Space] = field(default_factory=dict[str, Space])
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    alignments: Mapping[str, int] = field(default_factory=dict[str, int])
    multiples: Mapping[str, int] = field(default_factory=dict[str, int])
    arrange: Callable[[GridPlan], GridPlan] | None = None


@dataclass(frozen=True)
class Rewrites:
    """Replacements of intermediates, for experiments and for tests that seed faults."""

    graph: Callable[[Graph], Graph] = lambda graph: graph
    plan: Callable[[Plan], Plan] = lambda plan: plan
    kernel: Callable[[Kernel], Kernel] = lambda kernel: kernel


@dataclass(frozen=True)
class Compilation:
    """Everything that a compilation made."""

    program: Program
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
    target, sizes = specialisation.target, specialisation.sizes
    rewrites = rewrites or Rewrites()
    check_sizes(program, sizes)
    check_layouts(
        program, specialisation.strides, specialisation.alignments, specialisation.multiples
    )
    graph = rewrites.graph(trace_program(program, sizes, specialisation.spaces))
    check_graph(graph)
    constraints = bind(program.constraints, sizes)
    plan = rewrites.plan(make_plan(graph, constraints, target, specialisation.multiples, specialisation.arrange))
    planned = tile_obligations(graph, plan, target)
    raise_first_refuted(planned)
    lowered = lower(
        graph, plan, target, specialisation.strides, specialisation.alignments,
        specialisation.multiples,
    )  # fmt: skip
    for tensor in lowered.tensors:
        refuse_known_overlap(tensor)
    check(lowered, target)
    kernel = rewrites.kernel(simplify(lowered))
    check(kernel, target)
    obligations = verify(kernel, target)
    raise_first_refuted(obligations)
    obligations = (*planned, *obligations)
    return Compilation(program, specialisation, graph, plan, kernel, obligations)
