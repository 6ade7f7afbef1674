"""What each stored element is computed from, register by register, as the kernel's text goes.

A *contribution* is a tensor that a value depends on, or an operation of one statement: an
elementwise one, or the terms of an axis. The structured program is run over sets of them, one for
each register element of a thread. What lies on one of several ways counts on all, so that no value
has fewer contributions than it should; elements that one statement combines, as the terms of a
sum, have to have theirs in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from tilewright.base.spans import Span
from tilewright.kernel.async_ops import (
    BulkLoad,
    BulkStore,
    Collect,
    Deposit,
    RemoteStore,
    TileRef,
    WarpgroupMma,
)
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCopy,
    Body,
    Cast,
    DataIndex,
    Decode,
    If,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mma,
    Mode,
    Over,
    Reduce,
    RegRef,
    Statement,
    Store,
    Value,
    When,
)
from tilewright.kernel.values import MERGED
from tilewright.lower.obligations.registers import (
    decode_into,
    indexing_names,
    registers_read,
)
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Place
from tilewright.target.model import Target

# ("tensor", name), ("op", name) or ("terms", operation, axis, ..) of any of the axes
Contribution = tuple[str, ...]
Path = tuple[int, ...]
Element = tuple[int, ...]
Env = Mapping[str, int]
_MOST_UNROLLED = 256


@dataclass(frozen=True, slots=True)
class Stored:
    """Elements of a tensor that are stored from one register element of a thread.

    `made` is a set as bits: see `Contributions.count`.
    """

    tensor: str
    made: int
    source: Source

    @property
    def register(self) -> str:
        at = ", ".join(map(str, self.source.element))
        return f"{self.source.fragment}[{at}]" if at else self.source.fragment


@dataclass(frozen=True, slots=True)
class Source:
    """A register element (empty where it is not known), the unrolled digits at which it is stored,
    and the line."""

    fragment: str
    element: Element
    at: tuple[tuple[str, int], ...]
    span: Span | None


@dataclass(frozen=True, slots=True)
class Contributions:
    """What is stored, and the bits of each contribution: one for each statement that makes it."""

    stored: tuple[Stored, ...]
    bits: Mapping[Contribution, int]

    def count(self, one: Stored, what: Contribution) -> int:
        """From how many statements an element has a contribution."""
        alike = [(*what[:2], axis) for axis in what[2:]] or [what]
        return (one.made & _union(self.bits.get(x, 0) for x in alike)).bit_count()


def contributions(kernel: Kernel, target: Target, turns: int = 1) -> Contributions:
    """Runs serial loops `turns` times, and the whole program as often: what a value gets by way
    of a later turn, or of a statement further down, takes more than one."""
    run = _Run(kernel, target, turns)
    for _ in range(turns):
        run.again()
    found = (replace(s, made=s.made | run.control) for s in run.stored)
    return Contributions(tuple(found), run.kinds)


@dataclass(slots=True)
class _Buffer:
    """The sets that were stored since the buffer was last read, each with one of its sources;
    what was ever stored, by registers and by copies."""

    newest: dict[int, Source] = field(default_factory=dict[int, Source])
    ever: int = 0
    copied: int = 0
    was_read: bool = False


class _Run:
    def __init__(self, kernel: Kernel, target: Target, turns: int) -> None:
        self.kernel = kernel
        self.target = target
        self.turns = turns
        self.indexing = indexing_names(kernel, target)
        self.kinds: dict[Contribution, int] = {}
        self.numbers: dict[tuple[Contribution, Path], int] = {}  # of each bit
        self.registers: dict[str, dict[Element, int]] = {}
        self.memory: dict[str, _Buffer] = {}
        self.control = 0
        self.stored: list[Stored] = []
        self.undo: list[dict[tuple[str, Element], int]] = []
        self.outputs = {t.name for t in kernel.tensors if t.mode is not Mode.IN}
        self.tensors = {t.name for t in kernel.tensors}

    def again(self) -> None:
        """From the beginning, with what memory may have got in the runs before."""
        self.stored.clear()
        self.registers.clear()
        for buffer in self.memory.values():
            buffer.newest.clear()
        self.body(self.kernel.body, (), {})

    # ------------------------------------------------------------ structure

    def body(self, body: Body, path: Path, env: dict[str, int]) -> None:
        for position, s in enumerate(body):
            here = (*path, position)
            match s:
                case Loop():
                    self.loop(s, here, env)
                case If():
                    self.either_way(s.body, here, env)
                case When():
                    self.control |= self.read(s.condition, env)
                    self.either_way(s.body, here, env)
                case Decode():
                    decode_into(s, env)
                case _:
                    self.leaf(s, here, env)

    def loop(self, loop: Loop, path: Path, env: dict[str, int]) -> None:
        known = loop.extent.const if loop.extent.is_const else None
        if loop.var in self.indexing and known is not None and known <= _MOST_UNROLLED:
            for value in range(known):
                self.body(loop.body, path, {**env, loop.var: value})
            return
        for _ in range(self.turns if known is None else min(self.turns, known)):
            self.body(loop.body, path, dict(env))

    def either_way(self, body: Body, path: Path, env: dict[str, int]) -> None:
        """What the body sets may also keep what it had before."""
        self.undo.append({})
        self.body(body, path, dict(env))
        for (name, element), before in self.undo.pop().items():
            self.set(name, element, before | self.registers[name][element])

    # ------------------------------------------------------------ statements

    def leaf(self, s: Statement, path: Path, env: Env) -> None:
        match s:
            case Assign():
                self.assign(s, self.own(path, s.value), env)
            case Reduce():
                self.sum(s, self.own(path, s.value) | self.terms(path, s), env)
            case Mma() | WarpgroupMma():
                self.multiply(s, self.terms(path, s), env)
            case Load():
                self.load(s, env)
            case Collect():
                self.put(s.over, s.dst, s.width, self.buffer(s.exchange).ever, env)
            case Store() | RemoteStore():
                self.store(s, s.dst.name, env)
            case Deposit():
                self.store(s, s.exchange, env)
            case AsyncCopy():
                self.buffer(s.dst.name).copied |= self.from_memory(s.src.name)
            case BulkLoad():
                self.buffer(s.dst.name).copied |= self.from_memory(self.mapped(s.map))
            case BulkStore():
                self.send(s)
            case DataIndex():
                self.control |= self.any_of(s.ref, env)
            case _:
                pass

    def assign(self, s: Assign, own: int, env: Env) -> None:
        refs = tuple(registers_read(s.value))
        names = _used(s.over, (s.dst, *refs))
        for digits in _instances(names):
            now = {**env, **digits}
            made = own | _union(self.any_of(r, now) for r in refs)
            self.write(s.dst, 1, made, now)

    def sum(self, s: Reduce, own: int, env: Env) -> None:
        refs = tuple(registers_read(s.value))
        kept, along = _used(s.over, (s.dst, *refs)), _used(s.along, refs)
        for digits in _instances(kept):
            now = {**env, **digits}
            terms = (
                _union(self.any_of(r, {**now, **more}) for r in refs) for more in _instances(along)
            )
            made = _common(terms) | own | self.any_of(s.dst, now)
            self.write(s.dst, 1, made, now)

    def multiply(self, s: Mma | WarpgroupMma, own: int, env: Env) -> None:
        atom = self.target.atom(s.atom)
        if atom is None:
            return
        for ref, layout in ((s.a, atom.a), (s.b, atom.b)):
            if isinstance(ref, TileRef):
                own |= self.from_memory(ref.name)
            else:
                count = layout.count(Place.REGISTER)
                own |= _common(
                    self.any_of(moved, {**env, **digits})
                    for digits in _instances(_used(s.over, (ref,)))
                    for moved in _run(ref, count)
                )
        for digits in _instances(_used(s.over, (s.d,))):
            now = {**env, **digits}
            for ref in _run(s.d, atom.d.count(Place.REGISTER)):
                self.write(ref, 1, own | self.any_of(ref, now), now)

    def load(self, s: Load, env: Env) -> None:
        made = self.from_memory(s.src.name)
        for digits in _instances(_used(s.over, (s.dst, *(c.ref for c in s.indirect)))):
            now = {**env, **digits}
            where = made | _union(self.any_of(c.ref, now) for c in s.indirect)
            self.write(s.dst, s.width, where, now)

    def put(self, over: Over, dst: RegRef, width: int, made: int, env: Env) -> None:
        for digits in _instances(_used(over, (dst,))):
            self.write(dst, width, made, {**env, **digits})

    def store(self, s: Store | RemoteStore | Deposit, name: str, env: Env) -> None:
        buffer = self.buffer(name)
        if buffer.was_read:
            buffer.newest.clear()
            buffer.was_read = False
        for digits in _instances(_used(s.over, (s.src,))):
            now = {**env, **digits}
            for ref in _run(s.src, s.width):
                made = self.any_of(ref, now)
                buffer.ever |= made
                if made not in buffer.newest:
                    element = _element(ref.index, now) or ()
                    source = Source(ref.name, element, tuple(now.items()), s.span)
                    buffer.newest[made] = source
                    if name in self.outputs:
                        self.stored.append(Stored(name, made, source))

    def send(self, s: BulkStore) -> None:
        buffer, tensor = self.buffer(s.src.name), self.mapped(s.map)
        buffer.was_read = True
        later = {buffer.ever: Source(s.src.name, (), (), s.span)}  # stored further down
        for made, source in (buffer.newest or later).items():
            self.stored.append(Stored(tensor, made | buffer.copied, source))

    # ------------------------------------------------------------ sets

    def own(self, path: Path, value: Value) -> int:
        """The elementwise operations of a value; those that join lanes do not count."""
        found = enumerate(_operations(value))
        return _union(self.bit(("op", name), (*path, n)) for n, name in found)

    def terms(self, path: Path, s: Reduce | Mma | WarpgroupMma) -> int:
        op = s.op if isinstance(s, Reduce) else "add"
        return _union(self.bit(("terms", op, r.axis), path) for r in s.reduces)

    def bit(self, what: Contribution, path: Path) -> int:
        one = what[:2] if what[0] == "terms" else what  # of all the axes that a statement counts
        bit = 1 << self.numbers.setdefault((one, path), len(self.numbers))
        self.kinds[what] = self.kinds.get(what, 0) | bit
        return bit

    def buffer(self, name: str) -> _Buffer:
        return self.memory.setdefault(name, _Buffer())

    def mapped(self, name: str) -> str:
        declared = self.kernel.tensor_map(name)
        return "" if declared is None else declared.tensor

    def from_memory(self, name: str) -> int:
        buffer = self.buffer(name)
        buffer.was_read = True
        made = _common(buffer.newest) if buffer.newest else buffer.ever
        own = self.bit(("tensor", name), ()) if name in self.tensors else 0
        return own | made | buffer.copied

    def read(self, value: Value, env: Env) -> int:
        return _union(self.any_of(r, env) for r in registers_read(value))

    def any_of(self, ref: RegRef, env: Env) -> int:
        """The set of a register, or of all of the fragment where its index is not known."""
        held = self.registers.get(ref.name, {})
        element = _element(ref.index, env)
        if element is None:
            return _union(held.values())
        return held.get(element, 0)

    def write(self, ref: RegRef, width: int, made: int, env: Env) -> None:
        element = _element(ref.index, env)
        if element is None:  # any of the fragment's may be meant
            for one, before in list(self.registers.get(ref.name, {}).items()):
                self.set(ref.name, one, before | made)
            return
        for step in range(width):
            self.set(ref.name, (*element[:-1], element[-1] + step), made)

    def set(self, name: str, element: Element, made: int) -> None:
        held = self.registers.setdefault(name, {})
        if self.undo:
            self.undo[-1].setdefault((name, element), held.get(element, 0))
        held[element] = made


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _common(sets: Iterable[int]) -> int:
    """What all of the sets have; nothing where there are none."""
    found: int | None = None
    for one in sets:
        found = one if found is None else found & one
    return found or 0


def _operations(value: Value) -> Iterator[str]:
    """The names of its operations; a merged one's too, as often as it stands for them."""
    match value:
        case Apply(op=op, args=args):
            if not any(isinstance(a, LaneXor | LaneRead) for a in args):
                yield from (op, *MERGED.get(op, ()))
            for argument in args:
                yield from _operations(argument)
        case Cast(value=inner):
            yield from _operations(inner)
        case _:
            pass


def _used(over: Over, refs: Sequence[RegRef]) -> Over:
    """The digits that the references use: the other ones change nothing."""
    names = {n for ref in refs for e in ref.index for n in e.variables()}
    return tuple((n, extent) for n, extent in over if n in names)


def _instances(over: Over) -> Iterator[dict[str, int]]:
    names = [n for n, _ in over]
    for values in product(*(range(extent) for _, extent in over)):
        yield dict(zip(names, values, strict=True))


def _run(ref: RegRef, count: int) -> Iterator[RegRef]:
    *outer, last = ref.index
    return (RegRef(ref.name, (*outer, last + step)) for step in range(count))


def _element(index: Sequence[Expr], env: Env) -> Element | None:
    try:
        return tuple(e.evaluate(env) for e in index)
    except KeyError:
        return None
