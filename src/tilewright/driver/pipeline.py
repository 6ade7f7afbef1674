"""From a tile graph to a proved kernel: plan, lower, simplify, prove."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.base.diagnostics import ResourceError
from tilewright.base.spans import Span
from tilewright.driver.axes import named_axes
from tilewright.driver.overlaps import refuse_known_overlap
from tilewright.driver.specialisation import Example, Request, Rewrites
from tilewright.graph.ops import Graph, WriteOp, walk
from tilewright.kernel.ops import Kernel
from tilewright.kernel.passes import simplify
from tilewright.kernel.pressure import register_estimate, words
from tilewright.kernel.verify import check
from tilewright.lower.lowering import lower
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.lower.obligations.made import made as made_of
from tilewright.mapping.obligations import tile_obligations
from tilewright.poly.expr import Expr
from tilewright.poly.results import Obligation
from tilewright.schedule.auto import completed
from tilewright.schedule.constraints import Constraint, Hardware, hardware_of
from tilewright.schedule.plan import Plan
from tilewright.schedule.policy import make_plan
from tilewright.schedule.tensors import declare
from tilewright.target.model import Target


def planned(request: Request, rewrites: Rewrites) -> Plan:
    """The digits of the graph's axes and their places."""
    given, schedule = request.specialisation, request.schedule
    arrange = None if schedule is None else schedule.arrange
    staged = frozenset[str]() if schedule is None else schedule.state.staged
    declared = declare(request.graph, given.strides, given.alignments, given.multiples)
    constraints = request.constraints
    if schedule is None and given.example is not None:
        constraints = _suited(request, given.example)
    elif schedule is None:
        constraints = completed(request.graph, constraints, given.target, declared)
    plan = make_plan(
        request.graph, constraints, given.target, given.multiples, arrange, staged, declared
    )
    return rewrites.plan(plan)


def _suited(request: Request, example: Example) -> Sequence[Constraint]:
    """Constraints for one of many problems in a launch, chosen as for one as large as all.

    Each tile has a block of its own: blocks that went on to further tiles, as many as run at once
    for each problem, would keep those of the next problems waiting until the last tile. Blocks
    that share terms or operands fill a device that many problems fill anyway.
    """
    graph, given = request.graph, request.specialisation
    if any(not isinstance(c, Hardware) for c in request.constraints):
        return request.constraints
    sizes = {a: e.const if e.is_const else example.sizes[a] for a, e in graph.axes.items()}
    outputs = (op for op in walk(graph.body) if isinstance(op, WriteOp))
    for axis in next(outputs).type.axes[:1]:
        sizes[axis] *= example.count
    known = replace(
        graph,
        axes={a: Expr.of(n) for a, n in sizes.items()},
        memories=tuple(
            m if m.strides is None
            else replace(m, strides=tuple(s.substitute(example.sizes) for s in m.strides))
            for m in graph.memories
        ),
    )  # fmt: skip
    apart = hardware_of((Hardware(cluster=1, pingpong=False, split_k=1), *request.constraints))
    declared = declare(known, alignments=given.alignments)
    return completed(known, (apart,), given.target, declared)


def made(request: Request, plan: Plan, rewrites: Rewrites) -> tuple[Kernel, tuple[Obligation, ...]]:
    """The kernel that does what the plan says, and its obligations. Refuted ones are raised."""
    graph, given = request.graph, request.specialisation
    whole = tile_obligations(graph, plan, given.target)
    raise_first_refuted(whole)
    lowered = lower(graph, plan, given.target, given.strides, given.alignments, given.multiples)
    for tensor in lowered.tensors:
        refuse_known_overlap(tensor)
    refuse_register_overflow(lowered, given.target, graph.span)
    kernel, obligations = proved(graph, lowered, given.target, rewrites.kernel)
    return kernel, (*whole, *obligations)


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
    obligations = (*verify(kernel, target, named_axes(graph)), *made_of(graph, kernel, target))
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
