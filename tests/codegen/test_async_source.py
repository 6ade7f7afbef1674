"""Asynchronous statements as CUDA: what is printed, that it compiles, and that a device agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from async_kernels import CASES, Case, arguments, product

from tilewright.base.diagnostics import UnsupportedError
from tilewright.codegen import print_cuda, print_hip
from tilewright.codegen.sim import simulate
from tilewright.kernel.async_ops import Arrive, ClusterArrive, PhaseRef, SetRegisters
from tilewright.kernel.ops import Kernel, Statement
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import check
from tilewright.poly.expr import Expr
from tilewright.runtime.cuda_driver import DeviceMemory, load_module, synchronize
from tilewright.runtime.launch import bind_launch
from tilewright.runtime.tensor_maps import map_encoders
from tilewright.runtime.toolchain import Nvrtc, compile_source
from tilewright.target import target_named
from tilewright.target.nvidia import SM_90A

V = Expr.of


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases_are_legal_and_come_back_from_text(case: Case) -> None:
    kernel = product(case)
    check(kernel, SM_90A)
    assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sources_compile_without_spills(case: Case) -> None:
    found = Nvrtc().resources(print_cuda(product(case), SM_90A), SM_90A)
    assert (found.stack, found.spilled) == (0, 0)


def test_the_descriptor_of_each_swizzle() -> None:
    """Leading stride, stride of eight rows, and the mode that the PTX ISA numbers 1, 2, 3."""
    for swizzle, mode in ((128, 1), (64, 2), (32, 3)):
        source = print_cuda(product(Case(swizzle)), SM_90A)
        assert f"tw_matrix_descriptor<16, {8 * swizzle}, {mode}>(" in source
    assert "(tw_shared_address(p) & 0x3ffff) >> 4" in source  # no bits of the block's rank


def test_operands_across_go_on_in_panels() -> None:
    source = print_cuda(product(Case(b_across=True)), SM_90A)
    assert "tw_wgmma_m64n128k16_f32_bf16<0, 1>(" in source
    assert f"tw_matrix_descriptor<{128 * 128}, 1024, 1>(sb, kk * 128)" in source


def test_boxes_name_the_last_axis_first() -> None:
    source = print_cuda(product(CASES[0]), SM_90A)
    assert re.search(r"tw_bulk_load_2d\(sa \+ panel \* 4096, box_a, full, 0, panel \* 64\)", source)
    assert '[%0], [%1, {%3, %4}], [%2];"' in source
    assert '"r"(c1), "r"(c0)' in source


def test_the_encoder_has_the_last_axis_first() -> None:
    case = Case(sizes=(56, 104, 120))
    a, _ = map_encoders(product(case), {})
    assert (a.extents, a.strides, a.box, a.swizzle) == ((120, 56), (240,), (64, 64), 128)


def _with(kernel: Kernel, *more: Statement) -> Kernel:
    return replace(kernel, body=(*kernel.body, *more))


def test_a_kernel_with_roles_states_its_blocks_per_multiprocessor() -> None:
    plain, roles = product(CASES[0]), _with(product(CASES[0]), SetRegisters(40, grow=False))
    assert "__launch_bounds__(128) product" in print_cuda(plain, SM_90A)
    assert "__launch_bounds__(128, 1) product" in print_cuda(roles, SM_90A)


def test_arrivals_in_other_blocks_map_the_address() -> None:
    kernel = _with(
        replace(product(CASES[0]), cluster=2),
        ClusterArrive(),
        Arrive(PhaseRef("full", V(0)), V(1)),
    )
    source = print_cuda(kernel, SM_90A)
    assert "tw_arrive_in_block(full, 1);" in source
    assert "mapa.shared::cluster.u32" in source
    assert "__cluster_dims__(2, 1, 1)" in source


def test_other_back_ends_refuse() -> None:
    kernel = replace(product(CASES[0]), target="gfx942", body=(SetRegisters(40, grow=False),))
    with pytest.raises(UnsupportedError, match="the HIP back end has no tensor map box_a"):
        print_hip(kernel, target_named("gfx942"))
    with pytest.raises(UnsupportedError, match="the HIP back end has no SetRegisters"):
        print_hip(replace(kernel, maps=()), target_named("gfx942"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_on_the_simulator(case: Case) -> None:
    a, b, found, want = arguments(case)
    simulate(product(case), SM_90A, {"a": a, "b": b, "d": found}, {})
    np.testing.assert_array_equal(found, want)


# ---------------------------------------------------------------- on a device


@pytest.fixture
def memory() -> Iterator[list[DeviceMemory]]:
    kept: list[DeviceMemory] = []
    yield kept
    for block in kept:
        block.free()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_on_the_device(case: Case, memory: list[DeviceMemory]) -> None:
    kernel = product(case)
    *tensors, want = arguments(case)
    module = load_module(compile_source(print_cuda(kernel, SM_90A), SM_90A), kernel.shared_bytes)
    for tensor in tensors:
        memory.append(DeviceMemory(tensor.nbytes))
        memory[-1].write(tensor.ctypes.data)
    bind_launch(module, kernel, {}, {})(0, *(block.pointer for block in memory))
    synchronize()
    found: np.ndarray[Any, Any] = tensors[2]
    memory[2].read(found.ctypes.data)
    np.testing.assert_array_equal(found, want)
