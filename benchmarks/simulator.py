"""How long the simulator takes. Run as ``python benchmarks/simulator.py``; see SIMULATOR.md."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

# The kernels are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sim"))

from sim_kernels import decode, e, gemm, kernel, mem, read, reg, tensor

from tilewright.base.dtypes import f32
from tilewright.codegen.sim import simulate
from tilewright.kernel.ops import (
    Apply,
    Assign,
    Barrier,
    Const,
    Kernel,
    Load,
    Loop,
    Mode,
    Registers,
    Shared,
    Store,
)
from tilewright.target.nvidia import SM_90A


def seconds(call: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """The first run's time, and the best of the others."""
    times: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[0], min(times[1:])


def product(size: int, checks: bool) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float16) for _ in range(2))
    c = np.zeros((size, size), np.float32)
    program = gemm(size, size, size)

    def call() -> None:
        simulate(program, SM_90A, {"a": a, "b": b, "c": c}, {}, checks=checks)

    call()
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-2)
    return call


def elementwise(elements: int) -> Callable[[], object]:
    """``y = x + 1``, 1024 elements per block."""
    at = 1024 * e("b") + 4 * e("t")
    program = kernel(
        (
            decode("block", ("b", elements // 1024)),
            decode("thread", ("t", 256)),
            Load((), reg("r", 0), mem("x", at), width=4),
            Assign(
                (("j", 4),), reg("r", "j"),
                Apply("add", (read(f32, "r", "j"), Const(1.0, f32)), f32),
            ),
            Store((), mem("y", at), reg("r", 0), width=4),
        ),
        grid=(elements // 1024,),
        warps=8,
        tensors=(tensor("x", f32, Mode.IN, elements), tensor("y", f32, Mode.OUT, elements)),
        registers=(Registers("r", f32, (4,)),),
    )  # fmt: skip
    x, y = np.zeros((2, elements), np.float32)
    return lambda: simulate(program, SM_90A, {"x": x, "y": y}, {})


STATEMENTS = 6


def serial(iterations: int) -> Kernel:
    """One warp; a loop of six small statements, so that their fixed cost is what counts."""
    body = (
        Load((), reg("r", 0), mem("x", e("k") % 64, "t")),
        Assign((), reg("r", 0), Apply("add", (read(f32, "r", 0), Const(1.0, f32)), f32)),
        Store((), mem("s", e("k") % 2, "t"), reg("r", 0)),
        Barrier(),
        Load((), reg("r", 0), mem("s", e("k") % 2, 31 - e("t"))),
        Barrier(),
    )
    return kernel(
        (decode("thread", ("t", 32)), Loop("k", e(iterations), body)),
        tensors=(tensor("x", f32, Mode.IN, 64, 32),),
        shared=(Shared("s", f32, (2, 32)),),
        registers=(Registers("r", f32, (1,)),),
    )


def main() -> None:
    for size in (512, 1024):
        for checks in (True, False):
            first, best = seconds(product(size, checks))
            print(f"gemm {size}^3, checks {checks}: first {first:.3f} s, best {best:.3f} s")
    first, best = seconds(elementwise(1 << 22))
    print(f"elementwise, 2^22 elements: first {first:.3f} s, best {best:.3f} s")
    program, x = serial(500), np.zeros((64, 32), np.float32)
    first, best = seconds(lambda: simulate(program, SM_90A, {"x": x}, {}), 3)
    print(f"a small statement: {best / 500 / STATEMENTS * 1e6:.0f} us")


if __name__ == "__main__":
    main()
