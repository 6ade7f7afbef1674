"""What each row of `kernel.values.OPERATIONS` means on arrays.

Functions get operands in their compute type (f64, f32, i64, i32 or bool) and give the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.codegen.sim.numeric import Array, convert, widen

_ERF = np.frompyfunc(math.erf, 1, 1)
_ONE_PLUS_ERF = np.frompyfunc(lambda x: math.erfc(-x), 1, 1)
_SQRT_HALF = math.sqrt(0.5)


def _is_float(values: Array) -> bool:
    return values.dtype.kind == "f"


def _divide(a: Array, b: Array) -> Array:
    """C's division: integers towards zero."""
    if _is_float(a):
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = quotient * b != a
    return quotient + (inexact & ((a < 0) != (b < 0))).astype(a.dtype)


def _floor_divide(a: Array, b: Array) -> Array:
    return np.floor(np.divide(a, b)) if _is_float(a) else np.floor_divide(a, b)


def _erf(a: Array) -> Array:
    return np.asarray(_ERF(a.astype(np.float64))).astype(a.dtype)


def _one_plus_erf(a: Array) -> Array:
    return np.asarray(_ONE_PLUS_ERF(a.astype(np.float64))).astype(a.dtype)


def _gelu(a: Array) -> Array:
    """Its limit, 0, at -inf too: back ends give next to nothing there."""
    wide = np.maximum(a.astype(np.float64), -99.0)
    return (wide * 0.5 * _one_plus_erf(wide * _SQRT_HALF)).astype(a.dtype)


def _select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def _negate(a: Array) -> Array:
    return a if a.dtype == np.bool_ else np.negative(a)


def _not(a: Array) -> Array:
    return a == 0


def _reciprocal(a: Array) -> Array:
    return np.divide(np.ones((), a.dtype), a)


def _rsqrt(a: Array) -> Array:
    return _reciprocal(np.sqrt(a))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "floordiv": _floor_divide,
    "mod": np.mod,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "select": _select,
    "neg": _negate,
    "not": _not,
    "abs": np.abs,
    "reciprocal": _reciprocal,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": _erf,
    "one_plus_erf": _one_plus_erf,
    "gelu": _gelu,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}


def apply(op: str, args: tuple[Array, ...], types: tuple[DType, ...], dtype: DType) -> Array:
    """`op` on values of `types`, rounded once to `dtype`. Shapes broadcast."""
    wide = (widen(a, t) for a, t in zip(args, types, strict=True))
    return convert(np.asarray(FUNCTIONS[op](*wide)), dtype)
