"""CUDA sources compile with NVRTC, without a GPU, and keep their fragments in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_kernels import matmul
from example_values import casts, elementwise, operations_for, row_softmax

from tilewright.base.diagnostics import AtomError, LegalityError, UnsupportedError
from tilewright.base.dtypes import DType, bf16, dtype_named, f8e4m3fnuz, f16, f32
from tilewright.codegen import emit, print_cuda
from tilewright.kernel.ops import Kernel, Load, Loop, Mma, Statement
from tilewright.runtime.toolchain import Nvrtc, Resources
from tilewright.target.nvidia import SM_90A

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra `cuda`")

DTYPES = ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i64", "i32", "i16", "i8", "bool"]


def resources(kernel: Kernel) -> Resources:
    return Nvrtc().resources(print_cuda(kernel, SM_90A), SM_90A)


@pytest.mark.parametrize(
    "kernel",
    [
        matmul(),
        matmul(block_k=64, stages=4, dtype=bf16),
        matmul(b_is_kn=True, index_bits=32),
        matmul(block_m=128, block_n=256, block_k=64, warps_n=4),
        row_softmax(),
        row_softmax(dtype=f32, vectors=4),
    ],
    ids=["nk", "deep", "kn", "wide", "softmax", "softmax f32"],
)
def test_fragments_stay_in_registers(kernel: Kernel) -> None:
    used = resources(kernel)
    assert used.stack == 0
    assert used.spilled == 0
    assert 16 <= used.registers <= 255


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_compiles(dtype: str) -> None:
    kind = dtype_named(dtype)
    lacking = frozenset(("neg", "shl", "shr")) if dtype == "bool" else frozenset[str]()
    names = [n for n in operations_for(kind) if n not in lacking]
    assert resources(elementwise(kind, names)).registers > 0


def test_every_cast_compiles() -> None:
    narrow = ["f16", "bf16", "f8e4m3", "f8e5m2"]
    pairs = [(s, d) for s in ("f64", "f32", "i64", "i16", "bool") for d in narrow]
    pairs += [(s, d) for s in narrow for d in ("f64", "i8", "bool", "f16")]
    for source, dtype in pairs:
        kernel = casts(dtype_named(source), dtype_named(dtype))
        assert resources(kernel).stack == 0, (source, dtype)


def test_instructions_are_there() -> None:
    source = emit(matmul(), SM_90A)
    for text in (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "cp.async.cg.shared.global [%0], [%1], 16, %2;",
        "cp.async.wait_group 1;",
        "__launch_bounds__(128)",
        "#pragma unroll",
    ):
        assert text in source
    assert "#include" not in source


def test_unused_declarations_are_left_out() -> None:
    source = print_cuda(elementwise(f32, ["add"]), SM_90A)
    assert "tw_" not in source
    assert "tw_floordiv" in print_cuda(elementwise(dtype_named("i32"), ["floordiv"]), SM_90A)


# ---------------------------------------------------------------- what cannot be printed


def edited(kernel: Kernel, change: type[Statement], **fields: object) -> Kernel:
    """The kernel with fields of its statements of one type replaced."""

    def visit(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(
            replace(s, body=visit(s.body))
            if isinstance(s, Loop)
            else replace(s, **fields)
            if isinstance(s, change)
            else s
            for s in body
        )

    return replace(kernel, body=visit(kernel.body))


def test_an_unknown_atom_is_named() -> None:
    with pytest.raises(AtomError, match=r"sm_90a has no instruction mma\.nowhere") as caught:
        print_cuda(edited(matmul(), Mma, atom="mma.nowhere"), SM_90A)
    assert "mma.sync.m16n8k16.f32.f16" in caught.value.diagnostic.expected


def test_a_warpgroup_atom_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="prints no warpgroup atoms"):
        print_cuda(edited(matmul(), Mma, atom="wgmma.m64n128k16.f32.f16"), SM_90A)


def test_a_matrix_load_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(LegalityError, match="x4 loads 4 tiles of two elements a lane"):
        print_cuda(edited(matmul(), Load, width=4), SM_90A)


def test_an_element_type_of_another_machine_is_refused() -> None:
    kernel = elementwise(f8e4m3fnuz, ["add"])
    with pytest.raises(UnsupportedError, match=r"no element type f8e4m3fnuz \(x\)"):
        print_cuda(kernel, SM_90A)


def test_an_unknown_printer_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no back end prints 'metal'"):
        emit(matmul(), replace(SM_90A, printer="metal"))


@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_an_operation_that_a_type_lacks_is_refused(dtype: DType) -> None:
    with pytest.raises(UnsupportedError, match=f"operation xor does not exist for {dtype}"):
        print_cuda(elementwise(dtype, ["xor"]), SM_90A)
