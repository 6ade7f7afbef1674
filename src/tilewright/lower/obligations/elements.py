"""Registers hold the elements that their reader takes them for.

A store names the coordinate of each element that it writes, on the named axes of its tensor. The
question is followed backwards: through elementwise statements; through reductions and matrix
instructions, which name the coordinate of each term on the reduced axis; through shared memory.
Where it meets a load or copy from a tensor with the same axis, the loaded coordinate has to be
the named one, and the load's guard must not hide it.

Covered are buffers that are filled in the same turn, rings (see `writers`), and lane steps by
`lane_xor`. What comes from other lanes in another way, from data (gathers) or from a later turn
ends the walk: there nothing is claimed. Of the ways from a store to one statement a few are
followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCopy,
    Cast,
    LaneXor,
    Load,
    Mma,
    Over,
    Read,
    Reduce,
    RegRef,
    Store,
    Value,
)
from tilewright.lower.obligations.accesses import VECTOR
from tilewright.lower.obligations.domains import domain
from tilewright.lower.obligations.scope import Program, Site
from tilewright.lower.obligations.tracing import Wanted
from tilewright.lower.obligations.writers import writers
from tilewright.poly.expr import Expr, Guard, at_least, equal, less
from tilewright.poly.layout import Layout, Place
from tilewright.poly.prove import (
    Kind,
    Obligation,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    instance_text,
)
from tilewright.poly.sets import Dim, Point
from tilewright.target.model import Scope, Source

Axes = Mapping[str, Sequence[str]]  # of each tensor that has named axes
WARP = "warp of the atom"
_MOST_WAYS = 2  # from one store, or one load of shared memory, to one statement
Definition = Load | Assign | Reduce | Mma


def elements(program: Program, axes: Axes) -> Iterator[Obligation]:
    """One obligation for each store to a tensor with named axes that a load can be traced to."""
    for site in program.sites:
        store = site.statement
        if isinstance(store, Store) and store.dst.name in axes:
            walk = _Walk(program, axes)
            result = attempt(program.world, lambda w=walk, s=site, t=store: w.from_store(s, t))
            if walk.loads or not isinstance(result, Proved):
                name = store.dst.name
                yield Obligation(Kind.ELEMENT, name, result, store.span, f"store to {name}")


class _Walk:
    def __init__(self, program: Program, axes: Axes) -> None:
        self.program = program
        self.axes = axes
        self.loads = 0
        self.steps = 0
        self.seen: dict[tuple[int, int], int] = {}
        self.through = 0  # the last load from shared memory on the way

    def from_store(self, site: Site, store: Store) -> Result:
        index = _vector(store.dst.index, store.axis, store.width)
        ref = _vector(store.src.index, -1, store.width)
        exprs = (*store.dst.index, *store.src.index, *(c.expr for c in store.guard))
        where = domain(self.program.kernel, site.frame, exprs, store.over, ("thread",))
        dims = {d.name: d for d in (*where.dims, Dim.of(VECTOR, store.width))}
        wanted = Wanted(
            ref, dict(zip(self.axes[store.dst.name], index, strict=True)), dims,
            (*where.guard, *store.guard), where.thread, site.frame, {}, not where.inexact,
        )  # fmt: skip
        fault = self.register(wanted, store.src.name)
        return fault or Proved(f"{self.loads} loads hold the elements that are stored")

    def suffix(self) -> str:
        self.steps += 1
        return f"#{self.steps}"

    def enter(self, site: Site) -> bool:
        """Whether to look at the statement once more: a value may be used in several ways."""
        key = (id(site.statement), self.through)
        self.seen[key] = self.seen.get(key, 0) + 1
        return self.seen[key] <= _MOST_WAYS

    # ------------------------------------------------------------ registers

    def register(self, wanted: Wanted, name: str) -> Result | None:
        """Look at every earlier definition of the fragment; the first fault."""
        for site in reversed(self.program.sites):  # lane steps widen what is wanted
            statement = site.statement
            match statement:
                case Load(dst=dst) | Assign(dst=dst) | Reduce(dst=dst) | Mma(d=dst):
                    before = site.frame.path < wanted.frame.path
                    if dst.name == name and before and self.enter(site):
                        fault = self.definition(site, statement, wanted)
                        if fault is not None:
                            return fault
                case _:
                    pass
        return None

    def definition(self, site: Site, statement: Definition, wanted: Wanted) -> Result | None:
        match statement:
            case Load():
                return self.load(site, statement, wanted)
            case Mma():
                return self.matrix(site, statement, wanted)
            case Assign():
                over, counted, inside = statement.over, {}, ()
            case Reduce():
                over = (*statement.over, *statement.along)
                counted = {r.axis: r.coordinate for r in statement.reduces}
                inside = tuple(less(r.coordinate, r.extent) for r in statement.reduces)
        fault = None
        for ref, mask in _sources(statement.value).items():
            exprs = (*ref.index, *counted.values())
            there = wanted.at(
                self.program, site, over, statement.dst.index, exprs, same_thread=not mask,
                suffix=self.suffix(),
            )  # fmt: skip
            there = there.under(*(c.substitute(there.now) for c in inside))
            if mask:
                there = _either_lane(wanted, there, mask, self.suffix())
            own = dict(zip(counted, there.mapped(counted.values()), strict=True))
            there = replace(there, ref=there.mapped(ref.index), tags={**there.tags, **own})
            fault = fault or self.register(there, ref.name)
        return fault

    def matrix(self, site: Site, mma: Mma, wanted: Wanted) -> Result | None:
        """From an element of d to the row of a and the row of b that made it."""
        atom = self.program.target.atom(mma.atom)
        if atom is None or len(mma.reduces) != 1 or atom.scope is not Scope.WARP:
            return None
        if Source.REGISTER not in (atom.a_source, atom.b_source):
            return None
        d = _Atom(atom.d, "d")
        over = (*mma.over, *d.registers, *d.lanes, (WARP, self.program.kernel.warps))
        index = (*mma.d.index[:-1], mma.d.index[-1] + d.register)
        there = wanted.at(self.program, site, over, index, suffix=self.suffix())
        if there.thread is None:
            return None
        size = self.program.kernel.warp_size
        there = there.under(
            equal(there.thread, (d.lane + size * Expr.of(WARP)).substitute(there.now))
        )
        for ref, part, axis in (
            (mma.a, _Atom(atom.a, "a"), "m"), (mma.b, _Atom(atom.b, "b"), "n"),
        ):  # fmt: skip
            fault = self.operand(there, site, mma, ref, part, (d.position(axis), axis))
            if fault is not None:
                return fault
        return None

    def operand(
        self, there: Wanted, site: Site, mma: Mma, ref: RegRef, part: _Atom, row: tuple[Expr, str]
    ) -> Result | None:
        """The elements of one operand: same warp, same row of the tile, any k."""
        (reduced,) = mma.reduces
        over = (*mma.over, *part.registers, *part.lanes)
        exprs = (*ref.index, reduced.coordinate)
        one = replace(there, ref=()).at(
            self.program, site, over, (), exprs, same_thread=False, suffix=self.suffix()
        )
        if one.thread is None:
            return None
        warp = Expr.of(WARP).substitute(there.now)
        size = self.program.kernel.warp_size
        position, axis = row
        k = part.position("k").substitute(one.now)
        (coordinate,) = one.mapped((reduced.coordinate,))
        one = one.under(
            equal(one.thread, part.lane.substitute(one.now) + size * warp),
            equal(part.position(axis).substitute(one.now), position.substitute(there.now)),
            less(coordinate + k, reduced.extent),
            *(equal(Expr.of(n).substitute(one.now), Expr.of(n).substitute(there.now))
              for n, _ in mma.over),
        )  # fmt: skip
        *outer, last = one.mapped(ref.index)
        place = (*outer, last + part.register.substitute(one.now))
        tags = {**one.tags, reduced.axis: one.resolved(coordinate + k)}
        return self.register(replace(one, ref=place, tags=tags), ref.name)

    # ------------------------------------------------------------ memory

    def load(self, site: Site, load: Load, wanted: Wanted) -> Result | None:
        if load.indirect:
            return None
        exprs = (*load.src.index, *(c.expr for c in load.guard))
        dst = _vector(load.dst.index, -1, load.width)
        over = (*load.over, (VECTOR, load.width))
        there = wanted.at(self.program, site, over, dst, exprs, suffix=self.suffix())
        index = there.mapped(_vector(load.src.index, load.axis, load.width))
        guard = tuple(c.substitute(there.now) for c in load.guard)
        if load.src.name in self.axes:
            return self.reached(there, load.src.name, index, guard)
        if self.program.kernel.shared_buffer(load.src.name) is None:
            return None
        before, self.through = self.through, id(load)
        fault = self.buffer(replace(there, ref=index).under(*guard), site, load.src.name)
        self.through = before
        return fault

    def buffer(self, wanted: Wanted, read: Site, name: str) -> Result | None:
        """What each write of the buffer that may be the last one has put there."""
        for write in writers(self.program.sites, read, name):
            statement = write.site.statement
            if not isinstance(statement, Store | AsyncCopy) or not self.enter(write.site):
                continue
            own = isinstance(statement, Store)
            axis = statement.axis if own else statement.dst_axis
            index = _vector(statement.dst.index, axis, statement.width)
            exprs = (*statement.src.index, *(c.expr for c in statement.guard))
            there = wanted.at(
                self.program, write.site, (*statement.over, (VECTOR, statement.width)), index,
                exprs, turn=write.turn, same_thread=False, suffix=self.suffix(),
            )  # fmt: skip
            there = there.under(*write.last(wanted.now, there.now))
            guard = tuple(c.substitute(there.now) for c in statement.guard)
            if isinstance(statement, Store):
                ref = there.mapped(_vector(statement.src.index, -1, statement.width))
                there = replace(there, ref=ref).under(*guard)
                fault = self.register(there, statement.src.name)
            elif statement.src.name in self.axes:
                source = _vector(statement.src.index, statement.src_axis, statement.width)
                fault = self.reached(there, statement.src.name, there.mapped(source), guard)
            else:
                fault = None
            if fault is not None:
                return fault
        return None

    def reached(
        self, wanted: Wanted, name: str, index: tuple[Expr, ...], guard: Guard
    ) -> Result | None:
        """The tensor's element at `index`, or a fill where the guard fails, is the one wanted."""
        pairs = [
            (axis, loaded, wanted.tags[axis])
            for axis, loaded in zip(self.axes[name], index, strict=True)
            if axis in wanted.tags
        ]
        if not pairs:
            return None
        self.loads += 1
        for axis, loaded, named in pairs:
            both = () if loaded == named else (less(loaded, named), less(named, loaded))
            for apart in both:
                point = wanted.find(self.program, *guard, apart)
                if point is not None:
                    values = point.bindings()
                    one, two = loaded.evaluate(values), named.evaluate(values)
                    text = f"{name} is loaded at {axis} = {one} where {axis} = {two} is wanted"
                    return _fault(wanted, text, (one, two), point)
        tensor = self.program.kernel.tensor(name)
        shape = tensor.shape if tensor is not None else ()
        inside = [
            c for i, n in zip(index, shape, strict=True) for c in (at_least(i, 0), less(i, n))
        ]
        inside += [equal(loaded, named) for _, loaded, named in pairs]
        for c in guard:
            for fails in (less(c.expr, 0), *((less(0, c.expr),) if c.equality else ())):
                point = wanted.find(self.program, *inside, fails)
                if point is not None:
                    element = tuple(e.evaluate(point.bindings()) for e in index)
                    place = ", ".join(map(str, element))
                    text = f"a fill takes the place of {name}[{place}]"
                    return _fault(wanted, text, element, point)
        return None


def _fault(wanted: Wanted, text: str, element: tuple[int, ...], point: Point) -> Result:
    if not wanted.exact:
        return Unknown(f"maybe {text}")
    at = tuple(p for p in point.values if "#" not in p[0])
    witness = Witness(element, point.symbols, (point.values,))
    return Refuted(text, witness, (instance_text(at, point.symbols),))


def _vector(index: tuple[Expr, ...], axis: int, width: int) -> tuple[Expr, ...]:
    """The index of each element of a vector along an axis."""
    if width == 1:
        return index
    along = axis % len(index)
    return tuple(e + VECTOR if i == along else e for i, e in enumerate(index))


def _sources(value: Value) -> dict[RegRef, int]:
    """The registers that a value reads, with the bit of the lane number in which the lanes may
    differ: 0 for the own lane alone."""
    match value:
        case Read(ref=ref):
            return {ref: 0}
        case LaneXor(ref=ref, mask=mask) if mask & (mask - 1) == 0:
            return {ref: mask}
        case Apply(args=args):
            found: dict[RegRef, int] = {}
            for argument in args:
                for ref, mask in _sources(argument).items():
                    found[ref] = found.get(ref, 0) | mask
            return found
        case Cast(value=inner):
            return _sources(inner)
        case _:
            return {}


def _either_lane(wanted: Wanted, there: Wanted, mask: int, suffix: str) -> Wanted:
    """The thread of `there` is that of `wanted`, or the one whose number differs in one bit."""
    thread = there.thread
    if wanted.thread is None or thread is None:
        return replace(there, exact=False)
    high, one, two, low = (f"lane {part}{suffix}" for part in ("high", "bit", "other", "low"))
    dims = {n: Dim.of(n, size) for n, size in ((high, 1 << 10), (one, 2), (two, 2), (low, mask))}
    rest = Expr.of(high) * (2 * mask) + low
    there = replace(there, dims={**there.dims, **dims})
    return there.under(
        equal(there.resolved(wanted.thread), rest + Expr.of(one) * mask),
        equal(thread, rest + Expr.of(two) * mask),
    )


class _Atom:
    """A variable for each digit of an operand's layout in an atom."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout = layout
        self.registers = self._digits(Place.REGISTER, f"{name} register ")
        self.lanes = self._digits(Place.LANE, f"{name} lane ")
        self.register = _number(self.registers)
        self.lane = _number(self.lanes)

    def _digits(self, place: Place, name: str) -> Over:
        return tuple((f"{name}{i}", d.extent) for i, d in enumerate(self.layout.at(place)))

    def position(self, axis: str) -> Expr:
        total = Expr.of(0)
        for place, digits in ((Place.REGISTER, self.registers), (Place.LANE, self.lanes)):
            for digit, (name, _) in zip(self.layout.at(place), digits, strict=True):
                if digit.axis == axis:
                    total = total + Expr.of(name) * digit.stride
        return total


def _number(digits: Over) -> Expr:
    total = Expr.of(0)
    for name, extent in digits:
        total = total * extent + name
    return total
