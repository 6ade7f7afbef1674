"""Compilers: machine code out, their log in the error, and how to install what is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime import toolchain
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.toolchain import Nvrtc, compile_source, toolchain_for
from tilewright.target.amd import GFX942
from tilewright.target.nvidia import SM_90A

ELF = b"\x7fELF"
CUDA = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1.0f; }'
HIP = 'extern "C" __attribute__((global)) void k(float* x) { x[0] = 1.0f; }'


def test_nvrtc_gives_a_cubin() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin = compile_source(CUDA, SM_90A)
    assert cubin.startswith(ELF)
    assert b"sm_90a" in cubin


def test_nvrtc_reports_registers_and_spills() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert Nvrtc().resources(CUDA, SM_90A).stack == 0
    wild = """extern "C" __global__ void k(int* x, int n) {
      int local[64];
      for (int i = 0; i < n; ++i) local[x[i] & 63] = i;
      x[0] = local[x[1] & 63];
    }"""
    assert Nvrtc().resources(wild, SM_90A).stack >= 256


def test_the_log_is_in_the_error() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(ToolchainError, match="NVRTC could not compile the kernel for sm_90a") as e:
        compile_source('extern "C" __global__ void k() { undeclared = 1; }', SM_90A)
    assert any('identifier "undeclared" is undefined' in n for n in e.value.diagnostic.notes)
    assert "TILEWRIGHT_DUMP" in e.value.diagnostic.mend


def test_clang_gives_a_code_object_and_its_log() -> None:
    try:
        toolchain.find_clang()
    except ToolchainError as missing:
        pytest.skip(missing.diagnostic.message)
    assert compile_source(HIP, GFX942).startswith(ELF)
    with pytest.raises(ToolchainError, match="clang could not compile the kernel for gfx942") as e:
        compile_source("not c++", GFX942)
    assert any(note.startswith("kernel.hip:1:1: error") for note in e.value.diagnostic.notes)


def test_the_cache_is_keyed_by_source_and_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting:
        extension = "cu"
        version = "1"
        built = 0

        def identity(self, target: object) -> str:
            return self.version

        def build(self, source: str, target: object) -> bytes:
            Counting.built += 1
            return source.encode()

    compiler = Counting()
    monkeypatch.setattr(toolchain, "toolchain_for", lambda target: compiler)
    cache = DiskCache(tmp_path)
    for source, target in ((CUDA, SM_90A), (CUDA, SM_90A), (HIP, SM_90A), (CUDA, GFX942)):
        assert compile_source(source, target, cache=cache) == source.encode()
    assert Counting.built == 3
    compiler.version = "2"
    compile_source(CUDA, SM_90A, cache=cache)
    assert Counting.built == 4


def test_sources_are_dumped_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "out"))
    compile_source(CUDA, SM_90A, name="mine")
    assert (tmp_path / "out" / "mine.cu").read_text() == CUDA


def test_a_printer_without_a_compiler_is_refused() -> None:
    with pytest.raises(ToolchainError, match="no compiler serves the printer 'metal'"):
        toolchain_for(replace(SM_90A, printer="metal"))


_WITHOUT_CUDA = """
import sys
sys.modules["cuda"] = None
from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime import arguments, cache, cuda_driver, launch, timing, toolchain
from tilewright.target.nvidia import SM_90A
for attempt in (
    lambda: toolchain.compile_source("", SM_90A),
    lambda: cuda_driver.load_driver(),
    lambda: timing.measure(lambda: None),
):
    try:
        attempt()
    except ToolchainError as error:
        print(error.diagnostic.mend)
"""


def test_all_imports_without_cuda_and_errors_say_how_to_install_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_CUDA], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["pip install 'tilewright[cuda]'"] * 3


def test_no_clang_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.find_clang.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolchainError, match="no clang") as caught:
        toolchain.find_clang()
    assert "apt install clang" in caught.value.diagnostic.mend
    toolchain.find_clang.cache_clear()
