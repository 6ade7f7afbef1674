"""Warpgroup matrix instructions: they read and write as late as the wait for them allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.base.diagnostics import AtomError, BoundsError, LegalityError, RaceError
from tilewright.codegen.sim.agents import MATRIX, Groups, Held, Operation, Region
from tilewright.codegen.sim.fragments import Selection
from tilewright.codegen.sim.index import Scope, evaluate, instances
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.matrix import accumulate, factors
from tilewright.codegen.sim.memory import SharedBuffer
from tilewright.codegen.sim.numeric import NUMPY, Array, BoolArray, IntArray
from tilewright.codegen.sim.site import Site
from tilewright.codegen.sim.tiles import TileAxes
from tilewright.codegen.sim.values import check_initialised, select
from tilewright.kernel.async_ops import TileRef, WarpgroupMma
from tilewright.kernel.ops import RegRef
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Layout, Place
from tilewright.target.model import MmaAtom
from tilewright.target.model import Scope as AtomScope

WARPS = 4  # of a warpgroup

Operand = Callable[[], Array]  # gives [rows, k], as late as it is called


@dataclass(frozen=True, slots=True)
class _Group:
    """One warpgroup that executes one instance of a statement."""

    machine: Machine
    statement: WarpgroupMma
    atom: MmaAtom
    site: Site
    mask: BoolArray  # the warpgroup's threads
    block: int
    number: int

    @property
    def threads(self) -> slice:
        size = WARPS * self.machine.crew.warp_size
        return slice(self.number * size, (self.number + 1) * size)

    @property
    def position(self) -> tuple[int, int]:
        return self.threads.start, self.block

    def registers(self, layout: Layout) -> Site:
        """The site with an axis for an operand's registers."""
        width = layout.count(Place.REGISTER)
        return Site.of(self.statement, self.machine.crew, self.site.scope, self.mask, (), width)

    def alike(self, value: int | IntArray | BoolArray, what: str) -> int:
        """A value that all threads of the warpgroup must agree on."""
        full = np.broadcast_to(np.asarray(value), self.mask.shape)[self.threads, self.block]
        if (full != full[0]).any():
            raise self.site.fault(
                LegalityError,
                f"the threads of a warpgroup disagree on {what}",
                self.position,
                expected="a value that is alike for the whole warpgroup",
            )
        return int(full[0])


def warpgroups(machine: Machine, mask: BoolArray) -> Iterator[tuple[int, int, BoolArray]]:
    """Block, number and threads of each warpgroup with an active thread."""
    crew = machine.crew
    size = WARPS * crew.warp_size
    for block in range(crew.blocks):
        for number in range(crew.threads // size):
            part = slice(number * size, (number + 1) * size)
            if mask[part, block].any():
                who = np.zeros_like(mask)
                who[part, block] = mask[part, block]
                yield block, number, who


def groups(machine: Machine, block: int, number: int) -> Groups:
    return machine.asynchrony.agents.matrix.setdefault((block, number), Groups())


def start(machine: Machine, s: WarpgroupMma, scope: Scope, mask: BoolArray) -> None:
    atom = _atom(machine, s)
    for block, number, who in warpgroups(machine, mask):
        for single in instances(scope, s.over):
            site = Site.of(s, machine.crew, single, who)
            _start(_Group(machine, s, atom, site, who, block, number))


def _start(g: _Group) -> None:
    machine, s, crew = g.machine, g.statement, g.machine.crew
    guard = machine.indexer.guard(s.accumulate, g.site.scope)
    adds = guard is None or bool(g.alike(guard, "whether it accumulates"))
    d = _registers(g, s.d, g.atom.d, "written")
    if machine.checks and adds:
        check_initialised(machine, s.d, d, g.registers(g.atom.d), g.mask)
    machine.fragments[s.d.name].mark(d, g.mask)
    held = [Held(s.d.name, d.index.reshape(-1), g.threads, g.block, written=True)]
    regions: list[Region] = []
    if isinstance(s.a, RegRef):
        rows = _registers(g, s.a, g.atom.a, "read")
        if machine.checks:
            check_initialised(machine, s.a, rows, g.registers(g.atom.a), g.mask)
        held.append(Held(s.a.name, rows.index.reshape(-1), g.threads, g.block, written=False))
        a = _from_registers(g, s.a, rows)
    else:
        a = _from_shared(g, s.a, g.atom.m, "a", regions)
    b = _from_shared(g, s.b, g.atom.n, "b", regions)
    clocks = machine.asynchrony.clocks
    clocks.release(clocks.units_of(g.mask))  # the lanes of each warp have converged
    by = tuple((g.block, g.threads.start + w * crew.warp_size) for w in range(WARPS))
    operation = Operation(
        MATRIX, machine.asynchrony.agents.next_bit(), by, g.site.who(g.position), s.span,
        tuple(regions), lambda: _multiply(g, d, a(), b(), adds), tuple(held),
    )  # fmt: skip
    machine.asynchrony.agents.begin(operation, g.site, machine.checks)
    groups(machine, g.block, g.number).open.append(operation)


def _registers(g: _Group, ref: RegRef, layout: Layout, verb: str) -> Selection:
    """The registers of an operand; RaceError where they lack a fence or are in flight."""
    machine, site = g.machine, g.registers(layout)
    at = select(machine, ref, site, layout.count(Place.REGISTER))
    if at.by_thread:
        raise site.fault(
            LegalityError, f"the threads name different registers of `{ref.name}`",
            (0, *g.position), expected="register indices that are alike for all threads",
        )  # fmt: skip
    if not machine.checks:
        return at
    agents = machine.asynchrony.agents
    rows = at.index.reshape(-1)
    units = machine.asynchrony.clocks.units_of(g.mask)
    if agents.touched[ref.name][rows[:, None], units].any():
        raise g.site.fault(
            RaceError,
            f"registers of `{ref.name}` were accessed with no WarpgroupFence since",
            g.position,
            expected="a WarpgroupFence between the access and the matrix instruction",
        )
    for operation, held in agents.held(ref.name):
        same = held.block == g.block and held.threads == g.threads
        # Instructions on one accumulator follow one another in order.
        if (
            not same
            or (verb == "written" and held.written)
            or not (held.written or verb == "written")
        ):
            continue
        if np.intersect1d(rows, held.rows).size:
            raise g.site.fault(
                RaceError,
                f"registers of `{ref.name}` are {verb} by a matrix instruction while another "
                f"{'writes' if held.written else 'reads'} them",
                g.position,
                expected="a WarpgroupWait between the two",
                notes=(operation.note,),
            )
    return at


def _from_registers(g: _Group, ref: RegRef, at: Selection) -> Operand:
    fragment = g.machine.fragments[ref.name]

    def read() -> Array:
        data = fragment.data[at.index.reshape(-1)][:, g.threads, g.block]
        axes = TileAxes.of(g.atom.a, "m", "k", 1)
        tile = axes.gather(data[..., None])[0, 0]
        return factors(tile, fragment.declared.dtype, g.atom)

    return read


def _from_shared(
    g: _Group, ref: TileRef, rows: int, operand: str, regions: list[Region]
) -> Operand:
    buffer = g.machine.shared[ref.name]
    at = _tile(g, ref, buffer, rows, operand)
    regions.append(Region.of(buffer, at.reshape(-1), g.block, writes=False))
    dtype = buffer.declared.dtype
    size = at.size * dtype.bytes
    g.machine.tally.shared[ref.name].read_bytes += size

    def read() -> Array:
        bits = buffer.get(at.reshape(-1), g.block).view(NUMPY[dtype]).reshape(at.shape)
        return factors(bits, dtype, g.atom)

    return read


def _tile(g: _Group, ref: TileRef, buffer: SharedBuffer, rows: int, operand: str) -> IntArray:
    """The (swizzled) offsets of the elements (r, k) of an operand."""

    def value(expr: Expr) -> int:
        return g.alike(evaluate(expr, g.site.scope), f"where operand {operand} lies")

    declared = buffer.declared
    index: list[IntArray] = [np.full((1, 1), value(i), np.int64) for i in ref.index]
    index[ref.rows] = index[ref.rows] + np.arange(rows, dtype=np.int64)[:, None]
    index[ref.depth] = index[ref.depth] + np.arange(g.atom.k, dtype=np.int64)
    if ref.panel >= 0:
        width = declared.shape[-1]
        index[ref.panel] = index[ref.panel] + index[-1] // width
        index[-1] = index[-1] % width
    offset = np.zeros((rows, g.atom.k), np.int64)
    for axis, (along, extent) in enumerate(zip(index, declared.shape, strict=True)):
        if int(along.min()) < 0 or int(along.max()) >= extent:
            raise g.site.fault(
                BoundsError,
                f"operand {operand} reaches {int(along.min())}..{int(along.max())} on axis {axis} "
                f"of `{ref.name}`",
                g.position,
                expected=f"0 <= index < {extent}",
            )
        offset = offset + along * declared.strides[axis]
    return buffer.physical(offset)


def _multiply(g: _Group, d: Selection, a: Array, b: Array, adds: bool) -> None:
    """Write ``d += a * b`` or ``d = a * b`` in the warpgroup's threads."""
    fragment = g.machine.fragments[g.statement.d.name]
    dtype = fragment.declared.dtype
    total = np.matmul(a, b.T)[None, None]
    update = TileAxes.of(g.atom.d, "m", "n", 1).scatter(total)[..., 0]
    rows = d.index.reshape(-1)
    old = fragment.data[rows][:, g.threads, g.block]
    result = accumulate(old if adds else np.zeros_like(old), update, dtype)
    fragment.data[rows[:, None], np.arange(g.threads.start, g.threads.stop), g.block] = result


def fence(machine: Machine, mask: BoolArray) -> None:
    units = machine.asynchrony.clocks.units_of(mask)
    for touched in machine.asynchrony.agents.touched.values():
        touched[:, units] = False


def commit(machine: Machine, mask: BoolArray) -> None:
    for block, number, _ in warpgroups(machine, mask):
        groups(machine, block, number).commit()


def wait(machine: Machine, pending: int, mask: BoolArray) -> None:
    clocks = machine.asynchrony.clocks
    for block, number, who in warpgroups(machine, mask):
        own = groups(machine, block, number)
        for operation in own.covered(pending):
            operation.run()
            clocks.learn(clocks.units_of(who), operation.bit)
        own.drop(pending)


def _atom(machine: Machine, s: WarpgroupMma) -> MmaAtom:
    atom = machine.target.atom(s.atom)
    if atom is None or atom.scope is not AtomScope.WARPGROUP:
        raise AtomError(
            f"{machine.target.name} has no warpgroup matrix instruction `{s.atom}`",
            span=s.span,
            mend="choose one of the target's mma_atoms",
        )
    return atom
