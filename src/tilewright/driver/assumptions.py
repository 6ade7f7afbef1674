"""What a caller states about tensors when compiling, checked against the program."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.diagnostics import CallError, ShapeError
from tilewright.base.spaces import Space
from tilewright.base.spans import here
from tilewright.lang.program import Program
from tilewright.lang.symbols import Size, axis_name
from tilewright.lang.types import MemoryType


def bound_values(bindings: Mapping[Any, Any]) -> dict[str, int | Space]:
    """Bindings by name. CallError where one is neither a whole number nor a memory space."""
    return {_name(symbol): _value(symbol, value) for symbol, value in bindings.items()}


def _name(symbol: object) -> str:
    return symbol if isinstance(symbol, str) else axis_name(symbol, here())


def _value(symbol: object, value: object) -> int | Space:
    if isinstance(value, Space):
        return value
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise CallError(
        f"{symbol} is bound to {value!r}",
        span=here(),
        expected="a whole number, or a memory space",
        mend="leave the symbol out to keep its size open",
    )


def axis_symbols(names: Sequence[Size | str], program: Program) -> frozenset[str]:
    """The axes that stay open. CallError for a name that no tensor has."""
    found = frozenset(_name(n) for n in names)
    for name in sorted(found - set(program.axes())):
        raise CallError(
            f"{name} is named in dynamic, but no tensor of {program.name} has that axis",
            span=program.span,
            expected=f"axes among {', '.join(program.axes())}",
            mend="remove it, or name an axis",
        )
    return found


def check_sizes(program: Program, sizes: Mapping[str, int]) -> None:
    """ShapeError for an axis that is bound to less than one element."""
    for axis in program.axes():
        if sizes.get(axis, 1) < 1:
            memory = next(m for m in program.memories.values() if axis in m.axes)
            raise ShapeError(
                f"the axis {axis} is bound to {sizes[axis]} elements",
                span=memory.span,
                expected="at least one element",
                mend=f"bind {axis} to its size, or leave it open",
            )


def check_layouts(
    program: Program,
    strides: Mapping[str, tuple[int, ...]],
    alignments: Mapping[str, int],
    multiples: Mapping[str, int],
) -> None:
    """CallError or ShapeError where strides, alignments or divisors cannot be of this program."""
    for name, steps in strides.items():
        memory = _memory(program, name, "strides")
        if len(steps) != len(memory.axes):
            raise ShapeError(
                f"{name} is given {len(steps)} strides",
                span=memory.span,
                expected=f"{len(memory.axes)}: one for each of {', '.join(memory.axes)}",
                mend="give the strides in elements, in the order of the axes",
            )
    for name, align in alignments.items():
        memory = _memory(program, name, "alignments")
        if align < memory.dtype.bytes or align & (align - 1):
            raise CallError(
                f"{name} is said to be aligned to {align} bytes",
                span=memory.span,
                expected=f"a power of two from {memory.dtype.bytes}, the size of its elements",
                mend="leave the alignment out: 16 bytes are taken, and checked at each call",
            )
    for name, multiple in multiples.items():
        if multiple < 1:
            raise CallError(
                f"{name} is said to be a multiple of {multiple}",
                span=program.span,
                expected="a positive divisor",
                mend="leave it out where nothing is known",
            )


def _memory(program: Program, name: str, what: str) -> MemoryType:
    found = program.memories.get(name)
    if found is None:
        raise CallError(
            f"{what} are given for {name}, which is no tensor of {program.name}",
            span=program.span,
            expected=f"tensors among {', '.join(program.memories)}",
            mend="use the names of the kernel's arguments",
        )
    return found
