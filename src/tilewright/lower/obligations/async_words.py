"""How the proof of synchronisation names threads, turns and events for readers."""

from __future__ import annotations

from tilewright.kernel.ops import Kernel, Loop, walk
from tilewright.lower.obligations.async_state import Event, Unit
from tilewright.lower.obligations.async_steps import (
    Step,
)
from tilewright.lower.obligations.async_values import Env


class Words:
    """Names of things in one kernel. `first` is the number of the cluster's first block."""

    def __init__(self, kernel: Kernel, first: int) -> None:
        self.first = first
        self._size = kernel.warp_size
        self._warps = kernel.warps
        self._loops = tuple(dict.fromkeys(s.var for s in walk(kernel.body) if isinstance(s, Loop)))

    def block(self, block: int) -> str:
        return f"block {self.first + block}"

    def threads(self, warp: int, lanes: int) -> str:
        """The threads of a warp, with the warpgroup that is their role."""
        first = warp * self._size
        role = f"warpgroup {warp // 4}"
        if lanes and lanes & (lanes - 1) == 0:
            return f"thread {first + lanes.bit_length() - 1} ({role})"
        return f"warp {warp} ({role})"

    def unit(self, unit: Unit, lanes: int = 0) -> str:
        return f"{self.threads(unit.warp, lanes)} of {self.block(unit.block)}"

    def turns(self, env: Env | None) -> str:
        """The turn of each loop around."""
        found = [f"{n} = {env[n]}" for n in self._loops if n in env] if env else []
        return f" at {', '.join(found)}" if found else ""

    def where(self, step: Step, env: Env | None) -> str:
        """A statement, its turn, and its line."""
        line = "" if step.span is None else f", {step.span.file}:{step.span.line}"
        return f"{step.title}{self.turns(env)}{line}"

    def of(self, event: Event) -> str:
        """Who did it."""
        block, warp = divmod(event.unit, self._warps)
        return f"{self.threads(warp, event.lanes)} of {self.block(block)}"

    def note(self, event: Event) -> str:
        """An event as a note under a message."""
        where = "" if event.step is None else f": {self.where(event.step, event.env)}"
        return f"{event.does.value}, by {self.of(event)}{where}"
