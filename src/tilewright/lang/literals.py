"""Python numbers, and those of other libraries, as numbers of an element type."""

from __future__ import annotations

from numbers import Integral, Real

from tilewright.base.diagnostics import DTypeError
from tilewright.base.dtypes import DType, Kind
from tilewright.base.spans import Span

Number = float | int | bool


def plain_number(value: object) -> Number | None:
    """The plain Python number behind a number of any library; None for what is none."""
    match value:
        case bool():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case _:
            return None


def fitting(value: object, dtype: DType, span: Span | None, said: str = "") -> Number:
    """A number that the element type has; DTypeError for a fraction as an integer and the like.

    `said` is how the message names the value, its text where it is left out.
    """
    number = plain_number(value)
    reach = 1 << (dtype.bits - 1)
    match dtype.kind:
        case Kind.BOOL:
            fits = isinstance(number, bool)
        case Kind.INT:
            fits = type(number) is int and -reach <= number < reach
        case Kind.FLOAT:
            fits = number is not None and not isinstance(number, bool)
    if number is None or not fits:
        raise DTypeError(
            f"{said or repr(value)} is not a number of {dtype.name}",
            span=span,
            expected=_RANGES[dtype.kind].format(-reach, reach - 1),
            mend="give another number, or cast what it meets",
        )
    return number


_RANGES = {
    Kind.BOOL: "True or False",
    Kind.INT: "a whole number from {} to {}",
    Kind.FLOAT: "a number",
}
