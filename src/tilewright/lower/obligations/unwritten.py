"""Memory is written before it is read: shared buffers, and outputs that are read back.

An element read in some turn of the loops has to be written earlier in program order, by any
thread of the block. That the write is also finished and visible is the race proof's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.kernel.ops import Loop, Mode
from tilewright.lower.obligations.accesses import Access, memory, overlap, points, shape_of
from tilewright.lower.obligations.domains import Domain
from tilewright.lower.obligations.scope import Frame, Program
from tilewright.poly.expr import Constraint, Expr, at_least, less
from tilewright.poly.prove import (
    Assumed,
    Kind,
    Obligation,
    Piece,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    image,
    instance_text,
)
from tilewright.poly.sets import Dim, IntSet

EARLIER = "'"


def unwritten_reads(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """One obligation for each read of a shared buffer or of an output."""
    outputs = {t.name for t in program.kernel.tensors if t.mode is Mode.OUT}
    shared = {b.name for b in program.kernel.shared}
    for read in found:
        if read.writes or read.ref.name not in outputs | shared:
            continue
        writes = [a for a in found if a.writes and a.ref.name == read.ref.name]
        over = _overwriting(program, read.ref.name, found)
        result = attempt(program.world, lambda r=read, w=writes, o=over: _written(program, r, w, o))
        yield Obligation(Kind.UNWRITTEN, read.ref.name, result, read.span, read.label)


def _overwriting(program: Program, name: str, found: Sequence[Access]) -> list[Frame]:
    """Where buffers that share memory with this one are written."""
    own = program.kernel.shared_buffer(name)
    if own is None:
        return []
    near = {b.name for b in program.kernel.shared if b is not own and overlap(b, own)}
    return [a.site.frame for a in found if a.writes and a.ref.name in near]


def _written(
    program: Program, read: Access, writes: Sequence[Access], over: Sequence[Frame]
) -> Result:
    where = points(program, read, ())
    turns = tuple(loop.var for loop in read.site.frame.loops)
    context = (*where.fixed(turns), *turns)
    buffer = memory(program, read.ref.name)
    shape = shape_of(buffer) if buffer else ()
    inside = [
        c for i, n in zip(read.index, shape, strict=True) for c in (at_least(i, 0), less(i, n))
    ]
    needed = Piece(
        (*where.dims, *read.elements),
        (*where.guard, *read.guard, *inside),
        (*(Expr.of(n) for n in context), *read.index),
        inexact=where.inexact,
    )
    rest = image(program.world, needed)
    for write in sorted(writes, key=lambda w: _distance(w.site.frame, read.site.frame)):
        if not _certain(write.site.frame, read.site.frame):
            continue
        for piece in _earlier(program, write, read, where, context, over):
            if piece.inexact:
                continue
            rest = rest.subtract(image(program.world, piece))
            if rest.is_empty():
                return Proved("written before it is read")
    if rest.is_empty():
        return Proved("nothing is read")
    if over and not _written_at_all(program, read, writes):
        return Unknown(f"memory that {read.ref.name} shares may be written over before the read")
    return _fault(program, read, writes, rest, context, where)


def _written_at_all(program: Program, read: Access, writes: Sequence[Access]) -> bool:
    return isinstance(_written(program, read, writes, ()), Refuted)


def _fault(
    program: Program,
    read: Access,
    writes: Sequence[Access],
    rest: IntSet,
    context: tuple[str, ...],
    where: Domain,
) -> Result:
    uncertain = [w for w in writes if not _certain(w.site.frame, read.site.frame)]
    if uncertain:
        return Assumed(
            f"the condition under which {read.ref.name} is written holds when it is read"
        )
    point = rest.first()
    if point is None or where.inexact:
        return Unknown(where.inexact or "no unwritten element was found")
    values = tuple(v for _, v in point.values)
    turns = tuple(zip(context, values, strict=False))
    element = values[len(context) :]
    place = f"{read.ref.name}[{', '.join(map(str, element))}]"
    witness = Witness(element, point.symbols, (turns,))
    buffer = memory(program, read.ref.name)
    notes = [instance_text(turns, point.symbols)] if turns or point.symbols else []
    if buffer is not None:
        spread = rest.at(point).spread()[len(context) :]
        ranges = ", ".join(f"{low} to {high}" for low, high in spread)
        notes.append(f"unwritten coordinates, over all turns: {ranges}")
    return Refuted(f"{place} is read before anything writes it", witness, tuple(notes))


def _certain(write: Frame, read: Frame) -> bool:
    """Whether the write runs whenever its guard holds: its conditions are the read's as well."""
    around = {id(c) for c in read.conditions}
    return all(id(c) in around for c in write.conditions)


def _distance(write: Frame, read: Frame) -> int:
    return -len(_common(write, read))


def _common(one: Frame, two: Frame) -> tuple[Loop, ...]:
    """The loops around both, outermost first."""
    loops: list[Loop] = []
    pairs = zip(one.around, two.around, one.path, two.path, strict=False)
    for a, b, i, j in pairs:
        if a is not b or i != j:
            break
        if isinstance(a, Loop):
            loops.append(a)
    return tuple(loops)


def _earlier(
    program: Program,
    write: Access,
    read: Access,
    where: Domain,
    context: tuple[str, ...],
    over: Sequence[Frame],
) -> Iterator[Piece]:
    """(context.., element..) that the write has written earlier, one piece for each case.

    Either all common loops are in the same turn and the write stands first, or the loops outside
    of one are and that one is in an earlier turn. No case counts where `over`, a write to
    memory that the buffer shares, may stand between.
    """
    common = _common(write.site.frame, read.site.frame)
    first, last = write.site.frame.path, read.site.frame.path
    between = any(
        first < o.path < last or len(_common(o, read.site.frame)) > len(common) for o in over
    )
    if first < last and not between:
        yield _case(program, write, where, context, common, None)
    for depth in range(len(common) - 1, -1, -1):
        if any(len(_common(o, read.site.frame)) > depth for o in over):
            break
        yield _case(program, write, where, context, common[:depth], common[depth])


def _case(
    program: Program,
    write: Access,
    where: Domain,
    context: tuple[str, ...],
    same: tuple[Loop, ...],
    earlier: Loop | None,
) -> Piece:
    own = points(program, write, ())
    turns = {loop.var for loop in same}
    kept = turns | set(own.fixed(turns)) & set(where.fixed(turns))
    names: dict[str, Expr | int | str] = {
        d.name: d.name + EARLIER for d in own.dims if d.name not in kept
    }
    dims = [Dim(str(Expr.of(d.name).substitute(names)), d.extent.substitute(names))
            for d in own.dims]  # fmt: skip
    present = {d.name for d in dims}
    around = [d for d in where.dims if d.name in context and d.name not in present]
    guard: list[Constraint] = [c.substitute(names) for c in (*own.guard, *write.guard)]
    if write.asynchronous:
        guard = [c.substitute(names) for c in own.guard]  # zeros where the copy's guard fails
    if earlier is not None:
        guard.append(less(earlier.var + EARLIER, earlier.var))
    index = tuple(e.substitute(names) for e in write.index)
    return Piece(
        (*dims, *write.elements, *around),
        tuple(guard),
        (*(Expr.of(n) for n in context), *index),
        # Both run in the same real turns, where the turn is all that is not exact.
        inexact="" if own.unlinked <= {*kept, *context} else own.inexact,
    )
