"""Fusions against torch, eager, on the device.

python -m benchmarks.fusions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.measure import HEADER, Comparison, in_turn, relative_error
from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion import DataType

HALF = torch.bfloat16


def _compare(
    name: str,
    build: Callable[..., None],
    inputs: Sequence[torch.Tensor],
    peer: Callable[..., Any],
    work: float,
    unit: str,
) -> Comparison:
    types = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor([-1] * x.dim(), dtype=types[x.dtype]) for x in inputs]
        build(fd, *tensors)
    (found,) = fd.execute(inputs)
    error = relative_error(found, peer(*(x.double() for x in inputs)))
    ours, theirs = in_turn(lambda: fd.execute(inputs), lambda: peer(*inputs))
    return Comparison(name, ours, theirs, error, work, unit)


def _random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def cases() -> list[Comparison]:
    n = 8192
    x, b, w = _random(n, n), _random(n), _random(n, n) / n**0.5
    f = _random(n, n, dtype=torch.float32)
    moved, flops = 2 * x.nbytes * 1.0, 2.0 * n**3

    def act(fd: Any, x: Any, b: Any) -> None:
        fd.add_output(fd.ops.gelu(x + b) * x)

    def softmax(fd: Any, x: Any) -> None:
        fd.add_output(fd.ops.softmax(x, 1))

    def norm(fd: Any, x: Any, w: Any) -> None:
        fd.add_output(fd.ops.layer_norm(x, w))

    def transpose(fd: Any, x: Any) -> None:
        fd.add_output(fd.ops.permute(x, [1, 0]) + 1.0)

    def total(fd: Any, x: Any) -> None:
        fd.add_output(fd.ops.sum(x))

    def rows(fd: Any, x: Any) -> None:
        fd.add_output(fd.ops.sum(x, [1]))

    def columns(fd: Any, x: Any) -> None:
        fd.add_output(fd.ops.sum(x, [0]))

    def linear(fd: Any, x: Any, w: Any, b: Any) -> None:
        fd.add_output(fd.ops.gelu(fd.ops.linear(x, w, b)))

    return [
        _compare("gelu(x + b) * x", act, [x, b], lambda x, b: F.gelu(x + b) * x, moved, "TB/s"),
        _compare("softmax", softmax, [x], lambda x: torch.softmax(x, 1), moved, "TB/s"),
        _compare("layer norm", norm, [x, b], lambda x, b: F.layer_norm(x, (n,), b), moved, "TB/s"),
        _compare("transpose + 1", transpose, [x], lambda x: (x.T + 1).contiguous(), moved, "TB/s"),
        _compare("sum of all, f32", total, [f], torch.sum, moved, "TB/s"),
        _compare("row sums, f32", rows, [f], lambda x: x.sum(1), moved, "TB/s"),
        _compare("column sums, f32", columns, [f], lambda x: x.sum(0), moved, "TB/s"),
        _compare("gelu(linear)", linear, [x, w, b], lambda x, w, b: F.gelu(F.linear(x, w, b)),
                 flops, "TFLOP/s"),
    ]  # fmt: skip


def main() -> None:
    print(HEADER)
    for case in cases():
        print(case.row())


if __name__ == "__main__":
    main()
