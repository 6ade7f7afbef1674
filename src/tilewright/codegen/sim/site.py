"""A statement being executed: its instances, who runs it, and how to name a witness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.diagnostics import TilewrightError
from tilewright.base.spans import Span
from tilewright.codegen.sim.index import Scope, bind
from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.kernel.ops import Over, Statement

VECTOR = "element"  # the axis of a vector access, named so in witnesses


@dataclass(frozen=True, slots=True)
class Crew:
    """The threads of the blocks of one chunk."""

    threads: int
    warp_size: int
    first_block: int
    blocks: int

    @property
    def warps(self) -> int:
        return self.threads // self.warp_size


@dataclass(frozen=True, slots=True)
class Site:
    """`mask` says which threads run the statement, ``[threads | 1, blocks | 1]``; None: all.

    `scope` has the statement's digits bound, each to an axis of `digits`.
    """

    statement: Statement
    crew: Crew
    scope: Scope
    digits: Over
    mask: BoolArray | None

    @staticmethod
    def of(
        statement: Statement,
        crew: Crew,
        scope: Scope,
        mask: BoolArray | None,
        over: Over = (),
        width: int | None = None,
    ) -> Site:
        """`width` adds the axis of a vector access to the right of the digits `over`."""
        if width is None:
            return Site(statement, crew, bind(scope, over) if over else scope, over, mask)
        return Site(statement, crew, bind(scope, over, 1), (*over, (VECTOR, width)), mask)

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(extent for _, extent in self.digits)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.extents, self.crew.threads, self.crew.blocks)

    @property
    def span(self) -> Span | None:
        return getattr(self.statement, "span", None)

    def first(self, bad: BoolArray) -> tuple[int, ...]:
        """The position of the first witness: digits, thread, block of the chunk."""
        full = np.broadcast_to(bad, self.shape)
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(full)), self.shape))

    def pick(self, values: IntArray, position: tuple[int, ...]) -> int:
        return int(np.broadcast_to(values, self.shape)[position])

    def who(self, position: tuple[int, ...]) -> str:
        *digits, thread, block = position
        warp, lane = divmod(thread, self.crew.warp_size)
        parts = [f"block {self.crew.first_block + block}, thread {thread}"]
        parts.append(f"(warp {warp}, lane {lane})")
        named = [
            f"{name} = {value}"
            for (name, extent), value in zip(self.digits, digits, strict=True)
            if extent > 1
        ]
        return "by " + " ".join(parts) + (f", with {', '.join(named)}" if named else "")

    def fault(
        self,
        kind: type[TilewrightError],
        message: str,
        position: tuple[int, ...],
        *,
        expected: str = "",
        mend: str = "",
        notes: tuple[str, ...] = (),
    ) -> TilewrightError:
        """The error for a witness, ready to raise."""
        note = getattr(self.statement, "note", "")
        what = type(self.statement).__name__ + (f" ({note})" if note else "")
        return kind(
            message,
            span=self.span,
            expected=expected,
            mend=mend,
            notes=(self.who(position), *notes, f"statement: {what}"),
        )
