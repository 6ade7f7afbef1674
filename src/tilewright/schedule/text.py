"""The printed form of a plan: one line per axis, then contractions and decisions."""

from __future__ import annotations

from tilewright.schedule.grid import GridPlan, Merge, Split
from tilewright.schedule.plan import AxisPlan, Plan, Staging


def print_plan(plan: Plan) -> str:
    """Digits and places of every axis, with the reason for each."""
    lines = [_axis(axis) for axis in plan.axes.values()]
    lines.append(f"block: {plan.warps} warps of {plan.warp_size} lanes")
    lines.extend(print_grid(plan.grid))
    for number, contract in plan.contracts.items():
        lines.append(
            f"contraction %{number}: rows {contract.m}, columns {contract.n}, "
            f"terms {contract.k}; {contract.reason}"
        )
    staged = [n for n, s in plan.staging.items() if s is Staging.SHARED]
    if staged:
        reads = ", ".join(f"%{n}" for n in staged)
        lines.append(f"staged through shared memory in {plan.stages} stages: {reads}")
    lines.extend(plan.notes)
    return "\n".join(lines)


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
    leaves = [
        f"{leaf}[{' * '.join(str(e) for e in extents[leaf])}] {grid.place(leaf).value}"
        for leaf in grid.order
    ]
    if leaves:
        lines.append(f"tiles, slowest first: {', '.join(leaves)}")
    return lines


def _axis(axis: AxisPlan) -> str:
    digits: list[str] = []
    if axis.block_tile is not None:
        digits.append(f"{axis.block_tile}*block[{axis.blocks}]")
    if axis.is_serial:
        digits.append(f"{axis.tile}*step[{axis.steps}]")
    digits.append(f"tile[{axis.tile}]")
    warps = f" over {axis.warps} warps" if axis.warps > 1 else ""
    return f"{axis.axis} = {' + '.join(digits)}{warps}, of {axis.extent}: {axis.reason}"
