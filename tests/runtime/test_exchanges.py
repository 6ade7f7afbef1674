"""Memory for exchanges between blocks: which launches share it, on a driver that is made up."""

from __future__ import annotations

import ctypes
import struct
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from c_functions import c_function

from tilewright.kernel.declared import exchange_bytes, exchange_flags
from tilewright.kernel.parse import parse_kernel
from tilewright.runtime import cuda_driver, exchanges
from tilewright.runtime.exchanges import ATTRIBUTES, OF_THE_THREAD, Exchanges
from tilewright.runtime.launch import HEAD, ParameterBlock, exchanges_of

PLACE = 64
PAIR = """
kernel pair target sm_90a warps 1x32 grid [2]
  out y: f32[2, 128] strides [128, 1] align 16
  exchange left: f32 count 4
  reg mine: f32[4]
  decode block -> b: 2
  decode lane -> l: 32
  for i < 4: mine[i] = f32(index(l + 32*b): i32)
  deposit 4 left[0] = mine[0]
  announce left
  await left of block 1 - b
  collect 4 mine[0] = left[0] of block 1 - b
  store 4 y[b, 4*l] = mine[0]
"""


class FakeDriver:
    """What `Exchanges` calls of the driver; `captured` has the capture that streams are in."""

    def __init__(self) -> None:
        self.captured: dict[int, int] = {}
        self.waited: list[int] = []
        self.mode, self.contexts = "global", ["other"]
        self.allocated: list[tuple[int, str, str]] = []
        self.filled: list[tuple[int, int]] = []
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.capturing = c_function(self.is_captured, 2, holding=True)

    def cuStreamCreate(self, _flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, 99

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:  # noqa: N802
        self.waited.append(stream)
        return (0,)

    def cuStreamDestroy(self, _stream: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        return 0, 1, self.captured[stream], None

    def cuCtxPushCurrent(self, context: str) -> tuple[int]:  # noqa: N802
        self.contexts.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int]:  # noqa: N802
        self.contexts.pop()
        return (0,)

    def cuThreadExchangeStreamCaptureMode(self, mode: str) -> tuple[int, str]:  # noqa: N802
        before, self.mode = self.mode, mode
        return 0, before

    def is_captured(self, stream: int, place: int) -> int:
        ctypes.c_uint32.from_address(place).value = stream in self.captured
        return 0

    def memory(self, size: int, _device: int) -> Any:
        self.allocated.append((size, self.mode, self.contexts[-1]))
        pointer = 0x1000 * len(self.allocated)
        return SimpleNamespace(
            pointer=pointer, fill=lambda _, stream, count: self.filled.append((stream, count))
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    for module in (exchanges, cuda_driver):
        monkeypatch.setattr(module, "load_driver", lambda: fake)
    monkeypatch.setattr(exchanges, "launch_calls", lambda: fake)
    monkeypatch.setattr(exchanges, "primary_context", lambda _: "own")
    monkeypatch.setattr(exchanges, "DeviceMemory", fake.memory)
    return fake


KERNEL = parse_kernel(PAIR.strip())


def pointer(made: Exchanges, stream: int) -> int:
    buffer = ctypes.create_string_buffer(PLACE + 8)
    made.write(buffer, stream)
    attributes, count = struct.unpack_from("PI", buffer, ATTRIBUTES)
    assert attributes
    assert count == 1
    return struct.unpack_from("P", buffer, PLACE)[0]


def test_launches_of_a_stream_share_memory_that_others_do_not_get(driver: FakeDriver) -> None:
    made = Exchanges(KERNEL, [PLACE], 0)
    first, second = pointer(made, 5), pointer(made, 6)
    assert first != second
    assert [pointer(made, s) for s in (5, 6, 5)] == [first, second, first]
    size = exchange_bytes(KERNEL.exchanges[0], 2, 1, 32)
    assert driver.allocated == [(size, "relaxed", "own")] * 2
    assert driver.filled == [(5, exchange_flags(2, 1)), (6, exchange_flags(2, 1))]
    assert (driver.mode, driver.contexts) == ("global", ["other"])  # as they were


def test_each_thread_has_a_stream_of_its_own_behind_one_handle(driver: FakeDriver) -> None:
    made = Exchanges(KERNEL, [PLACE], 0)
    found = [pointer(made, OF_THE_THREAD)]
    thread = Thread(target=lambda: found.append(pointer(made, OF_THE_THREAD)))
    thread.start()
    thread.join()
    assert found[0] != found[1]
    assert pointer(made, OF_THE_THREAD) == found[0]
    assert len(driver.allocated) == 2


def test_what_a_stream_captures_into_a_graph_has_memory_of_its_own(driver: FakeDriver) -> None:
    """A graph may run beside the stream's other launches, and beside other graphs."""
    made = Exchanges(KERNEL, [PLACE], 0)
    plain = pointer(made, 5)
    driver.captured = {5: 41, 6: 41}
    first = [pointer(made, s) for s in (5, 6, 5)]
    assert first[0] == first[2]
    driver.captured = {5: 42}
    assert len({plain, *first, pointer(made, 5)}) == 4
    flags = exchange_flags(2, 1)
    assert driver.filled[1:] == [(5, flags), (6, flags), (5, flags)]  # a part of the graph
    driver.captured = {}
    assert pointer(made, 5) == plain


def test_a_recorded_launch_has_memory_that_is_ready_on_every_stream(driver: FakeDriver) -> None:
    made = Exchanges(KERNEL, [PLACE], 0)
    buffer = ctypes.create_string_buffer(PLACE + 8)
    made.alone()(buffer)
    assert driver.filled == [(99, exchange_flags(2, 1))]
    assert driver.waited == [99]
    assert struct.unpack_from("P", buffer, PLACE)[0] != pointer(made, 0)


def test_one_object_serves_all_launches_of_a_kernel(driver: FakeDriver) -> None:
    made = exchanges_of(KERNEL, 0)
    assert made is not None
    block = ParameterBlock.of(KERNEL)
    buffer = ctypes.create_string_buffer(HEAD + block.size)
    made.write(buffer, 5)
    assert struct.unpack_from("P", buffer, HEAD + block.offsets[-1])[0] == 0x1000
    assert len(driver.allocated) == 1
    assert exchanges_of(parse_kernel(PAIR.split("\n  reg", maxsplit=1)[0].replace(
        "\n  exchange left: f32 count 4", "").strip()), 0) is None  # fmt: skip
