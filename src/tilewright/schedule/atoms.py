"""Which instruction computes each contraction, and which operand plays which role in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.base.diagnostics import AtomError
from tilewright.graph import ops
from tilewright.graph.ops import Contract, Graph
from tilewright.poly.layout import Layout, Place
from tilewright.schedule.constraints import Hardware
from tilewright.schedule.plan import ContractPlan
from tilewright.target.model import MmaAtom, Scope, Source, Target


def plan_contracts(
    graph: Graph, hardware: Hardware, target: Target, shares: Mapping[str, int]
) -> dict[int, ContractPlan]:
    """An atom and the roles of the operands for every contraction.

    `shares` gives, for each axis whose tile the author sets, one warp's elements of it.
    """
    found = [op for op in ops.walk(graph.body) if isinstance(op, Contract)]
    atoms = {op.id: _choose(graph, op, op.atom or hardware.mma_type, hardware, target, shares)
             for op in found}  # fmt: skip
    return {op.id: _roles(graph, op, atoms) for op in found}


def _types(graph: Graph, op: Contract) -> tuple[str, str]:
    return graph.by_id[op.lhs].type.dtype.name, op.type.dtype.name


def _fits(atom: MmaAtom, operand: str, result: str) -> bool:
    usable = atom.scope is Scope.WARP and atom.b_source is Source.REGISTER
    types = (atom.a_dtype.name, atom.b_dtype.name, atom.d_dtype.name)
    return usable and types == (operand, operand, result)


def _choose(
    graph: Graph, op: Contract, asked: str | None, hardware: Hardware, target: Target,
    shares: Mapping[str, int],
) -> MmaAtom | None:  # fmt: skip
    operand, result = _types(graph, op)
    lhs, rhs = graph.by_id[op.lhs].type.axes, graph.by_id[op.rhs].type.axes
    vector = next((v for v, other in ((lhs, rhs), (rhs, lhs)) if set(v) <= set(other)), None)
    if vector is not None:  # it has no rows to give to an instruction
        if asked is None or op.atom is None:
            return None
        raise AtomError(
            f"{asked} multiplies matrices, and an operand over {', '.join(vector)} is a vector",
            span=op.span,
            expected="in each operand an axis that the other lacks",
            mend="leave mma_type out: the product is computed without an instruction",
        )
    fitting = [a for a in target.mma_atoms if _fits(a, operand, result)]
    if asked is None:
        # Single precision atoms round their operands (tf32): only on request.
        exact = [a for a in fitting if operand != "f32" or "tf32" not in a.emit]
        usable = [a for a in exact if _divides(a, op, lhs, rhs, shares)]
        return max(usable, key=lambda a: (a.k, -a.m), default=None)
    atom = target.atom(asked)
    if atom is not None and atom in fitting:
        return atom
    names = ", ".join(a.name for a in fitting) or "none"
    if atom is None:
        problem = f"{target.name} has no instruction {asked}"
    elif atom.scope is not Scope.WARP or atom.b_source is not Source.REGISTER:
        problem = f"{asked} reads its operands from shared memory, which is not supported yet"
    else:
        problem = (f"{asked} multiplies {atom.a_dtype.name} into {atom.d_dtype.name}, "
                   f"not {operand} into {result}")  # fmt: skip
    raise AtomError(
        problem,
        span=op.span if op.atom else hardware.span,
        expected=f"for {operand} into {result} on {target.name}: {names}",
        mend="leave mma_type out to have it chosen",
    )


def _divides(
    atom: MmaAtom, op: Contract, lhs: Sequence[str], rhs: Sequence[str], shares: Mapping[str, int]
) -> bool:
    """Whether the atom divides the tiles that the author set, in one of the two roles."""

    def fits(rows: Sequence[str], columns: Sequence[str]) -> bool:
        row = [a for a in rows if a not in columns][-1]
        column = [a for a in columns if a not in rows][-1]
        sizes = {row: atom.m, column: atom.n, op.contracted[-1]: atom.k}
        return all(shares.get(axis, size) % size == 0 for axis, size in sizes.items())

    return fits(lhs, rhs)


def _roles(graph: Graph, op: Contract, atoms: dict[int, MmaAtom | None]) -> ContractPlan:
    lhs, rhs = graph.by_id[op.lhs].type.axes, graph.by_id[op.rhs].type.axes
    left = [a for a in lhs if a not in rhs]
    right = [a for a in rhs if a not in lhs]
    row = left[-1] if left else None
    column = right[-1] if right else None
    k = op.contracted[-1]
    atom = atoms[op.id]
    lhs_is_a, why = True, "the left operand gives the rows"
    if atom is not None:
        wanted = _contracted_next(graph, op, atoms)
        if wanted is not None and wanted[0] in (row, column):
            axis, reader = wanted
            role = _role_of_next_k(atom, reader)
            if role is not None and (axis == row) != (role == "m"):
                lhs_is_a = False
                why = (f"operands swapped: {axis} then lies as the next contraction reads it, "
                       "so no data moves")  # fmt: skip
    m, n = (row, column) if lhs_is_a else (column, row)
    name = atom.name if atom is not None else None
    what = f"{name}; {why}" if name else "no instruction fits: multiply and add"
    return ContractPlan(name, m, n, k, lhs_is_a, what)


def _contracted_next(
    graph: Graph, op: ops.Op, atoms: dict[int, MmaAtom | None]
) -> tuple[str, MmaAtom] | None:
    """The axis along which the next contraction sums this one's result, and its atom."""
    for user in graph.uses.get(op.id, ()):
        reader = graph.by_id[user]
        if isinstance(reader, Contract) and op.id in (reader.lhs, reader.rhs):
            atom = atoms[reader.id]
            return (reader.contracted[-1], atom) if atom is not None else None
        if isinstance(reader, ops.View | ops.CastOp | ops.Elementwise):
            found = _contracted_next(graph, reader, atoms)
            if found is not None:
                return found
    return None


def _role_of_next_k(atom: MmaAtom, reader: MmaAtom) -> str | None:
    """Which accumulator axis of `atom` lies on lanes and registers as k of `reader`'s A does."""

    def lanes(layout: Layout, axis: str) -> list[tuple[int, int]]:
        weight, found = 1, list[tuple[int, int]]()
        for d in reversed(layout.at(Place.LANE)):
            if d.axis == axis:
                found.append((weight, d.extent))
            weight *= d.extent
        return found

    wanted = lanes(reader.a, "k")
    return next((axis for axis in ("m", "n") if lanes(atom.d, axis) == wanted), None)
