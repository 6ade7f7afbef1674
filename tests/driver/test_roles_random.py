"""Random products: each is refused in words that help, or proved and right to the last element.

Every run draws some; `--exhaustive` draws thousands.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from mutations import replaced, statements
from random_products import Case, arrays, compiled, draw, symbols
from role_programs import wide

import tilewright as tw
from tilewright.base.diagnostics import ConstraintError, TilewrightError
from tilewright.codegen.sim import simulate
from tilewright.driver.axes import named_axes
from tilewright.driver.compile import Compilation
from tilewright.kernel.ops import Reduce, Store
from tilewright.lower.obligations import verify
from tilewright.poly.results import Assumed, Proved, Refuted, Unknown

PER_TEST = 5
FEW = range(0, 40, PER_TEST)
MANY = range(1000, 4000, PER_TEST)
OPEN = "^blocks differ in|executions would have to be looked at$|symbolic extents and also used"
INTERNAL = re.compile(r"%\d|\bNone\b|<[a-z_.]+ object|\b[a-z]+_[a-z_]+\(|Traceback")


def check(case: Case) -> str:
    """How the case ends: the kind of kernel, or `refused`."""
    given, _ = arrays(case)
    try:
        compilation = compiled(case, given)
    except TilewrightError as error:
        check_refusal(case, error)
        return "refused"
    unproved = [o for o in compilation.obligations if not isinstance(o.result, Proved | Assumed)]
    assert all(is_known(case, o.result) for o in unproved), (case, unproved)
    for seed in (None, case.seed):
        check_run(case, compilation, seed)
    return "roles" if compilation.plan.roles else "none"


def is_known(case: Case, result: object) -> bool:
    """Open numbers of tiles that blocks go through in turns, and of steps with arithmetic."""
    turns = any(name == "persistent" for name, *_ in case.schedule)
    return (
        bool(case.open_axes)
        and (turns or case.loop != "sum" or "K" in case.open_axes)
        and isinstance(result, Unknown)
        and re.search(OPEN, result.reason) is not None
    )


def check_run(case: Case, compilation: Compilation, seed: int | None) -> None:
    """With copies and instructions as late as can be, or at random."""
    given, wanted = arrays(case)
    simulate(compilation.kernel, case.target, given, symbols(compilation, case, given), seed=seed)
    for name, values in wanted.items():
        np.testing.assert_array_equal(wide(given[name]), wide(values), err_msg=f"{name} of {case}")


def check_refusal(case: Case, error: TilewrightError) -> None:
    """It says what would be right and how to get there; an option left out is no longer named."""
    found = error.diagnostic
    assert not found.code.startswith("TW3"), (case, str(error))  # a fault of the compiler's own
    assert found.message, case
    assert found.expected, case
    assert found.mend, case
    words = " ".join((found.message, found.expected, found.mend, *found.notes))
    assert not INTERNAL.search(words), words
    option = re.match(r"leave (\w+) out", found.mend)
    if option and option[1] in case.hardware:
        rest = {n: v for n, v in case.hardware.items() if n != option[1]}
        assert refusal(replace(case, hardware=rest)) != found.message, case


def refusal(case: Case) -> str:
    """Why the case is refused; empty where it is not."""
    try:
        compiled(case, arrays(case)[0])
    except TilewrightError as error:
        return error.diagnostic.message
    return ""


@pytest.mark.parametrize("first", FEW)
def test_random_products(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        check(draw(seed))


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", MANY)
def test_many_random_products(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        check(draw(seed))


PLAIN = Case(
    0, tw.bf16, tw.bf16, {"M": 128, "N": 128, "K": 64}, {"M": 64, "N": 64, "K": 64},
    {"a": "MK", "b": "NK", "c": "MN"}, {},
)  # fmt: skip
ONE_TILE_EACH = {
    "few tiles": replace(PLAIN, hardware={"pingpong": True}),
    "open sizes": replace(PLAIN, hardware={"pingpong": True}, open_axes=frozenset("MN")),
    "by hand": replace(PLAIN, schedule=(("specialize", "pingpong"),)),
    "idle blocks": replace(PLAIN, schedule=(("persistent", 6), ("specialize", "pingpong"))),
}


@pytest.mark.parametrize("case", ONE_TILE_EACH.values(), ids=ONE_TILE_EACH.keys())
def test_turns_need_several_tiles_of_a_block(case: Case) -> None:
    with pytest.raises(ConstraintError) as caught:
        compiled(case, arrays(case)[0])
    assert "warpgroups cannot take turns: each block has one tile" in str(caught.value)
    few = replace(case, multiprocessors=2, open_axes=frozenset[str]())
    if case.schedule:
        few = replace(few, schedule=(("persistent", 2), ("specialize", "pingpong")))
    assert check(few) == "roles"


def test_blocks_without_tiles_to_go_through_are_refused() -> None:
    """Elements along both axes are combined, so that the counters are of steps."""
    both = replace(PLAIN, schedule=(("persistent", 2),), epilogue=("rows", "columns"))
    with pytest.raises(ConstraintError) as caught:
        compiled(both, arrays(both)[0])
    assert "the schedule has no counters of tiles that blocks could go through" in str(caught.value)


def test_sums_of_rows_in_blocks_with_several_tiles() -> None:
    """The tiles' counter has digits that the sum's coordinate uses, and one that it does not."""
    turns = replace(
        PLAIN, sizes={"M": 64, "N": 8, "K": 64, "B": 5}, tiles={"M": 64, "N": 8, "K": 64},
        orders={"a": "BMK", "b": "BNK", "c": "BMN"}, multiprocessors=4, epilogue=("columns",),
    )  # fmt: skip
    assert check(turns) == "roles"


def test_clusters_of_more_blocks_than_multiprocessors() -> None:
    sizes = {"M": 512, "N": 64, "K": 64}
    few = replace(PLAIN, sizes=sizes, hardware={"cluster": 4}, multiprocessors=3)
    assert check(few) == "roles"


def test_blocks_divide_the_tiles_of_an_open_size() -> None:
    """No guard is left, for the ranges of the counters imply it: they still write the tiles."""
    turns = replace(
        PLAIN, open_axes=frozenset("N"), schedule=(("persistent", 2),), epilogue=("bias",)
    )
    compilation = compiled(turns, arrays(turns)[0])
    assert all(isinstance(o.result, Proved | Assumed) for o in compilation.obligations)
    check_run(turns, compilation, None)


@pytest.mark.parametrize("fault", ["before the last sum", "one warp's part"])
def test_results_of_one_warp_alone_are_not_proved(fault: str) -> None:
    """Sums over the rows of a tile come together through shared memory; here, one warp's leave."""
    sums = replace(PLAIN, sizes={"M": 64, "N": 64, "K": 64}, epilogue=("columns",))
    compilation = compiled(sums, arrays(sums)[0])
    kernel = compilation.kernel
    (_, part), (at, total) = statements(kernel, Reduce)
    to, store = statements(kernel, Store)[-1]
    if fault == "before the last sum":
        wrong = replaced(replaced(kernel, to, (store, total)), at, ())
    else:
        assert isinstance(store, Store)
        assert isinstance(part, Reduce)
        assert store.dst.name == "columns"
        own = replace(store, src=replace(store.src, name=part.dst.name))
        wrong = replaced(kernel, to, (own,))
    found = verify(wrong, sums.target, named_axes(compilation.graph))
    faults = [o.result.message for o in found if isinstance(o.result, Refuted)]
    where = {"before the last sum": "before the results of all warps are in it",
             "one warp's part": "where it is the result of one warp"}[fault]  # fmt: skip
    assert any(where in message for message in faults), faults
