"""Warp-wide stores of 8x8 tiles (`stmatrix`): printed, simulated, and run, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_dialect import run_on_host

from tilewright.base.diagnostics import AtomError, LegalityError
from tilewright.codegen import print_cuda
from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import Kernel
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import check
from tilewright.runtime.cuda_driver import DeviceMemory, load_module, synchronize
from tilewright.runtime.launch import bind_launch
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

# y = x, or its transpose, through shared memory.
TEXT = """\
kernel move target sm_90a warps 1x32 grid [1]
  in x: f16[16, 32] strides [32, 1] align 16
  out y: f16[{rows}, {columns}] strides [{columns}, 1] align 16
  shared s: f16[{rows}, {columns}] swizzle({swizzle}) at 0
  reg r: f16[2, 8]
  reg v: f16[2, 8]
  decode lane -> g: 8, p: 4
  for n < 2, t < 2, h < 2: load 2 r[n, 2*h + 4*t] = x[g + 8*h, 16*n + 2*p + 8*t]
  for n < 2, t < 2, h < 2: store 2 via {atom}(row g, column p, tiles {tiles}) \
{place} = r[n, 2*h + 4*t]
  barrier
  decode lane -> row: {rows}, part: {parts}
  for k < 2: load 8 v[k, 0] = s[row, 8*k + 16*part]
  for k < 2: store 8 y[row, 8*k + 16*part] = v[k, 0]
"""


def plain(atom: str = "x4", tiles: str = "t, h") -> Kernel:
    place = "s[g + 8*h, 16*n + 2*p + 8*t]"
    return parse_kernel(
        TEXT.format(rows=16, columns=32, parts=2, swizzle="2, 3, 3", atom=atom, tiles=tiles,
                    place=place)
    )  # fmt: skip


def transposed() -> Kernel:
    place = "s[16*n + 2*p + 8*t, g + 8*h]"
    text = TEXT.format(rows=32, columns=16, parts=1, swizzle="1, 3, 3", atom="x4.trans",
                       tiles="t, h", place=place)  # fmt: skip
    return parse_kernel(text.replace(" = r[n, 2*h + 4*t]", " = r[n, 2*h + 4*t] axis 0"))


KERNELS = [plain(), plain("x2", "t"), plain("x4", "h, t"), transposed()]
IDS = ["x4", "x2", "x4, rows of tiles first", "x4.trans"]


def given() -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(512, dtype=np.float16).reshape(16, 32)
    return x, np.full((16, 32), np.nan, np.float16)


def wanted(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    return x.T if kernel.tensors[1].shape[0].const == 32 else x


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_on_the_simulator(kernel: Kernel) -> None:
    check(kernel, SM_90A)
    assert parse_kernel(print_kernel(kernel)) == kernel
    x, y = given()
    y = y.reshape(wanted(kernel, x).shape)
    simulate(kernel, SM_90A, {"x": x, "y": y}, {})
    np.testing.assert_array_equal(y, wanted(kernel, x))


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_on_the_host(kernel: Kernel, tmp_path: Path) -> None:
    x, y = given()
    y = y.reshape(wanted(kernel, x).shape)
    run_on_host(kernel, SM_90A, tmp_path, [x, y], {})
    np.testing.assert_array_equal(y, wanted(kernel, x))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_on_the_device(kernel: Kernel) -> None:
    x, y = given()
    y = y.reshape(wanted(kernel, x).shape)
    module = load_module(compile_source(print_cuda(kernel, SM_90A), SM_90A), kernel.shared_bytes)
    memory = [DeviceMemory(t.nbytes) for t in (x, y)]
    for block, tensor in zip(memory, (x, y), strict=True):
        block.write(tensor.ctypes.data)
    bind_launch(module, kernel, {}, {})(0, *(block.pointer for block in memory))
    synchronize()
    memory[1].read(y.ctypes.data)
    for block in memory:
        block.free()
    np.testing.assert_array_equal(y, wanted(kernel, x))


def test_a_store_that_its_instruction_does_not_fit_is_refused() -> None:
    with pytest.raises(AtomError, match="sm_90a has no matrix store x8"):
        print_cuda(plain("x8"), SM_90A)
    with pytest.raises(LegalityError, match="x4 stores 4 tiles of two elements a lane"):
        print_cuda(plain("x4", "t"), SM_90A)
