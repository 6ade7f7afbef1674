"""Recorded launches: when the graph is launched, and when the plain launch takes its place."""

from __future__ import annotations

import ctypes
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright as tw
from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime import cuda_driver, graphs
from tilewright.runtime.graphs import as_graph

CONTEXT, GRAPH = 0x70, 0x90


class FakeDriver:
    """What `graphs` calls of the driver. `state` is the stream's, `status` the launch's result."""

    def __init__(self, devices: int = 1) -> None:
        self.events: list[Any] = []
        self.devices = devices
        self.state = self.status = self.refused = 0
        self.current = CONTEXT
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=1)

    def __getattr__(self, name: str) -> Any:
        results = {"cuStreamCreate": 5, "cuStreamEndCapture": 6, "cuGraphInstantiate": GRAPH}

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.events.append(name)
            if name == "cuGraphInstantiate" and self.refused:
                return (self.refused,)
            return (0, results[name]) if name in results else (0,)

        return call

    def cuGetErrorName(self, _status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"CUDA_ERROR_NOT_SUPPORTED"

    def cuGetErrorString(self, _status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"operation not supported"

    def launch(self, graph: int, stream: int) -> int:
        self.events.append((graph, stream))
        return self.status

    def capturing(self, _stream: int, place: int) -> int:
        ctypes.c_uint64.from_address(place).value = self.state
        return 0

    def context(self, place: int) -> int:
        ctypes.c_uint64.from_address(place).value = self.current
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    calls = SimpleNamespace(graph=fake.launch, capturing=fake.capturing, context=fake.context)
    for module in (graphs, cuda_driver):
        monkeypatch.setattr(module, "load_driver", lambda: fake)
    monkeypatch.setattr(graphs, "launch_calls", lambda: calls)
    monkeypatch.setattr(graphs, "device_count", lambda: fake.devices)
    return fake


def started(driver: FakeDriver) -> tuple[Any, list[int], list[int]]:
    plain: list[int] = []
    recorded: list[int] = []
    return as_graph(plain.append, recorded.append, CONTEXT), plain, recorded


def test_a_launch_is_recorded_once_and_never_run_meanwhile(driver: FakeDriver) -> None:
    start, plain, recorded = started(driver)
    assert recorded == [5]
    begin, end = (driver.events.index(f"cuStream{w}Capture") for w in ("Begin", "End"))
    assert begin < end < driver.events.index("cuGraphInstantiate")
    assert driver.events[-4:] == [
        "cuGraphDestroy", "cuStreamDestroy", "cuThreadExchangeStreamCaptureMode", "cuCtxPopCurrent",
    ]  # fmt: skip
    for stream in (0, 42):
        start(stream)
    assert driver.events[-2:] == [(GRAPH, 0), (GRAPH, 42)]
    assert (plain, recorded) == ([], [5])


def test_a_stream_that_is_captured_gets_the_plain_launch(driver: FakeDriver) -> None:
    start, plain, _ = started(driver)
    driver.state = 1
    start(42)
    assert plain == [42]
    assert (GRAPH, 42) not in driver.events


def test_where_the_driver_refuses_the_plain_launch_says_why(driver: FakeDriver) -> None:
    start, plain, _ = started(driver)
    driver.status = 201
    start(42)
    assert plain == [42]


@pytest.mark.parametrize(("current", "plainly"), [(CONTEXT, False), (0x80, True)])
def test_of_several_devices_the_current_one_decides(
    driver: FakeDriver, current: int, plainly: bool
) -> None:
    driver.devices = 2
    start, plain, _ = started(driver)
    driver.current = current
    start(7)
    assert plain == [7] * plainly
    assert ((GRAPH, 7) in driver.events) is not plainly


def test_without_graphs_the_launch_stays_as_it_is(driver: FakeDriver) -> None:
    driver.refused = 801
    start, plain, _ = started(driver)
    assert driver.events[-1] == "cuCtxPopCurrent"
    start(3)
    assert plain == [3]


def test_without_a_driver_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise ToolchainError("no driver")

    monkeypatch.setattr(graphs, "launch_calls", none)
    plain: list[int] = []
    as_graph(plain.append, plain.append, CONTEXT)(9)
    assert plain == [9]


M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


def product(shares: tuple[int, int] | None) -> Any:
    @tw.kernel([
        tw.WorkgroupConstraint(M, 64, 0), tw.WorkgroupConstraint(N, 64, 1),
        tw.TilingConstraint(K, 64), tw.HardwareConstraint(stream_k=shares),
    ])  # fmt: skip
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.bf16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.bf16],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.cast(total, tw.bf16), c)

    return gemm


@pytest.mark.gpu
@pytest.mark.parametrize("shares", [None, (2, 3)])
def test_bound_calls_on_streams_in_threads_and_in_a_captured_graph(
    shares: tuple[int, int] | None,
) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a, b = (torch.randint(-3, 4, (256, 384), device="cuda").bfloat16() for _ in range(2))
    c = torch.empty((256, 256), device="cuda", dtype=torch.bfloat16)
    wanted = (a.double() @ b.double().T).bfloat16()
    launch = product(shares).bind(a, b, c)

    def is_right() -> bool:
        torch.cuda.synchronize()
        right = torch.equal(c, wanted)
        c.fill_(float("nan"))
        torch.cuda.synchronize()
        return right

    assert not is_right()  # binding runs nothing
    launch()
    assert is_right()
    side = torch.cuda.Stream()
    launch(side.cuda_stream)
    assert is_right()
    threads = [Thread(target=lambda: [launch() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_right()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
        launch()
    assert not is_right()
    for _ in range(3):
        graph.replay()
        assert is_right()
