"""Scans: their numbers against NumPy, their code, what is refused; their proof against seeded
faults, judged by the numbers that the faulty kernels give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from programs import CASES, Case

import tilewright as tw
from tilewright import CompiledKernel, TileKernel, TilewrightError
from tilewright.base.diagnostics import (
    DTypeError,
    ReductionError,
    ShapeError,
    UnsupportedError,
)
from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Body,
    Const,
    Holds,
    Kernel,
    LaneXor,
    Loop,
    Part,
    Reduce,
    Statement,
    Value,
    walk,
)
from tilewright.kernel.rewrite import map_values, rewrite, substitute
from tilewright.lower.obligations import verify
from tilewright.lower.obligations.scans import scans
from tilewright.lower.obligations.scope import Program
from tilewright.poly.expr import Constraint, Expr
from tilewright.poly.prove import Kind, Proved, Refuted, Unknown
from tilewright.runtime.toolchain import Clang, Nvrtc, find_clang
from tilewright.target import target_named

sym = tw.sym
M, N = sym.M, sym.N
G = tw.GLOBAL
SCANS = [c for c in CASES if "scan" in c.name or c.name.startswith("cum") or "prefix" in c.name]


def rows(how: Callable[[tw.lang.tracing.Value], tw.lang.tracing.Value], dtype: tw.DType,
         tile: int | None = None) -> TileKernel:  # fmt: skip
    given = [] if tile is None else [tw.TilingConstraint(N, tile)]

    @tw.kernel([tw.WorkgroupConstraint(M, 2, 0), *given])
    def rows(x: tw.Memory[M, N, G, dtype], y: tw.Memory[M, N, G, dtype]):
        tw.write(how(tw.read(x)), y)

    return rows


SUMS = rows(lambda v: tw.cumsum(v, dim=N), tw.i32)


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 100, 1000, 5000, 9000])
def test_sums_are_those_of_numpy(size: int) -> None:
    x = np.random.default_rng(size).integers(-1000, 1000, (3, size)).astype(np.int32)
    y = np.zeros_like(x)
    SUMS(x, y)
    np.testing.assert_array_equal(y, np.cumsum(x, axis=1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_an_exclusive_scan_leaves_out_its_own(name: str, reverse: bool) -> None:
    scan = getattr(tw, name)
    kernel = rows(lambda v: scan(v, dim=N, exclusive=True, reverse=reverse), tw.i64)
    x = np.random.default_rng(1).integers(-3, 4, (2, 70))
    y = np.zeros_like(x)
    kernel(x, y)
    numpy = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
    first = {"cumsum": 0, "cumprod": 1, "cummax": -(2**63), "cummin": 2**63 - 1}[name]
    ordered = x[:, ::-1] if reverse else x
    inclusive = numpy[name].accumulate(ordered, axis=1)
    wanted = np.concatenate([np.full((2, 1), first), inclusive[:, :-1]], axis=1)
    np.testing.assert_array_equal(y, wanted[:, ::-1] if reverse else wanted)


def test_narrow_floats_are_rounded_once() -> None:
    x = np.full((2, 3000), 1.0, np.float16)
    y = np.zeros_like(x)
    rows(lambda v: tw.cumsum(v, dim=N), tw.f16)(x, y)
    np.testing.assert_array_equal(y[0], np.arange(1, 3001).astype(np.float16))


def test_nan_spreads_from_where_it_is() -> None:
    x = np.zeros((2, 40), np.float32)
    x[0, 17] = np.nan
    y = np.zeros_like(x)
    rows(lambda v: tw.cummax(v, dim=N), tw.f32)(x, y)
    np.testing.assert_array_equal(np.isnan(y), [[n >= 17 for n in range(40)], [False] * 40])


# ---------------------------------------------------------------- code


@pytest.mark.parametrize("case", SCANS, ids=lambda c: c.name)
def test_it_compiles_for_cuda(case: Case) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra `cuda`")
    used = Nvrtc().resources(compiled(case, "sm_90a").source, target_named("sm_90a"))
    assert used.stack < 64  # fragments stay in registers, but for a few that nvcc spills


@pytest.mark.parametrize("case", SCANS, ids=lambda c: c.name)
def test_it_compiles_for_hip(case: Case) -> None:
    try:
        find_clang()
    except TilewrightError as missing:
        pytest.skip(missing.diagnostic.message)
    assert Clang().build(compiled(case, "gfx942").source, target_named("gfx942"))


def compiled(case: Case, target: str) -> CompiledKernel:
    size = {"D": 1, **case.sizes[1]}
    return case.make().compile(target, {a: n for a, n in size.items() if a not in case.dynamic})


def test_a_thread_holds_neighbours() -> None:
    kernel = SUMS.compile("sm_90a", {"M": 2, "N": 1024}).compilation.kernel
    claims = [s for s in walk(kernel.body) if isinstance(s, Assign) and s.scans is not None]
    assert [s.scans.part for s in claims if s.scans] == [Part.TERM, Part.THROUGH]
    shuffles = [s for s in walk(kernel.body) if isinstance(s, Assign)
                and isinstance(s.value, LaneXor)]  # fmt: skip
    assert [s.value.mask for s in shuffles] == [1, 2, 4, 8, 16]  # type: ignore[union-attr]


# ---------------------------------------------------------------- refusals


def both_ways() -> None:
    def how(v: tw.lang.tracing.Value) -> tw.lang.tracing.Value:
        return tw.cumsum(v, dim=N) + tw.cumsum(v, dim=N, reverse=True)

    rows(how, tw.f32).compile("sm_90a", {"M": 4, "N": 10000})


def two_long_axes() -> None:
    def how(v: tw.lang.tracing.Value) -> tw.lang.tracing.Value:
        return tw.cumsum(tw.cumsum(v, dim=N), dim=M)

    @tw.kernel()
    def bad(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32]):
        tw.write(how(tw.read(x)), y)

    bad.compile("sm_90a", {"M": 10000, "N": 10000})


def across_blocks() -> None:
    @tw.kernel([tw.WorkgroupConstraint(N, 64, 0)])
    def bad(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32]):
        tw.write(tw.cumsum(tw.read(x), dim=N), y)

    bad.compile("sm_90a", {"M": 4, "N": 100})


def of_bools() -> None:
    rows(lambda v: tw.cumsum(v, dim=N), tw.boolean).compile("sm_90a")


def along_another_axis() -> None:
    rows(lambda v: tw.cumsum(v, dim=sym.K), tw.f32).compile("sm_90a")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (both_ways, UnsupportedError, "scans along N in both directions meet in one value"),
        (two_long_axes, UnsupportedError, "a loop that is not the innermost one"),
        (across_blocks, ReductionError, "a scan runs along N, which is given to blocks"),
        (of_bools, DTypeError, "a bool value is scanned"),
        (along_another_axis, ShapeError, r"a value over \['M', 'N'\] is scanned along K"),
    ],
)
def test_what_cannot_be_scanned_is_refused(
    make: Callable[[], None], kind: type[TilewrightError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        make()
    assert caught.value.diagnostic.mend


def test_both_ways_is_fine_in_one_step_and_in_two_writes() -> None:
    @tw.kernel([tw.WorkgroupConstraint(M, 1, 0)])
    def both(
        x: tw.Memory[M, N, G, tw.i32], y: tw.Memory[M, N, G, tw.i32], z: tw.Memory[M, N, G, tw.i32]
    ):
        v = tw.read(x)
        tw.write(tw.cumsum(v, dim=N), y)
        tw.write(tw.cumsum(v, dim=N, reverse=True), z)

    x = np.random.default_rng(5).integers(-9, 9, (2, 9000)).astype(np.int32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    both(x, y, z)
    np.testing.assert_array_equal(y, np.cumsum(x, axis=1))
    np.testing.assert_array_equal(z, np.cumsum(x[:, ::-1], axis=1)[:, ::-1])


# ---------------------------------------------------------------- the proof


@cache
def judged(name: str) -> CompiledKernel:
    """Small kernels with every level of a scan, over whole tiles."""
    many = rows(lambda v: tw.cumsum(v, dim=N), tw.i32, 256)
    back = rows(lambda v: tw.cumsum(v, dim=N, reverse=True, exclusive=True), tw.i32, 256)
    most = rows(lambda v: tw.cummax(v, dim=N, exclusive=True), tw.i32, 256)

    @tw.kernel([tw.WorkgroupConstraint(N, 8, 0), tw.TilingConstraint(M, 128)])
    def columns(x: tw.Memory[M, N, G, tw.i32], y: tw.Memory[M, N, G, tw.i32]):
        tw.write(tw.cumsum(tw.read(x), dim=M), y)

    kernel = {"many": many, "back": back, "most": most, "columns": columns}[name]
    sizes = {"M": 384, "N": 8} if name == "columns" else {"M": 4, "N": 768}
    return kernel.compile("sm_90a", sizes)


def wanted(name: str, x: np.ndarray) -> np.ndarray:
    if name == "most":
        return np.concatenate(
            [np.full((len(x), 1), -(2**31)), np.maximum.accumulate(x, axis=1)[:, :-1]], axis=1
        )
    if name == "back":
        return np.cumsum(x[:, ::-1], axis=1)[:, ::-1] - x
    return np.cumsum(x, axis=0 if name == "columns" else 1)


NAMES = ["many", "back", "most", "columns"]


@pytest.mark.parametrize("name", NAMES)
def test_the_scan_is_proved(name: str) -> None:
    kernel = judged(name)
    (scan,) = [o for o in kernel.proofs if o.kind is Kind.REDUCTION and o.statement == "scan"]
    assert isinstance(scan.result, Proved)
    assert "each element combines the terms" in scan.result.note


@pytest.mark.parametrize("name", NAMES)
def test_every_seeded_fault_shows_in_the_proof_as_in_the_numbers(name: str) -> None:
    kernel = judged(name)
    whole = kernel.compilation.kernel
    refuted = proved = 0
    for change, mutant in mutants(whole):
        (scan,) = scans(Program.of(mutant, kernel.target))
        right = gives_the_right_numbers(name, mutant)
        if isinstance(scan.result, Proved):
            # What is lost after the scan, as in a store, is for the other proofs to find.
            elsewhere = any(isinstance(o.result, Refuted) for o in verify(mutant, kernel.target))
            assert right or elsewhere, f"{change}: proved, but the numbers are wrong"
            proved += 1
        elif isinstance(scan.result, Refuted):
            assert not right, f"{change}: {scan.result.message}, but the numbers are right"
            refuted += 1
        else:
            assert isinstance(scan.result, Unknown), change
            assert not right, f"{change}: {scan.result.reason}"
    assert refuted >= 8


@pytest.mark.parametrize(
    ("name", "message"),
    [("many", "does not begin at N = 0"), ("back", "does not reach the end of N")],
)
def test_a_scan_that_starts_at_the_second_tile_is_refuted(name: str, message: str) -> None:
    def late(s: Statement) -> Body:
        if not isinstance(s, Loop) or s.unroll:
            return (s,)
        return (replace(s, body=substitute(s.body, {s.var: Expr.of(s.var) + 1})),)

    kernel = judged(name)
    mutant = replace(kernel.compilation.kernel, body=rewrite(kernel.compilation.kernel.body, late))
    (scan,) = scans(Program.of(mutant, kernel.target))
    assert isinstance(scan.result, Refuted)
    assert message in scan.result.message


def gives_the_right_numbers(name: str, mutant: Kernel) -> bool:
    shape = tuple(e.const for e in mutant.tensors[0].shape)
    x = np.random.default_rng(2).integers(-(2**30), 2**30, shape).astype(np.int32)
    if name == "most":  # rising rows show terms too many, falling ones terms too few
        x = np.sort(x, axis=1)
        x[[1, 2]] = x[[1, 2], ::-1]
    y = np.zeros_like(x)
    try:
        simulate(mutant, target_named("sm_90a"), {"x": x, "y": y}, {})
    except TilewrightError:
        return False
    return bool((y == wanted(name, x.astype(np.int64)).astype(np.int32)).all())


def mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """The kernel with one statement between the terms and the result changed or dropped."""
    claims = [s for s in walk(kernel.body) if isinstance(s, Assign) and s.scans is not None]
    scanning = [
        s for s in walk(kernel.body)
        if isinstance(s, Assign | Reduce) and not any(s is c for c in claims)
        and s.dst.name.startswith(claims[-1].dst.name)
    ]  # fmt: skip
    for number, statement in enumerate(scanning):
        for what, changed in changes(statement):

            def put(s: Statement, old: Statement = statement, new: Body = changed) -> Body:
                return new if s is old else (s,)

            yield f"{number} {what}", replace(kernel, body=rewrite(kernel.body, put))
    for loop in walk(kernel.body):
        if isinstance(loop, Loop) and loop.unroll and loop.extent.const > 1:
            shorter = replace(loop, extent=loop.extent - 1)

            def cut(s: Statement, old: Loop = loop, new: Loop = shorter) -> Body:
                same = isinstance(s, Loop) and s.var == old.var
                return (replace(new, body=s.body),) if same else (s,)

            yield f"loop over {loop.var} cut", replace(kernel, body=rewrite(kernel.body, cut))


def changes(statement: Assign | Reduce) -> Iterator[tuple[str, Body]]:
    yield "dropped", ()
    yield "doubled", (statement, statement)
    for what, value in changed_values(statement.value):
        yield what, (replace(statement, value=value),)


def changed_values(value: Value) -> Iterator[tuple[str, Value]]:
    def each(change: Callable[[Value], Value]) -> Value | None:
        new = map_values(value, change)
        return new if new != value else None

    def other_lane(v: Value) -> Value:
        return replace(v, mask=v.mask ^ 3 or 4) if isinstance(v, LaneXor) else v

    def other_guard(v: Value) -> Value:
        if not isinstance(v, Holds):
            return v
        return replace(v, guard=tuple(Constraint(c.expr + 1, c.equality) for c in v.guard))

    def other_number(v: Value) -> Value:
        return replace(v, value=5) if isinstance(v, Const) else v

    def one_side(v: Value) -> Value:
        return v.args[0] if isinstance(v, Apply) and v.op != "select" else v

    def other_side(v: Value) -> Value:
        return v.args[1] if isinstance(v, Apply) else v

    for change in (other_lane, other_guard, other_number, one_side, other_side):
        new = each(change)
        if new is not None:
            yield change.__name__, new


# ---------------------------------------------------------------- schedules


@pytest.mark.parametrize("blocks", [1, 3, 20])
@pytest.mark.parametrize("size", [(11, 5000), (11, 100), (1, 1)])
def test_persistent_blocks_start_each_row_anew(size: tuple[int, int], blocks: int) -> None:
    @tw.kernel()
    def sums(x: tw.Memory[M, N, G, tw.i32], y: tw.Memory[M, N, G, tw.i32]):
        tw.write(tw.cumsum(tw.read(x), dim=N, reverse=True), y)

    kernel = sums.compile(
        "sm_90a", {"M": size[0], "N": size[1]},
        schedule=lambda s: s.split("M", 2, "mo", "mi").persistent(blocks),
    )  # fmt: skip
    assert all(isinstance(o.result, Proved) for o in kernel.proofs)
    x = np.random.default_rng(7).integers(-99, 99, size).astype(np.int32)
    y = np.zeros_like(x)
    kernel(x, y)
    np.testing.assert_array_equal(y, np.cumsum(x[:, ::-1], axis=1)[:, ::-1])
