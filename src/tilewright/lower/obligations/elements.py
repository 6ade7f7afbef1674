"""Registers hold the elements that their reader takes them for.

A store names the coordinate of each element that it writes, on the named axes of its tensor. The
question is followed backwards: through elementwise statements; through reductions and matrix
instructions, which name the coordinate of each term on the reduced axis; through shared memory.
Where it meets a load or copy from a tensor with the same axis, the loaded coordinate has to be
the named one, and the load's guard must not hide it.

Covered are buffers that are filled in the same turn, rings (see `writers`), boxes that another
role loads (see `bulk_turns`), what other blocks of a cluster store, and lane steps by `lane_xor`.
What comes from other lanes in another way, from data (gathers) or from a later turn ends the
walk: there nothing is claimed. Of the ways from a store to one statement a few are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.kernel.async_ops import (
    BulkLoad,
    BulkStore,
    Collect,
    RemoteStore,
    TileRef,
    WarpgroupMma,
)
from tilewright.kernel.ops import (
    Assign,
    AsyncCopy,
    Load,
    Mma,
    Reduce,
    RegRef,
    Store,
)
from tilewright.lower.obligations.accesses import VECTOR, Access, accesses
from tilewright.lower.obligations.brought_ahead import taken_apart
from tilewright.lower.obligations.bulk_boxes import (
    DEPTH,
    ROW,
    box_of,
    bulk_accesses,
    in_tensor,
    inside,
    tile_access,
)
from tilewright.lower.obligations.bulk_elements import in_no_turn
from tilewright.lower.obligations.bulk_turns import Turns, apart, sent, turns
from tilewright.lower.obligations.bulk_unwritten import loaded_in_turn, untraced
from tilewright.lower.obligations.domains import domain
from tilewright.lower.obligations.exchanged_elements import deposits_of
from tilewright.lower.obligations.fragments import Atom
from tilewright.lower.obligations.holdings import added, sources, vector, written
from tilewright.lower.obligations.refilled import refills
from tilewright.lower.obligations.scope import Program, Site
from tilewright.lower.obligations.tracing import Wanted, either_lane, fault_at
from tilewright.lower.obligations.unwritten import written_in_turn, written_over
from tilewright.lower.obligations.writers import Write, newest, writers, writes_to
from tilewright.poly.expr import Expr, Guard, equal, less
from tilewright.poly.layout import Place
from tilewright.poly.prove import (
    Kind,
    Obligation,
    Proved,
    Result,
    Unknown,
    attempt,
)
from tilewright.poly.sets import Dim
from tilewright.target.model import MmaAtom, Source

Axes = Mapping[str, Sequence[str]]  # of each tensor that has named axes
GROUP = "warps of the atom"
_MOST_WAYS = 2  # from one store, or one load of shared memory, to one statement
Correspondence = Callable[[Program, Site, Site], Turns | str]
Definition = Load | Assign | Reduce | Mma | WarpgroupMma | Collect


def elements(program: Program, axes: Axes) -> Iterator[Obligation]:
    """One obligation for each store to a tensor with named axes that a load can be traced to."""
    apart = taken_apart(program)
    if apart is program:
        yield from _elements(program, axes)
        return
    found: dict[object, Obligation] = {}  # of the copies of a store, the first that is not proved
    for one in _elements(apart, axes):
        key = one.subject, one.span
        if key not in found or isinstance(found[key].result, Proved):
            found[key] = one
    yield from found.values()


def _elements(program: Program, axes: Axes) -> Iterator[Obligation]:
    for site in program.sites:
        store = site.statement
        walk = _Walk(program, axes)
        if isinstance(store, Store) and store.dst.name in axes:
            name = store.dst.name
            result = attempt(program.world, lambda w=walk, s=site, t=store: w.from_store(s, t))
        elif isinstance(store, BulkStore) and (name := _target(program, store)) in axes:
            result = attempt(program.world, lambda w=walk, s=site, t=store: w.from_box(s, t))
        else:
            continue
        if walk.loads or not isinstance(result, Proved):
            yield Obligation(Kind.ELEMENT, name, result, store.span, f"store to {name}")


class _Walk:
    def __init__(self, program: Program, axes: Axes) -> None:
        self.program = program
        self.axes = axes
        self.loads = 0
        self.cut = 0  # ways that were not followed
        self.steps = 0
        self.seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self.through: tuple[int, ...] = ()  # the way through shared memory, newest last
        self.roles = bool(program.kernel.phases)
        self.found = (*accesses(program), *bulk_accesses(program)) if self.roles else ()

    def from_store(self, site: Site, store: Store) -> Result:
        index = vector(store.dst.index, store.axis, store.width)
        ref = vector(store.src.index, -1, store.width)
        exprs = (*store.dst.index, *store.src.index, *(c.expr for c in store.guard))
        where = domain(self.program.kernel, site.frame, exprs, store.over, ("thread",))
        dims = {d.name: d for d in (*where.dims, Dim.of(VECTOR, store.width))}
        wanted = Wanted(
            ref, dict(zip(self.axes[store.dst.name], index, strict=True)), dims,
            (*where.guard, *store.guard), where.thread, site.frame, {}, not where.inexact,
        )  # fmt: skip
        return self.register(wanted, store.src.name) or self.traced()

    def from_box(self, site: Site, store: BulkStore) -> Result:
        """As `from_store`, of the elements of a box that lie in the tensor."""
        found = box_of(self.program.kernel, store)
        tensor = None if found is None else self.program.kernel.tensor(found[0].tensor)
        if found is None or tensor is None:
            return Unknown(f"the box does not follow the axes of {store.src.name}")
        declared, box = found
        exprs = (*store.coordinates, *store.src.index)
        where = domain(self.program.kernel, site.frame, exprs, store.over, ("thread",))
        at = in_tensor(declared, added(store.coordinates, box.position))
        wanted = Wanted(
            added(store.src.index, box.steps), dict(zip(self.axes[tensor.name], at, strict=True)),
            {d.name: d for d in (*where.dims, *box.dims)},
            (*where.guard, *inside(at, tensor.shape)), where.thread, site.frame, {},
            not where.inexact,
        )  # fmt: skip
        return self.buffer(wanted, site, store.src.name) or self.traced()

    def traced(self) -> Proved:
        followed = ", on the ways that were followed" if self.cut else ""
        return Proved(f"{self.loads} loads hold the elements that are stored{followed}")

    def suffix(self) -> str:
        self.steps += 1
        return f"#{self.steps}"

    def via(self, step: object) -> tuple[int, ...]:
        """The way with one step more; without roles the last load tells ways apart well enough."""
        return (*self.through, id(step)) if self.roles else (id(step),)

    def enter(self, site: Site) -> bool:
        """Whether to look at the statement once more: a value may be used in several ways."""
        key = (site.frame.path, self.through)
        self.seen[key] = self.seen.get(key, 0) + 1
        more = self.seen[key] <= _MOST_WAYS
        self.cut += not more
        return more

    # ------------------------------------------------------------ registers

    def register(self, wanted: Wanted, name: str) -> Result | None:
        """Look at the earlier definitions of the fragment that may be left; the first fault."""
        for site in reversed(self.program.sites):  # lane steps widen what is wanted
            statement = site.statement
            match statement:
                case (
                    Load(dst=dst)
                    | Assign(dst=dst)
                    | Reduce(dst=dst)
                    | Mma(d=dst)
                    | WarpgroupMma(d=dst)
                    | Collect(dst=dst)
                ):
                    before = site.frame.path < wanted.frame.path
                    if dst.name != name or not before:
                        continue
                    if self.enter(site):
                        fault = self.definition(site, statement, wanted)
                        if fault is not None:
                            return fault
                    if refills(self.program, site, wanted.frame):
                        return None
                case _:
                    pass
        return None

    def definition(self, site: Site, statement: Definition, wanted: Wanted) -> Result | None:
        match statement:
            case Load():
                return self.load(site, statement, wanted)
            case Mma() | WarpgroupMma():
                return self.matrix(site, statement, wanted)
            case Collect():
                return self.collected(site, statement, wanted)
            case Assign():
                over, counted, inside = statement.over, {}, ()
            case Reduce():
                over = (*statement.over, *statement.along)
                counted = {r.axis: r.coordinate for r in statement.reduces}
                inside = tuple(less(r.coordinate, r.extent) for r in statement.reduces)
        fault = None
        for ref, mask in sources(statement.value).items():
            exprs = (*ref.index, *counted.values())
            there = wanted.at(
                self.program, site, over, statement.dst.index, exprs, same_thread=not mask,
                suffix=self.suffix(),
            )  # fmt: skip
            there = there.under(*(c.substitute(there.now) for c in inside))
            if mask:
                there = either_lane(wanted, there, mask, self.suffix())
            own = dict(zip(counted, there.mapped(counted.values()), strict=True))
            there = replace(there, ref=there.mapped(ref.index), tags={**there.tags, **own})
            fault = fault or self.register(there, ref.name)
        return fault

    def collected(self, site: Site, collect: Collect, wanted: Wanted) -> Result | None:
        """From what is collected to the registers that another block deposited."""
        for found in deposits_of(self.program, wanted, site, collect, self.suffix()):
            if found is None:
                return Unknown(f"which block deposits in {collect.exchange} is not plain")
            there, source = found
            before, self.through = self.through, self.via(collect)
            fault = self.register(there, source)
            self.through = before
            if fault is not None:
                return fault
        return None

    def matrix(self, site: Site, mma: Mma | WarpgroupMma, wanted: Wanted) -> Result | None:
        """From an element of d to the row of a and the row of b that made it."""
        atom = self.program.target.atom(mma.atom)
        if atom is None or len(mma.reduces) != 1:
            return None
        d = Atom(atom.d, "d")
        over = (*mma.over, *d.digits, (GROUP, self.program.kernel.warps))
        index = (*mma.d.index[:-1], mma.d.index[-1] + d.register)
        there = wanted.at(self.program, site, over, index, suffix=self.suffix())
        if there.thread is None:
            return None
        there = there.under(equal(there.thread, self.thread(d).substitute(there.now)))
        fault = None
        for ref, layout, axis in ((mma.a, atom.a, "m"), (mma.b, atom.b, "n")):
            row = (d.position(axis), axis)
            if isinstance(ref, TileRef):
                fault = fault or self.tile(there, site, mma, ref, atom, row)
            elif Source.REGISTER is (atom.a_source if axis == "m" else atom.b_source):
                fault = fault or self.operand(there, site, mma, ref, Atom(layout, axis), row)
        return fault

    def thread(self, part: Atom) -> Expr:
        """The number of the thread that holds a part of an operand."""
        group = Expr.of(GROUP) * part.layout.count(Place.WARP)
        return part.lane + self.program.kernel.warp_size * (group + part.warp)

    def operand(
        self, there: Wanted, site: Site, mma: Mma | WarpgroupMma, ref: RegRef, part: Atom,
        row: tuple[Expr, str],
    ) -> Result | None:  # fmt: skip
        """The elements of one operand: same warps, same row of the tile, any k."""
        (reduced,) = mma.reduces
        over = (*mma.over, *part.digits, (GROUP, self.program.kernel.warps))
        exprs = (*ref.index, reduced.coordinate)
        one = replace(there, ref=()).at(
            self.program, site, over, (), exprs, same_thread=False, suffix=self.suffix()
        )
        if one.thread is None:
            return None
        position, axis = row
        k = part.position("k").substitute(one.now)
        (coordinate,) = one.mapped((reduced.coordinate,))
        one = one.under(
            equal(one.thread, self.thread(part).substitute(one.now)),
            equal(part.position(axis).substitute(one.now), position.substitute(there.now)),
            less(coordinate + k, reduced.extent),
            *(equal(Expr.of(n).substitute(one.now), Expr.of(n).substitute(there.now))
              for n in (*(n for n, _ in mma.over), GROUP)),
        )  # fmt: skip
        *outer, last = one.mapped(ref.index)
        place = (*outer, last + part.register.substitute(one.now))
        tags = {**one.tags, reduced.axis: one.resolved(coordinate + k)}
        return self.register(replace(one, ref=place, tags=tags), ref.name)

    def tile(
        self, there: Wanted, site: Site, mma: Mma | WarpgroupMma, ref: TileRef, atom: MmaAtom,
        row: tuple[Expr, str],
    ) -> Result | None:  # fmt: skip
        """The elements of an operand in shared memory: same row of the tile, any k."""
        if not isinstance(mma, WarpgroupMma):
            return None
        (reduced,) = mma.reduces
        position, axis = row
        shape = (atom.m if axis == "m" else atom.n, atom.k)
        read = tile_access(self.program.kernel, site, mma, ref, shape)
        depth = DEPTH + self.suffix()
        free = {**there.now, DEPTH: depth, ROW: position.substitute(there.now)}
        one = replace(there, dims={**there.dims, depth: Dim.of(depth, atom.k)}, now=free)
        (coordinate,) = one.mapped((reduced.coordinate + DEPTH,))
        one = replace(one, ref=one.mapped(read.index), tags={**one.tags, reduced.axis: coordinate})
        if not one.possible(self.program):
            return None
        traced = self.loads, self.cut
        before, self.through = self.through, self.via(ref)
        fault = self.buffer(one, site, ref.name)
        self.through = before
        if fault is None and traced == (self.loads, self.cut):
            return Unknown(f"what {ref.name} holds could not be traced to a load")
        return fault

    # ------------------------------------------------------------ memory

    def load(self, site: Site, load: Load, wanted: Wanted) -> Result | None:
        if load.indirect:
            return None
        exprs = (*load.src.index, *(c.expr for c in load.guard))
        dst = vector(load.dst.index, -1, load.width)
        over = (*load.over, (VECTOR, load.width))
        there = wanted.at(self.program, site, over, dst, exprs, suffix=self.suffix())
        index = there.mapped(vector(load.src.index, load.axis, load.width))
        guard = tuple(c.substitute(there.now) for c in load.guard)
        if load.src.name in self.axes:
            return self.reached(there, load.src.name, index, guard)
        if self.program.kernel.shared_buffer(load.src.name) is None:
            return None
        before, self.through = self.through, self.via(load)
        fault = self.buffer(replace(there, ref=index).under(*guard), site, load.src.name)
        self.through = before
        return fault

    def buffer(self, wanted: Wanted, read: Site, name: str) -> Result | None:
        """What each write of the buffer that may be the last one has put there."""
        writes = [s for s in self.program.sites if writes_to(s, name)]
        remote = [s for s in writes if isinstance(s.statement, RemoteStore)]
        others = [s for s in writes if self.roles and apart(self.program, read, s)]
        if reason := untraced(self.program, name):
            return reason
        if others and len(others) < len(writes):
            return Unknown(f"{name} is filled by the role that reads it and by another one")
        if remote:
            # That all is stored that is read is proved by itself.
            return self.from_others(wanted, read, remote, sent, "")
        if not others:
            return self.from_own(wanted, read, name)
        words = "the turns of the roles do not correspond: "
        fault = self.from_others(wanted, read, others, turns, words)
        reads = self.reads(read, name)
        if fault is None and not all(loaded_in_turn(self.program, self.found, a) for a in reads):
            what = read, name
            return in_no_turn(self.program, self.axes, wanted, what, others, self.suffix())
        return fault

    def from_others(
        self, wanted: Wanted, read: Site, writes: Sequence[Site], turn_of: Correspondence,
        words: str,
    ) -> Result | None:  # fmt: skip
        """What other roles or blocks write in the same turn."""
        for site in writes:
            link = turn_of(self.program, read, site)
            if isinstance(link, str):
                return Unknown(words + link)
            index, exprs, over = written(self.program.kernel, site)
            if not index or not self.enter(site):
                continue
            for there in wanted.across(
                self.program, site, over, index, exprs, link, suffix=self.suffix()
            ):
                if (fault := self.source(there, site)) is not None:
                    return fault
        return None

    def from_own(self, wanted: Wanted, read: Site, name: str) -> Result | None:
        """What the reader's role itself has written."""
        found = list(writers(self.program.sites, read, name))
        if self.roles and all(w.loop is None for w in found):
            found = found or newest(self.program.sites, self.found, read, name)
            if not found:
                return Unknown(f"which write of {name} is read is not plain")
            if not self.in_turn(read, name, found):
                return Unknown(f"{name} is read in a turn that does not write it")
            if self.written_over(read, name, found):
                return Unknown(f"{name} may be written over before it is read")
        for write in found:
            index, exprs, over = written(self.program.kernel, write.site)
            if not index or not self.enter(write.site):
                continue
            there = wanted.at(
                self.program, write.site, over, index, exprs, turn=write.turn, same_thread=False,
                suffix=self.suffix(),
            )  # fmt: skip
            there = there.under(*write.last(wanted.now, there.now))
            if (fault := self.source(there, write.site)) is not None:
                return fault
        return None

    def in_turn(self, read: Site, name: str, writes: Sequence[Write]) -> bool:
        """Whether all that is read was written in the same turn by one of these."""
        sites = [w.site for w in writes]
        own = [a for a in self.found if not a.writes or any(a.site is s for s in sites)]
        return all(written_in_turn(self.program, a, own) for a in self.reads(read, name))

    def written_over(self, read: Site, name: str, writes: Sequence[Write]) -> bool:
        """Whether writes after the read may come between it and one of these, in other turns."""
        later = [a for a in self.found if a.writes and a.ref.name == name]
        return any(
            written_over(self.program, a, later, w.site.frame)
            for a in self.reads(read, name) for w in writes
        )  # fmt: skip

    def reads(self, site: Site, name: str) -> list[Access]:
        return [a for a in self.found if a.site is site and a.ref.name == name and not a.writes]

    def source(self, there: Wanted, site: Site) -> Result | None:
        """What a write put into the elements wanted: `there` is at its points."""
        match site.statement:
            case Store() | RemoteStore() as s:
                guard = s.guard if isinstance(s, Store) else ()
                guard = tuple(c.substitute(there.now) for c in guard)
                ref = there.mapped(vector(s.src.index, -1, s.width))
                before = self.through
                self.through = self.via(s) if self.roles else before
                fault = self.register(replace(there, ref=ref).under(*guard), s.src.name)
                self.through = before
                return fault
            case AsyncCopy() as s if s.src.name in self.axes:
                guard = tuple(c.substitute(there.now) for c in s.guard)
                index = there.mapped(vector(s.src.index, s.src_axis, s.width))
                return self.reached(there, s.src.name, index, guard)
            case BulkLoad() as s if found := box_of(self.program.kernel, s):
                declared, box = found
                at = in_tensor(declared, added(s.coordinates, box.position))
                if declared.tensor in self.axes:
                    return self.boxed(there, declared.tensor, there.mapped(at))
            case _:
                pass
        return None

    def boxed(self, wanted: Wanted, name: str, index: tuple[Expr, ...]) -> Result | None:
        """As `reached`, of a box: what lies outside the tensor is zero, and counts nothing."""
        tensor = self.program.kernel.tensor(name)
        shape = () if tensor is None else tensor.shape
        within = inside(index, shape)
        if not wanted.possible(self.program):
            return None
        fault = self.reached(wanted, name, index, (), within)
        named = [wanted.tags.get(axis) for axis in self.axes[name]]
        if fault is not None or list(index) == named:
            return fault
        known = [(e, n) for e, n in zip(named, shape, strict=True) if e is not None]
        needed = inside([e for e, _ in known], [n for _, n in known])
        for c in within:
            point = wanted.find(self.program, *needed, less(c.expr, 0))
            if point is not None:
                values = point.bindings()
                element = tuple(e.evaluate(values) for e in index)
                place = ", ".join(map(str, element))
                pairs = zip(self.axes[name], named, strict=True)
                wants = ", ".join(f"{axis} = {e.evaluate(values)}" for axis, e in pairs if e)
                text = f"zeros for {name}[{place}], which is outside, where {wants} is wanted"
                return fault_at(wanted, text, element, point)
        return None

    def reached(
        self, wanted: Wanted, name: str, index: tuple[Expr, ...], guard: Guard,
        clip: Guard = (),
    ) -> Result | None:  # fmt: skip
        """The tensor's element at `index`, or a fill where the guard fails, is the one wanted.

        Only what lies where `clip` holds is looked at.
        """
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
            for differs in both:
                point = wanted.find(self.program, *guard, *clip, differs)
                if point is not None:
                    values = point.bindings()
                    one, two = loaded.evaluate(values), named.evaluate(values)
                    text = f"{name} is loaded at {axis} = {one} where {axis} = {two} is wanted"
                    return fault_at(wanted, text, (one, two), point)
        tensor = self.program.kernel.tensor(name)
        shape = tensor.shape if tensor is not None else ()
        right = (*inside(index, shape), *(equal(loaded, named) for _, loaded, named in pairs))
        for c in guard:
            for fails in (less(c.expr, 0), *((less(0, c.expr),) if c.equality else ())):
                point = wanted.find(self.program, *right, fails)
                if point is not None:
                    element = tuple(e.evaluate(point.bindings()) for e in index)
                    place = ", ".join(map(str, element))
                    text = f"a fill takes the place of {name}[{place}]"
                    return fault_at(wanted, text, element, point)
        return None


def _target(program: Program, store: BulkStore) -> str:
    declared = program.kernel.tensor_map(store.map)
    return "" if declared is None else declared.tensor
