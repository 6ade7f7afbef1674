"""Reads the text form of kernel IR (see `kernel.text`)."""

from __future__ import annotations

from dataclasses import fields

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
    Mode,
    Over,
    Part,
    Read,
    Reduce,
    ScalarValue,
    Scanned,
    Statement,
    Store,
    Value,
    When,
)
from tilewright.kernel.parse_async import (
    ASYNC_WORDS,
    read_async,
    read_reduces,
)
from tilewright.kernel.parse_declared import read_declared, read_lines
from tilewright.kernel.scan import DTYPES, Line
from tilewright.kernel.values import INFIX, inferred_dtype
from tilewright.poly.expr import Guard

_SIGNS = {sign: op for op, sign in INFIX.items()}
_PARTS = {part.value: part for part in Part}
_MODES = {mode.value: mode for mode in Mode}


def parse_kernel(text: str) -> Kernel:
    """The kernel that `text` spells. KernelTextError names the line and what was expected.

    Nesting is by indentation. ``//`` starts a note, which stays with its statement.
    """
    head, rest = read_lines(text, Line)
    declared, count = read_declared(head, rest)
    types = {d.name: d.dtype for d in (*declared.scalars, *declared.registers)}
    body, stop = _body(rest, count, head.indent, types)
    if stop < len(rest):
        rest[stop].fail("a statement indented below the kernel")
    return Kernel(**{f.name: getattr(declared, f.name) for f in fields(declared)}, body=body)


# ---------------------------------------------------------------- statements


def _body(lines: list[Line], at: int, outer: int, types: dict[str, DType]) -> tuple[Body, int]:
    """The statements from `at` on that are indented more than `outer`, and where they end."""
    statements: list[Statement] = []
    indent = lines[at].indent if at < len(lines) else 0
    while at < len(lines) and lines[at].indent > outer:
        line = lines[at]
        if line.indent != indent:
            line.fail(f"an indentation of {indent}")
        word = line.peek()
        if word in ("loop", "unroll", "if", "when") and line.ahead() != "[":
            body, at = _body(lines, at + 1, line.indent, types)
            statements.append(_structured(line, body, types))
        else:
            statements.append(_simple(line, types))
            at += 1
        line.end()
    return tuple(statements), at


def _structured(line: Line, body: Body, types: dict[str, DType]) -> Statement:
    word = line.name()
    result: Statement
    if word == "if":
        result = If(line.guard(), body)
    elif word == "when":
        result = When(_value(line, types), body)
    else:
        var = line.name()
        result = Loop(var, line.after("<").expr(), body, unroll=word == "unroll")
    line.expect(":")
    return result


def _simple(line: Line, types: dict[str, DType]) -> Statement:
    over, along = _digits(line, "for"), _digits(line, "along")
    if over or along:
        line.expect(":")
    note = line.note
    if line.ahead() == "[":
        dst = line.regs()
        if line.accept("="):
            return Assign(over, dst, _value(line, types), note=note, scans=_scans(line))
        op = line.name()
        value = _value(line.after("="), types)
        return Reduce(op, over, along, dst, value, read_reduces(line), note=note)
    word = line.name()
    if word == "decode":
        return _decode(line)
    if word == "data":
        var, extent = line.name(), line.after("<").expr()
        return DataIndex(var, extent, line.after("=").regs(), note=note)
    if word == "barrier":
        return Barrier(note)
    if word == "mma":
        atom, d, a, b = line.name(), line.regs(), line.after("+=").regs(), line.after("*").regs()
        return Mma(over, atom, d, a, b, read_reduces(line), note=note)
    if word in ASYNC_WORDS:
        return read_async(line, word, over)
    if word in ("load", "store"):
        return (_load if word == "load" else _store)(line, over)
    if word == "async":
        if line.accept("commit"):
            return AsyncCommit()
        if line.accept("wait"):
            return AsyncWait(line.integer())
        return _copy(line.after("copy"), over)
    return line.fail("a statement", back=1)


def _digits(line: Line, word: str) -> Over:
    if line.peek() != word or line.ahead() == "[":
        return ()
    line.expect(word)
    result = [(line.name(), line.after("<").integer())]
    while line.accept(","):
        result.append((line.name(), line.after("<").integer()))
    return tuple(result)


def _decode(line: Line) -> Decode:
    source = line.expr()
    digits = [(line.after("->").name(), line.after(":").expr())]
    while line.accept(","):
        digits.append((line.name(), line.after(":").expr()))
    return Decode(source, tuple(digits))


def _scans(line: Line) -> Scanned | None:
    if not line.accept("scans"):
        return None
    op, part = line.name(), _PARTS.get(line.peek())
    if part is None:
        line.fail(f"one of {', '.join(_PARTS)}")
    line.at += 1
    axis = line.name()
    coordinate = line.after("[").expr()
    extent = line.after("]").after("of").expr()
    return Scanned(op, part, axis, extent, coordinate, line.after("at").expressions())


def _width(line: Line) -> int:
    return line.integer() if line.peek().isdecimal() else 1


def _guard(line: Line) -> Guard:
    return line.guard() if line.accept("if") else ()


def _load(line: Line, over: Over) -> Load:
    width = _width(line)
    matrix = _matrix(line) if line.peek() == "via" and line.ahead() != "[" else None
    dst, src = line.regs(), line.after("=").memory()
    indirect = _indirect(line)
    axis, guard = line.optional("axis", -1), _guard(line)
    fill = line.literal() if line.accept("else") else 0
    return Load(over, dst, src, width, axis, guard, fill, matrix, note=line.note, indirect=indirect)


def _indirect(line: Line) -> tuple[Indirect, ...]:
    found: list[Indirect] = []
    while line.accept("," if found else "gather"):
        axis = line.integer()
        found.append(Indirect(axis, line.after("by").regs()))
    return tuple(found)


def _matrix(line: Line) -> MatrixShape:
    atom = line.after("via").name()
    row = line.after("(").after("row").name()
    column = line.after(",").after("column").name()
    tiles: list[str] = []
    while line.accept(","):
        if not tiles:
            line.expect("tiles")
        tiles.append(line.name())
    line.expect(")")
    return MatrixShape(atom, row, column, tuple(tiles))


def _store(line: Line, over: Over) -> Store:
    width = _width(line)
    matrix = _matrix(line) if line.peek() == "via" and line.ahead() != "[" else None
    dst, src = line.memory(), line.after("=").regs()
    axis = line.optional("axis", -1)
    return Store(over, dst, src, width, axis, _guard(line), note=line.note, matrix=matrix)


def _copy(line: Line, over: Over) -> AsyncCopy:
    width, dst, src = _width(line), line.memory(), line.after("=").memory()
    dst_axis, src_axis = line.optional("dst_axis", -1), line.optional("src_axis", -1)
    return AsyncCopy(over, dst, src, width, dst_axis, src_axis, _guard(line), note=line.note)


# ---------------------------------------------------------------- values


def _value(line: Line, types: dict[str, DType]) -> Value:
    left = _primary(line, types)
    op = _SIGNS.get(line.peek())
    if op is None:
        return left
    line.at += 1
    args = (left, _primary(line, types))
    dtype = inferred_dtype(op, tuple(arg.dtype for arg in args))
    return Apply(op, args, dtype or left.dtype)


def _primary(line: Line, types: dict[str, DType]) -> Value:
    if line.accept("("):
        inner = _value(line, types)
        line.expect(")")
        return inner
    token, follows = line.peek(), line.ahead()
    if token == "-" or token[:1].isdecimal() or token in ("true", "false", "inf", "nan"):
        number = line.literal()
        return Const(number, line.after(":").dtype())
    if follows == "(":
        return _call(line, types)
    if follows == "[":
        ref = line.regs()
        return Read(ref, _annotation(line, types.get(ref.name)))
    name = line.name()
    return ScalarValue(name, _annotation(line, types.get(name)))


def _call(line: Line, types: dict[str, DType]) -> Value:
    word = line.name()
    line.expect("(")
    if word == "index":
        expr = line.expr()
        return IndexValue(expr, line.after(")").after(":").dtype())
    if word == "holds":
        guard = line.guard()
        return Holds(guard, _annotation(line.after(")"), boolean))
    if word in ("lane_xor", "lane_read"):
        ref = line.regs()
        line.expect(",")
        lane = line.expr() if word == "lane_read" else line.integer()
        dtype = _annotation(line.after(")"), types.get(ref.name))
        if isinstance(lane, int):
            return LaneXor(ref, lane, dtype)
        return LaneRead(ref, lane, dtype)
    args: list[Value] = []
    while not line.accept(")"):
        if args:
            line.expect(",")
        args.append(_value(line, types))
    if word in DTYPES:
        if len(args) != 1:
            line.fail("one value to convert", back=1)
        return Cast(args[0], DTYPES[word])
    usual = inferred_dtype(word, tuple(arg.dtype for arg in args))
    return Apply(word, tuple(args), _annotation(line, usual))


def _annotation(line: Line, usual: DType | None) -> DType:
    """The type after a colon; where none is written, the one that goes without saying."""
    if line.peek() == ":" and line.ahead():
        line.expect(":")
        return line.dtype()
    if usual is None:
        line.fail("a declared name, or ':' and an element type")
    return usual
