"""Memory for exchanges: one piece per stream and per graph, zeros before its first launch."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.base.dtypes import f32
from tilewright.kernel.declared import Exchange, exchange_bytes, exchange_flags
from tilewright.runtime import exchanges
from tilewright.runtime.exchanges import ATTRIBUTES, Exchanges

RELAXED, GLOBAL = 2, 0
WARPS, THREADS, BLOCKS = 12, 384, 130
SUMS = Exchange("sums", f32, 128)
KERNEL: Any = SimpleNamespace(exchanges=(SUMS,), warps=WARPS, threads=THREADS)


class FakeDriver:
    """What `exchanges` calls of the driver; `captures` has the capture that a stream is in."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.captures: dict[int, int] = {}
        self.mode = GLOBAL
        self.made = 0
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=RELAXED)

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[int, int]:  # noqa: N802
        self.mode, before = mode, self.mode
        return 0, before

    def cuStreamCreate(self, _flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, 99

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:  # noqa: N802
        self.events.append(("wait", stream))
        return (0,)

    def cuStreamDestroy(self, _stream: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        return 0, 1, self.captures[stream], None

    def capturing(self, stream: int, place: int) -> int:
        ctypes.c_uint64.from_address(place).value = int(stream in self.captures)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()

    class Memory:
        def __init__(self, size: int, device: int) -> None:
            assert fake.mode == RELAXED
            fake.made += 1
            self.pointer = 0x1000 * fake.made
            fake.events.append(("new", size, device))

        def fill(self, byte: int, stream: int) -> None:
            fake.events.append(("fill", byte, stream))

    monkeypatch.setattr(exchanges, "DeviceMemory", Memory)
    monkeypatch.setattr(exchanges, "load_driver", lambda: fake)
    monkeypatch.setattr(exchanges, "launch_calls", lambda: fake)
    return fake


def written(made: Exchanges, stream: int) -> int:
    """The address that a launch on the stream gets, and the demand beside it."""
    buffer = bytearray(128)
    made.write(buffer, stream)
    where, count = struct.unpack_from("PI", buffer, ATTRIBUTES)
    assert count == 1
    assert struct.unpack("I4xI", ctypes.string_at(where, 12)) == (2, 1)  # cooperative
    return struct.unpack_from("P", buffer, 64)[0]


def test_the_size_of_an_exchange() -> None:
    """A word for each warp, whole sectors of them, then the registers of all threads."""
    assert exchange_flags(BLOCKS, WARPS) == 6272  # 130 * 12 * 4 = 6240
    assert exchange_bytes(SUMS, BLOCKS, WARPS, THREADS) == 6272 + BLOCKS * THREADS * 128 * 4


def test_each_stream_has_memory_that_is_zero_before_its_first_launch(driver: FakeDriver) -> None:
    made = Exchanges(KERNEL, BLOCKS, [64], 3)
    size = exchange_bytes(SUMS, BLOCKS, WARPS, THREADS)
    assert written(made, 7) == 0x1000
    assert driver.events == [("new", size, 3), ("fill", 0, 99), ("wait", 99)]
    assert [written(made, s) for s in (7, 0, 7, 0)] == [0x1000, 0x2000, 0x1000, 0x2000]
    assert driver.mode == GLOBAL


def test_each_graph_that_launches_are_captured_into_has_its_own(driver: FakeDriver) -> None:
    made = Exchanges(KERNEL, BLOCKS, [64], 0)
    plain = written(made, 7)
    driver.captures[7] = 41
    first = [written(made, 7) for _ in range(2)]
    driver.captures[7] = 42
    assert len({plain, *first, written(made, 7)}) == 3
    assert first[0] == first[1]
    assert driver.mode == GLOBAL


def test_a_recorded_launch_has_its_own(driver: FakeDriver) -> None:
    made = Exchanges(KERNEL, BLOCKS, [64], 0)
    buffer = bytearray(128)
    made.alone()(buffer)
    assert struct.unpack_from("P", buffer, 64)[0] != written(made, 0)
