"""What blocks of the grid leave for one another: deposits, announced warp by warp."""

from __future__ import annotations

import numpy as np

from tilewright.base.diagnostics import BarrierError, RaceError, UnwrittenReadError
from tilewright.codegen.sim.index import Scope, evaluate
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.meeting import first_of
from tilewright.codegen.sim.memory import steps
from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.codegen.sim.site import Site
from tilewright.codegen.sim.values import check_written, select, set_registers
from tilewright.kernel.async_ops import Announce, Await, Collect, Deposit


def deposit(machine: Machine, s: Deposit, scope: Scope, mask: BoolArray | None) -> None:
    post = machine.asynchrony.posts[s.exchange]
    site = Site.of(s, machine.crew, scope, mask, s.over, s.width)
    at = select(machine, s.src, site, s.width)
    check_written(machine, s.src, at, site, mask)
    who = _active(machine, mask)
    late = who & _by_thread(machine, post.announced)
    if late.any():
        raise site.fault(
            RaceError, f"`{s.exchange}` gets a deposit after it was announced",
            (*(0 for _ in site.digits), *first_of(late)),
            expected="an Announce after all deposits of a launch",
        )  # fmt: skip
    bits = np.broadcast_to(machine.fragments[s.src.name].read_bits(at), site.shape)
    rows = _rows(machine, s, site)
    post.bits[rows] = np.where(who, bits.reshape(-1, *who.shape), post.bits[rows])
    post.written[rows] |= who


def announce(machine: Machine, s: Announce, scope: Scope, mask: BoolArray | None) -> None:
    post = machine.asynchrony.posts[s.exchange]
    warps = _warps(machine, _active(machine, mask))
    if (again := warps & post.announced).any():
        warp, block = (int(i) for i in np.argwhere(again)[0])
        raise Site.of(s, machine.crew, scope, mask).fault(
            BarrierError, f"a deposit in `{s.exchange}` is announced for the second time",
            (warp * machine.crew.warp_size, block), expected="one Announce of each warp",
        )  # fmt: skip
    post.announced |= warps
    post.flags |= warps


def ready(machine: Machine, s: Await, scope: Scope, mask: BoolArray) -> BoolArray | str:
    """The threads of warps whose counterpart has announced; where none has, what is missing."""
    post, crew = machine.asynchrony.posts[s.exchange], machine.crew
    block = _source(s, scope, mask)
    flags = np.repeat(post.flags[:, block - crew.first_block], crew.warp_size)
    some = mask & flags[:, None]
    return some if some.any() else f"block {block} has announced no deposit in {s.exchange}"


def _source(s: Await, scope: Scope, mask: BoolArray) -> int:
    return int(np.broadcast_to(evaluate(s.block, scope), mask.shape)[first_of(mask)])


def take(machine: Machine, s: Await, scope: Scope, mask: BoolArray) -> None:
    """Take back the announcements that `ready` found."""
    post = machine.asynchrony.posts[s.exchange]
    source = _source(s, scope, mask) - machine.crew.first_block
    for warp, block in np.argwhere(_warps(machine, mask)):
        post.flags[warp, source] = False
        post.granted.add((int(warp), int(block), source))


def collect(machine: Machine, s: Collect, scope: Scope, mask: BoolArray | None) -> None:
    post, crew = machine.asynchrony.posts[s.exchange], machine.crew
    site = Site.of(s, crew, scope, mask, s.over, s.width)
    at = select(machine, s.dst, site, s.width)
    who = _active(machine, mask)
    source = np.broadcast_to(evaluate(s.block, scope), who.shape) - crew.first_block
    for warp, block in np.argwhere(_warps(machine, who)):
        if (int(warp), int(block), int(source[warp * crew.warp_size, block])) not in post.granted:
            raise site.fault(
                RaceError, f"`{s.exchange}` is collected before it is awaited",
                (*(0 for _ in site.digits), int(warp) * crew.warp_size, int(block)),
                expected="an Await for the block before",
            )  # fmt: skip
    rows = _rows(machine, s, site)[:, None, None]
    threads = np.arange(crew.threads)[:, None]
    place = np.where(who, source, 0)
    missing = who & ~post.written[rows, threads, place]
    if missing.any():
        position = site.first(missing.reshape(site.shape))
        raise site.fault(
            UnwrittenReadError, f"`{s.exchange}` is collected where nothing was deposited", position
        )
    bits = post.bits[rows, threads, place].reshape(site.shape)
    set_registers(machine, s.dst, at, site, bits, mask)


def check_taken(machine: Machine) -> None:
    """Every announcement was awaited: the flags are zero for the next launch."""
    for name, post in machine.asynchrony.posts.items():
        if post.flags.any():
            warp, block = (int(i) for i in np.argwhere(post.flags)[0])
            raise BarrierError(
                f"what warp {warp} of block {machine.crew.first_block + block} has announced in "
                f"`{name}` is never awaited",
                expected="an Await for each Announce",
            )


def _rows(machine: Machine, s: Deposit | Collect, site: Site) -> IntArray:
    """The elements of the exchange, instance by instance."""
    found = machine.indexer.affine(s.index, site.scope)
    at = np.broadcast_to(found.base + found.shift + steps(s.width, 1), (*site.extents, 1, 1))
    return at.reshape(-1)


def _active(machine: Machine, mask: BoolArray | None) -> BoolArray:
    crew = machine.crew
    return np.broadcast_to(True if mask is None else mask, (crew.threads, crew.blocks))


def _warps(machine: Machine, mask: BoolArray) -> BoolArray:
    crew = machine.crew
    return np.logical_or.reduce(mask.reshape(crew.warps, crew.warp_size, crew.blocks), axis=1)


def _by_thread(machine: Machine, warps: BoolArray) -> BoolArray:
    return np.repeat(warps, machine.crew.warp_size, axis=0)
