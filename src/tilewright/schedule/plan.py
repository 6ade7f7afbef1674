"""The plan: each axis cut into digits, each digit with a place, and the reason for it.

``coordinate = block_tile * block + tile * (parts * step + part) + position``: a block digit, a
serial digit, the rank of one of `parts` blocks in a cluster, and the position within the tile,
which the register layouts of `mapping` spread over warps, lanes and registers. Every axis has
all of them, so none can be dropped: where nobody placed an axis, `steps * tile` covers it in
one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tilewright.poly.expr import Expr
from tilewright.schedule.boxes import PANELS
from tilewright.schedule.grid import GridPlan
from tilewright.schedule.own_terms import OwnTerms
from tilewright.schedule.ragged import Ragged


@dataclass(frozen=True, slots=True)
class AxisPlan:
    """The digits of one axis.

    `block_tile`: elements of one block; None where one block has the whole axis.
    `tile`: elements of one step; `steps`: serial steps within a block.
    `warps`: how many warps share a tile along this axis.
    `parts`: how many blocks of a cluster share the steps, or the block's tile, in turns.
    """

    axis: str
    extent: Expr
    block_tile: int | None
    tile: int
    warps: int
    reason: str
    multiple: int = 1  # the extent is known to be a multiple of this
    steps_override: Expr | None = None
    parts: int = 1

    @property
    def blocks(self) -> Expr:
        if self.block_tile is None:
            return Expr.of(1)
        return self.extent.ceildiv(self.block_tile)

    @property
    def steps(self) -> Expr:
        if self.steps_override is not None:
            return self.steps_override
        span = self.extent if self.block_tile is None else Expr.of(self.block_tile)
        return span.ceildiv(self.tile * self.parts)

    @property
    def is_serial(self) -> bool:
        """Whether the axis needs a loop."""
        return self.steps != Expr.of(1)

    @property
    def guard_extent(self) -> bool:
        """Whether positions can pass the end of the axis."""
        covered = self.tile * self.parts if self.block_tile is None else self.block_tile
        return self.multiple % covered != 0

    @property
    def guard_block(self) -> bool:
        """Whether positions can pass the end of the block's part."""
        return self.block_tile is not None and self.block_tile % (self.tile * self.parts) != 0


class Staging(Enum):
    """How the elements of a read reach the registers."""

    DIRECT = "direct"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class ContractPlan:
    """How a contraction is computed: by which atom (None: multiply and add), with which roles.

    `m`, `n`, `k` are the axes that the atom's rows, columns and terms run over; `lhs_is_a`
    tells which operand gives the rows.
    """

    atom: str | None
    m: str | None
    n: str | None
    k: str
    lhs_is_a: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Groups of `blocks` blocks share the steps of `tiles` tiles: a block has `steps` in a row, a
    tile `whole`."""

    tiles: int
    blocks: int
    steps: int
    whole: int

    @property
    def parts_tiles(self) -> bool:
        """Whether some block begins within a tile, and so has a part of its sums only."""
        return self.steps % self.whole != 0

    def __str__(self) -> str:
        return (
            f"{self.blocks} blocks share the {self.tiles * self.whole} steps of {self.tiles} "
            f"tile{'s' * (self.tiles > 1)}, {self.steps} each"
        )


@dataclass(frozen=True, slots=True)
class Roles:
    """Warps with roles of their own: the last warpgroup copies, the others run the program.

    `loop` is the loop whose operands are copied ahead, `product` its contraction; `consumers`
    counts the other warpgroups. A role's threads have so many registers each.

    In `pingpong` each consumer computes whole tiles of its own, in turns, so that one's epilogue
    runs while the other multiplies; otherwise they share every tile.

    With `parts`, so many blocks of a cluster compute one tile: each takes its turns of the steps,
    for the whole tile by `instruction`, then gives each of the first `owners` its part of the
    sums. The others are done then. With `stream` blocks share the steps of several tiles.
    """

    loop: int
    product: int
    consumers: int
    producer_registers: int
    consumer_registers: int
    parts: int = 1
    pingpong: bool = False
    instruction: str = ""
    owners: int = 1
    stream: Stream | None = None


@dataclass(frozen=True)
class Plan:
    """The whole schedule of a kernel.

    `order` lists the axes from the one most often contiguous in memory to the least.
    `grid` orders the tiles of the axes that have a block digit. `warps` are those that compute;
    with `roles`, a warpgroup more copies. With `ragged`, a tile's rows are those of one group;
    with `own_terms`, the terms that it sums are. With roles, there is room for `panels` panels of
    a warpgroup's output in shared memory.
    """

    axes: Mapping[str, AxisPlan]
    warps: int
    warp_size: int
    order: tuple[str, ...]
    grid: GridPlan
    contracts: Mapping[int, ContractPlan]
    staging: Mapping[int, Staging]
    stages: int
    notes: tuple[str, ...] = ()
    roles: Roles | None = None
    ragged: Ragged | None = None
    own_terms: OwnTerms | None = None
    panels: int = PANELS
