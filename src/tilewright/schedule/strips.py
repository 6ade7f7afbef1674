"""Small tiles that a step needs besides its operands: scales, for instance, that go with them.

They are copied ahead with the operands, so that nobody waits for memory in the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tilewright.graph import ops
from tilewright.graph.ops import Graph
from tilewright.schedule.boxes import BOX, BULK_ALIGN, bulk_problem, contiguous_position
from tilewright.schedule.plan import AxisPlan
from tilewright.schedule.tensors import Declared

SLOT_ALIGN = 128  # bytes; where a box begins in shared memory
MOST_BYTES = 4096  # of a strip in one step


@dataclass(frozen=True, slots=True)
class Strip:
    """A tile with at most one axis of several elements besides the one contiguous in memory.

    `along` is that one: a box has `width` elements of it and `rows` of `line`, and a slot room
    for `lines` of them. Boxes begin at multiples of 16 bytes: where the tile is narrower, the
    box is those 16 bytes that it lies in.
    """

    read: ops.ReadOp
    along: str
    width: int
    line: str | None
    rows: int
    lines: int

    @property
    def bytes(self) -> int:
        """What the copy engine brings in one step."""
        return self.rows * self.width * self.read.type.dtype.bytes

    @property
    def slot_bytes(self) -> int:
        return self.lines * self.width * self.read.type.dtype.bytes


def strips_of(
    graph: Graph, loop: ops.Iterate, operands: Collection[int], axes: Mapping[str, AxisPlan],
    declared: Declared,
) -> tuple[Strip, ...]:  # fmt: skip
    """The strips of a loop, in program order; `operands` are the reads of the product's tiles."""
    written = {op.memory for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)}
    strips: list[Strip] = []
    for op in loop.body:
        if not isinstance(op, ops.ReadOp) or op.id in operands or loop.axis not in op.type.axes:
            continue
        if op.memory in written or not _is_plain(graph, op.id):
            continue
        if bulk_problem(declared.tensors[op.memory], declared) is None:
            strip = _strip(op, axes, declared)
            strips += [strip] if strip is not None else []
    return tuple(strips)


def _is_plain(graph: Graph, number: int) -> bool:
    """Whether a value is used at its own coordinates, by arithmetic in the end."""
    users = [graph.by_id[n] for n in graph.uses.get(number, ())]
    views = [u for u in users if isinstance(u, ops.View)]
    direct = [u for u in users if isinstance(u, ops.Elementwise | ops.CastOp)]
    return len(views) + len(direct) == len(users) and all(_is_plain(graph, v.id) for v in views)


def _strip(read: ops.ReadOp, axes: Mapping[str, AxisPlan], declared: Declared) -> Strip | None:
    tensor, size = declared.tensors[read.memory], read.type.dtype.bytes
    along = read.type.axes[contiguous_position(tensor) or 0]
    wide = [a for a in read.type.axes if a != along and axes[a].tile > 1]
    if len(wide) > 1:
        return None
    line = wide[0] if wide else None
    rows = axes[line].tile if line else 1
    least, tile = max(1, BULK_ALIGN // size), axes[along].tile
    if tile % least and least % tile:
        return None
    width = max(tile, least)
    lines = rows
    while lines * width * size % SLOT_ALIGN:
        lines += 1
    fits = lines * width * size <= MOST_BYTES and width <= BOX and rows <= BOX
    return Strip(read, along, width, line, rows, lines) if fits else None
