"""The builtins of the AMD rows, as the compiler knows them: names, operand types, instruction."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tilewright.base.dtypes import DType
from tilewright.poly.layout import Place
from tilewright.target import target_named

CLANG = shutil.which("clang-19") or shutil.which("clang")
C_TYPES = {"f16": "_Float16", "bf16": "short", "f32": "float", "i32": "int"}


def vector(dtype: DType, count: int) -> str:
    if dtype.bits == 8:  # the builtins take eight bytes as one integer
        return "long"
    base = C_TYPES[dtype.name]
    return base if count == 1 else f"{base} __attribute__((ext_vector_type({count})))"


@pytest.mark.skipif(CLANG is None, reason="needs clang")
def test_each_row_of_gfx942_compiles_to_its_instruction(tmp_path: Path) -> None:
    atoms = target_named("gfx942").mma_atoms
    lines: list[str] = []
    for i, atom in enumerate(atoms):
        operands = vector(atom.a_dtype, atom.a.count(Place.REGISTER))
        result = vector(atom.d_dtype, atom.d.count(Place.REGISTER))
        arguments = f"__attribute__((address_space(1))) out{i} *d, in{i} a, in{i} b"
        lines += (
            f"typedef {operands} in{i};\ntypedef {result} out{i};",
            f"__attribute__((amdgpu_kernel)) void k{i}({arguments})",
            f"{{ *d = {atom.emit}(a, b, *d, 0, 0, 0); }}",
        )
    source = tmp_path / "rows.c"
    source.write_text("\n".join(lines) + "\n")
    command = [
        CLANG, "--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-nogpulib", "-O1", "-S",
        "-x", "c", str(source), "-o", "-",
    ]  # fmt: skip
    run = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = re.findall(r"\b(v_mfma_\w+)", run.stdout)
    assert len(found) == len(atoms)
    for atom, instruction in zip(atoms, found, strict=True):
        assert f"{atom.m}x{atom.n}x{atom.k}" in instruction
