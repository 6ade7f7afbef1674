"""A launch with everything fixed as a CUDA graph of one node: it takes the host half the time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import finalize

from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime.cuda_driver import (
    beside_captures,
    checked,
    device_count,
    launch_calls,
    load_driver,
)

Start = Callable[[int], None]


def as_graph(plain: Start, record: Start, context: Any) -> Start:
    """What `record` launches in a context, as a graph; `plain`, where the driver makes none.

    Both take a stream. A graph cannot become part of another one: streams that are captured get
    the plain launch. Launches of one graph follow one another, on whatever streams they are.
    """
    try:
        return GraphStart(plain, record, context)
    except ToolchainError:
        return plain


class GraphStart:
    """A recorded launch. Threads may share it; it takes the stream.

    Where there are several devices the thread's current one is looked at first.
    """

    __slots__ = (
        "__weakref__", "_capturing", "_context", "_current", "_found", "_graph", "_launch", "_lock",
        "_place", "_plain", "_record",
    )  # fmt: skip

    def __init__(self, plain: Start, record: Start, context: Any) -> None:
        calls = launch_calls()
        self._plain = plain
        self._record = record  # with memory that the graph uses
        self._launch, self._capturing, self._current = calls.graph, calls.capturing, calls.context
        self._context = int(context) if device_count() > 1 else 0
        self._found = ctypes.c_uint64()  # what the driver writes to `_place`
        self._place = ctypes.addressof(self._found)
        self._lock = Lock()  # a graph is no thread's own
        executable = _recorded(record, context)
        self._graph = int(executable)
        release = finalize(self, load_driver().cuGraphExecDestroy, executable)
        release.atexit = False  # the driver may be gone by then

    def __call__(self, stream: int) -> None:
        with self._lock:
            started = self._is_free(stream) and not self._launch(self._graph, stream)
        if not started:  # the plain way also finds out what is wrong, if something is
            self._plain(stream)

    def _is_free(self, stream: int) -> bool:
        """Whether the stream takes a graph, and belongs to the kernel's context."""
        if self._context:
            self._current(self._place)
            if self._found.value != self._context:
                return False
        self._found.value = 0
        return not self._capturing(stream, self._place) and not self._found.value


def _recorded(record: Start, context: Any) -> Any:
    """The executable graph of what `record` launches."""
    driver = load_driver()
    with beside_captures(context) as stream:
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        checked(driver, driver.cuStreamBeginCapture(stream, mode))
        try:
            record(int(stream))
        finally:
            graph = checked(driver, driver.cuStreamEndCapture(stream))
        try:
            return checked(driver, driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
