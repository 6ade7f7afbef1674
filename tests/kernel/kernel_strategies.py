"""Hypothesis strategies for kernel IR: every construct, well formed but mostly not legal."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st

from tilewright.base.dtypes import ALL_DTYPES, boolean, f16, f32, i32
from tilewright.kernel import ops
from tilewright.kernel.values import INFIX, OPERATIONS
from tilewright.poly.expr import Constraint, Expr

NAMES = ["i", "j2", "m_o", "K", "warp", "load", "for_", "x4", "acc"]
names = st.sampled_from(NAMES)
small = st.integers(-40, 40)
dtypes = st.sampled_from(ALL_DTYPES)
REGS = {"r0": f32, "r1": f16, "load": i32, "along": f32}
SCALARS = {"alpha": f32, "n_valid": i32}


def _sum(parts: list[tuple[Expr, int]], const: int) -> Expr:
    total = Expr.of(const)
    for part, coefficient in parts:
        total = total + part * coefficient
    return total


def sums(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(_sum, st.lists(st.tuples(inner, small), max_size=3), small)


# Named functions throughout: the library reads the source of a lambda, and can fail at it.
def _folded(expr: Expr, den: int, divide: bool) -> Expr:
    return expr // den if divide else expr % den


def _twice_folded(expr: Expr) -> Expr:
    return (expr + "q") // 5


atoms = names.map(Expr.of)
nested = st.builds(_folded, sums(atoms), st.integers(1, 9), st.booleans())
_exprs = sums(st.one_of(atoms, nested, st.builds(_twice_folded, nested)))


@st.composite  # keeps the repr of what is built on it short
def expressions(draw: st.DrawFn) -> Expr:
    return draw(_exprs)


exprs = expressions()
guards = st.lists(st.builds(Constraint, exprs, st.booleans()), max_size=3).map(tuple)
indices = st.lists(exprs, max_size=3).map(tuple)
along = st.lists(st.tuples(names, st.integers(1, 9)), min_size=1, max_size=2).map(tuple)
over = st.lists(st.tuples(names, st.integers(1, 9)), max_size=2).map(tuple)
notes = st.one_of(st.just(""), st.text(st.sampled_from("ab \\\n/,:\t\u2028"), min_size=1))
numbers = st.one_of(st.integers(-9, 9), st.floats(allow_nan=False), st.booleans())
registers = st.builds(ops.RegRef, st.sampled_from(sorted(REGS)), indices)
memory = st.builds(ops.MemRef, st.sampled_from(["a", "sa", "if"]), indices)
gathers = st.lists(st.builds(ops.Indirect, st.integers(0, 3), registers), max_size=2).map(tuple)
scanned = st.none() | st.builds(
    ops.Scanned, st.sampled_from(["add", "max"]), st.sampled_from(ops.Part), names, exprs, exprs,
    indices,
)  # fmt: skip
reduced = st.lists(st.builds(ops.ReducedAxis, names, exprs, exprs), max_size=2).map(tuple)

leaves = st.one_of(
    st.builds(ops.Const, numbers, dtypes),
    st.builds(ops.Read, registers, dtypes),
    st.builds(ops.ScalarValue, st.sampled_from(sorted(SCALARS)), dtypes),
    st.builds(ops.IndexValue, exprs, dtypes),
    st.builds(ops.Holds, guards, st.sampled_from([boolean, f32])),
    st.builds(ops.LaneXor, registers, st.integers(0, 63), dtypes),
    st.builds(ops.LaneRead, registers, exprs, dtypes),
)
infix = st.sampled_from(sorted(INFIX))


def _infix(op: str, left: ops.Value, right: ops.Value, compares: bool) -> ops.Apply:
    return ops.Apply(op, (left, right), boolean if compares else right.dtype)


def _composed(inner: st.SearchStrategy[ops.Value]) -> st.SearchStrategy[ops.Value]:
    operations = st.sampled_from([*OPERATIONS, "unheard_of"])
    return st.one_of(
        st.builds(ops.Cast, inner, dtypes),
        st.builds(_infix, infix, inner, inner, st.booleans()),
        st.builds(ops.Apply, operations, st.lists(inner, max_size=3).map(tuple), dtypes),
    )


values = st.recursive(leaves, _composed, max_leaves=6)
digits = st.lists(st.tuples(names, exprs), min_size=1, max_size=3).map(tuple)
matrices = st.none() | st.builds(
    ops.MatrixShape, st.just("x4.trans"), names, names, st.lists(names, max_size=2).map(tuple)
)
widths, axes = st.integers(1, 16), st.integers(-2, 2)
simple = st.one_of(
    st.builds(ops.Decode, exprs, digits),
    st.builds(partial(ops.Assign, span=None), over, registers, values, note=notes, scans=scanned),
    st.builds(
        partial(ops.Reduce, span=None),
        st.sampled_from(["add", "max"]), over, along, registers, values, reduced,
        note=notes,
    ),
    st.builds(
        partial(ops.Load, span=None),
        over, registers, memory, widths, axes, guards, numbers, matrices, note=notes,
        indirect=gathers,
    ),
    st.builds(
        partial(ops.Store, span=None), over, memory, registers, widths, axes, guards, note=notes
    ),
    st.builds(
        partial(ops.AsyncCopy, span=None),
        over, memory, memory, widths, axes, axes, guards, note=notes,
    ),
    st.builds(
        partial(ops.Mma, span=None),
        over, st.just("mma.sync.m16n8k16.f32.f16"), registers, registers, registers, reduced,
        note=notes,
    ),
    st.just(ops.AsyncCommit()),
    st.builds(ops.AsyncWait, st.integers(0, 4)),
    st.builds(ops.Barrier, notes),
)  # fmt: skip


def _nested(inner: st.SearchStrategy[ops.Body]) -> st.SearchStrategy[ops.Body]:
    structured = (
        st.builds(ops.Loop, names, exprs, inner, st.booleans()),
        st.builds(ops.If, guards, inner),
        st.builds(ops.When, values, inner),
    )
    return st.lists(st.one_of(simple, *structured), max_size=3).map(tuple)


def _fragments(holds: str) -> tuple[ops.Registers, ...]:
    return tuple(ops.Registers(n, t, (4, 2), holds) for n, t in REGS.items())


bodies = st.recursive(st.lists(simple, max_size=3).map(tuple), _nested, max_leaves=4)
extents = st.lists(st.integers(1, 64), min_size=1, max_size=3).map(tuple)
_kernels = st.builds(
    ops.Kernel,
    name=names,
    target=st.sampled_from(["sm_90a", "gfx942"]),
    warp_size=st.sampled_from([32, 64]),
    warps=st.integers(1, 8),
    grid=indices,
    symbols=st.lists(
        st.builds(ops.Symbol, names, st.integers(0, 9), st.integers(1, 9)), max_size=2
    ).map(tuple),
    tensors=st.lists(
        st.builds(
            partial(ops.Tensor, span=None), names, dtypes, indices, indices,
            st.sampled_from(ops.Mode), st.integers(1, 16), st.sampled_from([32, 64]),
        ),
        max_size=2,
    ).map(tuple),
    scalars=st.just(tuple(ops.Scalar(n, t) for n, t in SCALARS.items())),
    shared=st.lists(
        st.builds(
            partial(ops.Shared, span=None), names, dtypes, extents,
            st.none() | st.builds(ops.Swizzle, widths, widths, widths),
            st.integers(0, 80), st.integers(0, 4096),
        ),
        max_size=2,
    ).map(tuple),
    registers=st.builds(_fragments, notes),
    body=bodies,
    contracts=guards,
)  # fmt: skip


@st.composite
def kernels(draw: st.DrawFn) -> ops.Kernel:
    return draw(_kernels)
