"""Reads the text form of tile graphs (see `graph.text`)."""

from __future__ import annotations

from tilewright.base.spaces import Space
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Memory, Op, ScalarArgument, Type
from tilewright.poly.expr import Expr
from tilewright.poly.scan import Line

_SPACES = {space.value: space for space in Space}
_DECLARATIONS = ("axis", "buffer", "scalar", *_SPACES)


def parse_graph(text: str) -> Graph:
    """The graph that `text` spells. KernelTextError names the line and what was expected."""
    lines = [Line(number, line) for number, line in enumerate(text.split("\n"), 1)]
    lines = [line for line in lines if line.tokens]
    if not lines:
        Line(1, "").fail("a line that starts with 'graph'")
    head, *rest = lines
    head.expect("graph")
    name = head.name()
    head.end()
    axes: dict[str, Expr] = {}
    memories: list[Memory] = []
    scalars: list[ScalarArgument] = []
    count = 0
    while count < len(rest) and rest[count].peek() in _DECLARATIONS:
        _declare(rest[count], axes, memories, scalars)
        count += 1
    body, stop = _body(rest, count, head.indent)
    if stop < len(rest):
        rest[stop].fail("an operation indented below the graph")
    return Graph(name, axes, tuple(memories), tuple(scalars), body)


def _declare(
    line: Line, axes: dict[str, Expr], memories: list[Memory], scalars: list[ScalarArgument]
) -> None:
    word, name = line.name(), line.name()
    if word == "axis":
        axes[name] = line.expr() if line.accept(":") else Expr.of(name)
    elif word == "scalar":
        scalars.append(ScalarArgument(name, line.after(":").dtype()))
    else:
        kind = _type(line.after(":"))
        space = _SPACES.get(word, Space.SHARED)
        if word == "buffer" and line.accept("in"):
            space = _SPACES[line.name()]
        strides = line.expressions() if line.accept("strides") else None
        memories.append(Memory(name, kind, space, strides, allocated=word == "buffer"))
    line.end()


def _type(line: Line) -> Type:
    dtype = line.dtype()
    line.expect("[")
    axes: list[str] = []
    while not line.accept("]"):
        if axes:
            line.expect(",")
        axes.append(line.name())
    return Type(tuple(axes), dtype)


def _body(lines: list[Line], at: int, outer: int) -> tuple[tuple[Op, ...], int]:
    """The operations from `at` on that are indented more than `outer`, and where they end."""
    found: list[Op] = []
    indent = lines[at].indent if at < len(lines) else 0
    while at < len(lines) and lines[at].indent > outer and lines[at].peek() != "yield":
        line = lines[at]
        if line.indent != indent:
            line.fail(f"an indentation of {indent}")
        number = _number(line)
        kind = _type(line.after(":"))
        word = line.after("=").name()
        if word in ("iterate", "when"):
            op, at = _structured(word, number, kind, lines, at)
            found.append(op)
        else:
            found.append(_simple(word, number, kind, line))
            at += 1
        line.end()
    return tuple(found), at


def _structured(word: str, number: int, kind: Type, lines: list[Line], at: int) -> tuple[Op, int]:
    line = lines[at]
    if word == "when":
        condition = _number(line)
        line.expect(":")
        body, at = _body(lines, at + 1, line.indent)
        return ops.Conditional(id=number, type=kind, condition=condition, body=body), at
    axis = line.name()
    inits = _numbers(line) if line.accept("from") else ()
    line.expect(":")
    body, at = _body(lines, at + 1, line.indent)
    if at == len(lines) or lines[at].peek() != "yield":
        line.fail("a loop that ends in 'yield'", back=1)
    end = lines[at].after("yield")
    results = _numbers(end) if end.peek() else ()
    end.end()
    params = sorted((op for op in body if isinstance(op, ops.Param)), key=lambda p: p.position)
    return ops.Iterate(
        id=number, type=kind, axis=axis, inits=inits, params=tuple(p.id for p in params),
        body=body, results=results,
    ), at + 1  # fmt: skip


def _simple(word: str, number: int, kind: Type, line: Line) -> Op:
    match word:
        case "constant":
            return ops.Constant(id=number, type=kind, value=line.literal())
        case "scalar":
            return ops.ScalarRead(id=number, type=kind, name=line.name())
        case "index":
            return ops.Index(id=number, type=kind)
        case "extent":
            return ops.Extent(id=number, type=kind, axis=line.name())
        case "read":
            memory, width = line.name(), _width(line)
            return ops.ReadOp(id=number, type=kind, memory=memory, elements_per_thread=width)
        case "write":
            value, memory = _number(line), line.after("to").name()
            return ops.WriteOp(
                id=number, type=kind, memory=memory, value=value, elements_per_thread=_width(line)
            )
        case "apply":
            name = line.name()
            return ops.Elementwise(id=number, type=kind, name=name, args=_numbers(line))
        case "cast":
            return ops.CastOp(id=number, type=kind, value=_number(line))
        case "view":
            return ops.View(id=number, type=kind, value=_number(line))
        case "reshape":
            return ops.Reshape(id=number, type=kind, value=_number(line))
        case "remap":
            value, coordinates = _number(line), line.after("at").expressions()
            fill = line.literal() if line.accept("else") else None
            return ops.Remap(id=number, type=kind, value=value, coordinates=coordinates, fill=fill)
        case "mma":
            return _contract(number, kind, line)
        case "reduce":
            name, value, axis = line.name(), _number(line), line.after("over").name()
            init = _number(line) if line.accept("from") else None
            return ops.ReduceOp(id=number, type=kind, name=name, value=value, axis=axis, init=init)
        case _:
            return _later(word, number, kind, line)


def _later(word: str, number: int, kind: Type, line: Line) -> Op:
    """Operations at data, and the values that loops carry."""
    match word:
        case "gather":
            value, axis = _number(line), line.after("along").name()
            index = _number(line.after("by"))
            return ops.Gather(id=number, type=kind, value=value, axis=axis, index=index)
        case "scan":
            name, value, axis = line.name(), _number(line), line.after("along").name()
            exclusive, reverse = line.accept("exclusive"), line.accept("reverse")
            return ops.Scan(
                id=number, type=kind, name=name, value=value, axis=axis, exclusive=exclusive,
                reverse=reverse,
            )  # fmt: skip
        case "param":
            return ops.Param(id=number, type=kind, position=line.integer())
        case "result":
            position, iterate = line.integer(), _number(line.after("of"))
            return ops.Result(id=number, type=kind, iterate=iterate, position=position)
        case _:
            return line.fail("an operation", back=1)


def _contract(number: int, kind: Type, line: Line) -> ops.Contract:
    lhs, rhs = _number(line), _number(line.after(","))
    acc = _number(line.after("into"))
    axes = [line.after("over").name()]
    while line.accept(","):
        axes.append(line.name())
    atom = line.name() if line.accept("by") else None
    return ops.Contract(
        id=number, type=kind, lhs=lhs, rhs=rhs, acc=acc, atom=atom, contracted=tuple(axes)
    )


def _width(line: Line) -> int | None:
    return line.integer() if line.accept("width") else None


def _number(line: Line) -> int:
    return line.after("%").integer()


def _numbers(line: Line) -> tuple[int, ...]:
    found = [_number(line)]
    while line.accept(","):
        found.append(_number(line))
    return tuple(found)
