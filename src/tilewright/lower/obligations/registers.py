"""Registers: indices inside the fragment, and no read of an element that nothing assigned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tilewright.base.spans import Span
from tilewright.kernel.async_ops import Collect, Deposit, RemoteStore, WarpgroupMma
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Cast,
    Decode,
    If,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mma,
    Over,
    Read,
    Reduce,
    RegRef,
    Statement,
    Store,
    Value,
    When,
    walk,
)
from tilewright.lower.obligations.domains import domain
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Expr, Guard, equal, less
from tilewright.poly.layout import Place
from tilewright.poly.lemmas import decode
from tilewright.poly.prove import (
    Kind,
    Obligation,
    Piece,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    find,
    prove_bounds,
)
from tilewright.poly.sets import Dim
from tilewright.target.model import Target

RUN = "register in run"
_MOST_INSTANCES = 200_000


@dataclass(frozen=True, slots=True)
class Use:
    """A run of `count` registers along the fragment's last axis, from `ref` on."""

    ref: RegRef
    count: int
    over: Over
    writes: bool


def registers_read(value: Value) -> Iterator[RegRef]:
    """The registers that a value reads, of this lane or of another."""
    match value:
        case Read() | LaneXor() | LaneRead():
            yield value.ref
        case Apply():
            for argument in value.args:
                yield from registers_read(argument)
        case Cast():
            yield from registers_read(value.value)
        case _:
            pass


def uses(statement: Statement, target: Target) -> tuple[Use, ...]:
    """The register runs that a statement touches, reads before writes."""
    match statement:
        case Assign(over=over, dst=dst, value=value):
            reads = tuple(Use(r, 1, over, False) for r in registers_read(value))
            return (*reads, Use(dst, 1, over, True))
        case Reduce(over=over, along=along, dst=dst, value=value):
            reads = tuple(Use(r, 1, (*over, *along), False) for r in registers_read(value))
            return (*reads, Use(dst, 1, over, False), Use(dst, 1, over, True))
        case Load(over=over, dst=dst, width=width):
            reads = tuple(Use(c.ref, 1, over, False) for c in statement.indirect)
            return (*reads, Use(dst, width, over, True))
        case (
            Store(over=over, src=src, width=width)
            | RemoteStore(over=over, src=src, width=width)
            | Deposit(over=over, src=src, width=width)
        ):
            return (Use(src, width, over, False),)
        case Collect(over=over, dst=dst, width=width):
            return (Use(dst, width, over, True),)
        case Mma(over=over, a=a, b=b, d=d):
            atom = target.atom(statement.atom)
            if atom is None:
                return ()
            sizes = [layout.count(Place.REGISTER) for layout in (atom.a, atom.b, atom.d)]
            reads = tuple(
                Use(ref, size, over, False) for ref, size in zip((a, b, d), sizes, strict=True)
            )
            return (*reads, Use(d, sizes[2], over, True))
        case WarpgroupMma(over=over, a=a, d=d):
            atom = target.atom(statement.atom)
            if atom is None:
                return ()
            size = atom.d.count(Place.REGISTER)
            own = (a,) if isinstance(a, RegRef) else ()
            reads = tuple(Use(r, atom.a.count(Place.REGISTER), over, False) for r in own)
            return (*reads, Use(d, size, over, False), Use(d, size, over, True))
        case When(condition=condition):
            return tuple(Use(r, 1, (), False) for r in registers_read(condition))
        case _:
            return ()


def deposited(program: Program) -> frozenset[str]:
    """Fragments whose sums are left for other blocks."""
    sites = program.sites
    return frozenset(s.statement.src.name for s in sites if isinstance(s.statement, Deposit))


def span_of(statement: Statement) -> Span | None:
    return getattr(statement, "span", None)


def register_bounds(program: Program) -> Iterator[Obligation]:
    """Each register index lies in its fragment. One obligation per statement."""
    shapes = {r.name: tuple(Expr.of(n) for n in r.shape) for r in program.kernel.registers}
    for site in program.sites:
        found = uses(site.statement, program.target)
        results = [_inside(program, site, use, shapes) for use in found]
        if not results:
            continue
        bad = next((r for r in results if not isinstance(r, Proved)), Proved())
        names = ", ".join(dict.fromkeys(u.ref.name for u in found))
        what = type(site.statement).__name__.lower()
        yield Obligation(Kind.BOUNDS, names, bad, span_of(site.statement), f"registers of {what}")


def _inside(
    program: Program, site: Site, use: Use, shapes: Mapping[str, tuple[Expr, ...]]
) -> Result:
    shape = shapes.get(use.ref.name)
    if shape is None:
        return Refuted(f"{use.ref.name} is no fragment of the kernel")
    if len(shape) != len(use.ref.index):
        return Refuted(f"{use.ref.name} has {len(shape)} axes, not {len(use.ref.index)}")
    index, extra = use.ref.index, ()
    if use.count > 1:
        index = (*index[:-1], index[-1] + RUN)
        extra = (Dim.of(RUN, use.count),)
    where = domain(program.kernel, site.frame, (*index[:-1], use.ref.index[-1]), use.over, ())
    piece = Piece((*where.dims, *extra), where.guard, index, use.ref.name, where.inexact)
    return prove_bounds(program.world, piece, shape, use.ref.name)


# ---------------------------------------------------------------- definite assignment

Element = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class _State:
    """Elements assigned on every path to here; under a guard, those assigned where it holds."""

    assigned: set[Element]
    under: dict[Guard, set[Element]] = field(default_factory=dict[Guard, set[Element]])


class UnboundError(Exception):
    """A register index uses a variable whose value is not enumerated."""


def assigned_before_read(program: Program) -> Iterator[Obligation]:
    """Each register is assigned on every path before it is read: one obligation per fragment."""
    walker = _Walker(program)
    walker.body(program.kernel.body, _State(set()), {})
    for fragment in program.kernel.registers:
        fault = walker.faults.get(fragment.name)
        if fragment.name not in walker.read and fault is None:
            continue
        result, span = fault or (Proved("assigned before every read"), None)
        yield Obligation(Kind.UNWRITTEN, fragment.name, result, span, "registers")


class _Walker:
    """Runs the structured program over sets of assigned register elements.

    A loop whose counter occurs in register indices is run value by value; any other once.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.read: set[str] = set()
        self.faults: dict[str, tuple[Result, Span | None]] = {}
        self.indexing = indexing_names(program.kernel, program.target)
        self.extents = _digit_extents(program.kernel)

    def body(self, body: Body, state: _State, env: dict[str, int]) -> None:
        for statement in body:
            match statement:
                case Loop():
                    self.loop(statement, state, env)
                case If():
                    inner = _State(set(state.assigned), dict(state.under))
                    for guard, known in state.under.items():
                        if set(guard) <= set(statement.guard):
                            inner.assigned |= known
                    self.body(statement.body, inner, env)
                    kept = state.under.get(statement.guard, set())
                    state.under[statement.guard] = kept | (inner.assigned - state.assigned)
                case When():
                    self.leaf(statement, state, env)
                    self.body(statement.body, _State(set(state.assigned), dict(state.under)), env)
                case Decode():
                    decode_into(statement, env)
                case _:
                    self.leaf(statement, state, env)

    def loop(self, loop: Loop, state: _State, env: dict[str, int]) -> None:
        inner = _State(set(state.assigned), dict(state.under))
        if loop.var in self.indexing and loop.extent.is_const and loop.extent.const <= 256:
            turns: list[dict[Guard, set[Element]]] = []
            for value in range(loop.extent.const):
                inner.under = dict(state.under)  # a guard may hold anew with the next value
                self.body(loop.body, inner, {**env, loop.var: value})
                turns.append(inner.under)
            inner.assigned |= self.in_any(loop, turns)
        else:
            self.body(loop.body, inner, dict(env))
        if self.runs(loop):
            state.assigned |= inner.assigned

    def in_any(self, loop: Loop, turns: Sequence[Mapping[Guard, set[Element]]]) -> set[Element]:
        """What every turn assigns where a digit equals the counter: for some turn it does."""
        found: set[Element] = set()
        for guard in turns[0] if turns else ():
            match guard:
                case (constraint,) if constraint.equality:
                    digits = {n for n in self.extents if equal(n, loop.var) == constraint}
                    digits |= {n for n in self.extents if equal(loop.var, n) == constraint}
                    if any(self.extents[n] <= loop.extent.const for n in digits):
                        found |= set[Element].intersection(*(t.get(guard, set()) for t in turns))
                case _:
                    pass
        return found

    def runs(self, loop: Loop) -> bool:
        """Whether the loop's body runs at least once, whatever the sizes."""
        if loop.extent.is_const:
            return loop.extent.const > 0
        symbols = {s.name for s in self.program.kernel.symbols}
        if not loop.extent.variables() <= symbols:
            return False
        empty = (less(loop.extent, 1),)
        answer = attempt(
            self.program.world,
            lambda: Unknown("") if find(self.program.world, (), empty) else Proved(),
        )
        return isinstance(answer, Proved)

    def leaf(self, statement: Statement, state: _State, env: dict[str, int]) -> None:
        for use in uses(statement, self.program.target):
            try:
                elements = elements_of(use, env)
            except UnboundError as unbound:
                self.blame(use, Unknown(f"a register index uses {unbound}"), statement)
                continue
            if use.writes:
                state.assigned.update((use.ref.name, e) for e, _ in elements)
                continue
            if _starts_itself(statement, use):
                continue
            self.read.add(use.ref.name)
            for element, digits in elements:
                if (use.ref.name, element) not in state.assigned:
                    self.blame(use, _unassigned(use, element, {**env, **digits}), statement)
                    break

    def blame(self, use: Use, result: Result, statement: Statement) -> None:
        self.faults.setdefault(use.ref.name, (result, span_of(statement)))


def _starts_itself(statement: Statement, use: Use) -> bool:
    """Whether a guard says where d is read: that it is set before is then proved with the sums."""
    if not isinstance(statement, WarpgroupMma):
        return False
    return bool(statement.accumulate) and use.ref is statement.d


def _unassigned(use: Use, element: tuple[int, ...], values: Mapping[str, int]) -> Refuted:
    place = f"{use.ref.name}[{', '.join(map(str, element))}]"
    at = ", ".join(f"{n} = {v}" for n, v in values.items())
    notes = (f"at {at}",) if at else ()
    witness = Witness(element, (), (tuple(values.items()),))
    return Refuted(f"the register {place} is read before anything assigns it", witness, notes)


def elements_of(use: Use, env: Mapping[str, int]) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """Each element of the run, with the unrolled digits at which it is used."""
    if prod(n for _, n in use.over) * use.count > _MOST_INSTANCES:
        raise UnboundError("too many instances")
    over = dict(use.over)
    names = [n for n in over if any(n in e.variables() for e in use.ref.index)]
    found: list[tuple[tuple[int, ...], dict[str, int]]] = []
    for values in product(*(range(over[n]) for n in names)):
        digits = dict(zip(names, values, strict=True))
        try:
            *outer, start = (e.evaluate({**env, **digits}) for e in use.ref.index)
        except KeyError as error:
            raise UnboundError(str(error.args[0])) from error
        found.extend(((*outer, start + i), digits) for i in range(use.count))
    return found


def indexing_names(kernel: Kernel, target: Target) -> frozenset[str]:
    """Names that register indices use, with the sources of the digits among them."""
    names: set[str] = set()
    for statement in walk(kernel.body):
        for use in uses(statement, target):
            for expr in use.ref.index:
                names |= expr.variables()
    for statement in reversed(list(walk(kernel.body))):
        if isinstance(statement, Decode) and names & {n for n, _ in statement.digits}:
            names |= statement.source.variables()
    return frozenset(names)


def _digit_extents(kernel: Kernel) -> Mapping[str, int]:
    """How many values each decoded digit has, at the most, where that is known."""
    decodes = (s for s in walk(kernel.body) if isinstance(s, Decode))
    digits = [digit for s in decodes for digit in s.digits]
    open_ones = {name for name, extent in digits if not extent.is_const}
    known = sorted((extent.const, name) for name, extent in digits if extent.is_const)
    return {name: extent for extent, name in known if name not in open_ones}


def decode_into(statement: Decode, env: dict[str, int]) -> None:
    """Bind the digits where the source and their extents are known numbers."""
    if statement.source.variables() <= env.keys() and all(e.is_const for _, e in statement.digits):
        value = statement.source.evaluate(env)
        extents = [e.const for _, e in statement.digits]
        names = [n for n, _ in statement.digits]
        env.update(zip(names, decode(value, extents), strict=True))
