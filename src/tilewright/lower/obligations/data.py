"""Kernels in which data says where tiles begin: proved for any such values, under a contract.

A variable that is data becomes a size like any other: what is proved for all its values holds
for each tile. That the values are in range, and what tiles owe to each other, is the contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.kernel.ops import Body, DataIndex, Kernel, Statement, Symbol, walk
from tilewright.kernel.rewrite import rewrite
from tilewright.poly.expr import less
from tilewright.poly.prove import Assumed, Kind, Obligation, Proved, Refuted, Unknown

# What holds within each tile, whichever it is.
_OF_ONE_TILE = frozenset({
    Kind.DECODE, Kind.BOUNDS, Kind.ALIGNMENT, Kind.REDUCTION, Kind.UNWRITTEN, Kind.INDEX_WIDTH,
})  # fmt: skip


def data_indices(kernel: Kernel) -> dict[str, DataIndex]:
    """The variables whose values are data, each with a statement that binds it."""
    return {s.var: s for s in walk(kernel.body) if isinstance(s, DataIndex)}


def with_data_as_sizes(kernel: Kernel) -> Kernel:
    """The kernel for any one value of each variable that is data."""

    def drop(statement: Statement) -> Body:
        return () if isinstance(statement, DataIndex) else (statement,)

    found = data_indices(kernel)
    return replace(
        kernel,
        body=rewrite(kernel.body, drop),
        symbols=(*kernel.symbols, *(Symbol(name, 0) for name in found)),
        contracts=(*kernel.contracts, *(less(name, s.extent) for name, s in found.items())),
    )


def under_contract(kernel: Kernel, obligations: Sequence[Obligation]) -> tuple[Obligation, ...]:
    """What obligations of `with_data_as_sizes` say of the kernel itself."""
    found = data_indices(kernel)
    return (*_contracts(found), *(_moved(o, ", ".join(found)) for o in obligations))


def _contracts(found: dict[str, DataIndex]) -> Iterator[Obligation]:
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
        contract = f"{names} agree in all roles, and a block's tiles without rows are its last"
        return replace(obligation, result=Assumed(contract))
    return obligation
