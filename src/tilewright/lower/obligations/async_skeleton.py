"""The part of a kernel that orders its agents: what an execution of its synchronisation reads.

Kept are the asynchronous statements, barriers, accesses of shared memory, and whatever touches
registers of warpgroup instructions, with the loops, guards and decodes that these need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from tilewright.kernel.async_ops import (
    Announce,
    Arrive,
    AsyncStatement,
    Await,
    BulkLoad,
    BulkStore,
    Collect,
    Deposit,
    NamedBarrier,
    PhaseWait,
    RemoteStore,
    TileRef,
    WarpgroupMma,
)
from tilewright.kernel.ops import (
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    Statement,
    Store,
    When,
    walk,
)
from tilewright.kernel.refs import Over, RegRef
from tilewright.kernel.scopes import is_warp_wide, phase_ref
from tilewright.lower.obligations.async_footprints import (
    Memory,
    ThreadFootprint,
    instances,
)
from tilewright.lower.obligations.async_steps import (
    BoxStep,
    DecodeStep,
    IfStep,
    LoopStep,
    MatrixStep,
    PlainStep,
    Registers,
    RemoteStep,
    Step,
    Taken,
    Tile,
    Touch,
)
from tilewright.lower.obligations.async_values import Cell, Condition, Env, Lanes
from tilewright.lower.obligations.registers import uses
from tilewright.lower.obligations.scope import Program
from tilewright.lower.obligations.shared_turns import shared_turns
from tilewright.poly.expr import Constraint, Div, Expr, Guard, Term, at_least
from tilewright.target.model import MmaAtom, Target

_EXCHANGED = Deposit | Announce | Await | Collect  # registers alone; the rest see `exchanges`


@dataclass(frozen=True, slots=True)
class Size:
    """What is known at launch only: an expression of symbols and of digits of the block, or where
    there is none, any number up to `high`."""

    expr: Expr | None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A kernel's synchronisation. `needed` are the variables that it depends on.

    `sizes` are those of them that stand for what is known at launch only: a symbol, or a quotient
    or remainder of symbols and of digits of the block.
    """

    kernel: Kernel
    target: Target
    memory: Memory
    body: tuple[Step, ...]
    needed: frozenset[str]
    sizes: Mapping[str, Size]
    threads: tuple[Env, ...]  # of each warp; kept, so that what is computed from them is too
    taken: Taken

    @staticmethod
    def of(kernel: Kernel, target: Target) -> Skeleton:
        memory = Memory(kernel)
        builder = _Builder(kernel, target, memory)
        body = builder.steps(kernel.body)
        taken: dict[int, dict[int, tuple[str, Cell]]] = {}
        for one in shared_turns(Program.of(kernel, target)):
            loads = taken.setdefault(id(one.read.statement), {})
            loads[id(one.load.statement)] = one.counter, builder.cell(one.turn)
        needed = set(builder.names)
        decodes = [s for s in walk(kernel.body) if isinstance(s, Decode)]
        for decode in reversed(decodes):
            if any(name in needed for name, _ in decode.digits):
                needed |= decode.source.variables()
        sizes = {n: e for n, e in builder.sizes.items() if n in needed}
        steps = _decoded(body, needed)
        return Skeleton(
            kernel, target, memory, steps, frozenset(needed), sizes, _threads(kernel), taken
        )

    def env(self, block: int, warp: int) -> Env:
        """The counters of one warp."""
        env = Env(self.threads[warp])
        env["block"] = block
        return env


def _names(cells: tuple[tuple[Cell, ...], ...]) -> tuple[str, ...]:
    return tuple(sorted({name for index in cells for cell in index for name in cell.names}))


def _cluster_digits(kernel: Kernel) -> Iterator[str]:
    """Digits of the block that are alike in all blocks of a cluster."""
    for s in walk(kernel.body):
        if isinstance(s, Decode) and s.source == Expr.of("block"):
            below = 1
            for name, extent in reversed(s.digits):
                if kernel.cluster == 1 or (below and below % kernel.cluster == 0):
                    yield name
                below = below * extent.const if extent.is_const else 0


def _threads(kernel: Kernel) -> tuple[Env, ...]:
    size = kernel.warp_size
    lane = Lanes(tuple(range(size)))
    return tuple(
        Env(
            {"warp": warp, "lane": lane,
             "thread": Lanes(tuple(range(warp * size, (warp + 1) * size)))}
        )
        for warp in range(kernel.warps)
    )  # fmt: skip


class _Builder:
    def __init__(self, kernel: Kernel, target: Target, memory: Memory) -> None:
        self.kernel = kernel
        self.target = target
        self.memory = memory
        self.names: set[str] = set()
        self.lanes = kernel.warp_size
        self.sizes: dict[str, Size] = {}
        self.alias: dict[str, Expr | int | str] = {}
        self._symbols = frozenset(s.name for s in kernel.symbols)
        self._digits = frozenset(_cluster_digits(kernel))
        self._launch = self._symbols | self._digits
        self.matrix = {
            ref.name
            for s in walk(kernel.body)
            if isinstance(s, WarpgroupMma)
            for ref in (s.d, s.a)
            if isinstance(ref, RegRef)
        }

    def size(self, expr: Expr) -> Expr:
        """The expression with each part that is known at launch only as one variable."""
        if self.alias:
            expr = expr.substitute(self.alias)
        if not expr.variables() & self._symbols:
            return expr
        result = Expr.of(expr.const)
        for term, coefficient in expr.terms:
            result = result + self._size_term(term) * coefficient
        return result

    def _size_term(self, term: Term) -> Expr:
        whole = Expr(((term, 1),))
        if isinstance(term, str):
            if term in self._symbols:
                self.sizes[term] = Size(whole)
            return whole
        names = term.num.variables()
        nested = any(not isinstance(t, str) for t, _ in term.num.terms)
        if names & self._symbols and names <= self._launch and not nested:
            self.sizes[str(term)] = Size(whole)
            return Expr.of(str(term))
        inner = self.size(term.num)
        return inner // term.den if isinstance(term, Div) else inner % term.den

    def guard(self, guard: Guard) -> Condition:
        made = Condition(tuple(self._row(c) for c in guard), self.lanes)
        self.names.update(made.names)
        return made

    def _row(self, c: Constraint) -> Constraint:
        """A constraint; one that only a launch and the block decide is one variable, 0 or 1."""
        c = c.substitute(self.alias) if self.alias else c
        names = c.expr.variables()
        if names & self._symbols and names <= self._launch and names & self._digits:
            name = f"whether {c}"
            self.sizes[name] = Size(None, 1)
            return at_least(name, 1)
        return Constraint(self.size(c.expr), c.equality)

    def cell(self, expr: Expr) -> Cell:
        made = Cell(self.size(expr))
        self.names.update(made.names)
        return made

    def steps(self, body: Body) -> tuple[Step, ...]:
        outer = dict(self.alias)
        found = [self.step(s) for s in body]
        self.alias = outer
        return tuple(s for s in found if s is not None)

    def step(self, s: Statement) -> Step | None:
        match s:
            case Decode(source=source, digits=digits):
                if len(digits) == 1 and source != Expr.of("block"):
                    self.alias[digits[0][0]] = source.substitute(self.alias)
                    return None
                for name, _ in digits:
                    self.alias.pop(name, None)
                return DecodeStep(replace(s, source=source.substitute(self.alias)))
            case Loop(var=var, extent=extent):
                self.alias.pop(var, None)
                inner = self.steps(s.body)
                if all(isinstance(i, DecodeStep) for i in inner):
                    return None
                return LoopStep(s, {"extent": self.cell(extent)}, var, inner)
            case If(guard=guard):
                inner = self.steps(s.body)
                if all(isinstance(i, DecodeStep) for i in inner):
                    return None
                return IfStep(s, {}, self.guard(guard), inner)
            case When():
                inner = self.steps(s.body)
                if all(isinstance(i, DecodeStep) for i in inner):
                    return None
                return Step(s)
            case BulkLoad(dst=ref, map=name, over=over) | BulkStore(src=ref, map=name, over=over):
                return self._box(s, ref, name, over)
            case RemoteStore():
                return self._remote(s)
            case WarpgroupMma():
                return self._matrix(s)
            case AsyncCopy() | Barrier() | AsyncCommit() | AsyncWait():
                return self._plain(s) if isinstance(s, AsyncCopy) else Step(s)
            case _ if isinstance(s, AsyncStatement) and not isinstance(s, _EXCHANGED):
                return Step(s, dict(self._values(s)))
            case _:
                return self._plain(s)

    def _values(self, s: Statement) -> Iterator[tuple[str, Cell]]:
        phase = phase_ref(s)
        if phase is not None:
            yield "phase", self.cell(phase.index)
        match s:
            case Arrive(block=Expr() as block) | RemoteStore(block=block):
                yield "block", self.cell(block)
            case PhaseWait(parity=parity):
                yield "parity", self.cell(parity)
            case NamedBarrier(barrier=barrier):
                yield "barrier", self.cell(barrier)
            case BulkLoad(multicast=Expr() as mask):
                yield "multicast", self.cell(mask)
            case _:
                pass

    def _box(self, s: BulkLoad | BulkStore, ref: MemRef, name: str, over: Over) -> BoxStep:
        declared = next(m for m in self.kernel.maps if m.name == name)
        count = 1
        for n in declared.box:
            count *= n
        boxes = tuple(
            tuple(self.cell(i.substitute(values)) for i in ref.index) for values in instances(over)
        )
        size = count * self.memory.place(ref.name).buffer.dtype.bytes
        return BoxStep(s, dict(self._values(s)), ref.name, boxes, count, size)

    def _placed(self, ref: MemRef) -> MemRef:
        return replace(ref, index=tuple(self.size(i) for i in ref.index))

    def _remote(self, s: RemoteStore) -> RemoteStep:
        place = ThreadFootprint(self.memory, self._placed(s.dst), s.over, s.width, -1)
        self.names |= place.names
        size = s.width * prod(n for _, n in s.over)
        size *= self.memory.place(s.dst.name).buffer.dtype.bytes
        return RemoteStep(s, dict(self._values(s)), place, tuple(self._registers(s)), size)

    def _matrix(self, s: WarpgroupMma) -> MatrixStep:
        atom = self.target.atom(s.atom)
        tiles: list[Tile] = []
        if atom is not None:
            if isinstance(s.a, TileRef):
                tiles.append(self._tile(s.a, s.over, atom.m, atom))
            tiles.append(self._tile(s.b, s.over, atom.n, atom))
        return MatrixStep(s, {}, tuple(tiles), tuple(self._registers(s)))

    def _tile(self, ref: TileRef, over: Over, rows: int, atom: MmaAtom) -> Tile:
        index = tuple(
            tuple(self.cell(i.substitute(values)) for i in ref.index) for values in instances(over)
        )
        return Tile(ref, index, {ref.rows: rows, ref.depth: atom.k}, _names(index))

    def _registers(self, s: Statement) -> Iterator[Registers]:
        for use in uses(s, self.target):
            if use.ref.name not in self.matrix:
                continue
            shape = self.kernel.fragment(use.ref.name).shape
            strides = [1]
            for extent in reversed(shape[1:]):
                strides.insert(0, strides[0] * extent)
            cells = tuple(
                tuple(self.cell(i.substitute(values)) for i in use.ref.index)
                for values in instances(use.over)
            )
            yield Registers(use, cells, tuple(strides), _names(cells))

    def _plain(self, s: Statement) -> PlainStep | None:
        touches = tuple(self._touches(s))
        registers = tuple(self._registers(s))
        if not touches and not registers:
            return None
        return PlainStep(s, {}, touches, registers, is_warp_wide(s))

    def _touches(self, s: Statement) -> Iterator[Touch]:
        match s:
            case Load(src=ref, axis=axis):
                writes, gathered = False, [c.axis for c in s.indirect]
            case Store(dst=ref, axis=axis):
                writes, gathered = True, list[int]()
            case AsyncCopy(dst=ref, dst_axis=axis):
                writes, gathered = True, list[int]()
            case _:
                return
        if ref.name not in self.memory.places:
            return
        made = ThreadFootprint(self.memory, self._placed(ref), s.over, s.width, axis, gathered)
        self.names |= made.names
        # A copy whose guard fails writes zeros.
        guard = () if isinstance(s, AsyncCopy) else s.guard
        digits = {d for d, _ in s.over}
        plain = tuple(c for c in guard if not c.expr.variables() & digits)
        yield Touch(made, self.guard(plain), len(plain) == len(guard), writes)


def _decoded(body: Iterable[Step], needed: set[str]) -> tuple[Step, ...]:
    """The steps, those decodes left out that nobody needs."""
    result: list[Step] = []
    for step in body:
        match step:
            case DecodeStep(statement=Decode(source=source, digits=digits)):
                made = _digits(digits, needed)
                if made:
                    result.append(DecodeStep(step.statement, {"source": Cell(source)}, made))
            case LoopStep():
                step.body = _decoded(step.body, needed)
                result.append(step)
            case IfStep():
                step.body = _decoded(step.body, needed)
                result.append(step)
            case _:
                result.append(step)
    return tuple(result)


def _digits(
    digits: tuple[tuple[str, Expr], ...], needed: set[str]
) -> tuple[tuple[str, tuple[Cell, ...], Cell | None], ...]:
    below: tuple[Cell, ...] = ()
    found: list[tuple[str, tuple[Cell, ...], Cell | None]] = []
    for position in range(len(digits) - 1, -1, -1):
        name, extent = digits[position]
        cell = Cell(extent)
        if name in needed:
            found.append((name, below, cell if position else None))
        below = (*below, cell)
    return tuple(found)
