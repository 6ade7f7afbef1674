"""Outputs through shared memory and the copy engine, one panel of a warpgroup after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from tilewright.lower.access import store_global
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.dependencies import contract_layouts
from tilewright.lower.panels import (
    PanelPlace,
    Panels,
    by_panel,
    in_panel,
    keep_one_panel,
    panel_shapes,
)
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


def store_bulk(b: Builder, op: ops.WriteOp, value: Fragment, making: Sequence[Statement]) -> bool:
    """Store a tile by the copy engine; False where it cannot, and only `making` is emitted.

    `making` are the statements that make the value. What they do element by element happens panel
    by panel, so that few of its registers are in use at once. The rows of a tile whose last ones
    are not its own are stored by the threads.
    """
    panels = _panels(b, op, value)
    if panels is None:
        for statement in making:
            b.emit(statement)
        return False
    first, each = by_panel(b, value, panels, making)
    for statement in first:
        b.emit(statement)
    own = panel_shapes(b, op, value, panels, first, each)
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
        place = PanelPlace(strip, panel, own)
        for statement in each:
            b.emit(in_panel(b, statement, value, panels, place))
        _emit_panel(b, op, value, panels, box, buffer, place)
    if rest := b.whole_tile(whole=False):
        with b.guarded(rest, None, op.span):
            _store_rows(b, op, value, panels, each, own)
    keep_one_panel(b, own)
    return True


def _store_rows(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, each: Sequence[Assign | Load],
    own: Mapping[str, tuple[int, ...]],
) -> None:  # fmt: skip
    """A tile by the threads, which may store some of its rows only."""
    if not each:
        store_global(b, op, value)
        return
    with b.aside() as storing:
        store_global(b, op, value)
    with (
        b.unrolled("strip", panels.strips, op.span) as strip,
        b.unrolled("panel", panels.count, op.span) as panel,
    ):
        place = PanelPlace(strip, panel, own)
        for statement in (*each, *storing):
            b.emit(in_panel(b, statement, value, panels, place))


def _box_order(axes: tuple[str, ...], panels: Panels) -> tuple[str, ...]:
    own = (panels.n, panels.m) if panels.across else (panels.m, panels.n)
    return (*(a for a in axes if a not in own), *own)


def _panels(b: Builder, op: ops.WriteOp, value: Fragment) -> Panels | None:
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
    return Panels(registers.get((m, STRIP), 1), columns // width, width, along == m, m, n)


def _buffer(b: Builder, op: ops.WriteOp, panels: Panels) -> Shared:
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


def _emit_panel(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, box: TensorMap,
    buffer: Shared, place: PanelPlace,
) -> None:  # fmt: skip
    """Wait for the slot, fill it together, and let one thread start its copy."""
    strip, panel = place.strip, place.panel
    one = (equal(b.role_warp, 0), equal(b.role_lane, 0))
    slot = (strip * panels.count + panel) % PANELS
    meet = NamedBarrier(V(b.role) + PANEL, 128)
    whole = panels.strips * panels.count
    if whole > 1 and whole % PANELS:  # the tile before ended on the same slot
        first: Guard = (equal(strip, 0), equal(panel, 0))
        b.emit(If((*first, *one), (BulkWait(0, read=True),)))
    b.emit(If(one, (BulkWait(PANELS - 1 if whole > 1 else 0, read=True),)))
    b.emit(meet)
    b.emit(_store(b, op, value, panels, buffer, slot, place))
    b.emit(ProxyFence())
    b.emit(meet)
    start = {a: b.base(a) for a in op.type.axes}
    start[panels.m] = start[panels.m] + _group_start(b, value, panels.m) + strip * STRIP
    start[panels.n] = start[panels.n] + _group_start(b, value, panels.n) + panel * panels.width
    coordinates = tuple(start[op.type.axes[i]] for i in box.order)
    corner = MemRef(buffer.name, (V(b.role), slot, V(0), V(0)))
    copy = BulkStore((), box.name, coordinates, corner, op.span)
    b.emit(If(one, (copy, BulkCommit())))


def _group_start(b: Builder, value: Fragment, axis: str) -> Expr:
    """Where the warpgroup's part of the tile begins."""
    placed = b.place(value.layout)
    total = V(0)
    for digit, variable in zip(placed.layout.digits, placed.variables, strict=True):
        if digit.place is Place.WARP and digit.axis == axis and str(variable) != b.role_warp:
            total = total + variable * digit.stride
    return total


def _store(
    b: Builder, op: ops.WriteOp, value: Fragment, panels: Panels, buffer: Shared, slot: Expr,
    place: PanelPlace,
) -> Store:  # fmt: skip
    """A panel's registers to shared memory, by matrix stores where there are any."""
    strip, panel = place.strip, place.panel
    m, n = panels.m, panels.n
    placed = b.place(value.layout)
    known = {(d.axis, d.stride): v for d, v in
             zip(placed.layout.digits, placed.variables, strict=True)
             if d.place is not Place.REGISTER and v != V(b.role)}  # fmt: skip
    lane_row, lane_column, warp = known[m, 1], known[n, 2], known[m, 16]
    high, low, half = (b.register_digit(f"panel_{part}") for part in ("n", "n_low", "m"))
    tiles = panels.width // 8
    pairs = 2 if tiles % 2 == 0 else 1
    column = high * pairs + low if pairs > 1 else high
    registers = {
        (m, STRIP): strip, (n, 8): panel * tiles + column, (m, 8): half, (n, 1): V(0),
    }  # fmt: skip
    source = value.ref([registers[d.axis or "", d.stride] for d in value.layout.at(Place.REGISTER)])
    over: Over = tuple(
        (str(d), e) for d, e in ((high, tiles // pairs), (low, pairs), (half, 2)) if e > 1
    )
    unit: dict[str, Expr | int | str] = {
        str(d): 0 for d, e in ((high, tiles // pairs), (low, pairs)) if e == 1
    }
    at_m = warp * 16 + half * 8 + lane_row
    at_n = (column * 8 + lane_column * 2).substitute(unit)
    index = (at_n, at_m) if panels.across else (at_m, at_n)
    matrix = None
    if op.type.dtype.bytes == 2:
        names = tuple(str(d) for d, e in ((low, pairs), (half, 2)) if e > 1)
        form = next(
            (r for r in b.target.matrix_stores
             if r.tiles == 2 * pairs and r.transposed == panels.across), None,
        )  # fmt: skip
        if form is not None:
            matrix = MatrixShape(form.name, str(lane_row), str(lane_column), names)
    source = place.register(RegRef(source.name, tuple(e.substitute(unit) for e in source.index)))
    return Store(
        over, MemRef(buffer.name, (V(b.role), slot, *index)), source, 2,
        -2 if panels.across else -1, span=op.span, matrix=matrix,
    )  # fmt: skip
