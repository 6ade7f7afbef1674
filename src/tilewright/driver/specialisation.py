"""What decides a compilation, and what may be replaced in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

from tilewright.base.spaces import Space
from tilewright.graph.ops import Graph
from tilewright.schedule.constraints import Constraint
from tilewright.schedule.schedule import Schedule
from tilewright.target.model import Target

if TYPE_CHECKING:
    from tilewright.kernel.ops import Kernel
    from tilewright.schedule.plan import Plan

_DIVISOR = 16


def open_multiple(*sizes: int) -> int:
    """What an open size, which may have these values, is a multiple of for a kernel: their common
    divisor with 16."""
    return gcd(_DIVISOR, *sizes)


@dataclass(frozen=True)
class Example:
    """The sizes of one problem of `count` such as it, all in one launch."""

    sizes: Mapping[str, int]
    count: int


@dataclass(frozen=True)
class Specialisation:
    """What a compilation fixes. Axes that `sizes` lacks stay dynamic.

    `sizes` binds axes and tile sizes; `spaces` binds memory-space symbols; `strides` (elements)
    and `alignments` (bytes) describe tensors; `multiples` states divisors of dynamic sizes;
    `schedule` transforms the iteration space by hand, on top of the program's constraints. Tiles
    that the program leaves open suit the `example`, where sizes are open too.
    """

    target: Target
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    spaces: Mapping[str, Space] = field(default_factory=dict[str, Space])
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    alignments: Mapping[str, int] = field(default_factory=dict[str, int])
    multiples: Mapping[str, int] = field(default_factory=dict[str, int])
    schedule: Callable[[Schedule], Schedule] | None = None
    example: Example | None = None

    @property
    def key(self) -> object:
        """Equal for those that differ in the example or the schedule alone."""
        facts = (self.sizes, self.spaces, self.strides, self.alignments, self.multiples)
        return self.target.name, *(tuple(sorted(fact.items())) for fact in facts)


@dataclass(frozen=True)
class Rewrites:
    """Replacements of intermediates, for experiments and for tests that seed faults."""

    graph: Callable[[Graph], Graph] = lambda graph: graph
    plan: Callable[[Plan], Plan] = lambda plan: plan
    kernel: Callable[[Kernel], Kernel] = lambda kernel: kernel


@dataclass(frozen=True)
class Request:
    """A checked graph and all else that decides how it is compiled.

    `constraints` include those of `schedule`, the schedule by hand, where there is one.
    """

    graph: Graph
    constraints: Sequence[Constraint]
    specialisation: Specialisation
    schedule: Schedule | None = None
