"""Recording a tile graph: its operations so far, and the few that everything is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.base.dtypes import DType, boolean, i32
from tilewright.base.spaces import Space
from tilewright.base.spans import Span
from tilewright.fusion import ops
from tilewright.fusion.access import Access
from tilewright.fusion.ops import Program, TensorType
from tilewright.graph import ops as graph_ops
from tilewright.graph.ops import Memory, Op, Type
from tilewright.poly.expr import Expr


@dataclass(frozen=True, slots=True)
class Binding:
    """What a kernel's tensor argument is: a window of the buffer that node `buffer` fills."""

    name: str
    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    written: bool


@dataclass(kw_only=True)
class Recording:
    """The graph under construction. `values` are those recorded, by what they are."""

    program: Program
    body: list[Op] = field(default_factory=list[Op])
    values: dict[object, int] = field(default_factory=dict[object, int])
    types: dict[int, Type] = field(default_factory=dict[int, Type])
    extents: dict[str, Expr] = field(default_factory=dict[str, Expr])
    memories: dict[str, Memory] = field(default_factory=dict[str, Memory])
    bindings: dict[str, Binding] = field(default_factory=dict[str, Binding])
    fresh: int = 0  # axes that only coordinates go along
    count: int = 0

    def _fresh_axis(self, size: int) -> str:
        axis = f"X{self.fresh}"
        self.fresh += 1
        self.extents[axis] = Expr.of(size)
        return axis

    def _add(self, op: Op) -> int:
        self.body.append(op)
        self.types[op.id] = op.type
        return op.id

    def _id(self) -> int:
        self.count += 1
        return self.count

    def _view(self, value: int, axes: Sequence[str], span: Span | None) -> int:
        """The value with exactly these axes, in order."""
        own = self.types[value]
        if own.axes == tuple(axes):
            return value
        made = Type(tuple(axes), own.dtype)
        return self._add(graph_ops.View(id=self._id(), type=made, span=span, value=value))

    # ------------------------------------------------------------ memory

    def _read(self, access: Access, axes: Sequence[str | None], span: Span | None) -> int:
        """Read a buffer, with a name for each dimension that changes anything."""
        found = [
            (a, n, s) for a, n, s in zip(axes, access.shape, access.strides, strict=True)
            if a is not None and s
        ]  # fmt: skip
        key = ("read", access.buffer, access.offset, tuple(found))
        if key not in self.values:
            source = self.program.nodes[access.buffer]
            stem = f"t{source.position}" if isinstance(source, ops.Input) else f"v{access.buffer}"
            name = self._memory(stem, access, found, source.type.dtype, written=False)
            kind = self.memories[name].type
            self.values[key] = self._add(
                graph_ops.ReadOp(id=self._id(), type=kind, span=span, memory=name)
            )
        return self.values[key]

    def _memory(
        self, stem: str, access: Access, found: Sequence[tuple[str, int, int]], dtype: DType, *,
        written: bool,
    ) -> str:  # fmt: skip
        name, number = stem, 1
        while name in self.memories:
            number += 1
            name = f"{stem}_{number}"
        kind = Type(tuple(a for a, _, _ in found), dtype)
        steps = tuple(s for _, _, s in found)
        shape = tuple(self.extents[a].const for a, _, _ in found)
        strides = tuple(Expr.of(s) for s in steps)
        self.memories[name] = Memory(name, kind, Space.GLOBAL, strides)
        self.bindings[name] = Binding(
            name, access.buffer, access.offset, shape, steps, dtype, written
        )
        return name

    # ------------------------------------------------------------ values

    def _iota(self, axis: str, dtype: DType, span: Span | None) -> int:
        key = ("index", axis, dtype)
        if key not in self.values:
            made = Type((axis,), dtype)
            self.values[key] = self._add(graph_ops.Index(id=self._id(), type=made, span=span))
        return self.values[key]

    def _constant(self, value: float | int | bool, dtype: DType, span: Span | None) -> int:
        key = ("constant", repr(value), dtype)
        if key not in self.values:
            made = Type((), dtype)
            self.values[key] = self._add(
                graph_ops.Constant(id=self._id(), type=made, span=span, value=value)
            )
        return self.values[key]

    def _elementwise(self, node: ops.Map, args: tuple[int, ...]) -> int:
        axes = tuple(dict.fromkeys(
            a for i in sorted(args, key=lambda v: -len(self.types[v].axes))
            for a in self.types[i].axes
        ))  # fmt: skip
        made = Type(axes, node.type.dtype)
        return self._add(
            graph_ops.Elementwise(
                id=self._id(), type=made, span=node.span, name=node.name, args=args
            )
        )

    def _cast(self, value: int, node: ops.Convert) -> int:
        own = self.types[value]
        if own.dtype == node.type.dtype:
            return value
        made = Type(own.axes, node.type.dtype)
        return self._add(graph_ops.CastOp(id=self._id(), type=made, span=node.span, value=value))

    def _map(self, name: str, args: tuple[int, ...], dtype: DType, span: Span | None) -> int:
        made = TensorType((), dtype)
        return self._elementwise(ops.Map(type=made, span=span, name=name, args=()), args)

    # ------------------------------------------------------------ sums

    def _reduce_over(self, name: str, value: int, axes: Sequence[str], span: Span | None) -> int:
        missing = [a for a in axes if a not in self.types[value].axes]
        value = self._view(value, (*self.types[value].axes, *missing), span)
        for axis in axes:
            own = self.types[value]
            made = Type(tuple(a for a in own.axes if a != axis), own.dtype)
            value = self._add(
                graph_ops.ReduceOp(
                    id=self._id(), type=made, span=span, name=name, value=value, axis=axis
                )
            )
        return value

    def _group_of(self, ends: int, axis: str, span: Span | None) -> int:
        """The group of each place along an axis: how many end at or before it."""
        place = self._iota(axis, self.types[ends].dtype, span)
        past = self._map("le", (ends, place), boolean, span)
        counted = self._cast(past, ops.Convert(type=TensorType((), i32), span=span, value=0))
        return self._reduce_over("add", counted, self.types[ends].axes, span)

    def _product(
        self, lhs: int, rhs: int, acc: int, made: Type, terms: tuple[str, ...], span: Span | None
    ) -> int:
        return self._add(
            graph_ops.Contract(
                id=self._id(), type=made, span=span, lhs=lhs, rhs=rhs, acc=acc, contracted=terms
            )
        )

    def _loop(
        self, before: int, lhs: int, rhs: int, zero: int, made: Type, axis: str, span: Span | None
    ) -> int:
        """The reduction loop, with the operands' reads inside it so that they are pipelined."""
        inner = graph_ops.ReadOp | graph_ops.Gather | graph_ops.Elementwise
        reads = [op for op in self.body[before:] if isinstance(op, inner)]
        self.body = [op for op in self.body if op not in reads]
        outer, self.body = self.body, []
        param = self._add(graph_ops.Param(id=self._id(), type=made, span=span, position=0))
        self.body += reads
        total = self._product(lhs, rhs, param, made, (axis,), span)
        body, self.body = tuple(self.body), outer
        loop = self._id()
        self._add(
            graph_ops.Iterate(
                id=loop, type=Type((), made.dtype), span=span, axis=axis, inits=(zero,),
                params=(param,), body=body, results=(total,),
            )
        )  # fmt: skip
        self.values = {k: v for k, v in self.values.items() if v not in {r.id for r in reads}}
        return self._add(
            graph_ops.Result(id=self._id(), type=made, span=span, iterate=loop, position=0)
        )
