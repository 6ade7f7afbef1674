"""Each `Decode` writes exactly the range of its source: the side condition of the merge lemma."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.kernel.ops import Decode
from tilewright.lower.obligations.domains import domain, opaque, products, size_of
from tilewright.lower.obligations.scope import Frame, Program, Site
from tilewright.poly.expr import Expr, at_least, less
from tilewright.poly.lemmas import merge_fault
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
    image,
    instance_text,
    prove_at_most_once,
)


def decodes(program: Program) -> Iterator[Obligation]:
    """One obligation for each decode."""
    for site in program.sites:
        if isinstance(site.statement, Decode):
            statement = site.statement
            result = attempt(program.world, lambda s=site, d=statement: _whole(program, s, d))
            digits = ", ".join(n for n, _ in statement.digits)
            yield Obligation(Kind.DECODE, str(statement.source), result, None, f"digits {digits}")


def _whole(program: Program, site: Site, decode: Decode) -> Result:
    name = str(decode.source)
    extents = tuple(e for _, e in decode.digits)
    count = _count(program, site.frame, name)
    if count is not None:
        fault = merge_fault(count, extents, products(program.kernel))
        if fault is None:
            return Proved("the digits run over exactly the counter's range")
        if not site.frame.guard:
            return Refuted(f"{name}: {fault}")
    return _range(program, site, decode, extents)


def _count(program: Program, frame: Frame, name: str) -> tuple[Expr, ...] | None:
    """The factors of the number of values of one counter or digit; None for a sum."""
    kernel = program.kernel
    for _, decode in reversed(frame.decodes):
        if name in dict(decode.digits):
            return (dict(decode.digits)[name],)
    for loop in reversed(frame.loops):
        if loop.var == name:
            return (loop.extent,)
    sizes = {"thread": kernel.threads, "warp": kernel.warps, "lane": kernel.warp_size}
    if name == "block":
        return kernel.grid
    return (Expr.of(sizes[name]),) if name in sizes else None


def _range(program: Program, site: Site, decode: Decode, extents: tuple[Expr, ...]) -> Result:
    """A sum of counters, or one under a guard: its values must be all of [0, product)."""
    size = size_of(program.kernel, extents)
    if size is None:
        return Unknown("the product of the digits' extents is not affine")
    where = domain(program.kernel, site.frame, (decode.source,), (), ())
    for outside in (less(decode.source, 0), at_least(decode.source, size)):
        point = find(program.world, where.dims, (*where.guard, outside))
        if point is not None:
            if where.inexact:
                return Unknown(where.inexact)
            value = decode.source.evaluate(point.bindings())
            return Refuted(
                f"{decode.source} takes the value {value}, and its digits end at {size}",
                Witness((value,), point.symbols, (point.values,)),
                (instance_text(point.values, point.symbols),),
            )
    values = Piece(where.dims, where.guard, (decode.source,), inexact=where.inexact)
    missing = program.world.box((size,)).subtract(image(program.world, values)).first()
    if missing is not None:
        value = missing.values[0][1]
        return Refuted(
            f"{decode.source} never takes the value {value} of its digits' {size}",
            Witness((value,), missing.symbols),
        )
    every = tuple(((), s.statement) for s in program.sites if isinstance(s.statement, Decode))
    if opaque(replace(site.frame, decodes=every), decode):
        return _once(program, values, decode)
    return Proved("the digits run over exactly the range of their source")


def _once(program: Program, values: Piece, decode: Decode) -> Result:
    """Digits that are dropped for their source's counters: it has to take each value once."""
    used = decode.source.variables()
    dims = tuple(d for d in values.dims if d.name in used)
    known = used | {s.name for s in program.kernel.symbols}
    guard = tuple(c for c in values.guard if c.expr.variables() <= known)
    own = replace(values, dims=dims, guard=guard)
    once = prove_at_most_once(program.world, (own,), str(decode.source))
    if isinstance(once, Refuted):
        (value,) = once.witness.element
        return replace(once, message=f"{decode.source} takes the value {value} twice")
    if not isinstance(once, Proved):
        return once
    return Proved("the digits run over exactly the range of their source, once each")
