"""Rules about vectors, asynchronous copies, matrix loads, matrix instructions and registers."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from tilewright.base.dtypes import i32, i64
from tilewright.kernel.fault import Fault, Rule, View
from tilewright.kernel.ops import (
    AsyncCopy,
    AsyncWait,
    Load,
    MatrixShape,
    MemRef,
    Mma,
    Mode,
    RegRef,
    Shared,
    Statement,
    Store,
)
from tilewright.kernel.pressure import register_estimate
from tilewright.kernel.ranges import divisor
from tilewright.kernel.scopes import Scope
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Layout, Place
from tilewright.target.model import MatrixLoad, Source

_ONE = Expr.of(1)


def _strides(view: View, name: str) -> tuple[Expr, ...]:
    return tuple(Expr.of(stride) for stride in view.memory[name].strides)


def _accesses(statement: Statement) -> Iterator[tuple[MemRef, int, int]]:
    """Vector accesses of memory: what, along which axis, how many elements."""
    match statement:
        case Load():
            yield _unknown(statement), statement.axis, statement.width
        case Store():
            yield statement.dst, statement.axis, statement.width
        case AsyncCopy():
            yield statement.dst, statement.dst_axis, statement.width
            yield statement.src, statement.src_axis, statement.width
        case _:
            pass


def _matrix_of(statement: Statement) -> MatrixShape | None:
    return statement.matrix if isinstance(statement, Load | Store) else None


def _unknown(load: Load) -> MemRef:
    """What a load reads, with a variable of which nothing is known for each index that is data."""
    index = list(load.src.index)
    for coordinate in load.indirect:
        if coordinate.axis < len(index):
            index[coordinate.axis] = Expr.of("gathered")
    return MemRef(load.src.name, tuple(index))


def _gathers(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        if not isinstance(statement, Load) or not statement.indirect:
            continue
        name, rank = statement.src.name, len(statement.src.index)
        tensor = view.kernel.tensor(name)
        if tensor is None or tensor.mode is not Mode.IN:
            yield Fault(f"{name} is gathered from, but is no in tensor", statement)
        if statement.matrix is not None:
            yield Fault("a matrix load has an index that is data", statement)
        axes = [coordinate.axis for coordinate in statement.indirect]
        for coordinate in statement.indirect:
            axis, dtype = coordinate.axis, view.types[coordinate.ref.name]
            if not 0 <= axis < rank or axes.count(axis) > 1:
                yield Fault(f"{name} has no axis {axis} of its own for an index", statement)
            elif statement.src.index[axis] != Expr.of(0):
                yield Fault(f"axis {axis} of {name} has an index besides the data", statement)
            elif statement.width > 1 and statement.axis % rank == axis:
                yield Fault(f"a vector runs along axis {axis} of {name}", statement)
            if dtype not in (i32, i64):
                yield Fault(f"{coordinate.ref.name} of {dtype} is an index", statement)


def _vectors(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        for ref, axis, width in _accesses(statement):
            if width < 1 or width & (width - 1):
                yield Fault(f"{width} elements, not a power of two", statement)
            if width <= 1:
                continue
            rank = len(ref.index)
            if not -rank <= axis < rank:
                yield Fault(f"{ref.name} has {rank} axes, not an axis {axis}", statement)
                continue
            size = width * view.memory[ref.name].dtype.bytes
            if size > view.target.vector_bytes:
                yield Fault(
                    f"a vector of {size} bytes",
                    statement,
                    expected=f"at most {view.target.vector_bytes} bytes on {view.target.name}",
                )
            gathers = _matrix_of(statement) is not None
            stride = _strides(view, ref.name)[axis]
            if stride != _ONE and not gathers:
                yield Fault(f"axis {axis} of {ref.name} has the stride {stride}", statement)


def _alignment(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        if _matrix_of(statement) is not None:
            continue
        for ref, _, width in _accesses(statement):
            known = _offset_divisor(view, ref)
            if known % width:
                found = f"the offset in {ref.name} is a multiple of {known} elements"
                mend = "use a narrower vector, or declare a symbol's multiple"
                yield Fault(found, statement, expected=f"a multiple of {width}", mend=mend)


def _offset_divisor(view: View, ref: MemRef) -> int:
    """A number that divides the linear element offset; 0 where the offset is 0."""
    pairs = zip(ref.index, _strides(view, ref.name), strict=True)
    return gcd(*(divisor(i, view.multiples) * divisor(s, view.multiples) for i, s in pairs))


def _async_copies(view: View) -> Iterator[Fault]:
    widths = view.target.async_copy_bytes
    for _, statement in view.statements:
        if isinstance(statement, AsyncWait) and statement.pending < 0:
            yield Fault(f"waits until {statement.pending} groups are pending", statement)
        if not isinstance(statement, AsyncCopy):
            continue
        size = statement.width * view.memory[statement.src.name].dtype.bytes
        if size not in widths:
            listed = ", ".join(str(width) for width in widths)
            yield Fault(
                f"copies {size} bytes at a time",
                statement,
                expected=f"{listed or 'no such copy'} on {view.target.name}",
                mend="use another width, or a load and a store",
            )
        source, buffer = view.kernel.tensor(statement.src.name), view.memory[statement.dst.name]
        if source is not None and source.align % size:
            yield Fault(f"{source.name} is aligned to {source.align} bytes of {size}", statement)
        if isinstance(buffer, Shared):
            yield from (Fault(text, statement) for text in _misplaced(buffer, statement.width))


def _misplaced(buffer: Shared, width: int) -> Iterator[str]:
    """Why `width` elements at a multiple of `width` are not one aligned piece of the buffer."""
    size = width * buffer.dtype.bytes
    if buffer.offset % size:
        yield f"{buffer.name} starts at byte {buffer.offset}, not a multiple of {size}"
    if buffer.swizzle is not None and buffer.swizzle.bits and width > 1 << buffer.swizzle.base:
        pieces = 1 << buffer.swizzle.base
        yield f"{buffer.name} is swizzled in pieces of {pieces} elements, {width} are needed"


# ---------------------------------------------------------------- matrix loads


def _matrix_loads(view: View) -> Iterator[Fault]:
    for scope, statement in view.statements:
        if not isinstance(statement, Load | Store) or statement.matrix is None:
            continue
        matrix, loads = statement.matrix, isinstance(statement, Load)
        rows = view.target.matrix_loads if loads else view.target.matrix_stores
        row = next((r for r in rows if r.name == matrix.atom), None)
        if row is None:
            names, what = ", ".join(r.name for r in rows), "load" if loads else "store"
            found = f"{view.target.name} has no matrix {what} {matrix.atom}"
            expected = names or f"a plain {what}"
            yield Fault(found, statement, expected=expected, mend="drop the shape")
            continue
        for message in (*_lanes(scope, matrix), *_tile(view, statement, matrix, row)):
            yield Fault(message, statement)


def _lanes(scope: Scope, matrix: MatrixShape) -> Iterator[str]:
    """`row` and `column` must be the lane number, 4 * row + column."""
    row, column = scope.variables.get(matrix.row), scope.variables.get(matrix.column)
    source = None if row is None else row.source
    lane = source is not None and source.source in (Expr.of("lane"), Expr.of("thread"))
    last = () if source is None else source.digits[-2:]
    wanted = ((matrix.row, Expr.of(8)), (matrix.column, Expr.of(4)))
    if column is None or not lane or last != wanted:
        yield (
            f"{matrix.row} and {matrix.column} are not the lane's last digits, of extents 8 and 4"
        )


def _tile(view: View, load: Load | Store, matrix: MatrixShape, row: MatrixLoad) -> Iterator[str]:
    memory = load.src if isinstance(load, Load) else load.dst
    buffer = view.memory[memory.name]
    what = "load" if isinstance(load, Load) else "store"
    if not isinstance(buffer, Shared):
        yield f"{memory.name} is not in shared memory"
        return
    if load.guard:
        yield f"a matrix {what} takes no guard"
    if buffer.dtype.bits != 16 or load.width != 2:
        yield f"{what}s {load.width} elements of {buffer.dtype}, not 2 of 16 bits"
    extents = dict(load.over)
    missing = [tile for tile in matrix.tiles if tile not in extents]
    if missing:
        yield f"{missing[0]} is not an unrolled digit of the {what}"
    elif prod(extents[tile] for tile in matrix.tiles) != row.tiles:
        yield f"{row.name} {what}s {row.tiles} tiles, not {prod(extents[t] for t in matrix.tiles)}"
    yield from _rows(view, memory, load.axis, matrix, row, buffer)


def _rows(
    view: View, memory: MemRef, axis: int, matrix: MatrixShape, row: MatrixLoad, buffer: Shared
) -> Iterator[str]:
    """The eight elements of a tile's row must be 16 aligned bytes; pairs run along its lanes."""
    *outer, inner = memory.index
    across = axis not in (-1, len(outer))
    if across is not row.transposed:
        which = "across" if row.transposed else "along"
        yield f"{row.name} gives pairs {which} the memory's rows, the load's axis is {axis}"
        return
    pair, line = 2 * Expr.of(matrix.column), Expr.of(matrix.row)
    start = inner - (line if across else pair)
    if start.variables() & {matrix.row, matrix.column} or divisor(start, view.multiples) % 8:
        yield f"the rows of {buffer.name} do not start at multiples of 8 elements"
    if across:
        outer[axis % len(memory.index)] -= pair
    lanes = {matrix.row, matrix.column} if across else {matrix.column}
    for place, index in enumerate(outer):
        for name in sorted(lanes & index.variables()):
            yield f"axis {place} of {buffer.name} does not follow {name} as a tile's rows do"
    if any(stride % 8 for stride in buffer.strides[:-1]):
        yield f"the pitch of {buffer.name} is not a multiple of 8 elements"
    yield from _misplaced(buffer, 8)


# ---------------------------------------------------------------- matrix instructions


def _atoms(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        if not isinstance(statement, Mma):
            continue
        atom = view.target.atom(statement.atom)
        if atom is None:
            shape = statement.atom.rsplit(".", 2)[0]
            near = [a.name for a in view.target.mma_atoms if a.name.startswith(shape)][:4]
            some = near or [a.name for a in view.target.mma_atoms][:4]
            yield Fault(
                f"{view.target.name} has no atom {statement.atom}",
                statement,
                expected=f"an atom of the target, such as {', '.join(some)}",
            )
            continue
        if Source.SHARED in (atom.a_source, atom.b_source):
            yield Fault(f"{atom.name} reads shared memory, not fragments", statement)
            continue
        operands = (
            ("d", statement.d, atom.d, atom.d_dtype),
            ("a", statement.a, atom.a, atom.a_dtype),
            ("b", statement.b, atom.b, atom.b_dtype),
        )
        for which, ref, layout, dtype in operands:
            fragment = view.fragments[ref.name]
            if fragment.dtype != dtype:
                found = f"{which} is {ref.name} of {fragment.dtype}, {atom.name} takes {dtype}"
                yield Fault(found, statement)
            yield from (Fault(text, statement) for text in _operand(which, ref, layout, view))


def _operand(which: str, ref: RegRef, layout: Layout, view: View) -> Iterator[str]:
    count = layout.count(Place.REGISTER)
    extent = view.fragments[ref.name].shape[-1]
    if extent % count:
        yield f"{which} takes {count} registers, the last axis of {ref.name} has {extent}"
    elif divisor(ref.index[-1], {}) % count:
        yield f"{which} takes {count} registers, but {ref.name} is not indexed in such steps"


def _pressure(view: View) -> Iterator[Fault]:
    needed = register_estimate(view.kernel)
    limit = view.target.registers_per_thread
    if needed > limit:
        yield Fault(
            f"fragments occupy {needed} registers of a thread at once",
            expected=f"at most {limit} on {view.target.name}",
            mend="use smaller tiles or more warps",
        )


MEMORY: tuple[Rule, ...] = (
    Rule(
        "gathers",
        "an index that is data is i32 or i64, alone on its axis of an in tensor",
        _gathers,
    ),
    Rule("vectors", "a vector is a power of two of elements along an axis of stride 1", _vectors),
    Rule("alignment", "a vector starts at a multiple of its width", _alignment),
    Rule("async-copy", "an asynchronous copy has a width that the target has", _async_copies),
    Rule(
        "matrix-load", "a matrix load or store is spelled as the instruction works", _matrix_loads
    ),
    Rule("atoms", "a matrix instruction exists, on fragments of its types and sizes", _atoms),
    Rule("registers", "fragments in use at once fit a thread's registers", _pressure),
)
