"""Kernel IR as text: `print_kernel` writes it, `parse_kernel` reads it back.

The round trip is exact, except that spans are dropped. A type is written only where it does
not follow from the declarations and the operands, so the text of a legal kernel carries few
types and an illegal type shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.base.dtypes import DType, boolean
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    Cast,
    Const,
    DataIndex,
    Decode,
    Holds,
    If,
    IndexValue,
    Indirect,
    Kernel,
    LaneRead,
    LaneXor,
    Load,
    Loop,
    MatrixShape,
    Mma,
    Read,
    Reduce,
    ScalarValue,
    Scanned,
    Shared,
    Statement,
    Store,
    Tensor,
    Value,
    When,
    children,
)
from tilewright.kernel.parse import parse_kernel
from tilewright.kernel.phrases import (
    show_expr,
    show_guard,
    show_list,
    show_over,
    show_reduces,
    show_ref,
)
from tilewright.kernel.text_async import show_async, show_exchange, show_map, show_phases
from tilewright.kernel.values import INFIX, inferred_dtype

__all__ = [
    "parse_kernel",
    "print_kernel",
    "show_expr",
    "show_guard",
    "show_statement",
    "show_value",
]

Types = Mapping[str, DType]  # of registers and scalars, by name


def print_kernel(kernel: Kernel) -> str:
    """The whole kernel, one statement a line, ending in a newline."""
    return "\n".join((*_declarations(kernel), *_body(kernel.body, types_of(kernel), 1))) + "\n"


def types_of(kernel: Kernel) -> dict[str, DType]:
    """The declared element types of the kernel's fragments and scalars."""
    return {declared.name: declared.dtype for declared in (*kernel.scalars, *kernel.registers)}


def show_statement(statement: Statement, types: Types) -> str:
    """One line for a statement, without the statements in its body."""
    note = getattr(statement, "note", "")
    return _text(statement, types) + _comment(note)


def _body(body: Body, types: Types, depth: int) -> Iterator[str]:
    for statement in body:
        yield "  " * depth + show_statement(statement, types)
        yield from _body(children(statement), types, depth + 1)


def _comment(note: str) -> str:
    return "  // " + note.replace("\\", "\\\\").replace("\n", "\\n") if note else ""


# ---------------------------------------------------------------- declarations


def _declarations(kernel: Kernel) -> Iterator[str]:
    yield (
        f"kernel {kernel.name} target {kernel.target} warps {kernel.warps}x{kernel.warp_size}"
        f" grid {show_list(kernel.grid)}"
        + (f" cluster {kernel.cluster}" if kernel.cluster > 1 else "")
    )
    for symbol in kernel.symbols:
        multiple = f" multiple {symbol.multiple}" if symbol.multiple != 1 else ""
        product = f" product {show_list(symbol.product)}" if symbol.product else ""
        yield f"  symbol {symbol.name} >= {symbol.low}{multiple}{product}"
    for constraint in kernel.contracts:
        yield f"  require {show_guard((constraint,))}"
    for tensor in kernel.tensors:
        yield f"  {_tensor(tensor)}"
    for scalar in kernel.scalars:
        yield f"  scalar {scalar.name}: {scalar.dtype}"
    for buffer in kernel.shared:
        yield f"  {_shared(buffer)}"
    for phases in kernel.phases:
        yield f"  {show_phases(phases)}"
    for tensor_map in kernel.maps:
        yield f"  {show_map(tensor_map)}"
    for exchange in kernel.exchanges:
        yield f"  {show_exchange(exchange)}"
    for fragment in kernel.registers:
        shape = ", ".join(str(extent) for extent in fragment.shape)
        yield f"  reg {fragment.name}: {fragment.dtype}[{shape}]{_comment(fragment.holds)}"


def _tensor(tensor: Tensor) -> str:
    index = f" index {tensor.index_bits}" if tensor.index_bits != 64 else ""
    return (
        f"{tensor.mode.value} {tensor.name}: {tensor.dtype}{show_list(tensor.shape)}"
        f" strides {show_list(tensor.strides)} align {tensor.align}{index}"
    )


def _shared(buffer: Shared) -> str:
    shape = ", ".join(str(extent) for extent in buffer.shape)
    s = buffer.swizzle
    swizzle = "" if s is None else f" swizzle({s.bits}, {s.base}, {s.shift})"
    pitch = f" pitch {buffer.pitch}" if buffer.pitch else ""
    return f"shared {buffer.name}: {buffer.dtype}[{shape}]{swizzle}{pitch} at {buffer.offset}"


# ---------------------------------------------------------------- statements


def _text(statement: Statement, types: Types) -> str:
    match statement:
        case Decode(source, digits):
            places = ", ".join(f"{name}: {show_expr(extent)}" for name, extent in digits)
            return f"decode {show_expr(source)} -> {places}"
        case DataIndex(var, extent, ref):
            return f"data {var} < {show_expr(extent)} = {show_ref(ref)}"
        case Loop():
            word = "unroll" if statement.unroll else "loop"
            return f"{word} {statement.var} < {show_expr(statement.extent)}:"
        case If(guard):
            return f"if {show_guard(guard)}:"
        case When(condition):
            return f"when {show_value(condition, types)}:"
        case AsyncCommit():
            return "async commit"
        case AsyncWait(pending):
            return f"async wait {pending}"
        case Barrier():
            return "barrier"
        case Assign(over, dst, value):
            scans = _scans(statement.scans)
            return f"{show_over(over)}{show_ref(dst)} = {show_value(value, types)}{scans}"
        case Reduce(op, over, along, dst, value):
            digits = show_over(over, along)
            term = show_value(value, types)
            return f"{digits}{show_ref(dst)} {op}= {term}{show_reduces(statement.reduces)}"
        case Mma(over, atom, d, a, b):
            product = f"{show_ref(d)} += {show_ref(a)} * {show_ref(b)}"
            return f"{show_over(over)}mma {atom} {product}{show_reduces(statement.reduces)}"
        case Load() | Store() | AsyncCopy():
            return show_over(statement.over) + _transfer(statement)
        case _:
            return show_async(statement)


def _transfer(statement: Load | Store | AsyncCopy) -> str:
    match statement:
        case Load():
            word, tail = "load", _axis("axis", statement.axis)
        case Store():
            word, tail = "store", _axis("axis", statement.axis)
        case AsyncCopy():
            word = "async copy"
            tail = _axis("dst_axis", statement.dst_axis) + _axis("src_axis", statement.src_axis)
    width = f" {statement.width}" if statement.width != 1 else ""
    guard = f" if {show_guard(statement.guard)}" if statement.guard else ""
    via = fill = ""
    if not isinstance(statement, AsyncCopy) and statement.matrix is not None:
        via = f" via {_matrix(statement.matrix)}"
    if isinstance(statement, Load):
        tail = _indirect(statement.indirect) + tail
        literal = _literal(statement.fill)
        fill = f" else {literal}" if literal != "0" else ""
    moved = f"{show_ref(statement.dst)} = {show_ref(statement.src)}"
    return f"{word}{width}{via} {moved}{tail}{guard}{fill}"


def _indirect(coordinates: tuple[Indirect, ...]) -> str:
    found = ", ".join(f"{c.axis} by {show_ref(c.ref)}" for c in coordinates)
    return f" gather {found}" if found else ""


def _axis(word: str, axis: int) -> str:
    return f" {word} {axis}" if axis != -1 else ""


def _matrix(matrix: MatrixShape) -> str:
    tiles = f", tiles {', '.join(matrix.tiles)}" if matrix.tiles else ""
    return f"{matrix.atom}(row {matrix.row}, column {matrix.column}{tiles})"


def _scans(scan: Scanned | None) -> str:
    if scan is None:
        return ""
    place = f"{scan.axis}[{show_expr(scan.coordinate)}] of {show_expr(scan.extent)}"
    return f" scans {scan.op} {scan.part.value} {place} at {show_list(scan.others)}"


# ---------------------------------------------------------------- values


def show_value(value: Value, types: Types) -> str:
    """A value as text. `types` gives the declared types, which then go without saying."""
    match value:
        case Const(number, dtype):
            return f"{_literal(number)}:{dtype}"
        case IndexValue(expr, dtype):
            return f"index({show_expr(expr)}):{dtype}"
        case Cast(inner, dtype):
            return f"{dtype}({show_value(inner, types)})"
        case Apply():
            return _apply(value, types)
        case Holds(guard):
            text, usual = f"holds({show_guard(guard)})", boolean
        case ScalarValue(name):
            text, usual = name, types.get(name)
        case Read(ref):
            text, usual = show_ref(ref), types.get(ref.name)
        case LaneXor(ref, mask):
            text, usual = f"lane_xor({show_ref(ref)}, {mask})", types.get(ref.name)
        case LaneRead(ref, lane):
            text, usual = f"lane_read({show_ref(ref)}, {show_expr(lane)})", types.get(ref.name)
    return text + _annotation(value.dtype, usual)


def _apply(value: Apply, types: Types) -> str:
    usual = inferred_dtype(value.op, tuple(arg.dtype for arg in value.args))
    if _is_infix(value):
        left, right = (_operand(arg, types) for arg in value.args)
        return f"{left} {INFIX[value.op]} {right}"
    args = ", ".join(show_value(arg, types) for arg in value.args)
    return f"{value.op}({args}){_annotation(value.dtype, usual)}"


def _is_infix(value: Value) -> bool:
    return (
        isinstance(value, Apply)
        and value.op in INFIX
        and len(value.args) == 2
        and value.dtype == inferred_dtype(value.op, tuple(arg.dtype for arg in value.args))
    )


def _operand(value: Value, types: Types) -> str:
    text = show_value(value, types)
    return f"({text})" if _is_infix(value) else text


def _annotation(dtype: DType, usual: DType | None) -> str:
    return "" if dtype == usual else f":{dtype}"


def _literal(number: float | bool) -> str:
    if isinstance(number, bool):
        return "true" if number else "false"
    return str(number) if isinstance(number, int) else repr(float(number))
