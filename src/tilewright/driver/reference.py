"""What a tile program means, on whole NumPy arrays: no tiles, no plan, no kernel IR.

Floating-point values are kept in double precision and rounded where the program rounds (casts,
and results of a narrower element type), so the outcome is the yardstick for any schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import DType, Kind
from tilewright.codegen.sim.operations import FUNCTIONS
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Op
from tilewright.poly.expr import Div, Expr, Mod
from tilewright.runtime.arguments import numpy_dtype

Array = NDArray[Any]
REDUCTIONS: Mapping[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


@dataclass(frozen=True)
class _Named:
    """An array with a name for each of its dimensions."""

    axes: tuple[str, ...]
    data: Array

    def window(self, starts: Mapping[str, int], sizes: Mapping[str, int]) -> _Named:
        """The open loops' tiles of a value that was made outside of them."""
        cut = tuple(
            slice(None) if n == sizes[a] else slice(starts.get(a, 0), starts.get(a, 0) + sizes[a])
            for a, n in zip(self.axes, self.data.shape, strict=True)
        )
        return _Named(self.axes, self.data[cut])

    def to(self, axes: Sequence[str], sizes: Mapping[str, int]) -> Array:
        """The array over these axes, spread along those that it lacks."""
        kept = [a for a in axes if a in self.axes]
        data = np.transpose(self.data, [self.axes.index(a) for a in kept])
        shape = [sizes[a] if a in self.axes else 1 for a in axes]
        return np.broadcast_to(data.reshape(shape), [sizes[a] for a in axes])


@dataclass
class _Run:
    """One evaluation: values by operation, memories by name, and the open loops' ranges."""

    graph: Graph
    sizes: dict[str, int]
    tiles: Mapping[str, int]
    memories: dict[str, _Named]
    scalars: Mapping[str, float | int | bool]
    values: dict[int, _Named] = field(default_factory=dict[int, _Named])
    starts: dict[str, int] = field(default_factory=dict[str, int])

    def value(self, number: int) -> _Named:
        """An operand, as the loops that are open now see it."""
        return self.values[number].window(self.starts, self.sizes)


def evaluate(
    graph: Graph,
    arguments: Mapping[str, Array],
    scalars: Mapping[str, float | int | bool],
    sizes: Mapping[str, int],
    tiles: Mapping[str, int],
) -> dict[str, Array]:
    """The contents of every written tensor. `tiles` gives the step of each iterated axis."""
    run = _Run(graph, dict(sizes), tiles, {}, scalars)
    for memory in graph.memories:
        shape = [sizes[a] for a in memory.type.axes]
        found = arguments.get(memory.name)
        data = np.zeros(shape) if found is None else _widen(np.array(found), memory.type.dtype)
        run.memories[memory.name] = _Named(memory.type.axes, data)
    with np.errstate(all="ignore"):
        _body(run, graph.body)
    written = {op.memory for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)}
    return {
        m.name: run.memories[m.name].data.astype(numpy_dtype(m.type.dtype))
        for m in graph.memories
        if m.name in written and not m.allocated
    }


def _widen(data: Array, dtype: DType) -> Array:
    wide = {Kind.FLOAT: np.float64, Kind.INT: np.int64, Kind.BOOL: np.bool_}[dtype.kind]
    return data.astype(wide)


def _round(data: Array, dtype: DType) -> Array:
    """Round to the element type, kept wide: f32 and f64 stay in double precision."""
    if dtype.kind is not Kind.FLOAT:
        return _widen(data.astype(numpy_dtype(dtype)), dtype)
    if dtype.bits >= 32:
        return data.astype(np.float64)
    return data.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)


def _body(run: _Run, body: Sequence[Op]) -> None:
    for op in body:
        match op:
            case ops.WriteOp():
                _write(run, op)
            case ops.Iterate():
                _iterate(run, op)
            case ops.Conditional():
                if bool(run.value(op.condition).data):
                    _body(run, op.body)
            case ops.Result() | ops.Param():
                pass  # set by their loop
            case _:
                data = _value(run, op)
                run.values[op.id] = _Named(op.type.axes, _round(data, op.type.dtype))


def _value(run: _Run, op: Op) -> Array:
    sizes, axes = run.sizes, op.type.axes
    match op:
        case ops.Constant():
            return np.full([sizes[a] for a in axes], op.value)
        case ops.ScalarRead():
            return np.asarray(run.scalars[op.name])
        case ops.Index():
            start = run.starts.get(axes[0], 0)
            return np.arange(start, start + sizes[axes[0]])
        case ops.Extent():
            extent = run.graph.axes[op.axis]
            return np.asarray(extent.const if extent.is_const else sizes[op.axis])
        case ops.ReadOp():
            memory = run.memories[op.memory]
            return memory.data[_window(run, memory.axes)]
        case ops.CastOp() | ops.View():
            return _cast(run.value(op.value).to(axes, sizes), op.type.dtype)
        case ops.Reshape():
            return run.value(op.value).data.reshape([sizes[a] for a in axes])
        case ops.Remap():
            return _remap(run, op)
        case ops.Gather():
            return _gather(run, op)
        case ops.Scan():
            return _scan(run.value(op.value).to(axes, sizes), axes.index(op.axis), op)
        case ops.Elementwise():
            return FUNCTIONS[op.name](*(run.value(a).to(axes, sizes) for a in op.args))
        case ops.Contract():
            return _contract(run, op)
        case ops.ReduceOp():
            value = run.value(op.value)
            data = value.to((*axes, op.axis), sizes)
            reduced = REDUCTIONS[op.name].reduce(data, axis=-1)
            if op.init is not None:
                reduced = REDUCTIONS[op.name](reduced, run.value(op.init).to(axes, sizes))
            return reduced
        case _:
            raise TypeError(f"{type(op).__name__} is not a value")


def _remap(run: _Run, op: ops.Remap) -> Array:
    source = run.value(op.value)
    axes = op.type.axes
    grid = np.meshgrid(*(np.arange(run.sizes[a]) for a in axes), indexing="ij", sparse=True)
    where = dict(zip(axes, grid, strict=True))
    shape = [run.sizes[a] for a in axes]
    index = [np.broadcast_to(_coordinate(e, where), shape) for e in op.coordinates]
    limits = [run.sizes[a] for a in source.axes]
    inside = np.ones(shape, bool)
    for i, n in zip(index, limits, strict=True):
        inside &= (i >= 0) & (i < n)
    if not inside.any():
        return np.full(shape, op.fill)
    picked = source.data[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, limits, strict=True))]
    return picked if op.fill is None else np.where(inside, picked, op.fill)


def _gather(run: _Run, op: ops.Gather) -> Array:
    """The operand at data; zero where an index is off the axis."""
    source, axes = run.value(op.value), op.type.axes
    shape = [run.sizes[a] for a in axes]
    data = run.value(op.index).to(axes, run.sizes)
    extent = source.data.shape[source.axes.index(op.axis)]
    inside = (data >= 0) & (data < extent)
    if not inside.any():
        return np.zeros(shape, source.data.dtype)
    grid = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij", sparse=True)
    where = dict(zip(axes, grid, strict=True)) | {op.axis: np.clip(data, 0, extent - 1)}
    picked = source.data[tuple(where[a] for a in source.axes)]
    return np.where(inside, np.broadcast_to(picked, shape), np.zeros((), picked.dtype))


def _scan(data: Array, axis: int, op: ops.Scan) -> Array:
    data = np.moveaxis(data, axis, -1)
    if op.reverse:
        data = data[..., ::-1]
    done = REDUCTIONS[op.name].accumulate(data, axis=-1)
    if op.exclusive:
        first = np.full_like(done[..., :1], _identity(op.name, op.type.dtype))
        done = np.concatenate([first, done[..., :-1]], axis=-1)
    return np.moveaxis(done[..., ::-1] if op.reverse else done, -1, axis)


def _identity(name: str, dtype: DType) -> float | int:
    """What changes nothing: of a maximum or a minimum the farthest number of the element type."""
    if name in ("add", "mul"):
        return int(name == "mul")
    if dtype.kind is Kind.FLOAT:
        return -np.inf if name == "max" else np.inf
    limits = np.iinfo(numpy_dtype(dtype))
    return int(limits.min if name == "max" else limits.max)


def _coordinate(expr: Expr, where: Mapping[str, Array]) -> Array:
    total = np.asarray(expr.const)
    for term, coefficient in expr.terms:
        match term:
            case str():
                value = where[term]
            case Div(num, den):
                value = _coordinate(num, where) // den
            case Mod(num, den):
                value = _coordinate(num, where) % den
        total = total + coefficient * value
    return total


def _cast(data: Array, dtype: DType) -> Array:
    if dtype.kind is Kind.FLOAT or data.dtype.kind != "f":
        return data
    limits = np.iinfo(numpy_dtype(dtype)) if dtype.kind is Kind.INT else None
    data = np.trunc(np.nan_to_num(data, nan=0.0))
    return data if limits is None else np.clip(data, limits.min, limits.max)


def _contract(run: _Run, op: ops.Contract) -> Array:
    letters: dict[str, str] = {}

    def spell(names: Sequence[str]) -> str:
        return "".join(letters.setdefault(a, chr(ord("a") + len(letters))) for a in names)

    lhs, rhs = run.value(op.lhs), run.value(op.rhs)
    text = f"{spell(lhs.axes)},{spell(rhs.axes)}->{spell(op.type.axes)}"
    product = np.einsum(text, lhs.data, rhs.data, optimize=True)
    return run.value(op.acc).to(op.type.axes, run.sizes) + product


def _window(run: _Run, axes: Sequence[str]) -> tuple[slice, ...]:
    starts = (run.starts.get(a, 0) for a in axes)
    return tuple(slice(s, s + run.sizes[a]) for a, s in zip(axes, starts, strict=True))


def _write(run: _Run, op: ops.WriteOp) -> None:
    memory = run.memories[op.memory]
    memory.data[_window(run, memory.axes)] = run.value(op.value).to(memory.axes, run.sizes)


def _iterate(run: _Run, op: ops.Iterate) -> None:
    whole, tile = run.sizes[op.axis], run.tiles[op.axis]
    carried = [run.value(i) for i in op.inits]
    for start in range(0, whole, tile):
        run.starts[op.axis], run.sizes[op.axis] = start, min(tile, whole - start)
        for param, value in zip(op.params, carried, strict=True):
            run.values[param] = value
        _body(run, op.body)
        carried = [run.value(r) for r in op.results]
    run.sizes[op.axis] = whole
    run.starts.pop(op.axis, None)
    for result in ops.walk(run.graph.body):
        if isinstance(result, ops.Result) and result.iterate == op.id:
            found = carried[result.position]
            run.values[result.id] = _Named(result.type.axes, found.to(result.type.axes, run.sizes))


def tolerance(graph: Graph, sizes: Mapping[str, int]) -> float:
    """The largest error, relative to the largest magnitude, that rounding may explain.

    It follows from the coarsest element type that a value is rounded to on the way, and from
    the longest sum in single precision.
    """
    floats = {op.type.dtype for op in ops.walk(graph.body) if op.type.dtype.is_float}
    coarsest = max((_step(dtype) for dtype in floats), default=0.0)
    terms = prod(
        {a: sizes[a] for op in ops.walk(graph.body) for a in _reduced(op)}.values()
    )  # fmt: skip
    return max(coarsest, 2.0**-23 * max(8.0, terms**0.5)) * 4


def _step(dtype: DType) -> float:
    """The distance from one to the next number of a float type."""
    # The stubs of finfo leave its members open.
    return float(cast(Any, ml_dtypes).finfo(numpy_dtype(dtype)).eps)


def _reduced(op: Op) -> tuple[str, ...]:
    match op:
        case ops.Contract():
            return op.contracted
        case ops.ReduceOp() | ops.Scan():
            return (op.axis,)
        case _:
            return ()
