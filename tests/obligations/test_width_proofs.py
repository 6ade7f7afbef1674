"""Machine integers, decodes, the report, and how long it all takes."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import pytest
from proof_checks import edit, refuted, results
from proof_kernels import TOY, copy_rows, e, kernel, pipelined_gemm, row_sums, tensor, transpose
from target_kernels import chained_gemm, tiled_gemm

from tilewright.base.diagnostics import AtomError, CoverageError, IndexWidthError, LegalityError
from tilewright.kernel.ops import (
    AsyncWait,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    MemRef,
    Mma,
    Mode,
    Registers,
    RegRef,
    Statement,
    Store,
    Symbol,
)
from tilewright.lower.obligations import error_of, raise_first_refuted, report, verify
from tilewright.poly.expr import Expr, at_least, less
from tilewright.poly.prove import Assumed, Kind, Obligation, Proved, Refuted, Unknown
from tilewright.target import GFX942, SM_90A
from tilewright.target.model import Target

# ---------------------------------------------------------------- index width


def _bits(k: Kernel, bits: int) -> Kernel:
    return replace(k, tensors=tuple(replace(t, index_bits=bits) for t in k.tensors))


def test_offsets_of_known_sizes() -> None:
    small = _bits(copy_rows(40_000, 50_000), 32)
    assert Proved("the last offset is 1999999999") in results(small, Kind.INDEX_WIDTH, "x")
    large = _bits(copy_rows(50_000, 50_000), 32)
    fault = refuted(large, Kind.INDEX_WIDTH)
    assert fault.message == ("the offset of x[49999, 49999] is 2499999999, more than 32 bits hold")
    assert fault.witness.element == (49_999, 49_999)
    assert all(isinstance(r, Proved) for r in results(_bits(large, 64), Kind.INDEX_WIDTH))
    with pytest.raises(IndexWidthError) as caught:
        raise_first_refuted(verify(large, TOY))
    assert caught.value.diagnostic.code == "TW307"
    assert caught.value.diagnostic.mend == "use index_bits=64"


def test_the_edge_of_32_bits() -> None:
    for columns, fits in ((2**15, True), (2**15 + 2, False)):
        k = _bits(copy_rows(2**16, columns), 32)
        assert isinstance(results(k, Kind.INDEX_WIDTH, "x")[0], Proved) == fits
        assert ((2**16 - 1) * columns + columns - 1 < 2**31) == fits


def test_offsets_of_unknown_sizes_become_contracts() -> None:
    found = results(_bits(copy_rows(), 32), Kind.INDEX_WIDTH, "x")
    assert found[0] == Assumed("(M - 1)*(N) + (N - 1)*(1) < 2**31 for x")
    found = results(_bits(copy_rows("M", 64), 32), Kind.INDEX_WIDTH, "x")
    assert isinstance(found[0], Assumed)
    (check,) = found[0].check
    for m in (2**25, 2**25 + 1):
        assert (check.expr.evaluate({"M": m}) >= 0) == ((m - 1) * 64 + 63 < 2**31)
    assert isinstance(results(_bits(copy_rows(), 64), Kind.INDEX_WIDTH, "x")[0], Proved)


def test_coordinates_are_computed_before_their_guard() -> None:
    """Tiles of 12 columns: the last one may begin near 2**31 and end past it."""
    column = 12 * e("no") + 3 * e("t") + e("v")
    k = kernel(
        (
            Decode(e("block"), (("no", e("N").ceildiv(12)),)),
            Decode(e("lane"), (("t", e(4)),)),
            Load((("v", 3),), RegRef("r", (e("v"),)), MemRef("x", (column,)),
                 guard=(less(column, "N"),)),
            Store((("v", 3),), MemRef("y", (column,)), RegRef("r", (e("v"),)),
                  guard=(less(column, "N"),)),
        ),
        (tensor("x", ("N",)), tensor("y", ("N",), Mode.OUT)),
        grid=(e("N").ceildiv(12),), symbols=(Symbol("N"),),
        registers=(Registers("r", tensor("x", (1,)).dtype, (3,)),),
    )  # fmt: skip
    (_, found, *_) = results(k, Kind.INDEX_WIDTH, "x")
    # 2**31 = 12 * 178956970 + 8: a tile that begins at 12 * 178956970 passes it.
    assert found == Assumed(f"N <= {12 * 178_956_970}", (at_least(12 * 178_956_970, "N"),))
    bounded = replace(k, contracts=(at_least(2**30, "N"),))
    assert results(bounded, Kind.INDEX_WIDTH, "x")[1] == Proved("every coordinate fits")


def test_a_coordinate_that_passes_32_bits_for_small_sizes() -> None:
    far = edit(copy_rows(8, 16), Load, src=MemRef("x", (2**29 * (4 * e("mo") + e("w")), e(0))),
               guard=(less("mo", 0),))  # fmt: skip
    fault = refuted(far, Kind.INDEX_WIDTH)
    assert fault.message == "the coordinates x[2147483648, 0] pass 32 bits"
    assert dict(fault.witness.instances[0])["mo"] == 1


# ---------------------------------------------------------------- decodes


def _decoding(source: Expr, *extents: Expr | int, loop: int = 12, inside: int | None = None,
              threads: int = 1) -> Kernel:  # fmt: skip
    digits = tuple((f"d{i}", Expr.of(x)) for i, x in enumerate(extents))
    body: tuple[Statement, ...] = (Decode(source, digits),)
    if inside is not None:
        body = (If((less(source, inside),), body),)
    return kernel((Loop("t", e(loop), body),), (), grid=(e("M").ceildiv(4), e("N"), 2),
                  symbols=(Symbol("M"), Symbol("N")), warps=threads)  # fmt: skip


DECODES: list[tuple[str, Kernel, str]] = [
    ("a loop", _decoding(e("t"), 3, 4), ""),
    ("a loop too short", _decoding(e("t"), 3, 5),
     "t: the digits run over 15 values, their source over 12"),
    ("a loop too long", _decoding(e("t"), 3, 3),
     "t: the digits run over 9 values, their source over 12"),
    ("the grid", _decoding(e("block"), e("N"), e("M").ceildiv(4), 2), ""),
    ("the grid in other tiles", _decoding(e("block"), e("N"), e("M").ceildiv(8), 2),
     "block: the digits run over 2*N*((M + 7) / 8) values, their source over 2*((M + 3) / 4)*N"),
    ("threads", _decoding(e("thread"), 2, 8, threads=4), ""),
    ("threads short", _decoding(e("thread"), 2, 4, threads=4),
     "thread: the digits run over 8 values, their source over 16"),
    ("a sum", _decoding(4 * e("t") + e("lane"), 6, 8), ""),
    ("a sum too long", _decoding(4 * e("t") + e("lane"), 5, 8),
     "lane + 4*t takes the value 40, and its digits end at 40"),
    ("a sum with holes", _decoding(5 * e("t") + e("lane"), 59, 1),
     "lane + 5*t never takes the value 4 of its digits' 59"),
    ("a guarded sum", _decoding(4 * e("t") + e("lane"), 5, 9, inside=45), ""),
    ("a guarded loop", _decoding(e("t"), 2, 5, inside=10), ""),
    ("a guard too wide", _decoding(e("t"), 2, 4, inside=10),
     "t takes the value 8, and its digits end at 8"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "message"), [d[1:] for d in DECODES], ids=[d[0] for d in DECODES])
def test_decodes(k: Kernel, message: str) -> None:
    if not message:
        assert all(isinstance(r, Proved) for r in results(k, Kind.DECODE))
        return
    assert refuted(k, Kind.DECODE).message == message
    with pytest.raises(CoverageError, match="digits"):
        raise_first_refuted(verify(k, TOY))


# ---------------------------------------------------------------- the report


def test_report_counts_each_kind_of_end() -> None:
    text = report(verify(_bits(copy_rows(), 32), TOY))
    lines = text.splitlines()
    assert lines[0] == "13 proved, 0 refuted, 2 assumed, 0 unknown"
    assert "coverage: 1 proved; all elements of y are written exactly once" in lines
    assert (
        "index width: assumed (M - 1)*(N) + (N - 1)*(1) < 2**31 for x (x, linear offset in 32 bits)"
    ) in lines
    text = report(verify(chained_gemm(n_frags=1), GFX942))
    assert "coverage: REFUTED columns 16 to 31 of dv are never written; " in text


def test_only_refuted_obligations_are_errors() -> None:
    for result in (Proved(), Assumed("N < 9"), Unknown("too hard")):
        assert error_of(Obligation(Kind.RACE, "s", result)) is None
    raise_first_refuted([Obligation(Kind.RACE, "s", Unknown("too hard"))])
    errors = {error_of(Obligation(k, "s", Refuted("wrong"))).__class__.__name__ for k in Kind}
    assert errors == {
        "CoverageError", "BoundsError", "ReductionError", "UnwrittenReadError", "RaceError",
        "BarrierError", "IndexWidthError", "ElementError",
    }  # fmt: skip


def test_kernels_that_no_proof_can_read() -> None:
    with pytest.raises(AtomError, match="toy has no atom big") as caught:
        verify(edit(pipelined_gemm(), Mma, atom="big"), TOY)
    assert caught.value.diagnostic.expected == "one of the 1 atoms of toy"
    with pytest.raises(LegalityError, match="the name zz is used where nothing defines it"):
        verify(edit(copy_rows(), Load, src=MemRef("x", (e("zz"), e(0)))), TOY)


# ---------------------------------------------------------------- speed


@pytest.mark.parametrize(
    ("k", "target", "limit"),
    [
        (tiled_gemm(), SM_90A, 0.8),
        (tiled_gemm(4096, 4096, 4096), SM_90A, 0.8),
        (tiled_gemm(stages=4), SM_90A, 0.8),
        (chained_gemm(), GFX942, 0.1),
        (transpose(), TOY, 0.2),
        (row_sums(), TOY, 0.1),
    ],
    ids=["gemm", "gemm of known sizes", "gemm, 4 stages", "chained", "transpose", "row sums"],
)
def test_a_whole_kernel_is_verified_quickly(k: Kernel, target: Target, limit: float) -> None:
    times: list[float] = []
    for _ in range(5):
        start = perf_counter()
        found = verify(k, target)
        times.append(perf_counter() - start)
        assert all(isinstance(o.result, Proved) for o in found)
    assert min(times) < limit


def test_a_faulty_kernel_is_refuted_quickly() -> None:
    for k in (tiled_gemm(last_barrier=False), edit(tiled_gemm(stages=3), AsyncWait, pending=3)):
        start = perf_counter()
        found = verify(k, SM_90A)
        assert perf_counter() - start < 3
        assert any(isinstance(o.result, Refuted) for o in found)
