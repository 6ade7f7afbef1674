"""The memory accesses of a kernel, each as a piece of points and coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.spans import Span
from tilewright.kernel.async_ops import RemoteStore
from tilewright.kernel.ops import AsyncCopy, Load, MemRef, Over, Shared, Store, Tensor
from tilewright.lower.obligations.domains import Domain, domain
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Expr, Guard
from tilewright.poly.prove import Piece
from tilewright.poly.sets import Dim

VECTOR = "vector element"  # a space: no digit of a kernel can have this name
GATHERED = "index that is data, axis "


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of memory by a statement: `width` elements along `axis` per instance.

    Along the axes in `gathered` the index is data: any one inside, as the access is guarded.
    An access by another agent than the thread (`bulk`) is that of a whole box: each of its
    elements is `steps` away from `ref`, in the variables `box`, and is accessed where `clip` holds.
    """

    site: Site
    over: Over
    ref: MemRef
    width: int
    axis: int
    guard: Guard
    writes: bool
    asynchronous: bool = False
    gathered: tuple[tuple[int, Expr], ...] = ()  # axes and their extents
    bulk: str = ""  # by what: how a reader calls it
    box: tuple[Dim, ...] = ()
    steps: tuple[Expr, ...] = ()
    clip: Guard = ()

    @property
    def span(self) -> Span | None:
        return getattr(self.site.statement, "span", None)

    @property
    def label(self) -> str:
        verb = "store to" if self.writes else "load from"
        if self.bulk:
            verb = f"{self.bulk} to" if self.writes else f"{self.bulk} from"
        elif self.asynchronous:
            verb = "asynchronous copy to" if self.writes else "asynchronous copy from"
        note = getattr(self.site.statement, "note", "")
        return f"{verb} {self.ref.name}" + (f" ({note})" if note else "")

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (*self.ref.index, *(c.expr for c in self.guard))

    @property
    def index(self) -> tuple[Expr, ...]:
        """The coordinates of each element; the position in the vector and data are variables."""
        index = list(self.ref.index)
        if self.width > 1:
            axis = self.axis % len(index)
            index[axis] = index[axis] + VECTOR
        for axis, _ in self.gathered:
            index[axis] = index[axis] + f"{GATHERED}{axis}"
        for axis, step in enumerate(self.steps):
            index[axis] = index[axis] + step
        return tuple(index)

    @property
    def elements(self) -> tuple[Dim, ...]:
        """The variables of `index` that are no digits of the statement."""
        vector = () if self.width == 1 else (Dim.of(VECTOR, self.width),)
        gathered = (Dim(f"{GATHERED}{axis}", extent) for axis, extent in self.gathered)
        return (*vector, *gathered, *self.box)

    def domain(self, program: Program, hardware: tuple[str, ...] = ("block", "thread")) -> Domain:
        return domain(program.kernel, self.site.frame, self.exprs, self.over, hardware)

    def piece(self, program: Program, hardware: tuple[str, ...] = ("block", "thread")) -> Piece:
        where = self.domain(program, hardware)
        return Piece(
            (*where.dims, *self.elements),
            (*where.guard, *self.guard, *self.clip),
            self.index,
            self.label,
            where.inexact,
            bool(self.site.frame.conditions),
        )


def accesses(program: Program) -> tuple[Access, ...]:
    """Every access to global or shared memory, in program order; reads before writes."""
    found: list[Access] = []
    for site in program.sites:
        match site.statement:
            case Load() as s:
                read = Access(site, s.over, s.src, s.width, s.axis, s.guard, False)
                found.append(replace(read, gathered=_gathered(program, s)))
            case Store() as s:
                found.append(Access(site, s.over, s.dst, s.width, s.axis, s.guard, True))
            case AsyncCopy() as s:
                # The destination is written in any case: with zeros where the guard fails.
                found.append(Access(site, s.over, s.src, s.width, s.src_axis, s.guard, False, True))
                found.append(Access(site, s.over, s.dst, s.width, s.dst_axis, (), True, True))
            case RemoteStore() as s:
                write = Access(site, s.over, s.dst, s.width, -1, (), True, bulk="remote store")
                found.append(write)
            case _:
                pass
    return tuple(found)


def _gathered(program: Program, load: Load) -> tuple[tuple[int, Expr], ...]:
    buffer = memory(program, load.src.name)
    if buffer is None:
        return ()
    return tuple((c.axis, shape_of(buffer)[c.axis]) for c in load.indirect)


def memory(program: Program, name: str) -> Tensor | Shared | None:
    """The tensor or shared buffer of this name."""
    return program.kernel.tensor(name) or program.kernel.shared_buffer(name)


def shape_of(buffer: Tensor | Shared) -> tuple[Expr, ...]:
    return tuple(Expr.of(extent) for extent in buffer.shape)


def overlap(one: Shared, two: Shared) -> bool:
    """Whether two shared buffers have a byte in common."""
    end_one = one.offset + one.elements * one.dtype.bytes
    end_two = two.offset + two.elements * two.dtype.bytes
    return one.offset < end_two and two.offset < end_one


def points(
    program: Program, access: Access, hardware: tuple[str, ...], names: tuple[str, ...] = ()
) -> Domain:
    """The access's points with the counter of every loop around it, and `names`, among the dims."""
    counters = tuple(Expr.of(loop.var) for loop in access.site.frame.loops)
    exprs = (*access.exprs, *counters, *(Expr.of(n) for n in names))
    return domain(program.kernel, access.site.frame, exprs, access.over, hardware)
