"""HIP sources compile to gfx942 and gfx950 code objects with clang; their code is what it says."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from example_values import casts, elementwise, mfma_matmul, operations_for

from tilewright.base.diagnostics import ToolchainError, UnsupportedError
from tilewright.base.dtypes import dtype_named, f8e4m3, f64
from tilewright.codegen import emit
from tilewright.codegen.hip_prelude import MISSING_F64
from tilewright.kernel.ops import Kernel
from tilewright.runtime.toolchain import Clang, find_clang
from tilewright.target.amd import GFX942
from tilewright.target.model import Target

try:
    find_clang()
    MISSING = ""
except ToolchainError as reason:
    MISSING = reason.diagnostic.message

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "clang is there")


def disassembly(kernel: Kernel, target: Target, folder: Path) -> str:
    tool = shutil.which("llvm-objdump-19") or shutil.which("llvm-objdump")
    if tool is None:
        pytest.skip("no llvm-objdump to read the code object")
    path = folder / "kernel.co"
    path.write_bytes(Clang().build(emit(kernel, target), target))
    done = subprocess.run([tool, "-d", str(path)], capture_output=True, text=True, check=True)
    return done.stdout


ATOMS = {atom.name: atom.emit.removeprefix("__builtin_amdgcn_") for atom in GFX942.mma_atoms}


@pytest.mark.parametrize("atom", sorted(ATOMS))
def test_every_atom_of_gfx942_becomes_its_instruction(tmp_path: Path, atom: str) -> None:
    code = disassembly(mfma_matmul(atom, tiles=1, k_steps=1), GFX942, tmp_path)
    assert f"v_{ATOMS[atom].split('_')[0]}_" in code
    assert "v_mfma" in code
    for text in ("ds_read", "ds_write", "global_load", "global_store"):
        assert text in code
    assert "scratch_" not in code  # fragments stay in registers
    assert "flat_" not in code  # address spaces are known


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "f8e4m3fnuz", "i64", "i8"])
def test_every_operation_compiles(dtype: str) -> None:
    kind = dtype_named(dtype)
    names = operations_for(kind, MISSING_F64 if kind == f64 else frozenset())
    source = emit(elementwise(kind, names, warp_size=64), GFX942)
    assert len(Clang().build(source, GFX942)) > 1000


def test_barriers_are_kept_where_a_block_has_several_waves(tmp_path: Path) -> None:
    kernel = mfma_matmul("F32_16x16x16_F16", tiles=1)
    assert "s_barrier" not in disassembly(kernel, GFX942, tmp_path)
    assert "s_barrier" in disassembly(replace(kernel, warps=2), GFX942, tmp_path)


def test_fp8_uses_the_hardware_conversion(tmp_path: Path) -> None:
    for name, letters in (("f8e4m3fnuz", "fp8"), ("f8e5m2fnuz", "bf8")):
        kernel = casts(dtype_named("f32"), dtype_named(name), warp_size=64)
        assert f"v_cvt_pk_{letters}_f32" in disassembly(kernel, GFX942, tmp_path)


def test_an_element_type_of_the_other_generation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"has no element type f8e4m3 \(x\)"):
        emit(elementwise(f8e4m3, ["add"], warp_size=64), GFX942)


def test_an_f64_function_without_a_builtin_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="operation sin does not exist for f64"):
        emit(elementwise(f64, ["sin"], warp_size=64), GFX942)
