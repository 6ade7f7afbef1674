"""Errors of a program: their class, message, the line that is blamed with a caret under the right
words, what was expected, and how to mend it. Here symbols, shapes and element types; beside this
file what cannot be traced, cannot be scheduled, and cannot be called."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import Refusal, Refusals, check_refusal, name_of

import tilewright as tw
from tilewright.base.diagnostics import DTypeError, ShapeError, UndefinedSymbolError

M, N, K, D, BLOCK = tw.sym.M, tw.sym.N, tw.sym.K, tw.sym.D, tw.sym.BLOCK
G, f16, f32, i32 = tw.GLOBAL, tw.f16, tw.f32, tw.i32

# Types that many programs share.
Row = tw.Memory[M, G, f32]
Tile = tw.Memory[M, N, G, f32]
Lhs, Rhs, Out = tw.Memory[M, K, G, f16], tw.Memory[N, K, G, f16], tw.Memory[M, N, G, f32]

REFUSALS = Refusals()
refused = REFUSALS.add

# ---------------------------------------------------------------- symbols


@refused(
    UndefinedSymbolError,
    "the symbol BLOCK has no value",
    at="tw.WorkgroupConstraint(M, BLOCK, 0)",
    expected="a number for every symbol that sets a tile size",
    mend="bind it: compile(bindings={BLOCK: 128})",
)
def tile_symbol():
    @tw.kernel([tw.WorkgroupConstraint(M, BLOCK, 0)])
    def copy(x: Row, y: Row):
        tw.write(tw.read(x), y)

    copy.compile("sm_90a")


@refused(
    UndefinedSymbolError,
    "the axis K has no size",
    at="tw.Register[M, K, f32](0.0)",
    expected="an axis of a tensor argument, or a bound symbol",
    mend="bind it: compile(bindings={K: 128})",
)
def axis_of_no_tensor():
    @tw.kernel()
    def zeros(x: Row, y: Row):
        tw.write(tw.read(x) + tw.sum(tw.Register[M, K, f32](0.0), dim=K), y)

    zeros.compile("sm_90a")


@refused(
    UndefinedSymbolError,
    "the memory space SPACE of x has no value",
    at="x: tw.Memory[M, tw.sym.SPACE, f32]",
    expected="a symbol that the bindings set to tw.GLOBAL or tw.SHARED",
    mend="bindings={SPACE: tw.SHARED}",
)
def space_symbol():
    @tw.kernel()
    def copy(x: tw.Memory[M, tw.sym.SPACE, f32], y: Row):
        tw.write(tw.read(x), y)

    copy.compile("sm_90a")


@refused(
    UndefinedSymbolError,
    "the symbol PITCH has no value",
    at="x: tw.Memory[M, N, G, f32].with_strides([tw.sym.PITCH * 2, 1])",
    mend="bind it: compile(bindings={PITCH: 128})",
)
def stride_symbol():
    @tw.kernel()
    def copy(x: tw.Memory[M, N, G, f32].with_strides([tw.sym.PITCH * 2, 1]), y: Tile):
        tw.write(tw.read(x), y)

    copy.compile("sm_90a")


# ---------------------------------------------------------------- shapes


@refused(
    ShapeError,
    "the value has axes ['M', 'N'], the memory ['M']",
    at="tw.write(tw.read(x), y)",
    expected="a value over M",
    mend="reduce the value along N first",
)
def lost_axis():
    @tw.kernel()
    def row_sum(x: Tile, y: Row):
        tw.write(tw.read(x), y)

    row_sum.compile("sm_90a")


@refused(
    ShapeError,
    "mma of f16[M, K] and f16[N, D] into f32[M, K, N, D]: "
    "the operands share no axis that the accumulator lacks",
    at="tw.mma(tw.read(a), tw.read(b))",
    expected="a contracted axis in both operands",
    mend="check the axes of the accumulator's Register[...] type",
)
def nothing_contracted():
    @tw.kernel()
    def gemm(a: Lhs, b: tw.Memory[N, D, G, f16], c: Out):
        tw.write(tw.mma(tw.read(a), tw.read(b)), c)

    gemm.compile("sm_90a")


@refused(
    ShapeError,
    "axes ['M', 'N'] cannot become ['N', 'K']",
    at="tw.permute(tw.read(x), [N, K])",
    expected="the same axes in another order",
    mend="list every axis of the value once",
)
def permuted_to_other_axes():
    @tw.kernel()
    def transpose(x: Tile, y: tw.Memory[N, M, G, f32]):
        tw.write(tw.permute(tw.read(x), [N, K]), y)

    transpose.compile("sm_90a")


@refused(
    ShapeError,
    "'N' is not an axis",
    at="""tw.permute(tw.read(x), ["N", "M"])""",
    expected="a symbol, for example tw.sym.M",
    mend="name the axis with a symbol",
)
def axis_as_text():
    @tw.kernel()
    def transpose(x: Tile, y: tw.Memory[N, M, G, f32]):
        tw.write(tw.permute(tw.read(x), ["N", "M"]), y)  # type: ignore[list-item]

    transpose.compile("sm_90a")


@refused(
    ShapeError,
    "a value over ['M'] is reduced along N",
    at="tw.sum(tw.read(x), dim=N)",
    expected="one of M",
    mend="name an axis of the value in dim=",
)
def reduced_along_an_axis_that_it_lacks():
    @tw.kernel()
    def row_sum(x: Row, y: Row):
        tw.write(tw.sum(tw.read(x), dim=N), y)

    row_sum.compile("sm_90a")


@refused(
    ShapeError,
    "the condition is bool[M]",
    at="tw.conditional(tw.read(x) > 0.0)",
    expected="a bool with no axes",
    mend="reduce it along its axes, or use tw.select",
)
def condition_per_element():
    @tw.kernel()
    def positive(x: Row, y: Row):
        @tw.conditional(tw.read(x) > 0.0)
        def _():
            tw.write(tw.read(x), y)

    positive.compile("sm_90a")


@refused(
    ShapeError,
    "the axis M occurs twice",
    at="tw.Memory[M, M, G, f32]",
    expected="each axis of a tensor named once",
    mend="give the second one a symbol of its own",
)
def axis_twice():
    tw.Memory[M, M, G, f32]


@refused(
    ShapeError,
    "(M * 2) is not an axis",
    at="tw.Memory[M * 2, G, f32]",
    expected="a symbol, for example tw.sym.M",
    mend="name the axis with a symbol",
)
def axis_as_expression():
    tw.Memory[M * 2, G, f32]


@refused(
    ShapeError,
    "f32 is not a memory space",
    at="tw.Memory[M, f32, G]",
    expected="tw.GLOBAL, tw.SHARED or a symbol",
    mend="put the space before the element type",
)
def space_and_type_swapped():
    tw.Memory[M, f32, G]


@refused(
    ShapeError,
    "1 strides for 2 axes",
    at="Tile.with_strides([1])",
    expected="one stride for each of M, N",
    mend="give as many strides as the memory has axes",
)
def strides_of_another_rank():
    Tile.with_strides([1])


@refused(
    ShapeError,
    "elements_per_thread is 3",
    at="tw.read(x, elements_per_thread=3)",
    expected="a power of two",
    mend="leave it out to have it derived",
)
def odd_access():
    @tw.kernel()
    def copy(x: Row, y: Row):
        tw.write(tw.read(x, elements_per_thread=3), y)

    copy.compile("sm_90a")


@refused(
    ShapeError,
    "the axis M is bound to 0 elements",
    at="x: Row",
    expected="at least one element",
    mend="bind M to its size, or leave it open",
)
def axis_of_no_elements():
    @tw.kernel()
    def copy(x: Row, y: Row):
        tw.write(tw.read(x), y)

    copy.compile("sm_90a", {M: 0})


# ---------------------------------------------------------------- element types


@refused(
    DTypeError,
    "a value of f32 is written to a memory of f16",
    at="tw.write(tw.read(x), y)",
    expected="a value of f16",
    mend="tw.cast(value, tw.f16)",
)
def written_as_another_type():
    @tw.kernel()
    def narrow(x: Row, y: tw.Memory[M, G, f16]):
        tw.write(tw.read(x), y)

    narrow.compile("sm_90a")


@refused(
    DTypeError,
    "`+` of f32 and f16",
    at="tw.read(x) + tw.read(y)",
    expected="operands of one element type",
    mend="cast one of them, for example tw.cast(x, tw.f32)",
)
def types_mixed():
    @tw.kernel()
    def add(x: Row, y: tw.Memory[M, G, f16]):
        tw.write(tw.read(x) + tw.read(y), y)

    add.compile("sm_90a")


@refused(
    DTypeError,
    "`exp` is not defined on i32",
    at="tw.exp(tw.read(x))",
    expected="a float type",
    mend="cast the operand first",
)
def float_function_of_integers():
    @tw.kernel()
    def grow(x: tw.Memory[M, G, i32], y: tw.Memory[M, G, i32]):
        tw.write(tw.exp(tw.read(x)), y)

    grow.compile("sm_90a")


@refused(
    DTypeError,
    "`-` is not defined on bool",
    at="(x > 0.0) - (x < 0.0)",
    expected="an integer or float type",
    mend="cast the operand first",
)
def arithmetic_of_bools():
    @tw.kernel()
    def sign(a: Row, y: tw.Memory[M, G, tw.boolean]):
        x = tw.read(a)
        tw.write((x > 0.0) - (x < 0.0), y)

    sign.compile("sm_90a")


@refused(
    DTypeError,
    "0.5 is not a number of i32",
    at="tw.read(x) + 0.5",
    expected="a whole number from -2147483648 to 2147483647",
    mend="give another number, or cast what it meets",
)
def fraction_with_integers():
    @tw.kernel()
    def shift(x: tw.Memory[M, G, i32], y: tw.Memory[M, G, i32]):
        tw.write(tw.read(x) + 0.5, y)

    shift.compile("sm_90a")


@refused(
    DTypeError,
    "1000 is not a number of i8",
    at="tw.Register[M, tw.i8](1000)",
    expected="a whole number from -128 to 127",
    mend="give another number",
)
def constant_out_of_range():
    @tw.kernel()
    def fill(y: tw.Memory[M, G, tw.i8]):
        tw.write(tw.Register[M, tw.i8](1000), y)

    fill.compile("sm_90a")


@refused(
    DTypeError,
    "<class 'numpy.float32'> is not an element type",
    at="tw.cast(tw.read(x), np.float32)",
    expected="an element type of tilewright, for example tw.f16",
    mend="in Memory[axes.., space, dtype] and Register[axes.., dtype] it comes last",
)
def type_of_another_library():
    @tw.kernel()
    def copy(x: Row, y: Row):
        tw.write(tw.cast(tw.read(x), np.float32), y)  # type: ignore[arg-type]

    copy.compile("sm_90a")


@refused(
    DTypeError,
    "a value of f32 is cast to bool",
    at="tw.cast(tw.read(x), tw.boolean)",
    expected="a comparison",
    mend="write value != 0",
)
def cast_to_bool():
    @tw.kernel()
    def any_of(x: Row, y: tw.Memory[M, G, tw.boolean]):
        tw.write(tw.cast(tw.read(x), tw.boolean), y)

    any_of.compile("sm_90a")


@refused(
    DTypeError,
    "mma of f16 adds to an accumulator of i32",
    at="tw.mma(tw.read(a), tw.read(b), tw.Register[M, N, i32](0))",
    expected="an accumulator of f32",
    mend="tw.Register[.., tw.f32](0)",
)
def accumulator_of_another_kind():
    @tw.kernel()
    def gemm(a: Lhs, b: Rhs, c: tw.Memory[M, N, G, i32]):
        tw.write(tw.mma(tw.read(a), tw.read(b), tw.Register[M, N, i32](0)), c)

    gemm.compile("sm_90a")


@pytest.mark.parametrize("refusal", REFUSALS, ids=name_of)
def test_refused_with_its_line_and_its_mend(refusal: Refusal) -> None:
    check_refusal(refusal)
