"""The points at which a statement runs, in digits.

A counter is dropped as soon as a `Decode` gives it in digits that run over its whole range (the
merge lemma; for a guarded sum of counters the persistence lemma). Where a statement uses two
decodings of one counter, or a counter and its digits, both stay, tied by an equation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.base.diagnostics import LegalityError
from tilewright.kernel.ops import Decode, Kernel, Loop
from tilewright.lower.obligations.scope import BUILTINS, Frame
from tilewright.poly.expr import Constraint, Expr, Guard, less
from tilewright.poly.lemmas import merge_fault, radix
from tilewright.poly.sets import Dim

_BLOCK, _THREAD = "block", "thread"


@dataclass(frozen=True, slots=True)
class Domain:
    """The points at which something runs: dims, the guards around it, and who runs it.

    `thread` is the thread's number in the block, written in digits (None where not asked for).
    `roots` tells of each dim what its value follows from: ``block``, ``thread``, loop counters;
    an unrolled digit has none. `inexact` says why the points may be too many, namely because
    the dims `unlinked` are not tied to each other; it is empty where the points are exact.
    """

    dims: tuple[Dim, ...]
    guard: Guard
    thread: Expr | None
    roots: Mapping[str, frozenset[str]]
    inexact: str = ""
    unlinked: frozenset[str] = frozenset()

    @property
    def private(self) -> frozenset[str]:
        """The dims that differ between threads of a block."""
        return frozenset(n for n, roots in self.roots.items() if _THREAD in roots)

    @property
    def block(self) -> tuple[str, ...]:
        """The dims that are the block's own."""
        return self.fixed(())

    def fixed(self, counters: Iterable[str]) -> tuple[str, ...]:
        """The digits that the block and these loop counters determine, without the counters."""
        known = {_BLOCK, *counters}
        return tuple(
            d.name
            for d in self.dims
            if self.roots[d.name] and self.roots[d.name] <= known and d.name not in counters
        )


def domain(
    kernel: Kernel,
    frame: Frame,
    exprs: Iterable[Expr],
    over: Iterable[tuple[str, int]] = (),
    hardware: tuple[str, ...] = (_BLOCK, _THREAD),
) -> Domain:
    """The points of a statement whose expressions are `exprs`, unrolled over `over`.

    All enclosing loops and guards count. Of the counters in `hardware` all digits are dims,
    used or not: a digit that does not occur is one that repeats the work.
    """
    used = frozenset[str]().union(*(e.variables() for e in exprs))
    resolver = _Resolver(kernel, frame, used, {n: Dim.of(n, e) for n, e in over})
    return resolver.domain(hardware)


def products(kernel: Kernel) -> dict[str, tuple[Expr, ...]]:
    """The symbols that stand for a product of sizes, with its factors."""
    return {s.name: s.product for s in kernel.symbols if s.product}


def size_of(kernel: Kernel, extents: Iterable[Expr]) -> Expr | None:
    """The product of the extents as one expression: affine, or the symbol that stands for it."""
    const, rest = 1, list[Expr]()
    for extent in extents:
        if extent.is_const:
            const *= extent.const
        else:
            rest.append(extent)
    if len(rest) < 2:
        return (rest[0] if rest else Expr.of(1)) * const
    known = products(kernel)
    whole = (Expr.of(const), *rest)
    named = (n for n in known if merge_fault((Expr.of(n),), whole, known) is None)
    name = next(named, None)
    return None if name is None else Expr.of(name)


def opaque(frame: Frame, decode: Decode) -> bool:
    """Whether no affine equation ties the source to the digits, as they are used further."""
    names = {n for n, _ in decode.digits}
    further = [d for _, d in frame.decodes if str(d.source) in names]
    return radix(decode.digits) is None or any(opaque(frame, d) for d in further)


class _Resolver:
    """Collects the dims that a set of names needs."""

    def __init__(
        self, kernel: Kernel, frame: Frame, used: frozenset[str], over: dict[str, Dim]
    ) -> None:
        self.kernel = kernel
        self.frame = frame
        self.guard = list(frame.guard)
        self.exprs = used  # names in the statement's own expressions
        self.over = over
        self.symbols = {s.name for s in kernel.symbols}
        self.loops: dict[str, Dim] = {}
        self.derived: dict[str, Dim] = {}  # digits of loop counters, of other digits and of sums
        self.digits: dict[str, dict[str, Dim]] = {b: {} for b in BUILTINS}
        self.numbers: dict[str, list[tuple[Expr | None, tuple[str, ...]]]] = {
            b: [] for b in BUILTINS
        }
        self.links: list[Constraint] = []
        self.sums: list[tuple[Decode, Expr | None]] = []  # with the number that the digits write
        self.roots: dict[str, frozenset[str]] = {n: frozenset() for n in over}
        self.used: list[Decode] = []
        self.replaced: dict[str, Expr | None] = {}  # by digits, and the number that they write
        self.inexact = ""
        self.untied: frozenset[str] = frozenset()  # roots

    def domain(self, hardware: tuple[str, ...]) -> Domain:
        for name in sorted(self.plain()):
            # Digits first: what they stand for may then be dropped, with its guard.
            if isinstance(binder := self.binder(name), Decode):
                self.use_decode(binder)
        for name in sorted(self.plain()):
            self.use(name)
        for loop in self.frame.loops:
            self.use_loop(loop)
        if _BLOCK in hardware and not self.numbers[_BLOCK]:
            self.default(_BLOCK)
        self.link(_BLOCK)
        thread = self.thread(_THREAD in hardware)
        self.link_sums()
        groups = (*(self.digits[b] for b in BUILTINS), self.loops, self.derived, self.over)
        dims = tuple(d for group in groups for d in group.values() if d.name not in self.replaced)
        roots = {d.name: self.roots[d.name] for d in dims}
        guard = (*self.guard, *self.links)
        unlinked = frozenset(n for n, own in roots.items() if own & self.untied)
        return Domain(dims, guard, thread, roots, self.inexact, unlinked)

    def plain(self, without: Constraint | None = None) -> frozenset[str]:
        """Names used other than through a decode: by the statement and the guards around it."""
        guards = (c.expr.variables() for c in self.guard if c != without)
        return self.exprs.union(*guards)

    # ------------------------------------------------------------ names

    def binder(self, name: str) -> Decode | Loop | str | None:
        """What gives the name its value; a string for a built-in counter."""
        for _, decode in reversed(self.frame.decodes):
            if any(name == digit for digit, _ in decode.digits):
                return decode
        for loop in reversed(self.frame.loops):
            if loop.var == name:
                return loop
        return name if name in BUILTINS else None

    def use(self, name: str) -> None:
        if name in self.symbols or name in self.over or name in self.replaced:
            return
        match self.binder(name):
            case Decode() as decode:
                self.use_decode(decode)
            case Loop() as loop:
                self.use_loop(loop)
            case str():
                self.use_builtin(name)
            case None:
                raise LegalityError(
                    f"the name {name} is used where nothing defines it",
                    expected="a symbol, a loop counter, an unrolled digit or a digit in scope",
                    mend="decode or loop over it before its use",
                )

    def use_all(self, expr: Expr) -> frozenset[str]:
        """Use every name of the expression; the roots of its value."""
        names = sorted(expr.variables())
        for name in names:
            self.use(name)
        return frozenset[str]().union(*(self.roots.get(n, frozenset()) for n in names))

    def use_builtin(self, name: str) -> None:
        if name in self.digits[name]:
            return
        size = size_of(self.kernel, self.range_of(name))
        if size is None:
            self.loose((name,), f"the product of the grid is not affine, and {name} is used whole")
            size = Expr.of(2**31 - 1)
        self.add_number(name, {name: Dim(name, size)}, Expr.of(name))

    def use_loop(self, loop: Loop) -> None:
        if loop.var not in self.loops and loop.var not in self.replaced:
            self.loops[loop.var] = Dim(loop.var, loop.extent)
            differing = self.use_all(loop.extent) & {_THREAD}
            self.roots[loop.var] = frozenset((loop.var,)) | differing

    def range_of(self, name: str) -> tuple[Expr, ...]:
        """The factors of the number of values that a counter or a digit takes."""
        kernel = self.kernel
        sizes = {_THREAD: kernel.threads, "warp": kernel.warps, "lane": kernel.warp_size}
        match self.binder(name):
            case Decode(digits=digits):
                return (dict(digits)[name],)
            case Loop(extent=extent):
                return (extent,)
            case _:
                return kernel.grid if name == _BLOCK else (Expr.of(sizes[name]),)

    def add_number(self, builtin: str, dims: dict[str, Dim], number: Expr | None) -> None:
        root = _BLOCK if builtin == _BLOCK else _THREAD
        self.digits[builtin].update(dims)
        self.numbers[builtin].append((number, tuple(dims)))
        self.roots.update({n: frozenset((root,)) for n in (*dims, builtin)})

    # ------------------------------------------------------------ decodes

    def use_decode(self, decode: Decode) -> None:
        if any(decode is d for d in self.used):
            return
        self.used.append(decode)
        for _, extent in decode.digits:
            self.use_all(extent)
        dims = {n: Dim(n, e) for n, e in decode.digits}
        number = radix(decode.digits)
        source = str(decode.source)
        if self.binder(source) == source:
            self.add_number(source, dims, number)
            return
        self.derived.update(dims)
        names = self.replaceable(decode)
        roots = self.replace(names, decode, number) if names else self.use_all(decode.source)
        self.roots.update(dict.fromkeys(dims, roots))
        if names:
            return
        self.sums.append((decode, number))

    def replaceable(self, decode: Decode) -> frozenset[str]:
        """The names of the source, where the digits may stand for them: nothing else uses them.

        Either the source is one counter with the range of the digits, or a sum below their
        size, by a guard or by the ranges of its counters, that takes each value once: the sum
        writes a number, or is opaque, and then the decode's own obligation says so.
        """
        names = decode.source.variables() - self.symbols
        others = [d for _, d in self.frame.decodes if d is not decode]
        shared = any(names & d.source.variables() for d in others)
        shared = shared or any(names & x.extent.variables() for x in self.frame.loops)
        if shared or names & self.loops.keys() or names & self.over.keys():
            return frozenset()
        extents = [e for _, e in decode.digits]
        if Expr.of(str(decode.source)) == decode.source and not names & self.plain():
            known = products(self.kernel)
            if merge_fault(self.range_of(str(decode.source)), extents, known) is None:
                return names
        once = opaque(self.frame, decode)
        if self.symbols and not once:  # without symbols the counters give better witnesses
            once = self.writes_number(decode.source)
        size = size_of(self.kernel, extents) if once else None
        limit = None if size is None else less(decode.source, size)
        if limit is None or names & self.plain(limit):
            return frozenset()
        if limit not in self.guard and not self.always(limit):
            return frozenset()
        if any(_THREAD in self.root_of(n) for n in names):
            return frozenset()
        self.guard = [c for c in self.guard if c != limit]
        return names

    def writes_number(self, source: Expr) -> bool:
        """Whether the counters of the source are the digits of the number that it is."""
        digits: list[tuple[str, int | Expr]] = []
        for name, _ in sorted(source.terms, key=lambda term: -term[1]):
            extent = size_of(self.kernel, self.range_of(name)) if isinstance(name, str) else None
            if extent is None:
                return False
            digits.append((str(name), extent))
        return radix(digits) == source

    def always(self, limit: Constraint) -> bool:
        """Whether the ranges of the names alone imply the limit."""
        least = limit.expr
        for name, factor in limit.expr.terms:
            if not isinstance(name, str):
                if not Expr(((name, 1),)).variables() <= self.symbols:
                    return False
            elif name not in self.symbols and factor < 0:
                size = size_of(self.kernel, self.range_of(name))
                if size is None:
                    return False
                least = least.substitute({name: size - 1})
            elif name not in self.symbols:
                least = least.substitute({name: 0})
        return least.is_const and least.const >= 0

    def replace(self, names: frozenset[str], decode: Decode, number: Expr | None) -> frozenset[str]:
        """Drop the names; the digits beside them stay. The roots that they had."""
        roots = frozenset[str]().union(*(self.root_of(n) for n in names))
        for name in sorted(names):
            self.replaced[name] = number if len(names) == 1 else None
            binder = self.binder(name)
            if isinstance(binder, Decode):
                self.use_decode(binder)
            elif isinstance(binder, str):
                self.add_number(name, {}, None)
        return roots

    def root_of(self, name: str) -> frozenset[str]:
        match self.binder(name):
            case Decode(source=source):
                names = source.variables() - self.symbols
                return frozenset[str]().union(*(self.root_of(n) for n in names))
            case Loop():
                return frozenset((name,))
            case _:
                return frozenset((_BLOCK if name == _BLOCK else _THREAD,))

    # ------------------------------------------------------------ hardware counters

    def default(self, builtin: str) -> None:
        """Take the digits of a counter that nothing uses, to count its repetitions."""
        for _, decode in self.frame.decodes:
            if str(decode.source) == builtin:
                self.use_decode(decode)
                return
        if builtin == _BLOCK:
            grid = {f"block.{i}": Dim(f"block.{i}", e) for i, e in enumerate(self.kernel.grid)}
            self.add_number(_BLOCK, grid, None)
        else:
            self.use(builtin)

    def link(self, builtin: str) -> Expr | None:
        """Tie the decodings of one counter to each other; the first one's number."""
        numbers = [(self.written(n), digits) for n, digits in self.numbers[builtin]]
        if not numbers:
            return None
        first, names = numbers[0]
        for number, digits in numbers[1:]:
            if first is not None and number is not None:
                self.links.append(Constraint(first - number, equality=True))
            elif names and self.sizes(builtin, digits) == self.sizes(builtin, names):
                pairs = zip(digits, names, strict=True)
                self.links += [Constraint(Expr.of(a) - b, equality=True) for a, b in pairs]
            else:
                why = f"{builtin} is decoded in two ways with symbolic extents"
                self.loose((*digits, *names), why)
        return first

    def link_sums(self) -> None:
        for decode, number in self.sums:
            one, two = self.written(decode.source), self.written(number)
            if one is None or two is None:
                why = f"{decode.source} is decoded with symbolic extents and also used whole"
                self.loose((*decode.source.variables(), *(n for n, _ in decode.digits)), why)
            else:
                self.links.append(Constraint(one - two, equality=True))

    def loose(self, names: Iterable[str], why: str) -> None:
        """The names are not tied to each other, nor are others that follow from the same."""
        self.untied = self.untied.union(*(self.root_of(n) for n in names))
        self.inexact = why

    def written(self, number: Expr | None) -> Expr | None:
        """The number in the digits that replaced others; None where it is not affine in them."""
        while number is not None and (names := number.variables() & self.replaced.keys()):
            known = {n: e for n in names if (e := self.replaced[n]) is not None}
            number = number.substitute(known) if len(known) == len(names) else None
        return number

    def sizes(self, builtin: str, digits: tuple[str, ...]) -> list[Expr]:
        return [self.digits[builtin][d].extent for d in digits if d not in self.replaced]

    def thread(self, wanted: bool) -> Expr | None:
        """The thread's number; ties `thread` to `warp` and `lane` where both are used."""
        decoded = {str(d.source) for _, d in self.frame.decodes}
        split = bool(self.numbers["warp"] or self.numbers["lane"])
        if wanted and not split and not self.numbers[_THREAD]:
            if _THREAD in decoded or not decoded & {"warp", "lane"}:
                self.default(_THREAD)
            else:
                split = True
        if split and (wanted or self.numbers[_THREAD]):
            for counter in ("warp", "lane"):
                if not self.numbers[counter]:
                    self.default(counter)
        warp, lane, thread = self.link("warp"), self.link("lane"), self.link(_THREAD)
        if warp is not None and lane is not None:
            number = warp * self.kernel.warp_size + lane
            if thread is None:
                return number
            self.links.append(Constraint(thread - number, equality=True))
        return thread
