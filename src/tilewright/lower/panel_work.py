"""A tile's elementwise work piece by piece, so that few of its registers are in use at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.graph import ops
from tilewright.kernel.ops import (
    Assign,
    Indirect,
    LaneRead,
    LaneXor,
    Load,
    Over,
    Read,
    Statement,
    Store,
    Value,
)
from tilewright.kernel.rewrite import map_values, substitute
from tilewright.kernel.scopes import read_fragments, written_fragment
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.panels import PanelPlace, Panels, panel_digits
from tilewright.poly.expr import Expr

Elementwise = Assign | Load


def by_panel(
    b: Builder, value: Fragment, panels: Panels, making: Sequence[Statement]
) -> tuple[tuple[Statement, ...], tuple[Elementwise, ...]]:
    """What comes first, and the elementwise statements at the end that count along the panels."""
    if panels.count == 1:
        return tuple(making), ()
    columns, _ = panel_digits(b, value.layout, panels)
    last = max((i for i, s in enumerate(making) if not isinstance(s, Elementwise)), default=-1)
    first, each = list(making[: last + 1]), list[Elementwise]()
    for statement in making[last + 1 :]:
        if isinstance(statement, Elementwise) and columns in dict(statement.over):
            each.append(statement)
        else:
            first.append(statement)
    return tuple(first), tuple(each)


def piece_shapes(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, first: Sequence[Statement],
    each: Sequence[Elementwise],
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    """The fragments that `each` makes and nothing else reads, with the shape of one piece."""
    elsewhere = {ref.name for s in first for ref in read_fragments(s)}
    elsewhere |= {ref.name for s in first if (ref := written_fragment(s)) is not None}
    alone = _only_for(b, op)
    for scope in b.scopes:
        elsewhere |= {made.name for (number, _), made in scope.memo.items() if number not in alone}
    found: dict[str, tuple[int, ...]] = {}
    for statement in each:
        name = statement.dst.name
        if name not in elsewhere:
            shape = _shape(b, value, panels, statement)
            pairs = zip(shape, found.get(name, shape), strict=True)
            found[name] = tuple(max(pair) for pair in pairs)
    return found


def keep_one_piece(b: Builder, own: Mapping[str, tuple[int, ...]]) -> None:
    """Give fragments the registers of one piece, used again for each."""
    b.registers[:] = [
        replace(r, shape=own[r.name], holds=f"a piece of {r.holds}") if r.name in own else r
        for r in b.registers
    ]


def in_piece(
    b: Builder, statement: Statement, value: Fragment, panels: Panels, place: PanelPlace
) -> Statement:
    """The instances of a statement that belong to one piece."""
    if not isinstance(statement, Elementwise | Store):
        raise TypeError(f"no statement on elements: {statement}")
    columns, strips = panel_digits(b, value.layout, panels)
    within = b.register_digit("panel_tile")
    over: Over = tuple(
        (str(within), panels.tiles) if name == columns else (name, extent)
        for name, extent in statement.over if name != strips
    )  # fmt: skip
    chosen: dict[str, Expr | int | str] = {columns: place.column(panels, within)}
    (made,) = substitute((statement,), chosen | {strips: place.strip})
    made = _in_turn(made, place)
    return replace(made, over=over) if isinstance(made, Elementwise | Store) else made


def _only_for(b: Builder, op: ops.WriteOp) -> set[int]:
    """The operation, and the values that have no use but in what it writes."""
    found = {op.id}
    for number in reversed(list(b.graph.by_id)):
        users = b.graph.uses.get(number, ())
        if users and all(user in found for user in users):
            found.add(number)
    return found


def _shape(b: Builder, value: Fragment, panels: Panels, statement: Elementwise) -> tuple[int, ...]:
    """The registers that a statement writes of its fragment in one piece, axis by axis."""
    columns, strips = panel_digits(b, value.layout, panels)
    extents = {**dict(statement.over), columns: panels.tiles, strips: 1}
    last = {name: extent - 1 for name, extent in extents.items()}
    index = [e.evaluate(last) + 1 for e in statement.dst.index]
    if isinstance(statement, Load):
        index[-1] += statement.width - 1
    return tuple(index)


def _in_turn(statement: Statement, place: PanelPlace) -> Statement:
    """The statement on the registers that serve each piece in turn."""
    register = place.register

    def read(value: Value) -> Value:
        match value:
            case Read(ref) | LaneXor(ref) | LaneRead(ref):
                return replace(value, ref=register(ref))
            case _:
                return value

    match statement:
        case Assign(dst=dst, value=value):
            return replace(statement, dst=register(dst), value=map_values(value, read))
        case Load(dst=dst, indirect=indirect):
            indices = tuple(Indirect(c.axis, register(c.ref)) for c in indirect)
            return replace(statement, dst=register(dst), indirect=indices)
        case Store(src=src):
            return replace(statement, src=register(src))
        case _:
            return statement
