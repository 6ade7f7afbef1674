"""Barriers are reached by every thread of the block, warp-wide statements by the whole warp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.kernel.ops import (
    Apply,
    Assign,
    Barrier,
    Cast,
    If,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    Mma,
    Reduce,
    Statement,
    Value,
    When,
)
from tilewright.lower.obligations.domains import domain
from tilewright.lower.obligations.registers import span_of
from tilewright.lower.obligations.scope import Frame, Program, Site
from tilewright.lower.obligations.variation import Variation, varying
from tilewright.poly.expr import Constraint, Expr, Guard, less
from tilewright.poly.prove import (
    Assumed,
    Kind,
    Obligation,
    Proved,
    Refuted,
    Result,
    Unknown,
    Witness,
    attempt,
    find,
)
from tilewright.poly.sets import Dim

OTHER = "'"


def barriers(program: Program) -> Iterator[Obligation]:
    """One obligation for each barrier, and each warp-wide statement under control flow."""
    variation = varying(program.kernel)
    for site in program.sites:
        wide = isinstance(site.statement, Barrier)
        if not wide and not (_warp_wide(site.statement) and site.frame.around):
            continue
        result = attempt(
            program.world, lambda s=site, w=wide: _uniform(program, s, variation, whole_block=w)
        )
        name = "barrier" if wide else type(site.statement).__name__
        yield Obligation(Kind.BARRIER, name, result, span_of(site.statement), _note(site))


def _note(site: Site) -> str:
    return getattr(site.statement, "note", "") or "control flow around it"


def _warp_wide(statement: Statement) -> bool:
    match statement:
        case Mma():
            return True
        case Load(matrix=matrix):
            return matrix is not None
        case Assign(value=value) | Reduce(value=value):
            return _crosses_lanes(value)
        case _:
            return False


def _crosses_lanes(value: Value) -> bool:
    match value:
        case LaneXor() | LaneRead():
            return True
        case Apply(args=args):
            return any(_crosses_lanes(a) for a in args)
        case Cast():
            return _crosses_lanes(value.value)
        case _:
            return False


def _uniform(program: Program, site: Site, variation: Variation, *, whole_block: bool) -> Result:
    """No two threads of the block (of the warp) disagree on a guard or a loop around it."""
    frame = site.frame
    for depth, statement in enumerate(frame.around):
        outer = replace(frame, path=frame.path[: depth + 1], around=frame.around[:depth])
        match statement:
            case If(guard=guard):
                fault = _disagree(program, outer, guard, statement, whole_block)
            case Loop(extent=extent):
                fault = _disagree_on(program, outer, extent, statement, whole_block)
            case When():
                fault = None
        if fault is not None:
            return fault
    size = program.kernel.warp_size
    differing = -1 if whole_block else size - 1
    if any(differing & variation.conditions[id(c)] for c in frame.conditions):
        return Assumed("the condition around the barrier is alike for every thread of the block")
    return Proved("every thread agrees on the control flow around it")


def _disagree(
    program: Program, frame: Frame, guard: Guard, statement: If, whole_block: bool
) -> Result | None:
    for c in guard:
        failing = (less(c.expr, 0), less(0, c.expr)) if c.equality else (less(c.expr, 0),)
        for fails in failing:
            exprs = tuple(g.expr for g in guard)
            found = _two_threads(program, frame, exprs, guard, (fails,), whole_block)
            if found is not None:
                return _refuted(found, f"the guard {', '.join(map(str, guard))}", statement)
    return None


def _disagree_on(
    program: Program, frame: Frame, extent: Expr, statement: Loop, whole_block: bool
) -> Result | None:
    gap = Expr.of("one extent")
    other = Expr.of("other extent")
    if not extent.variables():
        return None
    found = _two_threads(
        program, frame, (extent,), (Constraint(extent - gap, equality=True),),
        (Constraint(extent - other, equality=True),), whole_block,
    )  # fmt: skip
    if found is None:
        return None
    return _refuted(found, f"the extent {extent} of the loop over {statement.var}", statement)


_Found = tuple[int, int, tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] | str


def _two_threads(
    program: Program, frame: Frame, exprs: tuple[Expr, ...], holds: Guard, fails: Guard,
    whole_block: bool,
) -> _Found | None:  # fmt: skip
    """A thread for which `holds`, and another one for which `fails`, in the same turn."""
    x = domain(program.kernel, frame, exprs, (), ("thread",))
    if not x.private.intersection(*[frozenset[str]().union(*(e.variables() for e in exprs))]):
        return None
    private = {d.name for d in x.dims if d.name in x.private}
    names: dict[str, Expr | int | str] = {n: n + OTHER for n in private}
    dims = [*x.dims, *(Dim(d.name + OTHER, d.extent.substitute(names)) for d in x.dims
                       if d.name in private)]  # fmt: skip
    guard = [*x.guard, *(c.substitute(names) for c in x.guard)]
    guard += [*holds, *(c.substitute(names) for c in fails)]
    special = {"one extent", "other extent"} & {v for c in guard for v in c.expr.variables()}
    if special:
        dims += [Dim.of("one extent", 2**31), Dim.of("other extent", 2**31)]
        guard.append(less("one extent", "other extent"))
    thread = x.thread
    if thread is None:
        return None
    if not whole_block:
        size = program.kernel.warp_size
        guard.append(Constraint(thread // size - thread.substitute(names) // size, equality=True))
    point = find(program.world, dims, tuple(guard))
    if point is None:
        return None
    if x.inexact:
        return x.inexact
    values = point.bindings()
    one, two = thread.evaluate(values), thread.substitute(names).evaluate(values)
    rest = tuple((d.name, values[d.name]) for d in x.dims if d.name not in private)
    return one, two, rest, point.symbols


def _refuted(found: _Found, what: str, statement: If | Loop) -> Result:
    if isinstance(found, str):
        return Unknown(found)
    one, two, rest, symbols = found
    message = f"threads {one} and {two} of a block disagree on {what}"
    at = ", ".join(f"{n} = {v}" for n, v in (*rest, *symbols))
    witness = Witness((one, two), symbols, (rest,))
    notes = (f"at {at}",) if at else ()
    if statement.span is not None:
        notes += (f"stated at {statement.span.file}:{statement.span.line}",)
    return Refuted(message, witness, notes)
