"""Each `Decode` writes exactly the range of its source: the side condition of the merge lemma."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernel.ops import Decode, Loop
from tilewright.lower.obligations.scope import BUILTINS, Program, Site, domain
from tilewright.poly.expr import Expr, at_least, less
from tilewright.poly.lemmas import merge_fault
from tilewright.poly.prove import (
    Kind,
    Obligation,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    find,
    instance_text,
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
    loop = next((x for x in reversed(site.frame.loops) if x.var == name), None)
    if loop is not None or name in BUILTINS:
        fault = merge_fault(_count(program, name, loop), extents)
        if fault is None:
            return Proved("the digits run over exactly the counter's range")
        if loop is None or not site.frame.guard:
            return Refuted(f"{name}: {fault}")
    return _range(program, site, decode)


def _count(program: Program, name: str, loop: Loop | None) -> tuple[Expr, ...]:
    kernel = program.kernel
    if loop is not None:
        return (loop.extent,)
    sizes = {"thread": kernel.threads, "warp": kernel.warps, "lane": kernel.warp_size}
    return kernel.grid if name == "block" else (Expr.of(sizes[name]),)


def _range(program: Program, site: Site, decode: Decode) -> Result:
    """A sum of counters, or one under a guard: its values must be all of [0, product)."""
    const, rest = 1, list[Expr]()
    for _, extent in decode.digits:
        if extent.is_const:
            const *= extent.const
        else:
            rest.append(extent)
    if len(rest) > 1:
        return Unknown("the product of the digits' extents is not affine")
    size = (rest[0] if rest else Expr.of(1)) * const
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
    values = program.world.image(where.dims, where.guard, (decode.source,))
    missing = program.world.box((size,)).subtract(values).first()
    if missing is not None:
        value = missing.values[0][1]
        return Refuted(
            f"{decode.source} never takes the value {value} of its digits' {size}",
            Witness((value,), missing.symbols),
        )
    return Proved("the digits run over exactly the range of their source")
