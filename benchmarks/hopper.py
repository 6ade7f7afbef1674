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

SIZES = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 8192, 1280),
    (8192, 28672, 4096),
)
CLUSTERS = (1, 2)
PLANS = (
    *(Plan(*size, group=16, cluster=cluster) for size in SIZES for cluster in CLUSTERS),
    Plan(4096, 4096, 128, stages=2, group=16),
    *(
        Plan(8192, 8192, 8192, group=16, cluster=cluster, a_across=a_across, b_across=b_across)
        for a_across, b_across in ((False, True), (True, False), (True, True))
        for cluster in CLUSTERS
    ),
)


def compare(plan: Plan, repeats: int) -> Comparison:
    """One product of random matrices, checked in float64 and timed in turn with it."""
    kernel = gemm(plan)
    use_device(0)
    module = load_module(compile_source(emit(kernel, SM_90A), SM_90A), kernel.shared_bytes)
    launch = bind_launch(module, kernel, {}, {})
    torch.manual_seed(0)
    a = torch.randn(plan.m, plan.k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(plan.k, plan.n, device="cuda", dtype=torch.bfloat16)
    # The same matrices, stored as the plan says.
    a = a.T.contiguous().T if plan.a_across else a
    b = b if plan.b_across else b.T.contiguous().T
    c = torch.full((plan.m, plan.n), torch.nan, device="cuda", dtype=torch.bfloat16)
    pointers = [tensor.data_ptr() for tensor in (a, b, c)]
    stream = current_stream(0)
    launch(stream, *pointers)
    torch.cuda.synchronize()
    rows = slice(0, None, max(1, plan.m // 1024))
    error = relative_error(c[rows], a[rows].double() @ b.double())
    ours, peer = in_turn(lambda: launch(stream, *pointers), lambda: a @ b, repeats)
    order = "NT"[plan.a_across] + "TN"[plan.b_across]
    size = f"{plan.m} x {plan.n} x {plan.k} {order}"
    name = f"{size}, clusters of {plan.cluster}, groups of {plan.group}"
    return Comparison(name, ours, peer, error, 2.0 * plan.m * plan.n * plan.k, "TFLOP/s")


def main(repeats: int = 30) -> None:
    print(HEADER, flush=True)
    for plan in PLANS:
        print(compare(plan, repeats).row(), flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
