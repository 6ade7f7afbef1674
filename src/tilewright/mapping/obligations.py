"""What a plan owes before anything is lowered: its digits cover every axis, its layouts every tile.

The relations are those of the graph under the plan: block, step and position of each axis. The
lowered program is proved again, from its own text, by `lower.obligations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.mapping.layouts import atom_layouts
from tilewright.poly.expr import Expr, Guard, less
from tilewright.poly.prove import (
    Assumed,
    Kind,
    Obligation,
    Piece,
    Proved,
    Refuted,
    prove_exactly_once,
)
from tilewright.poly.sets import Dim, Parameter, World
from tilewright.schedule.plan import Plan
from tilewright.target.model import Scope, Target


def tile_obligations(graph: Graph, plan: Plan, target: Target) -> tuple[Obligation, ...]:
    """One obligation for each output, each reduced axis, and each contraction's layouts."""
    world = World(
        [
            Parameter(name, 1, plan.axes[name].multiple)
            for name, extent in graph.axes.items()
            if not extent.is_const
        ]
    )
    return (
        *_writes(graph, plan, world),
        *_reductions(graph, plan, world),
        *_layouts(graph, plan, target),
    )


def access(plan: Plan, axes: Sequence[str], label: str) -> Piece:
    """The coordinates on `axes` that the plan's digits reach."""
    dims: list[Dim] = []
    guard: Guard = ()
    index: list[Expr] = []
    for axis in axes:
        a = plan.axes[axis]
        block, step, part, position = (
            f"{axis}_{digit}" for digit in ("block", "step", "part", "position")
        )
        dims += [Dim(step, a.steps), Dim.of(position, a.tile)]
        turn = Expr.of(step)
        if a.parts > 1:
            dims.insert(-1, Dim.of(part, a.parts))
            turn = turn * a.parts + part
        inside = turn * a.tile + position
        coordinate = inside
        if a.block_tile is not None:
            dims.insert(0, Dim(block, a.blocks))
            coordinate = inside + Expr.of(block) * a.block_tile
            guard += (less(inside, a.block_tile),)
        guard += (less(coordinate, a.extent),)
        index.append(coordinate)
    return Piece(tuple(dims), guard, tuple(index), label)


def _writes(graph: Graph, plan: Plan, world: World) -> Iterator[Obligation]:
    for op in ops.walk(graph.body):
        if isinstance(op, ops.WriteOp) and not graph.memory(op.memory).allocated:
            axes = op.type.axes
            shape = [plan.axes[a].extent for a in axes]
            piece = access(plan, axes, f"write of {op.memory}")
            result = prove_exactly_once(world, [piece], shape, op.memory)
            if plan.ragged is not None and plan.ragged.axis in axes:
                result = Assumed(f"{plan.ragged.ends} ascends")
            yield Obligation(Kind.COVERAGE, op.memory, result, op.span, "the plan's digits")


def _reductions(graph: Graph, plan: Plan, world: World) -> Iterator[Obligation]:
    reduced: dict[str, Span | None] = {}
    for op in ops.walk(graph.body):
        match op:
            case ops.Contract():
                axes = op.contracted
            case ops.ReduceOp() | ops.Scan():
                axes = (op.axis,)
            case _:
                axes = ()
        for axis in axes:
            reduced.setdefault(axis, op.span)
    for axis, span in reduced.items():
        piece = access(plan, [axis], f"terms of {axis}")
        extent = plan.axes[axis].extent
        result = prove_exactly_once(world, [piece], [extent], axis, "counted")
        if plan.own_terms is not None and axis == plan.own_terms.axis:
            result = Assumed(f"{plan.own_terms.ends} ascends")
        yield Obligation(Kind.REDUCTION, axis, result, span, "the plan's digits")


def _layouts(graph: Graph, plan: Plan, target: Target) -> Iterator[Obligation]:
    for op in ops.walk(graph.body):
        if not isinstance(op, ops.Contract):
            continue
        contract = plan.contracts[op.id]
        atom = target.atom(contract.atom) if contract.atom else None
        if atom is None:
            continue
        lhs, rhs = graph.by_id[op.lhs].type.axes, graph.by_id[op.rhs].type.axes
        a, b = (lhs, rhs) if contract.lhs_is_a else (rhs, lhs)
        layouts = atom_layouts(plan, contract, atom, a, b, op.type.axes)
        if atom.scope is Scope.WARPGROUP:
            layouts = layouts[2:]  # operands in shared memory belong to no thread
        faults = [f for tiled in layouts if (f := tiled.layout.fault())]
        result = Refuted(faults[0]) if faults else Proved()
        yield Obligation(Kind.COVERAGE, atom.name, result, op.span, "layouts of the tiles")
