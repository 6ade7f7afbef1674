"""Reads the declarations at the head of a kernel's text (see `kernel.text`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from tilewright.base.dtypes import DType
from tilewright.kernel.declared import (
    Declarations,
    Exchange,
    Mode,
    Phases,
    Registers,
    Scalar,
    Shared,
    Swizzle,
    Symbol,
    Tensor,
    TensorMap,
)
from tilewright.poly.expr import Constraint
from tilewright.poly.scan import Line

_Line = TypeVar("_Line", bound=Line)
_MODES = {mode.value: mode for mode in Mode}
_WORDS = {"symbol", "require", "scalar", "shared", "phases", "map", "exchange", "reg", *_MODES}


def parse_declarations(text: str) -> Declarations:
    """What the kernel that `text` spells declares; its body is not looked at.

    KernelTextError names the line and what was expected.
    """
    return read_declared(*read_lines(text, Line))[0]


def read_lines(text: str, kind: type[_Line]) -> tuple[_Line, list[_Line]]:
    """The first line with content, and those that follow."""
    lines = [kind(number, line) for number, line in enumerate(text.split("\n"), 1)]
    lines = [line for line in lines if line.tokens]
    if not lines:
        kind(1, "").fail("a line that starts with 'kernel'")
    return lines[0], lines[1:]


def read_declared(head: Line, rest: Sequence[Line]) -> tuple[Declarations, int]:
    """The declarations, and how many lines of `rest` hold them."""
    head.expect("kernel")
    name, target = head.name(), head.after("target").name()
    warps, lanes = head.after("warps").integer(), head.name()
    if not re.fullmatch(r"x\d+", lanes):
        head.fail("warps and lanes as in 4x32", back=1)
    grid = head.after("grid").expressions()
    cluster = head.optional("cluster", 1)
    head.end()

    found = _Lists()
    count = 0
    while count < len(rest) and rest[count].peek() in _WORDS and rest[count].ahead() != "[":
        found.read(rest[count])
        count += 1
    declared = Declarations(
        name, target, int(lanes[1:]), warps, grid, tuple(found.symbols), tuple(found.tensors),
        tuple(found.scalars), tuple(found.shared), tuple(found.registers),
        tuple(found.contracts), cluster, tuple(found.phases), tuple(found.maps),
        tuple(found.exchanges),
    )  # fmt: skip
    return declared, count


class _Lists:
    """What the lines above the body declare."""

    def __init__(self) -> None:
        self.symbols: list[Symbol] = []
        self.contracts: list[Constraint] = []
        self.tensors: list[Tensor] = []
        self.scalars: list[Scalar] = []
        self.shared: list[Shared] = []
        self.registers: list[Registers] = []
        self.phases: list[Phases] = []
        self.maps: list[TensorMap] = []
        self.exchanges: list[Exchange] = []

    def read(self, line: Line) -> None:
        word = line.name()
        if word == "require":
            self.contracts.extend(line.guard())
        elif word == "symbol":
            name = line.name()
            low = line.after(">=").integer()
            multiple = line.optional("multiple", 1)
            product = line.expressions() if line.accept("product") else ()
            self.symbols.append(Symbol(name, low, multiple, product))
        elif word == "phases":
            self.phases.append(_phases(line, line.name()))
        elif word == "map":
            self.maps.append(_map(line, line.name()))
        else:
            name = line.name()
            dtype = line.after(":").dtype()
            if word == "scalar":
                self.scalars.append(Scalar(name, dtype))
            elif word == "reg":
                self.registers.append(Registers(name, dtype, line.extents(), line.note))
            elif word == "shared":
                self.shared.append(self._shared(line, name, dtype))
            elif word == "exchange":
                self.exchanges.append(Exchange(name, dtype, line.after("count").integer()))
            else:
                shape, strides = line.expressions(), line.after("strides").expressions()
                align, bits = line.after("align").integer(), line.optional("index", 64)
                self.tensors.append(Tensor(name, dtype, shape, strides, _MODES[word], align, bits))
        line.end()

    @staticmethod
    def _shared(line: Line, name: str, dtype: DType) -> Shared:
        shape = line.extents()
        swizzle = None
        if line.accept("swizzle"):
            bits = line.after("(").integer()
            base = line.after(",").integer()
            swizzle = Swizzle(bits, base, line.after(",").integer())
            line.expect(")")
        pitch = line.optional("pitch", 0)
        return Shared(name, dtype, shape, swizzle, pitch, line.after("at").integer())


def _phases(line: Line, name: str) -> Phases:
    count = line.after(":").integer()
    arrivals = line.after("arrivals").integer()
    return Phases(name, count, arrivals, line.after("at").integer())


def _map(line: Line, name: str) -> TensorMap:
    tensor, box = line.after(":").name(), line.after("box").extents()
    swizzle = line.optional("swizzle", 0)
    axes = line.extents() if line.accept("axes") else ()
    return TensorMap(name, tensor, box, swizzle, axes)
