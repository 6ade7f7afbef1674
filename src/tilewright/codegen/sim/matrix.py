"""Matrix instructions: operand tiles gathered through the atom's layouts, then one matmul."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.base.diagnostics import AtomError, BarrierError, UnsupportedError
from tilewright.base.dtypes import DType, Kind, f32, f64
from tilewright.codegen.sim.fragments import Selection
from tilewright.codegen.sim.index import Scope, instances
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.numeric import Array, BoolArray, convert, widen
from tilewright.codegen.sim.site import Site
from tilewright.codegen.sim.tiles import TileAxes
from tilewright.codegen.sim.values import check_written, select
from tilewright.kernel.ops import Mma, Over, RegRef
from tilewright.poly.layout import Layout, Place
from tilewright.target.model import MmaAtom, Source
from tilewright.target.model import Scope as AtomScope

_TF32_KEPT = np.uint32(0xFFFFE000)  # tensor cores ignore the 13 low mantissa bits of f32


@dataclass(frozen=True, slots=True)
class _Roles:
    """How the instances of a statement combine: like the digits of one large contraction."""

    batch: Over
    rows: Over
    columns: Over
    summed: Over

    @staticmethod
    def of(s: Mma, over: Over) -> _Roles:
        a, b, d = (_variables(ref) for ref in (s.a, s.b, s.d))

        def role(name: str) -> str:
            if name not in d:
                return "summed"
            if (name in a) == (name in b):
                return "batch"
            return "rows" if name in a else "columns"

        found = {digit: role(digit[0]) for digit in over}
        batch, rows, columns, summed = (
            tuple(digit for digit in over if found[digit] == wanted)
            for wanted in ("batch", "rows", "columns", "summed")
        )
        return _Roles(batch, rows, columns, summed)


@dataclass(frozen=True, slots=True)
class _Step:
    """One execution of a statement, or of one of its instances."""

    machine: Machine
    statement: Mma
    atom: MmaAtom
    scope: Scope
    mask: BoolArray | None
    roles: _Roles
    groups: int

    def select(self, ref: RegRef, layout: Layout, digits: Over) -> Selection:
        """The registers of a fragment, which must have been written."""
        width = layout.count(Place.REGISTER)
        crew = self.machine.crew
        site = Site.of(self.statement, crew, self.scope, self.mask, digits, width)
        at = select(self.machine, ref, site, width)
        if at.by_thread:
            raise UnsupportedError(
                f"the threads name different registers of `{ref.name}` in one matrix instruction",
                span=self.statement.span,
                expected="register indices that are alike for all threads",
            )
        check_written(self.machine, ref, at, site, self.mask)
        return at


def mma(machine: Machine, s: Mma, scope: Scope, mask: BoolArray | None) -> None:
    atom = _atom(machine, s)
    crew = machine.crew
    groups = crew.warps // (4 if atom.scope is AtomScope.WARPGROUP else 1)
    if mask is not None:
        _check_whole(Site.of(s, crew, scope, mask), atom, groups)
    if _at_once(machine, s, atom, scope):
        _multiply(_Step(machine, s, atom, scope, mask, _Roles.of(s, s.over), groups))
        return
    for single in instances(scope, s.over):
        _multiply(_Step(machine, s, atom, single, mask, _Roles.of(s, ()), groups))


def _at_once(machine: Machine, s: Mma, atom: MmaAtom, scope: Scope) -> bool:
    """Whether all instances may be done at once.

    Each must accumulate in registers of its own, or where several sum to the same registers,
    these must not round after each.
    """
    if s.d.name in (s.a.name, s.b.name):
        return False
    kept = tuple(digit for digit in s.over if digit[0] in _variables(s.d))
    if len(kept) < len(s.over) and atom.d_dtype.is_float and atom.d_dtype not in (f32, f64):
        return False
    width = atom.d.count(Place.REGISTER)
    site = Site.of(s, machine.crew, scope, None, kept, width)
    return select(machine, s.d, site, width).distinct


def _variables(ref: RegRef) -> frozenset[str]:
    return frozenset[str]().union(*(index.variables() for index in ref.index))


def _multiply(step: _Step) -> None:
    """Gather both operands, multiply, add to the accumulator's registers."""
    s, atom, roles = step.statement, step.atom, step.roles
    a = _operand(step, s.a, atom.a, "m", roles.rows)
    b = _operand(step, s.b, atom.b, "n", roles.columns)
    total = np.matmul(a, np.swapaxes(b, -1, -2))
    digits = (*roles.batch, *roles.rows, *roles.columns)
    tiles = _instance_tiles(total, roles, atom)
    update = TileAxes.of(atom.d, "m", "n", step.groups).scatter(tiles)
    at = step.select(s.d, atom.d, digits)
    fragment = step.machine.fragments[s.d.name]
    result = accumulate(fragment.read(at), update, atom.d_dtype)
    fragment.write(at, result.view(fragment.bits.dtype), step.mask)


def _operand(step: _Step, ref: RegRef, layout: Layout, axis: str, free: Over) -> Array:
    """``[*batch, block, group, free digits and axis, summed digits and k]`` of one operand."""
    batch, summed = step.roles.batch, step.roles.summed
    digits = (*batch, *free, *summed)
    data = step.machine.fragments[ref.name].read(step.select(ref, layout, digits))
    data = np.broadcast_to(data, (*_extents(digits), *data.shape[-3:]))
    axes = TileAxes.of(layout, axis, "k", step.groups)
    tiles = axes.gather(factors(data, step.machine.fragments[ref.name].declared.dtype, step.atom))
    rank, split = len(digits), len(batch) + len(free)
    block, group, row, k = range(rank, rank + 4)
    order = (*range(len(batch)), block, group, *range(len(batch), split), row)
    moved = tiles.transpose(*order, *range(split, rank), k)
    rows = prod(_extents(free)) * tiles.shape[row]
    columns = prod(_extents(summed)) * tiles.shape[k]
    return moved.reshape(*_extents(batch), tiles.shape[block], step.groups, rows, columns)


def _instance_tiles(total: Array, roles: _Roles, atom: MmaAtom) -> Array:
    """``[*batch, block, group, M, N]`` -> ``[*batch, *rows, *columns, block, group, m, n]``."""
    *outer, _, _ = total.shape
    rows, columns = _extents(roles.rows), _extents(roles.columns)
    parts = total.reshape(*outer, *rows, atom.m, *columns, atom.n)
    group = len(outer) - 1
    m = group + 1 + len(rows)
    n = m + 1 + len(columns)
    digits = (*range(group - 1), *range(group + 1, m), *range(m + 1, n))
    return parts.transpose(*digits, group - 1, group, m, n)


def _extents(digits: Over) -> tuple[int, ...]:
    return tuple(extent for _, extent in digits)


def factors(data: Array, dtype: DType, atom: MmaAtom) -> Array:
    """Operands in a type that holds their products exactly, and integer sums too."""
    if dtype.kind is Kind.INT:
        return data.astype(np.float64)
    wide = widen(data, dtype)
    if ".tf32" in atom.name:
        return (np.ascontiguousarray(wide).view(np.uint32) & _TF32_KEPT).view(np.float32)
    return wide


def accumulate(old: Array, update: Array, dtype: DType) -> Array:
    if dtype.kind is Kind.INT:
        return (old.astype(np.int64) + update.astype(np.int64)).astype(old.dtype)
    return convert(widen(old, dtype) + update, dtype)


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
            mend="choose an atom whose operands are in registers",
        )
    return atom


def _check_whole(site: Site, atom: MmaAtom, groups: int) -> None:
    """BarrierError unless all threads that execute an atom together are active, or none is."""
    crew = site.crew
    full = np.broadcast_to(True if site.mask is None else site.mask, (crew.threads, crew.blocks))
    parts = full.reshape(groups, -1, crew.blocks)
    torn = parts.any(axis=1, keepdims=True) & ~parts
    if torn.any():
        position = site.first(torn.reshape(full.shape))
        raise site.fault(
            BarrierError,
            f"`{atom.name}` is not reached by thread {position[-2]}, though other threads of its "
            f"{atom.scope.value} reach it",
            position,
            expected=f"all threads of a {atom.scope.value}, or none",
        )
