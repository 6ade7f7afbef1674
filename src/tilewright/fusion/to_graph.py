"""From a segment of a fusion to the tile graph that both doors share.

Classes of dimensions become named axes. Axes that lie side by side in every buffer become one,
so that contiguous memory is one long axis. Views leave no trace: values name their axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.base.dtypes import boolean
from tilewright.base.spans import Span
from tilewright.fusion import ops
from tilewright.fusion.access import Access, dense, groups
from tilewright.fusion.domains import Element
from tilewright.fusion.merge import merge_axes
from tilewright.fusion.nests import Axes, real
from tilewright.fusion.ops import Program
from tilewright.fusion.recording import Binding, Recording
from tilewright.fusion.segment import Instance, Segment, Segmentation
from tilewright.fusion.steps import steps_of
from tilewright.graph import ops as graph_ops
from tilewright.graph.ops import Graph, ScalarArgument, Type
from tilewright.poly.expr import Expr


@dataclass(frozen=True)
class Fused:
    """A tile graph, what its arguments are, and where its axes come from."""

    graph: Graph
    bindings: tuple[Binding, ...]
    scalars: Mapping[str, int]  # name to position of the argument
    axes: Mapping[tuple[int, int], str]  # of the dimensions of what is written, size 1 left out


def to_graph(
    program: Program, segmentation: Segmentation, segment: Segment, name: str,
    orders: Mapping[int, Sequence[int]] | None = None, *, merging: bool = True,
) -> Fused:  # fmt: skip
    """The tile graph of a segment. `orders` gives stride orders of results that have one.

    Axes that no operation tells apart become one, unless `merging` is off.
    """
    return _Translator(
        program=program, segmentation=segmentation, segment=segment, name=name,
        orders=orders or {}, merging=merging,
    ).run()  # fmt: skip


@dataclass(kw_only=True)
class _Translator(Recording):
    segmentation: Segmentation
    segment: Segment
    name: str
    orders: Mapping[int, Sequence[int]]
    merging: bool = True
    scalars: dict[str, int] = field(default_factory=dict[str, int])
    names: dict[Element, str] = field(default_factory=dict[Element, str])
    again: frozenset[int] = frozenset()  # what the move at hand reads from memory
    steps: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    def run(self) -> Fused:
        self._name_axes()
        self.steps = steps_of(self.program, self.segment)
        within = {n for inside in self.steps.values() for n in inside}
        for number in self.segment.nodes:
            if number not in within:
                self._emit(number)
        for number in self.segment.writes:
            self._write(number)
        first = self.program.nodes[self.segment.nodes[0]].span
        scalars = tuple(
            ScalarArgument(n, self.program.nodes[self._scalar_node(p)].type.dtype)
            for n, p in self.scalars.items()
        )
        graph = Graph(
            self.name, self.extents, tuple(self.memories.values()), scalars, tuple(self.body), first
        )
        axes = {
            (number, dim): self.names[element]
            for number in self.segment.writes
            for dim, element in enumerate(self.segment.axes[number])
            if element in self.names and dim < self.program.nodes[number].type.rank
        }
        return Fused(graph, tuple(self.bindings.values()), self.scalars, axes)

    def _scalar_node(self, position: int) -> int:
        return next(
            i for i, n in enumerate(self.program.nodes)
            if isinstance(n, ops.ScalarInput) and n.position == position
        )  # fmt: skip

    # ------------------------------------------------------------ axes

    def _name_axes(self) -> None:
        self.merged = dict(self.segment.sizes)
        if self.merging:
            self.merged = merge_axes(self.program, self.segment, self.orders)
        reduced: set[Element] = set()
        for number in self.segment.nodes:
            node = self.program.nodes[number]
            reduced |= real(self.segment.axes[number][node.type.rank :])
        kinds = {"I": 0, "R": 0}
        for axes in self.segment.axes.values():
            for element in axes:
                if element is None or element in self.names or element not in self.merged:
                    continue
                kind = "R" if element in reduced else "I"
                axis = f"{kind}{kinds[kind]}"
                kinds[kind] += 1
                self.names[element] = axis
                self.extents[axis] = Expr.of(self.merged[element])

    def _axes(self, elements: Axes) -> tuple[str, ...]:
        return tuple(self.names[e] for e in elements if e is not None and e in self.names)

    # ------------------------------------------------------------ writing

    def _write(self, number: int) -> None:
        node = self.program.nodes[number]
        shape = node.type.shape
        access = Access(number, 0, shape, dense(shape, self.orders.get(number)))
        axes = self.segment.axes[number][: node.type.rank]
        found = [
            (self.names[e], n, s)
            for e, n, s in zip(axes, shape, access.strides, strict=True)
            if e is not None and e in self.names
        ]
        name = self._memory(f"v{number}", access, found, node.type.dtype, written=True)
        kind = self.memories[name].type
        self._add(
            graph_ops.WriteOp(
                id=self._id(), type=kind, span=node.span, memory=name, value=self._emit(number)
            )
        )

    # ------------------------------------------------------------ values

    def _emit(self, number: int) -> int:
        """The value of a node of the segment."""
        if number not in self.values:
            self.values[number] = self._value(number)
        return self.values[number]

    def _operand(self, number: int, position: int) -> int:
        node = self.program.nodes[number]
        operand = ops.operands(node)[position]
        instance = self.segment.reads.get((number, position))
        if instance is None:
            return self._leaf(operand) if operand not in self.segment.axes else self._emit(operand)
        if isinstance(instance.source, int):
            return self._index(instance, node.span)
        names = [self.names.get(e) if e is not None else None
                 for e in self.segment.axes[instance.carrier]]  # fmt: skip
        return self._read(instance.source, names, node.span)

    def _index(self, instance: Instance, span: Span | None) -> int:
        axes = self._axes(self.segment.axes[instance.carrier])
        source = instance.source
        dtype = self.program.nodes[source].type.dtype if isinstance(source, int) else None
        if not axes or dtype is None:
            return self._constant(0, self.program.nodes[int(source)].type.dtype, span)  # type: ignore[arg-type]
        return self._iota(axes[0], dtype, span)

    def _leaf(self, number: int) -> int:
        node = self.program.nodes[number]
        match node:
            case ops.Constant():
                return self._constant(node.value, node.type.dtype, node.span)
            case ops.ScalarInput():
                name = f"s{node.position}"
                self.scalars[name] = node.position
                if ("scalar", name) not in self.values:
                    made = Type((), node.type.dtype)
                    self.values["scalar", name] = self._add(
                        graph_ops.ScalarRead(id=self._id(), type=made, span=node.span, name=name)
                    )
                return self.values["scalar", name]
            case _:
                raise RuntimeError(f"node {number} is no leaf")

    def _value(self, number: int) -> int:
        node = self.program.nodes[number]
        match node:
            case ops.Map():
                args = tuple(self._operand(number, i) for i in range(len(node.args)))
                return self._elementwise(node, args)
            case ops.Convert():
                return self._cast(self._operand(number, 0), node)
            case ops.View():
                return self._operand(number, 0)
            case ops.Move() | ops.Reshape():
                axes = [self.names.get(e) if e is not None else None
                        for e in self.segment.axes[number]]  # fmt: skip
                self.again = self.segment.again[number]
                return self._moved(number, axes)
            case ops.Scan():
                return self._scan(number, node)
            case ops.Gather():
                self.again = self.segment.again[number]
                return self._gather(number, node)
            case ops.Reduce():
                return (
                    self._stepped(number, node)
                    if number in self.steps
                    else self._reduce(number, node)
                )
            case ops.Contract():
                return self._contract(number, node)
            case _:
                raise RuntimeError(f"node {number} is a leaf")

    # ------------------------------------------------------------ sums

    def _reduce(self, number: int, node: ops.Reduce) -> int:
        value = self._operand(number, 0)
        return self._reduce_over(
            node.name, value, self._axes(self.segment.axes[number][node.type.rank :]), node.span
        )

    def _scan(self, number: int, node: ops.Scan) -> int:
        value = self._operand(number, 0)
        element = self.segment.axes[number][node.dim]
        if element is None:
            return value
        axis, own = self.names[element], self.types[value]
        if axis not in own.axes:
            value = self._view(value, (*own.axes, axis), node.span)
        made = self.types[value]
        return self._add(
            graph_ops.Scan(
                id=self._id(), type=made, span=node.span, name=node.name, value=value, axis=axis
            )
        )

    def _contract(self, number: int, node: ops.Contract) -> int:
        """A contraction; as products and a sum where an operand brings no axis of its own."""
        axes = self.segment.axes[number]
        result = self._axes(axes[: node.type.rank])
        terms = self._axes(axes[node.type.rank :])
        if isinstance(node, ops.Grouped):
            return self._grouped(number, node, result)
        if isinstance(node, ops.OwnTerms):
            return self._own_terms(number, node, result, terms[0])
        before = len(self.body)
        lhs, rhs = self._operand(number, 0), self._operand(number, 1)
        left, right = set(self.types[lhs].axes), set(self.types[rhs].axes)
        whole = left - right and right - left and terms and set(terms) <= left & right
        if not whole or not (left | right) >= set(result):
            wide = [
                self._add(graph_ops.CastOp(
                    id=self._id(), type=Type(self.types[v].axes, node.type.dtype), span=node.span,
                    value=v,
                )) if self.types[v].dtype != node.type.dtype else v
                for v in (lhs, rhs)
            ]  # fmt: skip
            product = ops.Map(type=node.type, span=node.span, name="mul", args=())
            value = self._elementwise(product, (wide[0], wide[1]))
            return self._reduce_over("add", value, terms, node.span)
        made = Type(tuple(a for a in result if a in left | right), node.type.dtype)
        zero = self._add(graph_ops.Constant(id=self._id(), type=made, span=node.span, value=0))
        inside = any(number in nodes for nodes in self.steps.values())
        if len(terms) == 1 and not inside:
            return self._loop(before, lhs, rhs, zero, made, *terms, node.span)
        return self._product(lhs, rhs, zero, made, terms, node.span)

    def _grouped(self, number: int, node: ops.Grouped, result: tuple[str, ...]) -> int:
        """A contraction with the matrix that each row gathers by its group."""
        ends = self._operand(number, 2)
        (groups,) = self.types[ends].axes
        group = self._group_of(ends, result[0], node.span)
        before = len(self.body)
        rows, matrices = self._operand(number, 0), self._operand(number, 1)
        own = self.types[matrices]
        chosen = Type(tuple(result[0] if a == groups else a for a in own.axes), own.dtype)
        matrix = self._add(
            graph_ops.Gather(
                id=self._id(), type=chosen, span=node.span, value=matrices, axis=groups, index=group
            )
        )
        made = Type(result, node.type.dtype)
        zero = self._add(graph_ops.Constant(id=self._id(), type=made, span=node.span, value=0))
        (term,) = (a for a in self.types[rows].axes if a != result[0])
        return self._loop(before, rows, matrix, zero, made, term, node.span)

    def _own_terms(
        self, number: int, node: ops.OwnTerms, result: tuple[str, ...], term: str
    ) -> int:
        """A contraction of operands that are zero where the terms are not the group's."""
        group = self._group_of(self._operand(number, 2), term, node.span)
        counted = self._iota(result[0], self.types[group].dtype, node.span)
        nothing = self._constant(0, self.program.nodes[node.lhs].type.dtype, node.span)
        made = Type(result, node.type.dtype)
        zero = self._add(graph_ops.Constant(id=self._id(), type=made, span=node.span, value=0))
        before = len(self.body)
        own = self._map("eq", (group, counted), boolean, node.span)
        lhs, rhs = (
            self._map("select", (own, value, nothing), self.types[value].dtype, node.span)
            for value in (self._operand(number, 0), self._operand(number, 1))
        )
        return self._loop(before, lhs, rhs, zero, made, term, node.span)

    def _stepped(self, number: int, node: ops.Reduce) -> int:
        """A sum over a batch of a contraction: a loop over it that adds up each step's value."""
        result = self._axes(self.segment.axes[number][: node.type.rank])
        (axis,) = self._axes(self.segment.axes[number][node.type.rank :])
        made, span = Type(result, node.type.dtype), node.span
        zero = self._add(graph_ops.Constant(id=self._id(), type=made, span=span, value=0))
        known, outer = dict(self.values), self.body
        self.body = []
        param = self._add(graph_ops.Param(id=self._id(), type=made, span=span, position=0))
        for inner in self.steps[number]:
            self._emit(inner)
        term = self._view(self._reduce(number, node), result, span)
        total = self._add(
            graph_ops.Elementwise(
                id=self._id(), type=made, span=span, name="add", args=(param, term)
            )
        )
        body, self.body, self.values = tuple(self.body), outer, known
        loop = self._id()
        self._add(
            graph_ops.Iterate(
                id=loop, type=Type((), made.dtype), span=span, axis=axis, inits=(zero,),
                params=(param,), body=body, results=(total,),
            )
        )  # fmt: skip
        return self._add(
            graph_ops.Result(id=self._id(), type=made, span=span, iterate=loop, position=0)
        )

    # ------------------------------------------------------------ values at other coordinates

    def _at(self, number: int, axes: Sequence[str | None], span: Span | None) -> int:
        """A value computed again, its dimensions along these axes."""
        node = self.program.nodes[number]
        if number in self.again:
            return self._read(self.segmentation.accesses[number], axes, span)
        match node:
            case ops.Constant() | ops.ScalarInput():
                return self._leaf(number)
            case ops.Iota():
                if axes[0] is None:
                    return self._constant(0, node.type.dtype, span)
                return self._iota(axes[0], node.type.dtype, span)
            case ops.Map():
                args = tuple(self._at(a, self._aligned(a, node, axes), span) for a in node.args)
                return self._elementwise(node, args)
            case ops.Convert():
                return self._cast(self._at(node.value, axes, span), node)
            case ops.View():
                place = {d: i for i, d in enumerate(node.dims) if d is not None}
                shape = self.program.nodes[node.value].type.shape
                theirs = [axes[place[d]] if n != 1 and d in place else None
                          for d, n in enumerate(shape)]  # fmt: skip
                return self._at(node.value, theirs, span)
            case ops.Move() | ops.Reshape():
                return self._moved(number, axes)
            case _:
                raise RuntimeError(f"node {number} cannot be computed again")

    def _aligned(self, arg: int, node: ops.Map, axes: Sequence[str | None]) -> Sequence[str | None]:
        shape = self.program.nodes[arg].type.shape
        mine = axes[len(axes) - len(shape) :]
        return [a if n != 1 else None for a, n in zip(mine, shape, strict=True)]

    def _moved(self, number: int, axes: Sequence[str | None]) -> int:
        node = self.program.nodes[number]
        if isinstance(node, ops.Move):
            return self._remap(node, axes)
        if isinstance(node, ops.Reshape):
            return self._reshape(node, axes)
        raise RuntimeError(f"node {number} moves nothing")

    def _remap(self, node: ops.Move, axes: Sequence[str | None]) -> int:
        source = self.program.nodes[node.value].type.shape
        theirs: list[str | None] = []
        where: dict[str, Expr] = {}
        for axis, size, own, start, step in zip(
            axes, source, node.type.shape, node.starts, node.steps, strict=True
        ):
            unmoved = start == 0 and (step == 1 or own == 1) and size == own
            if unmoved or (size == 1 and node.fill is None):
                theirs.append(axis if unmoved else None)
                if unmoved and axis is not None:
                    where[axis] = Expr.of(axis)
                continue
            fresh = self._fresh_axis(size)
            theirs.append(fresh)
            where[fresh] = Expr.of(start) + (Expr.of(axis) * step if axis is not None else 0)
        value = self._at(node.value, theirs, node.span)
        names = [a for a in theirs if a is not None]
        if node.fill is not None:
            value = self._view(value, names, node.span)
        kept = self.types[value].axes
        made = Type(tuple(a for a in axes if a is not None), node.type.dtype)
        return self._add(
            graph_ops.Remap(
                id=self._id(), type=made, span=node.span, value=value,
                coordinates=tuple(where[a] for a in kept), fill=node.fill,
            )
        )  # fmt: skip

    def _gather(self, number: int, node: ops.Gather) -> int:
        """The source along the result's axes, but for the one whose coordinate is data."""
        names = [self.names.get(e) if e is not None else None for e in self.segment.axes[number]]
        shape = self.program.nodes[node.value].type.shape
        gathered = self._fresh_axis(shape[node.dim])
        theirs = [gathered if d is None else names[d] if n != 1 else None
                  for d, n in zip(node.dims, shape, strict=True)]  # fmt: skip
        value = self._at(node.value, theirs, node.span)
        if gathered not in self.types[value].axes:
            value = self._view(value, (*self.types[value].axes, gathered), node.span)
        index = self._operand(number, 1)
        own = {*self.types[value].axes, *self.types[index].axes} - {gathered}
        made = Type(tuple(a for a in names if a in own), node.type.dtype)
        return self._add(
            graph_ops.Gather(
                id=self._id(), type=made, span=node.span, value=value, axis=gathered, index=index
            )
        )

    def _reshape(self, node: ops.Reshape, axes: Sequence[str | None]) -> int:
        source = self.program.nodes[node.value].type.shape
        theirs: list[str | None] = [None] * len(source)
        for old, new in groups(source, node.type.shape):
            same = len(old) == len(new) == 1
            for d in old:
                theirs[d] = axes[new[0]] if same else self._fresh_axis(source[d])
        value = self._at(node.value, theirs, node.span)
        value = self._view(value, [a for a in theirs if a is not None], node.span)
        made = Type(tuple(a for a in axes if a is not None), node.type.dtype)
        return self._add(graph_ops.Reshape(id=self._id(), type=made, span=node.span, value=value))
