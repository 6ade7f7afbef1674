"""Long reductions in two steps, where their results are too few to occupy a device.

``sum(x, all)`` becomes ``sum(sum(x.reshape(parts, -1), 1), 0)``: the first step has a block for
each part. What is reduced is computed on the split dimension from the start, so that memory is
read as it lies.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.fusion import ops
from tilewright.fusion.emit import Emitter, Value
from tilewright.fusion.ops import Node, Program

BLOCKS = 264  # enough to occupy a device: two for each of its multiprocessors
LONG = 1 << 15  # terms of a reduction that is worth a second kernel
SHORTEST = 1 << 12  # terms of a part


def split_reductions(program: Program) -> Program:
    """Replace long reductions with few results; everything else stays."""
    if not any(_parts(program.nodes, n) for n in program.nodes):
        return program
    emitter = Emitter()
    made: list[Value] = []
    live = program.live()
    for number, node in enumerate(program.nodes):
        moved = renumbered(node, [v.id for v in made])
        parts = _parts(program.nodes, node) if live[number] else None
        if parts is not None and isinstance(moved, ops.Reduce):
            made.append(_in_two_steps(emitter, moved, *parts))
        else:
            made.append(emitter.add(moved))
    return emitter.program([made[o].id for o in program.outputs])


def renumbered(node: Node, numbers: list[int]) -> Node:
    """The node with its operands' new numbers."""
    match node:
        case ops.Map():
            return replace(node, args=tuple(numbers[a] for a in node.args))
        case ops.Convert() | ops.View() | ops.Reshape() | ops.Move() | ops.Reduce() | ops.Scan():
            return replace(node, value=numbers[node.value])
        case ops.Gather():
            return replace(node, value=numbers[node.value], index=numbers[node.index])
        case ops.Grouped() | ops.OwnTerms():
            ends = numbers[node.ends]
            return replace(node, lhs=numbers[node.lhs], rhs=numbers[node.rhs], ends=ends)
        case ops.Contract():
            return replace(node, lhs=numbers[node.lhs], rhs=numbers[node.rhs])
        case _:
            return node


def _parts(nodes: tuple[Node, ...], node: Node) -> tuple[int, int] | None:
    """The dimension to split and into how many parts; None where one step is right."""
    if not isinstance(node, ops.Reduce):
        return None
    shape = nodes[node.value].type.shape
    terms = prod(shape[d] for d in node.dims)
    wanted = BLOCKS // max(1, node.type.elements)
    if terms < LONG or wanted < 2:
        return None
    wanted = min(wanted, terms // SHORTEST)
    dim = max(node.dims, key=lambda d: shape[d])
    parts = max((n for n in range(2, wanted + 1) if shape[dim] % n == 0), default=1)
    return (dim, parts) if parts > 1 else None


def _in_two_steps(e: Emitter, node: ops.Reduce, dim: int, parts: int) -> Value:
    e.span = node.span
    value = _split(e, Value(node.value, e.nodes[node.value].type), dim, parts, {})
    inner = [d + (d >= dim) for d in node.dims]
    partial = e.reduce(node.name, value, sorted(inner))
    place = sum(d not in node.dims for d in range(dim))
    return e.reduce(node.name, partial, [place])


def _split(
    e: Emitter, value: Value, dim: int, parts: int, known: dict[tuple[int, int], Value]
) -> Value:
    """The value with one dimension as two: `parts` runs of it."""
    key = (value.id, dim)
    if key not in known:
        known[key] = _split_anew(e, value, dim, parts, known)
    return known[key]


def _split_anew(
    e: Emitter, value: Value, dim: int, parts: int, known: dict[tuple[int, int], Value]
) -> Value:
    node = e.nodes[value.id]
    shape = value.shape
    pair = (parts, shape[dim] // parts) if shape[dim] != 1 else (1, 1)
    wanted = (*shape[:dim], *pair, *shape[dim + 1 :])
    match node:
        case ops.Map():
            args: list[Value] = []
            for number in node.args:
                arg = Value(number, e.nodes[number].type)
                own = dim - (len(shape) - arg.rank)
                args.append(_split(e, arg, own, parts, known) if own >= 0 else arg)
            return e.map(node.name, *args)
        case ops.Convert():
            source = Value(node.value, e.nodes[node.value].type)
            return e.cast(_split(e, source, dim, parts, known), node.type.dtype)
        case ops.View():
            return _split_view(e, node, dim, wanted, parts, known)
        case _:
            return e.reshape(value, wanted)


def _split_view(
    e: Emitter, node: ops.View, dim: int, wanted: tuple[int, ...], parts: int,
    known: dict[tuple[int, int], Value],
) -> Value:  # fmt: skip
    source = Value(node.value, e.nodes[node.value].type)
    old = node.dims[dim]
    if old is None or source.shape[old] == 1:
        dims = (*node.dims[:dim], None, None, *node.dims[dim + 1 :])
        return e.view(source, dims, wanted)
    inner = _split(e, source, old, parts, known)
    moved = [d if d is None or d <= old else d + 1 for d in node.dims]
    return e.view(inner, [*moved[:dim], old, old + 1, *moved[dim + 1 :]], wanted)
