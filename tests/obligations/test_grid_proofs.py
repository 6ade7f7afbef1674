"""Orders of tiles: merged, swizzled and persistent counters with sizes known at launch only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lockstep import judge
from proof_checks import edit, refuted, results
from proof_kernels import TOY, e, kernel, tensor

from tilewright.base.dtypes import f16
from tilewright.kernel.ops import (
    Assign,
    Barrier,
    Const,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    Mode,
    Registers,
    RegRef,
    Shared,
    Statement,
    Store,
    Symbol,
)
from tilewright.lower.obligations import verify
from tilewright.poly.expr import Expr, equal, less
from tilewright.poly.prove import Kind, Proved, Refuted

R = RegRef("r", (e(0),))
TOTAL = Symbol("T", product=(e("M"), e("N")))
TILES = Decode(e("t"), (("mo", e("M")), ("no", e("N"))))


def tile(mo: Expr, no: Expr) -> tuple[Statement, ...]:
    """One tile of 4 columns: through shared memory, with two barriers, to y[mo, 4 no + lane]."""
    return (
        Store((), MemRef("s", (e("lane"),)), R),
        Barrier(),
        Load((), RegRef("q", (e(0),)), MemRef("s", (3 - e("lane"),))),
        Barrier(),
        Store((), MemRef("y", (mo, 4 * no + e("lane"))), RegRef("q", (e(0),))),
    )


def grid(
    *body: Statement, blocks: tuple[Expr | int, ...], extra: tuple[Symbol, ...] = ()
) -> Kernel:
    k = kernel(
        (Assign((), R, Const(0.0, f16)), *body),
        (tensor("y", ("M", "N"), Mode.OUT),),
        grid=blocks, symbols=(Symbol("M"), Symbol("N"), *extra),
        shared=(Shared("s", f16, (4,)),),
        registers=(Registers("r", f16, (1,)), Registers("q", f16, (1,))),
    )  # fmt: skip
    wide = replace(k.tensors[0], shape=(e("M"), 4 * e("N")), strides=(4 * e("N"), e(1)))
    return replace(k, tensors=(wide,))


def persistent(blocks: int = 3, extent: Expr | None = None) -> Kernel:
    """t = blocks * i + block < T, T = M * N, written as (mo, no)."""
    t = blocks * e("i") + e("p")
    tiles = Decode(t, (("mo", e("M")), ("no", e("N"))))
    turn = If((less(t, "T"),), (tiles, *tile(e("mo"), e("no"))))
    return grid(
        Decode(e("block"), (("p", e(blocks)),)),
        Loop("i", e("T").ceildiv(blocks) if extent is None else extent, (turn,)),
        blocks=(blocks,), extra=(TOTAL,),
    )  # fmt: skip


def swizzled(group: int = 2) -> Kernel:
    """t = (mg * N + no) * group + mr and mo = group * mg + mr < M, through a product of sizes."""
    groups = e("M").ceildiv(group)
    mo = group * e("mg") + e("mr")
    return grid(
        Decode(e("block"), (("u", e("U")), ("mr", e(group)))),
        If((less(mo, "M"),), tile(mo, e("no"))),
        blocks=(e("U"), group), extra=(Symbol("U", product=(groups, e("N"))),),
    )  # fmt: skip


def with_groups(k: Kernel, group: int = 2) -> Kernel:
    """The decode of the groups, after that of the block."""
    split = Decode(e("u"), (("mg", e("M").ceildiv(group)), ("no", e("N"))))
    return replace(k, body=(*k.body[:2], split, *k.body[2:]))


def swizzled_and_persistent(blocks: int = 3, group: int = 2) -> Kernel:
    """t = blocks * i + p < T; t = (u, mr); u = (mg, no); mo = group * mg + mr < M."""
    t = blocks * e("i") + e("p")
    mo = group * e("mg") + e("mr")
    inner = (
        Decode(t, (("u", e("U")), ("mr", e(group)))),
        Decode(e("u"), (("mg", e("M").ceildiv(group)), ("no", e("N")))),
        If((less(mo, "M"),), tile(mo, e("no"))),
    )
    return grid(
        Decode(e("block"), (("p", e(blocks)),)),
        Loop("i", (e("U") * group).ceildiv(blocks), (If((less(t, e("U") * group),), inner),)),
        blocks=(blocks,), extra=(Symbol("U", product=(e("M").ceildiv(group), e("N"))),),
    )  # fmt: skip


KERNELS = {
    "merged": grid(Decode(e("block"), (("t", e("T")),)), TILES, *tile(e("mo"), e("no")),
                   blocks=(e("T"),), extra=(TOTAL,)),
    "merged loop": grid(Loop("t", e("T"), (TILES, *tile(e("mo"), e("no")))),
                        blocks=(1,), extra=(TOTAL,)),
    "persistent": persistent(),
    "swizzled": with_groups(swizzled()),
    "swizzled by 3": with_groups(swizzled(3), 3),
    "swizzled and persistent": swizzled_and_persistent(),
    "one block": swizzled_and_persistent(1, 4),
}  # fmt: skip


def _sizes(k: Kernel, m: int, n: int) -> dict[str, int]:
    known = {"M": m, "N": n}
    for s in k.symbols:
        if s.product:
            known[s.name] = 1
            for factor in s.product:
                known[s.name] *= factor.evaluate(known)
    return known


@pytest.mark.parametrize("name", KERNELS)
def test_every_tile_once(name: str) -> None:
    k = KERNELS[name]
    faults = [o for o in verify(k, TOY) if not isinstance(o.result, Proved)]
    assert [o for o in faults if o.kind is not Kind.INDEX_WIDTH] == []
    for m, n in ((1, 1), (2, 3), (3, 1), (5, 2), (4, 4)):
        assert judge(k, TOY, _sizes(k, m, n)).faults == {}


FAULTS: list[tuple[str, Kernel, Kind, str]] = [
    ("too few turns", persistent(extent=e("T") // 3), Kind.DECODE,
     "3*i + p never takes the value 0 of its digits' T"),
    ("tiles that overlap", edit(edit(persistent(), If, guard=(less(2 * e("i") + e("p"), "T"),)),
                                lambda s: isinstance(s, Decode) and "i" in str(s.source),
                                source=2 * e("i") + e("p")), Kind.DECODE,
     "2*i + p never takes the value 25 of its digits' 36"),
    ("tiles that come twice", edit(edit(persistent(extent=e("T").ceildiv(2)), If, guard=(
        less(2 * e("i") + e("p"), "T"),)), lambda s: isinstance(s, Decode) and "i" in str(s.source),
        source=2 * e("i") + e("p")), Kind.COVERAGE, "y[0, 8] is written more than once"),
    ("a guard one too wide", edit(persistent(), If, guard=(less(3 * e("i") + e("p"), e("T") + 1),)),
     Kind.DECODE, "3*i + p takes the value 1, and its digits end at T"),
    ("another product", replace(persistent(), symbols=(
        Symbol("M"), Symbol("N"), Symbol("T", product=(e("M"), e("M"))))), Kind.DECODE, ""),
    ("the edge of the swizzle", edit(with_groups(swizzled()), If, guard=()), Kind.BOUNDS,
     "y[1, 0] is outside: axis 0 has 1 elements"),
    ("a group left out", edit(with_groups(swizzled()), If, guard=(
        less(2 * e("mg") + e("mr"), "M"), less("mg", 1))), Kind.COVERAGE,
     "row 2 of y is never written"),
    ("one tile's barrier", edit(persistent(), lambda s: isinstance(s, Store) and s.dst.name == "y",
                                guard=(equal("no", 0),)), Kind.COVERAGE,
     "columns 4 to 7 of y are never written"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "kind", "message"), [f[1:] for f in FAULTS],
                         ids=[f[0] for f in FAULTS])  # fmt: skip
def test_a_fault(k: Kernel, kind: Kind, message: str) -> None:
    if not message:
        assert not all(isinstance(r, Proved) for r in results(k, kind))
        return
    assert refuted(k, kind).message == message


def test_a_race_between_turns_is_found() -> None:
    k = persistent()
    seen: list[Statement] = []

    def second(s: Statement) -> bool:
        if isinstance(s, Barrier):
            seen.append(s)
        return isinstance(s, Barrier) and len(seen) % 2 == 0

    from proof_checks import drop

    fault = refuted(drop(k, second), Kind.RACE)
    assert fault.message == "s[3] is read by thread 0 and written by thread 3, no barrier between"
    assert isinstance(fault, Refuted)


def test_a_write_by_some_blocks_alone() -> None:
    """One block writes the buffer that every block reads."""

    def body(*around: Statement) -> Kernel:
        return grid(
            Decode(e("block"), (("p", e("N")),)), *around, Barrier(),
            Load((), RegRef("q", (e(0),)), MemRef("s", (3 - e("lane"),))),
            Store((), MemRef("y", (e(0), 4 * e("p") + e("lane"))), RegRef("q", (e(0),))),
            blocks=(e("N"),),
        )  # fmt: skip

    store = Store((), MemRef("s", (e("lane"),)), R)
    assert all(isinstance(r, Proved) for r in results(body(store), Kind.UNWRITTEN))
    some = body(If((equal("p", 0),), (store,)))
    fault = refuted(some, Kind.UNWRITTEN)
    assert fault.message == "s[0] is read before anything writes it"
    assert "at p = 1, with M = 1, N = 2" in fault.notes
    assert Kind.UNWRITTEN in judge(some, TOY, {"M": 1, "N": 2}).faults
