"""Boxes begin where copy engine and matrix unit can take them, and meet their tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.kernel.async_ops import BulkLoad, BulkStore, TensorMap, WarpgroupMma
from tilewright.kernel.operands import swizzle_bytes
from tilewright.kernel.ops import Shared, Tensor
from tilewright.kernel.ranges import divisor
from tilewright.lower.obligations.accesses import Access, memory
from tilewright.lower.obligations.bulk_boxes import unboxed
from tilewright.lower.obligations.scope import Program
from tilewright.poly.expr import Expr, at_least
from tilewright.poly.prove import attempt, find, instance_text, possible
from tilewright.poly.results import (
    Kind,
    Obligation,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
)

_PIECE = 16  # bytes that a swizzle moves, and the unit of a tensor map's strides
_PLAIN = 128  # bytes; where a box that is not swizzled begins


def boxes_meet(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """Each copy of boxes has one that lies in its tensor, at least in part.

    What lies outside is no fault of bounds: loads give zeros there, stores drop it. Whether these
    are the right elements is a matter of coverage, and of elements.
    """
    for access in found:
        tensor = memory(program, access.ref.name)
        if access.bulk and isinstance(tensor, Tensor):
            result = attempt(program.world, lambda a=access: _meets(program, a))
            yield Obligation(Kind.BOUNDS, tensor.name, result, access.span, access.label)


def _meets(program: Program, access: Access) -> Result:
    piece = access.piece(program, hardware=())
    if possible(program.world, piece.dims, piece.guard):
        return Proved("what lies outside is not accessed")
    where = access.domain(program, hardware=())
    point = find(program.world, where.dims, where.guard)
    if point is None:
        return Proved("no box is copied")
    corner = tuple(e.evaluate(point.bindings()) for e in access.ref.index)
    text = f"every box of the {access.label} lies outside of {access.ref.name}"
    note = f"the first begins at {access.ref.name}[{', '.join(map(str, corner))}]"
    return Refuted(text, Witness(corner, point.symbols, (point.values,)), (note,))


def left_out(program: Program) -> Iterator[Obligation]:
    """What is open for a copy whose box does not follow the axes of its buffer."""
    for site, name in unboxed(program):
        for kind in (Kind.BOUNDS, Kind.UNWRITTEN):
            result = Unknown(f"a box does not follow the axes of {name}")
            span = getattr(site.statement, "span", None)
            yield Obligation(kind, name, result, span, type(site.statement).__name__)


# ---------------------------------------------------------------- alignment


def bulk_alignment(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """Boxes and operands begin at whole swizzle patterns; tensor maps have strides of 16 bytes."""
    for access in found:
        buffer = memory(program, access.ref.name)
        if access.bulk and access.box and isinstance(buffer, Shared):
            result = attempt(program.world, lambda a=access, b=buffer: _aligned(program, a, b))
            yield Obligation(Kind.ALIGNMENT, buffer.name, result, access.span, access.label)
    for declared in program.kernel.maps:
        tensor = program.kernel.tensor(declared.tensor)
        if tensor is not None:
            result = _mapped(program, declared, tensor)
            yield Obligation(Kind.ALIGNMENT, tensor.name, result, declared.span, declared.name)


def _aligned(program: Program, access: Access, buffer: Shared) -> Result:
    swizzle, size = swizzle_bytes(buffer), buffer.dtype.bytes
    statement = access.site.statement
    if isinstance(statement, BulkLoad | BulkStore):
        declared = program.kernel.tensor_map(statement.map)
        if declared is not None and declared.swizzle != swizzle:
            kind = "another swizzle" if swizzle is None else f"a swizzle of {swizzle} bytes"
            return Refuted(f"{buffer.name} has {kind}, {declared.name} one of {declared.swizzle}")
    swizzle = swizzle or 0
    unit = 8 * swizzle or _PLAIN
    if buffer.offset % unit:
        text = f"{buffer.name} begins at byte {buffer.offset}, no multiple of {unit}"
        return Refuted(text, Witness((buffer.offset,)))
    places = [
        index * stride * size
        for index, stride in zip(access.ref.index, buffer.strides, strict=True)
    ]
    if isinstance(statement, WarpgroupMma):
        # Along its rows an operand goes on within the swizzle pattern, piece by piece.
        questions = [(places[-1], _PIECE), (sum(places[:-1], Expr.of(0)), unit)]
    else:
        questions = [(sum(places, Expr.of(0)), unit)]
    for place, step in questions:
        fault = _misplaced(program, access, place, step)
        if fault is not None:
            return fault
    return Proved(f"begins at a multiple of {unit} bytes")


def _misplaced(program: Program, access: Access, place: Expr, unit: int) -> Result | None:
    if divisor(place, {}) % unit == 0:
        return None
    where = access.domain(program, hardware=())
    point = find(program.world, where.dims, (*where.guard, at_least(place % unit, 1)))
    if point is None:
        return None
    if where.inexact:
        return Unknown(where.inexact)
    values = point.bindings()
    element = tuple(e.evaluate(values) for e in access.ref.index)
    text = (
        f"the {access.label} begins at {access.ref.name}[{', '.join(map(str, element))}], "
        f"{place.evaluate(values) % unit} bytes past a multiple of {unit}"
    )
    witness = Witness(element, point.symbols, (point.values,))
    return Refuted(text, witness, (instance_text(point.values, point.symbols),))


def _mapped(program: Program, declared: TensorMap, tensor: Tensor) -> Result:
    """The tensor's address, its strides and the box's rows are multiples of 16 bytes."""
    size = tensor.dtype.bytes
    multiples = {s.name: s.multiple for s in program.kernel.symbols}
    *outer, last = (tensor.strides[axis] for axis in declared.order)
    if last != Expr.of(1):
        return Refuted(f"the rows of {declared.name} have the stride {last} in {tensor.name}")
    sizes = [(f"the address of {tensor.name}", tensor.align)]
    sizes += [(f"the stride {s} of {tensor.name}", divisor(s, multiples) * size) for s in outer]
    sizes += [(f"a row of {declared.name}", declared.box[-1] * size)]
    for what, number in sizes:
        if number % _PIECE:
            return Refuted(f"{what} is no multiple of {_PIECE} bytes")
    return Proved("address, strides and rows are multiples of 16 bytes")
