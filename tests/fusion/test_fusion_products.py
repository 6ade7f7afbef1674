"""Products of matrices against torch: operand orders, batches, epilogues, by-hand forms."""

from __future__ import annotations

import pytest
from fusion_check import FLOATS, INTEGERS, check, define, sample, torch

from tilewright.fusion.definition import DataType
from tilewright.graph import ops as graph_ops

F = torch.nn.functional
SIZES = [(64, 64, 32), (130, 70, 50), (1, 40, 30), (40, 1, 30), (17, 33, 1), (1, 1, 40), (5, 3, 7)]


def contractions(compiled) -> int:
    return sum(
        isinstance(op, graph_ops.Contract)
        for kernel in compiled.kernels for op in graph_ops.walk(kernel.graph.body)
    )  # fmt: skip


def loose(x):
    return (1e-2, 1e-2) if x.dtype.itemsize == 2 else (1e-4, 1e-4)


@pytest.mark.parametrize(("m", "n", "k"), SIZES, ids=str)
@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16], ids=str)
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_matmul(m, n, k, dtype, order) -> None:
    a, b = sample(dtype, (m, k), special=False), sample(dtype, (k, n), 1, special=False)
    a = a.T.contiguous().T if order[0] == "T" else a
    b = b.T.contiguous().T if order[1] == "T" else b

    def build(fd) -> None:
        x, y = define(fd, a, b)
        fd.add_output(fd.ops.matmul(x, y))

    compiled = check(build, [a, b], (a.float() @ b.float()).to(a.dtype), tolerance=loose(a),
                     kernels=1)  # fmt: skip
    assert contractions(compiled) == (m > 1 and n > 1 and k > 1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_types(dtype) -> None:
    a, b = sample(dtype, (20, 30), special=False), sample(dtype, (30, 24), 1, special=False)

    def build(fd) -> None:
        x, y = define(fd, a, b)
        fd.add_output(fd.ops.matmul(x, y))

    check(build, [a, b], a @ b, tolerance=loose(a) if dtype.is_float else None, kernels=1)


SHAPES = [
    ((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 5)), ((3, 5, 7), (7, 4)), ((3, 5, 7), (3, 7, 4)),
    ((5, 7), (3, 7, 4)), ((2, 1, 5, 7), (3, 7, 4)), ((3, 5, 7), (7,)), ((1, 5, 7), (3, 7, 4)),
    ((0, 7), (7, 4)), ((5, 0), (0, 4)), ((2, 5, 1), (2, 1, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [DataType.Half, DataType.Float], ids=str)
def test_shapes(left, right, dtype) -> None:
    a, b = sample(dtype, left, special=False), sample(dtype, right, 1, special=False)

    def build(fd) -> None:
        x, y = define(fd, a, b)
        fd.add_output(fd.ops.matmul(x, y))

    check(build, [a, b], a @ b, tolerance=loose(a))


EPILOGUES = ["none", "bias", "gelu", "residual", "all", "two outputs"]


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_epilogues_stay_in_the_kernel(epilogue, batch) -> None:
    kind = DataType.Half
    x, w = sample(kind, (*batch, 40, 36), special=False), sample(kind, (50, 36), 1, special=False)
    b, r = sample(kind, (50,), 2, special=False), sample(kind, (*batch, 40, 50), 3, special=False)
    everything = epilogue == "all"

    def build(fd) -> None:
        tx, tw, tb, tr = define(fd, x, w, b, r)
        y = fd.ops.linear(tx, tw, tb) if epilogue == "bias" or everything else (
            fd.ops.linear(tx, tw))  # fmt: skip
        if epilogue == "two outputs":
            fd.add_output(y)
        z = fd.ops.gelu(y) if epilogue in ("gelu", "all", "two outputs") else y
        fd.add_output(z + tr if epilogue == "residual" or everything else z)

    y = F.linear(x.float(), w.float(), b.float() if epilogue == "bias" or everything else None)
    y = y.half()
    z = F.gelu(y.float()).half() if epilogue in ("gelu", "all", "two outputs") else y
    z = z + r if epilogue == "residual" or everything else z
    compiled = check(build, [x, w, b, r], [y, z] if epilogue == "two outputs" else [z],
                     tolerance=(1e-2, 2e-2), kernels=1)  # fmt: skip
    assert contractions(compiled) == 1


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.Float], ids=str)
@pytest.mark.parametrize("widen", [False, True])
def test_broadcast_multiply_sum_is_the_same_contraction(dtype, widen) -> None:
    a, b = sample(dtype, (20, 30), special=False), sample(dtype, (30, 40), 1, special=False)

    def by_hand(fd) -> None:
        x, y = define(fd, a, b)
        if widen:
            x, y = fd.ops.cast(x, DataType.Float), fd.ops.cast(y, DataType.Float)
        p = fd.ops.broadcast(x, [False, False, True]) * fd.ops.broadcast(y, [True, False, False])
        fd.add_output(fd.ops.cast(fd.ops.sum(p, [1]), dtype))

    def plain(fd) -> None:
        x, y = define(fd, a, b)
        fd.add_output(fd.ops.matmul(x, y))

    expected = (a.double() @ b.double()).to(a.dtype)
    first = check(by_hand, [a, b], expected, tolerance=loose(a), kernels=1)
    second = check(plain, [a, b], expected, tolerance=loose(a), kernels=1)
    assert contractions(first) == contractions(second) == 1
    assert _shape(first.kernels[0]) == _shape(second.kernels[0])


def _shape(kernel) -> list[str]:
    """The kernel's operations with their types, but not the numbers of its values."""
    return [f"{type(op).__name__} {op.type}" for op in graph_ops.walk(kernel.graph.body)]


def test_a_tensor_with_itself() -> None:
    x = sample(DataType.Half, (40, 40), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.matmul(a, a))
        fd.add_output(fd.ops.matmul(a, fd.ops.permute(a, [1, 0])))
        fd.add_output(fd.ops.linear(a, a))

    y = x.float()
    expected = [e.half() for e in (y @ y, y @ y.T, y @ y.T)]
    check(build, [x], expected, tolerance=(1e-2, 5e-2))


def test_products_in_sequence_and_what_surrounds_them() -> None:
    x, w, v = (sample(DataType.Half, s, i, special=False)
               for i, s in enumerate([(20, 32), (48, 32), (16, 48)]))  # fmt: skip
    w, v = w / 8, v / 8

    def build(fd) -> None:
        tx, tw, tv = define(fd, x, w, v)
        h = fd.ops.relu(fd.ops.linear(fd.ops.silu(tx), tw))
        fd.add_output(fd.ops.softmax(fd.ops.linear(h, tv), -1))

    h = torch.relu(F.silu(x.float()).half().float() @ w.float().T).half()
    expected = torch.softmax((h.float() @ v.float().T).half().float(), -1).half()
    compiled = check(build, [x, w, v], expected, tolerance=(1e-2, 1e-2), kernels=4)
    assert contractions(compiled) == 2


def test_attention_by_hand() -> None:
    q, k, v = (sample(DataType.Half, (2, 24, 16), i, special=False) for i in range(3))

    def build(fd) -> None:
        tq, tk, tv = define(fd, q, k, v)
        s = fd.ops.matmul(tq, fd.ops.transpose(tk)) * 0.25
        fd.add_output(fd.ops.matmul(fd.ops.softmax(s, -1), tv))

    s = torch.softmax((q.float() @ k.float().mT * 0.25).half().float(), -1).half()
    check(build, [q, k, v], (s.float() @ v.float()).half(), tolerance=(1e-2, 1e-2))


def test_expanded_operands() -> None:
    a = sample(DataType.Half, (1, 30), special=False).expand(20, 30)
    b = sample(DataType.Half, (30, 1), 1, special=False).expand(30, 24)

    def build(fd) -> None:
        x, y = define(fd, a, b)
        fd.add_output(fd.ops.matmul(x, y))

    check(build, [a, b], (a.float() @ b.float()).half(), tolerance=(1e-2, 1e-2))


def test_gfx942() -> None:
    a, b = (sample(DataType.Half, s, i, special=False) for i, s in enumerate([(40, 30), (30, 50)]))

    def build(fd) -> None:
        x, y = define(fd, a, b)
        fd.add_output(fd.ops.relu(fd.ops.matmul(x, y)))
        fd.add_output(fd.ops.softmax(x, 1))

    expected = (torch.relu(a.float() @ b.float()).half(), torch.softmax(a.float(), 1).half())
    check(build, [a, b], expected, tolerance=(1e-2, 1e-2), target="gfx942")
