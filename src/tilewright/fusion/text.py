"""Definitions as Python: a function that, given a new definition, builds the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dtypes import DType
from tilewright.fusion.grouped import LISTS
from tilewright.fusion.records import (
    Argument,
    OperationRecord,
    OutputRecord,
    Record,
    Ref,
    ScalarRecord,
    SizeRef,
    TensorRecord,
)  # fmt: skip
from tilewright.poly.expr import Div, Expr, Mod, Term


def print_definition(records: Sequence[Record]) -> str:
    """``def fusion(fd)``, one line a record."""
    names = {
        r.result: ("S" if isinstance(r, ScalarRecord) else "T") + str(r.result)
        for r in records
        if isinstance(r, TensorRecord | ScalarRecord)
    }
    for record in records:
        if isinstance(record, OperationRecord):
            names |= {r: f"T{r}" for r in record.results}
    lines = [f"    {_line(r, names)}" for r in records] or ["    pass"]
    return "\n".join(["def fusion(fd: FusionDefinition) -> None:", *lines]) + "\n"


def _line(record: Record, names: dict[int, str]) -> str:
    match record:
        case TensorRecord():
            order = record.stride_order
            more = "" if order is None else f", stride_order={list(order)}"
            return (
                f"{names[record.result]} = fd.define_tensor(shape={list(record.shape)}, "
                f"contiguity={list(record.contiguity)}, dtype={_dtype(record.dtype)}{more})"
            )
        case ScalarRecord():
            value = "None" if record.value is None else _argument(record.value, names)
            return (
                f"{names[record.result]} = fd.define_scalar({value}, dtype={_dtype(record.dtype)})"
            )
        case OperationRecord():
            made = ", ".join(names[r] for r in record.results)
            if record.name in LISTS and any(isinstance(a, tuple) for _, a in record.arguments):
                made = f"[{made}]"
            given = ", ".join(f"{n}={_argument(a, names)}" for n, a in record.arguments)
            return f"{made} = fd.ops.{record.name}({given})"
        case OutputRecord():
            parts = [names[record.value]]
            if record.alias is not None:
                parts.append(f"alias_input={names[record.alias]}")
            if record.stride_order is not None:
                parts.append(f"stride_order={list(record.stride_order)}")
            return f"fd.add_output({', '.join(parts)})"


def _dtype(dtype: DType) -> str:
    from tilewright.fusion.definition import dtype_text

    return dtype_text(dtype)


def _argument(argument: Argument, names: dict[int, str]) -> str:
    match argument:
        case Ref(number):
            return names[number]
        case SizeRef(expr):
            return _size(expr, names)
        case tuple():
            return "[" + ", ".join(_argument(a, names) for a in argument) + "]"
        case DType():
            return _dtype(argument)
        case float() if not math.isfinite(argument):
            return f'float("{argument}")'
        case _:
            return repr(argument)


def _size(expr: Expr, names: dict[int, str]) -> str:
    parts = [
        _term(term, names) + (f" * {factor}" if factor != 1 else "") for term, factor in expr.terms
    ]
    if expr.const or not parts:
        parts.append(str(expr.const))
    return " + ".join(parts)


def _term(term: Term, names: dict[int, str]) -> str:
    match term:
        case str():
            number, dim = term[1:].split("_")
            return f"{names[int(number)]}.size({dim})"
        case Div(num, den):
            return f"(({_size(num, names)}) // {den})"
        case Mod(num, den):
            return f"(({_size(num, names)}) % {den})"
