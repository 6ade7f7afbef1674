"""Graphs print as text that reads back to the same graph."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.base.diagnostics import KernelTextError
from tilewright.base.dtypes import f16, f32
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Type
from tilewright.graph.text import parse_graph, print_graph, strip_spans
from tilewright.graph.verify import check_graph
from tilewright.lang.program import trace_program
from tilewright.poly.expr import Expr

sys.path.append(str(Path(__file__).parents[1] / "corpus"))
from programs import CASES, Case

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K


def graph_of(kernel: tw.TileKernel, **sizes: int) -> Graph:
    spaces = {n: v for n, v in kernel.bindings.items() if isinstance(v, tw.Space)}
    return trace_program(kernel.program, sizes, spaces)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_corpus_reads_back(case: Case) -> None:
    for sizes in ({**case.sizes[0], "D": 4}, {"D": 4}):
        graph = graph_of(case.make(), **sizes)
        text = print_graph(graph)
        again = parse_graph(text)
        assert again == strip_spans(graph)
        assert print_graph(again) == text
        check_graph(again)


def test_one_operation_a_line() -> None:
    @tw.kernel()
    def product(
        a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.f16].with_strides([1, tw.sym.PITCH]),
        bias: tw.f32,
        c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
    ):
        tile = tw.allocate([M, N], tw.f32)

        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b, elements_per_thread=2), acc, mma_type="atom.x")

        tw.write(total + bias, tile)
        tw.write(tw.select(tw.self_index(N) < 7, tw.read(tile), float("-inf")), c)

        @tw.conditional(bias > 0.5)
        def _():
            tw.write(tw.sum(tw.read(tile), dim=N), c)

    assert (
        print_graph(graph_of(product, M=16))
        == """\
graph product
  axis M: 16
  axis K
  axis N
  global a: f16[M, K]
  global b: f16[N, K] strides [1, PITCH]
  global c: f32[M, N]
  buffer buffer0: f32[M, N]
  scalar bias: f32
  %1: f32[] = scalar bias
  %2: f32[M, N] = constant 0.0
  %3: bool[] = iterate K from %2:
    %4: f32[M, N] = param 0
    %5: f16[M, K] = read a
    %6: f16[N, K] = read b width 2
    %7: f32[M, N] = mma %5, %6 into %4 over K by atom.x
    yield %7
  %8: f32[M, N] = result 0 of %3
  %9: f32[M, N] = apply add %8, %1
  %10: f32[M, N] = write %9 to buffer0
  %11: i32[N] = index
  %12: i32[] = constant 7
  %13: bool[N] = apply lt %11, %12
  %14: f32[M, N] = read buffer0
  %15: f32[] = constant -inf
  %16: f32[M, N] = apply select %13, %14, %15
  %17: f32[M, N] = write %16 to c
  %18: f32[] = constant 0.5
  %19: bool[] = apply gt %1, %18
  %20: bool[] = when %19:
    %21: f32[M, N] = read buffer0
    %22: f32[M] = reduce add %21 over N
    %23: f32[M, N] = write %22 to c
"""
    )


def test_operations_that_the_corpus_lacks() -> None:
    values = (True, False, 3, -3, 0.0, -2.5, 1e30, 1e-7, float("inf"), float("-inf"))
    body: list[ops.Op] = [
        ops.Constant(id=i, type=Type(("M",), f32), value=v) for i, v in enumerate(values)
    ]
    m = Expr.of("M")
    body += [
        ops.Remap(
            id=20, type=Type(("M", "N"), f32), value=4, fill=-1.0,
            coordinates=((m * 2 - 3) // 5 * -1 + (m + 1) % 4 * 2,),
        ),
        ops.Remap(id=21, type=Type(("N",), f32), value=4, coordinates=(Expr.of(0),)),
        ops.Reshape(id=22, type=Type(("M", "N"), f32), value=4),
        ops.ReduceOp(id=23, type=Type(("M",), f32), name="mul", value=20, axis="N", init=4),
        ops.Contract(
            id=24, type=Type((), f32), lhs=20, rhs=20, acc=4, contracted=("M", "N"), atom=None
        ),
    ]  # fmt: skip
    memory = ops.Memory("x", Type((), f16), tw.Space.SHARED, ())
    graph = Graph("odd", {"M": m, "N": Expr.of(7)}, (memory,), (), tuple(body))
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected a line that starts with 'graph'"),
        ("kernel x", "line 1, column 1: expected 'graph', found 'kernel'"),
        ("graph x\n  %1: f32[] = frobnicate %2", "line 2, column 15: expected an operation"),
        ("graph x\n  %1: f99[] = index", "line 2, column 7: expected an element type"),
        ("graph x\n  %1: f32[] = cast 2", "line 2, column 20: expected '%', found '2'"),
        ("graph x\n  %1: bool[] = iterate K:\n    %2: f32[] = index", "a loop that ends in"),
        ("graph x\n  %1: f32[M] = index extra", "expected the end of the line, found 'extra'"),
        ("graph x\n    %1: f32[M] = index\n  %2: f32[M] = index", "expected an indentation of 4"),
        ("graph x\n  %1: f32[M] = index\n%2: f32[M] = index", "an operation indented below"),
    ],
)  # fmt: skip
def test_text_that_is_no_graph(text: str, message: str) -> None:
    with pytest.raises(KernelTextError) as caught:
        parse_graph(text)
    assert message in str(caught.value)
