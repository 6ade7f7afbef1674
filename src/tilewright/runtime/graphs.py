"""A launch with everything fixed as a CUDA graph of one node: it takes the host half the time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import finalize

from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime.cuda_driver import (
    checked,
    device_count,
    launch_calls,
    load_driver,
    primary_context,
)

Start = Callable[[int], None]


def as_graph(start: Start, device: int) -> Start:
    """`start` as a graph; as it is, where the driver makes none (while it captures, say).

    Launches of one graph follow one another, on whatever streams they are. With several devices
    the thread's current one is looked at first, which costs another half a microsecond.
    """
    try:
        return GraphStart(start, device)
    except ToolchainError:
        return start


class GraphStart:
    """A recorded launch. Threads may share it; it takes the stream."""

    __slots__ = ("__weakref__", "_context", "_current", "_graph", "_launch", "_lock", "_plain")

    def __init__(self, start: Start, device: int) -> None:
        self._plain = start
        self._launch, self._current = launch_calls().graph, launch_calls().context
        self._context = int(primary_context(device)) if device_count() > 1 else 0
        executable = _recorded(start, device)
        self._graph = int(executable)
        self._lock = Lock()  # a graph is no thread's own
        release = finalize(self, load_driver().cuGraphExecDestroy, executable)
        release.atexit = False  # the driver may be gone by then

    def __call__(self, stream: int) -> None:
        if self._context and not self._is_current():
            self._plain(stream)
            return
        with self._lock:
            status = self._launch(self._graph, stream)
        if status:  # no context is current, or something is wrong: the plain way finds out
            self._plain(stream)

    def _is_current(self) -> bool:
        found = ctypes.c_void_p()
        self._current(ctypes.addressof(found))
        return found.value == self._context


def _recorded(start: Start, device: int) -> Any:
    """The executable graph of what `start` launches."""
    driver = load_driver()
    checked(driver, driver.cuCtxPushCurrent(primary_context(device)))
    try:
        blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = checked(driver, driver.cuStreamCreate(blocking))
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        try:
            checked(driver, driver.cuStreamBeginCapture(stream, mode))
            try:
                start(int(stream))
            finally:
                graph = checked(driver, driver.cuStreamEndCapture(stream))
            try:
                return checked(driver, driver.cuGraphInstantiate(graph, 0))
            finally:
                driver.cuGraphDestroy(graph)
        finally:
            driver.cuStreamDestroy(stream)
    finally:
        driver.cuCtxPopCurrent()
