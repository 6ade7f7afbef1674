"""Proofs of kernels in which data says where tiles begin: what is assumed, and what is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from grouped_programs import Form, grouped

from tilewright.kernel.async_ops import NamedBarrier, ProxyFence, WarpgroupWait
from tilewright.kernel.ops import Body, DataIndex, If, Kernel, Statement, walk
from tilewright.kernel.rewrite import rewrite
from tilewright.lower.obligations import verify
from tilewright.lower.obligations.data import ways
from tilewright.poly.expr import at_least
from tilewright.poly.results import Assumed, Kind, Unknown
from tilewright.target.nvidia import SM_90A

SIZES = {"T": 384, "E": 4, "N": 64, "K": 128, "ROWS": 128, "COLUMNS": 64, "STEP": 64}


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return grouped(Form()).compile("sm_90a", bindings=SIZES).compilation.kernel


def changed(kernel: Kernel, change: Callable[[Statement], Body]) -> Kernel:
    from dataclasses import replace

    return replace(kernel, body=rewrite(kernel.body, change))


def without(kernel: Kernel, kind: type) -> Kernel:
    return changed(kernel, lambda s: () if isinstance(s, kind) else (s,))


def test_each_way_through_the_guards_is_looked_at(kernel: Kernel) -> None:
    """Tiles without rows, whole tiles and partial ones, in which whole ones go out by bulk."""
    found = ways(kernel)
    assert found is not None
    assert len(found) == 3
    assert not any(isinstance(s, DataIndex) for way in found for s in walk(way.body))
    fences = sorted(sum(isinstance(s, ProxyFence) for s in walk(way.body)) for way in found)
    assert fences == [0, 0, 1]


def test_nothing_is_left_open(kernel: Kernel) -> None:
    results = {o.kind: o.result for o in verify(kernel, SM_90A)}
    assert not any(isinstance(r, Unknown) for r in results.values())
    for kind in (Kind.RACE, Kind.PHASE, Kind.DEADLOCK, Kind.DRAIN, Kind.PROXY):
        assert isinstance(results[kind], Assumed)
        assert "agree in all roles" in results[kind].contract


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(ProxyFence, Kind.PROXY), (NamedBarrier, Kind.PROXY), (WarpgroupWait, Kind.FLIGHT)],
)
def test_faults_on_some_way_are_not_assumed_away(kernel: Kernel, fault: type, kind: Kind) -> None:
    faulty = without(kernel, fault)
    open_ones = [o for o in verify(faulty, SM_90A) if isinstance(o.result, Unknown)]
    found = next(o.result for o in open_ones if o.kind in (kind, Kind.RACE, Kind.RELEASE))
    assert isinstance(found, Unknown)
    assert "are data: " in found.reason


def test_roles_that_disagree_are_found(kernel: Kernel) -> None:
    """The copying role leaves out tiles of less than two rows, which the others wait for."""
    seen: list[If] = []

    def shrink(statement: Statement) -> Body:
        if isinstance(statement, If) and "t_last" in str(statement.guard) and not seen:
            seen.append(statement)
            return (If((at_least("t_last", 1), *statement.guard, at_least("t_group", 1)),
                       statement.body),)  # fmt: skip
        return (statement,)

    results = [o for o in verify(changed(kernel, shrink), SM_90A) if o.kind is Kind.DEADLOCK]
    assert [o for o in results if isinstance(o.result, Unknown)]
