"""Building programs of primitive nodes: shapes checked, equal nodes made once, no-ops left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.base.diagnostics import DTypeError
from tilewright.base.dtypes import DType, Kind, boolean, i64
from tilewright.base.spans import Span
from tilewright.fusion import ops, shapes
from tilewright.fusion.ops import Node, Program, TensorType
from tilewright.fusion.promotion import Number, weak_type, working
from tilewright.kernel.values import OPERATIONS

IDENTITIES: Mapping[str, Number] = {"add": 0, "mul": 1}


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the program under construction."""

    id: int
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)


Operand = Value | Number


def operand_type(operand: Operand) -> TensorType:
    return operand.type if isinstance(operand, Value) else weak_type(operand)


class Emitter:
    """Appends nodes. `span` is where the user wrote the operation that is being expanded."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.span: Span | None = None
        self._known: dict[object, Value] = {}

    def program(self, outputs: Sequence[int]) -> Program:
        return Program(tuple(self.nodes), tuple(outputs))

    def add(self, node: Node) -> Value:
        """The value of a node; of an equal one that is there, if one is."""
        key = _key(node)
        found = self._known.get(key)
        if found is None:
            self.nodes.append(node)
            found = self._known[key] = Value(len(self.nodes) - 1, node.type)
        return found

    # ------------------------------------------------------------ leaves

    def input(self, position: int, shape: Sequence[int], dtype: DType) -> Value:
        return self.add(
            ops.Input(type=TensorType(tuple(shape), dtype), span=self.span, position=position)
        )

    def scalar_input(self, position: int, dtype: DType) -> Value:
        kind = TensorType((), dtype, weak=True)
        return self.add(ops.ScalarInput(type=kind, span=self.span, position=position))

    def constant(self, value: Number, dtype: DType, shape: Sequence[int] = ()) -> Value:
        """All elements `value`, as `dtype` holds it."""
        if dtype.kind is Kind.BOOL:
            value = bool(value)
        elif dtype.kind is Kind.INT and not isinstance(value, float):
            value = int(value)
        elif dtype.is_float:
            value = float(value)
        return self.add(
            ops.Constant(type=TensorType(tuple(shape), dtype), span=self.span, value=value)
        )

    def weak_constant(self, value: Number, dtype: DType) -> Value:
        """A constant that promotes like a Python number."""
        kind = TensorType((), dtype, weak=True)
        return self.add(ops.Constant(type=kind, span=self.span, value=value))

    def iota(self, size: int, dtype: DType = i64) -> Value:
        return self.add(ops.Iota(type=TensorType((size,), dtype), span=self.span))

    # ------------------------------------------------------------ element by element

    def map(self, name: str, *args: Value) -> Value:
        """A row of the table on operands of one element type; their shapes broadcast."""
        row = OPERATIONS[name]
        kind = args[-1].dtype
        if not (row.c if kind.is_float else row.c_int):
            raise DTypeError(
                f"`{name}` is not defined on {kind.name}",
                span=self.span,
                expected="a float type" if row.c else "an integer or bool type",
                mend="cast the operand first",
            )
        shape = shapes.broadcast([a.shape for a in args], self.span)
        dtype = boolean if row.gives_bool else kind
        weak = all(a.type.weak for a in args)
        return self.add(
            ops.Map(
                type=TensorType(shape, dtype, weak), span=self.span, name=name,
                args=tuple(a.id for a in args),
            )
        )  # fmt: skip

    def cast(self, value: Value, dtype: DType) -> Value:
        if value.dtype == dtype:
            return value
        if dtype == boolean:
            return self.map("ne", value, self.constant(0, value.dtype))
        made = replace(value.type, dtype=dtype)
        return self.add(ops.Convert(type=made, span=self.span, value=value.id))

    def copy(self, value: Value) -> Value:
        """A node of its own for a value, so that it can be written."""
        made = replace(value.type, weak=False)
        return self.add(ops.Convert(type=made, span=self.span, value=value.id))

    def operand(self, operand: Operand, dtype: DType) -> Value:
        """A value or a number as a value of this element type."""
        if isinstance(operand, Value):
            return self.cast(operand, dtype)
        return self.constant(operand, dtype)

    # ------------------------------------------------------------ movement

    def view(self, value: Value, dims: Sequence[int | None], shape: Sequence[int]) -> Value:
        """Reorder, add and drop dimensions; see `ops.View`."""
        if tuple(dims) == tuple(range(value.rank)) and tuple(shape) == value.shape:
            return value
        source = self.nodes[value.id]
        made = TensorType(tuple(shape), value.dtype)
        if isinstance(source, ops.Constant):
            return self.constant(source.value, value.dtype, shape)
        if isinstance(source, ops.View):
            dims = [None if d is None else source.dims[d] for d in dims]
            return self.add(
                ops.View(type=made, span=self.span, value=source.value, dims=tuple(dims))
            )
        return self.add(ops.View(type=made, span=self.span, value=value.id, dims=tuple(dims)))

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        """Repeat along dimensions of size 1 and along new ones in front."""
        new = len(shape) - value.rank
        dims = [None] * new + list(range(value.rank))
        return self.view(value, dims, shape)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == value.shape and -1 not in shape:
            return value
        real = [d for d, n in enumerate(value.shape) if n != 1]
        if [value.shape[d] for d in real] == [n for n in shape if n != 1] and -1 not in shape:
            left = iter(real)
            return self.view(value, [next(left) if n != 1 else None for n in shape], shape)
        source = self.nodes[value.id]
        if isinstance(source, ops.Constant):
            return self.constant(source.value, value.dtype, shape)
        made = TensorType(shape, value.dtype)
        return self.add(ops.Reshape(type=made, span=self.span, value=value.id))

    def move(
        self, value: Value, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int],
        fill: Number | None = None,
    ) -> Value:  # fmt: skip
        """Elements ``starts + steps * i`` of the operand; see `ops.Move`."""
        unmoved = not any(starts) and all(
            step == 1 or n == 1 for step, n in zip(steps, shape, strict=True)
        )
        if unmoved and tuple(shape) == value.shape:
            return value
        if value.type.is_empty and fill is not None:
            return self.constant(fill, value.dtype, shape)
        if fill is not None and _inside(value.shape, starts, steps, shape):
            fill = None
        made = TensorType(tuple(shape), value.dtype)
        return self.add(
            ops.Move(
                type=made, span=self.span, value=value.id, starts=tuple(starts),
                steps=tuple(steps), fill=fill,
            )
        )  # fmt: skip

    # ------------------------------------------------------------ sums

    def reduce(self, name: str, value: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
        """Reduce over `dims` in the operand's own element type."""
        kept = [d for d in range(value.rank) if d not in dims]
        shape = shapes.reduced(value.shape, dims)
        over = tuple(d for d in dims if value.shape[d] != 1)
        if any(value.shape[d] == 0 for d in dims) and name in IDENTITIES:
            result = self.constant(IDENTITIES[name], value.dtype, shape)
        elif not over:
            result = self.view(value, kept, shape)
        else:
            result = self._reduced(name, value, over, dims, shape)
        if not keepdim:
            return result
        left = iter(range(len(kept)))
        return self.view(
            result,
            [next(left) if d in kept else None for d in range(value.rank)],
            [n if d in kept else 1 for d, n in enumerate(value.shape)],
        )

    def _reduced(
        self, name: str, value: Value, over: tuple[int, ...], dims: Sequence[int],
        shape: tuple[int, ...],
    ) -> Value:  # fmt: skip
        """The node reduces real dimensions only; those of size 1 are dropped from its result."""
        own = shapes.reduced(value.shape, over)
        made = TensorType(own, value.dtype)
        node = ops.Reduce(type=made, span=self.span, name=name, value=value.id, dims=over)
        rest = [d for d in range(value.rank) if d not in over]
        return self.view(self.add(node), [i for i, d in enumerate(rest) if d not in dims], shape)

    def scan(self, name: str, value: Value, dim: int) -> Value:
        """Running `name` along a dimension, in the operand's own element type."""
        if value.shape[dim] == 1 or value.type.is_empty:
            return value
        node = ops.Scan(type=value.type, span=self.span, name=name, value=value.id, dim=dim)
        return self.add(node)

    def contract(
        self, lhs: Value, rhs: Value, lhs_labels: Sequence[int], rhs_labels: Sequence[int],
        labels: Sequence[int], shape: Sequence[int], dtype: DType, listed: int | None = None,
    ) -> Value:  # fmt: skip
        """A sum of products in `dtype`; without terms it is zero. For `listed` see the node."""
        sizes = dict(zip(lhs_labels, lhs.shape, strict=True))
        sizes |= {a: max(n, sizes.get(a, n)) for a, n in zip(rhs_labels, rhs.shape, strict=True)}
        if any(n == 0 for a, n in sizes.items() if a not in labels):
            return self.constant(0, dtype, shape)
        made = TensorType(tuple(shape), dtype)
        return self.add(
            ops.Contract(
                type=made, span=self.span, lhs=lhs.id, rhs=rhs.id, lhs_labels=tuple(lhs_labels),
                rhs_labels=tuple(rhs_labels), labels=tuple(labels), listed=listed,
            )
        )  # fmt: skip

    def grouped(self, rows: Value, matrices: Value, ends: Value, dtype: DType) -> Value:
        """Each row times the matrix of its group, summed in `dtype`; see `ops.Grouped`."""
        row, column, term, group = range(4)
        made = TensorType((rows.shape[0], matrices.shape[2]), dtype)
        return self.add(
            ops.Grouped(
                type=made, span=self.span, lhs=rows.id, rhs=matrices.id, ends=ends.id,
                lhs_labels=(row, term), rhs_labels=(group, term, column), labels=(row, column),
            )
        )  # fmt: skip

    def own_terms(self, lhs: Value, rhs: Value, ends: Value, dtype: DType) -> Value:
        """A product for each group, of its own terms, summed in `dtype`; see `ops.OwnTerms`."""
        row, column, term, group = range(4)
        made = TensorType((ends.shape[0], lhs.shape[0], rhs.shape[1]), dtype)
        return self.add(
            ops.OwnTerms(
                type=made, span=self.span, lhs=lhs.id, rhs=rhs.id, ends=ends.id,
                lhs_labels=(row, term), rhs_labels=(term, column), labels=(group, row, column),
            )
        )  # fmt: skip

    def gather(
        self, value: Value, index: Value, dim: int, dims: Sequence[int | None],
        shape: Sequence[int],
    ) -> Value:  # fmt: skip
        """Elements of `value` where `index` leads along `dim`; see `ops.Gather`."""
        if index.dtype.kind is not Kind.INT:
            raise DTypeError(
                f"an index of {index.dtype.name}",
                span=self.span,
                expected="an integer type",
                mend="cast the index",
            )
        made = TensorType(tuple(shape), value.dtype)
        return self.add(
            ops.Gather(
                type=made, span=self.span, value=value.id, index=index.id, dim=dim,
                dims=tuple(dims),
            )
        )  # fmt: skip

    # ------------------------------------------------------------ arithmetic, for compositions

    def number(self, like: Value, value: Number) -> Value:
        return self.constant(value, like.dtype)

    def wide(self, value: Value) -> Value:
        """A float in the type that compositions are computed in."""
        return self.cast(value, working(value.dtype))


def _inside(
    size: Sequence[int], starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]
) -> bool:
    """Whether a move never leaves its operand."""
    return all(
        0 <= a < n and 0 <= a + step * (count - 1) < n
        for n, a, step, count in zip(size, starts, steps, shape, strict=True)
    )


def _key(node: Node) -> object:
    """What makes two nodes the same: everything but where they were written."""
    values: list[object] = [type(node)]
    for name in _FIELDS[type(node)]:
        value: object = getattr(node, name)
        if isinstance(value, float):
            sign = math.copysign(1, value)
            values.append((sign, "nan") if math.isnan(value) else (sign, value, "float"))
        else:
            values.append((value, type(value)))
    return tuple(values)


_FIELDS: Mapping[type[Node], tuple[str, ...]] = {
    kind: tuple(f for f in kind.__dataclass_fields__ if f != "span")
    for kind in (
        ops.Input, ops.ScalarInput, ops.Constant, ops.Iota, ops.Map, ops.Convert, ops.View,
        ops.Reshape, ops.Move, ops.Reduce, ops.Contract, ops.Grouped, ops.Gather,
        ops.OwnTerms, ops.Scan,
    )
}  # fmt: skip
