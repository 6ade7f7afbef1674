"""What values must be, by NumPy: a reference that shares nothing with the back ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, f16
from tilewright.runtime.arguments import numpy_dtype

Array = np.ndarray[Any, Any]

# How each operation of `kernel.values` computes, in f64 or on Python's integers.
REFERENCE: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floordiv": np.floor_divide, "mod": np.mod, "pow": np.power,
    "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
    "select": lambda x, y: np.where(x > 0, x, y),
    "neg": np.negative, "not": lambda x: x == 0, "abs": np.abs, "reciprocal": np.reciprocal,
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "floor": np.floor, "ceil": np.ceil,
    "round": np.rint,
    "one_plus_erf": np.vectorize(lambda x: math.erfc(-x), otypes=[np.float64]),
    "gelu": np.vectorize(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2, otypes=[np.float64]),
}  # fmt: skip

# Errors that are not relative: what the sum in f32 has, near zero too; of a gelu, times |x|.
ABSOLUTE = {"one_plus_erf": 2.0**-23, "gelu": 2.0**-22}


def expected(name: str, x: Array, y: Array, arity: int) -> Array:
    operands = (x, y)[: max(arity, 1)] if name != "select" else (x, y)
    with np.errstate(all="ignore"):
        return np.asarray(REFERENCE[name](*operands))


def samples(dtype: DType, count: int) -> tuple[Array, Array]:
    random = np.random.default_rng(4)
    if dtype.is_float:
        x = random.standard_normal(count) * np.exp2(random.integers(-6, 4, count))
        y = random.standard_normal(count) * 4
        x[:8] = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -1.5, np.nan]
        y[:8] = [1.0, 2.0, np.nan, 2.0, -3.0, 0.25, 3.0, 1.0]
    else:
        x = random.integers(-100, 100, count)
        y = random.integers(1, 8, count) * random.choice([-1, 1], count)
    return x.astype(numpy_dtype(dtype)), y.astype(numpy_dtype(dtype))


def nearest(value: float, dtype: DType) -> float:
    """Round to nearest even by scaling: `mantissa` bits after the leading one."""
    if value == 0 or not math.isfinite(value):
        return value
    mantissa = 10 if dtype is f16 else 7
    _, exponent = math.frexp(value)
    step = 2.0 ** (max(exponent - 1, -14 if dtype is f16 else -126) - mantissa)
    return round(value / step) * step
