"""What the rules of the kernel IR look at, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tilewright.base.dtypes import DType
from tilewright.base.spans import Span
from tilewright.kernel.ops import Kernel, Registers, Shared, Statement, Tensor
from tilewright.kernel.scopes import Scope, scoped
from tilewright.kernel.text import types_of
from tilewright.target.model import Target


@dataclass(frozen=True, slots=True)
class Fault:
    """One breach of a rule. `expected` is the rule's own sentence where left empty."""

    message: str
    statement: Statement | None = None
    span: Span | None = None
    expected: str = ""
    mend: str = ""


@dataclass(frozen=True)
class View:
    """A kernel with what many rules need of it, found once."""

    kernel: Kernel
    target: Target

    @cached_property
    def statements(self) -> tuple[tuple[Scope, Statement], ...]:
        return tuple(scoped(self.kernel))

    @cached_property
    def types(self) -> dict[str, DType]:
        """Of fragments and scalars."""
        return types_of(self.kernel)

    @cached_property
    def fragments(self) -> dict[str, Registers]:
        return {fragment.name: fragment for fragment in self.kernel.registers}

    @cached_property
    def memory(self) -> dict[str, Tensor | Shared]:
        return {m.name: m for m in (*self.kernel.tensors, *self.kernel.shared)}

    @cached_property
    def multiples(self) -> dict[str, int]:
        """Known divisors of symbols."""
        return {symbol.name: symbol.multiple for symbol in self.kernel.symbols}


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule: the sentence that a legal kernel satisfies, and the search for breaches.

    A rule may rely on those before it in the table.
    """

    name: str
    states: str
    find: Callable[[View], Iterator[Fault]]
