"""Calls and compilations whose arguments do not fit the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from refusals import Refusal, Refusals, check_refusal, name_of

import tilewright as tw
from tilewright.base.diagnostics import CallError, DTypeError, ShapeError, TraceError

M, N, D = tw.sym.M, tw.sym.N, tw.sym.D
G, f32 = tw.GLOBAL, tw.f32

REFUSALS = Refusals()
refused = REFUSALS.add


@tw.kernel()
def scale(x: tw.Memory[M, N, G, f32], factor: tw.f32, y: tw.Memory[M, N, G, f32]):
    tw.write(tw.read(x) * factor, y)


@tw.kernel()
def shift(x: tw.Memory[M, G, tw.i32], by: tw.i32, y: tw.Memory[M, G, tw.i32]):
    tw.write(tw.read(x) + by, y)


@tw.kernel()
def both(x: tw.Memory[M, G, f32], y: tw.Memory[M, G, f32], z: tw.Memory[M, G, f32]):
    tw.write(tw.read(x), y)
    tw.write(tw.read(x) + 1.0, z)


X = "x: tw.Memory[M, N, G, f32]"
Y = "y: tw.Memory[M, N, G, f32]"
SCALE = f"def scale({X}, factor: tw.f32, {Y}):"


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@dataclass
class OnDevice:
    """A torch tensor as far as tilewright looks at one, on a device that does not exist."""

    shape: tuple[int, ...]
    device: SimpleNamespace
    dtype: str = "torch.float32"

    def data_ptr(self) -> int:
        return 4096

    def stride(self) -> tuple[int, ...]:
        return (self.shape[1], 1)


def cuda(index: int) -> SimpleNamespace:
    return SimpleNamespace(type="cuda", index=index)


# ---------------------------------------------------------------- number and kind


@refused(
    CallError,
    "scale is called with 1 argument",
    at=SCALE,
    expected="3: x, factor, y",
    mend="pass one argument for each parameter",
)
def too_few_arguments():
    scale(zeros(4, 4))


@refused(
    CallError,
    "scale is called with 4 arguments",
    at=SCALE,
    expected="3: x, factor, y",
    mend="pass one argument for each parameter",
)
def too_many_arguments():
    scale(zeros(4, 4), 1.0, zeros(4, 4), 2.0)


@refused(
    CallError,
    "scale is called with 3 arguments: missing a required argument: 'y'",
    at=SCALE,
    expected="3: x, factor, y",
    mend="pass one argument for each parameter",
)
def argument_of_another_name():
    scale(zeros(4, 4), factor=1.0, z=zeros(4, 4))


@refused(
    CallError,
    "y is a list, not a tensor",
    at=Y,
    expected="a NumPy array, a torch tensor, or an object with DLPack",
    mend="convert it, for example with numpy.asarray",
)
def list_for_a_tensor():
    scale(zeros(1, 4), 1.0, [[0.0, 0.0, 0.0, 0.0]])


@refused(
    CallError,
    "factor is a ndarray, not a number",
    at=SCALE,
    expected="a number of f32",
    mend="pass a Python number",
)
def tensor_for_a_scalar():
    scale(zeros(4, 4), zeros(4, 4), zeros(4, 4))


@refused(
    CallError,
    "factor is a str, not a number",
    at=SCALE,
    expected="a number of f32",
    mend="pass a Python number",
)
def text_for_a_scalar():
    scale(zeros(4, 4), "2.0", zeros(4, 4))


@refused(
    DTypeError,
    "by = 2.5 is not a number of i32",
    at="def shift(x: tw.Memory[M, G, tw.i32], by: tw.i32, y: tw.Memory[M, G, tw.i32]):",
    expected="a whole number from -2147483648 to 2147483647",
    mend="give another number",
)
def fraction_for_an_integer():
    shift(np.zeros(4, np.int32), 2.5, np.zeros(4, np.int32))


@refused(
    DTypeError,
    "by = 4294967296 is not a number of i32",
    at="def shift(x: tw.Memory[M, G, tw.i32], by: tw.i32, y: tw.Memory[M, G, tw.i32]):",
    expected="a whole number from -2147483648 to 2147483647",
    mend="give another number",
)
def integer_out_of_range():
    shift(np.zeros(4, np.int32), 1 << 32, np.zeros(4, np.int32))


@refused(
    TraceError,
    "a kernel is called inside a kernel, with x = memory x: f32[M, N]",
    at="scale(x, 2.0, y)",
    expected="a call with tensors",
    mend="make the called kernel a plain Python function",
)
def kernel_in_a_kernel():
    @tw.kernel()
    def outer(x: tw.Memory[M, N, G, f32], y: tw.Memory[M, N, G, f32]):
        scale(x, 2.0, y)

    outer.compile("sm_90a")


# ---------------------------------------------------------------- tensors


@refused(
    DTypeError,
    "x holds f64",
    at=X,
    expected="f32",
    mend="convert the tensor, or change the argument's type",
)
def other_element_type():
    scale(np.zeros((4, 4)), 1.0, zeros(4, 4))


@refused(
    DTypeError,
    "x has element type complex64",
    at=X,
    expected="one of float64, float32",
    mend="convert the tensor before the call",
)
def element_type_that_nobody_knows():
    scale(np.zeros((4, 4), np.complex64), 1.0, zeros(4, 4))


@refused(
    ShapeError,
    "x has 3 dimensions",
    at=X,
    expected="2: M, N",
    mend="reshape the tensor, or change the argument's type",
)
def other_rank():
    scale(zeros(4, 4, 1), 1.0, zeros(4, 4))


@refused(
    ShapeError,
    "y has 5 elements along N, x 4",
    at=Y,
    expected="one size of N in all arguments",
    mend="check the shapes and the order of the arguments",
)
def sizes_that_disagree():
    scale(zeros(4, 4), 1.0, zeros(4, 5))


@refused(
    ShapeError,
    "x has 5 elements along M",
    at=X,
    expected="4, for which the kernel was compiled",
    mend="compile without binding M, or pass a tensor of that size",
)
def other_size_than_compiled_for():
    scale.compile("sm_90a", {M: 4})(zeros(5, 4), 1.0, zeros(5, 4))


@refused(
    ShapeError,
    "M is 7",
    at=X,
    expected="at least 1, below 2**31, a multiple of 4",
    mend="compile without that assumption, or pass other shapes",
)
def size_that_breaks_an_assumption():
    scale.compile("sm_90a", multiples={"M": 4})(zeros(7, 4), 1.0, zeros(7, 4))


@refused(
    ShapeError,
    "x has 0 elements along M",
    at=X,
    expected="at least one element along each axis",
    mend="do not call the kernel where a tensor is empty",
)
def empty_tensor():
    scale(zeros(0, 4), 1.0, zeros(0, 4))


@refused(
    CallError,
    "x has stride 1 along M",
    at=X,
    expected="4, for which the kernel was compiled",
    mend="make the tensor contiguous, or compile with strides={'x': ...}",
)
def columns_for_a_kernel_of_rows():
    scale.compile("sm_90a", {M: 4, N: 4})(zeros(4, 4).T, 1.0, zeros(4, 4))


@refused(
    CallError,
    "y is written but cannot be",
    at=Y,
    expected="a writable tensor",
    mend="pass a tensor that is not read-only",
)
def read_only_output():
    out = zeros(4, 4)
    out.flags.writeable = False
    scale(zeros(4, 4), 1.0, out)


@refused(
    CallError,
    "elements of y share memory: its strides are (0, 1)",
    at=Y,
    expected="a written tensor whose elements have addresses of their own",
    mend="pass a contiguous tensor and copy it afterwards",
)
def output_of_stride_zero():
    scale(zeros(4, 4), 1.0, np.lib.stride_tricks.as_strided(zeros(4), (4, 4), (0, 4)))


@refused(
    CallError,
    "elements of y share memory: its strides are (2, 1)",
    at=Y,
    expected="a written tensor whose elements have addresses of their own",
    mend="pass a contiguous tensor and copy it afterwards",
)
def output_of_overlapping_rows():
    scale(zeros(4, 4), 1.0, np.lib.stride_tricks.as_strided(zeros(16), (4, 4), (8, 4)))


@refused(
    CallError,
    "y and x share memory, and y is written",
    at=Y,
    expected="written tensors with memory of their own",
    mend="pass a copy; to update a tensor in place, read and write one argument",
)
def output_over_an_input():
    whole = zeros(8, 4)
    scale(whole[:4], 1.0, whole[3:7])


@refused(
    CallError,
    "y and z share memory, and y is written",
    at="y: tw.Memory[M, G, f32]",
    expected="written tensors with memory of their own",
    mend="pass a copy",
)
def two_outputs_in_one_place():
    out = zeros(64)
    both(zeros(64), out, out)


@refused(
    CallError,
    "x is aligned to 4 bytes",
    at=X,
    expected="16 bytes, for which the kernel was compiled",
    mend="compile with alignments={'x': 4}",
)
def tensor_off_its_alignment():
    place = np.zeros(64, np.float32)
    start = (-place.ctypes.data // 4) % 4 + 1  # one element past a multiple of 16 bytes
    scale.compile("sm_90a", {M: 4, N: 4})(
        place[start : start + 16].reshape(4, 4), 1.0, np.zeros((4, 4), np.float32)
    )


# ---------------------------------------------------------------- devices


@refused(
    CallError,
    "y is on cuda:1, x on cuda:0",
    at=Y,
    expected="all tensors on one device",
    mend="move y to cuda:0",
)
def tensors_of_two_devices():
    scale(OnDevice((4, 4), cuda(0)), 1.0, OnDevice((4, 4), cuda(1)))


@refused(
    CallError,
    "y is on cpu, x on cuda:0",
    at=Y,
    expected="all tensors on one device",
    mend="move y to cuda:0",
)
def array_beside_a_device_tensor():
    scale(OnDevice((4, 4), cuda(0)), 1.0, zeros(4, 4))


@refused(
    CallError,
    "the tensors are on mps:0",
    at="",
    expected="a CUDA device of architecture sm_90",
    mend="pass NumPy arrays to run on the simulator",
)
def device_without_a_target():
    mps = SimpleNamespace(type="mps", index=None)
    scale(OnDevice((4, 4), mps), 1.0, OnDevice((4, 4), mps))


# ---------------------------------------------------------------- compiling


@refused(
    CallError,
    "M is bound to 3.5",
    at='scale.compile("sm_90a", {M: 3.5})',
    expected="a whole number, or a memory space",
    mend="leave the symbol out to keep its size open",
)
def fraction_for_a_size():
    scale.compile("sm_90a", {M: 3.5})


@refused(
    CallError,
    "strides are given for z, which is no tensor of scale",
    at=SCALE,
    expected="tensors among x, y",
    mend="use the names of the kernel's arguments",
)
def strides_of_no_tensor():
    scale.compile("sm_90a", {M: 4, N: 4}, strides={"z": (4, 1)})


@refused(
    ShapeError,
    "x is given 3 strides",
    at=X,
    expected="2: one for each of M, N",
    mend="give the strides in elements, in the order of the axes",
)
def strides_of_another_rank():
    scale.compile("sm_90a", {M: 4, N: 4}, strides={"x": (4, 4, 1)})


@refused(
    CallError,
    "elements of y share memory: its strides are (0, 1)",
    at=Y,
    expected="a written tensor whose elements have addresses of their own",
    mend="pass a contiguous tensor",
)
def stride_zero_for_an_output():
    scale.compile("sm_90a", {M: 4, N: 4}, strides={"y": (0, 1)})


@refused(
    CallError,
    "x is said to be aligned to 3 bytes",
    at=X,
    expected="a power of two from 4, the size of its elements",
    mend="leave the alignment out",
)
def alignment_of_three():
    scale.compile("sm_90a", alignments={"x": 3})


@refused(
    CallError,
    "M is said to be a multiple of 0",
    at=SCALE,
    expected="a positive divisor",
    mend="leave it out where nothing is known",
)
def multiple_of_nothing():
    scale.compile("sm_90a", multiples={"M": 0})


@refused(
    CallError,
    "D is named in dynamic, but no tensor of copy has that axis",
    at="def copy(x: tw.Memory[M, G, f32], y: tw.Memory[M, G, f32]):",
    expected="axes among M",
    mend="remove it, or name an axis",
)
def open_axis_of_no_tensor():
    @tw.kernel(dynamic=[D])
    def copy(x: tw.Memory[M, G, f32], y: tw.Memory[M, G, f32]):
        tw.write(tw.read(x), y)


@refused(
    CallError,
    "@tw.kernel is given a WorkgroupConstraint",
    at="tw.kernel(tw.WorkgroupConstraint(M, 16, 0))",
    expected="a list of WorkgroupConstraint, TilingConstraint, WaveConstraint and",
    mend="put the constraints in a list",
)
def constraint_without_a_list():
    tw.kernel(tw.WorkgroupConstraint(M, 16, 0))  # type: ignore[arg-type]


@refused(
    CallError,
    "@tw.kernel is used without parentheses",
    at="tw.kernel",
    expected="@tw.kernel() or @tw.kernel([constraints])",
    mend="write @tw.kernel()",
)
def decorator_without_parentheses():
    @tw.kernel  # type: ignore[arg-type]
    def copy(x: tw.Memory[M, G, f32], y: tw.Memory[M, G, f32]):
        tw.write(tw.read(x), y)


@pytest.mark.parametrize("refusal", REFUSALS, ids=name_of)
def test_refused_with_its_line_and_its_mend(refusal: Refusal) -> None:
    check_refusal(refusal)


# ---------------------------------------------------------------- what is not an error


def test_arguments_by_name() -> None:
    out = zeros(2, 3)
    scale(y=out, x=np.ones((2, 3), np.float32), factor=3.0)
    assert (out == 3.0).all()


def test_a_scalar_may_have_a_default() -> None:
    @tw.kernel()
    def grow(x: tw.Memory[M, G, f32], y: tw.Memory[M, G, f32], by: tw.f32 = 2.0):
        tw.write(tw.read(x) + by, y)

    out = zeros(5)
    grow(zeros(5), out)
    assert (out == 2.0).all()
    grow(zeros(5), out, 3.0)
    assert (out == 3.0).all()


@pytest.mark.parametrize(
    "factor", [3, 3.0, np.float32(3), np.int64(3), np.float16(3), ml_dtypes.bfloat16(3)], ids=repr
)
def test_numbers_of_any_library(factor: float) -> None:
    out = zeros(2, 3)
    scale(np.ones((2, 3), np.float32), factor, out)
    assert (out == 3.0).all()


def test_views_of_one_array_that_do_not_meet() -> None:
    whole = np.ones((4, 8), np.float32)
    scale(whole[:, :4], 2.0, whole[:, 4:])
    assert (whole[:, 4:] == 2.0).all()
    interleaved = np.ones((4, 8), np.float32)
    scale(interleaved[:, ::2], 2.0, interleaved[:, 1::2])
    assert (interleaved[:, 1::2] == 2.0).all()
    assert (interleaved[:, ::2] == 1.0).all()


def test_inputs_may_share_memory_and_have_stride_zero() -> None:
    out = zeros(3, 4)
    row = np.arange(4, dtype=np.float32)
    scale(np.broadcast_to(row, (3, 4)), 2.0, out)
    assert (out == 2.0 * row).all()


def test_a_tensor_may_be_updated_in_place() -> None:
    @tw.kernel()
    def double(x: tw.Memory[M, N, G, f32]):
        tw.write(tw.read(x) * 2.0, x)

    x = np.ones((100, 30), np.float32)
    double(x)
    assert (x == 2.0).all()
