"""A launch with everything fixed as a CUDA graph of one node: it takes the host half the time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol
from weakref import finalize

from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime.cuda_driver import (
    LaunchCalls,
    address,
    beside_captures,
    checked,
    device_count,
    launch_calls,
    load_driver,
    place_of,
)

Start = Callable[[int], None]


class BoundCall(Protocol):
    """Calls with all arguments fixed. It keeps them alive, and does not look at them again.

    Threads may share it.
    """

    def __call__(self, stream: int | None = None) -> None:
        """Launch on `stream`, the address of a CUDA stream; by default the current one."""


def as_graph(plain: Start, record: Start, context: Any, current: Callable[[], int]) -> BoundCall:
    """What `record` launches in a context, as a graph; `plain`, where the driver makes none.

    Both take a stream, which `current` gives where a call names none. A graph cannot become part
    of another one: streams that are captured get the plain launch. Launches of one graph follow
    one another, on whatever streams they are. Stream 0 is not asked: no capture can begin on it.
    """
    try:
        calls = launch_calls()
        wanted = int(context) if device_count() > 1 else 0
        executable = _recorded(record, context)
    except ToolchainError:
        return lambda stream=None: plain(current() if stream is None else stream)
    start = _graph_launch(int(executable), plain, current, calls, wanted)
    # `record` has the memory that the graph uses.
    release = finalize(start, _destroy, executable, record)
    release.atexit = False  # the driver may be gone by then
    return start


def _graph_launch(
    executable: int,
    plain: Start,
    current: Callable[[], int],
    calls: LaunchCalls,
    context: int,
) -> BoundCall:
    """Launches of an executable graph, where `context`, if not 0, is the thread's current one.

    One function does it all: an object and its methods would take half as much time again.
    """
    launch, capturing, find = calls.graph, calls.capturing, calls.context
    state, found = ctypes.c_int(), ctypes.c_void_p()
    state_place, found_place = place_of(state), place_of(found)
    # A graph is no thread's own: who launches it, and uses the variables here, has it out
    # meanwhile. That is a tenth of a lock's cost, and nobody waits: others launch plainly.
    graphs = [address(executable)]
    take, put = graphs.pop, graphs.append
    last, to = 0, address(0)

    def start(stream: int | None = None) -> None:
        nonlocal last, to
        if stream is None:
            stream = current()
        try:
            graph = take()
        except IndexError:
            plain(stream)
            return
        try:
            if stream != last:
                to = address(stream)
                last = stream
            started = not (
                (context and (find(found_place) or found.value != context))
                or (stream and (capturing(to, state_place) or state.value))
                or launch(graph, to)
            )
        finally:
            put(graph)
        if not started:  # the plain way also finds out what is wrong, if something is
            plain(stream)

    return start


def _destroy(executable: Any, _record: Start) -> None:
    load_driver().cuGraphExecDestroy(executable)


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
