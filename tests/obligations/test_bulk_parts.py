"""Sums that the blocks of a cluster share: every block's part is added once, where it belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from bulk_kernels import RELATIONS, refutations, related
from proof_kernels import rewrite

import tilewright as tw
from tilewright.driver.axes import named_axes
from tilewright.kernel.async_ops import BulkLoad, RemoteStore
from tilewright.kernel.ops import Apply, Assign, Body, If, Kernel, Load, Loop, Statement, Store
from tilewright.kernel.verify import check
from tilewright.poly.expr import Expr
from tilewright.poly.results import Kind, Proved, Unknown
from tilewright.target.nvidia import SM_90A

V = Expr.of
M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


def split(parts: int) -> tuple[Kernel, dict[str, tuple[str, ...]]]:
    """c = a b^T, the terms of a tile shared by the blocks of a cluster."""
    constraints = [
        tw.WorkgroupConstraint(M, 128, 0), tw.WorkgroupConstraint(N, 128, 1),
        tw.TilingConstraint(K, 64), tw.HardwareConstraint(split_k=parts),
    ]  # fmt: skip

    @tw.kernel(constraints)
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    compiled = gemm.compile("sm_90a", {"M": 256, "N": 256, "K": 1024})
    return compiled.compilation.kernel, dict(named_axes(compiled.compilation.graph))


RIGHT = {parts: split(parts) for parts in (2, 4)}


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_cluster_are_proved(parts: int) -> None:
    kernel, named = RIGHT[parts]
    assert kernel.cluster == parts
    found = related(kernel, named)
    assert {o.kind for o in found} == set(RELATIONS)
    assert all(isinstance(o.result, Proved) for o in found), found
    (whole,) = (o.result for o in found if o.statement == "parts")
    assert whole == Proved("the parts of all blocks of a cluster added, each once")


def changed(
    chosen: Callable[[Statement], bool], change: Callable[[Any], Statement | Body]
) -> Kernel:
    """The kernel of four parts with the first of the chosen statements changed."""
    done: list[Statement] = []

    def visit(s: Statement) -> Statement | Body:
        if not done and chosen(s):
            done.append(s)
            return change(s)
        return s

    result = rewrite(RIGHT[4][0], visit)
    assert done, "nothing was changed"
    check(result, SM_90A)
    return result


def is_sum(s: Statement) -> bool:
    return isinstance(s, Assign) and isinstance(s.value, Apply) and s.value.op == "add"


def reads_parts(s: Statement) -> bool:
    return isinstance(s, Load) and s.src.name == "parts"


def around(kind: Callable[[Statement], bool]) -> Callable[[Statement], bool]:
    return lambda s: isinstance(s, Loop) and any(kind(x) for x in s.body)


def moved(s: Any, axis: int, index: Expr) -> Any:
    return replace(s, index=(*s.index[:axis], index, *s.index[axis + 1 :]))


FAULTS: dict[str, tuple[Kernel, Kind, str]] = {
    "a sender that is left out": (
        changed(lambda s: isinstance(s, Loop) and s.var.startswith("sender"),
                lambda s: replace(s, extent=V(2))),
        Kind.REDUCTION, "the part of v6_acc at part_block = 3 is never counted into v6_part[0]",
    ),
    "a sender that is added twice": (
        changed(reads_parts, lambda s: replace(s, src=moved(s.src, 1, V(0)))),
        Kind.REDUCTION, "the part of v6_acc at part_block = 0 is counted again into v6_part",
    ),
    "stores of the lower ranks alone": (
        changed(lambda s: isinstance(s, If) and isinstance(s.body[0], RemoteStore), lambda s: ()),
        Kind.UNWRITTEN, "parts[0, 0, 0, 0, 0] is read before any block has stored it",
    ),
    "a part that comes back": (
        changed(lambda s: isinstance(s, RemoteStore),
                lambda s: replace(s, block=V("part_block"))),
        Kind.REDUCTION, "the part of v6_acc at part_block = 0 is counted again into v6_part",
    ),
    "columns of another owner": (
        changed(lambda s: isinstance(s, RemoteStore),
                lambda s: replace(s, src=moved(s.src, -1 % len(s.src.index), V("part_n") * 4))),
        Kind.ELEMENT, "b is loaded at N = 0 where N = 32 is wanted",
    ),
    "registers in another order": (
        changed(is_sum, lambda s: replace(s, value=replace(s.value, args=(
            s.value.args[0],
            replace(s.value.args[1], ref=moved(
                s.value.args[1].ref, -1 % len(s.value.args[1].ref.index),
                V(3) - s.value.args[1].ref.index[-1])))))),
        Kind.ELEMENT, "a is loaded at M = 0 where M = 8 is wanted",
    ),
    "the terms of another part": (
        changed(lambda s: isinstance(s, BulkLoad),
                lambda s: replace(s, coordinates=tuple(
                    e.substitute({"part_block": 0}) for e in s.coordinates))),
        Kind.ELEMENT, "a is loaded at K = 0 where K = 64 is wanted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(name: str) -> None:
    kernel, kind, message = FAULTS[name]
    found = [r.message for r in refutations(kernel, RIGHT[4][1], kind)]
    assert any(message in m for m in found), found


def test_a_part_that_is_stored_as_it_is_is_open() -> None:
    """Nothing adds the others' parts: that these are not part of the result is not known."""
    kernel, named = RIGHT[4]
    without = rewrite(kernel, lambda s: () if isinstance(s, RemoteStore) else s)
    found = related(without, named, (Kind.REDUCTION,))
    (result,) = (o.result for o in found if o.statement == "parts")
    assert result == Unknown("how the parts of v6_acc come together is not plain")


def _all(kernel: Kernel) -> list[Statement]:
    seen: list[Statement] = []

    def visit(s: Statement) -> Statement:
        seen.append(s)
        return s

    rewrite(kernel, visit)
    return seen


def test_stores_to_other_blocks_stay_in_bounds() -> None:
    kernel = changed(
        lambda s: isinstance(s, RemoteStore),
        lambda s: replace(s, dst=moved(s.dst, 2, s.dst.index[2] + 1)),
    )
    (fault,) = refutations(kernel, {}, Kind.BOUNDS)
    assert "is outside: axis 2 has" in fault.message
    assert not any(isinstance(s, Store) and s.dst.name == "parts" for s in _all(kernel))
