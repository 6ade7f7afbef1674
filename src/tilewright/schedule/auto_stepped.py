"""Tiles for products that a loop over an axis of their own scales and adds up, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.constraints import Constraint, Hardware, Tiling, Wave, Workgroup
from tilewright.schedule.pipelined import plan_roles
from tilewright.schedule.plan import Plan
from tilewright.schedule.roles import Shape
from tilewright.schedule.tensors import Declared
from tilewright.target.model import Target

# Rows and columns: the sum and the step's product share the registers of two warpgroups.
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (64, 16), (64, 8))
FEW = 32  # columns: with fewer in a tile, more blocks gain nothing
WARPS = 2  # along rows and columns each, without warp roles
TERMS = 32  # of a step, without warp roles
NARROWEST = 32  # rows and columns of a block, without warp roles


def choose_stepped(
    graph: Graph, op: ops.Contract, sizes: Mapping[str, int], target: Target, declared: Declared
) -> tuple[tuple[Constraint, ...], str] | None:
    """Constraints and the reason for them; None for any other product."""
    loop = next((o for o in graph.body if isinstance(o, ops.Iterate) and op in o.body), None)
    if loop is None or loop.axis in op.contracted or loop.axis not in op.type.axes:
        return None
    lhs, rhs = graph.by_id[op.lhs].type.axes, graph.by_id[op.rhs].type.axes
    rows, columns = [a for a in lhs if a not in rhs][-1], [a for a in rhs if a not in lhs][-1]
    others = [a for a in op.type.axes if a not in (rows, columns, loop.axis)]
    suitable: list[tuple[int, int]] = []
    for m, n in _tiles(sizes[rows], sizes[columns]):
        shape = Shape({rows: m, columns: n} | dict.fromkeys(others, 1), {loop.axis: 1})
        if isinstance(plan_roles(graph, shape, Hardware(), target, declared, None), Plan):
            suitable.append((m, n))
    least = target.multiprocessors
    enough = (t for t in suitable if _count(t, sizes[rows], sizes[columns]) >= least)
    m, n = next(enough, suitable[-1] if suitable else (0, 0))
    more: tuple[Constraint, ...] = ()
    if not suitable:
        m, n = (min(64, max(NARROWEST, 1 << (sizes[a] - 1).bit_length())) for a in (rows, columns))
        more = Tiling(op.contracted[-1], TERMS), Wave(rows, m // WARPS), Wave(columns, n // WARPS)
    blocks = (
        Workgroup(rows, m, 0), Workgroup(columns, n, 1),
        *(Workgroup(a, 1, 2 + i) for i, a in enumerate(others)),
    )  # fmt: skip
    reason = f"a product in steps of {loop.axis}: tiles of {m} by {n}"
    return (*blocks, Tiling(loop.axis, 1), *more), reason


def _tiles(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Tiles that are not much larger than the product; the first in any case."""
    for number, (m, n) in enumerate(TILES):
        if number == 0 or (m < 2 * rows and n < 2 * columns and (n >= FEW or columns < FEW)):
            yield m, n


def _count(tile: tuple[int, int], rows: int, columns: int) -> int:
    return -(-rows // tile[0]) * -(-columns // tile[1])
