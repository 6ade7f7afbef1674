"""What is around each statement, and the points at which it runs.

A hardware counter is dropped as soon as one `Decode` gives it in digits (the merge lemma). Where
a statement uses two decodings of one counter, both stay, tied by an equation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tilewright.base.diagnostics import AtomError, LegalityError
from tilewright.kernel.ops import Body, Decode, If, Kernel, Loop, Mma, Statement, When, walk
from tilewright.poly.expr import Constraint, Expr, Guard
from tilewright.poly.lemmas import merge_fault, radix
from tilewright.poly.sets import Dim, Parameter, World
from tilewright.target.model import Target

BUILTINS = ("block", "thread", "warp", "lane")


@dataclass(frozen=True, slots=True)
class Frame:
    """The surroundings of a statement, outermost first.

    `path` holds the statement's position in each body; `around[i]` is the statement entered at
    ``path[: i + 1]``. Each decode goes with the path of the body that it stands in.
    """

    path: tuple[int, ...] = ()
    around: tuple[Loop | If | When, ...] = ()
    decodes: tuple[tuple[tuple[int, ...], Decode], ...] = ()

    @property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(s for s in self.around if isinstance(s, Loop))

    @property
    def guard(self) -> Guard:
        return tuple(c for s in self.around if isinstance(s, If) for c in s.guard)

    @property
    def conditions(self) -> tuple[When, ...]:
        return tuple(s for s in self.around if isinstance(s, When))


@dataclass(frozen=True, slots=True)
class Site:
    """One statement, where it stands."""

    statement: Statement
    frame: Frame


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel with what the proofs need of it, computed once."""

    kernel: Kernel
    target: Target
    world: World
    sites: tuple[Site, ...]

    @staticmethod
    def of(kernel: Kernel, target: Target) -> Program:
        for statement in walk(kernel.body):
            if isinstance(statement, Mma) and target.atom(statement.atom) is None:
                raise AtomError(
                    f"{target.name} has no atom {statement.atom}",
                    span=statement.span,
                    expected=f"one of the {len(target.mma_atoms)} atoms of {target.name}",
                    mend="compile the kernel for the target that it was lowered for",
                )
        parameters = tuple(Parameter(s.name, s.low, s.multiple) for s in kernel.symbols)
        world = World(parameters, kernel.contracts)
        return Program(kernel, target, world, tuple(_sites(kernel.body, Frame())))


def _sites(body: Body, frame: Frame) -> Iterator[Site]:
    decodes = frame.decodes
    for position, statement in enumerate(body):
        here = replace(frame, path=(*frame.path, position), decodes=decodes)
        yield Site(statement, here)
        match statement:
            case Decode():
                decodes = (*decodes, (frame.path, statement))
            case Loop() | If() | When():
                inner = replace(here, around=(*frame.around, statement))
                yield from _sites(statement.body, inner)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Domain:
    """The points at which something runs: dims, the guards around it, and who runs it.

    `thread` is the thread's number in the block, written in digits (None where not asked for).
    `private` names the dims that differ between threads of a block. `inexact` says why the
    points may be too many; it is empty where they are exact.
    """

    dims: tuple[Dim, ...]
    guard: Guard
    thread: Expr | None
    block: tuple[str, ...]
    private: frozenset[str]
    inexact: str = ""


def domain(
    kernel: Kernel,
    frame: Frame,
    exprs: Iterable[Expr],
    over: Iterable[tuple[str, int]] = (),
    hardware: tuple[str, ...] = ("block", "thread"),
) -> Domain:
    """The points of a statement whose expressions are `exprs`, unrolled over `over`.

    All enclosing loops and guards count. Of the counters in `hardware` all digits are dims,
    used or not: a digit that does not occur is one that repeats the work.
    """
    resolver = _Resolver(kernel, frame, {n: Dim.of(n, e) for n, e in over})
    guard = frame.guard
    for expr in (*exprs, *(c.expr for c in guard)):
        resolver.plain |= expr.variables()
    for name in sorted(resolver.plain):
        resolver.use(name)
    for loop in frame.loops:
        resolver.use_loop(loop)
    return resolver.finish(hardware, guard)


class _Resolver:
    """Collects the dims that a set of names needs."""

    def __init__(self, kernel: Kernel, frame: Frame, over: dict[str, Dim]) -> None:
        self.kernel = kernel
        self.frame = frame
        self.plain: frozenset[str] = frozenset()
        self.over = over
        self.symbols = {s.name for s in kernel.symbols}
        self.loops: dict[str, Dim] = {}
        self.derived: dict[str, Dim] = {}  # digits of a decoded loop counter or sum
        self.digits: dict[str, dict[str, Dim]] = {b: {} for b in BUILTINS}
        self.numbers: dict[str, list[Expr | None]] = {b: [] for b in BUILTINS}
        self.extents: dict[str, list[tuple[Expr, ...]]] = {b: [] for b in BUILTINS}
        self.links: list[Constraint] = []
        self.private: set[str] = set()
        self.used: list[Decode] = []
        self.replaced: set[str] = set()
        self.inexact = ""

    def use(self, name: str) -> None:
        if name in self.symbols or name in self.over or name in self.loops:
            return
        for _, decode in reversed(self.frame.decodes):
            if any(name == digit for digit, _ in decode.digits):
                self.use_decode(decode)
                return
        for loop in reversed(self.frame.loops):
            if loop.var == name:
                self.use_loop(loop)
                return
        if name not in BUILTINS:
            raise LegalityError(
                f"the name {name} is used where nothing defines it",
                expected="a symbol, a loop counter, an unrolled digit or a decoded digit in scope",
                mend="decode or loop over it before its use",
            )
        if name not in self.digits[name]:
            size = self.count(name)
            if size is None:
                self.inexact = f"the product of the grid is not affine, and {name} is used whole"
                size = Expr.of(2**31 - 1)
            self.add_number(name, {name: Dim(name, size)}, Expr.of(name))

    def use_all(self, expr: Expr) -> None:
        for name in sorted(expr.variables()):
            self.use(name)

    def use_loop(self, loop: Loop) -> None:
        if loop.var not in self.loops and loop.var not in self.replaced:
            self.use_all(loop.extent)
            self.loops[loop.var] = Dim(loop.var, loop.extent)
            if loop.extent.variables() & self.private:
                self.private.add(loop.var)

    def count(self, builtin: str) -> Expr | None:
        """How many values a counter takes; None where that is not affine."""
        kernel = self.kernel
        if builtin == "block":
            size, *rest = sorted(kernel.grid, key=lambda e: e.is_const)
            for extent in rest:
                if not extent.is_const:
                    return None
                size = size * extent.const
            return size
        sizes = {"thread": kernel.threads, "warp": kernel.warps, "lane": kernel.warp_size}
        return Expr.of(sizes[builtin])

    def add_number(self, builtin: str, dims: dict[str, Dim], number: Expr | None) -> None:
        self.digits[builtin].update(dims)
        self.numbers[builtin].append(number)
        self.extents[builtin].append(tuple(Expr.of(n) for n in dims))
        if builtin != "block":
            self.private |= dims.keys()

    def use_decode(self, decode: Decode) -> None:
        if any(decode is d for d in self.used):
            return
        self.used.append(decode)
        for _, extent in decode.digits:
            self.use_all(extent)
        dims = {n: Dim(n, e) for n, e in decode.digits}
        number = radix(decode.digits)
        builtin = str(decode.source)
        if builtin in BUILTINS and not self.is_bound(builtin):
            self.add_number(builtin, dims, number)
            return
        self.derived.update(dims)
        if self.replaces(decode):
            self.replaced |= decode.source.variables()
            return
        self.use_all(decode.source)
        if decode.source.variables() & self.private:
            self.private |= dims.keys()
        if number is None:
            self.inexact = f"{decode.source} is decoded with symbolic extents and also used whole"
        else:
            self.links.append(Constraint(decode.source - number, equality=True))

    def is_bound(self, name: str) -> bool:
        return name in self.over or any(loop.var == name for loop in self.frame.loops)

    def replaces(self, decode: Decode) -> bool:
        """Whether the digits may stand for a loop counter that nothing else uses."""
        name = str(decode.source)
        loop = next((x for x in self.frame.loops if x.var == name), None)
        if loop is None or name in self.plain or name in self.loops:
            return False
        sources = [d for _, d in self.frame.decodes if name in d.source.variables()]
        extents = [x for x in self.frame.loops if name in x.extent.variables()]
        others = any(d is not decode for d in sources) or bool(extents)
        return not others and merge_fault((loop.extent,), [e for _, e in decode.digits]) is None

    # ------------------------------------------------------------ hardware counters

    def finish(self, hardware: tuple[str, ...], guard: Guard) -> Domain:
        if "block" in hardware and not self.numbers["block"]:
            self.default("block")
        self.link("block")
        thread = self.thread("thread" in hardware)
        block = self.digits["block"]
        private = {n: d for b in ("thread", "warp", "lane") for n, d in self.digits[b].items()}
        dims = (*block.values(), *private.values(), *self.loops.values())
        return Domain(
            (*dims, *self.derived.values(), *self.over.values()),
            (*guard, *self.links),
            thread,
            tuple(block),
            frozenset(self.private),
            self.inexact,
        )

    def default(self, builtin: str) -> None:
        """Take the digits of a counter that nothing uses, to count its repetitions."""
        for _, decode in self.frame.decodes:
            if str(decode.source) == builtin:
                self.use_decode(decode)
                return
        if builtin == "block":
            grid = {f"block.{i}": Dim(f"block.{i}", e) for i, e in enumerate(self.kernel.grid)}
            self.add_number("block", grid, None)
        else:
            self.use(builtin)

    def link(self, builtin: str) -> Expr | None:
        """Tie the decodings of one counter to each other; the first one's number."""
        numbers, names = self.numbers[builtin], self.extents[builtin]
        for number, digits in zip(numbers[1:], names[1:], strict=True):
            first = numbers[0]
            if first is not None and number is not None:
                self.links.append(Constraint(first - number, equality=True))
            elif self.sizes(digits) == self.sizes(names[0]):
                self.links += [
                    Constraint(a - b, equality=True) for a, b in zip(digits, names[0], strict=True)
                ]
            else:
                self.inexact = f"{builtin} is decoded in two ways with symbolic extents"
        return numbers[0] if numbers else None

    def sizes(self, digits: tuple[Expr, ...]) -> list[Expr]:
        return [
            self.digits["block"][str(d)].extent for d in digits if str(d) in self.digits["block"]
        ]

    def thread(self, wanted: bool) -> Expr | None:
        """The thread's number; ties `thread` to `warp` and `lane` where both are used."""
        decoded = {str(d.source) for _, d in self.frame.decodes}
        split = bool(self.numbers["warp"] or self.numbers["lane"])
        if wanted and not split and not self.numbers["thread"]:
            if "thread" in decoded or not decoded & {"warp", "lane"}:
                self.default("thread")
            else:
                split = True
        whole = bool(self.numbers["thread"])
        if split and (wanted or whole):
            for counter in ("warp", "lane"):
                if not self.numbers[counter]:
                    self.default(counter)
        warp, lane = self.link("warp"), self.link("lane")
        thread = self.link("thread")
        if warp is not None and lane is not None:
            number = warp * self.kernel.warp_size + lane
            if thread is None:
                return number
            self.links.append(Constraint(thread - number, equality=True))
        return thread
