"""Tuning on a device: what the bench does to memory, and a search from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.call import read_call
from tilewright.driver.tuning.options import Options
from tilewright.driver.tuning.report import Verdict
from tilewright.driver.tuning.tile import tune
from tilewright.runtime.arguments import CPU, Device, TensorView, view
from tilewright.runtime.bench import CudaBench, bench_for, elements, reach
from tilewright.runtime.cache import DiskCache

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
BLOCK_M, BLOCK_N, BLOCK_K = tw.sym.BLOCK_M, tw.sym.BLOCK_N, tw.sym.BLOCK_K


def test_there_is_no_bench_for_the_host() -> None:
    assert bench_for(CPU) is None
    assert bench_for(Device("cuda", 1)) == CudaBench(1)


@pytest.mark.parametrize("cut", [np.s_[:, :], np.s_[1:, ::2], np.s_[::-1, 3], np.s_[2, ::-3]])
def test_reach_and_elements_describe_any_strided_array(cut: Any) -> None:
    array = np.arange(35, dtype=np.int16).reshape(5, 7)[cut]
    seen = view(array)
    low, size = reach(seen)
    start = seen.pointer + low
    memory = np.frombuffer((np.ctypeslib.ctypes.c_char * size).from_address(start), np.uint8)
    assert (elements(memory.copy(), seen, low) == array).all()


def on_device(array: np.ndarray[Any, Any]) -> Any:
    from tilewright.runtime.device_arrays import DeviceArray

    return DeviceArray(array)


@pytest.mark.gpu
def test_the_bench_touches_the_elements_alone() -> None:
    bench = CudaBench()
    array = np.arange(48, dtype=np.int32).reshape(6, 8)
    whole = view(on_device(array))
    part = TensorView(whole.pointer + 4, (6, 3), (8, 2), whole.dtype, whole.device, whole.owner)
    assert (bench.read(part) == array[:, 1:7:2]).all()
    put_back = bench.snapshot(part)
    bench.fill(part, 0x5A)
    wanted = array.copy()
    wanted[:, 1:7:2] = 0x5A5A5A5A
    assert (bench.read(whole) == wanted).all()
    put_back()
    assert (bench.read(whole) == array).all()
    bench.fill(whole, 0xFF)
    assert (bench.read(whole) == -1).all()


def gemm(a, b, c):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)


gemm.__annotations__ = {
    "a": tw.Memory[M, K, tw.GLOBAL, tw.bf16],
    "b": tw.Memory[N, K, tw.GLOBAL, tw.bf16],
    "c": tw.Memory[M, N, tw.GLOBAL, tw.bf16],
}
CONSTRAINTS = [
    tw.WorkgroupConstraint(M, BLOCK_M, 0),
    tw.WorkgroupConstraint(N, BLOCK_N, 1),
    tw.TilingConstraint(K, BLOCK_K),
]


def product(size: int) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    import ml_dtypes

    random = np.random.default_rng(0)
    host = [random.standard_normal((size, size)).astype(ml_dtypes.bfloat16) for _ in "abc"]
    return tuple(on_device(array) for array in host), host


@pytest.mark.gpu
def test_suggested_configs_are_measured_and_right(tmp_path: Path) -> None:
    kernel = tw.autotune(
        options=Options(top=6, cache=lambda: DiskCache(tmp_path)),
    )(tw.kernel(CONSTRAINTS)(gemm))
    tensors, (a, b, c) = product(2048)
    report = kernel.tune(*tensors)
    print(report)
    assert (tensors[2].numpy() == c).all()  # left alone
    assert sum(row.measured is not None for row in report.rows) >= 6
    assert not report.wrong
    assert "H" in report.where
    kernel(*tensors)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    found = tensors[2].numpy().astype(np.float32)
    assert np.abs(found - wanted).max() < 1e-2 * np.abs(wanted).max()
    assert len(kernel.reports) == 1
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


@pytest.mark.gpu
def test_a_tensor_that_is_read_and_written_is_put_back() -> None:
    @tw.kernel([tw.WorkgroupConstraint(M, BLOCK_M, 0)])
    def add_to(x: tw.Memory[M, tw.GLOBAL, tw.f32], y: tw.Memory[M, tw.GLOBAL, tw.f32]):
        tw.write(tw.read(x) + tw.read(y), y)

    x, y = np.arange(1 << 20, dtype=np.float32), np.full(1 << 20, 3.0, np.float32)
    device = on_device(x), on_device(y)
    configs = [tw.Config({BLOCK_M: size}) for size in (512, 1024, 2048)]
    report = tune(add_to, configs, read_call(add_to.program, device), Options())
    assert [row.error for row in report.rows] == [0.0] * 3
    assert {row.verdict for row in report.rows} == {Verdict.CHOSEN, Verdict.RIGHT}
    assert (device[1].numpy() == y).all()
