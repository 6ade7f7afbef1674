"""Asynchronous statements that never wait, the end of a crew, and which statements do wait."""

from __future__ import annotations

import numpy as np

from tilewright.base.diagnostics import BarrierError, LegalityError, RaceError
from tilewright.codegen.sim import bulk, posts, remote
from tilewright.codegen.sim.agents import LOAD, MATRIX, REMOTE, Agents, Operation
from tilewright.codegen.sim.clocks import ClockLog, Clocks, Knowledge
from tilewright.codegen.sim.index import Scope, evaluate
from tilewright.codegen.sim.machine import Asynchrony, Machine, Post
from tilewright.codegen.sim.meeting import Meeting, Meetings, first_of, parties
from tilewright.codegen.sim.memory import SharedBuffer
from tilewright.codegen.sim.numeric import BoolArray
from tilewright.codegen.sim.site import Crew, Site
from tilewright.kernel.async_ops import (
    Announce,
    Arrive,
    ArriveExpect,
    AsyncStatement,
    Await,
    BulkCommit,
    BulkLoad,
    BulkStore,
    BulkWait,
    ClusterArrive,
    ClusterWait,
    Collect,
    Deposit,
    InitPhases,
    NamedBarrier,
    PhaseWait,
    ProxyFence,
    RemoteStore,
    SetRegisters,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.ops import Barrier, Kernel, RegRef, Statement, walk
from tilewright.target.model import Target


def is_asynchronous(kernel: Kernel) -> bool:
    """Whether any statement needs cooperative execution."""
    return any(isinstance(s, AsyncStatement) for s in walk(kernel.body))


def blocks(s: Statement) -> bool:
    """Whether warps may have to wait at the statement, or have to meet there."""
    match s:
        case NamedBarrier(arrive=arrive):
            return not arrive
        case (
            PhaseWait() | Barrier() | ClusterWait() | SetRegisters() | Await()
            | WarpgroupMma() | WarpgroupFence() | WarpgroupCommit() | WarpgroupWait()
        ):  # fmt: skip
            return True
        case _:
            return False


def prepare(
    kernel: Kernel, target: Target, crew: Crew, shared: dict[str, SharedBuffer]
) -> Asynchrony:
    """The state of a crew that begins. Shared memory gets logs that follow the clocks."""
    clocks = Clocks(crew)
    for arena in {id(b.arena): b.arena for b in shared.values()}.values():
        arena.log = ClockLog(arena.written.size, clocks)
        arena.spread()
    names: set[str] = set()
    for s in walk(kernel.body):
        if isinstance(s, WarpgroupMma):
            names |= {s.d.name, *([s.a.name] if isinstance(s.a, RegRef) else [])}
    rows = {name: int(np.prod(kernel.fragment(name).shape)) for name in names}
    agents = Agents(crew, clocks, rows)
    meetings = Meetings(kernel, clocks, target.registers_per_thread)
    return Asynchrony(
        clocks, agents, meetings, {e.name: Post.of(e, crew) for e in kernel.exchanges}
    )


def perform(machine: Machine, s: Statement, scope: Scope, mask: BoolArray | None) -> None:
    """Execute an asynchronous statement that does not wait."""
    crew = machine.crew
    full = np.broadcast_to(True if mask is None else mask, (crew.threads, crew.blocks))
    match s:
        case InitPhases():
            for block in np.flatnonzero(full.any(axis=0)):
                for name in s.phases:
                    site = Site.of(s, crew, scope, mask)
                    machine.asynchrony.meetings.begin(name, int(block), site)
        case Arrive() | ArriveExpect():
            _arrive(machine, s, scope, full)
        case BulkLoad():
            bulk.load(machine, s, scope, full)
        case BulkStore():
            bulk.store(machine, s, scope, full)
        case RemoteStore():
            remote.store(machine, s, scope, mask)
        case Deposit():
            posts.deposit(machine, s, scope, mask)
        case Announce():
            posts.announce(machine, s, scope, mask)
        case Collect():
            posts.collect(machine, s, scope, mask)
        case BulkCommit():
            bulk.commit(machine, full)
        case BulkWait(pending, read):
            bulk.wait(machine, pending, read, full)
        case ProxyFence():
            machine.asynchrony.clocks.fences += full
        case NamedBarrier():
            _named_arrive(machine, s, scope, full)
        case ClusterArrive():
            _cluster_arrive(machine, s, scope, full)
        case _:
            raise LegalityError(
                f"{type(s).__name__} cannot stand here", span=getattr(s, "span", None)
            )


def _arrive(machine: Machine, s: Arrive | ArriveExpect, scope: Scope, mask: BoolArray) -> None:
    clocks, meetings = machine.asynchrony.clocks, machine.asynchrony.meetings
    site = Site.of(s, machine.crew, scope, mask)
    remote = s.block if isinstance(s, Arrive) else None
    rank = np.arange(machine.crew.blocks) if remote is None else evaluate(remote, scope)
    for own, (index, block), who in parties(mask, evaluate(s.phase.index, scope), rank):
        position = first_of(who)
        barrier = meetings.barrier(s.phase.name, index, block, site, position)
        units = clocks.units_of(who)
        if block != own:
            for unit in units:
                time = int(clocks.seen[unit, unit])
                meetings.visits.append((block, unit, time, site))
        if isinstance(s, ArriveExpect):
            bulk.check_single(site, who, "ArriveExpect")
            barrier.expect(s.size)
        given = clocks.release(units)
        barrier.arrive(int(np.count_nonzero(who)), given, site, position)


def meet_alone(
    site: Site, meeting: Meeting, mask: BoolArray, threads: int, given: Knowledge
) -> None:
    """Arrive at a barrier of threads, with whole warps."""
    crew = site.crew
    position = first_of(mask)
    if meeting.threads != threads and meeting.arrived:
        raise site.fault(
            BarrierError,
            f"{meeting.name} takes {threads} threads here and {meeting.threads} where "
            f"{meeting.arrived} wait already",
            position,
            expected="one number of threads from all that meet at a barrier",
        )
    meeting.threads = threads
    parts = mask.reshape(crew.warps, crew.warp_size, crew.blocks)
    torn = parts.any(axis=1, keepdims=True) & ~parts
    if torn.any():
        absent = first_of(torn.reshape(mask.shape))
        raise site.fault(
            BarrierError,
            f"thread {absent[0]} does not reach {meeting.name} that other threads of its warp "
            "reach",
            absent,
            expected="whole warps at a barrier",
            mend="move the barrier out of the condition",
        )
    meeting.arrive(int(np.count_nonzero(mask)), given, site, position)


def _named_arrive(machine: Machine, s: NamedBarrier, scope: Scope, mask: BoolArray) -> None:
    asynchrony = machine.asynchrony
    site = Site.of(s, machine.crew, scope, mask)
    for block, (name,), who in parties(mask, evaluate(s.barrier, scope)):
        key = ("barrier", block, name)
        meeting = asynchrony.meetings.meeting(key, f"named barrier {name}", s.threads)
        given = asynchrony.clocks.release(asynchrony.clocks.units_of(who))
        meet_alone(site, meeting, who, s.threads, given)


def _cluster_arrive(machine: Machine, s: ClusterArrive, scope: Scope, mask: BoolArray) -> None:
    clocks, meetings = machine.asynchrony.clocks, machine.asynchrony.meetings
    total = mask.size
    meeting = meetings.meeting("cluster", "the cluster's barrier", total)
    generation = meeting.generation
    units = clocks.units_of(mask)
    site = Site.of(s, machine.crew, scope, mask)
    meet_alone(site, meeting, mask, total, clocks.release(units))
    meetings.cluster_arrivals.update(dict.fromkeys(units, generation))


# ---------------------------------------------------------------- the end


def finish(machine: Machine) -> None:
    """All warps have ended: nothing may be under way any more."""
    asynchrony = machine.asynchrony
    if machine.checks:
        for operation in asynchrony.agents.live:
            _check_drained(machine, operation)
        for operation in (o for g in asynchrony.agents.matrix.values() for o in g.all()):
            raise _undrained(operation, "a WarpgroupWait that covers it before the end")
        _check_visits(machine)
        posts.check_taken(machine)
    for landing in asynchrony.landings:
        landing.land()
    for groups in asynchrony.agents.matrix.values():
        for operation in groups.all():
            operation.run()
    for operation in list(asynchrony.sendings):
        bulk.finish(asynchrony, operation)


def _check_drained(machine: Machine, operation: Operation) -> None:
    """A warp of every block whose memory is used must have waited for the operation."""
    crew, known = machine.crew, machine.asynchrony.clocks.known
    for region in operation.regions:
        block = int(region.entries[0]) % region.buffer.arena.apart
        own = known[block * crew.warps : (block + 1) * crew.warps]
        if not any(bits & operation.bit for bits in own):
            raise _undrained(operation, operation.kind.expected + ", before the end")


def _undrained(operation: Operation, expected: str) -> RaceError:
    doing = {LOAD: "writes to", REMOTE: "writes to", MATRIX: "uses"}.get(operation.kind, "reads")
    names = sorted({region.buffer.name for region in operation.regions})
    return RaceError(
        f"a block ends while a {operation.kind.name} still {doing} its shared memory "
        f"({', '.join(f'`{n}`' for n in names)})",
        span=operation.span,
        expected=expected,
        notes=(operation.note,),
    )


def _check_visits(machine: Machine) -> None:
    """A block must stay until the arrivals of others at its barriers are done."""
    crew, clocks = machine.crew, machine.asynchrony.clocks
    for block, unit, time, site in machine.asynchrony.meetings.visits:
        own = clocks.seen[block * crew.warps : (block + 1) * crew.warps, unit]
        if not (own > time).any():
            thread, home = unit % crew.warps * crew.warp_size, unit // crew.warps
            raise site.fault(
                RaceError,
                f"block {crew.first_block + block} may have ended when another block arrives at "
                "its barrier",
                (thread, home),
                expected="a ClusterArrive and ClusterWait of all blocks before the end",
            )
