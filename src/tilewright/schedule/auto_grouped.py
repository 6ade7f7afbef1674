"""Tiles for grouped products that come without any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.base.rounding import round_up
from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.boxes import ROW_BYTES
from tilewright.schedule.constraints import Constraint, Hardware, Tiling, Workgroup
from tilewright.schedule.pipelined import plan_roles
from tilewright.schedule.plan import Plan
from tilewright.schedule.ragged import ragged_of
from tilewright.schedule.roles import Shape
from tilewright.schedule.tensors import Declared
from tilewright.target.model import Target

ROWS = (128, 64)
COLUMNS = (256, 192, 128, 96, 64, 32, 16, 8)
NARROW = 64  # columns: with fewer, more blocks gain nothing
GENERIC = 16  # rows, columns and terms without warp roles


@dataclass(frozen=True, slots=True)
class _Product:
    """The axes of a grouped product."""

    rows: str
    columns: str
    terms: str
    groups: str


def choose_grouped(
    graph: Graph, op: ops.Contract, target: Target, declared: Declared
) -> tuple[tuple[Constraint, ...], str] | None:
    """Constraints and the reason for them; None for any other product."""
    ragged = ragged_of(graph, op)
    if ragged is None or len(op.contracted) != 1 or len(op.type.axes) != 2:
        return None
    (columns,) = (a for a in op.type.axes if a != ragged.axis)
    product = _Product(ragged.axis, columns, op.contracted[0], ragged.counted)
    step = ROW_BYTES // graph.by_id[op.lhs].type.dtype.bytes
    suitable: list[tuple[int, int]] = []
    for tile in _tiles(graph, product):
        shape = Shape(dict(zip((product.rows, columns), tile, strict=True)), {product.terms: step})
        if isinstance(plan_roles(graph, shape, Hardware(), target, declared, None), Plan):
            suitable.append(tile)
    if not suitable:
        why = "grouped product, multiply and add"
        return _constraints(product, (GENERIC, GENERIC), GENERIC), why
    enough = (t for t in suitable if _count(graph, product, t) >= target.multiprocessors)
    tile = next(enough, suitable[-1])
    return _constraints(product, tile, step), f"grouped product: tiles of {tile[0]} by {tile[1]}"


def _constraints(product: _Product, tile: tuple[int, int], step: int) -> tuple[Constraint, ...]:
    blocks = Workgroup(product.rows, tile[0], 0), Workgroup(product.columns, tile[1], 1)
    return (*blocks, Tiling(product.terms, step))


def _tiles(graph: Graph, product: _Product) -> Iterator[tuple[int, int]]:
    """Tiles from the largest on; of columns those that leave the fewest empty."""
    columns = graph.axes[product.columns].const

    fitting = [n for n in COLUMNS if n <= max(COLUMNS[-1], columns)]
    fitting = [n for n in fitting if n >= min(NARROW, fitting[0])]
    for rows in ROWS:
        for size in fitting:
            if round_up(columns, size) == min(round_up(columns, n) for n in fitting if n >= size):
                yield rows, size


def _count(graph: Graph, product: _Product, tile: tuple[int, int]) -> int:
    """How many tiles there are about: each group's last one is half full."""
    rows, columns, groups = (
        graph.axes[a].const for a in (product.rows, product.columns, product.groups)
    )
    return (rows // tile[0] + min(groups, rows) // 2 + 1) * -(-columns // tile[1])
