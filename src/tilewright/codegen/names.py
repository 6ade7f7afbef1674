"""C identifiers for the names of a kernel: legal, unique, and as close to the source as can be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.kernel.async_ops import (
    BulkLoad,
    BulkStore,
    Collect,
    Deposit,
    RemoteStore,
    WarpgroupMma,
)
from tilewright.kernel.ops import (
    Assign,
    AsyncCopy,
    DataIndex,
    Decode,
    Kernel,
    Load,
    Loop,
    Mma,
    Reduce,
    Statement,
    Store,
    walk,
)

COUNTERS = ("block", "thread", "warp", "lane")
PIECE = "tw_piece"  # the printer's own digit: it counts the accesses of one vector

_KEYWORDS = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
    const const_cast constexpr continue decltype default delete do double dynamic_cast else enum
    explicit export extern false float for friend goto if inline int long mutable namespace new
    noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using
    virtual void volatile wchar_t while xor xor_eq half main""".split()
)


@dataclass(frozen=True, slots=True)
class Names:
    """`variables`: digits, counters, loop variables, symbols. The others: objects by their kind."""

    kernel: str
    variables: Mapping[str, str]
    memory: Mapping[str, str]
    registers: Mapping[str, str]
    scalars: Mapping[str, str]


def assign_names(kernel: Kernel, reserved: Iterable[str]) -> Names:
    """Names for everything that `kernel` mentions; none of them is in `reserved`."""
    taken = set(reserved) | _KEYWORDS
    fresh = _Allocator(taken)
    name = fresh.take(kernel.name)
    memory = {t.name: fresh.take(t.name) for t in kernel.tensors}
    variables = {counter: fresh.take(counter) for counter in COUNTERS} | {PIECE: PIECE}
    for variable in _variables(kernel):
        if variable not in variables:
            variables[variable] = fresh.take(variable)
    scalars = {s.name: fresh.take(s.name) for s in kernel.scalars}
    shared = (*kernel.shared, *kernel.phases, *kernel.maps, *kernel.exchanges)
    memory |= {s.name: fresh.take(s.name) for s in shared}
    registers = {r.name: fresh.take(r.name) for r in kernel.registers}
    return Names(name, variables, memory, registers, scalars)


class _Allocator:
    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def take(self, wish: str) -> str:
        stem = re.sub(r"\W", "_", wish, flags=re.ASCII)
        if not stem or stem[0].isdigit() or stem.startswith(("__", "tw_")):
            stem = "v_" + stem
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


def _variables(kernel: Kernel) -> Iterator[str]:
    for symbol in kernel.symbols:
        yield symbol.name
    for statement in walk(kernel.body):
        yield from _bound(statement)


def _bound(statement: Statement) -> Iterator[str]:
    """The variables that a statement introduces."""
    match statement:
        case Decode(digits=digits):
            yield from (name for name, _ in digits)
        case Loop(var=var) | DataIndex(var=var):
            yield var
        case BulkLoad() | BulkStore() | RemoteStore() | WarpgroupMma() | Deposit() | Collect():
            yield from (name for name, _ in statement.over)
        case Assign() | Reduce() | Load() | Store() | AsyncCopy() | Mma():
            yield from (name for name, _ in statement.over)
            if isinstance(statement, Reduce):
                yield from (name for name, _ in statement.along)
        case _:
            return
