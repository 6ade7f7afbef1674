"""Elementwise operations: what each means in rows of `kernel.values`."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.diagnostics import DTypeError, UnsupportedError
from tilewright.base.dtypes import DType, Kind, boolean, i32
from tilewright.fusion import functions
from tilewright.fusion.emit import Emitter, Operand, Value, operand_type
from tilewright.fusion.functions import select
from tilewright.fusion.promotion import Number, promote, promote_float, working

Expander = Callable[..., object]
Table = dict[str, Expander]


def meet(e: Emitter, *operands: Operand, floats: bool = False) -> tuple[DType, list[Value]]:
    """The promoted type of the result, and the operands in the type to compute in.

    A number beside narrow floats is not rounded to them: torch computes such operations in f32.
    """
    types = [operand_type(o) for o in operands]
    dtype = (promote_float if floats else promote)(types, e.span)
    wide = working(dtype) if any(t.weak for t in types) else dtype
    return dtype, [e.operand(o, wide) for o in operands]


def _binary(name: str) -> Expander:
    def expand(e: Emitter, a: Operand, b: Operand) -> Value:
        dtype, (x, y) = meet(e, a, b)
        return e.cast(e.map(name, x, y), dtype)

    return expand


def _comparison(name: str) -> Expander:
    def expand(e: Emitter, a: Operand, b: Operand) -> Value:
        dtype = promote([operand_type(a), operand_type(b)], e.span)
        return e.map(name, e.operand(a, dtype), e.operand(b, dtype))

    return expand


def _float_unary(compose: Callable[[Emitter, Value], Value]) -> Expander:
    """An operation of floats, composed in the working type and rounded once."""

    def expand(e: Emitter, x: Operand) -> Value:
        dtype = promote_float([operand_type(x)], e.span)
        return e.cast(compose(e, e.operand(x, working(dtype))), dtype)

    return expand


def _row(name: str) -> Expander:
    return _float_unary(lambda e, x: e.map(name, x))


def _rounding(name: str) -> Expander:
    """Integers are whole already."""

    def expand(e: Emitter, x: Value) -> Value:
        return e.map(name, x) if x.dtype.is_float else x

    return expand


def is_nan(e: Emitter, x: Value) -> Value:
    return e.map("ne", x, x)


def truth(e: Emitter, x: Operand) -> Value:
    """Whether an element is not zero."""
    value = e.operand(x, operand_type(x).dtype)
    return e.cast(value, boolean)


def sub(e: Emitter, a: Operand, b: Operand) -> Value:
    dtype, (x, y) = meet(e, a, b)
    if dtype == boolean:
        raise DTypeError(
            "`sub` is not defined on bool",
            span=e.span,
            expected="numbers",
            mend="use bitwise_xor",
        )
    return e.cast(e.map("sub", x, y), dtype)


def div(e: Emitter, a: Operand, b: Operand) -> Value:
    """True division: integers give f32."""
    dtype, (x, y) = meet(e, a, b, floats=True)
    return e.cast(e.map("div", x, y), dtype)


def floordiv(e: Emitter, a: Operand, b: Operand) -> Value:
    dtype, (x, y) = meet(e, a, b)
    if not dtype.is_float:
        return e.map("floordiv", x, y)
    x, y = e.wide(x), e.wide(y)
    # As torch: from the exact remainder, so that the quotient is whole before it is rounded.
    one, zero = e.number(x, 1), e.number(x, 0)
    rest = _fmod(e, x, y)
    turned = e.map("ne", e.map("lt", y, zero), e.map("lt", rest, zero))
    below = e.map("and", e.map("ne", rest, zero), turned)
    ratio = e.map("div", e.map("sub", x, rest), y)
    ratio = select(e, below, e.map("sub", ratio, one), ratio)
    low = e.map("floor", ratio)
    up = e.map("gt", e.map("sub", ratio, low), e.number(x, 0.5))
    near = select(e, up, e.map("add", low, one), low)
    quotient = e.map("div", x, y)
    whole = select(e, e.map("eq", ratio, zero), e.map("mul", quotient, zero), near)
    return e.cast(select(e, e.map("eq", y, zero), quotient, whole), dtype)


def _fmod(e: Emitter, x: Value, y: Value) -> Value:
    return functions.signed(e, x, e.map("mod", e.map("abs", x), e.map("abs", y)))


def trunc_div(e: Emitter, a: Operand, b: Operand) -> Value:
    """Division towards zero."""
    dtype, (x, y) = meet(e, a, b)
    if not dtype.is_float:
        return e.map("div", x, y)
    return e.cast(functions.trunc(e, e.map("div", e.wide(x), e.wide(y))), dtype)


def remainder(e: Emitter, a: Operand, b: Operand) -> Value:
    """With the sign of the divisor."""
    dtype, (x, y) = meet(e, a, b)
    return e.cast(e.map("mod", x, y), dtype)


def fmod(e: Emitter, a: Operand, b: Operand) -> Value:
    """With the sign of the dividend."""
    dtype, (x, y) = meet(e, a, b)
    return e.cast(_fmod(e, x, y), dtype)


def pow_(e: Emitter, a: Operand, b: Operand) -> Value:
    dtype, (x, y) = meet(e, a, b)
    if dtype.is_float:
        return e.cast(e.map("pow", x, y), dtype)
    if isinstance(b, Value) or b < 0:
        raise UnsupportedError(
            "`pow` of integers with a tensor as exponent, or a negative one",
            span=e.span,
            expected="a number of at least zero as the exponent",
            mend="cast the base to a float type",
        )
    result, power, left = e.number(x, 1), x, int(b)
    while left:
        if left & 1:
            result = e.map("mul", result, power)
        left >>= 1
        power = e.map("mul", power, power) if left else power
    return e.expand(result, x.shape)


def gelu(e: Emitter, x: Operand, approximate: str = "none") -> Value:
    dtype = promote_float([operand_type(x)], e.span)
    v = e.operand(x, working(dtype))
    half = e.map("mul", v, e.number(v, 0.5))
    if approximate == "tanh":
        cube = e.map("mul", e.map("mul", v, v), v)
        inner = e.map("add", v, e.map("mul", e.number(v, 0.044715), cube))
        bend = e.map("tanh", e.map("mul", e.number(v, math.sqrt(2 / math.pi)), inner))
    else:
        bend = e.map("erf", e.map("mul", v, e.number(v, math.sqrt(0.5))))
    return e.cast(e.map("mul", half, e.map("add", bend, e.number(v, 1))), dtype)


def softplus(e: Emitter, x: Operand) -> Value:
    dtype = promote_float([operand_type(x)], e.span)
    v = e.operand(x, working(dtype))
    small = functions.log1p(e, e.map("exp", v))
    return e.cast(select(e, e.map("gt", v, e.number(v, 20)), v, small), dtype)


def leaky_relu(e: Emitter, x: Value, negative_slope: float = 0.01) -> Value:
    v = e.wide(x)
    scaled = e.map("mul", v, e.number(v, negative_slope))
    return e.cast(select(e, e.map("gt", v, e.number(v, 0)), v, scaled), x.dtype)


def neg(e: Emitter, x: Value) -> Value:
    if x.dtype == boolean:
        raise DTypeError("`neg` is not defined on bool", span=e.span, expected="numbers",
                         mend="use logical_not")  # fmt: skip
    return e.map("neg", x)


def abs_(e: Emitter, x: Value) -> Value:
    return x if x.dtype == boolean else e.map("abs", x)


def sign(e: Emitter, x: Value) -> Value:
    if x.dtype == boolean:
        return x
    zero = e.number(x, 0)
    above, below = e.map("gt", x, zero), e.map("lt", x, zero)
    unsigned = select(e, above, e.number(x, 1), zero)
    return select(e, below, e.number(x, -1), unsigned)


def relu(e: Emitter, x: Value) -> Value:
    return e.map("max", x, e.number(x, 0))


def trunc(e: Emitter, x: Value) -> Value:
    return functions.trunc(e, x) if x.dtype.is_float else x


def isnan(e: Emitter, x: Value) -> Value:
    return is_nan(e, x)


def isinf(e: Emitter, x: Value) -> Value:
    if not x.dtype.is_float:
        return e.constant(False, boolean, x.shape)
    return e.map("eq", e.map("abs", x), e.number(x, math.inf))


def isfinite(e: Emitter, x: Value) -> Value:
    if not x.dtype.is_float:
        return e.constant(True, boolean, x.shape)
    return e.map("lt", e.map("abs", x), e.number(x, math.inf))


def isposinf(e: Emitter, x: Value) -> Value:
    return e.map("eq", x, e.number(x, math.inf)) if x.dtype.is_float else isinf(e, x)


def isneginf(e: Emitter, x: Value) -> Value:
    return e.map("eq", x, e.number(x, -math.inf)) if x.dtype.is_float else isinf(e, x)


def isreal(e: Emitter, x: Value) -> Value:
    return e.constant(True, boolean, x.shape)


def _bitwise(name: str) -> Expander:
    def expand(e: Emitter, a: Operand, b: Operand) -> Value:
        _, (x, y) = meet(e, a, b)
        return e.map(name, x, y)

    return expand


def bitwise_not(e: Emitter, x: Value) -> Value:
    if x.dtype == boolean:
        return e.map("not", x)
    return e.map("xor", x, e.number(x, -1))


def _logical(name: str) -> Expander:
    def expand(e: Emitter, a: Operand, b: Operand) -> Value:
        return e.map(name, truth(e, a), truth(e, b))

    return expand


def logical_not(e: Emitter, x: Operand) -> Value:
    return e.map("not", truth(e, x))


def _extremum_without_nan(name: str) -> Expander:
    """fmax, fmin: the other operand where one is NaN."""

    def expand(e: Emitter, a: Operand, b: Operand) -> Value:
        dtype, (x, y) = meet(e, a, b)
        both = e.map(name, x, y)
        if not dtype.is_float:
            return both
        rest = select(e, is_nan(e, y), x, both)
        return e.cast(select(e, is_nan(e, x), y, rest), dtype)

    return expand


# ---------------------------------------------------------------- ternary


def where(e: Emitter, condition: Value, a: Operand, b: Operand) -> Value:
    dtype = promote([operand_type(a), operand_type(b)], e.span)
    return select(e, truth(e, condition), e.operand(a, dtype), e.operand(b, dtype))


def clamp(
    e: Emitter,
    x: Value,
    min: Operand | None = None,  # noqa: A002
    max: Operand | None = None,  # noqa: A002
) -> Value:
    bounds = [b for b in (min, max) if b is not None]
    dtype, (value, *limits) = meet(e, x, *bounds)
    if min is not None:
        value = e.map("max", value, limits[0])
    if max is not None:
        value = e.map("min", value, limits[-1])
    return e.cast(value, dtype)


def threshold(e: Emitter, x: Value, threshold: Number, value: Number) -> Value:
    below = e.map("le", x, e.number(x, threshold))
    return select(e, below, e.number(x, value), x)


def lerp(e: Emitter, start: Value, end: Value, weight: Operand) -> Value:
    """start + weight * (end - start), from the nearer end as torch does."""
    dtype, (a, b, w) = meet(e, start, end, weight, floats=True)
    a, b, w = e.wide(a), e.wide(b), e.wide(w)
    gap, one = e.map("sub", b, a), e.number(w, 1)
    near = e.map("add", a, e.map("mul", w, gap))
    far = e.map("sub", b, e.map("mul", gap, e.map("sub", one, w)))
    small = e.map("lt", e.map("abs", w), e.number(w, 0.5))
    return e.cast(select(e, small, near, far), dtype)


def addcmul(e: Emitter, x: Value, a: Value, b: Value, value: Operand = 1) -> Value:
    dtype, (base, p, q, scale) = meet(e, x, a, b, value)
    product = e.map("mul", e.map("mul", scale, p), q)
    return e.cast(e.map("add", base, product), dtype)


def addcdiv(e: Emitter, x: Value, a: Value, b: Value, value: Operand = 1) -> Value:
    dtype, (base, p, q, scale) = meet(e, x, a, b, value, floats=True)
    return e.cast(e.map("add", base, e.map("div", e.map("mul", scale, p), q)), dtype)


def cast(e: Emitter, x: Operand, dtype: DType) -> Value:
    """Convert: round to nearest even, truncate to integers, anything but zero is true."""
    value = e.operand(x, operand_type(x).dtype)
    if dtype.kind is Kind.INT and value.dtype.is_float and dtype.bits < 32:
        value = e.cast(value, i32)  # out of range, torch wraps
    return e.cast(value, dtype)


def cast_to_itself(e: Emitter, x: Operand) -> Value:
    """The same value, as an operation."""
    return e.operand(x, operand_type(x).dtype)


TABLE: Table = {
    **{n: _binary(n) for n in ("add", "mul")},
    "sub": sub,
    "div": div,
    "true_divide": div,
    "truediv": div,
    "floordiv": floordiv,
    "floor_divide": floordiv,
    "trunc_div": trunc_div,
    "remainder": remainder,
    "mod": remainder,
    "fmod": fmod,
    "pow": pow_,
    "maximum": _binary("max"),
    "minimum": _binary("min"),
    "fmax": _extremum_without_nan("max"),
    "fmin": _extremum_without_nan("min"),
    **{n: _comparison(n) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"bitwise_{n}": _bitwise(n) for n in ("and", "or", "xor")},
    "bitwise_left_shift": _bitwise("shl"),
    "bitwise_right_shift": _bitwise("shr"),
    "bitwise_not": bitwise_not,
    **{f"logical_{n}": _logical(n) for n in ("and", "or")},
    "logical_xor": _logical("ne"),
    "logical_not": logical_not,
    **{n: _row(n) for n in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sin", "cos",
                            "erf", "reciprocal")},
    "expm1": _float_unary(functions.expm1),
    "log1p": _float_unary(functions.log1p),
    "log10": _float_unary(functions.log10),
    "tan": _float_unary(lambda e, x: e.map("div", e.map("sin", x), e.map("cos", x))),
    "sinh": _float_unary(functions.sinh),
    "cosh": _float_unary(functions.cosh),
    "asin": _float_unary(functions.asin),
    "acos": _float_unary(functions.acos),
    "atan": _float_unary(functions.atan),
    "asinh": _float_unary(functions.asinh),
    "acosh": _float_unary(functions.acosh),
    "atanh": _float_unary(functions.atanh),
    "sigmoid": _float_unary(functions.sigmoid),
    "silu": _float_unary(functions.silu),
    "frac": _float_unary(functions.frac),
    "gelu": gelu,
    "softplus": softplus,
    "leaky_relu": leaky_relu,
    "relu": relu,
    "neg": neg,
    "abs": abs_,
    "sign": sign,
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "round": _rounding("round"),
    "trunc": trunc,
    "isnan": isnan,
    "isinf": isinf,
    "isfinite": isfinite,
    "isposinf": isposinf,
    "isneginf": isneginf,
    "isreal": isreal,
    "where": where,
    "clamp": clamp,
    "threshold": threshold,
    "lerp": lerp,
    "addcmul": addcmul,
    "addcdiv": addcdiv,
    "cast": cast,
    "set": cast_to_itself,
}  # fmt: skip
