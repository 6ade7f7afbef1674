"""Accesses stay inside, vectors are aligned, registers exist, swizzles permute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proof_checks import edit, others, refuted, results
from proof_kernels import TOY, copy_rows, e, pipelined_gemm, transpose
from target_kernels import tiled_gemm

from tilewright.base.diagnostics import BoundsError
from tilewright.kernel.ops import (
    Kernel,
    Load,
    MemRef,
    Mma,
    RegRef,
    Shared,
    Store,
    Swizzle,
    Symbol,
)
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.poly.expr import less
from tilewright.poly.prove import Kind, Proved
from tilewright.target import SM_90A


def test_guarded_accesses_are_inside() -> None:
    for k in (copy_rows(), copy_rows(8, 16), transpose(), pipelined_gemm()):
        assert all(isinstance(r, Proved) for r in results(k, Kind.BOUNDS))


def _loads_x(s: object) -> bool:
    return isinstance(s, Load) and s.src.name == "x"


ROW = 4 * e("mo") + 2 * e("w") + e("h")
COLUMN = 8 * e("no") + 4 * e("l") + 2 * e("v")
FAULTS: list[tuple[str, Kernel, str, tuple[int, ...], dict[str, int]]] = [
    ("no row guard", edit(copy_rows(), _loads_x, guard=(less(COLUMN, "N"),)),
     "x[1, 0] is outside: axis 0 has 1 elements", (1, 0), {"M": 1, "N": 2}),
    ("row guard one too wide", edit(copy_rows(), _loads_x, guard=(
        less(ROW, e("M") + 1), less(COLUMN, "N"))),
     "x[1, 0] is outside: axis 0 has 1 elements", (1, 0), {"M": 1, "N": 2}),
    ("the vector's end", replace(copy_rows(), symbols=(Symbol("M"), Symbol("N"))),
     "x[0, 1] is outside: axis 1 has 1 elements", (0, 1), {"M": 1, "N": 1}),
    ("below zero", edit(copy_rows(), _loads_x, src=MemRef("x", (ROW, COLUMN - 2))),
     "x[0, -2] is outside: axis 1 has 2 elements", (0, -2), {"M": 1, "N": 2}),
    ("fixed sizes", edit(copy_rows(8, 16), _loads_x, src=MemRef("x", (ROW + 1, COLUMN))),
     "x[8, 0] is outside: axis 0 has 8 elements", (8, 0), {}),
    ("shared row", edit(transpose(), lambda s: isinstance(s, Load) and s.src.name == "tile",
                        src=MemRef("tile", (e("d") + 1, e("c") + 2 * e("i")))),
     "tile[4, 0] is outside: axis 0 has 4 elements", (4, 0), {"M": 1, "N": 1}),
    ("ring of two slots with three", replace(pipelined_gemm(3), shared=(
        Shared("sa", pipelined_gemm().shared[0].dtype, (2, 4, 4)), pipelined_gemm().shared[1])),
     "sa[2, 0, 0] is outside: axis 0 has 2 elements", (2, 0, 0), {"M": 1, "N": 1, "K": 10}),
]  # fmt: skip


@pytest.mark.parametrize(("k", "message", "element", "sizes"), [f[1:] for f in FAULTS],
                         ids=[f[0] for f in FAULTS])  # fmt: skip
def test_outside(k: Kernel, message: str, element: tuple[int, ...], sizes: dict[str, int]) -> None:
    fault = refuted(k, Kind.BOUNDS)
    assert fault.message == message
    assert fault.witness.element == element
    assert dict(fault.witness.symbols) == sizes
    values = dict(fault.witness.instances[0])
    assert all(f"{n} = {v}" in fault.notes[0] for n, v in values.items())


def test_the_whole_grid_fits_where_the_size_is_a_multiple() -> None:
    k = edit(edit(copy_rows(), Load, guard=()), Store, guard=())
    assert refuted(k, Kind.BOUNDS)
    exact = replace(k, symbols=(Symbol("M", 1, 4), Symbol("N", 1, 8)))
    assert all(isinstance(r, Proved) for r in results(exact, Kind.BOUNDS))


def test_a_contract_can_bound_an_access() -> None:
    k = edit(copy_rows(), _loads_x, guard=(less(ROW, "N"), less(COLUMN, "N")))
    assert refuted(k, Kind.BOUNDS).message == "x[1, 0] is outside: axis 0 has 1 elements"
    under = replace(k, contracts=(less("N", e("M") + 1),))
    assert all(isinstance(r, Proved) for r in results(under, Kind.BOUNDS))


REGISTERS: list[tuple[str, Kernel, str]] = [
    ("short fragment", replace(copy_rows(), registers=(replace(copy_rows().registers[0],
                                                               shape=(3,)),)),
     "r[3] is outside: axis 0 has 3 elements"),
    ("unrolled too far", edit(copy_rows(), Store, over=(("v", 3),), guard=(
        less(ROW, "M"), less(COLUMN, "N"), less("v", 2))),
     "r[4] is outside: axis 0 has 4 elements"),
    ("an atom past its fragment", edit(pipelined_gemm(), Mma, d=RegRef("acc", (e("j") + 1,))),
     "acc[2] is outside: axis 0 has 2 elements"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "message"), [r[1:] for r in REGISTERS],
                         ids=[r[0] for r in REGISTERS])  # fmt: skip
def test_register_outside(k: Kernel, message: str) -> None:
    assert refuted(k, Kind.BOUNDS).message == message


def test_undeclared_and_misshapen_fragments() -> None:
    k = edit(copy_rows(), Load, dst=RegRef("q", (e("v"),)))
    assert refuted(k, Kind.BOUNDS).message == "q is no fragment of the kernel"
    k = edit(copy_rows(), Load, dst=RegRef("r", (e(0), e("v"))))
    assert refuted(k, Kind.BOUNDS).message == "r has 1 axes, not 2"


# ---------------------------------------------------------------- alignment


def test_vectors_are_aligned() -> None:
    for k in (copy_rows(), copy_rows(8, 16, 4), pipelined_gemm()):
        found = results(k, Kind.ALIGNMENT)
        assert found
        assert all(isinstance(r, Proved) for r in found)
    assert all(isinstance(r, Proved) for r in results(tiled_gemm(), Kind.ALIGNMENT, target=SM_90A))


def _ring(swizzle: Swizzle | None, pitch: int = 0, offset: int = 0) -> Kernel:
    k = pipelined_gemm()
    sa = Shared("sa", k.shared[0].dtype, (3, 4, 4), swizzle, pitch, offset)
    return replace(k, shared=(sa, replace(k.shared[1], offset=256)))


ALIGNMENT: list[tuple[str, Kernel, str]] = [
    ("odd start", edit(copy_rows(8, 16), Load, src=MemRef("x", (ROW, COLUMN + 1))),
     "a vector of 2 f16 (4 bytes) at x[0, 1] is not aligned"),
    ("odd rows", edit(copy_rows(8, 15), Load, width=2),
     "a vector of 2 f16 (4 bytes) at x[1, 0] is not aligned"),
    ("rows of unknown parity", replace(copy_rows(), symbols=(Symbol("M"), Symbol("N"))),
     "a vector of 2 f16 (4 bytes) at x[1, 0] is not aligned"),
    ("unaligned tensor", replace(copy_rows(), tensors=tuple(
        replace(t, align=2) for t in copy_rows().tensors)),
     "a vector of 2 f16 (4 bytes) needs x to start at a multiple of 4 bytes, not 2"),
    ("down a column", edit(copy_rows(8, 16), Load, axis=0),
     "a vector of 2 f16 (4 bytes) runs along axis 0 of x, whose stride is 16"),
    ("a vector of three", edit(copy_rows(8, 16), Load, width=3),
     "a vector of 3 f16 (6 bytes) needs x to start at a multiple of 6 bytes, not 16"),
    ("torn by a swizzle", _ring(Swizzle(1, 0, 1)),
     "a vector of 2 f16 (4 bytes) is torn by the swizzle of sa, which moves 1 at a time"),
    ("odd pitch", _ring(None, pitch=5),
     "a vector of 2 f16 (4 bytes) at sa[0, 1, 0] is not aligned"),
    ("odd offset", _ring(None, offset=2),
     "a vector of 2 f16 (4 bytes) needs sa to start at a multiple of 4 bytes, not 2"),
    ("a swizzle that leaves the buffer", _ring(Swizzle(2, 4, 2)),
     "sa: 48 elements are no multiple of 64"),
    ("a swizzle that forgets", _ring(Swizzle(2, 1, 1)),
     "sa: swizzle(2, 1, 1) changes the bits that it reads"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "message"), [a[1:] for a in ALIGNMENT],
                         ids=[a[0] for a in ALIGNMENT])  # fmt: skip
def test_not_aligned(k: Kernel, message: str) -> None:
    assert refuted(k, Kind.ALIGNMENT).message == message


def test_alignment_from_enumeration() -> None:
    """The verdict for fixed sizes against every instance's address."""
    for columns in range(4, 17):
        for shift in range(4):
            k = edit(copy_rows(4, columns, 4), Load, src=MemRef("x", (ROW, COLUMN + shift)))
            rows = [
                (w * 2 + h) * columns + 8 * no + 4 * v + shift
                for w in range(2)
                for h in range(2)
                for no in range(-(-columns // 8))
                for v in range(2)
                if 8 * no + 4 * v < columns
            ]
            expected = all(a % 4 == 0 for a in rows)
            over = edit(k, Load, over=(), dst=RegRef("r", (e(0),)), guard=(
                less(4 * e("l") + 8 * e("no"), columns),),
                src=MemRef("x", (ROW, 8 * e("no") + 4 * e("l") + shift)))  # fmt: skip
            found = results(over, Kind.ALIGNMENT, "x")
            assert isinstance(found[0], Proved) == expected, (columns, shift)


def test_the_error_of_an_access_outside() -> None:
    k = FAULTS[0][1]
    with pytest.raises(BoundsError, match=r"x\[1, 0\] is outside: axis 0 has 1 elements") as caught:
        raise_first_refuted(verify(k, TOY))
    assert caught.value.diagnostic.code == "TW302"
    assert caught.value.diagnostic.mend == "guard the access with the extent"
    assert others(k, Kind.BOUNDS) == []
