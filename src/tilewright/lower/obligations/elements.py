"""Registers hold the elements that their reader takes them for.

A store names the coordinate of each element that it writes, on the named axes of its tensor. The
question is followed backwards: through elementwise statements, and through reductions, which
name the coordinate of each term on the reduced axis; at a load from a tensor with the same axis,
the loaded coordinate has to be the named one, for each register of each thread.

Covered are values that stay in their thread's registers. What comes from shared memory, from
another lane, from a matrix instruction or from a later turn of a loop ends the walk: there
nothing is claimed. Each definition is looked at once for each store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.ops import (
    Apply,
    Assign,
    Cast,
    Load,
    Loop,
    Over,
    Read,
    Reduce,
    RegRef,
    Store,
    Value,
)
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.domains import domain
from tilewright.lower.obligations.scope import Frame, Program, Site
from tilewright.poly.expr import Expr, Guard, equal, less
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
    instance_text,
)
from tilewright.poly.sets import Dim

Axes = Mapping[str, Sequence[str]]  # of each tensor that has named axes


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The element ``ref`` of a fragment has to be the one at `tags`, over all points.

    `thread` is the thread's number in the dims. `now` renames counters and digits of the frame
    to dims: those of a loop that the store is not in have names of their own. `exact` says that
    no point is too many.
    """

    ref: RegRef
    tags: Mapping[str, Expr]
    dims: Mapping[str, Dim]
    guard: Guard
    thread: Expr | None
    frame: Frame
    now: Mapping[str, Expr | int | str]
    exact: bool


def elements(program: Program, axes: Axes) -> Iterator[Obligation]:
    """One obligation for each store to a tensor with named axes that a load can be traced to."""
    for site in program.sites:
        store = site.statement
        if isinstance(store, Store) and store.dst.name in axes:
            walk = _Walk(program, axes)
            result = attempt(program.world, lambda w=walk, s=site, t=store: w.from_store(s, t))
            if walk.loads or not isinstance(result, Proved):
                yield Obligation(
                    Kind.ELEMENT, store.dst.name, result, store.span, f"store to {store.dst.name}"
                )


class _Walk:
    def __init__(self, program: Program, axes: Axes) -> None:
        self.program = program
        self.axes = axes
        self.loads = 0
        self.fresh = 0
        self.seen: set[int] = set()

    def from_store(self, site: Site, store: Store) -> Result:
        index, ref = _vector(store.dst.index, store.axis, store.width, store.src)
        tags = dict(zip(self.axes[store.dst.name], index, strict=True))
        exprs = (*store.dst.index, *store.src.index, *(c.expr for c in store.guard))
        where = domain(self.program.kernel, site.frame, exprs, store.over, ("thread",))
        dims = {d.name: d for d in (*where.dims, Dim.of(VECTOR, store.width))}
        guard = (*where.guard, *store.guard)
        wanted = _Wanted(ref, tags, dims, guard, where.thread, site.frame, {}, not where.inexact)
        fault = self.back(wanted)
        return fault or Proved(f"{self.loads} loads hold the elements that are stored")

    def back(self, wanted: _Wanted) -> Result | None:
        """Look at every definition of the register; the first fault."""
        for site in self.program.sites:
            statement = site.statement
            match statement:
                case Load(dst=ref) | Assign(dst=ref) | Reduce(dst=ref):
                    if ref.name != wanted.ref.name or not self.follows(site, wanted):
                        continue
                    if (fault := self.definition(site, statement, wanted)) is not None:
                        return fault
                case _:
                    pass
        return None

    def follows(self, site: Site, wanted: _Wanted) -> bool:
        """Whether the definition stands before the use, and has not been looked at."""
        if id(site.statement) in self.seen or site.frame.path >= wanted.frame.path:
            return False
        self.seen.add(id(site.statement))
        return True

    def definition(
        self, site: Site, statement: Load | Assign | Reduce, wanted: _Wanted
    ) -> Result | None:
        match statement:
            case Load():
                return self.at_load(site, statement, wanted)
            case Assign():
                for ref in _same_thread(statement.value):
                    made = self.joined(site, statement.over, statement.dst, wanted, (ref,), ())
                    if (fault := self.back(_reading(made, ref))) is not None:
                        return fault
            case Reduce():
                if not statement.reduces:
                    return None
                counted = {r.axis: r.coordinate for r in statement.reduces}
                over = (*statement.over, *statement.along)
                inside = tuple(less(r.coordinate, r.extent) for r in statement.reduces)
                for ref in _same_thread(statement.value):
                    made = self.joined(site, over, statement.dst, wanted, (ref,), inside)
                    own = {a: e.substitute(made.names) for a, e in counted.items()}
                    made = replace(made, wanted=replace(made.wanted, tags={**made.wanted.tags, **own}))
                    if (fault := self.back(_reading(made, ref))) is not None:
                        return fault
        return None

    def at_load(self, site: Site, load: Load, wanted: _Wanted) -> Result | None:
        tensor = self.axes.get(load.src.name)
        if tensor is None or load.indirect:
            return None
        index, dst = _vector(load.src.index, load.axis, load.width, load.dst)
        over = (*load.over, (VECTOR, load.width))
        made = self.joined(site, over, dst, wanted, (), load.guard, index)
        self.loads += 1
        for axis, expr in zip(tensor, index, strict=True):
            if axis in wanted.tags:
                loaded = expr.substitute(made.names)
                if (fault := self.differ(made.wanted, load, axis, loaded)) is not None:
                    return fault
        return None

    def differ(self, wanted: _Wanted, load: Load, axis: str, loaded: Expr) -> Result | None:
        named = wanted.tags[axis]
        for apart in (less(loaded, named), less(named, loaded)):
            point = find(self.program.world, tuple(wanted.dims.values()), (*wanted.guard, apart))
            if point is None:
                continue
            if not wanted.exact:
                return Unknown(f"the load from {load.src.name} may hold other elements")
            values = point.bindings()
            one, two = loaded.evaluate(values), named.evaluate(values)
            return Refuted(
                f"{load.src.name} is loaded at {axis} = {one} where {axis} = {two} is stored",
                Witness((one, two), point.symbols, (point.values,)),
                (instance_text(point.values, point.symbols),),
            )
        return None

    def joined(
        self, site: Site, over: Over, dst: RegRef, wanted: _Wanted, refs: Sequence[RegRef],
        guard: Guard, index: Sequence[Expr] = (),
    ) -> _Joined:  # fmt: skip
        """What is wanted, where the definition wrote it: same thread, same register."""
        self.fresh += 1
        frame, kernel = site.frame, self.program.kernel
        own = [*dst.index, *index, *(e for r in refs for e in r.index), *(c.expr for c in guard)]
        known = {n for _, d in frame.decodes for n, _ in d.digits}
        known |= {loop.var for loop in frame.loops}
        names = sorted(n for n in known if str(wanted.now.get(n, n)) in wanted.dims)
        exprs = (*own, *(Expr.of(n) for n in names))
        where = domain(kernel, frame, exprs, over, ("thread",))
        common = {loop.var for loop in _common(frame, wanted.frame)} | {"block", "thread"}
        mine = {
            d.name: f"{d.name}#{self.fresh}" for d in where.dims
            if not where.roots[d.name] or not where.roots[d.name] <= common
        }  # fmt: skip
        others = {n: to for n, to in wanted.now.items() if n not in mine}
        renamed: dict[str, Expr | int | str] = {**others, **mine}
        dims = dict(wanted.dims)
        for d in where.dims:
            name = str(renamed.get(d.name, d.name))
            dims.setdefault(name, Dim(name, d.extent.substitute(renamed)))
        rows = [*wanted.guard, *(c.substitute(renamed) for c in (*where.guard, *guard))]
        pairs = zip(dst.index, wanted.ref.index, strict=True)
        rows += [equal(a.substitute(renamed), b) for a, b in pairs]
        if where.thread is not None and wanted.thread is not None:
            rows.append(equal(where.thread.substitute(renamed), wanted.thread))
        exact = wanted.exact and not where.inexact
        there = replace(wanted, dims=dims, guard=tuple(rows), frame=frame, now=renamed, exact=exact)
        return _Joined(there, renamed)


@dataclass(frozen=True, slots=True)
class _Joined:
    """`names` are those of the definition's own variables."""

    wanted: _Wanted
    names: dict[str, Expr | int | str]


def _reading(made: _Joined, ref: RegRef) -> _Wanted:
    index = tuple(e.substitute(made.names) for e in ref.index)
    return replace(made.wanted, ref=RegRef(ref.name, index))


def _vector(
    index: tuple[Expr, ...], axis: int, width: int, ref: RegRef
) -> tuple[tuple[Expr, ...], RegRef]:
    """The coordinates and the register of each element of a vector."""
    if width == 1:
        return index, ref
    along = axis % len(index)
    moved = tuple(e + VECTOR if i == along else e for i, e in enumerate(index))
    return moved, RegRef(ref.name, (*ref.index[:-1], ref.index[-1] + VECTOR))


def _same_thread(value: Value) -> Iterator[RegRef]:
    """The registers of the own thread that an elementwise value reads."""
    match value:
        case Read(ref=ref):
            yield ref
        case Apply(args=args):
            for argument in args:
                yield from _same_thread(argument)
        case Cast(value=inner):
            yield from _same_thread(inner)
        case _:
            pass


def _common(one: Frame, two: Frame) -> tuple[Loop, ...]:
    loops: list[Loop] = []
    for a, b, i, j in zip(one.around, two.around, one.path, two.path, strict=False):
        if a is not b or i != j:
            break
        if isinstance(a, Loop):
            loops.append(a)
    return tuple(loops)
