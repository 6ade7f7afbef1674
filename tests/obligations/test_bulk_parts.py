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
from tilewright.kernel.async_ops import BulkLoad, RemoteStore, WarpgroupMma
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    RegRef,
    Statement,
    Store,
    walk,
)
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


def names() -> tuple[str, str, str]:
    """The rank's digit, the fragment of a block's part, and that of the total."""
    kernel = RIGHT[4][0]
    decode = next(s for s in kernel.body if isinstance(s, Decode) and s.source == V("block"))
    part = next(s.d.name for s in statements(kernel) if isinstance(s, WarpgroupMma))
    return decode.digits[-1][0], part, next(s.dst.name for s in statements(kernel) if is_sum(s))


def statements(kernel: Kernel) -> list[Any]:
    return list(walk(kernel.body))


def is_sum(s: Statement) -> bool:
    return isinstance(s, Assign) and isinstance(s.value, Apply) and s.value.op == "add"


RANK, PART, TOTAL = names()


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


def reads_parts(s: Statement) -> bool:
    return isinstance(s, Load) and s.src.name == "parts"


def adds(s: Loop) -> bool:
    return any(reads_parts(x) for x in walk(s.body))


def sums_parts(s: Statement) -> bool:
    return isinstance(s, Loop) and s.extent == V(3) and adds(s)


def summed_later(s: If) -> If:
    """With the sums after the next statement that computes with registers."""
    at = next(i for i, x in enumerate(s.body) if sums_parts(x))
    to = next(i for i, x in enumerate(s.body) if i > at and isinstance(x, Assign | Loop))
    body = (*s.body[:at], *s.body[at + 1 : to + 1], s.body[at], *s.body[to + 1 :])
    return replace(s, body=body)


def of_first_owner(s: RemoteStore) -> RegRef:
    """The registers that the block of rank 0 gets."""
    own = {n for n, _ in s.over}
    last = s.src.index[-1]
    return moved(
        s.src, -1 % len(s.src.index), last.substitute(dict.fromkeys(last.variables() - own, 0))
    )


def moved(s: Any, axis: int, index: Expr) -> Any:
    return replace(s, index=(*s.index[:axis], index, *s.index[axis + 1 :]))


FAULTS: dict[str, tuple[Kernel, Kind, str]] = {
    "a sender that is left out": (
        changed(sums_parts, lambda s: replace(s, extent=V(2))),
        Kind.REDUCTION, f"the part of {PART} at {RANK} = 3 is never counted into {TOTAL}[0]",
    ),
    "a sender that is added twice": (
        changed(reads_parts, lambda s: replace(s, src=moved(s.src, 1, V(0)))),
        Kind.REDUCTION, f"the part of {PART} at {RANK} = 0 is counted again into {TOTAL}",
    ),
    "stores of the lower ranks alone": (
        changed(lambda s: isinstance(s, If) and isinstance(s.body[0], RemoteStore), lambda s: ()),
        Kind.UNWRITTEN, "parts[0, 0, 0, 0, 0] is read before any block has stored it",
    ),
    "a use before the sums": (
        changed(lambda s: isinstance(s, If) and any(map(sums_parts, s.body)), summed_later),
        Kind.REDUCTION, f"{TOTAL} is used before the parts of all blocks are added",
    ),
    "a part that comes back": (
        changed(lambda s: isinstance(s, RemoteStore),
                lambda s: replace(s, block=V(RANK))),
        Kind.REDUCTION, f"the part of {PART} at {RANK} = 0 is counted again into {TOTAL}",
    ),
    "columns of another owner": (
        changed(lambda s: isinstance(s, RemoteStore),
                lambda s: replace(s, src=of_first_owner(s))),
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
                    e.substitute({RANK: 0}) for e in s.coordinates))),
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
    assert result == Unknown(f"how the parts of {PART} come together is not plain")


def test_stores_to_other_blocks_stay_in_bounds() -> None:
    kernel = changed(
        lambda s: isinstance(s, RemoteStore),
        lambda s: replace(s, dst=moved(s.dst, 2, s.dst.index[2] + 1)),
    )
    (fault,) = refutations(kernel, {}, Kind.BOUNDS)
    assert "is outside: axis 2 has" in fault.message
    assert not any(isinstance(s, Store) and s.dst.name == "parts" for s in statements(kernel))
