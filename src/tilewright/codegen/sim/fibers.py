"""Cooperative execution: the warps of a block in groups (fibers) that wait for each other.

A fiber is a set of warps of one block at one place of the program. It runs on until it has to
wait; where its warps part (a role, a barrier of their own) it splits, and where they must act
together again it merges. Asynchronous operations complete only when nothing else can go on, or
at random. Where nothing completes either, the block is in deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.base.diagnostics import BarrierError
from tilewright.base.spans import Span
from tilewright.codegen.sim import posts, warpgroup
from tilewright.codegen.sim.asynchronous import blocks, meet_alone, perform
from tilewright.codegen.sim.execute import check_alike, step
from tilewright.codegen.sim.index import Variable, evaluate, number
from tilewright.codegen.sim.machine import Machine
from tilewright.codegen.sim.meeting import REGISTER_STEP, Meeting, Waiter, first_of, parties
from tilewright.codegen.sim.numeric import BoolArray, IntArray
from tilewright.codegen.sim.site import Site
from tilewright.codegen.sim.values import evaluate as value_of
from tilewright.kernel.async_ops import (
    Await,
    ClusterWait,
    NamedBarrier,
    PhaseWait,
    SetRegisters,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import Barrier, Body, If, Loop, Statement, When


@dataclass(slots=True)
class _Frame:
    """A body being executed: its next statement, and where it is a loop's, the iteration."""

    body: Body
    scope: dict[str, Variable]
    mask: BoolArray
    at: int = 0
    loop: str | None = None
    value: int = 0
    extent: int = 0


@dataclass(eq=False, slots=True)
class _Fiber:
    """`arrived` is the barrier and generation at which it has arrived and waits."""

    block: int
    frames: list[_Frame]
    arrived: tuple[Meeting, int] | None = None
    waits: str = ""

    @property
    def top(self) -> _Frame:
        return self.frames[-1]

    @property
    def mask(self) -> BoolArray:
        return self.frames[-1].mask

    @property
    def place(self) -> tuple[object, ...]:
        return (self.block, *((id(f.body), f.at, f.value) for f in self.frames))

    def narrowed(self, warps: BoolArray) -> _Fiber:
        """The part of the fiber that has these (whole) warps."""
        frames = [replace(f, scope=dict(f.scope), mask=f.mask & warps) for f in self.frames]
        return _Fiber(self.block, frames, self.arrived)


class Scheduler:
    """Runs the blocks of one crew to their end."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.crew = machine.crew
        self.fibers: list[_Fiber] = []
        self.blocking = {id(s) for s in _subtrees(machine.kernel.body)}

    def run(self, scope: dict[str, Variable]) -> None:
        """Execute the kernel; BarrierError where its warps wait for each other in vain."""
        for block in range(self.crew.blocks):
            mask = np.zeros((self.crew.threads, self.crew.blocks), np.bool_)
            mask[:, block] = True
            self.fibers.append(_Fiber(block, [_Frame(self.machine.kernel.body, dict(scope), mask)]))
        while self.fibers:
            self._complete_at_random()
            moved = False
            for fiber in self._order():
                moved |= self._advance(fiber)
            if not moved and not self._complete_one():
                raise self._deadlock()

    # ------------------------------------------------------------ scheduling

    def _order(self) -> list[_Fiber]:
        random = self.machine.random
        if random is None:
            return list(self.fibers)
        return [self.fibers[int(i)] for i in random.permutation(len(self.fibers))]

    def _advance(self, fiber: _Fiber) -> bool:
        """Let a fiber go on until it waits (or with a seed, stops anywhere)."""
        random = self.machine.random
        budget = -1 if random is None else int(random.integers(1, 16))
        moved = False
        while budget and fiber in self.fibers:
            if not self._step(fiber):
                break
            moved, budget = True, budget - 1
        return moved

    def _complete_one(self) -> bool:
        """Land one bulk load that somebody waits for."""
        asynchrony = self.machine.asynchrony
        wanted = [landing for landing in asynchrony.landings if landing.barrier.waiting]
        if not wanted:
            return False
        random = self.machine.random
        chosen = wanted[0 if random is None else int(random.integers(len(wanted)))]
        asynchrony.landings.remove(chosen)
        chosen.land()
        return True

    def _complete_at_random(self) -> None:
        random, asynchrony = self.machine.random, self.machine.asynchrony
        if random is None:
            return
        for landing in list(asynchrony.landings):
            if random.random() < 0.2:
                asynchrony.landings.remove(landing)
                landing.land()
        for groups in asynchrony.agents.matrix.values():
            for operation in groups.all():
                if random.random() < 0.5:
                    break  # matrix instructions execute in order
                operation.run()
        for groups in asynchrony.agents.stores.values():
            for operation in groups.all():
                if random.random() < 0.2:
                    operation.run()

    def _deadlock(self) -> BarrierError:
        notes: list[str] = []
        first: Span | None = None
        for fiber in self.fibers:
            statement = fiber.top.body[fiber.top.at]
            span = getattr(statement, "span", None)
            first = first or span
            where = "" if span is None else f" ({span.file}:{span.line})"
            notes.append(f"{self._who(fiber)}, at {_title(statement)}{where}: {fiber.waits}")
        return BarrierError(
            "deadlock: all warps that have not ended wait",
            span=first,
            expected="for each wait, the arrivals and bytes that end its phase",
            notes=tuple(notes),
        )

    def _who(self, fiber: _Fiber) -> str:
        crew = self.crew
        warps = [u % crew.warps for u in self._units(fiber.mask)]
        plural = "s" if len(warps) > 1 else ""
        return f"warp{plural} {_ranges(warps)} of block {crew.first_block + fiber.block}"

    def _units(self, mask: BoolArray) -> list[int]:
        return self.machine.asynchrony.clocks.units_of(mask)

    # ------------------------------------------------------------ one statement

    def _step(self, fiber: _Fiber) -> bool:
        """Execute the fiber's next statement; False where it has to wait."""
        frame = fiber.top
        if frame.at == len(frame.body):
            self._leave(fiber)
            return True
        s = frame.body[frame.at]
        if id(s) not in self.blocking:
            step(self.machine, s, frame.scope, self._mask(frame.mask))
            frame.at += 1
            return True
        match s:
            case If():
                return self._if(fiber, s)
            case When():
                return self._when(fiber, s)
            case Loop():
                return self._loop(fiber, s)
            case _:
                return self._wait(fiber, s)

    def _mask(self, mask: BoolArray) -> BoolArray | None:
        return None if mask.all() else mask

    def _leave(self, fiber: _Fiber) -> None:
        """The body has ended: the next iteration, or what follows the statement."""
        frame = fiber.top
        if frame.loop is not None and frame.value + 1 < frame.extent:
            frame.value += 1
            frame.at = 0
            frame.scope = {**fiber.frames[-2].scope, frame.loop: number(frame.value)}
            return
        fiber.frames.pop()
        if not fiber.frames:
            self.fibers.remove(fiber)
            return
        fiber.top.at += 1

    def _if(self, fiber: _Fiber, s: If) -> bool:
        guard = self.machine.indexer.guard(s.guard, fiber.top.scope)
        return self._branch(fiber, s.body, guard)

    def _when(self, fiber: _Fiber, s: When) -> bool:
        site = Site.of(s, self.crew, fiber.top.scope, fiber.mask)
        condition = value_of(self.machine, s.condition, site)
        condition = condition.reshape(condition.shape or (1, 1)).copy()
        if self._split(fiber, condition.astype(np.int64)):
            return True
        check_alike(Site.of(s, self.crew, fiber.top.scope, fiber.mask), condition, "the condition")
        return self._branch(fiber, s.body, condition)

    def _branch(self, fiber: _Fiber, body: Body, guard: BoolArray | None) -> bool:
        """Enter a body with the threads that pass; whole warps that do not go on after it."""
        inner = fiber.mask if guard is None else fiber.mask & guard
        entering = self._warps(inner)
        if self._part(fiber, entering):
            return True
        if inner.any():
            fiber.frames.append(_Frame(body, dict(fiber.top.scope), inner.copy()))
        else:
            fiber.top.at += 1
        return True

    def _loop(self, fiber: _Fiber, s: Loop) -> bool:
        extent = evaluate(s.extent, fiber.top.scope)
        if not isinstance(extent, int):
            if self._split(fiber, extent):
                return True
            site = Site.of(s, self.crew, fiber.top.scope, fiber.mask)
            check_alike(site, extent, f"the extent of loop `{s.var}`")
            extent = int(np.broadcast_to(extent, fiber.mask.shape)[first_of(fiber.mask)])
        if extent < 1:
            fiber.top.at += 1
            return True
        scope = {**fiber.top.scope, s.var: number(0)}
        frame = _Frame(s.body, scope, fiber.mask.copy(), 0, s.var, 0, extent)
        fiber.frames.append(frame)
        return True

    # ------------------------------------------------------------ splitting and merging

    def _warps(self, mask: BoolArray) -> BoolArray:
        """All threads of the warps with an active thread."""
        crew = self.crew
        some = mask.reshape(crew.warps, crew.warp_size, crew.blocks).any(axis=1)
        return np.repeat(some, crew.warp_size, axis=0)

    def _part(self, fiber: _Fiber, warps: BoolArray) -> bool:
        """Split off the other warps, which stay at the same place; whether there are any."""
        mask = fiber.mask
        if not (mask & warps).any() or not (mask & ~warps).any():
            return False
        self.fibers.append(fiber.narrowed(~warps))
        for frame in fiber.frames:
            frame.mask = frame.mask & warps
        return True

    def _split(self, fiber: _Fiber, *values: int | IntArray) -> bool:
        """Split by what the first active thread of each warp has; whether that was needed."""
        if all(np.size(value) == 1 for value in values):
            return False
        _, _, who = next(parties(fiber.mask, *values))
        return self._part(fiber, self._warps(who))

    def _merge(self, fiber: _Fiber) -> None:
        """Take in the fibers that wait at the same place, for the same generation."""
        place = fiber.place
        for other in list(self.fibers):
            if other is fiber or other.arrived != fiber.arrived or other.place != place:
                continue
            for mine, theirs in zip(fiber.frames, other.frames, strict=True):
                mine.mask = mine.mask | theirs.mask
            self.fibers.remove(other)

    # ------------------------------------------------------------ statements that wait

    def _wait(self, fiber: _Fiber, s: Statement) -> bool:
        match s:
            case PhaseWait():
                return self._phase_wait(fiber, s)
            case Barrier():
                key = ("barrier", fiber.block, 0)
                return self._meet(fiber, s, key, self.crew.threads, 0)
            case NamedBarrier():
                name = evaluate(s.barrier, fiber.top.scope)
                if fiber.arrived is None and self._split(fiber, name):
                    return True
                name = int(np.broadcast_to(name, fiber.mask.shape)[first_of(fiber.mask)])
                return self._meet(fiber, s, ("barrier", fiber.block, name), s.threads, name)
            case ClusterWait():
                return self._cluster_wait(fiber, s)
            case Await():
                return self._await(fiber, s)
            case SetRegisters():
                return self._whole(fiber) and self._set_registers(fiber, s)
            case _:
                if not self._whole(fiber):
                    return False
                self._matrix(fiber, s)
                fiber.top.at += 1
                return True

    def _whole(self, fiber: _Fiber) -> bool:
        """Whether the fiber has whole warpgroups, after others at the same place have joined."""
        if not self._torn(fiber.mask):
            return True
        self._merge(fiber)
        torn = self._torn(fiber.mask)
        if torn:
            fiber.waits = f"waits for the other threads of warpgroup {torn[0]}"
        return not torn

    def _torn(self, mask: BoolArray) -> list[int]:
        """The warpgroups of which only a part is there."""
        size = warpgroup.WARPS * self.crew.warp_size
        parts = (mask[first : first + size] for first in range(0, self.crew.threads, size))
        return [
            number
            for number, part in enumerate(parts)
            if (part.any(axis=0) & (part.sum(axis=0) < size)).any()
        ]

    def _matrix(self, fiber: _Fiber, s: Statement) -> None:
        machine, mask = self.machine, fiber.mask
        match s:
            case WarpgroupMma():
                warpgroup.start(machine, s, fiber.top.scope, mask)
            case WarpgroupFence():
                warpgroup.fence(machine, mask)
            case WarpgroupCommit():
                warpgroup.commit(machine, mask)
            case WarpgroupWait(pending):
                warpgroup.wait(machine, pending, mask)
            case _:
                perform(machine, s, fiber.top.scope, mask)

    def _phase_wait(self, fiber: _Fiber, s: PhaseWait) -> bool:
        scope, asynchrony = fiber.top.scope, self.machine.asynchrony
        index, parity = evaluate(s.phase.index, scope), evaluate(s.parity, scope) % 2
        if self._split(fiber, index, parity):
            return True
        site = Site.of(s, self.crew, scope, fiber.mask)
        for block, (i, p), who in parties(fiber.mask, index, parity):
            barrier = asynchrony.meetings.barrier(s.phase.name, i, block, site, first_of(who))
            if not barrier.passes(p):
                who_waits = f"{self._who(fiber)}, at {_title(s)}"
                barrier.waiting[id(fiber)] = Waiter(barrier.phase, who_waits, s.span)
                fiber.waits = f"waits for {barrier.state()}"
                return False
            barrier.waiting.pop(id(fiber), None)
            asynchrony.clocks.acquire(self._units(who), barrier.over)
        fiber.top.at += 1
        return True

    def _meet(
        self, fiber: _Fiber, s: Statement, key: tuple[str, int, int], threads: int, name: int
    ) -> bool:
        asynchrony = self.machine.asynchrony
        units = self._units(fiber.mask)
        if fiber.arrived is None:
            title = "a Barrier" if name == 0 else f"named barrier {name}"
            meeting = asynchrony.meetings.meeting(key, title, threads)
            site = Site.of(s, self.crew, fiber.top.scope, fiber.mask)
            fiber.arrived = (meeting, meeting.generation)
            meet_alone(site, meeting, fiber.mask, threads, asynchrony.clocks.release(units))
            if name == 0 and meeting.generation > fiber.arrived[1]:
                self.machine.tally.barriers += 1
        meeting, generation = fiber.arrived
        if meeting.generation == generation:
            missing = meeting.threads - meeting.arrived
            fiber.waits = f"{missing} of {meeting.threads} threads are missing at {meeting.name}"
            return False
        self._merge(fiber)
        asynchrony.clocks.acquire(self._units(fiber.mask), meeting.over[generation])
        fiber.arrived = None
        fiber.top.at += 1
        return True

    def _cluster_wait(self, fiber: _Fiber, s: ClusterWait) -> bool:
        meetings, clocks = self.machine.asynchrony.meetings, self.machine.asynchrony.clocks
        total = self.crew.threads * self.crew.blocks
        meeting = meetings.meeting("cluster", "the cluster's barrier", total)
        units = self._units(fiber.mask)
        for unit in units:
            if unit not in meetings.cluster_arrivals:
                raise Site.of(s, self.crew, fiber.top.scope, fiber.mask).fault(
                    BarrierError,
                    "a wait at the cluster's barrier by a thread that has not arrived there",
                    first_of(fiber.mask),
                    expected="a ClusterArrive before each ClusterWait",
                )
            if meetings.cluster_arrivals[unit] >= meeting.generation:
                missing = meeting.threads - meeting.arrived
                fiber.waits = f"{missing} of {total} threads are missing at {meeting.name}"
                return False
        for unit in units:
            clocks.acquire((unit,), meeting.over[meetings.cluster_arrivals.pop(unit)])
        fiber.top.at += 1
        return True

    def _await(self, fiber: _Fiber, s: Await) -> bool:
        scope = fiber.top.scope
        found = posts.ready(self.machine, s, scope, fiber.mask)
        if isinstance(found, str):
            fiber.waits = found
            return False
        self._part(fiber, self._warps(found))
        posts.take(self.machine, s, scope, fiber.mask)
        fiber.top.at += 1
        return True

    def _set_registers(self, fiber: _Fiber, s: SetRegisters) -> bool:
        pool = self.machine.asynchrony.meetings.pools[fiber.block]
        size = warpgroup.WARPS * self.crew.warp_size
        groups = [g for _, g, _ in warpgroup.warpgroups(self.machine, fiber.mask)]
        more = {g: s.count - pool.of_group(g) for g in groups}
        # How many it has at the launch is up to the compiler, within the share of the file.
        wrong = [g for g in groups if more[g] and (more[g] < 0) == s.grow and g in pool.counts]
        wrong += [g for g in groups if more[g] > 0 and not s.grow and g not in wrong]
        if wrong or s.count % REGISTER_STEP:
            raise Site.of(s, self.crew, fiber.top.scope, fiber.mask).fault(
                BarrierError,
                f"warpgroup {(wrong or groups)[0]} has {pool.of_group((wrong or groups)[0])} "
                f"registers a thread and {'grows' if s.grow else 'shrinks'} to {s.count}",
                first_of(fiber.mask),
                expected=f"{'no fewer' if s.grow else 'no more'} than it has, a multiple of "
                f"{REGISTER_STEP}",
            )
        needed = sum(more.values()) * size
        if needed > pool.free:
            fiber.waits = f"waits for {needed} registers, {pool.free} are free"
            return False
        pool.free -= needed
        pool.counts.update(dict.fromkeys(groups, s.count))
        fiber.top.at += 1
        return True


def _subtrees(body: Body) -> list[Statement]:
    """The statements that wait, or in whose bodies one does."""
    found: list[Statement] = []
    for s in body:
        inner = _subtrees(s.body) if isinstance(s, Loop | If | When) else []
        if inner or blocks(s):
            found += [s, *inner]
    return found


def _title(s: Statement) -> str:
    note = getattr(s, "note", "")
    return type(s).__name__ + (f" ({note})" if note else "")


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as `0-3, 8`."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)
