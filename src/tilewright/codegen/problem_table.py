"""The parameters of a launch for several problems: a table, and how a block finds its row.

See `kernel.problems` for what the table holds. A row's fields have the names and the order of the
parameters of the kernel alone, so the body is printed the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernel.problems import starts_in

TYPE, TABLE, ROW, NUMBER = "tw_problems", "tw_table", "tw_row", "tw_number"


@dataclass(frozen=True, slots=True)
class Field:
    """An argument of a problem: its type in the table, its name, and its type in the body."""

    stored: str
    name: str
    used: str


def table_type(fields: Sequence[Field], room: int) -> list[str]:
    """The types of a row and of the table."""
    return [
        "struct tw_problem {",
        *(f"  {field.stored} {field.name};" for field in fields),
        "};",
        f"struct {TYPE} {{",
        f"  tw_problem rows[{room}];",
        f"  int starts[{starts_in(room)}];",
        "};",
    ]


def find_row(fields: Sequence[Field], room: int, block: str) -> list[str]:
    """The last row whose blocks start at or before the block, by halving, and its fields."""
    lines = [f"int {NUMBER} = 0;"]
    step = starts_in(room) // 2
    while step:
        start = f"{TABLE}.starts[{NUMBER} + {step}]"
        lines.append(f"if ({start} <= (int){block}) {NUMBER} += {step};")
        step //= 2
    return [
        *lines,
        f"const tw_problem& {ROW} = {TABLE}.rows[{NUMBER}];",
        *(f"{field.used} {field.name} = {ROW}.{field.name};" for field in fields),
    ]


def own_block(block: str) -> str:
    """The block's number among those of its problem."""
    return f"(int){block} - {TABLE}.starts[{NUMBER}]"
