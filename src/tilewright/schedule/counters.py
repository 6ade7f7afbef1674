"""What a schedule's steps make of the counters, one pure function per kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.base.diagnostics import ConstraintError
from tilewright.base.spans import Span

ROLES = ("cooperative", "pingpong")
PLACES = ("block", "cluster", "serial", "warp", "lane", "vectorize", "unroll")


@dataclass(frozen=True, slots=True)
class Step:
    """One call: the method's name, its arguments, and where it was written."""

    method: str
    arguments: tuple[str | int, ...]
    span: Span | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.method}({', '.join(repr(a) for a in self.arguments)})"

    def name(self, position: int) -> str:
        return str(self.arguments[position])

    def number(self, position: int) -> int:
        """A whole number among the arguments. ConstraintError where it is something else."""
        found = self.arguments[position]
        if not isinstance(found, int):
            raise ConstraintError(
                f"{self.method} is given {found!r} where it needs a number",
                span=self.span,
                expected="a whole number",
                mend=f"give argument {position} of {self.method} as an int",
            )
        return found


@dataclass(frozen=True)
class Counters:
    """The counters that are left, in order, and where each came from.

    `axis` names the axis of each counter ever made (of its outer part, for a merged one);
    `over_tiles` are those that count tiles, the others run within one. `turns` are the inner
    parts of split counters of a reduced axis's steps, with their extents.
    """

    order: tuple[str, ...]
    reduced: frozenset[str]
    axis: Mapping[str, str]
    over_tiles: frozenset[str] = frozenset()
    tiles: Mapping[str, int] = field(default_factory=dict[str, int])
    roots: Mapping[str, str] = field(default_factory=dict[str, str])
    shares: Mapping[str, int] = field(default_factory=dict[str, int])
    grid: tuple[Step, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    stages: int | None = None
    atom: str | None = None
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    staged: frozenset[str] = frozenset()
    turns: Mapping[str, int] = field(default_factory=dict[str, int])
    roles: str | None = None
    stream: tuple[int, int] | None = None

    @property
    def split_k(self) -> int | None:
        """How many blocks of a cluster share the steps of a reduced axis."""
        placed = [
            self.turns[c] for c, p in self.places.items() if p == "cluster" and c in self.turns
        ]
        return placed[0] if placed else None

    @staticmethod
    def of(
        axes: tuple[str, ...],
        reduced: frozenset[str],
        reads: frozenset[str] = frozenset(),
        writes: frozenset[str] = frozenset(),
    ) -> Counters:
        """One counter per axis; `reads` and `writes` name the program's tensors."""
        return Counters(axes, reduced, {a: a for a in axes}, reads=reads, writes=writes)

    def apply(self, step: Step) -> Counters:
        """The counters after one more step. ConstraintError where the step is not legal."""
        return STEPS[step.method](self, step)

    def known(self, name: str, span: Span | None) -> str:
        """Check that a counter is left."""
        if name not in self.order:
            raise ConstraintError(
                f"the schedule has no counter {name}",
                span=span,
                expected=f"one of {', '.join(self.order)}",
                mend="name a counter that no split or merge has used up",
            )
        return name

    def fresh(self, names: tuple[str, ...], span: Span | None) -> None:
        """Check that names are free."""
        for name in names:
            if name in self.axis or names.count(name) > 1:
                raise ConstraintError(
                    f"there is a counter {name} already",
                    span=span,
                    expected="names of their own for new counters",
                    mend="pass other names",
                )

    def put(self, name: str, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The order with a counter replaced."""
        position = self.order.index(name)
        return (*self.order[:position], *parts, *self.order[position + 1 :])


def _split(now: Counters, step: Step) -> Counters:
    source = now.known(step.name(0), step.span)
    factor, outer, inner = step.number(1), step.name(2), step.name(3)
    now.fresh((outer, inner), step.span)
    if factor < 1:
        raise ConstraintError(
            f"{source} is split by {factor}",
            span=step.span,
            expected="a factor of at least 1",
            mend="give the number of elements of the inner counter",
        )
    axis = now.axis[source]
    made = replace(
        now,
        order=now.put(source, (outer, inner)),
        axis={**now.axis, outer: axis, inner: axis},
    )
    if source == axis:
        return replace(
            made,
            tiles={**now.tiles, axis: factor},
            roots={**now.roots, outer: axis},
            over_tiles=now.over_tiles | {outer},
        )
    if source in now.over_tiles and axis in now.reduced:
        over = now.over_tiles | {outer, inner}
        return replace(made, over_tiles=over, turns={**now.turns, inner: factor})
    if source in now.over_tiles:
        return replace(made, grid=(*now.grid, step), over_tiles=now.over_tiles | {outer, inner})
    return replace(made, shares={**now.shares, outer: factor})


def _merge(now: Counters, step: Step) -> Counters:
    outer, inner, result = (step.name(i) for i in range(3))
    for part in (outer, inner):
        now.known(part, step.span)
        if part not in now.over_tiles or now.axis[part] in now.reduced:
            raise ConstraintError(
                f"{part} does not count tiles of the output",
                span=step.span,
                expected="two outer counters of axes that are not reduced",
                mend="split the axis first and merge its outer counter",
            )
    now.fresh((result,), step.span)
    rest = replace(now, order=tuple(c for c in now.order if c != inner))
    return replace(
        now,
        order=rest.put(outer, (result,)),
        axis={**now.axis, result: now.axis[outer]},
        over_tiles=now.over_tiles | {result},
        grid=(*now.grid, step),
    )


def _reorder(now: Counters, step: Step) -> Counters:
    names = tuple(now.known(str(n), step.span) for n in step.arguments)
    if len(set(names)) != len(names):
        raise ConstraintError(
            "a counter is named twice",
            span=step.span,
            expected="each counter once",
            mend="remove the repetition",
        )
    turn = iter(names)
    return replace(now, order=tuple(next(turn) if c in names else c for c in now.order))


def _parallelize(now: Counters, step: Step) -> Counters:
    name, place = now.known(step.name(0), step.span), step.name(1)
    if place not in PLACES:
        raise ConstraintError(
            f"there is no place {place!r}",
            span=step.span,
            expected=", ".join(PLACES),
            mend="choose one of the places",
        )
    if name in now.places:
        raise ConstraintError(
            f"{name} is placed on {now.places[name]} already",
            span=step.span,
            expected="one place for each counter",
            mend="remove one of the two",
        )
    axis = now.axis[name]
    if place == "cluster" and name in now.turns:
        _one_counter_of_turns(now, step, name)
    elif place in ("block", "cluster") and axis in now.reduced:
        raise ConstraintError(
            f"{name} belongs to {axis}, along which the program combines elements, and blocks "
            "do not meet",
            span=step.span,
            expected="a counter of an axis that is not reduced, or the inner part of a split of "
            "its steps, on 'cluster'",
            mend=f"place {name} on 'serial'",
        )
    over_tiles = name in now.over_tiles or name in now.tiles
    if (place in ("block", "cluster")) != over_tiles and place not in ("serial", "unroll"):
        where = "counts tiles" if over_tiles else "runs within a tile"
        raise ConstraintError(
            f"{name} {where} and cannot be placed on {place!r}",
            span=step.span,
            expected="tiles on blocks, clusters or 'serial'; their insides on warps and lanes",
            mend="split the axis, and place the outer counter on blocks",
        )
    _one_counter_per_place(now, step, name, place)
    return replace(now, places={**now.places, name: place})


def _one_counter_of_turns(now: Counters, step: Step, name: str) -> None:
    """Blocks of a cluster share the steps of one axis, once."""
    for other, taken in now.places.items():
        if taken == "cluster":
            raise ConstraintError(
                f"{other} and {name} are both placed on 'cluster'",
                span=step.span,
                expected="a cluster whose blocks share the terms of one tile, and nothing else",
                mend=f"place {name} on 'serial'",
            )


def _one_counter_per_place(now: Counters, step: Step, name: str, place: str) -> None:
    """Within one axis, lanes and vectors are one digit each."""
    if place in ("lane", "vectorize", "warp"):
        for other, taken in now.places.items():
            if taken == place and now.axis[other] == now.axis[name]:
                raise ConstraintError(
                    f"{other} and {name} are both placed on {place!r}",
                    span=step.span,
                    expected=f"one counter of {now.axis[name]} on {place!r}",
                    mend="place one of them on 'unroll' or 'serial'",
                )


def _stage(now: Counters, step: Step) -> Counters:
    if step.number(0) < 1:
        raise ConstraintError(
            f"a ring of {step.number(0)} slots",
            span=step.span,
            expected="at least one slot; two or more to copy ahead",
            mend="stage(3) is a good start",
        )
    return replace(now, stages=step.number(0))


def _specialize(now: Counters, step: Step) -> Counters:
    how = step.name(0)
    if how not in ROLES:
        raise ConstraintError(
            f"{how!r} is no way to share work among warpgroups",
            span=step.span,
            expected=f"one of {', '.join(ROLES)}",
            mend="specialize() lets the warpgroups that multiply share every tile",
        )
    return replace(now, roles=how)


def _stream(now: Counters, step: Step) -> Counters:
    tiles, blocks = step.number(0), step.number(1)
    if tiles < 1 or blocks < 1:
        raise ConstraintError(
            f"{blocks} blocks share the steps of {tiles} tiles",
            span=step.span,
            expected="positive numbers",
            mend="stream(2, 5) lets each 5 blocks share the steps of 2 tiles",
        )
    return replace(now, stream=(tiles, blocks))


def _mma(now: Counters, step: Step) -> Counters:
    return replace(now, atom=step.name(0))


def _cache_after(now: Counters, step: Step) -> Counters:
    return replace(now, staged=now.staged | {_tensor(step, now.reads, "read")})


def _cache_before(now: Counters, step: Step) -> Counters:
    return replace(now, staged=now.staged | {_tensor(step, now.writes, "written")})


def _tensor(step: Step, known: frozenset[str], verb: str) -> str:
    name = step.name(0)
    if name not in known:
        raise ConstraintError(
            f"{name} is not {verb} by the program",
            span=step.span,
            expected=f"one of {', '.join(sorted(known)) or 'none'}",
            mend=f"name a tensor that is {verb}",
        )
    return name


def _inline_at(now: Counters, step: Step) -> Counters:
    """Legal where an instance inside the counter's loop needs nothing of its other turns."""
    name, counter = _tensor(step, now.reads | now.writes, "used"), step.name(1)
    axis = now.axis[now.known(counter, step.span)]
    if name in now.writes and axis in now.reduced:
        raise ConstraintError(
            f"{name} cannot be computed inside {counter}: each element combines all of {axis}",
            span=step.span,
            expected=f"a counter outside the loop over {axis}",
            mend=f"leave {name} outside {counter}, where it is put by itself",
        )
    return now


STEPS: Mapping[str, Callable[[Counters, Step], Counters]] = {
    "split": _split,
    "merge": _merge,
    "reorder": _reorder,
    "parallelize": _parallelize,
    "stage": _stage,
    "specialize": _specialize,
    "stream": _stream,
    "mma": _mma,
    "cache_after": _cache_after,
    "cache_before": _cache_before,
    "inline_at": _inline_at,
}
