"""`fd.sched`: a schedule of a fusion's kernel, recorded while the fusion is defined.

The calls are those of `schedule.Schedule`, on counters of the kernel's iteration space. A
counter is named by its name, or by the dimension of a result that it runs over: `axis(tensor,
dim)`, or by the sum it is a term of: `terms(number)`. New counters get the names that are given,
or names made of their source's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tilewright.base.spaces import Space
from tilewright.schedule.schedule import Schedule


class Numbered(Protocol):
    """A tensor of a definition."""

    @property
    def number(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of a result."""

    tensor: int
    dim: int

    def __str__(self) -> str:
        return f"T{self.tensor}.{self.dim}"


@dataclass(frozen=True, slots=True)
class Terms:
    """An axis along which the fusion sums: the first, second, .. of its kernel."""

    number: int

    def __str__(self) -> str:
        return f"K{self.number}"


@dataclass(frozen=True, slots=True)
class Stored:
    """The buffer of an input or a result."""

    tensor: int


Counter = str | Axis | Terms
Recorded = str | int | Axis | Terms | Stored
Resolve = Callable[[Axis | Terms | Stored], str]


class Scheduler:
    """The recorder. `schedule(resolve)` gives the transformation to apply when compiling."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Recorded, ...]]] = []

    def axis(self, tensor: Numbered, dim: int) -> Axis:
        """The axis that dimension `dim` of a result runs over."""
        return Axis(tensor.number, dim)

    def terms(self, number: int = 0) -> Terms:
        """The axis of a sum, counted in the order of the operations."""
        return Terms(number)

    def split(
        self, counter: Counter, factor: int, outer: str = "", inner: str = ""
    ) -> tuple[str, str]:
        """``counter = outer * factor + inner``; returns the names of the two."""
        names = (outer or f"{counter}.outer", inner or f"{counter}.inner")
        self.calls.append(("split", (counter, factor, *names)))
        return names

    def merge(self, outer: str, inner: str, name: str = "") -> str:
        """Join two counters of tiles; returns the name of the one."""
        name = name or f"{outer}*{inner}"
        self.calls.append(("merge", (outer, inner, name)))
        return name

    def reorder(self, *names: str) -> None:
        """Put counters into this order, slowest first."""
        self.calls.append(("reorder", names))

    def swizzle(self, name: str, over: str, factor: int) -> None:
        """Visit `factor` tiles of `name` for each of `over`."""
        self.calls.append(("swizzle", (name, over, factor)))

    def persistent(self, blocks: int, cluster: int = 1) -> None:
        """Let so many blocks, in clusters, go through all tiles in turns."""
        self.calls.append(("persistent", (blocks, cluster)))

    def parallelize(self, name: str, place: str) -> None:
        """Give a counter its place."""
        self.calls.append(("parallelize", (name, place)))

    def stage(self, slots: int) -> None:
        """Copy operands ahead through a ring of so many slots."""
        self.calls.append(("stage", (slots,)))

    def mma(self, atom: str) -> None:
        """Compute contractions by this instruction."""
        self.calls.append(("mma", (atom,)))

    def cache_after(self, tensor: Numbered) -> None:
        """Read an input into shared memory first."""
        self.calls.append(("cache_after", (Stored(tensor.number),)))

    def cache_before(self, tensor: Numbered) -> None:
        """Gather a result's tile in shared memory before it is written."""
        self.calls.append(("cache_before", (Stored(tensor.number),)))

    def set_memory_type(self, tensor: Numbered, space: Space) -> None:
        """Stage an input's or a result's tile in shared memory."""
        if space is Space.SHARED:
            self.calls.append(("set_memory_type", (Stored(tensor.number),)))

    def inline_at(self, tensor: Numbered, counter: str) -> None:
        """State that a tensor's tile is computed inside a counter's loop."""
        self.calls.append(("inline_at", (Stored(tensor.number), counter)))

    def inline_most(self) -> None:
        """Values go into the innermost loop that they depend on: what happens anyway."""

    def rfactor(self, counter: str) -> None:
        """Refused with its reason: see `Schedule.rfactor`."""
        Schedule(()).rfactor(counter)

    def specialize(self, how: str = "cooperative") -> None:
        """Give one warpgroup the copies: see `Schedule.specialize`."""
        self.calls.append(("specialize", (how,)))

    def stream(self, tiles: int, blocks: int) -> None:
        """Share the steps of tiles of a product among blocks: see `Schedule.stream`."""
        self.calls.append(("stream", (tiles, blocks)))

    def schedule(self, resolve: Resolve) -> Callable[[Schedule], Schedule] | None:
        """The recorded transformation; None where nothing was recorded."""
        if not self.calls:
            return None

        def transform(schedule: Schedule) -> Schedule:
            for method, arguments in self.calls:
                plain = [
                    resolve(a) if isinstance(a, Axis | Terms | Stored) else a for a in arguments
                ]
                if method == "set_memory_type":
                    plain.append(Space.SHARED)  # type: ignore[arg-type]
                schedule = getattr(schedule, method)(*plain)
            return schedule

        return transform
