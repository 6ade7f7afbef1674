"""Rules about element types and values."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.dtypes import DType, Kind, boolean, f64
from tilewright.kernel.fault import Fault, Rule, View
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCopy,
    Cast,
    Const,
    DataIndex,
    Holds,
    IndexValue,
    LaneRead,
    LaneXor,
    Load,
    Read,
    Reduce,
    ScalarValue,
    Store,
    Value,
    When,
)
from tilewright.kernel.ranges import interval
from tilewright.kernel.scopes import values_in
from tilewright.kernel.text import show_value
from tilewright.kernel.values import OPERATIONS, Operation

REDUCTIONS = ("add", "mul", "max", "min")


def _values(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        for value in values_in(statement):
            message = _value_fault(value, view)
            if message:
                yield Fault(f"{show_value(value, view.types)}: {message}", statement)


def _value_fault(value: Value, view: View) -> str | None:
    match value:
        case Const(number, dtype):
            return None if _spells(number, dtype) else f"{number!r} is no {dtype}"
        case Read(ref, dtype) | LaneXor(ref, _, dtype) | LaneRead(ref, _, dtype):
            return _declared(dtype, view.types[ref.name])
        case ScalarValue(name, dtype):
            return _declared(dtype, view.types[name])
        case IndexValue(_, dtype):
            return None if dtype.kind is Kind.INT else f"an index is an integer, not {dtype}"
        case Holds(_, dtype):
            return None if dtype == boolean else f"a guard is a bool, not {dtype}"
        case Cast(inner, dtype):
            if dtype == boolean and inner.dtype != boolean:
                return "no conversion gives bool: compare with 0"
            return None
        case Apply():
            return _apply_fault(value)


def _declared(dtype: DType, declared: DType) -> str | None:
    return None if dtype == declared else f"read as {dtype}, declared {declared}"


def _spells(number: float | bool, dtype: DType) -> bool:
    match dtype.kind:
        case Kind.BOOL:
            return isinstance(number, bool)
        case Kind.INT:
            reach = 1 << (dtype.bits - 1)
            whole = isinstance(number, int) and not isinstance(number, bool)
            return whole and -reach <= number < reach
        case Kind.FLOAT:
            return not isinstance(number, bool)


def _apply_fault(value: Apply) -> str | None:
    row = OPERATIONS.get(value.op)
    if row is None:
        return f"there is no operation {value.op}"
    if len(value.args) != row.arity:
        return f"{value.op} takes {row.arity} operands, not {len(value.args)}"
    types = [arg.dtype for arg in value.args]
    if value.op == "select":
        if types[0] != boolean:
            return f"the condition is {types[0]}, not bool"
        types = types[1:]
    if len(set(types)) != 1:
        return f"operands of types {' and '.join(str(t) for t in types)}"
    if not _exists(row, types[0]):
        return f"{value.op} does not exist for {types[0]}"
    result = boolean if row.gives_bool else types[0]
    if value.dtype != result:
        return f"gives {result}, not {value.dtype}"
    return None


def _exists(row: Operation, dtype: DType) -> bool:
    if not dtype.is_float:
        return bool(row.c_int)
    return bool(row.c64 or row.c) if dtype == f64 else bool(row.c)


def _moves(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        match statement:
            case Assign() | Reduce():
                to, source = view.types[statement.dst.name], statement.value.dtype
            case When():
                to, source = boolean, statement.condition.dtype
            case Load():
                to = view.types[statement.dst.name]
                source = view.memory[statement.src.name].dtype
                # The default, 0, fills any type.
                if not (_spells(statement.fill, to) or statement.fill == 0):
                    yield Fault(f"the fill {statement.fill!r} is no {to}", statement)
            case Store():
                to = view.memory[statement.dst.name].dtype
                source = view.types[statement.src.name]
            case AsyncCopy():
                to = view.memory[statement.dst.name].dtype
                source = view.memory[statement.src.name].dtype
            case DataIndex(ref=ref):
                if view.types[ref.name].kind is not Kind.INT:
                    yield Fault(f"{view.types[ref.name]} where an integer is needed", statement)
                continue
            case _:
                continue
        if to != source:
            yield Fault(f"{source} where {to} is needed", statement, mend="cast it")


def _reductions(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        scan = statement.scans if isinstance(statement, Assign) else None
        if scan is not None and scan.op not in REDUCTIONS:
            found = f"{scan.op} does not scan"
            yield Fault(found, statement, expected=f"one of {', '.join(REDUCTIONS)}")
        if not isinstance(statement, Reduce):
            continue
        if statement.op not in REDUCTIONS:
            found = f"{statement.op} is not a reduction"
            yield Fault(found, statement, expected=f"one of {', '.join(REDUCTIONS)}")
        kept = {name for index in statement.dst.index for name in index.variables()}
        for name, _ in statement.along:
            if name in kept:
                yield Fault(
                    f"{name} is reduced along, but {statement.dst.name} keeps it", statement
                )


def _shuffles(view: View) -> Iterator[Fault]:
    lanes = view.kernel.warp_size
    for scope, statement in view.statements:
        for value in values_in(statement):
            match value:
                case LaneXor(_, mask):
                    if not 0 < mask < lanes:
                        yield Fault(f"the mask is {mask}", statement, expected=f"1..{lanes - 1}")
                case LaneRead(_, lane):
                    found = interval(lane, scope.ranges)
                    if not found.within(0, lanes - 1):
                        text = f"the lane is {found.low}..{found.high}"
                        yield Fault(text, statement, expected=f"0..{lanes - 1}")
                case _:
                    pass


VALUES: tuple[Rule, ...] = (
    Rule("values", "operands have the types that their operation takes", _values),
    Rule("moves", "what is stored has the type of where it goes", _moves),
    Rule("reduce", "a reduction is add, mul, max or min, along digits that it drops", _reductions),
    Rule("shuffle", "a lane exchange stays within its warp", _shuffles),
)
