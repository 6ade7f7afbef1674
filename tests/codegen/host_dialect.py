"""A dialect for the CPU: a block's threads are threads of the machine.

It runs what the shared printer prints, so that structure, addresses, guards, swizzles, vector
accesses and matrix loads are checked against NumPy without a GPU. Warp-wide instructions meet at
a barrier of the warp and exchange what each lane published; an MMA reads its atom's layouts.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tilewright.base.dtypes import DType
from tilewright.codegen.access import AccessPrinter
from tilewright.codegen.c_like import print_kernel
from tilewright.codegen.dialect import Copy, plain_copy, stored_type
from tilewright.codegen.hip_prelude import PRELUDE as HIP_PRELUDE
from tilewright.kernel.async_ops import AsyncStatement
from tilewright.kernel.ops import Kernel
from tilewright.poly.layout import Layout, Place
from tilewright.target.model import MatrixLoad, MmaAtom, Target

_OPENING = """
#include <pthread.h>
#include <string.h>
#define __device__
#define __forceinline__ inline
#define __restrict__
typedef int tw_int2 __attribute__((ext_vector_type(2)));
typedef int tw_int4 __attribute__((ext_vector_type(4)));
struct Slot { alignas(16) unsigned char bytes[2][512]; };
struct Warp { pthread_barrier_t meet; Slot slots[64]; };
struct Block {
  pthread_barrier_t meet;
  Warp warps[16];
  alignas(128) unsigned char shared[1 << 18];
};
static Block tw_the_block;
static int tw_block_index;
static thread_local Warp* tw_the_warp;
static thread_local int tw_thread_index, tw_lane_index;
static void tw_meet(pthread_barrier_t* barrier) { pthread_barrier_wait(barrier); }
template <class T> static T tw_exchange(T x, int lane) {
  memcpy(tw_the_warp->slots[tw_lane_index].bytes[0], &x, sizeof(T));
  tw_meet(&tw_the_warp->meet);
  memcpy(&x, tw_the_warp->slots[lane].bytes[0], sizeof(T));
  tw_meet(&tw_the_warp->meet);
  return x;
}
namespace printed {
"""


def _table(name: str, layout: Layout, axes: tuple[str, str], lanes: int) -> str:
    """``name[row][column] = lane * registers + register`` that holds the element."""
    count = layout.count(Place.REGISTER)
    rows, columns = (layout.extent(axis) for axis in axes)
    table = np.zeros((rows, columns), int)
    for lane in range(lanes):
        for register in range(count):
            at = layout.coordinates(0, lane, register)
            table[at[axes[0]], at[axes[1]]] = lane * count + register
    inner = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in table)
    return f"static const short {name}[{rows}][{columns}] = {{{inner}}};"


@dataclass(frozen=True, slots=True)
class HostDialect:
    warp_size: int

    @property
    def prelude(self) -> Mapping[str, str]:
        skip = ("tw_barrier", "tw_lane_read", "tw_lane_xor", "tw_int2", "tw_int4")
        return {k: v for k, v in HIP_PRELUDE.items() if k not in skip and not v.count("amdgcn")}

    dtypes = frozenset(("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "bool"))
    counters: ClassVar = {"block": "tw_block_index", "thread": "tw_thread_index"}
    vectors: ClassVar = {1: "char", 2: "short", 4: "int", 8: "tw_int2", 16: "tw_int4"}

    def warp(self, quotient: str, _kernel: Kernel, /) -> str:
        return quotient

    def lacks(self, operation: str, dtype: DType, /) -> bool:
        return False

    def opening(self) -> list[str]:
        return _OPENING.strip().splitlines()

    def signature(self, name: str, kernel: Kernel) -> str:
        return f"static void {name}"

    def shared(self, size: int, /) -> str:
        return "unsigned char* const tw_shared = tw_the_block.shared;"

    def barrier(self) -> str:
        return "tw_meet(&tw_the_block.meet);"

    def async_copy(self, copy: Copy, /) -> list[str]:
        return plain_copy(copy, self.vectors[copy.bytes])

    def async_commit(self) -> list[str]:
        return []

    def async_wait(self, pending: int, /) -> list[str]:
        return []

    def lane_xor(self, value: str, dtype: DType, mask: int, /) -> str:
        return f"tw_exchange({value}, tw_lane_index ^ {mask})"

    def lane_read(self, value: str, dtype: DType, lane: str, /) -> str:
        return f"tw_exchange({value}, {lane})"

    def mma_declaration(self, atom: MmaAtom) -> tuple[str, str]:
        a, b, d = (stored_type(t) for t in (atom.a_dtype, atom.b_dtype, atom.d_dtype))
        name = "tw_" + atom.name.replace(".", "_")
        na, nb, nd = (x.count(Place.REGISTER) for x in (atom.a, atom.b, atom.d))
        up = (
            ""
            if atom.a_dtype.bits >= 32 or not atom.a_dtype.is_float
            else f"tw_f32_from_{atom.a_dtype}"
        )
        text = f"""
static void {name}({d}* d, const {a}* a, const {b}* b) {{
  {_table("of_a", atom.a, ("m", "k"), self.warp_size)}
  {_table("of_b", atom.b, ("n", "k"), self.warp_size)}
  {_table("of_d", atom.d, ("m", "n"), self.warp_size)}
  Slot* slots = tw_the_warp->slots;
  memcpy(slots[tw_lane_index].bytes[0], a, sizeof({a}) * {na});
  memcpy(slots[tw_lane_index].bytes[1], b, sizeof({b}) * {nb});
  tw_meet(&tw_the_warp->meet);
  for (int m = 0; m < {atom.m}; ++m)
    for (int n = 0; n < {atom.n}; ++n) {{
      if (of_d[m][n] / {nd} != tw_lane_index) continue;
      for (int k = 0; k < {atom.k}; ++k) {{
        int ia = of_a[m][k], ib = of_b[n][k];
        {a} x = (({a}*)slots[ia / {na}].bytes[0])[ia % {na}];
        {b} y = (({b}*)slots[ib / {nb}].bytes[1])[ib % {nb}];
        d[of_d[m][n] % {nd}] += {up}(x) * {up}(y);
      }}
    }}
  tw_meet(&tw_the_warp->meet);
}}"""
        return name, text.strip()

    def asynchronous(self, statement: AsyncStatement, _access: AccessPrinter, /) -> list[str]:
        raise NotImplementedError(type(statement).__name__)

    def map_parameter(self, name: str, /) -> str:
        raise NotImplementedError(name)

    def matrix_store_declaration(self, store: MatrixLoad) -> tuple[str, str]:
        name = "tw_store_" + store.name.replace(".", "_")
        words = [f"unsigned r{i}" for i in range(store.tiles)]
        element = "rows[8 * t + 2 * (l % 4) + j][l / 4]" if store.transposed else (
            "rows[8 * t + l / 4][2 * (l % 4) + j]"
        )  # fmt: skip
        text = f"""
static void {name}(void* row, {", ".join(words)}) {{
  unsigned words[] = {{{", ".join(f"r{i}" for i in range(store.tiles))}}};
  unsigned short* rows[32];
  for (int i = 0; i < 32; ++i) rows[i] = (unsigned short*)tw_exchange(row, i);
  int l = tw_lane_index;
  for (int t = 0; t < {store.tiles}; ++t)
    for (int j = 0; j < 2; ++j) {element} = (unsigned short)(words[t] >> 16 * j);
}}"""
        return name, text.strip()

    def matrix_load_declaration(self, load: MatrixLoad) -> tuple[str, str]:
        name = "tw_load_" + load.name.replace(".", "_")
        words = [f"unsigned& r{i}" for i in range(load.tiles)]
        element = "rows[8 * t + 2 * (l % 4) + j][l / 4]" if load.transposed else (
            "rows[8 * t + l / 4][2 * (l % 4) + j]"
        )  # fmt: skip
        text = f"""
static void {name}({", ".join(words)}, const void* row) {{
  unsigned* words[] = {{{", ".join(f"&r{i}" for i in range(load.tiles))}}};
  const unsigned short* rows[32];
  for (int i = 0; i < 32; ++i) rows[i] = (const unsigned short*)tw_exchange(row, i);
  int l = tw_lane_index;
  for (int t = 0; t < {load.tiles}; ++t)
    for (int j = 0; j < 2; ++j) ((unsigned short*)words[t])[j] = {element};
}}"""
        return name, text.strip()


def _runner(kernel: Kernel) -> str:
    """``run(blocks, ...)``: one block after another, its threads side by side."""
    name = kernel.name
    parameters = [
        *(f"{stored_type(t.dtype)}* p{i}" for i, t in enumerate(kernel.tensors)),
        *(f"int s{i}" for i, _ in enumerate(kernel.symbols)),
        *(f"{stored_type(s.dtype)} v{i}" for i, s in enumerate(kernel.scalars)),
    ]
    passed = ", ".join(p.split()[-1] for p in parameters)
    fields = " ".join(f"{p};" for p in parameters)
    values = ", ".join(f"arguments->{p.split()[-1]}" for p in parameters)
    return f"""
struct Arguments {{ {fields} }};
static const Arguments* arguments;
static void* tw_start(void* number) {{
  tw_thread_index = (int)(long)number;
  tw_lane_index = tw_thread_index % {kernel.warp_size};
  tw_the_warp = &tw_the_block.warps[tw_thread_index / {kernel.warp_size}];
  {name}({values});
  return nullptr;
}}
extern "C" void run(int blocks, {", ".join(parameters)}) {{
  Arguments given = {{{passed}}};
  arguments = &given;
  pthread_barrier_init(&tw_the_block.meet, nullptr, {kernel.threads});
  for (int w = 0; w < {kernel.warps}; ++w)
    pthread_barrier_init(&tw_the_block.warps[w].meet, nullptr, {kernel.warp_size});
  for (tw_block_index = 0; tw_block_index < blocks; ++tw_block_index) {{
    memset(tw_the_block.shared, 0xcd, sizeof tw_the_block.shared);
    pthread_t threads[{kernel.threads}];
    for (long t = 0; t < {kernel.threads}; ++t)
      pthread_create(&threads[t], nullptr, tw_start, (void*)t);
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
  }}
}}
}}
"""


def clang() -> str:
    path = shutil.which("clang++-19") or shutil.which("clang++")
    if path is None:
        pytest.skip("no clang++ to run printed kernels on the CPU")
    return path


def build(source: str, folder: Path) -> ctypes.CDLL:
    text, library = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source)
    flags = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-shared", "-fPIC", "-pthread", "-w"]
    done = subprocess.run(
        [clang(), *flags, "-o", str(library), str(text)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def run_on_host(
    kernel: Kernel,
    target: Target,
    folder: Path,
    tensors: list[np.ndarray[Any, Any]],
    symbols: Mapping[str, int],
    scalars: list[ctypes._SimpleCData[Any]] | None = None,
) -> None:
    """Print `kernel` for the CPU, compile it, and run it on `tensors` in place."""
    source = print_kernel(kernel, target, HostDialect(kernel.warp_size)) + _runner(kernel)
    library = build(source, folder)
    blocks = prod(extent.evaluate(symbols) for extent in kernel.grid)
    library.run(
        blocks,
        *(ctypes.c_void_p(t.ctypes.data) for t in tensors),
        *(ctypes.c_int(symbols[s.name]) for s in kernel.symbols),
        *(scalars or []),
    )
