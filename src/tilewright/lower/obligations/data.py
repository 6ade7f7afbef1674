"""Kernels in which data says where tiles begin: proved for any such values, under a contract.

A variable that is data becomes a size like any other: what is proved for all its values holds
for each tile. That the values are in range, and what tiles owe to each other, is the contract.
The order of agents is looked at once for each way through the guards that data decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from tilewright.kernel.async_ops import PhaseWait
from tilewright.kernel.ops import (
    Body,
    DataIndex,
    If,
    Kernel,
    Load,
    Loop,
    Statement,
    Store,
    Symbol,
    walk,
)
from tilewright.kernel.passes import simplify
from tilewright.kernel.rewrite import rewrite, substitute
from tilewright.kernel.scopes import expressions
from tilewright.poly.expr import Constraint, Guard, less
from tilewright.poly.prove import Assumed, Kind, Obligation, Proved, Refuted, Unknown

# What holds within each tile, whichever it is.
_OF_ONE_TILE = frozenset({
    Kind.DECODE, Kind.BOUNDS, Kind.ALIGNMENT, Kind.REDUCTION, Kind.UNWRITTEN, Kind.INDEX_WIDTH,
})  # fmt: skip
_LARGE = 1 << 20  # a value of data that has no fixed bound
_MOST_WAYS = 8  # through the guards that data decides


def data_indices(kernel: Kernel) -> dict[str, DataIndex]:
    """The variables whose values are data, each with a statement that binds it."""
    return {s.var: s for s in walk(kernel.body) if isinstance(s, DataIndex)}


def with_data_as_sizes(kernel: Kernel) -> Kernel:
    """The kernel for any one value of each variable that is data."""
    found = data_indices(kernel)
    return replace(
        kernel,
        body=_without(kernel.body),
        symbols=(*kernel.symbols, *(Symbol(name, 0) for name in found)),
        contracts=(*kernel.contracts, *(less(name, s.extent) for name, s in found.items())),
    )


def ways(kernel: Kernel) -> list[Kernel] | None:
    """The kernel for values that stand for all, as far as its order of agents goes.

    One for each way through the guards that data decides. Loads and stores run in all of them.
    None where data decides more than guards, or too much.
    """
    found = data_indices(kernel)
    names = frozenset(found)
    for statement in walk(kernel.body):
        if isinstance(statement, Loop | PhaseWait) and any(
            e.variables() & names for e in expressions(statement)
        ):
            return None
    guards = [s.guard for s in walk(kernel.body) if isinstance(s, If) and _read(s.guard, names)]
    if any(not c.expr.variables() <= names for guard in guards for c in _read(guard, names)):
        return None
    values: dict[tuple[bool, ...], Mapping[str, int]] = {}
    for point in product(*((0, 1, _last(s)) for s in found.values())):
        given = dict(zip(found, point, strict=True))
        way = tuple(_holds(c, given) for guard in guards for c in _read(guard, names))
        values.setdefault(way, given)
    return [_at(kernel, given) for given in values.values()] if len(values) <= _MOST_WAYS else None


def _read(guard: Guard, names: frozenset[str]) -> Guard:
    return tuple(c for c in guard if c.expr.variables() & names)


def _last(s: DataIndex) -> int:
    return s.extent.const - 1 if s.extent.is_const else _LARGE


def _holds(constraint: Constraint, given: Mapping[str, int]) -> bool:
    value = constraint.expr.evaluate(given)
    return value == 0 if constraint.equality else value >= 0


def _at(kernel: Kernel, given: Mapping[str, int]) -> Kernel:
    """The kernel at these values, its loads and stores unguarded by them."""
    names = frozenset(given)

    def widen(statement: Statement) -> Body:
        if not isinstance(statement, Load | Store):
            return (statement,)
        kept = tuple(c for c in statement.guard if c not in _read(statement.guard, names))
        return (replace(statement, guard=kept),)

    body = substitute(rewrite(_without(kernel.body), widen), given)
    return simplify(replace(kernel, body=body))


def _without(body: Body) -> Body:
    def drop(statement: Statement) -> Body:
        return () if isinstance(statement, DataIndex) else (statement,)

    return rewrite(body, drop)


# ---------------------------------------------------------------- what it says


def under_contract(kernel: Kernel, obligations: Sequence[Obligation]) -> tuple[Obligation, ...]:
    """What obligations of `with_data_as_sizes` say of the kernel itself."""
    found = data_indices(kernel)
    return (*_contracts(found), *(_moved(o, ", ".join(found)) for o in obligations))


def joined(ways: Sequence[Sequence[Obligation]]) -> tuple[Obligation, ...]:
    """What holds in every one of the ways."""
    found: dict[tuple[Kind, str, str], Obligation] = {}
    for obligation in (o for way in ways for o in way):
        key = obligation.kind, obligation.subject, obligation.statement
        if key not in found or isinstance(found[key].result, Proved):
            found[key] = obligation
    return tuple(found.values())


def _contracts(found: Mapping[str, DataIndex]) -> Iterator[Obligation]:
    for name, s in found.items():
        contract = f"0 <= {name} < {s.extent} for the value that {s.ref.name} has"
        yield Obligation(Kind.BOUNDS, name, Assumed(contract), s.span, f"data {name}")


def _moved(obligation: Obligation, names: str) -> Obligation:
    kind, result = obligation.kind, obligation.result
    if isinstance(result, Refuted):
        # Two tiles with the same values, or values that no data gives, are no witness.
        open_result = Unknown(f"{names} are data: {result.message}")
        covered = Assumed(f"the tiles that {names} say have each element once")
        return replace(obligation, result=covered if kind is Kind.COVERAGE else open_result)
    if isinstance(result, Proved) and kind not in _OF_ONE_TILE:
        contract = f"{names} agree in all roles, and a block's tiles take the same way through them"
        return replace(obligation, result=Assumed(contract))
    return obligation
