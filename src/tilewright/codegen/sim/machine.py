"""The state of one chunk of blocks while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tilewright.base.diagnostics import LegalityError
from tilewright.codegen.sim.agents import Agents, Landing, Operation
from tilewright.codegen.sim.clocks import Clocks
from tilewright.codegen.sim.fragments import Fragment
from tilewright.codegen.sim.index import Indexer, Scope, Variable
from tilewright.codegen.sim.meeting import Meetings
from tilewright.codegen.sim.memory import GlobalTensor, SharedBuffer
from tilewright.codegen.sim.numeric import Array, BoolArray, IntArray, bits_type, poison
from tilewright.codegen.sim.report import Tally
from tilewright.codegen.sim.shadow import Stamps
from tilewright.codegen.sim.site import Crew
from tilewright.kernel.declared import Exchange
from tilewright.kernel.ops import Kernel
from tilewright.target.model import Target

_EPOCHS = 1 << 24  # barriers of one block


@dataclass(slots=True)
class Flight:
    """Asynchronous copies of one statement that have not completed.

    `issued` says which threads' copies are under way (None: all), `group` is the number of the
    group they belong to. `early` marks threads whose data has already landed, at random.
    """

    buffer: SharedBuffer
    at: IntArray
    bits: Array
    extents: tuple[int, ...]
    issued: BoolArray | None
    group: IntArray
    early: BoolArray | None


@dataclass(slots=True)
class Post:
    """An exchange: ``bits[element, thread, block]``, and the announcements, ``[warp, block]``.

    `flags` are those that nobody has taken yet. `granted` are (warp, block, other block) whose
    deposit the warp of the block may collect.
    """

    bits: Array
    written: BoolArray
    announced: BoolArray
    flags: BoolArray
    granted: set[tuple[int, int, int]] = field(default_factory=set[tuple[int, int, int]])

    @staticmethod
    def of(exchange: Exchange, crew: Crew) -> Post:
        shape = (exchange.count, crew.threads, crew.blocks)
        warps = (crew.warps, crew.blocks)
        bits = np.full(shape, poison(exchange.dtype), bits_type(exchange.dtype))
        return Post(
            bits, np.zeros(shape, np.bool_), np.zeros(warps, np.bool_), np.zeros(warps, np.bool_)
        )


@dataclass(slots=True)
class Asynchrony:
    """What works beside the threads, and what orders it and them.

    `sendings` are the bulk stores that have yet to write their tensors.
    """

    clocks: Clocks
    agents: Agents
    meetings: Meetings
    posts: Mapping[str, Post]
    landings: list[Landing] = field(default_factory=list[Landing])
    sendings: dict[Operation, Callable[[], None]] = field(
        default_factory=dict[Operation, Callable[[], None]]
    )


@dataclass(slots=True)
class Machine:
    """Everything that statements read and change. Arrays of masks and counters are
    ``[threads | 1, blocks | 1]``: they stay small as long as all agree.
    """

    kernel: Kernel
    target: Target
    crew: Crew
    indexer: Indexer
    tensors: Mapping[str, GlobalTensor]
    scalars: Mapping[str, Array]
    shared: Mapping[str, SharedBuffer]
    fragments: Mapping[str, Fragment]
    tally: Tally
    checks: bool
    random: np.random.Generator | None
    beside: Asynchrony | None = None
    epoch: IntArray = field(default_factory=lambda: np.zeros((1, 1), np.int64))
    groups: IntArray = field(default_factory=lambda: np.zeros((1, 1), np.int64))
    flights: list[Flight] = field(default_factory=list[Flight])

    def counters(self) -> Scope:
        """The built-in counters."""
        crew = self.crew
        threads = np.arange(crew.threads, dtype=np.int64)[:, None]
        blocks = crew.first_block + np.arange(crew.blocks, dtype=np.int64)[None, :]
        values = {
            "block": blocks,
            "thread": threads,
            "warp": threads // crew.warp_size,
            "lane": threads % crew.warp_size,
        }
        return {name: Variable(value, name) for name, value in values.items()}

    @property
    def asynchrony(self) -> Asynchrony:
        """What works beside the threads; LegalityError for a kernel without."""
        if self.beside is None:
            raise LegalityError(f"kernel `{self.kernel.name}` runs no asynchronous statement")
        return self.beside

    def shared_stamps(self) -> Stamps:
        """Stamps for shared memory, which no other block can touch."""
        if self.beside is not None:
            return self.beside.clocks.stamps()
        return self._stamps(np.zeros((1, 1), np.int64))

    def global_stamps(self) -> Stamps:
        crew = self.crew
        if self.beside is not None:
            return self.beside.clocks.stamps(crew.first_block)
        blocks = crew.first_block + np.arange(crew.blocks, dtype=np.int64)[None, :]
        return self._stamps(blocks)

    def _stamps(self, block: IntArray) -> Stamps:
        width = self.crew.threads + 2
        first = block * _EPOCHS * width
        now = first + self.epoch * width
        own = now + np.arange(self.crew.threads, dtype=np.int64)[:, None]
        return Stamps(own, now, first, width)

    def active(self, mask: BoolArray | None, shape: tuple[int, ...]) -> int:
        """How many entries of `shape` the mask selects."""
        total = prod(shape)
        return total if mask is None else int(np.count_nonzero(mask)) * (total // mask.size)
