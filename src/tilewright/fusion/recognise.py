"""Contractions written by hand: broadcast, multiply and sum become the node of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.fusion import ops
from tilewright.fusion.ops import Node, Program


@dataclass(frozen=True, slots=True)
class _Factor:
    """An operand of the product, and which dimension of the product each of its own is."""

    value: int
    labels: tuple[int, ...]


def recognise(program: Program) -> Program:
    """``sum(a[:, :, None] * b[None, :, :])`` → ``Contract``, where both factors bring an axis."""
    nodes = list(program.nodes)
    for number, node in enumerate(nodes):
        if isinstance(node, ops.Reduce) and node.name == "add":
            nodes[number] = _contraction(nodes, node) or node
    return replace(program, nodes=tuple(nodes))


def _contraction(nodes: list[Node], node: ops.Reduce) -> ops.Contract | None:
    product = nodes[node.value]
    while isinstance(product, ops.Convert) and product.type.dtype.is_float:
        product = nodes[product.value]
    if not isinstance(product, ops.Map) or product.name != "mul" or not node.type.dtype.is_float:
        return None
    lhs, rhs = (_factor(nodes, a, product.type.rank) for a in product.args)
    if nodes[lhs.value].type.dtype != nodes[rhs.value].type.dtype:
        lhs, rhs = (_factor(nodes, a, product.type.rank, convert=False) for a in product.args)
    if nodes[lhs.value].type.dtype != nodes[rhs.value].type.dtype:
        return None
    left, right = _axes(nodes, lhs), _axes(nodes, rhs)
    terms = set(node.dims)
    if not (left - right - terms and right - left - terms and terms <= left & right):
        return None
    labels = tuple(d for d in range(product.type.rank) if d not in terms)
    if not {d for d in labels if product.type.shape[d] != 1} <= left | right:
        return None
    return ops.Contract(
        type=node.type, span=node.span, lhs=lhs.value, rhs=rhs.value, lhs_labels=lhs.labels,
        rhs_labels=rhs.labels, labels=labels,
    )  # fmt: skip


def _factor(nodes: list[Node], value: int, rank: int, *, convert: bool = True) -> _Factor:
    """What is behind the views and the widening of an operand of the product."""
    own = nodes[value].type.rank
    labels = tuple(range(rank - own, rank))
    fresh = rank  # labels of dimensions of size 1
    while True:
        node = nodes[value]
        match node:
            case ops.View():
                place = {d: i for i, d in enumerate(node.dims) if d is not None}
                source = nodes[node.value].type
                renamed: list[int] = []
                for d, size in enumerate(source.shape):
                    # What the view spreads is one element of its source: no axis of it.
                    real = size != 1 and d in place
                    renamed.append(labels[place[d]] if real else fresh)
                    fresh += not real
                value, labels = node.value, tuple(renamed)
            case ops.Convert() if convert and _widens(nodes, node):
                value = node.value
            case _:
                return _Factor(value, labels)


def _widens(nodes: list[Node], node: ops.Convert) -> bool:
    source = nodes[node.value].type.dtype
    return source.is_float and source.bits <= node.type.dtype.bits <= 32


def _axes(nodes: list[Node], factor: _Factor) -> set[int]:
    shape = nodes[factor.value].type.shape
    return {a for a, n in zip(factor.labels, shape, strict=True) if n != 1}
