"""Machine integers: coordinates fit 32 bits, linear offsets the width of their tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.kernel.ops import Tensor
from tilewright.lower.obligations.accesses import Access, memory
from tilewright.lower.obligations.scope import Program
from tilewright.poly.expr import Constraint, Expr, at_least, less
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
)
from tilewright.poly.sets import INT_MAX, Point

_MOST_BOUNDS = 4
_LARGE = 2**20  # a size from which on an overflow is met by a contract, not refuted


def index_widths(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """One obligation for each global tensor's offset, and each access whose index may overflow."""
    for tensor in program.kernel.tensors:
        result = _offset(tensor)
        statement = f"linear offset in {tensor.index_bits} bits"
        yield Obligation(Kind.INDEX_WIDTH, tensor.name, result, tensor.span, statement)
    for access in found:
        if isinstance(memory(program, access.ref.name), Tensor):
            result = attempt(program.world, lambda a=access: _coordinates(program, a))
            statement = f"coordinates of {access.label} in 32 bits"
            yield Obligation(Kind.INDEX_WIDTH, access.ref.name, result, access.span, statement)


def _offset(tensor: Tensor) -> Result:
    """The offset of the tensor's last element, which bounds that of every access."""
    if tensor.index_bits >= 64:
        return Proved("an element's offset in memory fits 64 bits")
    axes = list(zip(tensor.shape, tensor.strides, strict=True))
    text = " + ".join(f"({e} - 1)*({s})" for e, s in axes) or "0"
    if all(e.is_const and s.is_const for e, s in axes):
        last = sum((e.const - 1) * s.const for e, s in axes)
        if last <= INT_MAX:
            return Proved(f"the last offset is {last}")
        element = tuple(e.const - 1 for e, _ in axes)
        place = f"{tensor.name}[{', '.join(map(str, element))}]"
        return Refuted(f"the offset of {place} is {last}, more than 32 bits hold", Witness(element))
    check: tuple[Constraint, ...] = ()
    if sum(not s.is_const and not e.is_const for e, s in axes) == 0:
        total = sum(((e - 1) * s.const if s.is_const else s * (e.const - 1)) for e, s in axes)
        check = (at_least(INT_MAX, Expr.of(total)),)
    return Assumed(f"{text} < 2**31 for {tensor.name}", check)


def _coordinates(program: Program, access: Access) -> Result:
    """Coordinates are computed before their guard is: they must fit even where it fails.

    Where only sizes near 2**31 overflow, a contract bounds these; it is proved to suffice.
    """
    where = access.domain(program, hardware=())
    check: list[Constraint] = []
    for index in access.ref.index:
        for past in (at_least(index, 2**31), less(index, -(2**31))):
            for _ in range(_MOST_BOUNDS):
                point = find(program.world, where.dims, (*where.guard, past, *check))
                if point is None:
                    break
                if where.inexact:
                    return Unknown(where.inexact)
                large = [(n, v) for n, v in point.symbols if v > _LARGE]
                if not large:
                    return _overflow(access, point)
                name, value = large[-1]
                check.append(at_least(value - 1, name))
            else:
                return Unknown("no simple bound on the sizes keeps the coordinates in 32 bits")
    if not check:
        return Proved("every coordinate fits")
    return Assumed(" and ".join(_bound(c) for c in check), tuple(check))


def _bound(check: Constraint) -> str:
    (name, _), *_ = check.expr.terms
    return f"{name} <= {check.expr.const}"


def _overflow(access: Access, point: Point) -> Refuted:
    values = point.bindings()
    element = tuple(e.evaluate(values) for e in access.ref.index)
    text = ", ".join(map(str, element))
    return Refuted(
        f"the coordinates {access.ref.name}[{text}] pass 32 bits",
        Witness(element, point.symbols, (point.values,)),
        (instance_text(point.values, point.symbols),),
    )
