"""What Python asks of numbers and sequences, refused with the tile language's own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tilewright.base.diagnostics import TraceError
from tilewright.base.spans import here


def _refusal(message: str, expected: str, mend: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        span = here()
        raise TraceError(message, span=span, expected=expected, mend=mend)

    return refuse


class OpaqueValue:
    """A value stands for elements that exist only when the kernel runs."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `scalar * value` to the value

    __bool__ = _refusal(
        "the truth of a value is not known while tracing",
        "tw.select for a choice per element, tw.conditional for a guarded part",
        "replace the Python `if`, `and`, `or`, `not`, `min` or `max` on a value",
    )
    __float__ = __int__ = __index__ = _refusal(
        "a value is not a number while tracing",
        "the functions of tilewright on values",
        "use tw.exp and its like, not those of math",
    )
    __iter__ = __len__ = __getitem__ = _refusal(
        "a value cannot be indexed, unpacked or looped over",
        "operations on the whole value; each thread has its own elements",
        "use tw.iterate for a loop over an axis, tw.self_index for coordinates",
    )


class OpaqueMemory:
    """A memory is read before its elements are computed with."""

    __slots__ = ()
    __array_ufunc__ = None


_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow and rand "
    "or ror xor rxor lshift rshift neg invert abs lt le gt ge bool float int index iter len getitem"
)
for _name in _OPERATORS.split():
    setattr(
        OpaqueMemory,
        f"__{_name}__",
        _refusal(
            "a memory is used like a value",
            "a value: what tw.read gives",
            "read the memory first: tw.read(x)",
        ),
    )
