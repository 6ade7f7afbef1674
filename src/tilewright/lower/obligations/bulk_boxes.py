"""Boxes: what the copy engine and the matrix unit access, as accesses of whole blocks of elements.

A box of a tensor map is dense in shared memory, row after row. It is taken apart into digits that
fit the buffer's axes, so that every coordinate, of the tensor and of the buffer, stays affine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.kernel.async_ops import BulkLoad, BulkStore, TensorMap, TileRef, WarpgroupMma
from tilewright.kernel.ops import Kernel, MemRef, Shared
from tilewright.lower.obligations.accesses import Access
from tilewright.lower.obligations.scope import Program, Site
from tilewright.poly.expr import Expr, Guard, at_least, less
from tilewright.poly.sets import Dim

ROW, DEPTH = "row of the operand", "depth of the operand"


@dataclass(frozen=True, slots=True)
class Box:
    """The elements of a box: `dims`; where each lies from the corner, in the tensor (by the
    map's axes) and in the buffer."""

    dims: tuple[Dim, ...]
    position: tuple[Expr, ...]
    steps: tuple[Expr, ...]


def box_in(buffer: Shared, box: Sequence[int]) -> Box | None:
    """The box laid into the buffer; None where it does not follow the buffer's axes."""
    rank = len(buffer.shape)
    steps = [Expr.of(0)] * rank
    position = [Expr.of(0)] * len(box)
    dims: list[Dim] = []
    axis, filled = rank - 1, 1  # what of that axis the box's axes so far take
    for i in reversed(range(len(box))):
        rest, weight, part = box[i], 1, 0
        while rest > 1:
            if filled == buffer.shape[axis] and axis > 0:
                axis, filled = axis - 1, 1
            room = buffer.shape[axis] // filled
            extent = min(rest, room) if axis > 0 else rest
            if extent < 2 or rest % extent or buffer.shape[axis] % filled:
                return None
            name = f"box {i}" if extent == rest and not part else f"box {i}.{part}"
            dims.append(Dim.of(name, extent))
            position[i] = position[i] + Expr.of(name) * weight
            steps[axis] = steps[axis] + Expr.of(name) * filled
            rest, weight, part, filled = rest // extent, weight * extent, part + 1, filled * extent
        if i == len(box) - 1 and box[i] != buffer.shape[-1]:
            return None
    return Box(tuple(dims), tuple(position), tuple(steps))


def bulk_accesses(program: Program) -> Iterator[Access]:
    """Every access of copy engine and matrix unit; reads first.

    Where a box does not follow its buffer's axes, only that to the tensor: see `unboxed`.
    """
    kernel = program.kernel
    for site in program.sites:
        match site.statement:
            case BulkLoad(map=name, dst=ref, coordinates=at) as s:
                yield from _copies(kernel, site, s, (name, ref, at))
            case BulkStore(map=name, src=ref, coordinates=at) as s:
                yield from _copies(kernel, site, s, (name, ref, at))
            case WarpgroupMma() as s:
                atom = program.target.atom(s.atom)
                if atom is None:
                    continue
                for tile, rows in ((s.a, atom.m), (s.b, atom.n)):
                    if isinstance(tile, TileRef):
                        yield tile_access(kernel, site, s, tile, (rows, atom.k))
            case _:
                pass


def unboxed(program: Program) -> Iterator[tuple[Site, str]]:
    """Bulk copies whose boxes do not follow the axes of their buffer, with the buffer's name."""
    for site in program.sites:
        if isinstance(site.statement, BulkLoad | BulkStore):
            s = site.statement
            ref = s.dst if isinstance(s, BulkLoad) else s.src
            if box_of(program.kernel, s) is None:
                yield site, ref.name


def box_of(kernel: Kernel, copy: BulkLoad | BulkStore) -> tuple[TensorMap, Box] | None:
    """The map and the box of a bulk copy; None where it does not follow its buffer's axes."""
    ref = copy.dst if isinstance(copy, BulkLoad) else copy.src
    declared, buffer = kernel.tensor_map(copy.map), kernel.shared_buffer(ref.name)
    if declared is None or buffer is None:
        return None
    box = box_in(buffer, declared.box)
    return None if box is None else (declared, box)


def in_tensor(declared: TensorMap, exprs: Sequence[Expr]) -> tuple[Expr, ...]:
    """Expressions in the order of the map's axes, in that of the tensor's."""
    placed = dict(zip(declared.order, exprs, strict=True))
    return tuple(placed[axis] for axis in range(len(exprs)))


def inside(index: Sequence[Expr], shape: Sequence[Expr]) -> Guard:
    """The guard that each coordinate is in its axis."""
    pairs = zip(index, shape, strict=True)
    return tuple(c for i, n in pairs for c in (at_least(i, 0), less(i, n)))


def _copies(
    kernel: Kernel, site: Site, copy: BulkLoad | BulkStore,
    what: tuple[str, MemRef, tuple[Expr, ...]],
) -> Iterator[Access]:  # fmt: skip
    name, ref, at = what
    declared, found = kernel.tensor_map(name), box_of(kernel, copy)
    tensor = None if declared is None else kernel.tensor(declared.tensor)
    if declared is None or tensor is None:
        return
    box = found[1] if found else _alone(declared.box)
    loads = isinstance(copy, BulkLoad)
    verb = "bulk load" if loads else "bulk store"
    corner = MemRef(tensor.name, in_tensor(declared, at))
    steps = in_tensor(declared, box.position)
    index = tuple(i + step for i, step in zip(corner.index, steps, strict=True))
    outer = Access(
        site, copy.over, corner, 1, -1, (), not loads, bulk=verb, box=box.dims, steps=steps,
        clip=inside(index, tensor.shape),
    )  # fmt: skip
    if found is None:
        yield outer
        return
    inner = Access(site, copy.over, ref, 1, -1, (), loads, bulk=verb, box=box.dims, steps=box.steps)
    yield from (outer, inner) if loads else (inner, outer)


def _alone(box: Sequence[int]) -> Box:
    """A box of which only the tensor's side is known."""
    dims = tuple(Dim.of(f"box {i}", n) for i, n in enumerate(box))
    return Box(dims, tuple(Expr.of(d.name) for d in dims), ())


def tile_access(
    kernel: Kernel, site: Site, mma: WarpgroupMma, tile: TileRef, shape: tuple[int, int]
) -> Access:
    """The read of an operand of `shape` rows and depth in shared memory."""
    dims = (Dim.of(ROW, shape[0]), Dim.of(DEPTH, shape[1]))
    steps = tile_steps(kernel.shared_buffer(tile.name), tile, shape)
    ref = MemRef(tile.name, tile.index)
    return Access(
        site, mma.over, ref, 1, -1, (), False, bulk="matrix instruction's read", box=dims,
        steps=steps,
    )  # fmt: skip


def tile_steps(buffer: Shared | None, tile: TileRef, shape: tuple[int, int]) -> tuple[Expr, ...]:
    """How far element (ROW, DEPTH) lies from the operand's corner on each axis of its buffer."""
    steps = [Expr.of(0)] * len(tile.index)
    steps[tile.rows] = steps[tile.rows] + ROW
    steps[tile.depth] = steps[tile.depth] + DEPTH
    last = tile.index[-1]
    along = shape[0] if tile.rows == len(tile.index) - 1 else shape[1]
    width = along if buffer is None else buffer.shape[-1]
    if tile.panel < 0 or (last.is_const and last.const + along <= width):
        return tuple(steps)
    place = last + steps[-1]
    steps[tile.panel] = steps[tile.panel] + place // width
    steps[-1] = place % width - last
    return tuple(steps)
