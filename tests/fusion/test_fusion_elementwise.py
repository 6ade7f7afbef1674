"""Elementwise operations against torch: every operation, over the element types it has."""

from __future__ import annotations

import pytest
from fusion_check import (
    ALL,
    FLOATS,
    INTEGERS,
    TORCH,
    check,
    define,
    sample,
    torch,
)  # fmt: skip

from tilewright.fusion.definition import DataType

F = torch.nn.functional
BOOL = (DataType.Bool,)
SHAPE = (3, 16)

UNARY = {
    **{n: (getattr(torch, n), ALL) for n in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "tanh", "sin",
        "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf",
        "reciprocal", "sigmoid", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "isreal",
        "logical_not", "sign",
    )},
    **{n: (getattr(torch, n), (*FLOATS, *INTEGERS)) for n in (
        "neg", "abs", "floor", "ceil", "round", "trunc",
    )},
    **{n: (getattr(F, n), FLOATS) for n in ("silu", "gelu", "softplus", "leaky_relu")},
    "relu": (torch.relu, (*FLOATS, *INTEGERS)),
    "frac": (torch.frac, FLOATS),
    "bitwise_not": (torch.bitwise_not, (*INTEGERS, *BOOL)),
}  # fmt: skip

ARITHMETIC = {
    "add": torch.add, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin,
    **{n: getattr(torch, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"logical_{n}": getattr(torch, f"logical_{n}") for n in ("and", "or", "xor")},
}  # fmt: skip
NUMBERS = {
    "sub": torch.sub, "remainder": torch.remainder, "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}  # fmt: skip
BITS = {f"bitwise_{n}": getattr(torch, f"bitwise_{n}") for n in ("and", "or", "xor")}


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, (_, kinds) in UNARY.items() for d in kinds], ids=str
)
def test_unary(name, dtype) -> None:
    x = sample(dtype, SHAPE, special=name != "gelu")  # torch's gives NaN for infinities

    def build(fd) -> None:
        (t,) = define(fd, x)
        fd.add_output(getattr(fd.ops, name)(t))

    check(build, [x], UNARY[name][0](x), kernels=1)


def _label(value: object) -> str:
    """Functions print with their address, which differs between processes."""
    return getattr(value, "__name__", str(value))


BINARY = (
    [(n, f, d) for n, f in ARITHMETIC.items() for d in ALL]
    + [(n, f, d) for n, f in NUMBERS.items() for d in (*FLOATS, *INTEGERS)]
    + [(n, f, d) for n, f in BITS.items() for d in (*INTEGERS, *BOOL)]
    + [("pow", torch.pow, d) for d in FLOATS]
)


@pytest.mark.parametrize(("name", "function", "dtype"), BINARY, ids=_label)
def test_binary(name, function, dtype) -> None:
    x, y = sample(dtype, SHAPE), sample(dtype, (16,), seed=5)
    if not dtype.is_float and name in ("remainder", "fmod", "floor_divide", "trunc_div"):
        y = torch.where(y == 0, torch.tensor(3, dtype=y.dtype), y)

    def build(fd) -> None:
        a, b = define(fd, x, y)
        fd.add_output(getattr(fd.ops, name)(a, b))

    check(build, [x, y], function(x, y), kernels=1)


@pytest.mark.parametrize("left", ALL, ids=str)
@pytest.mark.parametrize("right", ALL, ids=str)
def test_promotion_of_tensors(left, right) -> None:
    """Dimensions win over 0-d tensors, and those over Python numbers."""
    x, y = sample(left, (4, 5)), sample(right, (5,), seed=1)
    zero_d = sample(right, (), seed=2)

    def build(fd) -> None:
        a, b, c = define(fd, x, y, zero_d)
        fd.add_output(fd.ops.add(a, b))
        fd.add_output(fd.ops.mul(a, c))
        fd.add_output(fd.ops.div(a, b))
        fd.add_output(fd.ops.le(c, a))

    expected = (x + y, x * zero_d, x / y, zero_d <= x)
    check(build, [x, y, zero_d], expected)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("number", [True, 3, 1.7], ids=str)
def test_promotion_of_numbers(dtype, number) -> None:
    x = sample(dtype, (3, 7))

    def build(fd) -> None:
        (a,) = define(fd, x)
        s = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.add(a, number))
        fd.add_output(number * a)
        fd.add_output(fd.ops.div(a, number))
        fd.add_output(a > number)
        fd.add_output(a + s)
        fd.add_output(a * fd.define_scalar(number))

    expected = (x + number, number * x, x / number, x > number, x + 2.5, x * number)
    check(build, [x, 2.5], expected, kernels=1)


@pytest.mark.parametrize("dtype", [*FLOATS, DataType.Int, DataType.Int8], ids=str)
def test_ternary(dtype) -> None:
    x, y, z = (sample(dtype, (3, 16), seed=i) for i in range(3))
    keep = sample(DataType.Bool, (16,), seed=4)

    def build(fd) -> None:
        c, a, b, d = define(fd, keep, x, y, z)
        fd.add_output(fd.ops.where(c, a, b))
        fd.add_output(fd.ops.where(c, a, 2))
        fd.add_output(fd.ops.clamp(a, -1, 2))
        fd.add_output(fd.ops.clamp(a, min=b))
        fd.add_output(fd.ops.threshold(a, 1, 7))
        fd.add_output(fd.ops.addcmul(a, b, d, 2))

    expected = (
        torch.where(keep, x, y), torch.where(keep, x, 2), torch.clamp(x, -1, 2),
        torch.clamp(x, min=y), F.threshold(x, 1, 7), torch.addcmul(x, y, z, value=2),
    )  # fmt: skip
    check(build, [keep, x, y, z], expected)


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16], ids=str)
def test_gelu_is_one_operation(dtype) -> None:
    """Over every value that bf16 has between two thousandths and ten, of both signs."""
    size = torch.arange(0x3B00, 0x4120, dtype=torch.int16).view(torch.bfloat16)
    x = torch.cat([size, -size]).to(TORCH[dtype])

    def build(fd) -> None:
        (t,) = define(fd, x)
        fd.add_output(fd.ops.gelu(t))

    (made,) = check(build, [x], F.gelu(x), kernels=1).kernels
    assert "gelu(" in made.ir


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ternary_of_floats(dtype) -> None:
    x, y, z = (sample(dtype, (3, 16), seed=i, special=i == 0) for i in range(3))

    def build(fd) -> None:
        a, b, d = define(fd, x, y, z)
        fd.add_output(fd.ops.lerp(a, b, 0.3))
        fd.add_output(fd.ops.lerp(a, b, d))
        fd.add_output(fd.ops.addcdiv(a, b, d, 0.5))
        fd.add_output(fd.ops.gelu(a, approximate="tanh"))

    expected = (
        torch.lerp(x, y, 0.3), torch.lerp(x, y, z), torch.addcdiv(x, y, z, value=0.5),
        F.gelu(x, approximate="tanh"),
    )  # fmt: skip
    loose = {DataType.Half: (1e-2, 1e-2), DataType.BFloat16: (8e-2, 8e-2)}.get(dtype)
    check(build, [x, y, z], expected, tolerance=loose)


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_cast(source, dtype) -> None:
    x = sample(source, (40,), special=not (source.is_float and not dtype.is_float))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.cast(a, dtype))

    check(build, [x], x.to(TORCH[dtype]), kernels=1)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_and_powers_of_integers(dtype) -> None:
    x = sample(dtype, (20,))
    n = torch.arange(20).to(x.dtype) % 5

    def build(fd) -> None:
        a, b = define(fd, x, n)
        fd.add_output(a << b)
        fd.add_output(a >> b)
        fd.add_output(fd.ops.pow(a, 3))
        fd.add_output(a**0)

    check(build, [x, n], (x << n, x >> n, x**3, x**0))


SHAPES = [
    ((), ()), ((), (3,)), ((1,), (4,)), ((3, 1), (1, 5)), ((2, 1, 4), (3, 1)), ((0,), (1,)),
    ((3, 0), (3, 1)), ((1, 1, 1), ()), ((4, 1), (4, 1)), ((2, 3, 4, 5), (3, 1, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_broadcast_shapes(left, right) -> None:
    x, y = sample(DataType.Float, left), sample(DataType.Float, right, seed=1)

    def build(fd) -> None:
        a, b = define(fd, x, y)
        fd.add_output(fd.ops.relu(a) - b)

    check(build, [x, y], torch.relu(x) - y)


def _strided():
    base = sample(DataType.Float, (6, 8), seed=3, special=False)
    return {
        "transposed": base.T,
        "every other": base[::2, ::2],
        "offset": base[1:, 3:],
        "expanded row": base[0].expand(6, 8),
        "expanded column": base[:, :1].expand(6, 8),
        "expanded scalar": torch.tensor(2.5).expand(6, 8),
        "channels last": sample(DataType.Float, (2, 3, 4, 5), special=False).to(
            memory_format=torch.channels_last
        ),
        "unaligned": sample(DataType.Float, (65,), special=False)[1:],
    }


@pytest.mark.parametrize("name", _strided())
def test_strides(name) -> None:
    x = _strided()[name]
    y = torch.ones_like(x)

    def build(fd) -> None:
        a, b = define(fd, x, y)
        fd.add_output(fd.ops.exp(a) + b)
        fd.add_output(fd.ops.sum(a, [-1]))

    check(build, [x, y], (torch.exp(x) + y, x.sum(-1)))


def test_contiguous_pointwise_is_one_axis_with_wide_vectors() -> None:
    x = sample(DataType.Half, (4, 8, 64))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.relu(a * 2.0))

    compiled = check(build, [x], torch.relu(x * 2.0), kernels=1)
    (kernel,) = compiled.kernels
    assert [e.const for e in kernel.graph.axes.values()] == [4 * 8 * 64]
    assert "load 8 t0" in kernel.ir
    assert "store 8 v" in kernel.ir
