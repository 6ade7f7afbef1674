"""Launch parameters: laid out as C lays them out, private to a thread, checked beforehand."""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.base.diagnostics import CallError, ToolchainError
from tilewright.base.dtypes import bf16, boolean, f16, f32, f64, i8
from tilewright.kernel.ops import Kernel, Mode, Scalar, Shared, Symbol, Tensor
from tilewright.poly.expr import Expr, at_least
from tilewright.runtime import launch
from tilewright.runtime.cuda_driver import Module, current_stream
from tilewright.runtime.launch import Caller, ParameterBlock, bind_launch

V = Expr.of


def kernel() -> Kernel:
    def tensor(name: str) -> Tensor:
        return Tensor(name, f32, (V("M"),), (V(1),), Mode.IN, 16)

    return Kernel(
        name="k",
        target="sm_90a",
        warp_size=32,
        warps=2,
        grid=(V("M").ceildiv(64), V("N")),
        symbols=(Symbol("M"), Symbol("N", low=2, multiple=2)),
        tensors=(tensor("a"), tensor("b")),
        scalars=(
            Scalar("flag", boolean), Scalar("x", f64), Scalar("h", f16), Scalar("b", bf16),
            Scalar("c", i8), Scalar("f", f32),
        ),
        shared=(Shared("s", f32, (16, 16), offset=1024),),
        registers=(),
        body=(),
        contracts=(at_least("M", V("N")),),
    )  # fmt: skip


SIZES = {"M": 130, "N": 4}
SCALARS = {"flag": True, "x": 2.5, "h": 1.5, "b": -2.0, "c": -3, "f": 0.5}


class Parameters(ctypes.Structure):
    """How C lays out the parameters, each at its natural alignment."""

    _fields_ = [
        ("a", ctypes.c_void_p), ("b", ctypes.c_void_p), ("m", ctypes.c_int), ("n", ctypes.c_int),
        ("flag", ctypes.c_bool), ("x", ctypes.c_double), ("h", ctypes.c_uint16),
        ("bf", ctypes.c_uint16), ("c", ctypes.c_int8), ("f", ctypes.c_float),
    ]  # fmt: skip


class Configuration(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    ]  # fmt: skip


@dataclass
class FakeDriver:
    """Records launches as the driver would read them."""

    status: int = 0
    current: int = 7
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    pushed: list[object] = field(default_factory=list)

    def context(self, place: int) -> int:
        ctypes.c_void_p.from_address(place).value = self.current
        return 0

    def cuCtxPushCurrent(self, context: object) -> tuple[int]:  # noqa: N802
        self.pushed.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, int]:  # noqa: N802
        self.pushed.append("pop")
        return 0, 0

    def launch(self, configuration: int, function: int, parameters: int, extra: None) -> int:
        c = Configuration.from_address(configuration)
        kinds = [kind for _, kind, *_ in Parameters._fields_]
        addresses = (ctypes.c_void_p * len(kinds)).from_address(parameters)
        values = [k.from_address(a).value for k, a in zip(kinds, addresses, strict=True)]
        shape = (function, *c.grid, *c.block, c.shared, c.stream or 0, c.attributes, c.count)
        self.calls.append((shape, values))
        return self.status

    def CUresult(self, status: int) -> int:  # noqa: N802
        return status

    def cuGetErrorName(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"CUDA_ERROR_INVALID_VALUE"

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"invalid argument"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(launch, "load_driver", lambda: fake)
    monkeypatch.setattr(launch, "launch_calls", lambda: fake)
    monkeypatch.setattr(launch, "as_graph", lambda plain, *_: plain)
    return fake


def test_offsets_are_those_of_c() -> None:
    block = ParameterBlock.of(kernel())
    names = [name for name, *_ in Parameters._fields_]
    assert block.offsets == tuple(getattr(Parameters, name).offset for name in names)


def test_a_launch_passes_everything(driver: FakeDriver) -> None:
    bound = bind_launch(Module(None, 5, 7), kernel(), SIZES, SCALARS)
    bound(99, 0x1000, 0x2000)
    bound(98, 0x3000, 0x4000)
    (shape, values), (_, again) = driver.calls
    assert shape == (5, 3 * 4, 1, 1, 64, 1, 1, 2048, 99, None, 0)
    assert values == [0x1000, 0x2000, 130, 4, True, 2.5, 0x3E00, 0xC000, -3, 0.5]
    assert again[:2] == [0x3000, 0x4000]
    assert driver.pushed == []


def test_a_fixed_launch_takes_the_stream_alone(driver: FakeDriver) -> None:
    bound = bind_launch(Module(None, 5, 7), kernel(), SIZES, SCALARS)
    fixed = bound.fixed(Caller(int), 0x1000, 0x2000)
    bound(1, 0x3000, 0x4000)
    fixed(42)
    fixed(43)
    (_, other), (shape, values), (again, same) = driver.calls
    assert other[:2] == [0x3000, 0x4000]
    assert shape == (5, 3 * 4, 1, 1, 64, 1, 1, 2048, 42, None, 0)
    assert values == same == [0x1000, 0x2000, 130, 4, True, 2.5, 0x3E00, 0xC000, -3, 0.5]
    assert again[8] == 43


def test_another_current_device_is_restored(driver: FakeDriver) -> None:
    bound = bind_launch(Module(None, 5, 8), kernel(), SIZES, SCALARS)
    bound(0, 1, 2)
    assert driver.pushed == [8, "pop"]
    assert len(driver.calls) == 1


def test_threads_do_not_share_a_buffer(driver: FakeDriver) -> None:
    bound = bind_launch(Module(None, 5, 7), kernel(), SIZES, SCALARS)

    def work(number: int) -> None:
        for _ in range(200):
            bound(number, number, number + 1)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.calls) == 800
    assert all(values[:2] == [s[8], s[8] + 1] for s, values in driver.calls)
    assert all(values[2:4] == [130, 4] for _, values in driver.calls)


def test_a_refused_launch_says_why(driver: FakeDriver) -> None:
    driver.status = 1
    bound = bind_launch(Module(None, 5, 7), kernel(), SIZES, SCALARS)
    with pytest.raises(ToolchainError, match="CUDA_ERROR_INVALID_VALUE invalid argument"):
        bound(0, 1, 2)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"M": 130}, "k is launched without N"),
        ({"M": 130, "N": 3}, "compiled for other sizes than N = 3"),
        ({"M": 130, "N": 0}, "compiled for other sizes than N = 0"),
        ({"M": 2, "N": 4}, "k assumes M - N >= 0, which does not hold"),
        ({"M": 1 << 31, "N": 4}, "compiled for other sizes than M"),
        ({"M": (1 << 31) - 1, "N": 1 << 20}, "would be launched with 35184372088832 blocks"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    driver: FakeDriver, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(CallError, match=message):
        bind_launch(Module(None, 5, 7), kernel(), sizes, SCALARS)
    assert driver.calls == []


def test_the_stream_is_torchs_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert current_stream(0) == 0
    raw = SimpleNamespace(_C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 70 + device))
    monkeypatch.setitem(sys.modules, "torch", raw)
    assert current_stream(3) == 73
    stream = SimpleNamespace(cuda_stream=11)
    cuda = SimpleNamespace(is_available=lambda: True, current_stream=lambda device: stream)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert current_stream(0) == 11
    cuda.is_available = lambda: False
    assert current_stream(0) == 0
