"""The loops over which an accumulation goes on.

An accumulator that a loop's body sets anew ends with each turn, unless its value is merged into
one that the loop carries: ``total = op(total, partial)``. The accumulation then goes on in the
carried fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.kernel.ops import Assign, Body, Cast, Load, Loop, Read, Statement, Value, walk
from tilewright.lower.obligations.registers import registers_read, uses
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Expr

Families = Mapping[str, frozenset[str]]


def families(program: Program) -> dict[str, frozenset[str]]:
    """Fragments that hold one value in turn, because one is copied to the other."""
    classes: dict[str, frozenset[str]] = {}
    for site in program.sites:
        if isinstance(site.statement, Assign):
            source = _copied(site.statement.value)
            if source is not None:
                target = site.statement.dst.name
                one = classes.get(source, frozenset((source,)))
                merged = one | classes.get(target, frozenset((target,)))
                classes.update(dict.fromkeys(merged, merged))
    return classes


def _copied(value: Value) -> str | None:
    """The fragment that a value copies, None where it computes."""
    match value:
        case Read():
            return value.ref.name
        case Cast():
            return _copied(value.value)
        case _:
            return None


def resets_family(statement: Statement, family: frozenset[str]) -> bool:
    """Whether the statement sets a fragment of the family anew, not from the family itself."""
    match statement:
        case Assign(dst=dst, value=value):
            own = any(r.name in family for r in registers_read(value))
            return dst.name in family and not own
        case Load(dst=dst):
            return dst.name in family
        case _:
            return False


def summing_loops(site: Site, family: frozenset[str]) -> tuple[Loop, ...]:
    """The loops around the site in which the family's fragments go on: none sets them anew."""
    return tuple(loop for loop in site.frame.loops if not _sets(loop.body, family))


def counting_loops(
    program: Program, site: Site, coordinate: Expr, family: frozenset[str], classes: Families
) -> tuple[Loop, ...]:
    """The loops over whose turns terms add up, in the family or in what carries it on.

    A loop that the coordinate does not use only carries on what is complete in each turn.
    """
    found: list[Loop] = []
    current = family
    used = _sources(site, coordinate)
    for loop in reversed(site.frame.loops):
        if _sets(loop.body, current):
            current = _carried(program, loop.body, current, classes)
            if loop.var not in used or not current:
                break
        found.append(loop)
    return tuple(reversed(found))


def carrying_loops(
    program: Program, site: Site, coordinate: Expr, inner: Sequence[Loop], family: frozenset[str]
) -> tuple[Loop, ...]:
    """The same where each sum is begun anew in every turn of the loops around `inner`."""
    found = list(inner)
    classes = families(program)
    used, current = _sources(site, coordinate), family
    for loop in reversed(site.frame.loops[: len(site.frame.loops) - len(inner)]):
        current = _carried(program, loop.body, current, classes)
        if loop.var not in used or not current:
            break
        found.insert(0, loop)
    return tuple(found)


def _sources(site: Site, coordinate: Expr) -> frozenset[str]:
    """The names that a coordinate uses, also through decodes."""
    names = coordinate.variables()
    for _, decode in reversed(site.frame.decodes):
        if names & {n for n, _ in decode.digits}:
            names |= decode.source.variables()
    return names


def _sets(body: Body, family: frozenset[str]) -> bool:
    return any(resets_family(s, family) for s in walk(body))


def _carried(
    program: Program, body: Body, family: frozenset[str], classes: Families
) -> frozenset[str]:
    """Fragments that each turn of the body updates from themselves and from the family."""
    reads: dict[str, set[str]] = {}
    for statement in walk(body):
        found = uses(statement, program.target)
        names = {u.ref.name for u in found if not u.writes}
        for use in found:
            if use.writes:
                reads.setdefault(use.ref.name, set()).update(names)
    carried: set[str] = set()
    for name in reads:
        reached = _closure(reads, name)
        own = classes.get(name, frozenset((name,)))
        if own & reached and family & reached and not _begins_anew(body, own, reads):
            carried |= own
    return frozenset(carried - family)


def _closure(reads: Mapping[str, set[str]], name: str) -> set[str]:
    reached: set[str] = set()
    waiting: Sequence[str] = [name]
    while waiting:
        new = {r for n in waiting for r in reads.get(n, ())} - reached
        reached |= new
        waiting = list(new)
    return reached


def _begins_anew(body: Body, family: frozenset[str], reads: Mapping[str, set[str]]) -> bool:
    """Whether the body sets the family from values that do not stem from the family."""
    for statement in walk(body):
        if resets_family(statement, family):
            sources: set[str] = set()
            if isinstance(statement, Assign):
                for ref in registers_read(statement.value):
                    sources |= {ref.name} | _closure(reads, ref.name)
            if not sources & family:
                return True
    return False
