"""What the C-like printer asks of a dialect of C++."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tilewright.base.dtypes import DType
from tilewright.kernel.async_ops import AsyncStatement
from tilewright.kernel.ops import Kernel
from tilewright.target.model import MatrixLoad, MmaAtom

if TYPE_CHECKING:
    from tilewright.codegen.access import AccessPrinter

# Texts of types that both dialects spell alike. Narrow floats are stored as their bits.
STORED = {
    "f64": "double",
    "f32": "float",
    "i64": "long long",
    "i32": "int",
    "i16": "short",
    "i8": "signed char",
    "bool": "bool",
}


def stored_type(dtype: DType) -> str:
    """The C type of an element in memory and in fragments."""
    return STORED.get(dtype.name, f"tw_{dtype.name}")


def call(name: str, *arguments: str) -> list[str]:
    """A call statement, on one line where it is short."""
    line = f"{name}({', '.join(arguments)});"
    if len(line) <= 90:
        return [line]
    *first, last = arguments
    return [f"{name}(", *(f"    {a}," for a in first), f"    {last});"]


def choice(target: str, guard: str, value: str, other: str) -> list[str]:
    """``target = guard ? value : other;``, on as many lines as it needs."""
    line = f"{target} = {guard} ? {value} : {other};"
    if len(line) <= 90:
        return [line]
    return [f"{target} =", f"    {guard}", f"        ? {value}", f"        : {other};"]


def assignment(target: str, value: str, guard: str = "") -> list[str]:
    """``if (guard) target = value;``, on as many lines as it needs."""
    line = f"{target} = {value};"
    lines = [line] if len(line) <= 90 else [f"{target} =", f"    {value};"]
    if not guard:
        return lines
    if len(lines) == 1 and len(guard) + len(line) <= 84:
        return [f"if ({guard}) {line}"]
    return [f"if ({guard}) {{", *(f"  {line}" for line in lines), "}"]


@dataclass(frozen=True, slots=True)
class Copy:
    """One asynchronous copy of `bytes`; `guard` is C text, empty where it always holds."""

    bytes: int
    dst: str
    src: str
    guard: str


def plain_copy(copy: Copy, kind: str) -> list[str]:
    """A copy through a register of C type `kind`: complete at once for the thread."""
    source = f"*(const {kind}*){copy.src}"
    target = f"*({kind}*){copy.dst}"
    if copy.guard:
        return choice(target, copy.guard, source, f"{kind}{{}}")
    return assignment(target, source)


class Dialect(Protocol):
    """A dialect's texts. Pointers are C expressions; statements come back as lines.

    `prelude` maps the name of a declaration to its text, in an order in which each may use
    those before it; the printer emits those whose names occur.
    """

    @property
    def prelude(self) -> Mapping[str, str]: ...

    @property
    def counters(self) -> Mapping[str, str]: ...

    def warp(self, quotient: str, kernel: Kernel, /) -> str:
        """The warp of a thread; `quotient` is the thread over the threads of a warp."""
        ...

    @property
    def vectors(self) -> Mapping[int, str]:
        """Bytes -> the C type of one memory access of that width."""
        ...

    @property
    def dtypes(self) -> frozenset[str]:
        """The element types that exist on the target."""
        ...

    def lacks(self, operation: str, dtype: DType, /) -> bool:
        """Whether an elementwise operation does not exist for `dtype` here."""
        ...

    def opening(self) -> list[str]:
        """Lines before the prelude."""
        ...

    def signature(self, name: str, kernel: Kernel) -> str:
        """The function's head, up to its parameter list."""
        ...

    def shared(self, size: int, /) -> str:
        """The declaration of `tw_shared`, of `size` bytes."""
        ...

    def barrier(self) -> str: ...

    def async_copy(self, copy: Copy, /) -> list[str]: ...

    def async_commit(self) -> list[str]: ...

    def async_wait(self, pending: int, /) -> list[str]: ...

    def lane_xor(self, value: str, dtype: DType, mask: int, /) -> str:
        """The stored value in another lane, as a stored value."""
        ...

    def lane_read(self, value: str, dtype: DType, lane: str, /) -> str: ...

    def mma_declaration(self, atom: MmaAtom) -> tuple[str, str]:
        """Name and text of ``void name(d*, const a*, const b*)`` over stored elements."""
        ...

    def asynchronous(self, statement: AsyncStatement, access: AccessPrinter, /) -> list[str]:
        """One instance of a statement for the copy engine, the matrix unit or the roles."""
        ...

    def map_parameter(self, name: str, /) -> str:
        """The parameter that a tensor map is passed as."""
        ...

    def table_parameter(self, kind: str, name: str, /) -> str:
        """The parameter that a table of problems is passed as, by value."""
        ...

    def matrix_store_declaration(self, store: MatrixLoad) -> tuple[str, str]:
        """Name and text of ``void name(void* shared, unsigned r0, ..)``."""
        ...

    def matrix_load_declaration(self, load: MatrixLoad) -> tuple[str, str]:
        """Name and text of ``void name(unsigned& r0, .., const void* shared)``."""
        ...
