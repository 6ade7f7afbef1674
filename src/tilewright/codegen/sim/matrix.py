"""Matrix instructions: tiles gathered through an atom's layouts, then one batched matmul."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from tilewright.base.diagnostics import AtomError, BarrierError, UnsupportedError
from tilewright.base.dtypes import DType, Kind, f32, f64
from tilewright.codegen.sim.fragments import Selection
from tilewright.codegen.sim.index import Scope, number
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.numeric import Array, BoolArray, convert, widen
from tilewright.codegen.sim.site import Crew, Site
from tilewright.codegen.sim.values import check_written, select
from tilewright.kernel.ops import Mma, RegRef
from tilewright.poly.layout import Layout, Place
from tilewright.target.model import MmaAtom, Scope as AtomScope, Source

_TF32_KEPT = np.uint32(0xFFFFE000)  # tensor cores ignore the 13 low mantissa bits of f32


@dataclass(frozen=True, slots=True)
class _Split:
    """The digits of a layout as array axes, for ``[register, thread]`` -> ``[row, column]``.

    `extents` are those of the axes register digits, groups of warps, warp digits, lane digits.
    `order` lists them as groups, then row digits, then column digits, each from the most
    significant; `spare` are axes of replicas, after them.
    """

    extents: tuple[int, ...]
    group: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    spare: tuple[int, ...]


def _split(layout: Layout, row: str, column: str, groups: int) -> _Split:
    registers = layout.at(Place.REGISTER)
    others = (*layout.at(Place.WARP), *layout.at(Place.LANE))
    digits = [*registers, None, *others]
    extents = tuple(groups if d is None else d.extent for d in digits)

    def along(axis: str | None) -> tuple[int, ...]:
        found = [(d.stride, i) for i, d in enumerate(digits) if d is not None and d.axis == axis]
        return tuple(i for _, i in sorted(found, reverse=True))

    return _Split(extents, len(registers), along(row), along(column), along(None))


def _groups(atom: MmaAtom, crew: Crew) -> int:
    """How many groups of threads execute the atom side by side."""
    warps = 4 if atom.scope is AtomScope.WARPGROUP else 1
    return crew.warps // warps


def _tiles(data: Array, split: _Split, lead: int) -> Array:
    """``[*lead, register, thread, block]`` -> ``[*lead, block, group, row, column]``."""
    *leading, _, _, blocks = data.shape
    parts = data.reshape(*leading, *split.extents, blocks)
    parts = parts[(..., *(0 if i in split.spare else slice(None) for i in range(len(split.extents))), slice(None))]
    kept = [i for i in range(len(split.extents)) if i not in split.spare]
    place = {axis: lead + n for n, axis in enumerate(kept)}
    order = [*range(lead), lead + len(kept), place[split.group]]
    order += [place[i] for i in (*split.rows, *split.columns)]
    rows = prod(split.extents[i] for i in split.rows)
    columns = prod(split.extents[i] for i in split.columns)
    return parts.transpose(order).reshape(*leading, blocks, split.extents[split.group], rows, columns)


def _registers(tiles: Array, split: _Split, lead: int) -> Array:
    """The inverse of `_tiles`; replicas get the same value."""
    *leading, blocks, groups, _, _ = tiles.shape
    axes = (*split.rows, *split.columns)
    parts = tiles.reshape(*leading, blocks, groups, *(split.extents[i] for i in axes))
    place = {split.group: lead + 1} | {axis: lead + 2 + n for n, axis in enumerate(axes)}
    kept = [i for i in range(len(split.extents)) if i not in split.spare]
    parts = parts.transpose(*range(lead), *(place[i] for i in kept), lead)
    parts = np.expand_dims(parts, tuple(lead + i for i in split.spare))
    full = np.broadcast_to(parts, (*leading, *split.extents, blocks))
    registers = prod(split.extents[: split.group])
    return full.reshape(*leading, registers, -1, blocks)


def mma(machine: Machine, s: Mma, scope: Scope, mask: BoolArray | None) -> None:
    atom = _atom(machine, s)
    site = Site.of(s, machine.crew, scope, mask, s.over)
    if mask is not None:
        _check_whole(machine, atom, site, mask)
    if not _vectorisable(machine, s, atom, scope, mask):
        for values in product(*(range(extent) for _, extent in s.over)):
            single = {n: number(v) for (n, _), v in zip(s.over, values, strict=True)}
            _multiply(machine, s, atom, {**scope, **single}, (), mask)
        return
    _multiply(machine, s, atom, scope, s.over, mask)


def _vectorisable(
    machine: Machine, s: Mma, atom: MmaAtom, scope: Scope, mask: BoolArray | None
) -> bool:
    """Whether instances may be done at once: each accumulates on registers of its own, or sums
    to an f32, f64 or integer one."""
    if s.d.name in (s.a.name, s.b.name):
        return False
    kept = tuple(d for d in s.over if d[0] in _variables(s.d))
    if len(kept) < len(s.over) and atom.d_dtype not in (f32, f64) and atom.d_dtype.is_float:
        return False
    width = atom.d.count(Place.REGISTER)
    site = Site.of(s, machine.crew, {**scope, **{n: number(0) for n, _ in s.over}}, mask, kept, width)
    return select(machine, s.d, site, width).distinct


def _variables(ref: RegRef) -> frozenset[str]:
    return frozenset[str]().union(*(index.variables() for index in ref.index))


def _multiply(
    machine: Machine, s: Mma, atom: MmaAtom, scope: Scope, over: tuple[tuple[str, int], ...],
    mask: BoolArray | None,
) -> None:  # fmt: skip
    """Gather, multiply, accumulate. Instance digits are batch, row, column or summed digits."""
    groups = _groups(atom, machine.crew)
    a_vars, b_vars, d_vars = _variables(s.a), _variables(s.b), _variables(s.d)
    batch = tuple(d for d in over if _role(d[0], a_vars, b_vars, d_vars) == "batch")
    rows = tuple(d for d in over if _role(d[0], a_vars, b_vars, d_vars) == "row")
    columns = tuple(d for d in over if _role(d[0], a_vars, b_vars, d_vars) == "column")
    summed = tuple(d for d in over if _role(d[0], a_vars, b_vars, d_vars) == "sum")
    fixed = {n: number(0) for n, _ in over}

    def operand(ref: RegRef, layout: Layout, dtype: DType, axis: str, free: tuple[tuple[str, int], ...]) -> Array:
        digits = (*batch, *free, *summed)
        at, site = _selection(machine, s, ref, layout, {**scope, **fixed}, digits, mask)
        check_written(machine, ref, at, site, mask)
        data = machine.fragments[ref.name].read(at)
        lead = len(digits)
        full = (*(e for _, e in digits), *data.shape[-3:])
        tiles = _tiles(_exact(np.broadcast_to(data, full), dtype, atom), _split(layout, axis, "k", groups), lead)
        # [batch, free, summed, block, group, i, k] -> [batch, block, group, free, i, summed, k]
        nb, nf, ns = len(batch), len(free), len(summed)
        order = [*range(nb), lead, lead + 1, *range(nb, nb + nf), lead + 2]
        order += [*range(nb + nf, nb + nf + ns), lead + 3]
        outer = tuple(e for _, e in batch)
        return tiles.transpose(order).reshape(
            *outer, tiles.shape[lead], groups,
            prod(e for _, e in free) * tiles.shape[-2],
            prod(e for _, e in summed) * tiles.shape[-1],
        )  # fmt: skip

    a = operand(s.a, atom.a, atom.a_dtype, "m", rows)
    b = operand(s.b, atom.b, atom.b_dtype, "n", columns)
    total = np.matmul(a, np.swapaxes(b, -1, -2))
    outer = tuple(e for _, e in batch)
    row_extents, column_extents = tuple(e for _, e in rows), tuple(e for _, e in columns)
    nb, nr, nc = len(batch), len(rows), len(columns)
    parts = total.reshape(
        *outer, total.shape[nb], groups, *row_extents, atom.m, *column_extents, atom.n
    )
    r0 = nb + 2
    order = [*range(nb), *range(r0, r0 + nr), *range(r0 + nr + 1, r0 + nr + 1 + nc), nb, nb + 1]
    order += [r0 + nr, r0 + nr + 1 + nc]
    tiles = parts.transpose(order)
    digits = (*batch, *rows, *columns)
    update = _registers(tiles, _split(atom.d, "m", "n", groups), len(digits))
    at, site = _selection(machine, s, s.d, atom.d, {**scope, **fixed}, digits, mask)
    check_written(machine, s.d, at, site, mask)
    fragment = machine.fragments[s.d.name]
    result = _accumulate(fragment.read(at), update, atom.d_dtype)
    fragment.write(at, result.view(fragment.bits.dtype), mask)


def _role(name: str, a: frozenset[str], b: frozenset[str], d: frozenset[str]) -> str:
    if name not in d:
        return "sum"
    if name in a and name not in b:
        return "row"
    if name in b and name not in a:
        return "column"
    return "batch"


def _selection(
    machine: Machine, s: Mma, ref: RegRef, layout: Layout, scope: Scope,
    digits: Sequence[tuple[str, int]], mask: BoolArray | None,
) -> tuple[Selection, Site]:  # fmt: skip
    width = layout.count(Place.REGISTER)
    site = Site.of(s, machine.crew, scope, mask, tuple(digits), width)
    at = select(machine, ref, site, width)
    if at.by_thread:
        raise UnsupportedError(
            f"the threads name different registers of `{ref.name}` in one matrix instruction",
            span=s.span,
            expected="register indices that are alike for all threads",
        )
    return at, site


def _exact(data: Array, dtype: DType, atom: MmaAtom) -> Array:
    """Operands in a type whose products and sums the instruction's accumulator can hold.

    i8 products are summed in f64, exactly: far fewer than 2**39 of them meet.
    """
    if dtype.kind is Kind.INT:
        return data.astype(np.float64)
    wide = widen(data, dtype)
    if ".tf32" in atom.name:
        return (np.ascontiguousarray(wide).view(np.uint32) & _TF32_KEPT).view(np.float32)
    return wide


def _accumulate(old: Array, update: Array, dtype: DType) -> Array:
    if dtype.kind is Kind.INT:
        return (old.astype(np.int64) + update.astype(np.int64)).astype(old.dtype)
    return np.ascontiguousarray(convert(widen(old, dtype) + update, dtype))


def _atom(machine: Machine, s: Mma) -> MmaAtom:
    atom = machine.target.atom(s.atom)
    if atom is None:
        raise AtomError(
            f"{machine.target.name} has no matrix instruction `{s.atom}`",
            span=s.span,
            mend="choose one of the target's mma_atoms",
        )
    if Source.SHARED in (atom.a_source, atom.b_source):
        raise UnsupportedError(
            f"`{s.atom}` reads an operand from shared memory, which Mma cannot name",
            span=s.span,
        )
    return atom


def _check_whole(machine: Machine, atom: MmaAtom, site: Site, mask: BoolArray) -> None:
    """All threads that execute an atom together must be there, or none."""
    crew = machine.crew
    full = np.broadcast_to(mask, (crew.threads, crew.blocks))
    parts = full.reshape(_groups(atom, crew), -1, crew.blocks)
    torn = parts.any(axis=1, keepdims=True) & ~parts
    if torn.any():
        bad = torn.reshape(full.shape)
        position = site.first(bad)
        raise site.fault(
            BarrierError,
            f"`{atom.name}` is not reached by thread {position[-2]}, which is part of its "
            f"{atom.scope.value}",
            position,
            expected=f"all threads of a {atom.scope.value}, or none",
        )
