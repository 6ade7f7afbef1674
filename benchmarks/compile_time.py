"""How long compiling takes: a large product cold and warm, fusions, and a long fusion.

python benchmarks/compile_time.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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


# A process of its own: what it prints are milliseconds of the import of tilewright, of the
# compilation with proofs, and of source and machine code.
PRODUCT = """
import sys
import time
import numpy
started = time.perf_counter()
import tilewright as tw
imported = time.perf_counter()

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K

@tw.kernel([tw.WorkgroupConstraint(M, 128, 0), tw.WorkgroupConstraint(N, 256, 1),
            tw.TilingConstraint(K, 64)])
def gemm(a: tw.Memory[M, K, tw.GLOBAL, tw.bf16], b: tw.Memory[N, K, tw.GLOBAL, tw.bf16],
         c: tw.Memory[M, N, tw.GLOBAL, tw.bf16]):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(tw.cast(total, tw.bf16), c)

sizes = {"M": 8192, "N": 8192, "K": 8192}
strides = {name: (8192, 1) for name in "abc"}
begun = time.perf_counter()
compiled = gemm.compile("sm_90a", sizes, strides=strides, alignments=dict.fromkeys("abc", 16))
proved = time.perf_counter()
from tilewright.runtime.cache import default_cache
from tilewright.runtime.toolchain import compile_source
compile_source(compiled.source, compiled.target, cache=default_cache())
built = time.perf_counter()
print(*((b - a) * 1e3 for a, b in ((started, imported), (begun, proved), (proved, built))))
"""


def product_times() -> None:
    """A bf16 product of 8192^3 in fresh processes: with an empty cache, then from the cache."""
    print("| 8192^3 bf16 product | import, ms | compile and prove, ms | source and cubin, ms |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "product.py")
        script.write_text(PRODUCT)
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for name, rounds in (("cold", 1), ("warm", ROUNDS)):
            command = [sys.executable, str(script)]
            runs = [
                subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                ).stdout.split()
                for _ in range(rounds)
            ]
            medians = [statistics.median(float(r[i]) for r in runs) for i in range(3)]
            print(f"| {name} | {' | '.join(f'{m:.1f}' for m in medians)} |")


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
    product_times()
    print()
    os.environ["TILEWRIGHT_CACHE"] = "0"  # each of what follows is compiled
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
