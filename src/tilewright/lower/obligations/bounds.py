"""Accesses stay inside their memory, and vectors are aligned to their size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd

from tilewright.kernel.ops import Load, MemRef, Shared, Store, Tensor
from tilewright.lower.obligations.accesses import Access, memory, shape_of
from tilewright.lower.obligations.scope import Program
from tilewright.poly.expr import Div, Expr, Mod, at_least, equal
from tilewright.poly.lemmas import xor_fault
from tilewright.poly.prove import (
    Assumed,
    Kind,
    Obligation,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    find,
    instance_text,
    prove_bounds,
)
from tilewright.poly.sets import Point


def bounds(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """Each access lies in its tensor or buffer, the whole vector, where its guard holds.

    A load checks an index that is data and gives its fill outside: it cannot leave the tensor.
    That the data are the indices that the author means is a contract of its own.
    """
    for access in found:
        buffer = memory(program, access.ref.name)
        if buffer is None or (access.bulk and isinstance(buffer, Tensor)):
            continue
        piece = access.piece(program, hardware=())
        result = prove_bounds(program.world, piece, shape_of(buffer), access.ref.name)
        yield Obligation(Kind.BOUNDS, access.ref.name, result, access.span, access.label)
        yield from _contracts(access)


def _contracts(access: Access) -> Iterator[Obligation]:
    """What the caller promises of each index that is data. The load's own check is at run time."""
    load = access.site.statement
    if not isinstance(load, Load):
        return
    name = access.ref.name
    for coordinate, (axis, extent) in zip(load.indirect, access.gathered, strict=True):
        contract = (
            f"every index in {coordinate.ref.name} is on axis {axis} of {name}, "
            f"0 <= index < {extent}; the load checks it and gives {load.fill} elsewhere"
        )
        yield Obligation(Kind.BOUNDS, name, Assumed(contract), access.span, access.label)


def alignment(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """Each vector starts at a multiple of its own size, and no swizzle tears it."""
    for access in found:
        buffer = memory(program, access.ref.name)
        if buffer is None or access.width == 1:
            continue
        access = _as_rows(access)
        result = attempt(program.world, lambda a=access, b=buffer: _aligned(program, a, b))
        yield Obligation(Kind.ALIGNMENT, access.ref.name, result, access.span, access.label)
    for buffer in program.kernel.shared:
        if buffer.swizzle is not None:
            s = buffer.swizzle
            fault = xor_fault(s.bits, s.base, s.shift, buffer.elements)
            ok = "the swizzle permutes the buffer"
            result = Proved(ok) if fault is None else Refuted(f"{buffer.name}: {fault}")
            yield Obligation(Kind.ALIGNMENT, buffer.name, result, buffer.span, "swizzle")


def _as_rows(access: Access) -> Access:
    """A matrix load or store as the rows of eight elements, one for each lane's address."""
    statement = access.site.statement
    if not isinstance(statement, Load | Store) or statement.matrix is None:
        return access
    last = access.ref.index[-1]
    along = {statement.matrix.row, statement.matrix.column} & last.variables()
    first = MemRef(access.ref.name, tuple(
        e.substitute(dict.fromkeys(along, 0)) for e in access.ref.index
    ))  # fmt: skip
    return replace(access, ref=first, width=8, axis=-1)


def _aligned(program: Program, access: Access, buffer: Tensor | Shared) -> Result:
    name, width = access.ref.name, access.width
    size = width * buffer.dtype.bytes
    what = f"a vector of {width} {buffer.dtype} ({size} bytes)"
    axis = access.axis % len(access.ref.index)
    strides = tuple(Expr.of(s) for s in buffer.strides)
    if strides[axis] != Expr.of(1):
        return Refuted(f"{what} runs along axis {axis} of {name}, whose stride is {strides[axis]}")
    start = buffer.align if isinstance(buffer, Tensor) else buffer.offset
    if start % size:
        return Refuted(f"{what} needs {name} to start at a multiple of {size} bytes, not {start}")
    if isinstance(buffer, Shared) and buffer.swizzle is not None:
        unit = 1 << buffer.swizzle.base
        if buffer.swizzle.bits and unit % width:
            return Refuted(f"{what} is torn by the swizzle of {name}, which moves {unit} at a time")
    if width & (width - 1):
        return Refuted(f"{what} is no vector: its length is not a power of two")
    return _offset_aligned(program, access, strides, what)


def _offset_aligned(
    program: Program, access: Access, strides: tuple[Expr, ...], what: str
) -> Result:
    """Whether sum(index * stride) is a multiple of the width, wherever the guard holds.

    Numeric strides make one affine term. A term that is no multiple refutes the sum where all
    others are multiples; with more than one such term nothing is known.
    """
    pairs = list(zip(access.ref.index, strides, strict=True))
    known = {s.name: s.multiple for s in program.kernel.symbols}
    for gathered, _ in access.gathered:
        if _divisor(strides[gathered], known) % access.width:
            return Unknown(
                f"{what}: the stride of axis {gathered}, whose index is data, may be odd"
            )
    affine = sum((i * s.const for i, s in pairs if s.is_const), Expr.of(0))
    faults: list[Point] = []
    for index, stride in [(affine, Expr.of(1)), *(p for p in pairs if not p[1].is_const)]:
        point = _misaligned(program, access, index, stride)
        if point is not None:
            faults.append(point)
    if not faults:
        return Proved(f"{what} aligned")
    if len(faults) > 1:
        return Unknown(f"{what}: more than one part of the offset is no multiple of the width")
    values = faults[0].bindings()
    element = tuple(e.evaluate(values) for e in access.ref.index)
    text = ", ".join(str(v) for v in element)
    message = f"{what} at {access.ref.name}[{text}] is not aligned"
    witness = Witness(element, faults[0].symbols, (faults[0].values,))
    return Refuted(message, witness, (instance_text(faults[0].values, faults[0].symbols),))


def _misaligned(program: Program, access: Access, index: Expr, stride: Expr) -> Point | None:
    """A point where ``index * stride`` is no multiple of the width, a power of two.

    For each power of two s: the stride is an odd multiple of s, and index no multiple of width/s.
    """
    width = access.width
    known = {s.name: s.multiple for s in program.kernel.symbols}
    if (_divisor(index, known) * _divisor(stride, known)) % width == 0:
        return None
    where = access.domain(program, hardware=())
    step = 1
    while step < width:
        odd = () if stride.is_const else (
            equal(stride % step, 0), at_least((stride // step) % 2, 1),
        )  # fmt: skip
        fault = (*where.guard, *access.guard, *odd, at_least(index % (width // step), 1))
        point = find(program.world, where.dims, fault)
        if point is not None or stride.is_const:
            return point
        step *= 2
    return None


def _divisor(expr: Expr, known: Mapping[str, int]) -> int:
    """A number that divides the expression whatever its digits are (0: it is zero)."""
    result = abs(expr.const)
    for term, coefficient in expr.terms:
        match term:
            case str():
                factor = known.get(term, 1)
            case Mod(num, den):
                factor = gcd(_divisor(num, known), den)
            case Div():
                factor = 1
        result = gcd(result, coefficient * factor)
    return result
