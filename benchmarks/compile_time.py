"""How long fusions take to compile: a pointwise one of ten operations, others, and a long one.

python benchmarks/compile_time.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion import DataType
from tilewright.fusion.access import dense
from tilewright.fusion.segment import segment

ROUNDS = 9


def pointwise(fd: FusionDefinition) -> None:
    """Ten operations on 4096 x 4096 elements of f16, with a bias."""
    x = fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Half)
    b = fd.define_tensor(shape=[4096], contiguity=True, dtype=DataType.Half)
    y = fd.ops.relu(x + b)
    y = fd.ops.exp(y * 0.5) - y
    y = fd.ops.where(y > 1.0, y, fd.ops.neg(y))
    y = fd.ops.sqrt(fd.ops.abs(y))
    fd.add_output(y)


def layer_norm(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Half)
    w = fd.define_tensor(shape=[4096], contiguity=True, dtype=DataType.Half)
    fd.add_output(fd.ops.layer_norm(x, w, w))


def matmul(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Half)
    w = fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Half)
    fd.add_output(fd.ops.gelu(fd.ops.linear(x, w)))


def transpose(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[4096, 4096], contiguity=True, dtype=DataType.Half)
    fd.add_output(fd.ops.permute(x, [1, 0]) * 2.0)


def _milliseconds(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def _empties(fd: FusionDefinition) -> list[np.ndarray]:
    """Inputs of the sizes that a definition states, without memory behind them."""
    return [
        np.lib.stride_tricks.as_strided(
            np.zeros(1, np.float16), r.shape, [2 * s for s in dense(r.shape)]
        )
        for r in fd.inputs()
    ]


def _long(length: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 64], contiguity=True)
        y = x
        for i in range(length // 4):
            y = fd.ops.tanh(y * x)
            y = y - fd.ops.sum(y, [i % 2], keepdim=True)
        fd.add_output(y)
    return fd


def main() -> None:
    print("| fusion | definition, ms | compilation with proofs, ms |")
    print("|---|---|---|")
    for build in (pointwise, layer_norm, matmul, transpose):
        inputs = _empties(FusionDefinition(build))
        define = _milliseconds(lambda build=build: FusionDefinition(build))
        whole = _milliseconds(
            lambda build=build, inputs=inputs: FusionDefinition(build).compile(inputs)
        )
        print(f"| {build.__name__} | {define:.1f} | {whole - define:.1f} |")
    print()
    print("| operations | cut into kernels, ms |")
    print("|---|---|")
    for length in (500, 1000, 2000, 4000):
        fd = _long(length)
        program = fd.program()
        took = _milliseconds(lambda program=program: segment(program, {0: (64, 1)}))
        print(f"| {length} | {took:.0f} |")


if __name__ == "__main__":
    main()
