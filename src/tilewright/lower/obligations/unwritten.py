"""Memory is written before it is read: shared buffers, and outputs that are read back.

An element read in some turn of the loops has to be written earlier in program order, by any
thread of the block. What the copy engine sends to a tensor has to be written by threads: no kernel
sends what was brought unchanged. That the write is also finished and visible is the race proof's
business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.async_ops import BulkLoad, BulkStore
from tilewright.kernel.ops import Loop, Mode
from tilewright.lower.obligations.accesses import Access, memory, overlap, points, shape_of
from tilewright.lower.obligations.bulk_unwritten import (
    loaded_by_others,
    sent_by_others,
    untraced,
)
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
_NEAREST = 8  # writes that are tried first: all of them, in most kernels


def unwritten_reads(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """One obligation for each read of a shared buffer or of an output.

    What another role has to load first is left to `bulk_unwritten`.
    """
    outputs = {t.name for t in program.kernel.tensors if t.mode is Mode.OUT}
    shared = {b.name for b in program.kernel.shared}
    names = dict.fromkeys(a.ref.name for a in found if a.ref.name in outputs | shared)
    for name in names:
        own = [a for a in found if a.ref.name == name]
        writes = [_Write(a, points(program, a, ())) for a in own if a.writes]
        over = _overwriting(program, name, found)
        for read in (a for a in own if not a.writes and not _left_to_others(program, own, a)):
            able = [w for w in writes if _may_fill(w, read)]
            result = attempt(
                program.world, lambda r=read, w=able, o=over: _written(program, r, w, o)
            )
            yield Obligation(Kind.UNWRITTEN, name, result, read.span, read.label)


def _may_fill(write: _Write, read: Access) -> bool:
    sent = isinstance(read.site.statement, BulkStore)
    return not (sent and isinstance(write.access.site.statement, BulkLoad))


def _left_to_others(program: Program, own: Sequence[Access], read: Access) -> bool:
    return bool(loaded_by_others(program, own, read) or sent_by_others(own, read))


def written_in_turn(program: Program, read: Access, found: Sequence[Access]) -> bool:
    """Whether all that is read was written in the same turn of the loops around both."""
    own = [a for a in found if a.writes and a.ref.name == read.ref.name]
    writes = [_Write(a, points(program, a, ())) for a in own]
    question = _Question.of(program, read, writes)
    here = [c for w in writes for c in question.earlier(w, ()) if c.loop is None]
    if question.needed.inexact or any(c.piece.inexact for c in here):
        return False
    return _rest(program, *question.without_common(here)) is None


def written_over(program: Program, read: Access, writes: Sequence[Access], last: Frame) -> bool:
    """Whether some of what is read may have been written over since the write at `last`, by writes
    that stand after the read: in an earlier turn of a loop around the read but not around `last`.
    """
    here = read.site.frame
    outer = len(last.common_loops(here))
    for write in writes:
        inner = {loop.var for loop in write.site.frame.common_loops(here)[outer:]}
        if write.site.frame.path <= here.path or not inner:
            continue
        one = _Write(write, points(program, write, ()))
        question = _Question.of(program, read, [one])
        cases = [c.piece for c in question.earlier(one, ()) if c.loop in inner]
        if question.needed.inexact or any(c.inexact for c in cases):
            return True
        needed = image(program.world, question.needed)
        if not all(needed.is_disjoint(image(program.world, c)) for c in cases):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Write:
    """A write, and the points at which it runs."""

    access: Access
    where: Domain

    @property
    def frame(self) -> Frame:
        return self.access.site.frame


def _overwriting(program: Program, name: str, found: Sequence[Access]) -> list[Frame]:
    """Where buffers that share memory with this one are written."""
    own = program.kernel.shared_buffer(name)
    if own is None:
        return []
    near = {b.name for b in program.kernel.shared if b is not own and overlap(b, own)}
    return [a.site.frame for a in found if a.writes and a.ref.name in near]


def _written(
    program: Program, read: Access, writes: Sequence[_Write], over: Sequence[Frame]
) -> Result:
    if reason := untraced(program, read.ref.name):
        return reason
    question = _Question.of(program, read, writes)
    certain = [w for w in writes if _certain(w.frame, read.site.frame)]
    near = sorted(certain, key=lambda w: -len(w.frame.common_loops(read.site.frame)))
    earlier: list[_Case] = []
    for some in (near[:_NEAREST], near) if len(near) > _NEAREST else (near,):
        earlier = [case for write in some for case in question.earlier(write, over)]
        program.world.fresh()
        if _rest(program, *question.without_common(earlier)) is None:
            return Proved("written before it is read")
    program.world.fresh()
    rest = _rest(program, question.needed, [c.piece for c in earlier if not c.piece.inexact])
    if rest is None:
        return Proved("written before it is read")
    if over and not _written_at_all(program, read, writes):
        return Unknown(f"memory that {read.ref.name} shares may be written over before the read")
    skipped = next((c.piece.inexact for c in earlier if c.piece.inexact), "")
    return _fault(question, writes, rest, skipped)


def _rest(program: Program, needed: Piece, pieces: Sequence[Piece]) -> IntSet | None:
    """What of `needed` no piece reaches; None where nothing is left."""
    rest = image(program.world, needed)
    for piece in pieces:
        rest = rest.subtract(image(program.world, piece))
        if rest.is_empty():
            return None
    return None if rest.is_empty() else rest


def _written_at_all(program: Program, read: Access, writes: Sequence[_Write]) -> bool:
    return isinstance(_written(program, read, writes, ()), Refuted)


def _fault(question: _Question, writes: Sequence[_Write], rest: IntSet, skipped: str) -> Result:
    read, context = question.read, question.context
    uncertain = [w for w in writes if not _certain(w.frame, read.site.frame)]
    if uncertain:
        return Assumed(
            f"the condition under which {read.ref.name} is written holds when it is read"
        )
    point = rest.first()
    inexact = question.needed.inexact or skipped
    if point is None or inexact:
        return Unknown(inexact or "no unwritten element was found")
    values = tuple(v for _, v in point.values)
    turns = tuple(zip(context, values, strict=False))
    element = values[len(context) :]
    place = f"{read.ref.name}[{', '.join(map(str, element))}]"
    witness = Witness(element, point.symbols, (turns,))
    notes = [instance_text(turns, point.symbols)] if turns or point.symbols else []
    if memory(question.program, read.ref.name) is not None:
        spread = rest.at(point).spread()[len(context) :]
        ranges = ", ".join(f"{low} to {high}" for low, high in spread)
        notes.append(f"unwritten coordinates, over all turns: {ranges}")
    return Refuted(f"{place} is read before anything writes it", witness, tuple(notes))


def _certain(write: Frame, read: Frame) -> bool:
    """Whether the write runs whenever its guard holds: its conditions are the read's as well."""
    around = {id(c) for c in read.conditions}
    return all(id(c) in around for c in write.conditions)


# ---------------------------------------------------------------- what is read, and when


@dataclass(frozen=True, slots=True)
class _Case:
    """What a write has written earlier: in the same turns, or in an earlier one of `loop`."""

    piece: Piece
    loop: str | None


@dataclass(frozen=True, slots=True)
class _Question:
    """One read: (context.., element..) for every element that it reads.

    The context is what the read's turns and block determine, in names that the writes use too.
    """

    program: Program
    read: Access
    where: Domain
    context: tuple[str, ...]
    needed: Piece

    @staticmethod
    def of(program: Program, read: Access, writes: Sequence[_Write]) -> _Question:
        where = points(program, read, (), _shared_names(read, writes))
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
        return _Question(program, read, where, context, needed)

    def without_common(self, cases: Sequence[_Case]) -> tuple[Piece, list[Piece]]:
        """A smaller question; what it proves is proved, what it leaves says nothing.

        A guard on the context alone that holds of the read may be assumed of the writes, so it
        is dropped from both. So is every part of the context that then nothing uses, with the
        cases of earlier turns of its loops.
        """
        own = set(self.context)
        known = own | {s.name for s in self.program.kernel.symbols}
        common = {c for c in self.needed.guard if c.expr.variables() <= known}
        needed = _without(self.needed, common)
        kept = _names(needed, len(self.context), own)
        near = [
            _without(c.piece, common)
            for c in cases
            if not c.piece.inexact and (c.loop is None or c.loop in kept)
        ]
        kept = kept.union(*(_names(piece, len(self.context), own) for piece in near))
        extents = {d.name: d.extent.variables() & own for d in self.where.dims}
        while (more := kept.union(*(extents[n] for n in kept))) != kept:
            kept = more
        gone = own - kept
        return self._shorter(needed, gone), [self._shorter(piece, gone) for piece in near]

    def _shorter(self, piece: Piece, gone: set[str]) -> Piece:
        """The piece without a part of the context."""
        dims = tuple(d for d in piece.dims if d.name not in gone)
        context = zip(self.context, piece.index, strict=False)
        left = tuple(e for name, e in context if name not in gone)
        return replace(piece, dims=dims, index=(*left, *piece.index[len(self.context) :]))

    def earlier(self, write: _Write, over: Sequence[Frame]) -> Iterator[_Case]:
        """What the write has written earlier, one case for each way in which it is earlier.

        Either all common loops are in the same turn and the write stands first, or the loops
        outside of one are and that one is in an earlier turn. No case counts where `over`, a
        write to memory that the buffer shares, may stand between.
        """
        here = self.read.site.frame
        common = write.frame.common_loops(here)
        first, last = write.frame.path, here.path
        between = any(
            first < o.path < last or len(o.common_loops(here)) > len(common) for o in over
        )
        if first < last and not between:
            yield _Case(self._piece(write, common, None), None)
        for depth in range(len(common) - 1, -1, -1):
            if any(len(o.common_loops(here)) > depth for o in over):
                break
            yield _Case(self._piece(write, common[:depth], common[depth]), common[depth].var)

    def _piece(self, write: _Write, same: tuple[Loop, ...], earlier: Loop | None) -> Piece:
        """(context.., element..) of the write, in names of its own but for those of the context."""
        own, access = write.where, write.access
        turns = {loop.var for loop in same}
        fixed = set(own.fixed(turns))
        kept = turns | fixed & set(self.where.fixed(turns))
        names: dict[str, Expr | int | str] = {
            d.name: d.name + EARLIER for d in own.dims if d.name not in kept
        }
        dims = [Dim(d.name if d.name in kept else d.name + EARLIER, d.extent.substitute(names))
                for d in own.dims]  # fmt: skip
        present = {d.name for d in dims}
        around = [d for d in self.where.dims if d.name in self.context and d.name not in present]
        guard = [c.substitute(names) for c in (*own.guard, *access.guard)]
        if earlier is not None:
            guard.append(less(earlier.var + EARLIER, earlier.var))
        used = frozenset[str]().union(
            *(c.expr.variables() for c in own.guard), *(e.variables() for e in access.exprs)
        )
        inexact = ""
        if not own.unlinked <= {*kept, *self.context}:
            inexact = own.inexact  # else both run in the same real turns
        elif local := (fixed - kept) & used:
            inexact = f"what the {access.label} writes depends on {', '.join(sorted(local))}"
        return Piece(
            (*dims, *access.elements, *around),
            tuple(guard),
            (*(Expr.of(n) for n in self.context), *(e.substitute(names) for e in access.index)),
            inexact=inexact,
        )


def _shared_names(read: Access, writes: Sequence[_Write]) -> tuple[str, ...]:
    """Digits of the block and of common loops that a write uses, and that the read knows."""
    found: dict[str, None] = {}
    here = read.site.frame
    known = {n for _, d in here.decodes for n, _ in d.digits}
    for write in writes:
        turns = [loop.var for loop in write.frame.common_loops(here)]
        ours = {n for _, d in write.frame.decodes for n, _ in d.digits} & known
        found |= dict.fromkeys(n for n in write.where.fixed(turns) if n in ours)
    return tuple(found)


def _without(piece: Piece, common: set[Constraint]) -> Piece:
    return replace(piece, guard=tuple(c for c in piece.guard if c not in common))


def _names(piece: Piece, start: int, context: set[str]) -> set[str]:
    """The names of the context that a piece uses, but for the context in its index."""
    exprs = [*piece.index[start:], *(c.expr for c in piece.guard)]
    exprs += [d.extent for d in piece.dims if d.name not in context]
    return {n for e in exprs for n in e.variables()} & context
