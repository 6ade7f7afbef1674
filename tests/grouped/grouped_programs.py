"""Grouped and batched products as authors write them, and what they mean in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import tilewright as tw

T, E, N, K, B, M, G = (
    tw.sym.T, tw.sym.E, tw.sym.N, tw.sym.K, tw.sym.B, tw.sym.M, tw.sym.G,
)  # fmt: skip
ROWS, COLUMNS, STEP = tw.sym.ROWS, tw.sym.COLUMNS, tw.sym.STEP
BF16 = ml_dtypes.bfloat16
ARRAYS = {
    tw.bf16: BF16, tw.f16: np.float16, tw.f32: np.float32, tw.f8e4m3: ml_dtypes.float8_e4m3fn,
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """How a grouped product is stored and what follows it."""

    order: str = "NK"  # of a group's matrix
    out: tw.DType = tw.bf16
    bias: bool = False  # of each group's columns
    scale: bool = False  # of each row
    index: tw.DType = tw.i32
    dtype: tw.DType = tw.bf16
    specialize: bool | None = None


def grouped(form: Form) -> tw.TileKernel:
    """Each row times the matrix of its group, in tiles of ROWS by COLUMNS."""
    axes = (E, N, K) if form.order == "NK" else (E, K, N)

    def moe(x, w, ends, bias, scale, y):
        group = tw.group_of(T, ends)

        @tw.iterate(K, init_args=[tw.Register[T, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(x), tw.gather(w, E, group), acc)

        if form.bias:
            total = total + tw.gather(bias, E, group)
        if form.scale:
            total = total * tw.read(scale)
        tw.write(total if form.out is tw.f32 else tw.cast(total, form.out), y)

    moe.__annotations__ = {
        "x": tw.Memory[T, K, tw.GLOBAL, form.dtype],
        "w": tw.Memory[(*axes, tw.GLOBAL, form.dtype)],
        "ends": tw.Memory[E, tw.GLOBAL, form.index],
        "bias": tw.Memory[E, N, tw.GLOBAL, tw.f32],
        "scale": tw.Memory[T, tw.GLOBAL, tw.f32],
        "y": tw.Memory[T, N, tw.GLOBAL, form.out],
    }
    constraints = [
        tw.WorkgroupConstraint(T, ROWS, 0), tw.WorkgroupConstraint(N, COLUMNS, 1),
        tw.TilingConstraint(K, STEP), tw.HardwareConstraint(specialize=form.specialize),
    ]  # fmt: skip
    return tw.kernel(constraints)(moe)


@dataclass(frozen=True)
class Case:
    """Whole numbers, so that every order of summation gives the same; and the result."""

    arrays: tuple[np.ndarray, ...]
    wanted: np.ndarray

    @staticmethod
    def of(form: Form, counts: Sequence[int], n: int, k: int, rest: int = 0) -> Case:
        """`counts` rows of each group, and `rest` of none."""
        rng = np.random.default_rng(7)
        rows, groups = sum(counts) + rest, len(counts)
        x, w, bias = (
            rng.integers(-4, 5, shape).astype(np.float32)
            for shape in ((rows, k), (groups, n, k), (groups, n))
        )
        scale = 2.0 ** rng.integers(-2, 3, rows).astype(np.float32)
        ends = np.cumsum(counts)
        wanted, start = np.zeros((rows, n), np.float32), 0
        for group, end in enumerate(ends):
            wanted[start:end] = x[start:end] @ w[group].T + (bias[group] if form.bias else 0)
            start = end
        if form.scale:
            wanted = wanted * scale[:, None]
        stored = w if form.order == "NK" else w.swapaxes(1, 2)
        y = np.full((rows, n), np.nan, ARRAYS[form.out])
        index = {tw.i32: np.int32, tw.i64: np.int64}[form.index]
        held = ARRAYS[form.dtype]
        arrays = (
            x.astype(held), np.ascontiguousarray(stored).astype(held), ends.astype(index), bias,
            scale, y,
        )  # fmt: skip
        return Case(arrays, wanted.astype(ARRAYS[form.out]))

    @property
    def right(self) -> bool:
        return np.array_equal(self.arrays[-1].astype(np.float32), self.wanted.astype(np.float32))


def of_terms(
    *, both: bool = True, across: bool = True, specialize: bool | None = None
) -> tw.TileKernel:
    """For each group the product of its rows of x and y; with `across`, rows are contiguous."""

    def terms(x, y, ends, out):
        group = tw.group_of(T, ends)

        @tw.iterate(T, init_args=[tw.Register[E, M, N, tw.f32](0.0)])
        def total(acc):
            left, right = tw.per_group(tw.read(x), E, group), tw.read(y)
            return tw.mma(left, tw.per_group(right, E, group) if both else right, acc)

        tw.write(tw.cast(total, tw.bf16), out)

    terms.__annotations__ = {
        "x": tw.Memory[(*((T, M) if across else (M, T)), tw.GLOBAL, tw.bf16)],
        "y": tw.Memory[T, N, tw.GLOBAL, tw.bf16],
        "ends": tw.Memory[G, tw.GLOBAL, tw.i32],
        "out": tw.Memory[E, M, N, tw.GLOBAL, tw.bf16],
    }
    return tw.kernel([
        tw.WorkgroupConstraint(M, ROWS, 0), tw.WorkgroupConstraint(N, COLUMNS, 1),
        tw.WorkgroupConstraint(E, 1, 2), tw.TilingConstraint(T, STEP),
        tw.HardwareConstraint(specialize=specialize),
    ])(terms)  # fmt: skip


def terms_case(
    counts: Sequence[int], m: int, n: int, rest: int = 0, *, across: bool = True
) -> Case:
    """`rest` rows of no group, which are no numbers."""
    rng = np.random.default_rng(11)
    rows, ends = sum(counts) + rest, np.cumsum(counts)
    x, y = (rng.integers(-4, 5, (rows, size)).astype(np.float32) for size in (m, n))
    starts = [0, *ends[:-1]]
    wanted = np.stack([x[a:b].T @ y[a:b] for a, b in zip(starts, ends, strict=True)])
    x[ends[-1] :], y[ends[-1] :] = np.nan, np.inf
    out = np.full(wanted.shape, np.nan, BF16)
    stored = x if across else np.ascontiguousarray(x.T)
    arrays = (stored.astype(BF16), y.astype(BF16), ends.astype(np.int32), out)
    return Case(arrays, wanted.astype(BF16))


def batched(orders: tuple[str, str, str]) -> tw.TileKernel:
    """A product for each element of B; `orders` gives the axes of a, b and c as stored."""
    axes = {"B": B, "M": M, "N": N, "K": K}
    a_axes, b_axes, c_axes = ([axes[letter] for letter in order] for order in orders)

    def bmm(a, b, c):
        @tw.iterate(K, init_args=[tw.Register[B, M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(tw.permute(tw.cast(total, tw.bf16), c_axes), c)

    bmm.__annotations__ = {
        name: tw.Memory[(*own, tw.GLOBAL, tw.bf16)]
        for name, own in (("a", a_axes), ("b", b_axes), ("c", c_axes))
    }
    return tw.kernel([
        tw.WorkgroupConstraint(M, ROWS, 0), tw.WorkgroupConstraint(N, COLUMNS, 1),
        tw.WorkgroupConstraint(B, 1, 2), tw.TilingConstraint(K, STEP),
    ])(bmm)  # fmt: skip


def batched_arrays(
    orders: tuple[str, str, str], sizes: dict[str, int]
) -> tuple[list[np.ndarray], np.ndarray]:
    """a, b and a poisoned c as stored, and the wanted c."""
    rng = np.random.default_rng(3)
    arrays = [
        rng.integers(-4, 5, [sizes[letter] for letter in order]).astype(BF16)
        for order in orders[:2]
    ]
    text = f"{orders[0]},{orders[1]}->{orders[2]}".lower()
    wanted = np.einsum(text, *(a.astype(np.float32) for a in arrays)).astype(BF16)
    return [*arrays, np.full(wanted.shape, np.nan, BF16)], wanted
