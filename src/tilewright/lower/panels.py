"""A tile's elementwise work panel by panel, so that few of its registers are in use at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.graph import ops
from tilewright.kernel.ops import (
    Assign,
    Indirect,
    LaneRead,
    LaneXor,
    Load,
    Over,
    Read,
    RegRef,
    Statement,
    Store,
    Value,
)
from tilewright.kernel.rewrite import map_values, substitute
from tilewright.kernel.scopes import read_fragments, written_fragment
from tilewright.lower.builder import Builder, Fragment
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Place
from tilewright.schedule.boxes import STRIP


@dataclass(frozen=True, slots=True)
class Panels:
    """How a warpgroup's part of a tile is cut: `strips` of 64 rows, `count` panels in each.

    A panel has `width` columns of the instruction; `across`: the tensor runs along its rows.
    """

    strips: int
    count: int
    width: int
    across: bool
    m: str
    n: str

    @property
    def rows(self) -> tuple[int, int]:
        """The shape of a panel in shared memory."""
        return (self.width, STRIP) if self.across else (STRIP, self.width)


@dataclass(frozen=True, slots=True)
class PanelPlace:
    """One panel: the counters of strips and panels. The registers of `own` fragments serve each
    panel in turn."""

    strip: Expr
    panel: Expr
    own: Mapping[str, tuple[int, ...]]

    def in_turn(self, statement: Statement) -> Statement:
        """The statement on the registers of one panel."""
        match statement:
            case Assign(dst=dst, value=value):
                return replace(
                    statement, dst=self.register(dst), value=map_values(value, self._read)
                )
            case Load(dst=dst, indirect=indirect):
                indices = tuple(Indirect(c.axis, self.register(c.ref)) for c in indirect)
                return replace(statement, dst=self.register(dst), indirect=indices)
            case Store(src=src):
                return replace(statement, src=self.register(src))
            case _:
                return statement

    def register(self, ref: RegRef) -> RegRef:
        if ref.name not in self.own:
            return ref
        first = {str(self.strip): 0, str(self.panel): 0}
        return RegRef(ref.name, tuple(e.substitute(first) for e in ref.index))

    def _read(self, value: Value) -> Value:
        match value:
            case Read(ref) | LaneXor(ref) | LaneRead(ref):
                return replace(value, ref=self.register(ref))
            case _:
                return value


Elementwise = Assign | Load


def by_panel(
    b: Builder, value: Fragment, panels: Panels, making: Sequence[Statement]
) -> tuple[tuple[Statement, ...], tuple[Elementwise, ...]]:
    """What comes first, and the elementwise statements at the end that count along the panels."""
    if panels.count == 1:
        return tuple(making), ()
    columns, _ = _panel_digits(b, value, panels)
    last = max((i for i, s in enumerate(making) if not isinstance(s, Elementwise)), default=-1)
    first, each = list(making[: last + 1]), list[Elementwise]()
    for statement in making[last + 1 :]:
        if isinstance(statement, Elementwise) and columns in dict(statement.over):
            each.append(statement)
        else:
            first.append(statement)
    return tuple(first), tuple(each)


def panel_shapes(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, first: Sequence[Statement],
    each: Sequence[Elementwise],
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    """The fragments that `each` makes and nothing else reads, with the shape of one panel."""
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


def keep_one_panel(b: Builder, own: Mapping[str, tuple[int, ...]]) -> None:
    """Give fragments the registers of one panel, used again for each."""
    b.registers[:] = [
        replace(r, shape=own[r.name], holds=f"a panel of {r.holds}") if r.name in own else r
        for r in b.registers
    ]


def in_panel(
    b: Builder, statement: Statement, value: Fragment, panels: Panels, place: PanelPlace
) -> Statement:
    """The instances of a statement that belong to one panel."""
    if not isinstance(statement, Elementwise | Store):
        raise TypeError(f"no statement on elements: {statement}")
    columns, strips = _panel_digits(b, value, panels)
    tiles = panels.width // 8
    within = b.register_digit("panel_tile")
    over: Over = tuple(
        (str(within), tiles) if name == columns else (name, extent)
        for name, extent in statement.over if name != strips
    )  # fmt: skip
    chosen: dict[str, Expr | int | str] = {columns: place.panel * tiles + within}
    (made,) = substitute((statement,), chosen | {strips: place.strip})
    made = place.in_turn(made)
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
    """The registers that a statement writes of its fragment in one panel, axis by axis."""
    columns, strips = _panel_digits(b, value, panels)
    extents = {**dict(statement.over), columns: panels.width // 8, strips: 1}
    last = {name: extent - 1 for name, extent in extents.items()}
    index = [e.evaluate(last) + 1 for e in statement.dst.index]
    if isinstance(statement, Load):
        index[-1] += statement.width - 1
    return tuple(index)


def _panel_digits(b: Builder, value: Fragment, panels: Panels) -> tuple[str, str]:
    """The variables that count the value's registers in steps of 8 columns, and of 64 rows."""
    placed = b.place(value.layout)
    names = {
        (d.axis, d.stride): str(v)
        for d, v in zip(placed.layout.digits, placed.variables, strict=True)
        if d.place is Place.REGISTER
    }
    return names.get((panels.n, 8), ""), names.get((panels.m, STRIP), "")
