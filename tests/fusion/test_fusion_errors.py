"""Definitions and calls that are refused: each message names the fault, the line and a mend."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.diagnostics import (
    CallError,
    DTypeError,
    ShapeError,
    TilewrightError,
    TraceError,
    UnsupportedError,
)  # fmt: skip
from tilewright.driver.fusion import FusionDefinition
from tilewright.fusion.definition import DataType


def _pair(fd, left=(3, 4), right=(3, 4), dtype=DataType.Float):
    return fd.define_tensor(left, dtype=dtype), fd.define_tensor(right, dtype=dtype)


def _other(fd):
    return FusionDefinition().define_tensor([3])


FAULTS = {
    "shapes do not meet": (
        lambda fd: fd.ops.add(*_pair(fd, (3, 4), (3, 5))), ShapeError,
        "4 and 5 elements meet in dimension 1",
    ),
    "no such dimension": (
        lambda fd: fd.ops.sum(_pair(fd)[0], [2]), ShapeError, "there is no dimension 2",
    ),
    "dimension twice": (
        lambda fd: fd.ops.sum(_pair(fd)[0], [1, -1]), ShapeError, "name one twice",
    ),
    "reshape": (
        lambda fd: fd.ops.reshape(_pair(fd)[0], [5, 2]), ShapeError, "is reshaped to [5, 2]",
    ),
    "two open sizes": (
        lambda fd: fd.ops.reshape(_pair(fd)[0], [-1, -1]), ShapeError, "more than one size open",
    ),
    "permute": (
        lambda fd: fd.ops.permute(_pair(fd)[0], [0, 0]), ShapeError, "is no order of 2 dimensions",
    ),
    "expand": (
        lambda fd: fd.ops.expand(_pair(fd)[0], [3, 5]), ShapeError, "cannot become 5",
    ),
    "matmul sizes": (
        lambda fd: fd.ops.matmul(*_pair(fd)), ShapeError, "the columns of the left operand",
    ),
    "matmul types": (
        lambda fd: fd.ops.matmul(fd.define_tensor([3, 3]),
                                 fd.define_tensor([3, 3], dtype=DataType.Half)), DTypeError,
        "a matrix product of f32 and f16",
    ),
    "maximum of nothing": (
        lambda fd: fd.ops.max(fd.define_tensor([0, 2]), [0]), ShapeError, "over no elements",
    ),
    "mean of integers": (
        lambda fd: fd.ops.mean(_pair(fd, dtype=DataType.Int)[0]), DTypeError, "the mean of i64",
    ),
    "sub of bools": (
        lambda fd: fd.ops.sub(*_pair(fd, dtype=DataType.Bool)), DTypeError, "not defined on bool",
    ),
    "bits of floats": (
        lambda fd: fd.ops.bitwise_and(*_pair(fd)), DTypeError, "`and` is not defined on f32",
    ),
    "pad too far": (
        lambda fd: fd.ops.pad(_pair(fd)[0], [-3, -2]), ShapeError, "cut off more than there is",
    ),
    "slice stride": (
        lambda fd: fd.ops.slice(_pair(fd)[0], [0, 0], [1, 1], [0, 1]), ShapeError, "slice strides",
    ),
    "fp8 arithmetic": (
        lambda fd: fd.ops.add(fd.define_tensor([3], dtype=DataType.Float8_e4m3fn),
                              fd.define_tensor([3])), DTypeError, "have no common element type",
    ),
    "squeeze of more than one": (
        lambda fd: fd.ops.squeeze(_pair(fd)[0], [1]), ShapeError,
        "dimension 1 has 4 elements and cannot be dropped",
    ),
    "squeeze of open sizes": (
        lambda fd: fd.ops.squeeze(fd.define_tensor([-1, 3])), ShapeError,
        "which dimensions have size 1 is not known",
    ),
    "scatter": (
        lambda fd: fd.ops.scatter(_pair(fd)[0], 0), UnsupportedError,
        "`scatter` cannot be compiled yet",
    ),
    "index of floats": (
        lambda fd: fd.ops.index_select(_pair(fd)[0], fd.define_tensor([3]), 0), DTypeError,
        "an index of f32",
    ),
    "index of matrices": (
        lambda fd: fd.ops.index_select(_pair(fd)[0], _pair(fd, dtype=DataType.Int)[0], 0),
        ShapeError, "an index of 2 dimensions",
    ),
    "gather of other ranks": (
        lambda fd: fd.ops.gather(_pair(fd)[0], fd.define_tensor([3], dtype=DataType.Int), 0),
        ShapeError, "is gathered from with an index i64[3]",
    ),
    "select of no place": (
        lambda fd: fd.ops.select(_pair(fd)[0], 3, 0), ShapeError, "has no place 3",
    ),
    "unknown": (
        lambda fd: fd.ops.frobnicate(1), TraceError, "there is no operation `frobnicate`",
    ),
    "arguments": (
        lambda fd: fd.ops.add(_pair(fd)[0]), TraceError, "missing a required argument: 'b'",
    ),
    "other definition": (
        lambda fd: fd.ops.neg(_other(fd)), TraceError, "belongs to another definition",
    ),
    "strange argument": (
        lambda fd: fd.ops.neg(object()), TraceError, "cannot be an argument",
    ),
    "alias to no input": (
        lambda fd: fd.add_output(_pair(fd)[0], fd.ops.neg(_pair(fd)[0])), TraceError,
        "which is no input",
    ),
    "alias of another type": (
        lambda fd: fd.add_output(_pair(fd)[0], fd.define_tensor([3, 4], dtype=DataType.Half)),
        CallError, "is to be written to an input f16[3, 4]",
    ),
    "stride order": (
        lambda fd: fd.define_tensor([3, 4], stride_order=[1, 1]), ShapeError, "the stride order",
    ),
    "element type": (
        lambda fd: fd.define_tensor([3], dtype="float"), DTypeError, "is not an element type",
    ),
    "negative size": (
        lambda fd: fd.define_tensor([-2]), ShapeError, "the shape [-2]",
    ),
    "contiguity": (
        lambda fd: fd.define_tensor([3], contiguity=[True, True]), ShapeError, "2 contiguity flags",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_definitions(name) -> None:
    build, kind, message = FAULTS[name]
    with pytest.raises(TilewrightError) as caught:
        build(FusionDefinition())
    assert type(caught.value) is kind, caught.value
    assert message in str(caught.value)
    assert "expected:" in str(caught.value)
    assert "mend:" in str(caught.value)
    span = caught.value.diagnostic.span
    assert span is not None
    assert span.file == __file__


def _simple(**options):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4], **options)
        s = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(x * s)
    return fd


CALLS = {
    "number": ([np.zeros((2, 4), "f4")], CallError, "executed with 1 inputs"),
    "shape": ([np.zeros((2, 5), "f4"), 1.0], ShapeError, "has shape [2, 5]"),
    "rank": ([np.zeros(4, "f4"), 1.0], ShapeError, "has shape [4]"),
    "type": ([np.zeros((2, 4), "f8"), 1.0], DTypeError, "holds f64"),
    "tensor": ([1.0, 1.0], CallError, "is a float, not a tensor"),
    "scalar": ([np.zeros((2, 4), "f4"), np.zeros(3)], CallError, "input 1 is a ndarray"),
    "layout": ([np.zeros((4, 2), "f4").T, 1.0], CallError, "has stride 1 in dimension 0"),
}


@pytest.mark.parametrize("name", CALLS)
def test_faults_of_calls(name) -> None:
    inputs, kind, message = CALLS[name]
    with pytest.raises(kind) as caught:
        _simple(contiguity=True).execute(inputs)
    assert message in str(caught.value)
    assert "mend:" in str(caught.value)


def test_a_layout_that_nobody_promised_is_taken_as_it_is() -> None:
    (y,) = _simple().execute([np.ones((4, 2), "f4").T, 3.0])
    np.testing.assert_array_equal(y, np.full((2, 4), 3.0))


def test_a_finished_definition_takes_no_more() -> None:
    fd = _simple()
    with pytest.raises(CallError, match="the definition is finished"):
        fd.define_tensor([3])


def test_sizes_that_meet_only_in_the_call_are_refused_there() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(x + y)
    assert fd.execute([np.ones(3, "f4"), np.ones(1, "f4")])[0].tolist() == [2, 2, 2]
    with pytest.raises(ShapeError, match=r"(3 and 4|4 and 3) elements meet"):
        fd.execute([np.ones(3, "f4"), np.ones(4, "f4")])
