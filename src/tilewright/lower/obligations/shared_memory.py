"""No two threads meet at one element without order, one of them writing.

Swizzles are dropped: they permute their buffer (the XOR lemma), so logical coordinates name
elements faithfully. Global tensors that are written and read are held to the same rule, and to
one more: nothing orders two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.base.spans import Span
from tilewright.kernel.ops import Shared
from tilewright.lower.obligations.accesses import Access, overlap, points
from tilewright.lower.obligations.domains import Domain
from tilewright.lower.obligations.order import LATER, EndlessError, Meeting, ahead
from tilewright.lower.obligations.scope import Program
from tilewright.poly.expr import Constraint, Expr, Guard, at_least, equal, less
from tilewright.poly.prove import (
    Kind,
    Obligation,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    find,
)
from tilewright.poly.sets import Dim, Point

_MOST_PAIRS = 2_000


def races(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """One obligation for each shared buffer, and each global tensor both read and written."""
    for buffer in program.kernel.shared:
        near = [b for b in program.kernel.shared if overlap(buffer, b)]
        names = {b.name for b in near if b.name >= buffer.name}
        own = [a for a in found if a.ref.name in names]
        if any(a.ref.name == buffer.name for a in own):
            yield _obligation(program, buffer.name, own)
    for tensor in program.kernel.tensors:
        own = [a for a in found if a.ref.name == tensor.name]
        if any(a.writes for a in own) and any(not a.writes for a in own):
            yield _obligation(program, tensor.name, own)
            yield _between_blocks(program, tensor.name, own)


def _obligation(program: Program, name: str, own: Sequence[Access]) -> Obligation:
    span: Span | None = own[0].span
    checked = 0
    seen: set[tuple[object, ...]] = set()
    unknown: Unknown | None = None
    for access in own:
        try:
            for other, meeting in _meetings(program, access, own, name, seen):
                checked += 1
                if checked > _MOST_PAIRS:
                    raise EndlessError(f"more than {_MOST_PAIRS} pairs of accesses may meet")
                pair = _Pair(program, access, other, meeting)
                result = attempt(program.world, pair.check)
                if isinstance(result, Refuted):
                    return Obligation(Kind.RACE, name, result, other.span or span, other.label)
                if isinstance(result, Unknown):
                    unknown = unknown or result
        except EndlessError as error:
            unknown = unknown or Unknown(str(error))
    note = f"{checked} pairs of accesses ordered or apart"
    return Obligation(Kind.RACE, name, unknown or Proved(note), span, "accesses between barriers")


def _meetings(
    program: Program,
    access: Access,
    own: Sequence[Access],
    name: str,
    seen: set[tuple[object, ...]],
) -> Iterator[tuple[Access, Meeting]]:
    """Later accesses that may clash with this one: one of the two is of `name`, one writes.

    Those that are in `seen` are left out; the others are added to it.
    """
    for meeting in ahead(program, access.site, access.asynchronous):
        path = meeting.path
        for other in own:
            named = name in (access.ref.name, other.ref.name)
            if other.site is meeting.site and named and (access.writes or other.writes):
                how = (path.stage.in_flight, path.conditions, meeting.same)
                key = (_what(access), _what(other), *meeting.turns.items(), *how)
                if key not in seen:
                    seen.add(key)
                    yield other, meeting


def _what(access: Access) -> tuple[object, ...]:
    """All of an access that a question about a pair depends on, but for its place."""
    frame = access.site.frame
    around = (*map(id, frame.around), *(id(d) for _, d in frame.decodes))
    return (access.ref, access.width, access.axis, access.over, access.guard, access.writes,
            access.asynchronous, access.gathered, around)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pair:
    """Access x of one thread, and a later access y that nothing orders after it."""

    program: Program
    first: Access
    second: Access
    meeting: Meeting

    def check(self) -> Result:
        x = points(self.program, self.first, ("thread",))
        y = points(self.program, self.second, ("thread",))
        turns = self.meeting.turns
        same = [n for n, turn in turns.items() if turn == Expr.of(n)]
        theirs, mine = set(x.fixed(same)), set(y.fixed(same))
        shared = theirs & mine
        later: dict[str, Expr | int | str] = {
            d.name: d.name + LATER for d in (*y.dims, *self.second.elements) if d.name not in shared
        }
        later.update(turns)
        dims = {d.name: d for d in (*x.dims, *self.first.elements)}
        bounds: list[Constraint] = []
        for d in (*y.dims, *self.second.elements):
            extent = d.extent.substitute(later)
            name = Expr.of(d.name).substitute(later)
            if d.name in shared:
                continue
            if str(name) == d.name + LATER:
                dims[d.name + LATER] = Dim(d.name + LATER, extent)
            else:
                bounds += [at_least(name, 0), less(name, extent)]
        rows = [*x.guard, *self.first.guard, *bounds]
        rows += [c.substitute(later) for c in (*y.guard, *self.second.guard)]
        known = dims.keys() | {s.name for s in self.program.kernel.symbols}
        path = [c for c in self.meeting.path.conditions if c.expr.variables() <= known]
        exact = len(path) == len(self.meeting.path.conditions) and not (x.inexact or y.inexact)
        exact = (
            exact and self.meeting.path.exact and shared in (theirs, mine)
        )  # all of one side: one decoding of the block
        rows += path
        if self.first.ref.name == self.second.ref.name:
            pairs = zip(self.first.index, self.second.index, strict=True)
            rows += [Constraint(a - b.substitute(later), equality=True) for a, b in pairs]
        else:
            rows += self._common_byte(later)
            exact = exact and not self._swizzled()
        for apart in self._threads(x, y, later):
            point = find(self.program.world, tuple(dims.values()), (*rows, *apart))
            if point is not None:
                return self._fault(x, y, later, point, exact)
        return Proved()

    def _buffers(self) -> tuple[Shared, Shared] | None:
        kernel = self.program.kernel
        one = kernel.shared_buffer(self.first.ref.name)
        two = kernel.shared_buffer(self.second.ref.name)
        return None if one is None or two is None else (one, two)

    def _swizzled(self) -> bool:
        """Whether the bytes of an element are not known from its coordinates alone."""
        buffers = self._buffers()
        return buffers is None or any(b.swizzle is not None for b in buffers)

    def _common_byte(self, later: dict[str, Expr | int | str]) -> list[Constraint]:
        """The two elements, of different buffers, overlap in memory."""
        buffers = self._buffers()
        if buffers is None or self._swizzled():
            return []
        starts: list[Expr] = []
        for access, buffer in zip((self.first, self.second), buffers, strict=True):
            start = Expr.of(buffer.offset)
            for index, stride in zip(access.index, buffer.strides, strict=True):
                start = start + index * (stride * buffer.dtype.bytes)
            starts.append(start)
        one, two = starts[0], starts[1].substitute(later)
        sizes = [b.dtype.bytes for b in buffers]
        return [less(one, two + sizes[1]), less(two, one + sizes[0])]

    def _threads(self, x: Domain, y: Domain, later: dict[str, Expr | int | str]) -> list[Guard]:
        """The ways in which the two threads may relate; any way where the copy is in flight."""
        if self.meeting.path.stage.in_flight and not self.meeting.same:
            return [()]
        if x.thread is None or y.thread is None:
            return [()]
        one, two = x.thread, y.thread.substitute(later)
        if self.meeting.same:
            return [(less(one, two),)]
        return [(less(one, two),), (less(two, one),)]

    def _fault(
        self,
        x: Domain,
        y: Domain,
        later: dict[str, Expr | int | str],
        point: Point,
        exact: bool,
    ) -> Result:
        first, second = self.first, self.second
        if not exact:
            return Unknown(
                f"the {first.label} and the {second.label} may meet, with no barrier between"
            )
        values = point.bindings()
        element = tuple(e.evaluate(values) for e in first.index)
        threads = [
            t.evaluate(values) for t in (x.thread, y.thread and y.thread.substitute(later)) if t
        ] or [0, 0]
        place = f"{first.ref.name}[{', '.join(map(str, element))}]"
        if first.ref.name != second.ref.name:
            other = (e.substitute(later).evaluate(values) for e in second.index)
            place += f", the same memory as {second.ref.name}[{', '.join(map(str, other))}],"
        flight = self.meeting.path.stage.in_flight
        why = "its copy not known to be complete" if flight else "no barrier between"
        message = (
            f"{place} is {_verb(first)} by thread {threads[0]} and {_verb(second)} by "
            f"thread {threads[1]}, {why}"
        )
        here = tuple((d.name, values[d.name]) for d in x.dims)
        there = tuple((d.name, Expr.of(d.name).substitute(later).evaluate(values)) for d in y.dims)
        notes = (
            f"first the {first.label} at {_text(here)}",
            f"then the {second.label} at {_text(there)}",
        )
        if point.symbols:
            notes += (f"with {_text(point.symbols)}",)
        return Refuted(message, Witness(element, point.symbols, (here, there)), notes)


def _verb(access: Access) -> str:
    return "written" if access.writes else "read"


def _text(values: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in values) or "its only instance"


# ---------------------------------------------------------------- between blocks


def _between_blocks(program: Program, name: str, own: Sequence[Access]) -> Obligation:
    """No block reads an element that another block writes: nothing orders the two."""
    for write in (a for a in own if a.writes):
        for read in (a for a in own if not a.writes):
            result = attempt(program.world, lambda w=write, r=read: _blocks_apart(program, w, r))
            if not isinstance(result, Proved):
                return Obligation(Kind.RACE, name, result, read.span, read.label)
    note = "no block reads what another one writes"
    return Obligation(Kind.RACE, name, Proved(note), own[0].span, "accesses between blocks")


def _blocks_apart(program: Program, write: Access, read: Access) -> Result:
    x, y = write.piece(program), read.piece(program)
    blocks = [d.domain(program).block for d in (write, read)]
    later: dict[str, Expr | int | str] = {d.name: d.name + LATER for d in y.dims}
    dims = (*x.dims, *(Dim(d.name + LATER, d.extent.substitute(later)) for d in y.dims))
    rows: list[Constraint] = [*x.guard, *(c.substitute(later) for c in y.guard)]
    rows += [equal(a, b.substitute(later)) for a, b in zip(x.index, y.index, strict=True)]
    if blocks[0] != blocks[1]:
        return Unknown("the two accesses decode the block in different ways")
    for digit in blocks[0]:
        for apart in (less(digit, digit + LATER), less(digit + LATER, digit)):
            point = find(program.world, dims, (*rows, apart))
            if point is not None:
                if x.inexact or y.inexact:
                    return Unknown(x.inexact or y.inexact)
                values = point.bindings()
                element = tuple(e.evaluate(values) for e in x.index)
                here = [tuple((n, values[n + t]) for n in blocks[0]) for t in ("", LATER)]
                place = f"{write.ref.name}[{', '.join(map(str, element))}]"
                return Refuted(
                    f"{place} is written by one block and read by another, with no order",
                    Witness(element, point.symbols, tuple(here)),
                    (f"written at {_text(here[0])}, read at {_text(here[1])}",),
                )
        rows.append(equal(digit, digit + LATER))
    return Proved()
