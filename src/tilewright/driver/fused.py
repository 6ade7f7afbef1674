"""A fusion compiled for given sizes, strides and alignments: its kernels, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING

from tilewright.base.diagnostics import ConstraintError
from tilewright.driver.compile import Specialisation, compile_graph
from tilewright.driver.fused_lists import Problem, compile_list, together
from tilewright.driver.kept import Entry, Outcome, entry_for, source_of
from tilewright.fusion import ops
from tilewright.fusion.ops import Program
from tilewright.fusion.recognise import recognise
from tilewright.fusion.sched import Axis, Scheduler, Stored, Terms
from tilewright.fusion.segment import Segment, Segmentation, segment
from tilewright.fusion.split import split_reductions
from tilewright.fusion.to_graph import Binding, Fused, to_graph
from tilewright.graph.ops import Graph
from tilewright.graph.verify import check_graph
from tilewright.kernel.problems import Row, joined
from tilewright.poly.expr import Expr
from tilewright.schedule.auto import Automatic
from tilewright.target.model import Target

if TYPE_CHECKING:
    from tilewright.kernel.declared import Interface
    from tilewright.kernel.ops import Kernel
    from tilewright.poly.results import Obligation
    from tilewright.schedule.plan import Plan

ALIGNMENT = 16  # bytes, of every buffer that a fusion makes for itself


@dataclass(frozen=True)
class FusedKernel:
    """One kernel of a fusion, with what it was made from. What the cache does not hold of it is
    made when asked for."""

    fused: Fused
    target: Target
    outcome: Outcome
    entry: Entry | None
    planner: Callable[[], tuple[Automatic, Plan]]
    problems: tuple[Problem, ...] = ()
    """Where one launch does several: each one's tensors, of which `fused` has the first's."""

    @cached_property
    def _planned(self) -> tuple[Automatic, Plan]:
        return self.planner()

    @property
    def automatic(self) -> Automatic:
        """The constraints that were chosen, and why."""
        return self._planned[0]

    @property
    def plan(self) -> Plan:
        return self._planned[1]

    @property
    def kernel(self) -> Kernel:
        return self.outcome.kernel

    @property
    def interface(self) -> Interface:
        """What a launch reads of the kernel."""
        return self.outcome.interface

    @property
    def proofs(self) -> tuple[Obligation, ...]:
        """Every obligation with its result, also those of doing several problems at once."""
        if not self.problems:
            return self.outcome.obligations
        own = joined(self.interface, [problem.symbols for problem in self.problems])
        return (*self.outcome.obligations, *own)

    @property
    def room(self) -> int:
        """How many problems the kernel's launch has room for; 0 where it does one by itself."""
        if not self.problems:
            return 0
        return Row.of(self.interface).room(len(self.problems), self.interface.name)

    @property
    def graph(self) -> Graph:
        return self.fused.graph

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The tensors of all problems."""
        return tuple(b for problem in self.each for b in problem.bindings)

    @property
    def each(self) -> tuple[Problem, ...]:
        """The problems; the one of a kernel by itself."""
        return self.problems or (Problem(self.fused.bindings, {}, self.fused.scalars),)

    @cached_property
    def source(self) -> str:
        """The generated source for the target."""
        if self.problems:
            from tilewright.codegen import emit

            return emit(self.kernel, self.target, self.room)
        return source_of(self.outcome, self.target, self.entry)

    @property
    def ir(self) -> str:
        """The kernel IR as text."""
        return self.outcome.ir

    def explain(self) -> str:
        """What the automatic choice was and why, the plan, and the proofs."""
        from tilewright.lower.obligations import report
        from tilewright.schedule.text import print_plan

        parts = (
            f"{self.interface.name} for {self.target.name}", *self.automatic.reasons,
            print_plan(self.plan), report(self.proofs),
        )  # fmt: skip
        return "\n".join(parts)


@dataclass(frozen=True)
class CompiledFusion:
    """The program with all sizes known, and its kernels in the order in which they run."""

    program: Program
    kernels: tuple[FusedKernel, ...]

    def explain(self) -> str:
        return "\n\n".join(kernel.explain() for kernel in self.kernels)


def compile_fusion(
    program: Program,
    target: Target,
    strides: Mapping[int, Sequence[int]],
    alignments: Mapping[int, int],
    orders: Mapping[int, Sequence[int]] | None = None,
    scheduled: Scheduled | None = None,
) -> CompiledFusion:
    """Cut, plan, lower and prove. Sizes are the program's.

    `strides` (elements) and `alignments` (bytes) describe the inputs, by position; `orders`
    gives stride orders of results, by node. A fusion that is `scheduled` by hand must be one
    kernel.
    """
    program = recognise(program)
    if scheduled is not None:
        found = segment(program, strides)
        return CompiledFusion(
            program, (_by_hand(program, found, scheduled, target, alignments, orders),)
        )
    program = split_reductions(program)
    found = segment(program, strides)
    fused = [
        to_graph(program, found, part, kernel_name(program, part, number), orders)
        for number, part in enumerate(found.segments)
    ]
    kernels: list[FusedKernel] = []
    for group in together(program, found.segments, fused):
        alone = len(group) == 1
        parts = [fused[number] for number in group]
        if alone:
            kernels.append(_compile(program, parts[0], target, alignments))
        else:
            kernels += _compile_list(program, parts, target, alignments)
    return CompiledFusion(program, tuple(kernels))


def _compile_list(
    program: Program, parts: Sequence[Fused], target: Target, alignments: Mapping[int, int]
) -> Iterator[FusedKernel]:
    """One kernel for problems that differ in sizes; several launches of it for very many."""
    for part in parts:
        check_graph(part.graph)
    aligned = [{b.name: _alignment(program, b, alignments) for b in p.bindings} for p in parts]
    compiled, problems = compile_list(parts, target, aligned)
    most = Row.of(compiled.interface).most
    for start in range(0, len(parts), most):
        own = problems[start : start + most]
        why = f"{len(own)} products in one launch"
        yield FusedKernel(
            parts[start], target, compiled.outcome, compiled.entry,
            lambda why=why: (Automatic((), (why,)), compiled.plan), own,
        )  # fmt: skip


def kernel_name(program: Program, part: Segment, number: int) -> str:
    """A name that says what a kernel mostly does."""
    kinds = [program.nodes[n] for n in part.nodes]
    what = "pointwise"
    if any(isinstance(n, ops.Contract) for n in kinds):
        what = "matmul"
    elif any(isinstance(n, ops.Reduce) for n in kinds):
        what = "reduction"
    return f"{what}{number}"


def _compile(
    program: Program, fused: Fused, target: Target, alignments: Mapping[int, int]
) -> FusedKernel:
    """One kernel, scheduled by the policy."""
    check_graph(fused.graph)
    strides = {b.name: b.strides for b in fused.bindings}
    aligned = {b.name: _alignment(program, b, alignments) for b in fused.bindings}

    def planner() -> tuple[Automatic, Plan]:
        from tilewright.driver.fused_lowering import lowered_with_relief

        return lowered_with_relief(fused.graph, target, strides, aligned)[:2]

    entry = entry_for(target, "fusion", fused.graph, strides, aligned)
    kept = entry.outcome() if entry else None
    if kept is not None:
        return FusedKernel(fused, target, kept, entry, planner)
    from tilewright.driver.fused_lowering import proven

    outcome, planned = proven(fused.graph, target, strides, aligned)
    if entry:
        entry.keep(outcome)
    return FusedKernel(fused, target, outcome, entry, lambda: planned)


@dataclass(frozen=True)
class Scheduled:
    """A schedule by hand, and which node each tensor of the definition is."""

    recorder: Scheduler
    nodes: Mapping[int, int]


def _by_hand(
    program: Program,
    found: Segmentation,
    scheduled: Scheduled,
    target: Target,
    alignments: Mapping[int, int],
    orders: Mapping[int, Sequence[int]] | None,
) -> FusedKernel:
    """One kernel, scheduled by its author, through the same pipeline as a tile program."""
    if len(found.segments) != 1:
        raise ConstraintError(
            f"the fusion is scheduled by hand but needs {len(found.segments)} kernels",
            expected="a fusion that fits one kernel",
            mend="cut the fusion, or leave its schedule to the compiler",
        )
    part = found.segments[0]
    name = kernel_name(program, part, 0)
    fused = to_graph(program, found, part, name, orders, merging=False)
    names = {b.buffer: b.name for b in fused.bindings}
    # A dimension of size 1 is no axis of the kernel; a schedule may still count its one tile.
    ones: dict[str, Expr] = {}

    def resolve(reference: Axis | Terms | Stored) -> str:
        match reference:
            case Stored(tensor):
                return names.get(scheduled.nodes.get(tensor, -1), f"T{tensor}")
            case Axis(tensor, dim):
                axis = fused.axes.get((scheduled.nodes.get(tensor, -1), dim))
            case Terms(number):
                axis = f"R{number}" if f"R{number}" in fused.graph.axes else None
        if axis is None:
            axis = f"one_{reference}".replace(".", "_")
            ones[axis] = Expr.of(1)
        return axis

    for _, arguments in scheduled.recorder.calls:
        for argument in arguments:
            if isinstance(argument, Axis | Terms):
                resolve(argument)
    graph = replace(fused.graph, axes={**fused.graph.axes, **ones})
    specialisation = Specialisation(
        target=target,
        strides={b.name: b.strides for b in fused.bindings},
        alignments={b.name: _alignment(program, b, alignments) for b in fused.bindings},
        schedule=scheduled.recorder.schedule(resolve),
    )
    compiled = compile_graph(graph, (), specialisation)
    return FusedKernel(
        replace(fused, graph=graph), target, compiled.outcome, compiled.entry,
        lambda: (Automatic((), ("scheduled by hand",)), compiled.plan),
    )  # fmt: skip


def _alignment(program: Program, binding: Binding, alignments: Mapping[int, int]) -> int:
    """What is known of the address of an argument's first element, in bytes."""
    node = program.nodes[binding.buffer]
    whole = alignments[node.position] if isinstance(node, ops.Input) else ALIGNMENT
    return gcd(whole, binding.offset * binding.dtype.bytes) or whole
