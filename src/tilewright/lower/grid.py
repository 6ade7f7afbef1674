"""From the order of tiles to block numbers, loops, decodes and guards around a block's work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.kernel.ops import Body, Decode, If, Loop, Symbol
from tilewright.lower.builder import Builder, Share
from tilewright.poly.expr import Constraint, Expr, less
from tilewright.schedule.grid import HELPER, PART, SHARER, SHARING, GridPlace, Merge, Split
from tilewright.schedule.plan import Stream

Wrap = Callable[[Body], Body]


@dataclass(frozen=True, slots=True)
class Grid:
    """`factors` multiply to the number of blocks; `head` decodes the block's number, `wrap`
    puts a block's work into its loops, and `alternate` that of roles which take turns."""

    factors: tuple[Expr, ...]
    cluster: int
    head: Body
    wrap: Wrap
    alternate: Callable[[Body, str, int], Body]


def place_grid(b: Builder) -> Grid:
    """Declare the counters' variables, set `b.blocks`, and say how to wrap the body."""
    grid = b.plan.grid
    extents = grid.all_extents()
    for name, factors in grid.products().items():
        b.symbols[name] = Symbol(name, product=factors)
    values = {leaf: Expr.of(b.name(_variable(leaf))) for leaf in grid.order}
    wraps: list[Wrap] = []
    head: Body = ()
    turn = Expr.of(0)
    turns: tuple[int, str, Expr] | None = None
    blocks = [d for d in grid.order if grid.place(d) is not GridPlace.LOOP]
    if blocks:
        digits = tuple((str(values[d]), extents[d]) for d in blocks)
        head = (Decode(Expr.of("block"), digits),)
    _set_rank(b, values, extents)
    for leaf in grid.order:
        if grid.place(leaf) is GridPlace.LOOP:
            turns = len(wraps), str(values[leaf]), extents[leaf]
            wraps.append(_looping(str(values[leaf]), extents[leaf]))
            if b.plan.roles is not None and b.plan.roles.stream is not None:
                b.share = _share(b.plan.roles.stream, values, values[leaf])
                wraps.append(_guarding(*b.share.touches))
            turn = turn * (extents[leaf].const if b.persistent else 1) + values[leaf]
            b.persistent = True
    wraps += _roots(b, values, extents)
    b.turn = turn
    b.part, b.helper = (values.get(c, Expr.of(0)) for c in (PART, HELPER))
    axes = (counter for counter in grid.extents if counter not in SHARING)
    b.blocks.update({axis: values[axis] for axis in axes})
    factors = tuple(extents[d] for d in blocks) or (Expr.of(1),)

    def alternate(body: Body, role: str, roles: int) -> Body:
        if turns is None:
            raise ValueError("a block has one tile: there are no turns to take")
        place, turn, extent = turns
        loop = _alternating(b.name("round"), turn, extent, role, roles)
        return _chain([*wraps[:place], loop, *wraps[place + 1 :]])(body)

    return Grid(factors, grid.cluster, head, _chain(wraps), alternate)


def _roots(b: Builder, values: dict[str, Expr], extents: Mapping[str, Expr]) -> list[Wrap]:
    """Give the counters that others were made of their values; what that takes, outermost first."""
    wraps: list[Wrap] = []
    for step in reversed(b.plan.grid.steps):
        match step:
            case Split(source, outer, inner, factor):
                values[source] = values[outer] * factor + values[inner]
                whole = extents[source]
                if not (whole.is_const and whole.const % factor == 0):
                    wraps.append(_guarding(less(values[source], whole)))
            case Merge(outer, inner, result):
                names = tuple(b.name(_variable(d)) for d in (outer, inner))
                values[outer], values[inner] = (Expr.of(n) for n in names)
                if values[result].variables() & b.peers:
                    b.peers |= set(names)
                pair = tuple(zip(names, (extents[outer], extents[inner]), strict=True))
                wraps.append(_decoding(Decode(values[result], pair)))
    return wraps


def _set_rank(b: Builder, values: Mapping[str, Expr], extents: Mapping[str, Expr]) -> None:
    """The block's number in its cluster, and the digits that tell its peers apart."""
    grid = b.plan.grid
    for leaf in grid.order:
        if grid.place(leaf) is GridPlace.CLUSTER:
            b.rank = b.rank * extents[leaf].const + values[leaf]
            b.peers |= values[leaf].variables()


def _variable(counter: str) -> str:
    """A counter's name as a variable's."""
    return "".join(c if c.isalnum() else "_" for c in counter.lower()) + "_block"


def _decoding(decode: Decode) -> Wrap:
    return lambda body: (decode, *body)


def _looping(variable: str, extent: Expr) -> Wrap:
    return lambda body: (Loop(variable, extent, body),)


def _alternating(variable: str, turn: str, extent: Expr, role: str, roles: int) -> Wrap:
    """The turns of one of `roles` roles, which take them one after the other."""
    rounds = extent.ceildiv(roles)
    number = Decode(Expr.of(variable) * roles + role, ((turn, rounds * roles),))
    whole = extent.is_const and extent.const % roles == 0

    def wrap(body: Body) -> Body:
        inside: Body = body if whole else (If((less(turn, extent),), body),)
        return (Loop(variable, rounds, (number, *inside)),)

    return wrap


def _guarding(*guard: Constraint) -> Wrap:
    return lambda body: (If(guard, body),)


def _share(stream: Stream, values: Mapping[str, Expr], tile: Expr) -> Share:
    sharer = values[SHARER]
    number = Expr.of(stream.blocks - 1) - sharer
    return Share(stream, number, tile, values["group"] * stream.blocks)


def _chain(wraps: list[Wrap]) -> Wrap:
    def wrap(body: Body) -> Body:
        for outer in reversed(wraps):
            body = outer(body)
        return body

    return wrap
