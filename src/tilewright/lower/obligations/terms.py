"""Runs the part of a kernel that scans, on sets of terms in place of numbers.

Every register of every thread of a block holds a set of terms: those along one line of the
scanned axis, as bits of a number by their position in the tile. Combining two sets is their
union. It is an error to combine two lines, or, where the operation counts twice (add, mul), two
sets that share a term. What a value cannot be followed through makes it unknown; such errors
count only where their value is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from tilewright.base.dtypes import DType
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Cast,
    Const,
    Decode,
    Holds,
    If,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Over,
    Part,
    Read,
    Reduce,
    RegRef,
    Scanned,
    Statement,
    Store,
    Value,
    When,
    walk,
)
from tilewright.poly.expr import Div, Expr, Guard, Mod
from tilewright.poly.lemmas import decode

IDEMPOTENT = ("max", "min")
Line = tuple[int, ...]  # which scan of the tile: its coordinates on the other axes


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one line that a value has combined; the empty set belongs to every line."""

    line: Line
    mask: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A value that is not a set of terms. `wrong`: it is known to be a wrong one."""

    reason: str
    wrong: bool = False


Held = Terms | Lost
NOTHING = Terms((), 0)
Key = tuple[str, tuple[int, ...]]  # a register or an element of a shared buffer


class StuckError(Exception):
    """The kernel does something that sets of terms cannot follow."""


@dataclass(slots=True)
class State:
    """What each thread holds in each register, and shared memory."""

    registers: dict[Key, list[Held]] = field(default_factory=dict[Key, "list[Held]"])
    shared: dict[Key, Held] = field(default_factory=dict[Key, Held])

    def copy(self) -> State:
        return State(dict(self.registers), dict(self.shared))


@dataclass(frozen=True, slots=True)
class Claim:
    """An assignment that claims a part of the terms, and what it holds in each thread."""

    scan: Scanned
    lines: list[Line]
    positions: list[int]
    held: list[Held]


class TermMachine:
    """Executes statements for all threads of one block. `relevant` names what is followed.

    Block digits, serial counters and symbols are alike for all threads: positions are counted
    from where they put the tile. `around` holds the identities of the statements around the
    result, whose guards hold whenever it is reached; `loop` is that over the tiles.
    """

    def __init__(
        self, kernel: Kernel, op: str, relevant: frozenset[str],
        neutral: frozenset[float | int], around: frozenset[int], loop: Loop | None,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.op = op
        self.relevant = relevant
        self.neutral = neutral
        self.around = around
        self.turning = frozenset[str]() if loop is None else _turning(loop)
        self.threads = range(kernel.threads)
        self.digits = _thread_digits(kernel)
        self.alike = alike(kernel)
        self._numbers: dict[tuple[Expr, tuple[tuple[str, int], ...]], list[int]] = {}

    # ------------------------------------------------------------ numbers

    def numbers(self, expr: Expr, env: Mapping[str, int]) -> list[int]:
        """The value of an expression in every thread."""
        used = tuple((n, env[n]) for n in sorted(expr.variables()) if n in env)
        if (expr, used) not in self._numbers:
            self._numbers[expr, used] = self._evaluated(expr, env)
        return self._numbers[expr, used]

    def _evaluated(self, expr: Expr, env: Mapping[str, int]) -> list[int]:
        total = [expr.const for _ in self.threads]
        for term, coefficient in expr.terms:
            match term:
                case str() if term in env:
                    value = [env[term] for _ in self.threads]
                case str() if term in self.digits:
                    value = self.digits[term]
                case Div(num, den):
                    value = [n // den for n in self.numbers(num, env)]
                case Mod(num, den):
                    value = [n % den for n in self.numbers(num, env)]
                case _:
                    raise StuckError(f"{term} is no digit of a thread")
            total = [a + coefficient * b for a, b in zip(total, value, strict=True)]
        return total

    def number(self, expr: Expr, env: Mapping[str, int]) -> int:
        try:
            return expr.evaluate(env)
        except KeyError as error:
            raise StuckError(f"a register is chosen by {error.args[0]}") from error

    def place(self, expr: Expr, env: Mapping[str, int]) -> list[int]:
        """A coordinate within the tile: without the parts that are alike for all threads."""
        return self.numbers(expr - self.common(expr), env)

    def common(self, expr: Expr) -> Expr:
        """The part of a coordinate that puts the tile in its place."""
        return common(expr, self.alike)

    def holds(self, guard: Guard, env: Mapping[str, int]) -> list[bool]:
        found = [True for _ in self.threads]
        for c in guard:
            numbers = self.numbers(c.expr, env)
            found = [
                f and (n == 0 if c.equality else n >= 0)
                for f, n in zip(found, numbers, strict=True)
            ]
        return found

    # ------------------------------------------------------------ values

    def value(self, value: Value, state: State, env: Mapping[str, int]) -> list[Held]:
        match value:
            case Const(number):
                return [self.constant(number)] * len(self.threads)
            case Read(ref):
                return self.register(ref, state, env)
            case Cast(inner):
                return self.value(inner, state, env)
            case LaneXor(ref, mask):
                held = self.register(ref, state, env)
                return [held[t ^ mask] for t in self.threads]
            case LaneRead(ref, lane):
                held, lanes = self.register(ref, state, env), self.numbers(lane, env)
                size = self.kernel.warp_size
                return [held[t // size * size + n] for t, n in enumerate(lanes)]
            case Apply("select", (Holds(guard), yes, no)):
                chosen = self.holds(guard, env)
                one, two = self.value(yes, state, env), self.value(no, state, env)
                return [a if c else b for c, a, b in zip(chosen, one, two, strict=True)]
            case Apply(op, (left, right)) if op == self.op:
                return self.unions(self.value(left, state, env), self.value(right, state, env))
            case _:
                return [Lost(f"it is computed by {type(value).__name__}") for _ in self.threads]

    def constant(self, number: float | int | bool) -> Held:
        if number in self.neutral:
            return NOTHING
        return Lost(f"{number}, which is no identity, is combined", wrong=True)

    def unions(self, one: list[Held], two: list[Held]) -> list[Held]:
        """The union in every thread; threads that hold the same objects share the result."""
        known: dict[tuple[int, int], Held] = {}
        result: list[Held] = []
        for a, b in zip(one, two, strict=True):
            pair = id(a), id(b)
            found = known.get(pair)
            if found is None:
                found = known[pair] = self.union(a, b)
            result.append(found)
        return result

    def union(self, one: Held, two: Held) -> Held:
        if isinstance(one, Lost):
            return one
        if isinstance(two, Lost):
            return two
        if not one.mask:
            return two
        if not two.mask:
            return one
        if one.line != two.line:
            return Lost(f"terms at {_at(one.line)} and at {_at(two.line)} are combined", wrong=True)
        if one.mask & two.mask and self.op not in IDEMPOTENT:
            return Lost("a term is counted twice", wrong=True)
        return Terms(one.line, one.mask | two.mask)

    def register(self, ref: RegRef, state: State, env: Mapping[str, int]) -> list[Held]:
        key = ref.name, tuple(self.number(e, env) for e in ref.index)
        held = state.registers.get(key)
        if held is None:
            raise StuckError(f"{ref.name} is read before it is set")
        return held

    # ------------------------------------------------------------ statements

    def run(
        self, body: Body, state: State, env: Mapping[str, int],
        loop: Callable[[Loop, State], None], claim: Callable[[Claim], None],
    ) -> None:  # fmt: skip
        """Execute a body. Serial loops are left to `loop`; claims on terms go to `claim`."""
        for statement in body:
            match statement:
                case Loop() if any(self.follows(s) for s in walk(statement.body)):
                    if not statement.unroll:
                        loop(statement, state)
                        continue
                    for turn in range(self.number(statement.extent, env)):
                        inner = {**env, statement.var: turn}
                        self.run(statement.body, state, inner, loop, claim)
                case If() | When() if any(self.follows(s) for s in walk(statement.body)):
                    self.enter(statement)
                    self.run(statement.body, state, env, loop, claim)
                case Assign() | Reduce() | Load() | Store() if self.follows(statement):
                    for digits in instances(statement):
                        self.step(statement, state, {**env, **digits}, claim)
                case _:
                    pass

    def enter(self, statement: If | When) -> None:
        """A guard must hold for all of the scan alike, in every turn of its loop."""
        alike = isinstance(statement, When) or all(
            c.expr.variables() <= self.alike - self.turning for c in statement.guard
        )
        if id(statement) not in self.around or not alike:
            raise StuckError("a part of the scan runs under a condition")

    def follows(self, statement: Statement) -> bool:
        match statement:
            case Assign() | Reduce() | Load() | Store():
                return statement.dst.name in self.relevant
            case _:
                return False

    def step(
        self, statement: Assign | Reduce | Load | Store, state: State, env: Mapping[str, int],
        claim: Callable[[Claim], None],
    ) -> None:  # fmt: skip
        match statement:
            case Load():
                self.load(statement, state, env)
                return
            case Store():
                self.store(statement, state, env)
                return
            case _:
                pass
        key = statement.dst.name, tuple(self.number(e, env) for e in statement.dst.index)
        if isinstance(statement, Reduce):
            old = self.register(statement.dst, state, env)
            new = self.value(statement.value, state, env)
            if statement.op != self.op:
                raise StuckError(f"{statement.dst.name} is combined by {statement.op}")
            state.registers[key] = self.unions(old, new)
            return
        scan = statement.scans
        if scan is None:
            state.registers[key] = self.value(statement.value, state, env)
            return
        positions = self.place(scan.coordinate, env)
        others = [self.place(e, env) for e in scan.others]
        lines = list(zip(*others, strict=True)) if others else [() for _ in self.threads]
        if scan.part is Part.TERM:
            if min(positions) < 0:
                raise StuckError("a term lies before its tile")
            pairs = zip(lines, positions, strict=True)
            state.registers[key] = [Terms(line, 1 << p) for line, p in pairs]
            return
        held = self.value(statement.value, state, env)
        state.registers[key] = held
        claim(Claim(scan, lines, positions, held))

    def load(self, s: Load, state: State, env: Mapping[str, int]) -> None:
        if s.matrix is not None or s.indirect or not _is_shared(self.kernel, s.src.name):
            raise StuckError(f"{s.dst.name} is loaded from {s.src.name}")
        active = self.holds(s.guard, env)
        filled = self.constant(s.fill)
        *outer, first = (self.number(e, env) for e in s.dst.index)
        for offset, index in enumerate(self.vector(s.src.index, s.axis, s.width, env)):
            held: list[Held] = []
            for runs, place in zip(active, index, strict=True):
                found = state.shared.get((s.src.name, place), Lost("it is read unwritten"))
                held.append(found if runs else filled)
            state.registers[s.dst.name, (*outer, first + offset)] = held

    def store(self, s: Store, state: State, env: Mapping[str, int]) -> None:
        active = self.holds(s.guard, env)
        *outer, first = (self.number(e, env) for e in s.src.index)
        for offset, index in enumerate(self.vector(s.dst.index, s.axis, s.width, env)):
            held = state.registers.get((s.src.name, (*outer, first + offset)))
            if held is None:
                raise StuckError(f"{s.src.name} is stored before it is set")
            for runs, place, value in zip(active, index, held, strict=True):
                if runs:
                    state.shared[s.dst.name, place] = value

    def vector(
        self, index: Sequence[Expr], axis: int, width: int, env: Mapping[str, int]
    ) -> Iterator[list[tuple[int, ...]]]:
        """For each element of a vector, its coordinates in every thread."""
        places = [self.numbers(e, env) for e in index]
        along = axis % len(index)
        for offset in range(width):
            moved = [
                [n + offset for n in place] if i == along else place
                for i, place in enumerate(places)
            ]
            yield list(zip(*moved, strict=True))


def identities(op: str, dtype: DType) -> frozenset[float | int]:
    """The constants that change nothing where numbers of `dtype` are combined."""
    if op in ("add", "mul"):
        return frozenset((int(op == "mul"),))
    top = 1 << (dtype.bits - 1)
    if dtype.is_float:
        return frozenset((float("-inf") if op == "max" else float("inf"),))
    return frozenset((-top if op == "max" else top - 1,))


def common(expr: Expr, names: frozenset[str]) -> Expr:
    """The terms of an expression over these names alone, and its constant."""
    kept = tuple((t, c) for t, c in expr.terms if Expr(((t, c),)).variables() <= names)
    return Expr(kept, expr.const)


def instances(statement: Assign | Reduce | Load | Store) -> Iterator[dict[str, int]]:
    """The values of the statement's unrolled digits, in order."""
    over: Over = statement.over + (statement.along if isinstance(statement, Reduce) else ())
    for values in product(*(range(n) for _, n in over)):
        yield dict(zip((name for name, _ in over), values, strict=True))


def _at(line: Line) -> str:
    return ", ".join(map(str, line)) or "one place"


def _is_shared(kernel: Kernel, name: str) -> bool:
    return kernel.shared_buffer(name) is not None


def _thread_digits(kernel: Kernel) -> dict[str, list[int]]:
    """What each thread has in the digits of its number, its lane and its warp."""
    size = kernel.warp_size
    counters = {
        "thread": range(kernel.threads),
        "warp": [t // size for t in range(kernel.threads)],
        "lane": [t % size for t in range(kernel.threads)],
    }
    found: dict[str, list[int]] = {}
    for statement in walk(kernel.body):
        if not isinstance(statement, Decode) or str(statement.source) not in counters:
            continue
        extents = [e.const if e.is_const else 1 for _, e in statement.digits]
        rows = [decode(n, extents) for n in counters[str(statement.source)]]
        for i, (name, _) in enumerate(statement.digits):
            values = [row[i] for row in rows]
            if found.setdefault(name, values) != values:
                raise StuckError(f"{name} is decoded in two ways")
    return found


def _turning(loop: Loop) -> frozenset[str]:
    """Names whose values change with the turns of a loop."""
    names = {loop.var}
    for statement in walk(loop.body):
        match statement:
            case Loop():
                names.add(statement.var)
            case Decode(source, digits) if source.variables() & names:
                names.update(name for name, _ in digits)
            case _:
                pass
    return frozenset(names)


def alike(kernel: Kernel) -> frozenset[str]:
    """Names that have one value in a block: symbols, block digits, serial counters."""
    names = {s.name for s in kernel.symbols}
    for statement in walk(kernel.body):
        match statement:
            case Loop(unroll=False):
                names.add(statement.var)
            case Decode(source, digits) if source.variables() <= names | {"block"}:
                names.update(name for name, _ in digits)
            case _:
                pass
    return frozenset(names)
