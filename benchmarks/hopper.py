"""The product written by hand as kernel IR against cuBLAS: ``python -m benchmarks.hopper``."""

from __future__ import annotations

import sys

import torch

from benchmarks.hopper_gemm import Plan, gemm
from benchmarks.measure import HEADER, Comparison, in_turn, relative_error
from tilewright.codegen import emit
from tilewright.runtime.cuda_driver import current_stream, load_module, use_device
from tilewright.runtime.launch import bind_launch
from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A

PLANS = tuple(
    Plan(m, n, k, group=group)
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192))
    for group in (8, 16)
)


def compare(plan: Plan, repeats: int) -> Comparison:
    """One product of random matrices, checked against cuBLAS in f32 and timed in turn with it."""
    kernel = gemm(plan)
    use_device(0)
    module = load_module(compile_source(emit(kernel, SM_90A), SM_90A), kernel.shared_bytes)
    launch = bind_launch(module, kernel, {}, {})
    torch.manual_seed(0)
    a = torch.randn(plan.m, plan.k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(plan.n, plan.k, device="cuda", dtype=torch.bfloat16)
    c = torch.full((plan.m, plan.n), torch.nan, device="cuda", dtype=torch.bfloat16)
    pointers = [tensor.data_ptr() for tensor in (a, b, c)]
    stream = current_stream(0)
    launch(stream, *pointers)
    torch.cuda.synchronize()
    rows = slice(0, None, max(1, plan.m // 1024))
    error = relative_error(c[rows], a[rows].double() @ b.double().T)
    ours, peer = in_turn(lambda: launch(stream, *pointers), lambda: a @ b.T, repeats)
    name = f"{plan.m} x {plan.n} x {plan.k}, {plan.stages} stages, groups of {plan.group}"
    return Comparison(name, ours, peer, error, 2.0 * plan.m * plan.n * plan.k, "TFLOP/s")


def main(repeats: int = 30) -> None:
    print(HEADER)
    for plan in PLANS:
        print(compare(plan, repeats).row(), flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
