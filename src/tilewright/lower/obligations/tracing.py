"""From an element that a reader wants, back to the statement that made it.

`Wanted` is a set of points; at each the element `ref` has to be the one at the coordinates `tags`.
`Wanted.at` goes to a statement before: it adds that statement's own points, tied to the wanted
ones by an equation for each coordinate of the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import gcd, inf

from tilewright.kernel.ops import Loop, Over
from tilewright.lower.obligations.bulk_turns import Turns
from tilewright.lower.obligations.domains import domain
from tilewright.lower.obligations.scope import BUILTINS, Frame, Program, Site
from tilewright.poly.expr import Constraint, Expr, Guard, at_least, equal, less
from tilewright.poly.prove import find, instance_text, possible
from tilewright.poly.results import Refuted, Result, Unknown, Witness
from tilewright.poly.sets import Dim, Interval, Point, interval

Names = Mapping[str, Expr | int | str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a fragment or buffer has to hold: at `ref` the element at `tags`.

    `thread` is the number of the thread that reads it. `now` gives the counters and digits of
    `frame` in dims: those of another thread, or of a loop that the reader is not in, have names
    of their own. Equations are solved as they come. `exact` says that no point is too many.
    """

    ref: tuple[Expr, ...]
    tags: Mapping[str, Expr]
    dims: Mapping[str, Dim]
    guard: Guard
    thread: Expr | None
    frame: Frame
    now: Names
    exact: bool
    gone: Names = field(default_factory=dict[str, Expr | int | str])  # dims that were solved

    def mapped(self, exprs: Iterable[Expr]) -> tuple[Expr, ...]:
        """Expressions of the statement at `frame`, in dims."""
        return tuple(e.substitute(self.now) for e in exprs)

    def resolved(self, expr: Expr) -> Expr:
        """An expression in dims of before, in those that are left."""
        return expr.substitute(self.gone)

    def under(self, *rows: Constraint) -> Wanted:
        return replace(self, guard=(*self.guard, *rows)).solved() if rows else self

    def find(self, program: Program, *rows: Constraint) -> Point | None:
        program.world.fresh()  # one walk asks many questions: each has the limit to itself
        return find(program.world, tuple(self.dims.values()), (*self.guard, *rows))

    def possible(self, program: Program) -> bool:
        """Whether anything is wanted at all."""
        program.world.fresh()
        return possible(program.world, tuple(self.dims.values()), self.guard)

    def at(
        self, program: Program, site: Site, over: Over, ref: Sequence[Expr],
        exprs: Sequence[Expr] = (), *, turn: Loop | None = None, same_thread: bool = True,
        suffix: str,
    ) -> Wanted:  # fmt: skip
        """The points at which the statement of `site` makes ``ref``, the element wanted.

        It uses `exprs` as well. It runs in the same turn of all common loops; in any turn of
        the loop `turn` and of those in it. `suffix` makes its own names.
        """
        frame, kernel = site.frame, program.kernel
        known = {n for _, d in frame.decodes for n, _ in d.digits} | set(BUILTINS)
        known |= {loop.var for loop in frame.loops}
        names = sorted(n for n in known if n in self.now or n in self.dims)
        wide = (*ref, *exprs, *(Expr.of(n) for n in names))
        where = domain(kernel, frame, wide, over, ("thread",))
        fixed = {"block", *(loop.var for loop in _common(frame, self.frame, turn))}
        fixed |= {"thread"} if same_thread else set()
        mine = {
            d.name: d.name + suffix for d in where.dims
            if not where.roots[d.name] or not where.roots[d.name] <= fixed
        }  # fmt: skip
        others = {n: to for n, to in self.now.items() if n not in mine}
        now: dict[str, Expr | int | str] = {**others, **mine}
        dims = dict(self.dims)
        for d in where.dims:
            name = str(now.get(d.name, d.name))
            if d.name in mine or d.name not in now:
                dims.setdefault(name, Dim(name, d.extent.substitute(now)))
        rows = [*self.guard, *(c.substitute(now) for c in where.guard)]
        rows += [equal(a.substitute(now), b) for a, b in zip(ref, self.ref, strict=True)]
        thread = None if where.thread is None else where.thread.substitute(now)
        if same_thread and thread is not None and self.thread is not None:
            rows.append(equal(thread, self.thread))
        return Wanted(
            self.ref, self.tags, dims, tuple(rows), thread, frame, now,
            self.exact and not where.inexact, self.gone,
        ).solved()  # fmt: skip

    def across(
        self, program: Program, site: Site, over: Over, ref: Sequence[Expr],
        exprs: Sequence[Expr], link: Turns, *, suffix: str, any_turn: bool = False,
    ) -> Iterator[Wanted]:  # fmt: skip
        """As `at`, in another role: in the turn that `link` says, by any thread there.

        One for each way in which this block gets what the cluster's blocks write.
        """
        frame = site.frame
        same = link.of_block(program.kernel, frame) if any_turn else link.names
        names = (n for n, own in same.items() if own in self.now or own in self.dims)
        wide = (*ref, *exprs, *(Expr.of(n) for n in names))
        to, rank = link.to or Expr.of(0), link.rank or Expr.of(0)
        where = domain(
            program.kernel, frame, (*wide, to), over, () if link.to is None else ("thread",)
        )
        now: dict[str, Expr | int | str] = {}
        dims = dict(self.dims)
        for d in where.dims:
            own = same.get(d.name)
            now[d.name] = d.name + suffix if own is None else self.now.get(own, own)
        for d in where.dims:
            name = str(now[d.name])
            if same.get(d.name) in (None, name):
                dims.setdefault(name, Dim(name, d.extent.substitute(now)))
        rows = [*self.guard, *(c.substitute(now) for c in where.guard)]
        rows += [equal(a.substitute(now), b) for a, b in zip(ref, self.ref, strict=True)]
        rows.append(equal(to.substitute(now), rank.substitute(self.now)))
        thread = None if where.thread is None else where.thread.substitute(now)
        ranks = [Dim(n, e) for _, d in frame.decodes for n, e in d.digits if n in link.peers]
        for copy in link.copies:
            used = {n for c in copy for n in c.expr.variables()} | rank.variables()
            mine = {d.name: d for d in ranks if d.name in used and d.name not in self.now}
            guard = (*rows, *(c.substitute(self.now) for c in copy))
            yield Wanted(
                self.ref, self.tags, {**mine, **dims}, guard, thread, frame, now,
                self.exact and not where.inexact, self.gone,
            ).solved()  # fmt: skip

    def solved(self) -> Wanted:
        """Without the dims that an equation gives in others; their ranges become guards."""
        dims, rows, values = solve(self.dims, self.guard)
        if not values:
            return replace(self, guard=tuple(rows))
        first = {n: e for n, e in values.items() if "#" not in n}  # digits of the store itself
        now = {**first, **{n: Expr.of(e).substitute(values) for n, e in self.now.items()}}
        gone = {n: Expr.of(e).substitute(values) for n, e in self.gone.items()}
        return replace(
            self, guard=tuple(rows), dims=dims, now=now, gone={**gone, **values},
            ref=tuple(e.substitute(values) for e in self.ref),
            tags={a: e.substitute(values) for a, e in self.tags.items()},
            thread=None if self.thread is None else self.thread.substitute(values),
        )  # fmt: skip


def solve(
    dims: Mapping[str, Dim], guard: Iterable[Constraint]
) -> tuple[dict[str, Dim], list[Constraint], dict[str, Expr]]:
    """The dims that no equation gives in others, the rows on them, and the values of the rest."""
    left = dict(dims)
    rows = _apart(guard, left)
    values: dict[str, Expr] = {}
    while (found := next((s for c in rows if (s := _solution(c, left))), None)) is not None:
        name, value = found
        rows += [at_least(value, 0), less(value, left.pop(name).extent)]
        one = {name: value}
        values = {n: e.substitute(one) for n, e in values.items()} | one
        left = {n: Dim(n, d.extent.substitute(one)) for n, d in left.items()}
        rows = _apart((c.substitute(one) for c in rows), left)
    return left, rows, values


def _solution(row: Constraint, dims: Mapping[str, Dim]) -> tuple[str, Expr] | None:
    """A dim that the equation gives in the others: of several the one with the most values, so
    that a number is replaced by its digits, not a digit by what is left of the number."""
    if not row.equality:
        return None
    best: tuple[float, str, Expr] | None = None
    for name, factor in reversed(row.expr.terms):
        if isinstance(name, str) and abs(factor) == 1 and name in dims:
            value = (row.expr - Expr(((name, factor),))) * -factor
            extent = dims[name].extent
            size = extent.const if extent.is_const else inf
            if name not in value.variables() and (best is None or size > best[0]):
                best = size, name, value
    return None if best is None else best[1:]


def _apart(rows: Iterable[Constraint], dims: Mapping[str, Dim]) -> list[Constraint]:
    """The rows but for those that always hold, equations between numbers taken apart in digits."""
    ranges: dict[str, Interval] = {
        n: (0, d.extent.const - 1) if d.extent.is_const else (0, inf) for n, d in dims.items()
    }
    waiting, found = list(dict.fromkeys(rows)), dict[Constraint, None]()
    while waiting:
        row = waiting.pop(0)
        names = row.expr.variables()
        known = ranges | dict.fromkeys(names - ranges.keys(), (-inf, inf))
        if row.equality and (pair := _digits(row.expr, known)):
            waiting += [Constraint(e, equality=True) for e in pair]
            continue
        low, high = interval(row.expr, known)
        if low < 0 or (row.equality and high > 0):
            found[_lowest(row)] = None
    return list(found)


def _lowest(row: Constraint) -> Constraint:
    """An equation in lowest terms."""
    common = gcd(row.expr.const, *(c for _, c in row.expr.terms))
    if not row.equality or common < 2:
        return row
    terms = tuple((t, c // common) for t, c in row.expr.terms)
    return Constraint(Expr(terms, row.expr.const // common), equality=True)


def _digits(expr: Expr, ranges: Mapping[str, Interval]) -> tuple[Expr, Expr] | None:
    """Two parts of a sum that is zero only where both are.

    Lemma (digits): where every coefficient of one part is a multiple of m and the other part lies
    between -m and m, both ends excluded, the sum is zero only if each part is.
    """
    for m in sorted({abs(c) for _, c in expr.terms if abs(c) > 1}):
        low = tuple((t, c) for t, c in expr.terms if c % m)
        if not low or len(low) == len(expr.terms):
            continue
        for const in (expr.const % m, expr.const % m - m):
            part = Expr(low, const)
            least, most = interval(part, ranges)
            if -m < least and most < m:
                return part, (expr - part)
    return None


def _common(one: Frame, two: Frame, turn: Loop | None) -> tuple[Loop, ...]:
    """The loops around both, outside of `turn`."""
    around = takewhile(lambda s: s is not turn, one.common(two))
    return tuple(s for s in around if isinstance(s, Loop))


def either_lane(wanted: Wanted, there: Wanted, mask: int, suffix: str) -> Wanted:
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


def fault_at(wanted: Wanted, text: str, element: tuple[int, ...], point: Point) -> Result:
    """The fault at a point of what is wanted; open where there may be too many points."""
    if not wanted.exact:
        return Unknown(f"maybe {text}")
    values = point.bindings()
    solved = {n: Expr.of(e) for n, e in wanted.gone.items()}
    known = values | {n: e.evaluate(values) for n, e in solved.items() if "#" not in n}
    at = tuple((n, v) for n, v in known.items() if "#" not in n and n not in dict(point.symbols))
    witness = Witness(element, point.symbols, (point.values,))
    return Refuted(text, witness, (instance_text(at, point.symbols),))
