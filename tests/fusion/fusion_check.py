"""One way to test a fusion: rebuild it from its text, run it, compare it with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tilewright.base.dtypes import DType
from tilewright.driver.fused import CompiledFusion
from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion.definition import DataType
from tilewright.poly.prove import Assumed, Proved
from tilewright.runtime.arguments import DTYPE_NAMES

torch = pytest.importorskip("torch", reason="torch is the reference of these tests")

TORCH = {dtype: getattr(torch, name) for name, dtype in DTYPE_NAMES.items() if hasattr(torch, name)}
FLOATS = (DataType.Double, DataType.Float, DataType.Half, DataType.BFloat16)
INTEGERS = (DataType.Int, DataType.Int32, DataType.Int16, DataType.Int8)
ALL = (*FLOATS, *INTEGERS, DataType.Bool)
# Relative and absolute error that rounding explains: of the type, after a few operations.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12), torch.float32: (3e-6, 1e-6), torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
}  # fmt: skip


def rebuilt(fd: FusionDefinition) -> FusionDefinition:
    """The definition that the text of another one makes."""
    scope: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), scope)
    again = FusionDefinition(scope["fusion"])
    assert repr(again) == repr(fd)
    return again


def all_proved(compiled: CompiledFusion) -> bool:
    return all(isinstance(p.result, Proved | Assumed) for k in compiled.kernels for p in k.proofs)


def check(
    build: Callable[[FusionDefinition], object],
    inputs: Sequence[Any],
    expected: Any,
    *,
    kernels: int | None = None,
    tolerance: tuple[float, float] | None = None,
    target: str | None = None,
) -> CompiledFusion:
    """Build, rebuild, run, compare every result in type, shape and value."""
    fd = rebuilt(FusionDefinition(build))
    compiled = fd.compile(inputs, target=target)
    found = fd.execute(inputs, target=target)
    wanted = list(expected) if isinstance(expected, tuple | list) else [expected]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        same(one, other, tolerance)
    assert all_proved(compiled)
    assert all(kernel.kernel.name in kernel.source for kernel in compiled.kernels)
    if kernels is not None:
        assert len(compiled.kernels) == kernels, [k.kernel.name for k in compiled.kernels]
    return compiled


def same(found: Any, wanted: Any, tolerance: tuple[float, float] | None = None) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    rtol, atol = tolerance or TOLERANCE.get(wanted.dtype, (0, 0))
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, equal_nan=True)


def define(fd: FusionDefinition, *tensors: Any) -> list[Any]:
    """Inputs with the tensors' types, of any size."""
    names = {torch_type: dtype for dtype, torch_type in TORCH.items()}
    return [fd.define_tensor(shape=[-1] * t.dim(), dtype=names[t.dtype]) for t in tensors]


def sample(dtype: DType, shape: Sequence[int], seed: int = 0, *, special: bool = True) -> Any:
    """Random values; floats with NaN, infinities and both zeros where there is room."""
    generator = torch.Generator().manual_seed(seed)
    kind = TORCH[dtype]
    if dtype == DataType.Bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_float:
        return torch.randint(-9, 10, shape, generator=generator).to(kind)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    if special and values.numel() >= 16:
        flat = values.view(-1)
        inf = float("inf")
        flat[:8] = torch.tensor([float("nan"), inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5])
    return values.to(kind)
