"""Panels: how a warpgroup's part of a tile goes through shared memory, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.kernel.async_ops import NamedBarrier, TensorMap
from tilewright.kernel.ops import MatrixShape, MemRef, Over, RegRef, Shared, Swizzle
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.builder import Builder, Fragment
from tilewright.lower.dependencies import contract_layouts
from tilewright.poly.expr import Expr, Guard, equal
from tilewright.poly.layout import Layout, Place
from tilewright.schedule.boxes import ROW_BYTES, STRIP, bulk_problem, contiguous_position
from tilewright.target.model import MatrixLoad

V = Expr.of
PANEL = 2  # the first named barrier of one warpgroup


def swizzle_of(width: int, size: int) -> Swizzle | None:
    """How the copy engine permutes rows of `width` elements of `size` bytes, in shared memory."""
    bits = (width * size // 16).bit_length() - 1
    return Swizzle(bits, (16 // size).bit_length() - 1, 3) if bits > 0 else None


@dataclass(frozen=True, slots=True)
class Panels:
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
    def whole(self) -> int:
        """The panels of a tile."""
        return self.strips * self.count

    @property
    def tiles(self) -> int:
        return 2 if self.width % 16 == 0 else 1

    @property
    def pieces(self) -> int:
        return self.width // (8 * self.tiles)


@dataclass(frozen=True, slots=True)
class PanelPlace:
    """One piece: the counters of strips, panels and pieces. The registers of `own` fragments serve
    each in turn."""

    strip: Expr
    panel: Expr
    piece: Expr
    own: Mapping[str, tuple[int, ...]]

    def register(self, ref: RegRef) -> RegRef:
        """The register of the piece; of the first one where that serves all."""
        if ref.name not in self.own:
            return ref
        first = {str(self.strip): 0, str(self.panel): 0, str(self.piece): 0}
        return RegRef(ref.name, tuple(e.substitute(first) for e in ref.index))

    def column(self, panels: Panels, tile: Expr) -> Expr:
        """The number of a tile of 8 columns, of all that the warpgroup has in a row."""
        return self.panel * (panels.width // 8) + self.piece * panels.tiles + tile


@dataclass(frozen=True, slots=True)
class PieceAccess:
    """How a piece's registers and its place in shared memory correspond, two elements together."""

    over: Over
    registers: RegRef
    memory: MemRef
    axis: int
    matrix: MatrixShape | None


def panels_of(b: Builder, op: ops.WriteOp, layout: Layout) -> Panels | None:
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
    if set(layout.digits) != set(contract_layouts(b, product)[2].layout.digits):
        return None
    registers = {(d.axis, d.stride): d.extent for d in layout.at(Place.REGISTER)}
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


def _box_order(axes: Sequence[str], panels: Panels) -> tuple[str, ...]:
    own = (panels.n, panels.m) if panels.across else (panels.m, panels.n)
    return (*(a for a in axes if a not in own), *own)


def panel_box(
    b: Builder, memory: str, axes: Sequence[str], panels: Panels, span: Span | None
) -> TensorMap:
    """Declare the box that a panel is of a tensor."""
    order = _box_order(axes, panels)
    extents = dict(zip(order[-2:], panels.rows, strict=True))
    row_bytes = panels.rows[1] * b.tensors[memory].dtype.bytes
    box = TensorMap(
        b.name(f"{memory}_box"), memory, tuple(extents.get(a, 1) for a in order),
        row_bytes if row_bytes > 16 else 0, tuple(axes.index(a) for a in order), span,
    )  # fmt: skip
    b.maps.append(box)
    return box


def panel_corner(
    b: Builder, axes: Sequence[str], layout: Layout, panels: Panels, box: TensorMap,
    at: tuple[Expr, Expr],
) -> tuple[Expr, ...]:  # fmt: skip
    """Where the panel at a strip and a column of panels begins in a tensor."""
    strip, panel = at
    start = {a: b.base(a) for a in axes}
    start[panels.m] = start[panels.m] + _group_start(b, layout, panels.m) + strip * STRIP
    start[panels.n] = start[panels.n] + _group_start(b, layout, panels.n) + panel * panels.width
    return tuple(start[axes[i]] for i in box.order)


def _group_start(b: Builder, layout: Layout, axis: str) -> Expr:
    """Where the warpgroup's part of the tile begins."""
    placed = b.place(layout)
    total = V(0)
    for digit, variable in zip(placed.layout.digits, placed.variables, strict=True):
        if digit.place is Place.WARP and digit.axis == axis and str(variable) != b.role_warp:
            total = total + variable * digit.stride
    return total


def panel_digits(b: Builder, layout: Layout, panels: Panels) -> tuple[str, str]:
    """The variables that count the value's registers in steps of 8 columns, and of 64 rows."""
    placed = b.place(layout)
    names = {
        (d.axis, d.stride): str(v)
        for d, v in zip(placed.layout.digits, placed.variables, strict=True)
        if d.place is Place.REGISTER
    }
    return names.get((panels.n, 8), ""), names.get((panels.m, STRIP), "")


def meeting_of_one(b: Builder) -> NamedBarrier:
    """The barrier of one warpgroup."""
    return NamedBarrier(V(b.role) + PANEL, WARPGROUP_WARPS * b.plan.warp_size)


def one_thread(b: Builder) -> Guard:
    """Of a warpgroup."""
    return (equal(b.role_warp, 0), equal(b.role_lane, 0))


def panel_place(b: Builder, buffer: Shared, number: Expr) -> MemRef:
    """Where a panel begins in shared memory: the panels of a tile take the places in turn."""
    return MemRef(buffer.name, (V(b.role), number % buffer.shape[1], V(0), V(0)))


def piece_access(
    b: Builder, piece: Fragment, panels: Panels, place: PanelPlace, corner: MemRef,
    instructions: Sequence[MatrixLoad],
) -> PieceAccess:  # fmt: skip
    """A piece in its panel, which begins at `corner`, by a matrix instruction if there is one."""
    m, n = panels.m, panels.n
    placed = b.place(piece.layout)
    known = {(d.axis, d.stride): v for d, v in
             zip(placed.layout.digits, placed.variables, strict=True)
             if d.place is not Place.REGISTER and v != V(b.role)}  # fmt: skip
    lane_row, lane_column, warp = known[m, 1], known[n, 2], known[m, 16]
    low, half = (b.register_digit(f"panel_{part}") for part in ("n_low", "m"))
    registers = {
        (m, STRIP): place.strip, (n, 8): place.column(panels, low), (m, 8): half, (n, 1): V(0),
    }  # fmt: skip
    own = piece.ref([registers[d.axis or "", d.stride] for d in piece.layout.at(Place.REGISTER)])
    over: Over = tuple((str(d), e) for d, e in ((low, panels.tiles), (half, 2)) if e > 1)
    unit: dict[str, Expr | int | str] = {str(low): 0} if panels.tiles == 1 else {}
    at_m = warp * 16 + half * 8 + lane_row
    column = place.piece * panels.tiles + low
    at_n = (column * 8 + lane_column * 2).substitute(unit)
    index = (at_n, at_m) if panels.across else (at_m, at_n)
    matrix = None
    if piece.dtype.bytes == 2:
        names = tuple(name for name, _ in over)
        form = next(
            (r for r in instructions
             if r.tiles == 2 * panels.tiles and r.transposed == panels.across), None,
        )  # fmt: skip
        if form is not None:
            matrix = MatrixShape(form.name, str(lane_row), str(lane_column), names)
    own = RegRef(own.name, tuple(e.substitute(unit) for e in own.index))
    memory = MemRef(corner.name, (*corner.index[:2], *index))
    return PieceAccess(over, own, memory, -2 if panels.across else -1, matrix)
