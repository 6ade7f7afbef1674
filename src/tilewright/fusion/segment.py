"""Cutting a program into kernels.

Nodes are placed one after the other. A node joins the kernels of its operands where one loop
nest can hold them all; else the operands are written to memory and it begins a new kernel.
Kernels have levels: data flows from a lower level to a higher one, or stays inside a kernel, so
no cycle can arise and one pass in program order is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.fusion import ops
from tilewright.fusion.access import Access, dense, through, whole
from tilewright.fusion.domains import Carrier, Domains, Element, Trial, pairs_of
from tilewright.fusion.nests import Axes, combined, kinds_fit, one_nest, real, terms_of
from tilewright.fusion.ops import Node, Program

LARGEST = 64  # nodes of one kernel
MOST_READS = 24  # buffers that one kernel reads
INLINED = 8  # nodes that are computed again for a slice or reshape of them, at most


@dataclass(frozen=True, slots=True)
class Instance:
    """One way in which a kernel reads a buffer (or counts, for an Iota): its axes by dimension."""

    carrier: Carrier
    source: Access | int  # an Iota's node
    axes: Axes


@dataclass(eq=False)
class _Group:
    """A kernel under construction."""

    level: int
    nodes: list[int] = field(default_factory=list[int])
    reads: dict[Access | int, list[Instance]] = field(
        default_factory=dict[Access | int, list[Instance]]
    )
    axes: set[Element] = field(default_factory=set[Element])
    reduced: set[Element] = field(default_factory=set[Element])
    contract: int | None = None
    written: bool = False  # whether one of its values has a buffer that others may read
    merged_into: _Group | None = None


@dataclass(frozen=True)
class Segment:
    """One kernel: its nodes in order, and what it writes.

    `axes` gives each node and each read its axes by dimension, None where nothing changes.
    A contraction's axes go on with those that it sums over. `reads` tells which read stands
    at an operand. `writes` are the nodes that become buffers. `again` tells for a Move or a
    Reshape which values behind it are read from memory; those before them are computed again.
    """

    nodes: tuple[int, ...]
    axes: Mapping[Carrier, Axes]
    sizes: Mapping[Element, int]
    reads: Mapping[tuple[int, int], Instance]
    writes: tuple[int, ...]
    again: Mapping[int, frozenset[int]]


@dataclass(frozen=True)
class Segmentation:
    """Kernels in an order in which they can run, and the values that are read in place."""

    segments: tuple[Segment, ...]
    accesses: Mapping[int, Access]


def segment(program: Program, strides: Mapping[int, Sequence[int]]) -> Segmentation:
    """Cut a program. `strides` gives the inputs' strides, in elements, by position."""
    return _Segmenter(program, strides).run()


class _Segmenter:
    def __init__(self, program: Program, strides: Mapping[int, Sequence[int]]) -> None:
        self.program = program
        self.nodes = program.nodes
        self.domains = Domains()
        self.axes: dict[Carrier, Axes] = {}
        self.reads: dict[tuple[int, int], Instance] = {}
        self.accesses: dict[int, Access] = {}
        self.levels: dict[int, int] = {}  # of buffers: the first level that may read them
        self.groups: dict[int, _Group] = {}
        self.neighbours: dict[tuple[int, int], _Group] = {}
        self.read_again: dict[int, frozenset[int]] = {}
        self.inline: dict[int, int] = {}  # nodes to compute again where a value is inlined
        self._strides = strides
        self._carrier = 0
        self._live = program.live()
        self._users: dict[int, set[int]] = {}
        for number, node in enumerate(program.nodes):
            for operand in ops.operands(node) if self._live[number] else ():
                self._users.setdefault(operand, set()).add(number)

    def run(self) -> Segmentation:
        for number, node in enumerate(self.nodes):
            if self._live[number]:
                self._place(number, node)
        for output in self.program.outputs:
            if self._live[output]:
                self._materialise(output)
        groups = {id(g): g for n in self.groups for g in (self._group(n),)}
        ordered = sorted(groups.values(), key=lambda g: (g.level, min(g.nodes)))
        finished = (self._finish(g) for g in ordered)
        return Segmentation(tuple(s for s in finished if s.writes), self.accesses)

    # ------------------------------------------------------------ placing

    def _place(self, number: int, node: Node) -> None:
        match node:
            case ops.Input():
                self.accesses[number] = whole(number, node.type.shape, self._strides[node.position])
                self.levels[number] = 0
            case ops.ScalarInput() | ops.Constant() | ops.Iota():
                self.inline[number] = 0
            case ops.Move() | ops.Reshape():
                self._place_moved(number, node)
            case ops.Contract():
                for operand in ops.operands(node):
                    self._materialise(operand)
                self._begin(number, node)
            case ops.Gather():
                if self._inlined(node.value) > INLINED:
                    self._materialise(node.value)
                self._fix_reads(number, node)
                self._place_joined(number, node)
            case _:
                self._place_joined(number, node)

    def _place_joined(self, number: int, node: Node) -> None:
        direct = [o for o in ops.operands(node)[ops.moves(node) :] if o in self.groups]
        if isinstance(node, ops.View) and not direct and self._alias(number, node):
            return
        self.inline[number] = 1 + sum(self._inlined(o) for o in ops.operands(node))
        if isinstance(node, ops.Reduce | ops.Gather | ops.Scan):
            self.inline[number] = INLINED + 1
        groups = {id(g): g for o in direct for g in (self._group(o),)}
        level = max([self._ready(node), *(g.level for g in groups.values())])
        joined = [g for g in groups.values() if g.level == level or not g.written]
        if joined and self._join(number, node, joined, level):
            self._group(number).level = level  # nobody reads those that were lower
            return
        for operand in direct:
            self._materialise(operand)
        if isinstance(node, ops.View) and self._alias(number, node):
            return
        self._begin(number, node)

    def _place_moved(self, number: int, node: ops.Move | ops.Reshape) -> None:
        if self._alias(number, node):
            return
        if self._inlined(node.value) > INLINED:
            self._materialise(node.value)
            if self._alias(number, node):
                return
        self.inline[number] = 1 + self._inlined(node.value)
        self._fix_reads(number, node)
        self._begin(number, node)

    def _fix_reads(self, number: int, node: Node) -> None:
        """What has no buffer by now is computed again for a move, even if it gets one later."""
        self.read_again[number] = frozenset(o for o in self._behind(node) if o in self.accesses)

    def _inlined(self, operand: int) -> int:
        if operand in self.accesses:
            return 0
        return self.inline.get(operand, INLINED + 1)

    def _alias(self, number: int, node: Node) -> bool:
        """Read a moved buffer in place, where its strides allow that."""
        source = self.accesses.get(ops.operands(node)[0])
        found = None if source is None else through(source, node)
        if found is not None:
            self.accesses[number] = found
        return found is not None

    def _materialise(self, number: int) -> None:
        """Give a value a buffer of its own, for later kernels to read."""
        if number in self.accesses or number not in self.groups:
            return
        node = self.nodes[number]
        self.accesses[number] = whole(number, node.type.shape, dense(node.type.shape))
        group = self._group(number)
        group.written = True
        self.levels[number] = group.level + 1

    def _ready(self, node: Node) -> int:
        """The first level at which every buffer that the node reads is written.

        Operands that kernels compute do not count, unless they were written for others.
        """
        beside = ops.operands(node)[ops.moves(node) :]
        leaves = [*self._behind(node), *(o for o in beside if o not in self.groups)]
        found = (self.accesses[o] for o in leaves if o in self.accesses)
        return max((self.levels[access.buffer] for access in found), default=0)

    def _after(self, node: Node) -> int:
        """The first level at which the node can begin a kernel: all it reads is written."""
        leaves = (o for o in self._leaves(node) if o in self.accesses)
        return max((self.levels[self.accesses[o].buffer] for o in leaves), default=0)

    def _leaves(self, node: Node) -> Iterator[int]:
        """The operands; for a move, the buffers behind what is computed again for it."""
        yield from self._behind(node)
        yield from ops.operands(node)[ops.moves(node) :]

    def _behind(self, node: Node) -> Iterator[int]:
        """The buffers behind the operand that a move reads at other coordinates."""
        if ops.moves(node):
            yield from self._leaves_of_tree(ops.operands(node)[0])

    def _leaves_of_tree(self, number: int) -> Iterator[int]:
        if number in self.accesses:
            yield number
            return
        for operand in ops.operands(self.nodes[number]):
            yield from self._leaves_of_tree(operand)

    # ------------------------------------------------------------ kernels

    def _group(self, number: int) -> _Group:
        group = self.groups[number]
        while group.merged_into is not None:
            group = group.merged_into
        self.groups[number] = group
        return group

    def _join(self, number: int, node: Node, groups: list[_Group], level: int) -> bool:
        """Into the operands' kernels, and those that read the same buffers if that is possible."""
        beside = [g for g in self._beside(node, level) if g not in groups]
        return any(self._merge(number, node, [*groups, g]) for g in beside[:2]) or self._merge(
            number, node, groups
        )

    def _begin(self, number: int, node: Node) -> None:
        """A kernel of its own, or beside one of the same level that reads the same buffer."""
        level = self._after(node)
        if any(self._merge(number, node, [g]) for g in self._beside(node, level)):
            return
        group = _Group(level)
        if not self._merge(number, node, [group]):
            raise RuntimeError(f"node {number} cannot stand alone")
        for buffer in self._buffers(node, level):
            self.neighbours[level, buffer] = group

    def _buffers(self, node: Node, level: int) -> list[int]:
        """What the node reads from memory if it is computed at this level."""
        leaves = [o for o in self._leaves(node) if o in self.accesses]
        lower = [o for o in leaves if o not in self.groups or self._group(o).level < level]
        return [self.accesses[o].buffer for o in lower]

    def _beside(self, node: Node, level: int) -> list[_Group]:
        """Kernels of a level that read what the node reads from memory."""
        found: dict[int, _Group] = {}
        for buffer in self._buffers(node, level):
            group = self.neighbours.get((level, buffer))
            while group is not None and group.merged_into is not None:
                group = group.merged_into
            if group is not None and group.level == level:
                found[id(group)] = group
        return list(found.values())

    def _merge(self, number: int, node: Node, groups: list[_Group]) -> bool:
        """Add a node to kernels that become one, if one loop nest can hold them."""
        if sum(len(g.nodes) for g in groups) >= LARGEST:
            return False
        if not kinds_fit(node, groups):
            return False
        axes = self._declare(number, node)
        trial = Trial(self.domains)
        found: dict[int, Instance] = {}
        if not self._connect(trial, number, node, axes, groups, found):
            return False
        self._share(trial, groups, list(found.values()))
        summed = isinstance(node, ops.Reduce) and any(g.contract is not None for g in groups)
        if not (
            self._sums_steps(trial, number, axes, groups)
            if summed
            else one_nest(trial, node, axes, groups)
        ):
            return False
        if (
            len({s for g in groups for s in g.reads} | {i.source for i in found.values()})
            > MOST_READS
        ):
            return False
        trial.commit()
        self.axes[number] = axes
        self._absorb(number, node, groups, found)
        return True

    def _sums_steps(self, trial: Trial, number: int, axes: Axes, groups: list[_Group]) -> bool:
        """Whether a sum over a batch axis of a contraction turns the batch into steps of a loop.

        Nothing else may use what a step computes.
        """
        if len(groups) != 1 or groups[0].contract is None:
            return False
        (group,) = groups
        node, contract = self.nodes[number], groups[0].contract
        product = self.nodes[contract]
        if not isinstance(product, ops.Contract) or len(terms_of(self.nodes, product)) != 1:
            return False
        if any(isinstance(self.nodes[n], ops.Reduce) for n in group.nodes):
            return False
        batch = {label for label in product.lhs_labels if label in product.rhs_labels}
        own = zip(product.labels, self.axes[contract], strict=False)
        steps = trial.axes({e for label, e in own if label in batch and e is not None})
        summed = trial.axes(combined(node, axes))
        if not summed or not summed <= steps:
            return False
        inside = [n for n in group.nodes if trial.axes(real(self.axes[n])) & summed]
        known = {*group.nodes, number}
        alone = all(self._users.get(n, set()) <= known for n in inside)
        return alone and not any(n in self.program.outputs for n in inside)

    def _absorb(
        self, number: int, node: Node, groups: list[_Group], found: Mapping[int, Instance]
    ) -> None:
        first, *others = sorted(groups, key=lambda g: -len(g.nodes))
        for group in others:
            group.merged_into = first
            first.nodes += group.nodes
            first.axes |= group.axes
            first.reduced |= group.reduced
            first.written |= group.written
            first.contract = first.contract if first.contract is not None else group.contract
            for source, instances in group.reads.items():
                first.reads.setdefault(source, []).extend(instances)
        first.nodes.append(number)
        axes = self.axes[number]
        own, reduced = real(axes), combined(node, axes)
        first.axes = {self.domains.find(e) for e in first.axes | own}
        first.reduced = {self.domains.find(e) for e in first.reduced | reduced}
        if isinstance(node, ops.Contract):
            first.contract = number
        for position, instance in found.items():
            self.reads[number, position] = instance
            first.reads.setdefault(instance.source, []).append(instance)
        self.groups[number] = first

    # ------------------------------------------------------------ axes

    def _declare(self, number: int, node: Node) -> Axes:
        sizes = list(node.type.shape)
        match node:
            case ops.Contract():
                sizes += terms_of(self.nodes, node).values()
            case ops.Reduce():
                shape = self.nodes[node.value].type.shape
                sizes += [shape[d] for d in node.dims]
            case _:
                pass
        return tuple(
            None if n == 1 else self.domains.add(number, d, n) for d, n in enumerate(sizes)
        )

    def _instance(self, source: Access | int) -> Instance:
        self._carrier -= 1
        if isinstance(source, Access):
            steps = zip(source.shape, source.strides, strict=True)
            real = [n if s else 1 for n, s in steps]
        else:
            real = list(self.nodes[source].type.shape)
        axes = tuple(
            None if n == 1 else self.domains.add(self._carrier, d, n) for d, n in enumerate(real)
        )
        self.axes[self._carrier] = axes
        return Instance(self._carrier, source, axes)

    def _connect(
        self, trial: Trial, number: int, node: Node, axes: Axes, groups: list[_Group],
        found: dict[int, Instance],
    ) -> bool:  # fmt: skip
        """Join the node's axes with its operands'."""
        for position, operand in enumerate(ops.operands(node)):
            if position == 0 and ops.moves(node):
                continue  # evaluated at coordinates of its own
            source: Access | int | None = self.accesses.get(operand)
            if isinstance(self.nodes[operand], ops.Iota):
                source = operand
            if operand in self.groups and self._group(operand) in groups:
                other = self.axes[operand][: self.nodes[operand].type.rank]
            elif source is None and operand in self.groups:
                self._materialise(operand)
                found[position] = self._instance(self.accesses[operand])
                other = found[position].axes
            elif source is not None:
                found[position] = self._instance(source)
                other = found[position].axes
            else:
                continue  # constants and scalars have no axes
            if not trial.join(self._pairs(node, position, axes, other)):
                return False
        return True

    def _pairs(self, node: Node, position: int, axes: Axes, other: Axes):
        match node:
            case ops.View():
                theirs = [None if d is None else other[d] for d in node.dims]
                return pairs_of(axes, theirs)
            case ops.Reduce():
                kept = [a for d, a in enumerate(other) if d not in node.dims]
                return pairs_of(axes, [*kept, *(other[d] for d in node.dims)])
            case ops.Contract():
                labels = (*node.labels, *terms_of(self.nodes, node))
                own = dict(zip(labels, axes, strict=True))
                ends = node.ends_labels if isinstance(node, ops.Grouped | ops.OwnTerms) else ()
                theirs = (node.lhs_labels, node.rhs_labels, ends)[position]
                return pairs_of([own[a] for a in theirs], other)
            case _:
                return pairs_of(axes[len(axes) - len(other) :], other)

    def _share(self, trial: Trial, groups: list[_Group], fresh: list[Instance]) -> None:
        """Read a buffer once where all its readers can have the same axes."""
        kept: dict[Access | int, list[Instance]] = {}
        for group in groups:
            for source, instances in group.reads.items():
                known = kept.setdefault(source, [])
                for instance in instances if not known else instances[:1]:
                    if known:
                        trial.join(pairs_of(known[0].axes, instance.axes))
                    known.append(instance)
        for instance in fresh:
            for other in kept.get(instance.source, ())[:4]:
                if trial.join(pairs_of(other.axes, instance.axes)):
                    break
            kept.setdefault(instance.source, []).append(instance)

    # ------------------------------------------------------------ results

    def _finish(self, group: _Group) -> Segment:
        nodes = self._needed(group)
        reads = {
            (n, p): self.reads[n, p]
            for n in nodes
            for p in range(len(ops.operands(self.nodes[n])))
            if (n, p) in self.reads
        }
        carriers = [*nodes, *(i.carrier for i in reads.values())]
        axes = {
            c: tuple(None if e is None else self.domains.find(e) for e in self.axes[c])
            for c in carriers
        }
        sizes = {e: self.domains.sizes[e] for a in axes.values() for e in a if e is not None}
        writes = tuple(n for n in nodes if n in self.accesses)
        again = {n: self.read_again[n] for n in nodes if n in self.read_again}
        return Segment(nodes, axes, sizes, reads, writes, again)

    def _needed(self, group: _Group) -> tuple[int, ...]:
        """The nodes that a written value follows from; others were computed again elsewhere."""
        found: set[int] = set()
        for number in sorted(group.nodes, reverse=True):
            if number in found or number in self.accesses:
                found.add(number)
                node = self.nodes[number]
                first = ops.moves(node)
                beside = enumerate(ops.operands(node)[first:], first)
                found |= {o for p, o in beside if (number, p) not in self.reads
                          and o in self.groups}  # fmt: skip
        return tuple(sorted(found))
