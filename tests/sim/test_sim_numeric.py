"""Casts and elementwise operations against exact arithmetic."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from tilewright.base.dtypes import (
    ALL_DTYPES,
    DType,
    bf16,
    boolean,
    f8e4m3,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
)
from tilewright.codegen.sim.numeric import NUMPY, constant, convert, poison
from tilewright.codegen.sim.operations import FUNCTIONS, apply
from tilewright.kernel.values import OPERATIONS


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Infinities and NaN are results here, as `simulate` has them."""
    with np.errstate(all="ignore"):
        yield


# exponent bits, mantissa bits, bias, and the finite codes of the positive half
FORMATS = {
    f8e4m3: (4, 3, 7, 0x7F),
    f8e5m2: (5, 2, 15, 0x7C),
    f8e4m3fnuz: (4, 3, 8, 0x80),
    f8e5m2fnuz: (5, 2, 16, 0x80),
    f16: (5, 10, 15, 0x7C00),
    bf16: (8, 7, 127, 0x7F80),
    f32: (8, 23, 127, 0x7F800000),
}


def decode(dtype: DType, code: int) -> Fraction:
    """The value of a finite positive code, by the format's definition."""
    _, mantissa_bits, bias, _ = FORMATS[dtype]
    exponent, mantissa = divmod(code, 1 << mantissa_bits)
    scale = Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)
    return scale * (mantissa + ((1 << mantissa_bits) if exponent else 0))


def nearest(dtype: DType, value: Fraction) -> int:
    """The code nearest to a positive value, ties to even; the first code past the end is inf."""
    low, high = 0, FORMATS[dtype][3]
    while high - low > 1:
        middle = (low + high) // 2
        if decode(dtype, middle) <= value:
            low = middle
        else:
            high = middle
    below, above = value - decode(dtype, low), decode(dtype, low + 1) - value
    if below == above:
        return low + low % 2
    return low if below < above else low + 1


def expected_code(dtype: DType, value: float | int) -> int | None:
    """The bits of `value` rounded once to `dtype`; None for NaN."""
    bits, end = dtype.bits, FORMATS[dtype][3]
    if isinstance(value, float) and math.isnan(value):
        return None
    negative = value < 0 or (value == 0 and math.copysign(1, value) < 0)
    infinite = isinstance(value, float) and math.isinf(value)
    code = end if infinite else nearest(dtype, abs(Fraction(value)))
    if bits == 8:
        code = min(code, end - 1)
        if code == 0 and dtype in (f8e4m3fnuz, f8e5m2fnuz):
            negative = False
    return code | (negative << (bits - 1))


def code_of(array: np.ndarray) -> int:
    return int(array.view(f"u{array.dtype.itemsize}"))


NARROW = (f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_half_rounds_to_fp8_once(dtype: DType) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    got = convert(halves, dtype)
    for half, value in zip(halves[::7].astype(np.float64), got[::7], strict=True):
        want = expected_code(dtype, float(half))
        if want is None:
            assert np.isnan(np.float32(value))
        else:
            assert code_of(value) == want, half


def double_rounding_cases(dtype: DType) -> list[float]:
    """Values whose rounding by way of f32 would be wrong, and both neighbours of each tie."""
    cases: list[float] = []
    for code in (1, 2, 3, FORMATS[dtype][3] // 2, FORMATS[dtype][3] // 2 + 1):
        tie = float((decode(dtype, code) + decode(dtype, code + 1)) / 2)
        for value in (tie, math.nextafter(tie, 0), math.nextafter(tie, math.inf)):
            cases += [value, -value]
    return cases


@pytest.mark.parametrize("dtype", [f16, bf16, f32, *NARROW], ids=str)
def test_f64_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    random = rng.standard_normal(200) * 2.0 ** rng.integers(-12, 17, 200)
    specials = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, -1e-300, 65520.0, 448.0, 464.0]
    for value in [*double_rounding_cases(dtype), *specials, *random.tolist()]:
        got, want = convert(np.array(value), dtype), expected_code(dtype, value)
        if want is None:
            assert np.isnan(np.float32(got))
        else:
            assert code_of(got) == want, value


@pytest.mark.parametrize("dtype", [f16, bf16, f32, *NARROW], ids=str)
def test_integers_round_once(dtype: DType) -> None:
    base = (1 << 62) + (1 << 54)  # a bf16 tie is one step of 2**54 above 2**62
    values = [0, 1, -1, 127, 2049, -2049, 65519, 65520, (1 << 24) + 1, (1 << 53) + 1]
    values += [base, base + 1, base - 1, -base - 1, (1 << 63) - 1, -(1 << 63), (1 << 31) + 129]
    for value in values:
        got = convert(np.array(value, np.int64), dtype)
        assert code_of(got) == expected_code(dtype, value), value


@pytest.mark.parametrize("dtype", [i8, i16, i32, i64], ids=str)
@pytest.mark.parametrize("source", [f32, f64, f16, bf16], ids=str)
def test_floats_truncate_and_saturate(dtype: DType, source: DType) -> None:
    low, high = -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    for value in (0.0, -0.9, 1.5, -1.5, 127.9, -128.9, 3e4, -3e4, 2.0**31, -(2.0**63), 1e30):
        typed = convert(np.array(value), source)
        exact = float(typed.astype(np.float64))
        want = high if exact == math.inf else low if exact == -math.inf else math.trunc(exact)
        assert int(convert(typed, dtype)) == min(max(want, low), high), value
    assert int(convert(convert(np.array(math.nan), source), dtype)) == 0


def test_integers_wrap_and_bools_convert() -> None:
    assert convert(np.array([300, -129], np.int32), i8).tolist() == [44, 127]
    assert convert(np.array([1 << 40], np.int64), i32).tolist() == [0]
    assert convert(np.array([0.0, -0.0, math.nan, 0.25], np.float16), boolean).tolist() == [
        False, False, True, True,
    ]  # fmt: skip
    assert convert(np.array([True, False]), f16).tolist() == [1.0, 0.0]
    assert int(constant(-1, i64)) == -1
    assert int(constant(200, i8)) == -56
    assert float(constant(1 / 3, f32)) == np.float32(1 / 3)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_poison_is_nan_or_odd(dtype: DType) -> None:
    value = poison(dtype).view(NUMPY[dtype])
    if dtype.is_float:
        assert np.isnan(value.astype(np.float64))
    else:
        assert value != 0


# ---------------------------------------------------------------- operations


def test_the_table_is_complete() -> None:
    assert FUNCTIONS.keys() == OPERATIONS.keys()


def rounded(value: float) -> float:
    """To f32."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


FLOAT_BINARY: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": lambda a, b: math.floor(rounded(a / b)),
    "mod": lambda a, b: a - b * math.floor(a / b),
    "pow": lambda a, b: abs(a) ** b,
    "max": max,
    "min": min,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
FLOAT_UNARY: dict[str, Callable[[float], float]] = {
    "neg": operator.neg,
    "abs": abs,
    "reciprocal": lambda a: 1 / a,
    "exp": math.exp,
    "exp2": lambda a: 2.0**a,
    "log": lambda a: math.log(abs(a)),
    "log2": lambda a: math.log2(abs(a)),
    "sqrt": lambda a: math.sqrt(abs(a)),
    "rsqrt": lambda a: 1 / math.sqrt(abs(a)),
    "tanh": math.tanh,
    "sin": math.sin,
    "cos": math.cos,
    "erf": math.erf,
    "one_plus_erf": lambda a: math.erfc(-a),
    "gelu": lambda a: a * math.erfc(-a * math.sqrt(0.5)) / 2,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": lambda a: float(round(a)),
}
POSITIVE = {"log", "log2", "sqrt", "rsqrt", "pow"}
SAMPLES = (-7.5, -2.5, -1.0, -0.625, 0.375, 0.5, 1.0, 1.5, 2.5, 3.0, 6.25)


def tolerance(dtype: DType, want: float) -> float:
    ulp = {f64: 2.0**-52, f32: 2.0**-23, f16: 2.0**-11, bf16: 2.0**-8}[dtype]
    return 3 * ulp * max(abs(want), 2.0**-10)


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16], ids=str)
@pytest.mark.parametrize("name", [*FLOAT_BINARY, *FLOAT_UNARY])
def test_float_operations(name: str, dtype: DType) -> None:
    arity = OPERATIONS[name].arity
    result = boolean if OPERATIONS[name].gives_bool else dtype
    for a in SAMPLES:
        first = abs(a) if name in POSITIVE else a
        for b in SAMPLES if arity == 2 else (0.0,):
            args = (first, b)[:arity]
            table = FLOAT_BINARY if arity == 2 else FLOAT_UNARY
            want = float(table[name](*args))  # type: ignore[operator]
            arrays = tuple(convert(np.array(x), dtype) for x in args)
            got = float(apply(name, arrays, (dtype,) * arity, result).astype(np.float64))
            if not math.isfinite(got):
                assert abs(want) > 60000
                continue
            assert abs(got - want) <= tolerance(dtype, want), (args, got, want)


def wrap(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


INTEGER: dict[str, Callable[..., int | bool]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda a, b: int(Fraction(a, b)),
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": lambda a, b: a << (b & 7),
    "shr": lambda a, b: a >> (b & 7),
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "select": lambda c, a, b: a if c else b,
    "neg": operator.neg,
    "not": lambda a: not a,
    "abs": abs,
}


def test_every_integer_row_is_tested() -> None:
    assert INTEGER.keys() == {row.name for row in OPERATIONS.values() if row.c_int}
    floats = FLOAT_BINARY.keys() | FLOAT_UNARY.keys() | {"select"}
    assert floats == {row.name for row in OPERATIONS.values() if row.c}


@pytest.mark.parametrize("dtype", [i8, i16, i32, i64], ids=str)
@pytest.mark.parametrize("name", INTEGER)
def test_integer_operations(name: str, dtype: DType) -> None:
    row = OPERATIONS[name]
    least, most = -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    samples = (least, least + 1, -7, -1, 1, 2, 5, most)
    result = boolean if row.gives_bool else dtype
    for a in samples:
        for b in samples:
            if name == "select":
                args: tuple[int, ...] = (a > 0, a, b)
                types: tuple[DType, ...] = (boolean, dtype, dtype)
            elif name in ("shl", "shr"):
                args, types = (a, b & 7), (dtype, dtype)
            else:
                args, types = (a, b)[: row.arity], (dtype,) * row.arity
            arrays = tuple(np.array(x, NUMPY[t]) for x, t in zip(args, types, strict=True))
            got = apply(name, arrays, types, result)
            want = INTEGER[name](*args)
            assert got.item() == (want if row.gives_bool else wrap(want, dtype.bits)), args


def test_nan_propagates_through_extrema() -> None:
    nan, one = np.array(math.nan, np.float32), np.array(1.0, np.float32)
    for name in ("max", "min"):
        for pair in ((nan, one), (one, nan)):
            assert math.isnan(float(apply(name, pair, (f32, f32), f32)))


def test_narrow_arithmetic_rounds_once() -> None:
    """3 * (1 + 2**-10) needs 12 bits: rounded to f16 at the end, not between."""
    a = np.array(1 + 2.0**-10, np.float16)
    got = apply("mul", (a, np.array(3, np.float16)), (f16, f16), f16)
    assert code_of(got) == expected_code(f16, 3 * (1 + 2.0**-10))
    big = apply("mul", (np.array(300.0, np.float16),) * 2, (f16, f16), f32)
    assert float(big) == 90000.0  # past the end of f16, but the result is f32
    sums = apply("add", (constant(400.0, f8e4m3), constant(400.0, f8e4m3)), (f8e4m3,) * 2, f8e4m3)
    assert float(sums.astype(np.float32)) == 448.0


def test_bools() -> None:
    true, false = np.array(True), np.array(False)
    assert apply("and", (true, false), (boolean, boolean), boolean).item() is False
    assert apply("xor", (true, false), (boolean, boolean), boolean).item() is True
    assert apply("not", (true,), (boolean,), boolean).item() is False
