"""How many registers a thread needs, estimated from where each fragment is in use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.kernel.ops import Body, Kernel, Loop, Registers, Statement, children
from tilewright.kernel.scopes import read_fragments, written_fragment

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Use:
    """One statement's use of a fragment: its position, the loops around it, inner last."""

    at: int
    reads: bool
    loops: tuple[_Span, ...]


def words(fragment: Registers) -> int:
    """32-bit registers of a fragment, narrow elements packed."""
    return -(-prod(fragment.shape) * fragment.dtype.bytes // 4)


def register_estimate(kernel: Kernel) -> int:
    """The most 32-bit registers that fragments occupy at once. Addresses and scratch add to it.

    A fragment is in use from its first to its last statement, and throughout each loop that
    carries its value: one that also uses it outside, or that reads it before writing it.
    """
    uses: dict[str, list[_Use]] = {}
    for use, statement in _positions(kernel.body, 0, ()):
        read = {ref.name for ref in read_fragments(statement)}
        written = written_fragment(statement)
        names = read if written is None else read | {written.name}
        for name in names:
            uses.setdefault(name, []).append(_Use(use.at, name in read, use.loops))
    spans = [(_live(uses[f.name]), words(f)) for f in kernel.registers if f.name in uses]
    return max(
        (sum(w for (a, b), w in spans if a <= start <= b) for (start, _), _ in spans),
        default=0,
    )


def _positions(body: Body, at: int, loops: tuple[_Span, ...]) -> Iterator[tuple[_Use, Statement]]:
    for statement in body:
        yield _Use(at, reads=False, loops=loops), statement
        inner = children(statement)
        end = at + _size(inner)
        around = (*loops, (at, end)) if isinstance(statement, Loop) else loops
        yield from _positions(inner, at + 1, around)
        at = end + 1


def _size(body: Body) -> int:
    return sum(1 + _size(children(statement)) for statement in body)


def _live(uses: list[_Use]) -> _Span:
    low, high = uses[0].at, uses[-1].at
    for start, end in {loop for use in uses for loop in use.loops}:
        inside = [use for use in uses if (start, end) in use.loops]
        if len(inside) < len(uses) or inside[0].reads:
            low, high = min(low, start), max(high, end)
    return low, high
