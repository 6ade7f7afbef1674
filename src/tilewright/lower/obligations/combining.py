"""Partial results of lanes are combined over exactly the lanes that hold them.

A reduction whose coordinate has lane digits leaves one partial result in each of their lanes.
Steps ``x = op(x, lane_xor(x, mask))`` combine the lanes that the masks span over F2. That span
must be the one of the digits' bits, and for an operation that counts twice (add, mul) each
mask must be new: the steps then reach each lane's partial result exactly once. What the lane
steps leave partial has to go through shared memory (see `exchange`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import Apply, Assign, Cast, LaneXor, Mma, Read, Reduce, Value
from tilewright.lower.obligations.carrying import families, summing_loops
from tilewright.lower.obligations.exchange import Route, prove_exchange, routes
from tilewright.lower.obligations.registers import (
    UnboundError,
    elements_of,
    registers_read,
    span_of,
    uses,
)
from tilewright.lower.obligations.scope import Program, Site
from tilewright.lower.obligations.variation import digit_bits
from tilewright.poly.lemmas import rank
from tilewright.poly.prove import Kind, Obligation, Proved, Refuted, Result, Unknown, Witness

_IDEMPOTENT = ("max", "min")


def combining(program: Program) -> Iterator[Obligation]:
    """One obligation for each accumulator that a reduction leaves partial over lanes."""
    groups: dict[str, list[Site]] = {}
    for site in program.sites:
        match site.statement:
            case Reduce(dst=dst) if site.statement.reduces:
                groups.setdefault(dst.name, []).append(site)
            case Mma(d=d) | WarpgroupMma(d=d) if site.statement.reduces:
                groups.setdefault(d.name, []).append(site)
            case _:
                pass
    classes = families(program)
    for fragment, sites in groups.items():
        family = classes.get(fragment, frozenset((fragment,)))
        result = _combined(program, fragment, family, sites)
        if result is not None:
            span = span_of(sites[0].statement)
            yield Obligation(Kind.REDUCTION, f"lanes of {fragment}", result, span, "lane steps")


def _combined(
    program: Program, fragment: str, family: frozenset[str], sites: Sequence[Site]
) -> Result | None:
    digits: dict[str, int] = {}
    for site in sites:
        digits |= _partial_digits(program, site)
    first = sites[0].statement
    op = first.op if isinstance(first, Reduce) else "add"
    steps, names = _steps(program, op, family, sites[-1])
    if not any(digits.values()) and not steps:
        return None
    partial = {id(loop) for s in sites for loop in summing_loops(s, family)}
    repeated = [s for s, _ in steps if any(id(x) in partial for x in s.frame.loops)]
    if repeated and op not in _IDEMPOTENT:
        return Refuted(f"lane steps add up {fragment} in each turn of a loop that goes on with it")
    if early := _used_early(program, fragment, steps, sites[-1]):
        return early
    ways = list(routes(program, names, op, sites[-1]))
    folded = 0
    for _, mask in steps:
        folded |= mask
    lanes = program.kernel.warp_size - 1
    apart = frozenset(n for n, b in digits.items() if b & ~lanes or (ways and b & ~folded))
    inside = 0
    for name, bits in digits.items():
        inside |= 0 if name in apart else bits
    result = _each_element(program, fragment, op, inside, steps, sites)
    if not isinstance(result, Proved) or not apart:
        return result
    if ways:
        alone = _used_alone(program, fragment, ways, [s for s, _ in steps], sites[-1])
        return alone or prove_exchange(program, ways, apart, fragment, sites)
    return Refuted(
        f"the partial results of {fragment} at different {', '.join(sorted(apart))} "
        "are never combined"
    )


def _each_element(
    program: Program,
    fragment: str,
    op: str,
    lanes: int,
    steps: Sequence[tuple[Site, int]],
    sites: Sequence[Site],
) -> Result:
    """The lane steps of every element of the accumulator combine exactly the lane bits `lanes`."""
    masks: dict[tuple[int, ...], list[int]] = {}
    try:
        for site in sites:
            masks |= {e: [] for e in _elements(program, site)}
        for site, mask in steps:
            for element in _elements(program, site):
                masks.setdefault(element, []).append(mask)
    except UnboundError as error:
        return Unknown(f"the elements of {fragment} depend on {error}")
    for element, own in masks.items():
        place = f"{fragment}[{', '.join(map(str, element))}]"
        result = _spans(place, op, lanes, own)
        if not isinstance(result, Proved):
            return result
    return Proved(f"{1 << lanes.bit_count()} lanes combined, each once")


def _used_early(
    program: Program, fragment: str, steps: Sequence[tuple[Site, int]], last: Site
) -> Result | None:
    """A fault where a statement takes a partial result that a later lane step goes on with."""
    partial = {fragment}
    known = {s.frame.path for s, _ in steps}
    for site in program.sites:
        statement = site.statement
        if site.frame.path <= last.frame.path or site.frame.path in known:
            continue
        if isinstance(statement, Assign) and isinstance(statement.value, Read | Cast):
            if any(r.name in partial for r in registers_read(statement.value)):
                partial.add(statement.dst.name)
            continue
        later = [s for s, _ in steps if s.frame.path > site.frame.path]
        for use in uses(statement, program.target) if later else ():
            name = use.ref.name
            mixed = [s for s in later if _sets(s, name)] if name in partial else []
            if use.writes or not mixed:
                continue
            try:
                taken = {e for e, _ in elements_of(use, {})}
                if any(taken & _elements(program, s) for s in mixed):
                    return Refuted(f"{name} is used before the lane steps that combine it are done")
            except UnboundError as error:
                return Unknown(f"the elements of {name} depend on {error}")
    return None


def _used_alone(
    program: Program, fragment: str, ways: Sequence[Route], steps: Sequence[Site], last: Site
) -> Refuted | None:
    """A fault where a warp's own part is used, or the total before all parts are in it."""
    known = {s.frame.path for s in (*steps, *(w.store for w in ways), *(w.reduce for w in ways))}
    for site in program.sites:
        here = site.frame.path
        if here <= last.frame.path or here in known:
            continue
        read = {u.ref.name for u in uses(site.statement, program.target) if not u.writes}
        if fragment in read and not isinstance(site.statement, Assign):
            return Refuted(f"{fragment} is used where it is the result of one warp")
        for way in ways:
            total = way.combined.dst.name
            if total in read and way.store.frame.path < here < way.reduce.frame.path:
                return Refuted(f"{total} is used before the results of all warps are in it")
    return None


def _sets(site: Site, name: str) -> bool:
    return isinstance(site.statement, Assign) and site.statement.dst.name == name


def _elements(program: Program, site: Site) -> set[tuple[int, ...]]:
    """The accumulator elements that a reduction or a lane step writes."""
    found = [u for u in uses(site.statement, program.target) if u.writes]
    return {element for use in found for element, _ in elements_of(use, {})}


def _spans(fragment: str, op: str, lanes: int, masks: Sequence[int]) -> Result:
    reached = rank(masks)
    missing = [1 << i for i in range(lanes.bit_length()) if lanes >> i & 1]
    outside = next((m for m in masks if m & ~lanes), None)
    if outside is not None:
        return Refuted(
            f"the lane step with mask {outside} mixes lanes that hold other results of {fragment}",
            Witness((0, outside)),
        )
    lost = next((m for m in missing if rank([*masks, m]) > reached), None)
    if lost is not None:
        return Refuted(
            f"lane 0 of {fragment} never gets the partial result of lane {lost}",
            Witness((0, lost)),
            (f"masks {', '.join(map(str, masks)) or 'none'}, lane bits {lanes:#x}",),
        )
    if op not in _IDEMPOTENT and reached < len(masks):
        again = next(m for i, m in enumerate(masks) if rank(masks[: i + 1]) == rank(masks[:i]))
        return Refuted(
            f"the lane step with mask {again} counts partial results of {fragment} again",
            Witness((0, again)),
        )
    return Proved(f"{1 << reached} lanes combined, each once")


def _partial_digits(program: Program, site: Site) -> dict[str, int]:
    """Thread digits over which the reduction's coordinates run, with their bits."""
    statement = site.statement
    if not isinstance(statement, Reduce | Mma | WarpgroupMma):
        return {}
    used = frozenset[str]().union(*(r.coordinate.variables() for r in statement.reduces))
    found: dict[str, int] = {}
    for _, decode in site.frame.decodes:
        bits = digit_bits(program.kernel, decode)
        found |= {n: b for n, b in bits.items() if n in used}
    threads, lanes = program.kernel.threads - 1, program.kernel.warp_size - 1
    whole = {"thread": threads, "lane": lanes, "warp": threads & ~lanes}
    return found | {n: b for n, b in whole.items() if n in used}


def _steps(
    program: Program, op: str, family: frozenset[str], last: Site
) -> tuple[list[tuple[Site, int]], set[str]]:
    """The lane steps on the accumulator after its last term, in order, and its names by then."""
    names = set(family)
    found: list[tuple[Site, int]] = []
    for site in program.sites:
        statement = site.statement
        if site.frame.path <= last.frame.path or not isinstance(statement, Assign):
            continue
        mask = _step(statement.value, op, names)
        if mask is not None:
            names.add(statement.dst.name)
            found.append((site, mask))
        elif isinstance(statement.value, Read | Cast) and any(
            r.name in names for r in registers_read(statement.value)
        ):
            names.add(statement.dst.name)
    return found, names


def _step(value: Value, op: str, names: set[str]) -> int | None:
    if not isinstance(value, Apply) or value.op != op or len(value.args) != 2:
        return None
    one, two = value.args
    if isinstance(one, LaneXor):
        one, two = two, one
    if isinstance(one, Read) and isinstance(two, LaneXor) and one.ref == two.ref:
        return two.mask if one.ref.name in names else None
    return None
