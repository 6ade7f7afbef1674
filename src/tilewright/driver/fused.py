"""A fusion compiled for given sizes, strides and alignments: its kernels, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from tilewright.base.diagnostics import ConstraintError, ResourceError
from tilewright.codegen import emit
from tilewright.driver.compile import Specialisation, compile_graph
from tilewright.driver.pipeline import proved
from tilewright.fusion import ops
from tilewright.fusion.ops import Program
from tilewright.fusion.recognise import recognise
from tilewright.fusion.sched import Axis, Scheduler, Stored, Terms
from tilewright.fusion.segment import Segment, Segmentation, segment
from tilewright.fusion.split import split_reductions
from tilewright.fusion.to_graph import Binding, Fused, to_graph
from tilewright.graph.ops import Graph
from tilewright.graph.verify import check_graph
from tilewright.kernel.ops import Kernel
from tilewright.kernel.pressure import register_estimate
from tilewright.kernel.text import print_kernel
from tilewright.lower.lowering import lower
from tilewright.lower.obligations import raise_first_refuted, report
from tilewright.mapping.obligations import tile_obligations
from tilewright.poly.expr import Expr
from tilewright.poly.prove import Obligation
from tilewright.schedule.auto import MOST_RELIEF, Automatic, choose_constraints
from tilewright.schedule.plan import Plan
from tilewright.schedule.policy import make_plan
from tilewright.schedule.tensors import declare
from tilewright.schedule.text import print_plan
from tilewright.target.model import Target

ALIGNMENT = 16  # bytes, of every buffer that a fusion makes for itself


@dataclass(frozen=True)
class FusedKernel:
    """One kernel of a fusion, with what it was made from."""

    fused: Fused
    target: Target
    automatic: Automatic
    plan: Plan
    kernel: Kernel
    proofs: tuple[Obligation, ...]

    @property
    def graph(self) -> Graph:
        return self.fused.graph

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return self.fused.bindings

    @cached_property
    def source(self) -> str:
        """The generated source for the target."""
        return emit(self.kernel, self.target)

    @cached_property
    def ir(self) -> str:
        """The kernel IR as text."""
        return print_kernel(self.kernel)

    def explain(self) -> str:
        """What the automatic choice was and why, the plan, and the proofs."""
        parts = (
            f"{self.kernel.name} for {self.target.name}", *self.automatic.reasons,
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
    kernels: list[FusedKernel] = []
    for number, part in enumerate(found.segments):
        fused = to_graph(program, found, part, kernel_name(program, part, number), orders)
        kernels.append(_compile(program, fused, target, alignments))
    return CompiledFusion(program, tuple(kernels))


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
    check_graph(fused.graph)
    automatic, plan, lowered = _lowered(program, fused, target, alignments)
    planned = tile_obligations(fused.graph, plan, target)
    raise_first_refuted(planned)
    kernel, proofs = proved(fused.graph, lowered, target)
    return FusedKernel(fused, target, automatic, plan, kernel, (*planned, *proofs))


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
    automatic = Automatic((), ("scheduled by hand",))
    return FusedKernel(
        replace(fused, graph=graph), target, automatic, compiled.plan, compiled.kernel,
        compiled.obligations,
    )  # fmt: skip


def _lowered(
    program: Program, fused: Fused, target: Target, alignments: Mapping[int, int]
) -> tuple[Automatic, Plan, Kernel]:
    """Plan and lower, with smaller shares of a thread where the first choice fills it up."""
    aligned = {b.name: _alignment(program, b, alignments) for b in fused.bindings}
    strides = {b.name: b.strides for b in fused.bindings}
    declared = declare(fused.graph, strides, aligned)
    for relief in range(MOST_RELIEF + 1):
        automatic = choose_constraints(fused.graph, target, relief, declared)
        plan = make_plan(fused.graph, automatic.constraints, target, declared=declared)
        try:
            lowered = lower(fused.graph, plan, target, strides, aligned)
        except ResourceError:
            if relief == MOST_RELIEF:
                raise
            continue
        room = target.registers_per_thread * 7 // 8  # addresses and scratch take the rest
        if relief == MOST_RELIEF or register_estimate(lowered) <= room:
            return automatic, plan, lowered
    raise RuntimeError("no attempt was made")


def _alignment(program: Program, binding: Binding, alignments: Mapping[int, int]) -> int:
    """What is known of the address of an argument's first element, in bytes."""
    node = program.nodes[binding.buffer]
    whole = alignments[node.position] if isinstance(node, ops.Input) else ALIGNMENT
    return gcd(whole, binding.offset * binding.dtype.bytes) or whole
