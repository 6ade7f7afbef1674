"""Lists of products of fusions, in one launch where that is possible, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.diagnostics import DTypeError, ShapeError
from tilewright.driver.fused import CompiledFusion
from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion import DataType
from tilewright.poly.results import Assumed, Proved
from tilewright.runtime.toolchain import Nvrtc
from tilewright.target.nvidia import SM_90A

BF16 = ml_dtypes.bfloat16
TYPES = {np.dtype(BF16): DataType.BFloat16, np.dtype(np.float16): DataType.Half,
         np.dtype(np.float32): DataType.Float}  # fmt: skip
UNEVEN = [(100, 64, 64), (70, 72, 128), (8, 200, 192), (64, 128, 16)]
Arrays = list[np.ndarray]
After = Callable[[FusionDefinition, list[Any], list[Any]], list[Any]]


def matrices(sizes: Sequence[tuple[int, int, int]], dtype: Any = BF16) -> tuple[Arrays, Arrays]:
    random = np.random.default_rng(len(sizes))
    left = [random.integers(-4, 5, (m, k)).astype(dtype) for m, _, k in sizes]
    return left, [random.integers(-4, 5, (k, n)).astype(dtype) for _, n, k in sizes]


def definition(left: Arrays, right: Arrays, more: Arrays = (), after: After | None = None):  # type: ignore[assignment]
    with FusionDefinition() as fd:
        a, b, rest = (
            [fd.define_tensor([-1] * x.ndim, dtype=TYPES[x.dtype]) for x in group]
            for group in (left, right, more)
        )
        products = fd.ops.grouped_mm(a, b)
        assert isinstance(products, list)
        for result in after(fd, products, rest) if after else products:
            fd.add_output(result)
    return fd


def runs(
    left: Arrays, right: Arrays, wanted: Sequence[np.ndarray], more: Arrays = (),  # type: ignore[assignment]
    after: After | None = None, target: str = "sm_90a",
) -> CompiledFusion:  # fmt: skip
    fusion, inputs = definition(left, right, more, after), [*left, *right, *more]
    compiled = fusion.compile(inputs, target=target)
    for kernel in compiled.kernels:
        assert all(isinstance(o.result, Proved | Assumed) for o in kernel.proofs)
    found = fusion.execute(inputs, target=target)
    for one, exact in zip(found, wanted, strict=True):
        assert np.array_equal(one.astype(np.float64), exact.astype(one.dtype).astype(np.float64))
    return compiled


def exact(left: Arrays, right: Arrays) -> Arrays:
    return [a.astype(np.float32) @ b.astype(np.float32) for a, b in zip(left, right, strict=True)]


def problems(compiled: CompiledFusion) -> list[int]:
    return [len(kernel.problems) for kernel in compiled.kernels]


@pytest.mark.parametrize("dtype", [BF16, np.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_products_of_different_sizes_are_one_launch(dtype: Any, target: str) -> None:
    left, right = matrices(UNEVEN, dtype)
    compiled = runs(left, right, exact(left, right), target=target)
    assert problems(compiled) == [4]
    (kernel,) = compiled.kernels
    assert (kernel.plan.roles is not None) == (target == "sm_90a")
    assert {s.name for s in kernel.kernel.symbols} == {"I0", "I1", "R0"}
    assert "4 products in one launch" in compiled.explain()


def test_products_of_one_size() -> None:
    left, right = matrices([(64, 64, 64)] * 3)
    compiled = runs(left, right, exact(left, right))
    assert problems(compiled) == [3]
    assert len(compiled.kernels[0].kernel.symbols) == 1


def test_what_follows_each_joins_the_launch() -> None:
    left, right = matrices(UNEVEN)
    bias = [np.arange(n, dtype=np.float32) - 20 for _, n, _ in UNEVEN]

    def after(fd: FusionDefinition, products: list[Any], rest: list[Any]) -> list[Any]:
        summed = [fd.ops.relu(p + x) for p, x in zip(products, rest, strict=True)]
        return [fd.ops.cast(s, DataType.BFloat16) for s in summed]

    wanted = [
        np.maximum(p.astype(BF16).astype(np.float32) + x, 0)
        for p, x in zip(exact(left, right), bias, strict=True)
    ]
    assert problems(runs(left, right, wanted, bias, after)) == [4]


def test_scalars_of_each_problem() -> None:
    left, right = matrices(UNEVEN[:2])
    with FusionDefinition() as fd:
        a, b = ([fd.define_tensor([-1, -1], dtype=DataType.BFloat16) for _ in g]
                for g in (left, right))  # fmt: skip
        factors = [fd.define_scalar(dtype=DataType.Float) for _ in left]
        for product, factor in zip(fd.ops.grouped_mm(a, b), factors, strict=True):
            fd.add_output(fd.ops.mul(product, factor))
    inputs = [*left, *right, 2.0, -0.5]
    assert problems(fd.compile(inputs, target="sm_90a")) == [2]
    found = fd.execute(inputs, target="sm_90a")
    for one, product, factor in zip(found, exact(left, right), (2.0, -0.5), strict=True):
        wanted = product.astype(BF16).astype(np.float32) * factor
        assert np.array_equal(one.astype(np.float32), wanted.astype(one.dtype).astype(np.float32))


def test_different_epilogues_are_launches_of_their_own() -> None:
    left, right = matrices(UNEVEN)

    def after(fd: FusionDefinition, products: list[Any], _: list[Any]) -> list[Any]:
        return [fd.ops.relu(p) if i < 2 else fd.ops.neg(p) for i, p in enumerate(products)]

    wanted = [np.maximum(p, 0) if i < 2 else -p for i, p in enumerate(exact(left, right))]
    assert problems(runs(left, right, wanted, after=after)) == [2, 2]


def test_a_product_of_a_product_comes_later() -> None:
    """Of two lists, the second needs results of the first: two launches, in this order."""
    left, right = matrices([(64, 64, 64), (72, 64, 64)])
    more = matrices([(64, 72, 64), (64, 8, 64)])[1]

    def after(fd: FusionDefinition, products: list[Any], rest: list[Any]) -> list[Any]:
        return fd.ops.grouped_mm(products, rest)

    first = [p.astype(BF16) for p in exact(left, right)]
    assert problems(runs(left, right, exact(first, more), more, after)) == [2, 2]


def test_products_that_depend_on_each_other_are_not_joined() -> None:
    """One operand of a list is made of another product's result, before the list."""
    (a, c), (b, _) = matrices([(64, 64, 64), (64, 64, 64)])
    with FusionDefinition() as fd:
        x, y, z = (fd.define_tensor([-1, -1], dtype=DataType.BFloat16) for _ in range(3))
        made = fd.ops.matmul(x, y)
        for product in fd.ops.grouped_mm([x, made], [z, z]):
            fd.add_output(product)
    inputs = [a, b, c]
    compiled = fd.compile(inputs, target="sm_90a")
    assert sum(max(1, n) for n in problems(compiled)) == 3
    found = fd.execute(inputs, target="sm_90a")
    made = (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16)
    for one, wanted in zip(found, exact([a, made], [c, c]), strict=True):
        assert np.array_equal(one.astype(np.float32), wanted.astype(BF16).astype(np.float32))


def test_operands_with_strides() -> None:
    """Turned operands, and rows with distances of their own in each problem."""
    left, right = matrices(UNEVEN[:3])
    turned = [np.ascontiguousarray(b.T).T for b in right]
    assert problems(runs(left, turned, exact(left, right))) == [3]
    padded = [np.pad(a, ((0, 0), (0, 8 * i)))[:, : a.shape[1]] for i, a in enumerate(left)]
    compiled = runs(padded, right, exact(left, right))
    assert problems(compiled) == [3]
    assert compiled.kernels[0].plan.roles is not None


def test_dimensions_of_one_and_none() -> None:
    """What has another form is a launch of its own, or none."""
    sizes = [(64, 64, 64), (1, 64, 64), (0, 8, 64), (64, 72, 8), (8, 8, 0)]
    left, right = matrices(sizes)
    assert max(problems(runs(left, right, exact(left, right)))) == 2


def test_one_product() -> None:
    left, right = matrices(UNEVEN[:1])
    assert problems(runs(left, right, exact(left, right))) == [0]


def test_more_products_than_one_launch_takes() -> None:
    left, right = matrices([(8, 8, 8 + 8 * (i % 2)) for i in range(70)])
    compiled = runs(left, right, exact(left, right))
    assert sum(problems(compiled)) == 70
    assert len(compiled.kernels) == 2


def test_definitions_print_as_they_are_written() -> None:
    left, right = matrices(UNEVEN[:1])
    fusion = definition(left, right)
    assert "[T2] = fd.ops.grouped_mm(a=[T0], b=[T1])" in repr(fusion)
    scope: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fusion), scope)
    assert repr(FusionDefinition(scope["fusion"])) == repr(fusion)


def test_machine_code_spills_nothing() -> None:
    left = [np.empty((m, 2048), BF16) for m in (512, 4096)]
    right = [np.empty((2048, 2048), BF16) for _ in left]
    (kernel,) = definition(left, right).compile([*left, *right], target="sm_90a").kernels
    taken = Nvrtc().resources(kernel.source, SM_90A)
    assert (taken.stack, taken.spilled) == (0, 0)
    assert "tiles of 128" in kernel.explain()


def test_errors() -> None:
    with FusionDefinition() as fd:
        half = fd.define_tensor([-1, -1], dtype=DataType.Half)
        other = fd.define_tensor([-1, -1], dtype=DataType.BFloat16)
        three = fd.define_tensor([-1, -1, -1], dtype=DataType.Half)
        wide = fd.define_tensor([64, 32], dtype=DataType.Half)
        with pytest.raises(ShapeError, match=r"products of 2 and 1 matrices[\s\S]*as many left"):
            fd.ops.grouped_mm([half, half], [half])
        with pytest.raises(ShapeError, match="products of 0 and 0 matrices"):
            fd.ops.grouped_mm([], [])
        with pytest.raises(ShapeError, match=r"of one tensor, or with offsets[\s\S]*two lists"):
            fd.ops.grouped_mm([half], half)
        with pytest.raises(ShapeError, match=r"product 1 of a list is of f16\[\?, \?\] and f16\["):
            fd.ops.grouped_mm([half, half], [half, three])
        with pytest.raises(DTypeError, match="product 1 of a list is of f16 and bf16"):
            fd.ops.grouped_mm([half, half], [half, other])
        with pytest.raises(ShapeError, match="the rows of the right in product 0 of a list"):
            fd.ops.grouped_mm([wide], [wide])


# ---------------------------------------------------------------- on the device

ON_DEVICE = [(1000, 512, 320), (8, 264, 1024), (2048, 768, 64), (136, 8, 72), (640, 1280, 512)]


def relu(fd: FusionDefinition, products: list[Any], _: list[Any]) -> list[Any]:
    return [fd.ops.relu(p) for p in products]


def test_what_runs_on_the_device_is_proved() -> None:
    left, right = matrices(ON_DEVICE)
    fusion = definition(left, right, after=relu)
    (kernel,) = fusion.compile([*left, *right], target="sm_90a").kernels
    assert kernel.plan.roles is not None
    assert all(isinstance(o.result, Proved | Assumed) for o in kernel.proofs)
    assert Nvrtc().resources(kernel.source, SM_90A).spilled == 0


@pytest.mark.gpu
def test_on_the_device() -> None:
    torch = pytest.importorskip("torch")
    left, right = matrices(ON_DEVICE)
    inputs = [torch.from_numpy(x.astype(np.float32)).cuda().bfloat16() for x in (*left, *right)]
    fusion = definition(left, right, after=relu)
    for _ in range(2):
        found = fusion.execute(inputs)
        for one, a, b in zip(found, inputs[: len(left)], inputs[len(left) :], strict=True):
            wanted = (a.float() @ b.float()).relu().bfloat16()
            torch.testing.assert_close(one, wanted, rtol=0, atol=0)
