"""How fusions are cut into kernels, what is chosen for each, and how long that takes."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fusion_check import FusionDefinition, check, define, sample, torch

from tilewright.fusion import ops
from tilewright.fusion.access import dense, groups
from tilewright.fusion.definition import DataType
from tilewright.fusion.domains import Domains, Trial
from tilewright.fusion.segment import LARGEST, Segmentation, segment
from tilewright.schedule.constraints import Tiling, Wave, Workgroup

RIGHT = (1e-5, 1e-5)


def cut(fd: FusionDefinition) -> Segmentation:
    """The kernels of a definition whose sizes are all known."""
    records = fd.inputs()
    return segment(fd.program(), {r.position: dense(r.shape) for r in records})


def test_a_reduction_of_a_reduction_over_a_blocks_axis() -> None:
    x = sample(DataType.Float, (6, 40), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        rows = fd.ops.sum(a, [1])
        fd.add_output(rows)
        fd.add_output(fd.ops.max(rows, [0]))

    check(build, [x], (x.sum(1), x.sum(1).amax(0)), kernels=2, tolerance=RIGHT)


def test_reductions_over_different_axes() -> None:
    x = sample(DataType.Float, (16, 40), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(a, [0]))
        fd.add_output(fd.ops.sum(a, [1]))
        fd.add_output(fd.ops.sum(a, [1]) * 2.0)

    check(build, [x], (x.sum(0), x.sum(1), x.sum(1) * 2), kernels=2, tolerance=RIGHT)


def test_a_row_result_meets_another_tensor() -> None:
    """A sum over rows spread over new columns is not computed again for each of them."""
    x, y = sample(DataType.Float, (16, 40), special=False), sample(DataType.Float, (16, 24))

    def build(fd) -> None:
        a, b = define(fd, x, y)
        fd.add_output(b + fd.ops.sum(a, [1], keepdim=True))

    check(build, [x, y], y + x.sum(1, keepdim=True), kernels=2, tolerance=RIGHT)


def test_unrelated_loops_are_not_nested() -> None:
    """Two results that share only a small operand do not share a kernel."""
    x, y, b = (sample(DataType.Float, s) for s in ((30, 8), (50, 8), (8,)))

    def build(fd) -> None:
        p, q, r = define(fd, x, y, b)
        fd.add_output(p + r)
        fd.add_output(q * r)

    check(build, [x, y, b], (x + b, y * b), kernels=2)


def test_results_of_one_input_share_a_kernel() -> None:
    x = sample(DataType.Float, (30, 8))

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.exp(a))
        fd.add_output(fd.ops.neg(a))
        fd.add_output(fd.ops.isnan(a))

    check(build, [x], (x.exp(), -x, x.isnan()), kernels=1)


def test_a_diamond_through_a_cut() -> None:
    """x goes to a consumer directly and through two kernels; no cycle arises."""
    x = sample(DataType.Float, (24, 24), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        b = fd.ops.relu(a)
        c = fd.ops.matmul(b, b)
        d = fd.ops.sum(c, [0])
        fd.add_output(b + d * fd.ops.sum(b, [1], keepdim=True))

    b = torch.relu(x)
    expected = b + (b @ b).sum(0) * b.sum(1, keepdim=True)
    check(build, [x], expected, tolerance=(1e-4, 1e-3))


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed) -> None:
    """Whatever is combined with whatever: the cut computes what torch does."""
    rng = np.random.default_rng(seed)
    inputs = [torch.rand((6, 6), dtype=torch.float64) + 0.5 for _ in range(3)]
    plan = [(int(rng.integers(len(STEPS))), rng.random(2)) for _ in range(14)]

    def run(values, o) -> list:
        values = list(values)
        for kind, picks in plan:
            a, b = (values[int(p * len(values))] for p in picks)
            values.append(STEPS[kind](o, a, b))
        return values[-4:]

    def build(fd) -> None:
        for value in run(define(fd, *inputs), fd.ops):
            fd.add_output(value)

    check(build, inputs, run(inputs, _Torch()), tolerance=(1e-9, 1e-9))


class _Torch:
    """torch under the names of `fd.ops`."""

    add, sub, mul, maximum, matmul = torch.add, torch.sub, torch.mul, torch.maximum, torch.matmul
    tanh = staticmethod(torch.tanh)

    def sum(self, x, dims, keepdim=False):
        return x.sum(dims, keepdim)

    def mean(self, x, dims, keepdim=False):
        return x.mean(dims, keepdim)

    def permute(self, x, dims):
        return x.permute(dims)

    def reshape(self, x, shape):
        return x.reshape(shape)

    def expand(self, x, shape):
        return x.expand(shape)

    def flip(self, x, dims):
        return x.flip(dims)

    def cat(self, tensors, dim):
        return torch.cat(tensors, dim)

    def slice(self, x, starts, ends):
        return x[starts[0] : ends[0], starts[1] : ends[1]]

    def softmax(self, x, dim):
        return torch.softmax(x, dim)

    def cast(self, x, dtype):
        return x.long()

    def gather(self, x, index, dim):
        return x.gather(dim, index)


STEPS = [
    lambda o, a, b: o.gather(a, o.cast(o.mul(o.mul(o.tanh(b), o.tanh(b)), 5.5), DataType.Int), 1),
    lambda o, a, b: o.add(a, b),
    lambda o, a, b: o.tanh(o.mul(a, b)),
    lambda o, a, b: o.maximum(a, o.permute(b, [1, 0])),
    lambda o, a, b: o.sub(a, o.mean(b, [1], keepdim=True)),
    lambda o, a, b: o.mul(a, o.expand(o.mean(b, [0], keepdim=True), [6, 6])),
    lambda o, a, b: o.softmax(o.add(a, b), 1),
    lambda o, a, b: o.tanh(o.matmul(a, b)),
    lambda o, a, b: o.reshape(o.flip(o.reshape(o.add(a, b), [4, 9]), [0]), [6, 6]),
    lambda o, a, b: o.cat([o.slice(a, [0, 0], [4, 6]), o.slice(b, [1, 0], [3, 6])], 0),
]  # fmt: skip


# ---------------------------------------------------------------- the automatic choice


def _constraints(build, *inputs):
    compiled = FusionDefinition(build).compile(inputs)
    return [(k.automatic.constraints, k.automatic.reasons) for k in compiled.kernels]


def test_matrix_tiles() -> None:
    a, b = torch.zeros(256, 256, dtype=torch.half), torch.zeros(3, 256, 256, dtype=torch.half)

    def build(fd) -> None:
        x, y = define(fd, a, b)
        fd.add_output(fd.ops.matmul(x, y))

    ((found, reasons),) = _constraints(build, a, b)
    tiles = sorted(c.tile for c in found if isinstance(c, Workgroup))
    assert tiles == [1, 128, 128]
    assert [c.tile for c in found if isinstance(c, Tiling)] == [32]
    assert [c.tile for c in found if isinstance(c, Wave)] == [64, 64]
    assert any("contraction" in r for r in reasons)
    assert any("batch" in r for r in reasons)


def test_reduced_axes_stay_within_a_block() -> None:
    x = torch.zeros(64, 1000)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(a, [1]))
        fd.add_output(fd.ops.sum(a, [0]))

    (rows, why), (columns, why_not) = _constraints(build, x)
    assert [(c.axis, c.tile) for c in rows if isinstance(c, Workgroup)] or rows
    assert all(not c.axis.startswith("R") for c in (*rows, *columns))
    assert {"along memory" in why[0], "along memory" in why_not[0]} == {True, False}


# ---------------------------------------------------------------- parts


def test_dense_strides() -> None:
    assert dense((2, 3, 4)) == (12, 4, 1)
    assert dense((2, 3, 4), [0, 1, 2]) == (1, 2, 6)
    assert dense((5, 1, 0)) == (1, 1, 1)


def test_groups_of_a_reshape() -> None:
    assert groups([6, 4], [2, 3, 4]) == [([0], [0, 1]), ([1], [2])]
    assert groups([2, 1, 3], [6]) == [([0, 2], [0])]
    assert groups([4, 6], [3, 8]) == [([0, 1], [0, 1])]


def test_no_value_has_one_axis_twice() -> None:
    domains = Domains()
    rows, columns = domains.add(1, 0, 8), domains.add(1, 1, 8)
    other = [domains.add(2, 0, 8), domains.add(2, 1, 8)]
    trial = Trial(domains)
    assert trial.join([(rows, other[0]), (columns, other[1])])
    assert not trial.join([(rows, other[1])])
    assert trial.find(rows) != trial.find(columns)
    assert domains.find(rows) != domains.find(other[0])
    trial.commit()
    assert domains.find(rows) == domains.find(other[0]) != domains.find(columns)


def test_a_kernel_has_a_largest_size() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([8])
        for _ in range(100):
            x = fd.ops.relu(x * 1.5)
        fd.add_output(x)
    parts = cut(fd).segments
    assert len(parts) == 4
    assert all(len(p.nodes) <= LARGEST for p in parts)
    written = {n for p in parts for n in p.writes}
    assert len(written) == 4


def _chain(length: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 32])
        y = x
        for i in range(length // 4):
            y = fd.ops.tanh(y * x)
            y = y - fd.ops.sum(y, [i % 2], keepdim=True)
        fd.add_output(y)
    return fd


def test_two_thousand_operations_are_cut_in_linear_time() -> None:
    """Four times the operations take about four times as long (twelve would be quadratic's)."""
    times: dict[int, float] = {}
    for length in (500, 2000):
        fd = _chain(length)
        assert sum(not isinstance(n, ops.LEAVES) for n in fd.program().nodes) >= length
        spent = []
        for _ in range(3):
            started = time.process_time()
            cut(fd)
            spent.append(time.process_time() - started)
        times[length] = min(spent)
    assert times[2000] < 5
    assert times[2000] < 12 * times[500]


# ---------------------------------------------------------------- long reductions


@pytest.mark.parametrize(("shape", "dims"), [((1 << 16,), [0]), ((320, 256), [0, 1]),
                                             ((3, 40000), [1]), ((33000, 4), [0]),
                                             ((4, 600, 2, 64), [1, 3])], ids=str)  # fmt: skip
def test_long_reductions_take_two_steps(shape, dims) -> None:
    x, y = sample(DataType.Float, shape, special=False), sample(DataType.Float, shape[-1:], 1)
    y = torch.nan_to_num(y, posinf=1.0, neginf=-1.0)

    def build(fd) -> None:
        a, b = define(fd, x, y)
        fd.add_output(fd.ops.sum(fd.ops.tanh(a * b), dims))
        fd.add_output(fd.ops.amax(a, dims))

    expected = (torch.tanh(x.double() * y).sum(dims).float(), x.amax(dims))
    compiled = check(build, [x, y], expected, tolerance=(1e-4, 1e-3), kernels=3)
    blocks = [k.kernel.grid for k in compiled.kernels]
    assert any(np.prod([e.const for e in grid]) >= 8 for grid in blocks)


def test_a_prime_number_of_terms_stays_in_one_step() -> None:
    x = sample(DataType.Float, (32771,), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        fd.add_output(fd.ops.sum(a))

    check(build, [x], x.double().sum().float(), tolerance=(1e-4, 1e-3), kernels=1)


def test_statistics_of_everything() -> None:
    x = sample(DataType.Float, (256, 256), special=False)

    def build(fd) -> None:
        (a,) = define(fd, x)
        v, m = fd.ops.var_mean(a)
        fd.add_output((a - m) * fd.ops.rsqrt(v))

    check(build, [x], (x - x.mean()) * torch.rsqrt(x.var()), tolerance=(1e-4, 1e-4))
