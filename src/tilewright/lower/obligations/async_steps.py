"""Statements of a skeleton, with their expressions ready to evaluate for a warp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.base.spans import Span
from tilewright.kernel.async_ops import TileRef
from tilewright.kernel.ops import Statement
from tilewright.lower.obligations.async_footprints import Footprint, Memory, ThreadFootprint
from tilewright.lower.obligations.async_values import Cell, Condition, Env, Value
from tilewright.lower.obligations.registers import Use, span_of


@dataclass(eq=False, slots=True)
class Step:
    """A statement, with its expressions ready to evaluate.

    `values` are those of its own that are asked for by name; `index` and `tiles` give places.
    """

    statement: Statement
    values: dict[str, Cell] = field(default_factory=dict[str, Cell])

    @property
    def span(self) -> Span | None:
        return span_of(self.statement)

    @property
    def title(self) -> str:
        note = getattr(self.statement, "note", "")
        return type(self.statement).__name__ + (f" ({note})" if note else "")


@dataclass(eq=False, slots=True)
class LoopStep(Step):
    var: str = ""
    body: tuple[Step, ...] = ()


@dataclass(eq=False, slots=True)
class IfStep(Step):
    condition: Condition = field(default_factory=lambda: Condition((), 1))
    body: tuple[Step, ...] = ()


@dataclass(eq=False, slots=True)
class DecodeStep(Step):
    """`digits` are the needed ones, each with the product of the extents below it and its own."""

    digits: tuple[tuple[str, tuple[Cell, ...], Cell | None], ...] = ()
    kept: dict[object, Value] = field(default_factory=dict[object, Value])


@dataclass(eq=False, slots=True)
class Registers:
    """A run of registers of a fragment that a statement touches, as bits."""

    use: Use
    cells: tuple[tuple[Cell, ...], ...]
    strides: tuple[int, ...]
    names: tuple[str, ...] = ()
    kept: dict[object, int] = field(default_factory=dict[object, int])

    @property
    def fragment(self) -> str:
        return self.use.ref.name

    def bits(self, env: Env) -> int:
        key = tuple([env[name] for name in self.names])
        found = self.kept.get(key)
        if found is None:
            found = self.kept[key] = self._bits(env)
        return found

    def _bits(self, env: Env) -> int:
        result, run = 0, (1 << self.use.count) - 1
        for index in self.cells:
            at = sum(
                c.number(env, "a register") * s for c, s in zip(index, self.strides, strict=True)
            )
            result |= run << at if at >= 0 else 0
        return result


@dataclass(eq=False, slots=True)
class Touch:
    """An access of shared memory by threads; `whole` where its guard is known for each lane."""

    footprint: ThreadFootprint
    guard: Condition
    whole: bool
    writes: bool


@dataclass(eq=False, slots=True)
class PlainStep(Step):
    """A statement of threads that touches shared memory, or registers of the matrix unit."""

    touches: tuple[Touch, ...] = ()
    registers: tuple[Registers, ...] = ()
    wide: bool = False


@dataclass(eq=False, slots=True)
class BoxStep(Step):
    """A bulk copy: the index of each instance's box in shared memory, and its elements."""

    buffer: str = ""
    boxes: tuple[tuple[Cell, ...], ...] = ()
    elements: int = 0
    size: int = 0  # bytes of one box


@dataclass(eq=False, slots=True)
class RemoteStep(Step):
    """A store of threads to another block; `size` is what each lane stores, in bytes."""

    footprint: ThreadFootprint | None = None
    registers: tuple[Registers, ...] = ()
    size: int = 0


@dataclass(eq=False, slots=True)
class Tile:
    """A matrix operand in shared memory, of each instance."""

    ref: TileRef
    index: tuple[tuple[Cell, ...], ...]
    runs: Mapping[int, int]
    names: tuple[str, ...] = ()
    kept: dict[object, Footprint] = field(default_factory=dict[object, Footprint])

    def footprint(self, memory: Memory, env: Env) -> Footprint:
        """What the instances of the statement read."""
        key = tuple([env[name] for name in self.names])
        found = self.kept.get(key)
        if found is None:
            corners = tuple(
                tuple([c.number(env, "where an operand lies") for c in index])
                for index in self.index
            )
            found = memory.tiles(self.ref.name, corners, self.runs, self.ref.panel)
            self.kept[key] = found
        return found


@dataclass(eq=False, slots=True)
class MatrixStep(Step):
    tiles: tuple[Tile, ...] = ()
    registers: tuple[Registers, ...] = ()


# By the identities of reads that share turns out, then of loads: the load's counter, and the turn
# of the read.
Taken = Mapping[int, Mapping[int, tuple[str, Cell]]]


def cells_of(step: Step) -> Iterator[Cell]:
    """Every expression of the step but those of guards."""
    yield from step.values.values()
    match step:
        case BoxStep():
            for index in step.boxes:
                yield from index
        case MatrixStep():
            for tile in step.tiles:
                for index in tile.index:
                    yield from index
        case PlainStep():
            for touch in step.touches:
                yield from touch.footprint.cells
        case RemoteStep(footprint=ThreadFootprint() as footprint):
            yield from footprint.cells
        case _:
            pass
    if isinstance(step, MatrixStep | PlainStep | RemoteStep):
        for registers in step.registers:
            for index in registers.cells:
                yield from index
