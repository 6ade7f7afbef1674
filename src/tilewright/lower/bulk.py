"""Outputs through shared memory and the copy engine, one panel of a warpgroup after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.graph import ops
from tilewright.kernel.async_ops import (
    BulkCommit,
    BulkStore,
    BulkWait,
    NamedBarrier,
    ProxyFence,
    TensorMap,
)
from tilewright.kernel.ops import (
    Assign,
    If,
    Load,
    MatrixShape,
    MemRef,
    Over,
    RegRef,
    Shared,
    Statement,
    Store,
    Swizzle,
)  # fmt: skip
from tilewright.kernel.rewrite import substitute
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.dependencies import contract_layouts
from tilewright.poly.expr import Expr, Guard, equal
from tilewright.poly.layout import Place
from tilewright.schedule.boxes import PANELS, ROW_BYTES, STRIP, bulk_problem, contiguous_position

V = Expr.of
EXCHANGE = 1  # the named barrier of all warps that compute
PANEL = 2  # the first named barrier of one warpgroup
ORDER = 5  # the first of the named barriers at which warpgroups wait for their turn


def swizzle_of(width: int, size: int) -> Swizzle | None:
    """How the copy engine permutes rows of `width` elements of `size` bytes, in shared memory."""
    bits = (width * size // 16).bit_length() - 1
    return Swizzle(bits, (16 // size).bit_length() - 1, 3) if bits > 0 else None


@dataclass(frozen=True, slots=True)
class _Panels:
    """How a warpgroup's part of a tile is cut: `strips` of 64 rows, `count` panels in each.

    A panel has `width` columns of the instruction; `across`: the tensor runs along its rows. It is
    computed in pieces of `tiles` times 8 columns, which one instruction stores.
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

    @property
    def tiles(self) -> int:
        return 2 if self.width % 16 == 0 else 1

    @property
    def pieces(self) -> int:
        return self.width // (8 * self.tiles)


@dataclass(frozen=True, slots=True)
class _Place:
    """One piece: the counters of strips, panels and pieces. `alone`: its registers serve each in
    turn."""

    strip: Expr
    panel: Expr
    piece: Expr
    alone: bool

    def register(self, ref: RegRef) -> RegRef:
        if not self.alone:
            return ref
        first = {str(self.strip): 0, str(self.panel): 0, str(self.piece): 0}
        return RegRef(ref.name, tuple(e.substitute(first) for e in ref.index))

    def column(self, panels: _Panels, tile: Expr) -> Expr:
        """The number of a tile of 8 columns, of all that the warpgroup has in a row."""
        return self.panel * (panels.width // 8) + self.piece * panels.tiles + tile


def store_bulk(b: Builder, op: ops.WriteOp, value: Fragment, making: Sequence[Statement]) -> bool:
    """Store a tile by the copy engine; False where it cannot, and only `making` is emitted.

    `making` are the statements that make the value. What they do element by element happens piece
    by piece of a panel, so that few of its registers are in use at once. A tile whose last rows
    are not its own is left out.
    """
    panels = _panels(b, op, value)
    if panels is None or b.plan.ragged is not None:
        first, each = tuple(making), ()
    else:
        first, each = _by_panel(b, value, panels, making)
    for statement in first:
        b.emit(statement)
    if panels is None:
        return False
    tensor = b.tensors[op.memory]
    order = _box_order(op.type.axes, panels)
    extents = dict(zip(order[-2:], panels.rows, strict=True))
    row_bytes = panels.rows[1] * tensor.dtype.bytes
    box = TensorMap(
        b.name(f"{op.memory}_box"), op.memory, tuple(extents.get(a, 1) for a in order),
        row_bytes if row_bytes > 16 else 0, tuple(op.type.axes.index(a) for a in order), op.span,
    )  # fmt: skip
    b.maps.append(box)
    buffer = _buffer(b, op, panels)
    with (
        b.guarded(b.whole_tile(), None, op.span),
        b.unrolled("strip", panels.strips, op.span) as strip,
        b.unrolled("panel", panels.count, op.span) as panel,
    ):
        slot = _await_panel(b, panels, strip, panel)
        with b.unrolled("piece", panels.pieces, op.span) as piece:
            alone = bool(each) and b.graph.uses[op.value] == (op.id,)
            place = _Place(strip, panel, piece, alone)
            for statement in each:
                b.emit(_in_panel(b, statement, value, panels, place))
            b.emit(_store(b, op, value, panels, buffer, slot, place))
        _start_copy(
            b,
            op,
            value,
            panels,
            box,
            MemRef(buffer.name, (V(b.role), slot, V(0), V(0))),
            (strip, panel),
        )
    if place.alone:
        _keep_one_piece(b, value, panels)
    return True


def _by_panel(
    b: Builder, value: Fragment, panels: _Panels, making: Sequence[Statement]
) -> tuple[tuple[Statement, ...], tuple[Assign | Load, ...]]:
    """What comes first, and the elementwise statements at the end that count along the panels."""
    if panels.count == 1:
        return tuple(making), ()
    columns, _ = _panel_digits(b, value, panels)
    last = max((i for i, s in enumerate(making) if not isinstance(s, Assign | Load)), default=-1)
    first, each = list(making[: last + 1]), list[Assign | Load]()
    for statement in making[last + 1 :]:
        if isinstance(statement, Assign | Load) and columns in dict(statement.over):
            each.append(statement)
        else:
            first.append(statement)
    return tuple(first), tuple(each)


def _keep_one_piece(b: Builder, value: Fragment, panels: _Panels) -> None:
    """Give a value that nothing else reads the registers of one piece, used again for each."""
    count = 4 * panels.tiles  # of a thread: 64 rows of them for 128 threads
    shape = (*(1 for _ in value.shape[:-1]), count)
    at = next(i for i, r in enumerate(b.registers) if r.name == value.name)
    b.registers[at] = replace(b.registers[at], shape=shape, holds=f"a piece of {value.layout}")


def _panel_digits(b: Builder, value: Fragment, panels: _Panels) -> tuple[str, str]:
    """The variables that count the value's registers in steps of 8 columns, and of 64 rows."""
    placed = b.place(value.layout)
    names = {
        (d.axis, d.stride): str(v)
        for d, v in zip(placed.layout.digits, placed.variables, strict=True)
        if d.place is Place.REGISTER
    }
    return names.get((panels.n, 8), ""), names.get((panels.m, STRIP), "")


def _in_panel(
    b: Builder, statement: Assign | Load, value: Fragment, panels: _Panels, place: _Place
) -> Statement:
    """The instances of a statement that belong to one piece."""
    columns, strips = _panel_digits(b, value, panels)
    within = b.register_digit("panel_tile")
    over: Over = tuple(
        (str(within), panels.tiles) if name == columns else (name, extent)
        for name, extent in statement.over if name != strips
    )  # fmt: skip
    chosen: dict[str, Expr | int | str] = {columns: place.column(panels, within)}
    (made,) = substitute((statement,), chosen | {strips: place.strip})
    if not isinstance(made, Assign | Load):
        return made
    dst = place.register(made.dst) if made.dst.name == value.name else made.dst
    return replace(made, over=over, dst=dst)


def _box_order(axes: tuple[str, ...], panels: _Panels) -> tuple[str, ...]:
    own = (panels.n, panels.m) if panels.across else (panels.m, panels.n)
    return (*(a for a in axes if a not in own), *own)


def _panels(b: Builder, op: ops.WriteOp, value: Fragment) -> _Panels | None:
    """How the tile is cut, where it lies as an accumulator does and the engine can write it."""
    roles = b.plan.roles
    if roles is None or bulk_problem(b.tensors[op.memory], b.declared) is not None:
        return None
    product = b.graph.by_id[roles.product]
    if not isinstance(product, ops.Contract):
        return None
    contract = b.plan.contracts[product.id]
    m, n = contract.m or "", contract.n or ""
    if not {m, n} <= set(op.type.axes):
        return None
    if set(value.layout.digits) != set(contract_layouts(b, product)[2].layout.digits):
        return None
    registers = {(d.axis, d.stride): d.extent for d in value.layout.at(Place.REGISTER)}
    columns = registers.get((n, 8), 1) * 8
    if registers.keys() - {(m, STRIP), (n, 8), (m, 8), (n, 1)}:
        return None  # several instructions side by side
    last = contiguous_position(b.tensors[op.memory])
    along, size = op.type.axes[last or 0], op.type.dtype.bytes
    if along not in (m, n) or (along == m and size != 2):
        return None
    if along in b.starts:
        return None  # data may begin a tile within a piece
    most = STRIP if along == m else ROW_BYTES // size
    width = next(w for w in (128, 64, 32, 16, 8) if w <= most and columns % w == 0)
    if along == n and width * size < 16:
        return None
    return _Panels(registers.get((m, STRIP), 1), columns // width, width, along == m, m, n)


def _buffer(b: Builder, op: ops.WriteOp, panels: _Panels) -> Shared:
    """Two panels for each warpgroup; outputs of one kind share them."""
    roles = b.plan.roles
    shape = (roles.consumers if roles else 1, PANELS, *panels.rows)
    for shared in b.shared:
        if shared.name in b.panels and (shared.shape, shared.dtype) == (shape, op.type.dtype):
            return shared
    swizzle = swizzle_of(panels.rows[1], op.type.dtype.bytes)
    made = b.buffer(f"{op.memory}_panels", op.type.dtype, shape, swizzle=swizzle, managed=True,
                    span=op.span)  # fmt: skip
    b.panels.add(made.name)
    return made


def _await_panel(b: Builder, panels: _Panels, strip: Expr, panel: Expr) -> Expr:
    """Wait together until a panel's slot is free, and say which it is."""
    one = (equal(b.role_warp, 0), equal(b.role_lane, 0))
    whole = panels.strips * panels.count
    if whole > 1 and whole % PANELS:  # the tile before ended on the same slot
        first: Guard = (equal(strip, 0), equal(panel, 0))
        b.emit(If((*first, *one), (BulkWait(0, read=True),)))
    b.emit(If(one, (BulkWait(PANELS - 1 if whole > 1 else 0, read=True),)))
    b.emit(_meeting(b))
    return (strip * panels.count + panel) % PANELS


def _meeting(b: Builder) -> NamedBarrier:
    """The barrier of one warpgroup."""
    return NamedBarrier(V(b.role) + PANEL, WARPGROUP_WARPS * b.plan.warp_size)


def _start_copy(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: _Panels, box: TensorMap, corner: MemRef,
    at: tuple[Expr, Expr],
) -> None:  # fmt: skip
    """When all have stored their part of a panel, one thread starts its copy."""
    b.emit(ProxyFence())
    b.emit(_meeting(b))
    coordinates = _corner(b, op.type.axes, value, panels, box, at)
    one = (equal(b.role_warp, 0), equal(b.role_lane, 0))
    b.emit(If(one, (BulkStore((), box.name, coordinates, corner, op.span), BulkCommit())))


def _corner(
    b: Builder, axes: Sequence[str], value: Fragment, panels: _Panels, box: TensorMap,
    at: tuple[Expr, Expr],
) -> tuple[Expr, ...]:  # fmt: skip
    """Where the panel at a strip and a column of panels begins in a tensor."""
    strip, panel = at
    start = {a: b.base(a) for a in axes}
    start[panels.m] = start[panels.m] + _group_start(b, value, panels.m) + strip * STRIP
    start[panels.n] = start[panels.n] + _group_start(b, value, panels.n) + panel * panels.width
    return tuple(start[axes[i]] for i in box.order)


def _group_start(b: Builder, value: Fragment, axis: str) -> Expr:
    """Where the warpgroup's part of the tile begins."""
    placed = b.place(value.layout)
    total = V(0)
    for digit, variable in zip(placed.layout.digits, placed.variables, strict=True):
        if digit.place is Place.WARP and digit.axis == axis and str(variable) != b.role_warp:
            total = total + variable * digit.stride
    return total


def _store(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: _Panels, buffer: Shared, slot: Expr,
    place: _Place,
) -> Store:  # fmt: skip
    """A piece's registers to shared memory, by matrix stores where there are any."""
    m, n = panels.m, panels.n
    placed = b.place(value.layout)
    known = {(d.axis, d.stride): v for d, v in
             zip(placed.layout.digits, placed.variables, strict=True)
             if d.place is not Place.REGISTER and v != V(b.role)}  # fmt: skip
    lane_row, lane_column, warp = known[m, 1], known[n, 2], known[m, 16]
    low, half = (b.register_digit(f"panel_{part}") for part in ("n_low", "m"))
    registers = {
        (m, STRIP): place.strip, (n, 8): place.column(panels, low), (m, 8): half, (n, 1): V(0),
    }  # fmt: skip
    source = value.ref([registers[d.axis or "", d.stride] for d in value.layout.at(Place.REGISTER)])
    over: Over = tuple((str(d), e) for d, e in ((low, panels.tiles), (half, 2)) if e > 1)
    unit: dict[str, Expr | int | str] = {str(low): 0} if panels.tiles == 1 else {}
    at_m = warp * 16 + half * 8 + lane_row
    column = place.piece * panels.tiles + low
    at_n = (column * 8 + lane_column * 2).substitute(unit)
    index = (at_n, at_m) if panels.across else (at_m, at_n)
    matrix = None
    if op.type.dtype.bytes == 2:
        names = tuple(name for name, _ in over)
        form = next(
            (r for r in b.target.matrix_stores
             if r.tiles == 2 * panels.tiles and r.transposed == panels.across), None,
        )  # fmt: skip
        if form is not None:
            matrix = MatrixShape(form.name, str(lane_row), str(lane_column), names)
    source = place.register(RegRef(source.name, tuple(e.substitute(unit) for e in source.index)))
    return Store(
        over, MemRef(buffer.name, (V(b.role), slot, *index)), source, 2,
        -2 if panels.across else -1, span=op.span, matrix=matrix,
    )  # fmt: skip
