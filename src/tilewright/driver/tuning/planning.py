"""What can be said of a kernel for a call without compiling it: its plan's time, its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.base.diagnostics import TilewrightError
from tilewright.driver.call import Call
from tilewright.driver.compile import request_for
from tilewright.driver.launch import device_target
from tilewright.driver.pipeline import planned
from tilewright.driver.specialisation import Rewrites
from tilewright.graph.text import print_graph
from tilewright.schedule.forecast import forecast
from tilewright.schedule.model import Ranked

if TYPE_CHECKING:
    from tilewright.driver.kernel import TileKernel
    from tilewright.driver.specialisation import Request


def forecast_call(kernel: TileKernel, call: Call) -> Ranked | None:
    """The predicted time of a call; None where the model does not apply.

    Errors of the constraints, of the schedule and of the plan are raised.
    """
    request = _request(kernel, call, call.axis_sizes(kernel.bindings))
    plan = planned(request, Rewrites())
    return forecast(request.graph, plan, request.specialisation.target)


def target_of(kernel: TileKernel, call: Call) -> str:
    """The target that a call is compiled for."""
    return device_target(call.device) or kernel.default_target().name


def described(kernel: TileKernel, call: Call, sizes: Mapping[str, int]) -> str:
    """All that a kernel says, for these sizes: its graph, constraints and schedule, no spans."""
    try:
        request = _request(kernel, call, sizes)
    except TilewrightError:
        # A program may need all of its sizes.
        try:
            request = _request(kernel, call, call.axis_sizes(kernel.bindings))
        except TilewrightError as error:
            return error.diagnostic.message
    return "\n".join(_words(request))


def _words(request: Request) -> Iterator[str]:
    yield print_graph(request.graph)
    for constraint in request.constraints:
        yield str(replace(constraint, span=None))
    yield str(request.schedule)


def _request(kernel: TileKernel, call: Call, sizes: Mapping[str, int]) -> Request:
    strides = {n: v.strides for n, v in call.tensors.items()}
    alignments = {n: min(16, v.alignment) for n, v in call.tensors.items()}
    given = kernel.specialisation(target_of(kernel, call), sizes, strides, alignments)
    return request_for(kernel.program, given)
