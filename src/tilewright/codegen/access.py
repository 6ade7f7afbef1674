"""Addresses and accesses: references as C lvalues, and loads, stores and copies of vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tilewright.base.diagnostics import AtomError, LegalityError
from tilewright.base.dtypes import DType, Kind
from tilewright.codegen.dialect import Copy, Dialect, assignment, call, choice
from tilewright.codegen.encode import bits_of
from tilewright.codegen.index import IndexPrinter, bare, counting, running_part, swizzled
from tilewright.codegen.names import PIECE, Names
from tilewright.codegen.values import stored_constant
from tilewright.kernel.async_ops import TileRef
from tilewright.kernel.ops import (
    AsyncCopy,
    Kernel,
    Load,
    MatrixShape,
    MemRef,
    Over,
    RegRef,
    Shared,
    Store,
    Tensor,
)  # fmt: skip
from tilewright.poly.expr import Div, Expr, Mod
from tilewright.target.model import MatrixLoad, Target


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vector as `count` accesses of `elements` elements, `bytes` each."""

    count: int
    elements: int
    bytes: int

    @property
    def over(self) -> Over:
        return ((PIECE, self.count),)


@dataclass(frozen=True, slots=True)
class AccessPrinter:
    """Prints accesses in the scope of `index`."""

    kernel: Kernel
    target: Target
    dialect: Dialect
    names: Names
    index: IndexPrinter

    # ------------------------------------------------------------ references

    def register(self, ref: RegRef) -> str:
        """The C lvalue of an element of a fragment."""
        subscripts = "".join(f"[{self.index.text(i)}]" for i in ref.index)
        return self.names.registers[ref.name] + subscripts

    def memory(self, ref: MemRef) -> str:
        """The C lvalue of an element of a tensor or of a shared buffer."""
        buffer = self.kernel.shared_buffer(ref.name)
        if buffer is not None:
            return self._shared_element(buffer, ref.index)
        offset = self._global_offset(self._tensor(ref.name), ref.index)
        return f"{self.names.memory[ref.name]}[{offset}]"

    def unswizzled(self, ref: MemRef | TileRef) -> str:
        """The C pointer to where an element of a shared buffer lies without its swizzle.

        The copy engine and the matrix unit swizzle addresses themselves.
        """
        buffer = self._shared(ref)
        offset = self.index.text(self._linear(buffer, ref.index))
        name = self.names.memory[ref.name]
        return name if offset == "0" else f"{name} + {offset}"

    def in_units(self, ref: TileRef, size: int) -> tuple[str, str]:
        """A shared buffer's C pointer, and how many times `size` bytes after it a tile begins,
        without its swizzle. The tile begins at a multiple."""
        buffer = self._shared(ref)
        linear = self._linear(buffer, ref.index)
        return self.names.memory[ref.name], self.index.text(linear // (size // buffer.dtype.bytes))

    def _shared(self, ref: MemRef | TileRef) -> Shared:
        buffer = self.kernel.shared_buffer(ref.name)
        if buffer is None:
            raise LegalityError(f"{ref.name} is not a shared buffer of {self.kernel.name}")
        return buffer

    def _linear(self, buffer: Shared, index: tuple[Expr, ...]) -> Expr:
        """The offset of an element of a shared buffer, in elements and without the swizzle."""
        linear = Expr(())
        for coordinate, stride in zip(index, buffer.strides, strict=True):
            linear = linear + self.index.scope.resolve(coordinate) * stride
        return linear

    def _tensor(self, name: str) -> Tensor:
        tensor = self.kernel.tensor(name)
        if tensor is None:
            raise LegalityError(
                f"{name} is neither a tensor nor a shared buffer of {self.kernel.name}",
                expected="a declared memory",
            )
        return tensor

    def _shared_element(self, buffer: Shared, index: tuple[Expr, ...]) -> str:
        linear = self._linear(buffer, index)
        swizzle = buffer.swizzle if buffer.swizzle and buffer.swizzle.bits else None
        running = running_part(linear, swizzle, self.index.scope)
        rest = linear - running
        offset = swizzled(rest, swizzle, self.index) if swizzle else self.index.text(rest)
        name = self.names.memory[buffer.name]
        if running.terms:
            name = f"({name} + {self.index.text(running)})"
        return f"{name}[{offset}]"

    def _global_offset(self, tensor: Tensor, index: tuple[Expr, ...]) -> str:
        """The linear offset. Coordinates are below 2**31; their products need not be."""
        if all(stride.is_const for stride in tensor.strides):
            linear = Expr(())
            for coordinate, stride in zip(index, tensor.strides, strict=True):
                linear = linear + self.index.scope.resolve(coordinate) * stride.const
            high = self.index.scope.range_of(linear).high
            if tensor.index_bits == 32 or (high is not None and high < 1 << 31):
                return self.index.text(linear)
        wide = "(long long)" if tensor.index_bits == 64 else ""
        parts: list[str] = []
        resolved = (self.index.scope.resolve(coordinate) for coordinate in index)
        for coordinate, stride in zip(resolved, tensor.strides, strict=True):
            if coordinate == Expr(()) or stride == Expr(()):
                continue
            if stride == Expr((), 1):
                parts.append(self.index.operand(coordinate))
            else:
                text = self.index.operand(coordinate)
                parts.append(f"{wide}{text} * {self.index.operand(stride)}")
        return bare(parts[0]) if len(parts) == 1 else " + ".join(parts) or "0"

    # ------------------------------------------------------------ vectors

    def pieces(self, ref: MemRef, axis: int, width: int, *others: tuple[MemRef, int]) -> Pieces:
        """How to access `width` elements along `axis` of every given memory in few accesses."""
        dtype = self.dtype(ref)
        size = dtype.bytes
        for bytes_ in sorted(self.dialect.vectors, reverse=True):
            fits = bytes_ > size and width * size % bytes_ == 0
            if fits and all(self._reaches(r, a, bytes_) for r, a in ((ref, axis), *others)):
                return Pieces(width * size // bytes_, bytes_ // size, bytes_)
        return Pieces(width, 1, size)

    def dtype(self, ref: MemRef) -> DType:
        buffer = self.kernel.shared_buffer(ref.name)
        return buffer.dtype if buffer is not None else self._tensor(ref.name).dtype

    def _reaches(self, ref: MemRef, axis: int, size: int) -> bool:
        """Whether an access of `size` bytes along `axis` is contiguous and aligned.

        The index itself is aligned by the contract of vector statements.
        """
        buffer = self.kernel.shared_buffer(ref.name)
        if buffer is None:
            tensor = self._tensor(ref.name)
            return tensor.strides[axis] == Expr((), 1) and tensor.align % size == 0
        last = axis in (-1, len(buffer.shape) - 1)
        rows = buffer.pitch * buffer.dtype.bytes % size == 0 and buffer.offset % size == 0
        chunk = (1 << buffer.swizzle.base) * buffer.dtype.bytes if buffer.swizzle else size
        return last and rows and chunk % size == 0

    def load(self, load: Load, pieces: Pieces) -> list[str]:
        """One access of a load, as numbered by the digit `PIECE`."""
        dtype = self.dtype(load.src)
        printer, source, inside = self._gathered(load)
        src = printer.memory(_moved(source, load.axis, pieces))
        dst = self.register(_advanced(load.dst, pieces))
        fill = stored_constant(load.fill, dtype)
        if pieces.elements > 1:
            kind = self.dialect.vectors[pieces.bytes]
            src, dst = f"*(const {kind}*)&{src}", f"*({kind}*)&{dst}"
            fill = vector_constant(load.fill, dtype, kind, pieces.bytes)
        guard = " && ".join(c for c in (self.index.guard(load.guard), inside) if c)
        return choice(dst, guard, src, fill) if guard else assignment(dst, src)

    def _gathered(self, load: Load) -> tuple[AccessPrinter, MemRef, str]:
        """A printer that knows the indices that are data, the memory at them, and their check."""
        texts = {f"gathered {c.axis}": self.register(c.ref) for c in load.indirect}
        if not texts:
            return self, load.src, ""
        index, scope, checks = list(load.src.index), self.index.scope, list[str]()
        shape = self._tensor(load.src.name).shape
        for coordinate, (name, text) in zip(load.indirect, texts.items(), strict=True):
            extent = shape[coordinate.axis]
            index[coordinate.axis] = Expr.of(name)
            scope = scope.with_variable(name, counting(extent))
            checks.append(f"0 <= {text} && {text} < {self.index.text(extent)}")

        def spell(variable: str) -> str:
            return texts.get(variable) or self.index.name(variable)

        named = replace(self.index, scope=scope, name=spell)
        source = MemRef(load.src.name, tuple(index))
        return replace(self, index=named), source, " && ".join(checks)

    def store(self, store: Store, pieces: Pieces) -> list[str]:
        dst = self.memory(_moved(store.dst, store.axis, pieces))
        src = self.register(_advanced(store.src, pieces))
        if pieces.elements > 1:
            kind = self.dialect.vectors[pieces.bytes]
            src, dst = f"*(const {kind}*)&{src}", f"*({kind}*)&{dst}"
        return assignment(dst, src, self.index.guard(store.guard))

    def async_copy(self, copy: AsyncCopy, pieces: Pieces) -> list[str]:
        dst = self.memory(_moved(copy.dst, copy.dst_axis, pieces))
        src = self.memory(_moved(copy.src, copy.src_axis, pieces))
        guard = self.index.guard(copy.guard)
        return self.dialect.async_copy(Copy(pieces.bytes, f"&{dst}", f"&{src}", guard))

    # ------------------------------------------------------------ matrix loads

    def matrix_move(self, move: Load | Store, shape: MatrixShape) -> list[str]:
        """One warp-wide load or store. Lane ``8 * t + r`` has the address of row r of tile t."""
        atom = find_matrix_row(self.target, move, shape)
        memory, fragment = (move.src, move.dst) if isinstance(move, Load) else (move.dst, move.src)
        extents = dict(move.over)
        lane = Expr.of("lane")
        rows: dict[str, Expr | int | str] = {shape.column: 0}
        below = 8
        for tile in reversed(shape.tiles):
            rows[tile] = _digit(lane, below, extents[tile], self.kernel.warp_size)
            below *= extents[tile]
        index = list(memory.index)
        rows[shape.row] = 0 if atom.transposed else Expr(((Mod(lane, 8), 1),))
        index = [i.substitute(rows) for i in index]
        if atom.transposed:  # the vector runs along the memory's rows, two to a column digit
            index[move.axis] = index[move.axis] + Expr(((Mod(lane, 8), 1),))
        address = self.memory(MemRef(memory.name, tuple(index)))
        words: list[str] = []
        for values in product(*(range(extents[tile]) for tile in shape.tiles)):
            chosen: dict[str, Expr | int | str] = dict(zip(shape.tiles, values, strict=True))
            place = tuple(i.substitute(chosen) for i in fragment.index)
            words.append(f"*(unsigned*)&{self.register(RegRef(fragment.name, place))}")
        if isinstance(move, Store):
            name, _ = self.dialect.matrix_store_declaration(atom)
            return call(name, f"&{address}", *words)
        name, _ = self.dialect.matrix_load_declaration(atom)
        return call(name, *words, f"&{address}")


def find_matrix_row(target: Target, load: Load | Store, shape: MatrixShape) -> MatrixLoad:
    """The instruction that a load or store names; an error where either does not fit it."""
    rows = target.matrix_loads if isinstance(load, Load) else target.matrix_stores
    row = next((r for r in rows if r.name == shape.atom), None)
    what = "load" if isinstance(load, Load) else "store"
    if row is None:
        raise AtomError(
            f"{target.name} has no matrix {what} {shape.atom}",
            span=load.span,
            expected=f"one of {', '.join(r.name for r in rows) or 'none'}",
            mend=f"use a plain {what}",
        )
    tiles = 1
    for name, extent in load.over:
        tiles *= extent if name in shape.tiles else 1
    if tiles != row.tiles or load.width != 2 or load.guard:
        raise LegalityError(
            f"{row.name} {what}s {row.tiles} tiles of two elements a lane with no guard; "
            f"this {what} has {tiles} tiles of {load.width}",
            span=load.span,
            expected="tile digits whose extents multiply to the instruction's tiles",
        )
    return row


def _digit(lane: Expr, below: int, extent: int, lanes: int) -> Expr:
    value = Expr(((Div(lane, below), 1),))
    return value if below * extent >= lanes else Expr(((Mod(value, extent), 1),))


def _moved(ref: MemRef, axis: int, pieces: Pieces) -> MemRef:
    if not ref.index:
        return ref  # a tensor without axes has one element
    index = list(ref.index)
    index[axis] = index[axis] + Expr.of(PIECE) * pieces.elements
    return MemRef(ref.name, tuple(index))


def _advanced(ref: RegRef, pieces: Pieces) -> RegRef:
    step = Expr.of(PIECE) * pieces.elements
    return RegRef(ref.name, (*ref.index[:-1], ref.index[-1] + step))


def vector_constant(value: float | int | bool, dtype: DType, kind: str, size: int) -> str:
    """A vector of `size` bytes whose elements are all `value`, as C."""
    bits = bits_of(float(value), dtype) if dtype.kind is Kind.FLOAT else int(value)
    bits &= (1 << dtype.bits) - 1
    data = bits.to_bytes(dtype.bytes, "little") * (size // dtype.bytes)
    if not any(data):
        return f"{kind}{{}}"
    step = min(size, 4)
    words = [
        int.from_bytes(data[i : i + step], "little", signed=True) for i in range(0, size, step)
    ]
    texts = ["-2147483647 - 1" if w == -(1 << 31) else str(w) for w in words]
    return f"{kind}{{{', '.join(texts)}}}"
