"""The printed form of a plan: one line per axis, then contractions and decisions."""

from __future__ import annotations

from tilewright.poly.expr import Expr
from tilewright.schedule.boxes import PANELS
from tilewright.schedule.grid import SHARER, GridPlace, GridPlan, Merge, Split, Visit, visits
from tilewright.schedule.plan import AxisPlan, Plan, Roles, Staging


def print_plan(plan: Plan) -> str:
    """Digits and places of every axis, with the reason for each."""
    lines = [_axis(axis) for axis in plan.axes.values()]
    lines.append(f"block: {plan.warps} warps of {plan.warp_size} lanes")
    if plan.roles is not None:
        lines.append(_roles(plan.roles, plan))
    lines.extend(print_grid(plan.grid))
    lines.extend(draw_grid(plan.grid))
    for number, contract in plan.contracts.items():
        lines.append(
            f"contraction %{number}: rows {contract.m}, columns {contract.n}, "
            f"terms {contract.k}; {contract.reason}"
        )
    staged = [n for n, s in plan.staging.items() if s is Staging.SHARED]
    if staged and plan.roles is None:
        reads = ", ".join(f"%{n}" for n in staged)
        lines.append(f"staged through shared memory in {plan.stages} stages: {reads}")
    lines.extend(plan.notes)
    return "\n".join(lines)


def _roles(roles: Roles, plan: Plan) -> str:
    """Who copies, who multiplies, and what each has."""
    many = roles.consumers > 1
    how = "a tile each in turns" if roles.pingpong else "every tile together"
    work = f"{roles.consumers} multiply, {how}" if many else "one multiplies"
    given = (
        f", with {roles.producer_registers} and {roles.consumer_registers} registers a thread"
        if many else ""
    )  # fmt: skip
    return (
        f"roles: one warpgroup copies ahead by the copy engine through {plan.stages} slots, {work}"
        f"{given}"
        + (f"; {roles.stream}" if roles.stream else "")
        + (f"; room for {plan.panels} panels of an output" if plan.panels != PANELS else "")
    )


def print_grid(grid: GridPlan) -> list[str]:
    """The counters of tiles: how they were made, and the leaves with their places."""
    lines: list[str] = []
    for step in grid.steps:
        match step:
            case Split(source, outer, inner, factor):
                lines.append(f"tiles: {source} = {outer} * {factor} + {inner}")
            case Merge(outer, inner, result):
                lines.append(f"tiles: {result} = {outer} and {inner} in one counter")
    extents = grid.all_extents()
    leaves = [f"{leaf}[{extents[leaf]}] {grid.place(leaf).value}" for leaf in grid.order]
    if leaves:
        lines.append(f"tiles, slowest first: {', '.join(leaves)}")
    return lines


DRAWN = 12  # rows and columns of tiles that are drawn at the most


def draw_grid(grid: GridPlan) -> list[str]:
    """The tiles of two axes, each with its turn: ``turn.block`` in a persistent kernel.

    Nothing where an extent is open, or where there are not two axes of tiles.
    """
    extents = grid.all_extents()
    fixed = all(e.is_const for e in extents.values())
    wide = [axis for axis, extent in grid.extents.items() if extent != Expr.of(1)]
    if not fixed or len(wide) != 2 or SHARER in grid.extents:
        return []
    row, column = wide
    rows, columns = (min(grid.extents[a].const, DRAWN) for a in wide)
    loops = [i for i, leaf in enumerate(grid.order) if grid.place(leaf) is GridPlace.LOOP]
    table = [["" for _ in range(columns)] for _ in range(rows)]
    for visit in visits(grid):
        r, c = visit.tile[row], visit.tile[column]
        if r < rows and c < columns:
            table[r][c] = _turn(grid, visit, loops)
    width = max(len(cell) for line in table for cell in line)
    head = f"order of tiles, {row} down and {column} across"
    head += ": turn.block" if loops else ": block"
    return [head, *(" ".join(cell.rjust(width) for cell in line) for line in table)]


def _turn(grid: GridPlan, visit: Visit, loops: list[int]) -> str:
    extents = grid.all_extents()
    block = 0
    for i, leaf in enumerate(grid.order):
        if i not in loops:
            block = block * extents[leaf].const + visit.leaves[i]
    return ".".join([*(str(visit.leaves[i]) for i in loops), str(block)])


def _axis(axis: AxisPlan) -> str:
    digits: list[str] = []
    if axis.block_tile is not None:
        digits.append(f"{axis.block_tile}*block[{axis.blocks}]")
    if axis.is_serial:
        digits.append(f"{axis.tile * axis.parts}*step[{axis.steps}]")
    if axis.parts > 1:
        digits.append(f"{axis.tile}*part[{axis.parts}]")
    digits.append(f"tile[{axis.tile}]")
    warps = f" over {axis.warps} warps" if axis.warps > 1 else ""
    return f"{axis.axis} = {' + '.join(digits)}{warps}, of {axis.extent}: {axis.reason}"
