"""Programs that cannot be traced: Python on values, values out of place, bodies of loops."""

from __future__ import annotations

import math

import pytest
from refusals import Refusal, Refusals, check_refusal, name_of

import tilewright as tw
from tilewright.base.diagnostics import DTypeError, ShapeError, TraceError

M, N = tw.sym.M, tw.sym.N
G, f16, f32 = tw.GLOBAL, tw.f16, tw.f32
Row, Tile = tw.Memory[M, G, f32], tw.Memory[M, N, G, f32]

REFUSALS = Refusals()
refused = REFUSALS.add


@refused(
    TraceError,
    "the truth of a value is not known while tracing",
    at="value > 0.0",
    expected="tw.select for a choice per element, tw.conditional for a guarded part",
    mend="replace the Python `if`",
)
def python_if():
    @tw.kernel()
    def relu(x: Row, y: Row):
        value = tw.read(x)
        if value > 0.0:
            tw.write(value, y)

    relu.compile("sm_90a")


@refused(
    TraceError,
    "the truth of a value is not known while tracing",
    at="max(tw.read(x), 0.0)",
    mend="replace the Python `if`, `and`, `or`, `not`, `min` or `max` on a value",
)
def python_max():
    @tw.kernel()
    def relu(x: Row, y: Row):
        tw.write(max(tw.read(x), 0.0), y)

    relu.compile("sm_90a")


@refused(
    TraceError,
    "a value is not a number while tracing",
    at="math.exp(tw.read(x))",
    expected="the functions of tilewright on values",
    mend="use tw.exp and its like, not those of math",
)
def function_of_math():
    @tw.kernel()
    def grow(x: Row, y: Row):
        tw.write(math.exp(tw.read(x)), y)  # type: ignore[arg-type]

    grow.compile("sm_90a")


@refused(
    TraceError,
    "a value cannot be indexed, unpacked or looped over",
    at="tw.read(x)[0]",
    expected="operations on the whole value",
    mend="use tw.iterate for a loop over an axis",
)
def element_of_a_value():
    @tw.kernel()
    def first(x: Row, y: Row):
        tw.write(tw.read(x)[0], y)

    first.compile("sm_90a")


@refused(
    TraceError,
    "a memory is used like a value",
    at="x * 2.0",
    expected="a value: what tw.read gives",
    mend="read the memory first: tw.read(x)",
)
def arithmetic_on_a_memory():
    @tw.kernel()
    def double(x: Row, y: Row):
        tw.write(x * 2.0, y)

    double.compile("sm_90a")


@refused(
    TraceError,
    "the program fails while it is traced: sum() missing 1 required keyword-only argument: 'dim'",
    at="tw.sum(tw.read(x))",
    expected="tile operations on values, and Python on everything else",
    mend="see the cause above",
)
def wrong_use_of_python():
    @tw.kernel()
    def row_sum(x: Tile, y: Row):
        tw.write(tw.sum(tw.read(x)), y)

    row_sum.compile("sm_90a")


@refused(
    TraceError,
    "a value is used outside the loop or condition that made it",
    at="tw.write(inside[0], y)",
    expected="values of an iterate body returned from it and used through its result",
    mend="return the value from the body and add a matching entry to init_args",
)
def value_outside_its_loop():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def row_sum(x: Tile, y: Row):
        inside = []

        @tw.iterate(N, init_args=[tw.Register[M, f32](0.0)])
        def total(acc):
            inside.append(tw.sum(tw.read(x), dim=N))
            return acc + inside[0]

        tw.write(inside[0], y)

    row_sum.compile("sm_90a", {M: 32, N: 32})


@refused(
    TraceError,
    "the operand was made by another kernel",
    at="tw.read(x) + kept[0]",
    expected="a value of the kernel that is being traced",
    mend="compute it in this kernel, or pass it through a tensor",
)
def value_of_another_kernel():
    kept = []

    @tw.kernel()
    def copy(x: Row, y: Row):
        kept.append(tw.read(x))
        tw.write(kept[0], y)

    @tw.kernel()
    def add(x: Row, y: Row):
        tw.write(tw.read(x) + kept[0], y)

    copy.compile("sm_90a", {M: 32})
    add.compile("sm_90a", {M: 32})


@refused(
    TraceError,
    "the body of iterate returns 0 values for 1 init_args",
    at="tw.iterate(N, init_args=[tw.Register[M, f32](0.0)])",
    expected="one returned value for each carried value",
    mend="return the new value of each init_args entry",
)
def body_returns_nothing():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def row_sum(x: Tile, y: Row):
        @tw.iterate(N, init_args=[tw.Register[M, f32](0.0)])
        def total(acc):
            acc += tw.sum(tw.read(x), dim=N)

        tw.write(total, y)

    row_sum.compile("sm_90a")


@refused(
    TraceError,
    "the body of iterate cannot take 1 carried values: too many positional arguments",
    at="tw.iterate(N, init_args=[tw.Register[M, f32](0.0)])",
    expected="one parameter for each entry of init_args",
    mend="give the body a parameter per carried value",
)
def body_without_parameters():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def row_sum(x: Tile, y: Row):
        @tw.iterate(N, init_args=[tw.Register[M, f32](0.0)])
        def total():
            return tw.sum(tw.read(x), dim=N)

        tw.write(total, y)

    row_sum.compile("sm_90a")


@refused(
    DTypeError,
    "the loop carries f32[M] in place 0, but its body returns f16[M]",
    at="tw.cast(acc, f16)",
    expected="f32[M]",
    mend="make the initial value and the returned value agree",
)
def carried_value_changes_its_type():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def row_sum(x: Tile, y: Row):
        @tw.iterate(N, init_args=[tw.Register[M, f32](0.0)])
        def total(acc):
            return tw.cast(acc, f16)

        tw.write(total, y)

    row_sum.compile("sm_90a")


@refused(
    ShapeError,
    "the loop over N carries f32[M, N], which has that axis",
    at="tw.iterate(N, init_args=[tw.Register[M, N, f32](0.0)])",
    expected="carried values without N: a step sees one tile of it only",
    mend="reduce the value along N in the body, or write it there",
)
def loop_carries_its_own_axis():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def running(x: Tile, y: Tile):
        @tw.iterate(N, init_args=[tw.Register[M, N, f32](0.0)])
        def total(acc):
            return acc + tw.read(x)

        tw.write(total, y)

    running.compile("sm_90a")


@refused(
    TraceError,
    "a loop over N inside a loop over N",
    at="tw.iterate(N)",
    expected="nested loops over different axes",
    mend="let one loop do the work of both",
)
def loop_in_a_loop_over_one_axis():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def copy(x: Tile, y: Tile):
        @tw.iterate(N, init_args=[])
        def _():
            @tw.iterate(N)
            def _():
                tw.write(tw.read(x), y)

    copy.compile("sm_90a")


@refused(
    TraceError,
    "a tile operation is used outside a kernel",
    at="tw.exp(1.0)",
    expected="tile operations inside a function marked @tw.kernel",
    mend="move the operation into the kernel's body",
)
def operation_outside_a_kernel():
    tw.exp(1.0)  # type: ignore[arg-type]


@refused(
    TraceError,
    "the argument x has no tile type",
    at="x",
    expected="every argument annotated with Memory[axes.., space, dtype] or a dtype",
    mend="for example x: Memory[M, N, tw.GLOBAL, tw.f16]",
)
def argument_without_a_type():
    @tw.kernel()
    def copy(x, y: Row):
        tw.write(tw.read(x), y)


@refused(
    TraceError,
    "the argument tensors stands for any number of arguments",
    at="tensors: Row",
    expected="one parameter for each tensor and scalar",
    mend="name the arguments one by one",
)
def any_number_of_arguments():
    @tw.kernel()
    def copy(*tensors: Row):
        tw.write(tw.read(tensors[0]), tensors[1])


@refused(
    TraceError,
    "x is a memory of another kernel",
    at="tw.read(kept[0])",
    expected="a memory of the kernel that is being traced",
    mend="pass the tensor as an argument of this kernel too",
)
def memory_of_another_kernel():
    kept = []

    @tw.kernel()
    def copy(x: Row, y: Row):
        kept.append(x)
        tw.write(tw.read(x), y)

    @tw.kernel()
    def steal(y: Row):
        tw.write(tw.read(kept[0]), y)

    copy.compile("sm_90a", {M: 32})
    steal.compile("sm_90a", {M: 32})


@refused(
    ShapeError,
    "the axis M occurs twice",
    at="x: tw.Memory[M, M, G, f32]",
    mend="give the second one a symbol of its own",
)
def axis_twice_in_an_annotation():
    @tw.kernel()
    def copy(x: tw.Memory[M, M, G, f32], y: Row):
        tw.write(tw.read(x), y)


@refused(
    TraceError,
    "an annotation of copy names Unknown, which cannot be found",
    at="x: Unknown",
    expected="annotations that name what is visible where the kernel is defined",
    mend="define the name beside the kernel",
)
def annotation_of_no_name():
    @tw.kernel()
    def copy(x: Unknown, y: Row):  # type: ignore[name-defined]  # noqa: F821
        tw.write(tw.read(x), y)


@pytest.mark.parametrize("refusal", REFUSALS, ids=name_of)
def test_refused_with_its_line_and_its_mend(refusal: Refusal) -> None:
    check_refusal(refusal)
