"""Recorded launches: when the graph is launched, and when the plain launch takes its place."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from c_functions import c_function

import tilewright as tw
from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime import cuda_driver, graphs
from tilewright.runtime.cuda_driver import LaunchCalls
from tilewright.runtime.graphs import as_graph

# Handles are addresses: none fits into 32 bits.
CONTEXT, GRAPH, STREAM = 0x7F12_3456_7890, 0x7FEE_DDCC_BBA0, 0x5577_6655_4430
CURRENT = 0x5511_2233_4450  # the stream of calls that name none


class FakeDriver:
    """What `graphs` calls of the driver. `state` is the stream's, `status` the launch's result,
    `unknown` that of the question for the state; `during` runs within the launch."""

    def __init__(self, devices: int = 1) -> None:
        self.events: list[Any] = []
        self.devices = devices
        self.state = self.unknown = self.status = self.refused = 0
        self.current = CONTEXT
        self.asked: list[int] = []
        self.during: Callable[[], None] = lambda: None
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
        self.during()
        return self.status

    def capturing(self, stream: int, place: int) -> int:
        self.asked.append(stream)
        ctypes.c_uint32.from_address(place).value = self.state
        return self.unknown

    def context(self, place: int) -> int:
        ctypes.c_uint64.from_address(place).value = self.current
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    calls = LaunchCalls(
        launch=lambda *_: 0,
        context=c_function(fake.context, 1),
        graph=c_function(fake.launch, 2),
        capturing=c_function(fake.capturing, 2, holding=True),
    )
    for module in (graphs, cuda_driver):
        monkeypatch.setattr(module, "load_driver", lambda: fake)
    monkeypatch.setattr(graphs, "launch_calls", lambda: calls)
    monkeypatch.setattr(graphs, "device_count", lambda: fake.devices)
    return fake


def started(driver: FakeDriver) -> tuple[Any, list[int], list[int]]:
    plain: list[int] = []
    recorded: list[int] = []
    start = as_graph(plain.append, recorded.append, CONTEXT, lambda: CURRENT)
    return start, plain, recorded


def test_a_launch_is_recorded_once_and_never_run_meanwhile(driver: FakeDriver) -> None:
    start, plain, recorded = started(driver)
    assert recorded == [5]
    begin, end = (driver.events.index(f"cuStream{w}Capture") for w in ("Begin", "End"))
    assert begin < end < driver.events.index("cuGraphInstantiate")
    assert driver.events[-4:] == [
        "cuGraphDestroy", "cuStreamDestroy", "cuThreadExchangeStreamCaptureMode", "cuCtxPopCurrent",
    ]  # fmt: skip
    driver.events.clear()
    start(STREAM)
    start(stream=0)
    start()
    start(STREAM)
    start(STREAM & 0xFFFF_FFFF)
    streams = [STREAM, 0, CURRENT, STREAM, STREAM & 0xFFFF_FFFF]
    assert driver.events == [(GRAPH, stream) for stream in streams]
    assert driver.asked == [stream for stream in streams if stream]
    assert (plain, recorded) == ([], [5])
    with pytest.raises(TypeError):
        start(SimpleNamespace(cuda_stream=STREAM))
    start()
    assert driver.events[5:] == [(GRAPH, CURRENT)]


def test_a_stream_that_is_captured_gets_the_plain_launch(driver: FakeDriver) -> None:
    start, plain, _ = started(driver)
    driver.state = 1
    start(STREAM)
    start()
    assert plain == [STREAM, CURRENT]
    assert (GRAPH, STREAM) not in driver.events
    start(0)
    assert driver.events[-1] == (GRAPH, 0)
    driver.state = 0
    start(STREAM)
    assert driver.events[-1] == (GRAPH, STREAM)


def test_a_stream_of_which_the_driver_cannot_tell_does_too(driver: FakeDriver) -> None:
    start, plain, _ = started(driver)
    driver.unknown = 906
    start(STREAM)
    assert plain == [STREAM]
    assert (GRAPH, STREAM) not in driver.events


def test_where_the_driver_refuses_the_plain_launch_says_why(driver: FakeDriver) -> None:
    start, plain, _ = started(driver)
    driver.status = 201
    start(STREAM)
    assert plain == [STREAM]


def test_who_finds_the_graph_in_use_launches_plainly(driver: FakeDriver) -> None:
    """No two threads launch one graph at a time, and none waits for another."""
    start, plain, _ = started(driver)
    inside, done = Barrier(2), Barrier(2)

    def wait() -> None:
        inside.wait(60)
        done.wait(60)

    driver.during = wait
    thread = Thread(target=start, args=(STREAM,))
    thread.start()
    inside.wait(60)
    start()
    assert plain == [CURRENT]
    done.wait(60)
    thread.join()
    driver.during = lambda: None
    start()
    assert driver.events[-2:] == [(GRAPH, STREAM), (GRAPH, CURRENT)]
    assert plain == [CURRENT]


def test_the_graph_is_destroyed_after_its_last_user_and_before_its_memory(
    driver: FakeDriver,
) -> None:
    class Memory:
        def __del__(self) -> None:
            driver.events.append("memory")

        def record(self, stream: int) -> None:
            pass

    memory = Memory()
    start = as_graph(lambda _: None, memory.record, CONTEXT, int)
    del memory
    gc.collect()
    start()
    assert driver.events[-1] == (GRAPH, 0)
    del start
    gc.collect()
    assert driver.events[-2:] == ["cuGraphExecDestroy", "memory"]


@pytest.mark.parametrize(
    ("current", "plainly"),
    [(CONTEXT, False), (CONTEXT + (1 << 32), True), (CONTEXT & 0xFFFF_FFFF, True), (0, True)],
)
def test_of_several_devices_the_current_one_decides(
    driver: FakeDriver, current: int, plainly: bool
) -> None:
    driver.devices = 2
    start, plain, _ = started(driver)
    driver.current = current
    start(STREAM)
    assert plain == [STREAM] * plainly
    assert ((GRAPH, STREAM) in driver.events) is not plainly


def test_without_graphs_the_launch_stays_as_it_is(driver: FakeDriver) -> None:
    driver.refused = 801
    start, plain, _ = started(driver)
    assert driver.events[-1] == "cuCtxPopCurrent"
    start(STREAM)
    start()
    assert plain == [STREAM, CURRENT]


def test_without_a_driver_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise ToolchainError("no driver")

    monkeypatch.setattr(graphs, "launch_calls", none)
    plain: list[int] = []
    start = as_graph(plain.append, plain.append, CONTEXT, lambda: CURRENT)
    start(STREAM)
    start()
    assert plain == [STREAM, CURRENT]


def test_only_the_question_for_a_capture_keeps_the_interpreters_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: dict[str, list[str]] = {"CDLL": [], "PyDLL": []}

    class Library:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def __getattr__(self, name: str) -> Any:
            taken[self.kind].append(name)
            return SimpleNamespace()

    monkeypatch.setattr(cuda_driver, "load_driver", lambda: None)
    for kind in taken:
        monkeypatch.setattr(ctypes, kind, lambda _, kind=kind: Library(kind))
    calls = cuda_driver.launch_calls.__wrapped__()
    assert taken["PyDLL"] == ["cuStreamIsCapturing"]
    assert {"cuGraphLaunch", "cuLaunchKernelEx"} <= {*taken["CDLL"]}
    # These take ready-made arguments: types would have each call look at them again.
    assert not hasattr(calls.graph, "argtypes")
    assert not hasattr(calls.capturing, "argtypes")


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
