"""What one loop nest can hold: the kinds of nodes that go together, and their axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewright.fusion import ops
from tilewright.fusion.domains import Element, Trial
from tilewright.fusion.ops import Node

Axes = tuple[Element | None, ...]


class Part(Protocol):
    """A kernel under construction, as far as its loops go."""

    nodes: list[int]
    axes: set[Element]
    reduced: set[Element]
    contract: int | None


def terms_of(nodes: Sequence[Node], node: ops.Contract) -> dict[int, int]:
    """The labels that a contraction sums over, with their sizes."""
    sizes = dict(zip(node.lhs_labels, nodes[node.lhs].type.shape, strict=True))
    for label, size in zip(node.rhs_labels, nodes[node.rhs].type.shape, strict=True):
        sizes[label] = max(size, sizes.get(label, 1))
    if isinstance(node, ops.OwnTerms):
        sizes[node.ends_labels[0]] = nodes[node.ends].type.shape[0]
    return {a: n for a, n in sizes.items() if a not in node.labels}


def kinds_fit(node: Node, groups: Sequence[Part]) -> bool:
    """A contraction is alone in its kernel, but for what follows it element by element, and a
    sum over a batch of it."""
    contracts = sum(g.contract is not None for g in groups)
    if isinstance(node, ops.Contract):
        return not any(g.nodes for g in groups)
    if contracts:
        summed = isinstance(node, ops.Reduce) and node.name == "add" and len(node.dims) == 1
        plain = not (ops.moves(node) or isinstance(node, ops.Reduce | ops.Scan))
        return (
            (plain or summed)
            and contracts == 1
            and not any(g.reduced for g in groups if g.contract is None)
        )
    return True


def one_nest(trial: Trial, node: Node, axes: Axes, groups: Sequence[Part]) -> bool:
    """Whether the axes of one of the parts are all there are, and all reduce the same ones."""
    own, reduced = trial.axes(real(axes)), trial.axes(combined(node, axes))
    parts = [own, *(trial.axes(g.axes) for g in groups)]
    if len(set[Element]().union(*parts)) > max(map(len, parts)):
        return False
    sums = [s for s in (reduced, *(trial.axes(g.reduced) for g in groups)) if s]
    if any(g.contract is not None for g in groups):
        others = [own, *(trial.axes(g.axes) for g in groups if g.contract is None)]
        return not any(part & sums[0] for part in others) if sums else True
    return all(s == sums[0] for s in sums)


def combined(node: Node, axes: Axes) -> set[Element]:
    """The axes along which a node combines elements: they must lie within a block."""
    if isinstance(node, ops.Scan):
        return real((axes[node.dim],))
    return real(axes[node.type.rank :])


def real(axes: Axes) -> set[Element]:
    """The axes that there are."""
    return {a for a in axes if a is not None}
