"""Constants as bits: rounding a number to an element type, to nearest even."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from tilewright.base.dtypes import DType


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A sign bit, `exponent` bits with `bias`, and `mantissa` bits.

    `top` is the largest finite number. `saturates`: larger numbers become it, infinity too.
    `nan` is the bit pattern of a NaN; `infinity` that of +inf, None where there is none.
    """

    exponent: int
    mantissa: int
    bias: int
    top: float
    nan: int
    infinity: int | None
    saturates: bool = False
    unsigned_zero: bool = False


FORMATS: dict[str, FloatFormat] = {
    "f64": FloatFormat(11, 52, 1023, math.ldexp(2 - 2.0**-52, 1023), 0x7FF8 << 48, 0x7FF << 52),
    "f32": FloatFormat(8, 23, 127, (2 - 2.0**-23) * 2.0**127, 0x7FC00000, 0x7F800000),
    "f16": FloatFormat(5, 10, 15, 65504.0, 0x7E00, 0x7C00),
    "bf16": FloatFormat(8, 7, 127, (2 - 2.0**-7) * 2.0**127, 0x7FC0, 0x7F80),
    "f8e4m3": FloatFormat(4, 3, 7, 448.0, 0x7F, None, saturates=True),
    "f8e5m2": FloatFormat(5, 2, 15, 57344.0, 0x7F, 0x7C, saturates=True),
    "f8e4m3fnuz": FloatFormat(4, 3, 8, 240.0, 0x80, None, saturates=True, unsigned_zero=True),
    "f8e5m2fnuz": FloatFormat(5, 2, 16, 57344.0, 0x80, None, saturates=True, unsigned_zero=True),
}


def round_to(value: float, dtype: DType) -> float:
    """The number of the float type `dtype` nearest to `value`; ties go to the even mantissa."""
    form = FORMATS[dtype.name]
    if math.isnan(value) or value == 0:
        return 0.0 if value == 0 and form.unsigned_zero else value
    if not math.isinf(value):
        _, exponent = math.frexp(value)
        step = max(exponent - 1, 1 - form.bias) - form.mantissa
        # Scaled so that one unit is one step of the mantissa; `round` goes half to even.
        if step > -1074:
            rounded = math.ldexp(round(math.ldexp(value, -step)), step)
            value = math.copysign(rounded, value)
    if abs(value) > form.top:
        value = math.copysign(form.top if form.saturates else math.inf, value)
    return 0.0 if value == 0 and form.unsigned_zero else value


def bits_of(value: float, dtype: DType) -> int:
    """The bit pattern of `value` rounded to the float type `dtype`."""
    form = FORMATS[dtype.name]
    value = round_to(value, dtype)
    if math.isnan(value):
        return form.nan
    sign = int(math.copysign(1, value) < 0) << (form.exponent + form.mantissa)
    if math.isinf(value):
        return sign | (form.infinity or 0)
    if dtype.name == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    if value == 0:
        return sign
    _, exponent = math.frexp(value)
    biased = max(exponent - 1 + form.bias, 1)
    units = int(math.ldexp(abs(value), form.mantissa + form.bias - biased))
    hidden = 1 << form.mantissa
    return sign | (units if units < hidden else (biased << form.mantissa) | (units - hidden))
