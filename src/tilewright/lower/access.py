"""Loads and stores of fragments: coordinates, guards and vector widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.kernel.ops import Load, MatrixShape, MemRef, Over, Shared, Store, Tensor
from tilewright.lower.builder import Builder, Fragment, Placed
from tilewright.mapping.layouts import Tiled
from tilewright.poly.expr import Expr, Guard, equal
from tilewright.poly.layout import Layout, Place


@dataclass(frozen=True, slots=True)
class Vector:
    """How a statement walks a fragment: `over` without the vector, and the digits' values."""

    width: int
    axis: int  # the memory axis that the vector runs along, counted from the end
    over: Over
    placed: Placed


def multiple_of(b: Builder, value: Expr) -> int:
    """The largest number known to divide an expression; 0 where it is zero."""
    found = abs(value.const)
    for term, coefficient in value.terms:
        known = b.symbols[term].multiple if isinstance(term, str) and term in b.symbols else 1
        found = gcd(found, abs(coefficient) * known)
    return found


def vectorise(
    placed: Placed, inner: int, axes: Sequence[str], axis: str | None, limit: int
) -> Vector:
    """Take the last register digit as a vector of at most `limit` elements along `axis`.

    It must be the least significant register of the fragment and step by one along the axis.
    """
    digits = placed.layout.digits
    last = max((i for i, d in enumerate(digits) if d.place is Place.REGISTER), default=-1)
    width = 1
    if axis is not None and inner and last >= 0:
        digit = digits[last]
        if digit.axis == axis and digit.stride == 1:
            width = gcd(digit.extent, limit) if limit else digit.extent
    where = axes.index(axis) - len(axes) if axis in axes and width > 1 else -1
    if width == 1:
        return Vector(1, where, placed.over, placed)
    variables = list(placed.variables)
    rest = digits[last].extent // width
    variables[last] = variables[last] * width if rest > 1 else Expr.of(0)
    over = placed.over[:-1] + (((placed.over[-1][0], rest),) if rest > 1 else ())
    return Vector(width, where, over, Placed(placed.layout, tuple(variables), over))


def widest(b: Builder, tensor: Tensor, axes: Sequence[str], axis: str, cap: int | None) -> int:
    """The widest legal vector along an axis of stride 1, in elements.

    It must divide the start of every tile, the pitch of the other axes, the alignment, and
    (so that no vector straddles the end of the axis) the extent.
    """
    size = tensor.dtype.bytes
    found = gcd(b.target.vector_bytes, tensor.align) // size
    for stride, name in zip(tensor.strides, axes, strict=True):
        if name != axis:
            found = gcd(found, multiple_of(b, stride))
        elif stride != Expr.of(1):
            return 1
    plan = b.plan.axes[axis]
    found = gcd(found, multiple_of(b, b.base(axis)))
    if plan.guard_extent:
        found = gcd(found, multiple_of(b, plan.extent))
    if plan.guard_block and plan.block_tile is not None:
        found = gcd(found, plan.block_tile)
    return min(found, cap) if cap else found


def contiguous(tensor: Tensor, axes: Sequence[str]) -> str | None:
    """The axis of stride 1 with more than one element, if there is one."""
    found = [a for a, s in zip(axes, tensor.strides, strict=True) if s == Expr.of(1)]
    return found[-1] if found else None


def global_access(
    b: Builder, axes: Sequence[str], placed: Placed, shift: Mapping[str, Expr]
) -> tuple[tuple[Expr, ...], Guard]:
    """Coordinates of a tile's elements in a tensor, and the guard that they exist."""
    index = tuple(b.base(a) + placed.position(a) + shift.get(a, 0) for a in axes)
    guard: Guard = ()
    for a, coordinate in zip(axes, index, strict=True):
        guard += b.extent_guard(a, coordinate)
    return index, guard


def load_global(
    b: Builder, op: ops.ReadOp, tiled: Tiled, shift: Mapping[str, Expr] | None = None
) -> Fragment:
    """Registers from a tensor, in any layout; zeros past the end of an axis."""
    tensor, axes = b.tensors[op.memory], op.type.axes
    made = b.fragment(op.memory, op.type.dtype, tiled, op.span)
    axis = contiguous(tensor, axes)
    limit = widest(b, tensor, axes, axis, op.elements_per_thread) if axis else 1
    vector = vectorise(b.place(tiled.layout), tiled.inner, axes, axis, limit)
    index, guard = global_access(b, axes, vector.placed, shift or {})
    b.emit(
        Load(
            vector.over, made.ref(vector.placed.registers()), MemRef(tensor.name, index),
            vector.width, vector.axis, guard, span=op.span,
        )
    )  # fmt: skip
    return made


def store_global(b: Builder, op: ops.WriteOp, value: Fragment) -> None:
    """A fragment to a tensor: each element by the first of the threads that hold it."""
    tensor, axes = b.tensors[op.memory], op.type.axes
    axis = contiguous(tensor, axes)
    limit = widest(b, tensor, axes, axis, op.elements_per_thread) if axis else 1
    vector = vectorise(b.place(value.layout), value.tiled.inner, axes, axis, limit)
    index = tuple(b.base(a) + vector.placed.position(a) for a in axes)
    # Blocks that differ along other axes only hold the same value: the first one writes it.
    others = (equal(block, 0) for a, block in b.blocks.items() if a not in axes)
    if b.part.variables() and all(b.plan.axes[a].parts == 1 for a in axes):
        others = (*others, equal(b.part, 0))
    guard = (*others, *vector.placed.first_replica())
    for a, coordinate in zip(axes, index, strict=True):
        guard += b.owner_guard(a, coordinate)
    b.emit(
        Store(
            vector.over, MemRef(tensor.name, index), value.ref(vector.placed.registers()),
            vector.width, vector.axis, guard, span=op.span,
        )
    )  # fmt: skip


def load_shared(
    b: Builder, buffer: Shared, axes: Sequence[str], lead: tuple[Expr, ...], made: Fragment,
    *, offsets: Mapping[str, Expr] | None = None, whole: bool = True, span: Span | None = None,
    note: str = "",
) -> None:  # fmt: skip
    """A fragment from a shared tile over `axes`; `lead` indexes the buffer's axes before them.

    `offsets` shifts the fragment in the tile; `whole` says that it starts at whole atoms.
    """
    vector = _shared_vector(b, buffer, axes, made)
    matrix = None
    if whole:
        matrix, vector = matrix_load(b, axes, made, vector)
    index = tuple(vector.placed.position(a) + (offsets or {}).get(a, 0) for a in axes)
    b.emit(
        Load(
            vector.over, made.ref(vector.placed.registers()),
            MemRef(buffer.name, (*lead, *index)), vector.width, vector.axis, matrix=matrix,
            span=span, note=note,
        )
    )  # fmt: skip


def store_shared(
    b: Builder, buffer: Shared, axes: Sequence[str], lead: tuple[Expr, ...], value: Fragment,
    *, offsets: Mapping[str, Expr] | None = None, guard: Guard = (), span: Span | None = None,
    note: str = "",
) -> None:  # fmt: skip
    """The mirror of `load_shared`, by the first of the threads that hold an element."""
    vector = _shared_vector(b, buffer, axes, value)
    index = tuple(vector.placed.position(a) + (offsets or {}).get(a, 0) for a in axes)
    b.emit(
        Store(
            vector.over, MemRef(buffer.name, (*lead, *index)),
            value.ref(vector.placed.registers()), vector.width, vector.axis,
            vector.placed.first_replica() + guard, span=span, note=note,
        )
    )  # fmt: skip


def _shared_vector(b: Builder, buffer: Shared, axes: Sequence[str], part: Fragment) -> Vector:
    limit = b.target.vector_bytes // buffer.dtype.bytes
    for stride in buffer.strides[:-1]:
        limit = gcd(limit, stride)
    if buffer.swizzle is not None:
        limit = min(limit, 1 << buffer.swizzle.base)
    placed = b.place(part.layout)
    return vectorise(placed, part.tiled.inner, axes, axes[-1] if axes else None, limit)


def matrix_load(
    b: Builder, axes: Sequence[str], made: Fragment, plain: Vector
) -> tuple[MatrixShape | None, Vector]:
    """Use a warp-wide matrix load where the fragment is made of 8x8 tiles of 16-bit elements."""
    digits = made.layout.at(Place.REGISTER)
    lanes = made.layout.at(Place.LANE)
    rows = b.target.matrix_loads
    if made.dtype.bytes != 2 or not rows or len(lanes) != 2 or not digits or not made.tiled.inner:
        return None, plain
    row, column = lanes
    pair = digits[-1]
    shaped = (
        (row.extent, row.stride, column.extent, column.stride) == (8, 1, 4, 2)
        and (pair.extent, pair.stride, pair.axis) == (2, 1, column.axis)
        and row.axis is not None and row.axis != column.axis
    )  # fmt: skip
    transposed = row.axis == axes[-1]
    if not shaped or not (transposed or column.axis == axes[-1]):
        return None, plain
    placed, tiles = _matrix_tiles(b, b.place(made.layout))
    count = prod(dict(placed.over)[t] for t in tiles)
    found = next((r for r in rows if r.tiles == count and r.transposed == transposed), None)
    if found is None:
        return None, plain
    names = dict(zip(made.layout.digits, placed.variables, strict=True))
    shape = MatrixShape(found.name, str(names[row]), str(names[column]), tiles)
    return shape, vectorise(placed, made.tiled.inner, axes, column.axis, 2)


def _matrix_tiles(b: Builder, placed: Placed) -> tuple[Placed, tuple[str, ...]]:
    """The unrolled digits that one matrix load covers: the last ones, four values in all.

    A digit of more values than are left is split, and its lower part is covered.
    """
    tiles: list[str] = []
    over = list(placed.over)
    variables: list[Expr] = list(placed.variables)
    left = 4
    for position in reversed(range(len(over) - 1)):
        name, extent = over[position]
        if left > 1 and extent > left and extent % left == 0:
            low = str(b.register_digit(f"{name}_tile"))
            over[position : position + 1] = [(name, extent // left), (low, left)]
            split = {name: Expr.of(name) * left + low}
            variables = [v.substitute(split) for v in variables]
            name, extent = low, left
        if extent > left:
            break
        tiles.insert(0, name)
        left //= extent
    return Placed(placed.layout, tuple(variables), tuple(over)), tuple(tiles)


def is_coalesced(tensor: Tensor, axes: Sequence[str], layout: Layout, sector: int = 32) -> bool:
    """Whether neighbouring lanes and registers reach a whole memory sector at once."""
    axis = contiguous(tensor, axes)
    if axis is None:
        return True  # no order of threads makes it better
    if not any(d.axis in axes for d in layout.at(Place.LANE)):
        return True  # a whole warp reads one element
    reach = 1
    for digit in sorted(
        (d for d in layout.digits if d.axis == axis and d.place is not Place.WARP),
        key=lambda d: d.stride,
    ):
        if digit.stride == reach:
            reach *= digit.extent
    return reach * tensor.dtype.bytes >= min(sector, layout.extent(axis) * tensor.dtype.bytes)
