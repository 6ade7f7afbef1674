"""An independent judge for the proofs: runs a kernel on concrete sizes, element by element.

All threads of a block go through the structured program in lockstep, statement by statement.
Values are not numbers but the multiset of reduction terms that they hold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Cast,
    Decode,
    If,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    MemRef,
    Mma,
    Mode,
    Over,
    Read,
    Reduce,
    RegRef,
    Store,
    Value,
    walk,
)
from tilewright.poly.expr import Expr, Guard
from tilewright.poly.layout import Place
from tilewright.poly.prove import Kind
from tilewright.target.model import Target

Terms = Counter[tuple[str, int]]


@dataclass
class Touch:
    """One access to an element: from its issue to when it is done, in steps and in epochs."""

    thread: int
    writes: bool
    step: int
    epoch: int
    done_step: int = -1
    done_epoch: int = -1  # -1: still in flight

    def meets(self, other: Touch) -> bool:
        if not (self.writes or other.writes):
            return False
        ends = [10**9 if t.done_epoch < 0 else t.done_epoch for t in (self, other)]
        if self.thread == other.thread:
            first, second = sorted((self, other), key=lambda t: t.step)
            # An access that is over at once is ordered before whatever its thread does next.
            done = 10**9 if first.done_epoch < 0 else first.done_step
            return first is not second and first.step != second.step and second.step < done
        return self.epoch <= ends[1] and other.epoch <= ends[0]


@dataclass
class Findings:
    """What went wrong, by kind, each with one example."""

    faults: dict[Kind, str] = field(default_factory=dict)
    written: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)

    def add(self, kind: Kind, text: str) -> None:
        self.faults.setdefault(kind, text)


def judge(kernel: Kernel, target: Target, sizes: Mapping[str, int]) -> Findings:
    """Run every block and collect every fault."""
    findings = Findings()
    grid = [e.evaluate(sizes) for e in kernel.grid]
    for s in walk(kernel.body):
        whole = isinstance(s, Decode) and str(s.source) == "block"
        if whole and prod(e.evaluate(sizes) for _, e in s.digits) != prod(grid):
            findings.add(Kind.DECODE, "the digits' box is not the grid's")
    for block in range(prod(grid)):
        _Block(kernel, target, sizes, block, findings).run()
    for tensor in kernel.tensors:
        if tensor.mode is Mode.IN:
            continue
        shape = [e.evaluate(sizes) for e in tensor.shape]
        for element in product(*(range(n) for n in shape)):
            count = findings.written[tensor.name, element]
            if count > 1 or (count == 0 and tensor.mode is Mode.OUT):
                findings.add(Kind.COVERAGE, f"{tensor.name}{element} written {count} times")
    return findings


class _Block:
    def __init__(
        self, kernel: Kernel, target: Target, sizes: Mapping[str, int], block: int, out: Findings
    ) -> None:
        self.kernel, self.target, self.out = kernel, target, out
        self.sizes = dict(sizes)
        ws = kernel.warp_size
        self.env = [
            {**sizes, "block": block, "thread": t, "warp": t // ws, "lane": t % ws}
            for t in range(kernel.threads)
        ]
        self.registers: list[dict[tuple[str, tuple[int, ...]], Terms]] = [
            {} for _ in range(kernel.threads)
        ]
        self.memory: dict[tuple[str, tuple[int, ...]], list[Touch]] = defaultdict(list)
        self.open: list[list[Touch]] = [[] for _ in range(kernel.threads)]
        self.groups: list[list[list[Touch]]] = [[] for _ in range(kernel.threads)]
        self.contents: dict[tuple[str, tuple[int, ...]], Terms] = {}
        self.step = 0
        self.epoch = 0

    def run(self) -> None:
        self.body(self.kernel.body, list(range(self.kernel.threads)))
        written = {n for t in self.kernel.tensors if t.mode is not Mode.IN for n in (t.name,)}
        watched = {s.name for s in self.kernel.shared} | written
        for (name, element), touches in self.memory.items():
            if name not in watched:
                continue
            if name in written and all(t.writes for t in touches):
                continue  # the coverage proof speaks of these
            pairs = ((a, b) for i, a in enumerate(touches) for b in touches[i:])
            if any(a.meets(b) for a, b in pairs if a is not b):
                self.out.add(Kind.RACE, f"{name}{element}")

    def body(self, body: Body, threads: list[int]) -> None:
        for statement in body:
            self.step += 1
            self.statement(statement, threads)

    def statement(self, s: object, threads: list[int]) -> None:
        match s:
            case Decode():
                for t in threads:
                    self.decode(s, self.env[t])
            case Loop():
                extents = {t: s.extent.evaluate(self.env[t]) for t in threads}
                for value in range(max(extents.values(), default=0)):
                    active = [t for t in threads if value < extents[t]]
                    for t in active:
                        self.env[t][s.var] = value
                    self.body(s.body, active)
            case If():
                inside = [t for t in threads if holds(s.guard, self.env[t])]
                if inside:
                    self.body(s.body, inside)
            case Barrier():
                if len(threads) != self.kernel.threads:
                    self.out.add(Kind.BARRIER, f"{len(threads)} threads arrive")
                self.epoch += 1
            case AsyncCommit():
                for t in threads:
                    self.groups[t].append(self.open[t])
                    self.open[t] = []
            case AsyncWait():
                for t in threads:
                    done = self.groups[t][: len(self.groups[t]) - s.pending]
                    for touch in (x for group in done for x in group if x.done_epoch < 0):
                        touch.done_epoch, touch.done_step = self.epoch, self.step
            case _:
                self.leaf(s, threads)

    def decode(self, s: Decode, env: dict[str, int]) -> None:
        value = s.source.evaluate(env)
        for name, extent in reversed(s.digits[1:]):
            value, env[name] = divmod(value, extent.evaluate(env))
        name, extent = s.digits[0]
        env[name] = value
        if not 0 <= value < extent.evaluate(env):
            self.out.add(Kind.DECODE, f"{s.source} passes its digits")

    # ------------------------------------------------------------ leaves

    def leaf(self, s: object, threads: list[int]) -> None:
        updates: list[tuple[int, tuple[str, tuple[int, ...]], Terms]] = []
        for t in threads:
            match s:
                case Assign(over=over, dst=dst, value=value):
                    # All lanes read before any writes: a lane step is one instruction.
                    for env in self.instances(over, t):
                        updates.append((t, self.register(dst, env), self.value(value, env, t)))
                case Reduce():
                    self.reduce(s, t)
                case Mma():
                    self.mma(s, t)
                case Load():
                    self.load(s, t)
                case Store():
                    self.store(s, t)
                case AsyncCopy():
                    self.copy(s, t)
                case _:
                    raise NotImplementedError(type(s).__name__)
        for t, key, value in updates:
            self.registers[t][key] = value

    def reduce(self, s: Reduce, t: int) -> None:
        for env in self.instances((*s.over, *s.along), t):
            key = self.register(s.dst, env)
            total = self.read(key, t) + self.value(s.value, env, t)
            for r in s.reduces:
                self.count(total, r.axis, r.coordinate, r.extent, env, 1)
            self.registers[t][key] = total

    def load(self, s: Load, t: int) -> None:
        for env in self.instances(s.over, t):
            for i in range(s.width):
                value = Terms()
                if holds(s.guard, env):
                    value = self.touch(s.src, env, t, s.axis, i, writes=False)
                self.registers[t][self.register(s.dst, env, i)] = value

    def store(self, s: Store, t: int) -> None:
        for env in self.instances(s.over, t):
            for i in range(s.width):
                value = self.read(self.register(s.src, env, i), t)
                if holds(s.guard, env):
                    self.touch(s.dst, env, t, s.axis, i, writes=True, value=value)

    def copy(self, s: AsyncCopy, t: int) -> None:
        for env in self.instances(s.over, t):
            for i in range(s.width):
                if holds(s.guard, env):
                    self.touch(s.src, env, t, s.src_axis, i, writes=False, flight=True)
                self.touch(s.dst, env, t, s.dst_axis, i, writes=True, flight=True)

    def mma(self, s: Mma, t: int) -> None:
        atom = self.target.atom(s.atom)
        assert atom is not None
        for env in self.instances(s.over, t):
            for ref, layout in ((s.a, atom.a), (s.b, atom.b)):
                for i in range(layout.count(Place.REGISTER)):
                    self.read(self.register(ref, env, i), t)
            for i in range(atom.d.count(Place.REGISTER)):
                key = self.register(s.d, env, i)
                total = self.read(key, t).copy()
                for r in s.reduces:
                    self.count(total, r.axis, r.coordinate, r.extent, env, atom.k)
                self.registers[t][key] = total

    def count(
        self, total: Terms, axis: str, start: Expr, extent: Expr, env: Mapping[str, int], run: int
    ) -> None:
        first, size = start.evaluate(env), extent.evaluate(env)
        for k in range(first, first + run):
            if 0 <= k < size:
                total[axis, k] += 1

    def instances(self, over: Over, t: int) -> Iterator[dict[str, int]]:
        for values in product(*(range(n) for _, n in over)):
            yield {**self.env[t], **dict(zip((n for n, _ in over), values, strict=True))}

    def register(
        self, ref: RegRef, env: Mapping[str, int], run: int = 0
    ) -> tuple[str, tuple[int, ...]]:
        *outer, last = (e.evaluate(env) for e in ref.index)
        index = (*outer, last + run)
        shape = self.kernel.fragment(ref.name).shape
        if any(not 0 <= i < n for i, n in zip(index, shape, strict=True)):
            self.out.add(Kind.BOUNDS, f"register {ref.name}{index}")
        return ref.name, index

    def read(self, key: tuple[str, tuple[int, ...]], t: int) -> Terms:
        if key not in self.registers[t]:
            self.out.add(Kind.UNWRITTEN, f"register {key}")
        return self.registers[t].get(key, Terms())

    def value(self, value: Value, env: Mapping[str, int], t: int) -> Terms:
        match value:
            case Read(ref=ref):
                return self.read(self.register(ref, env), t)
            case LaneXor(ref=ref, mask=mask):
                return self.read(self.register(ref, env), t ^ mask)
            case LaneRead(ref=ref, lane=lane):
                size = self.kernel.warp_size
                return self.read(self.register(ref, env), t // size * size + lane.evaluate(env))
            case Apply(op=op, args=args):
                parts = [self.value(a, env, t) for a in args]
                if op in ("max", "min"):
                    return parts[0] | parts[1]
                return sum(parts, Terms())
            case Cast(value=inner):
                return self.value(inner, env, t)
            case _:
                return Terms()

    def touch(
        self, ref: MemRef, env: Mapping[str, int], t: int, axis: int, run: int,
        *, writes: bool, value: Terms | None = None, flight: bool = False,
    ) -> Terms:  # fmt: skip
        index = [e.evaluate(env) for e in ref.index]
        index[axis] += run
        element = tuple(index)
        buffer = self.kernel.tensor(ref.name) or self.kernel.shared_buffer(ref.name)
        assert buffer is not None
        shape = [Expr.of(e).evaluate(self.sizes) for e in buffer.shape]
        if any(not 0 <= i < n for i, n in zip(element, shape, strict=True)):
            self.out.add(Kind.BOUNDS, f"{ref.name}{element}")
            return Terms()
        key = (ref.name, element)
        touch = Touch(t, writes, self.step, self.epoch)
        if flight:
            self.open[t].append(touch)
        else:
            touch.done_step, touch.done_epoch = self.step, self.epoch
        is_shared = self.kernel.shared_buffer(ref.name) is not None
        tensor = self.kernel.tensor(ref.name)
        known = any(x.writes for x in self.memory[key])
        if not writes and not known and (is_shared or (tensor and tensor.mode is Mode.OUT)):
            self.out.add(Kind.UNWRITTEN, f"{ref.name}{element}")
        self.memory[key].append(touch)
        if writes:
            self.contents[key] = value or Terms()
            if not is_shared:
                self.out.written[key] += 1
                self.check_terms(ref.name, element, value or Terms())
        return self.contents.get(key, Terms())

    def check_terms(self, name: str, element: tuple[int, ...], terms: Terms) -> None:
        extents: dict[str, int] = {}
        for s in self.reducing():
            for r in s.reduces:
                extents[r.axis] = r.extent.evaluate(self.sizes)
        for axis, extent in extents.items():
            for k in range(extent):
                if terms[axis, k] != 1:
                    text = f"{name}{element}: {axis}={k} counted {terms[axis, k]} times"
                    self.out.add(Kind.REDUCTION, text)
                    return

    def reducing(self) -> Iterator[Reduce | Mma]:
        for s in walk(self.kernel.body):
            if isinstance(s, Reduce | Mma):
                yield s


def holds(guard: Guard, env: Mapping[str, int]) -> bool:
    for c in guard:
        value = c.expr.evaluate(env)
        if (value != 0) if c.equality else (value < 0):
            return False
    return True
