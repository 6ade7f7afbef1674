"""One execution of a kernel's synchronisation by one cluster of blocks.

Each warp runs until it has to wait; a bulk load lands when its phase needs nothing else. The
order that the execution finds is that of every execution, because each step at which another
schedule could do otherwise is a fault:

- an arrival (or the start of a load) at a transaction barrier whose thread does not know that
  the phase before has ended might count for that phase;
- a wait is for the phase that ends next, or passes at once on one that its thread knows has
  ended, and the phase after that ends only after the wait has passed; otherwise the wait may see
  another phase of its parity;
- two arrivals are an exception: one that may count for the phase before hands on all that each
  arrival of that phase did of which it does not know, so that it may stand for any of them;
- an arrival at a barrier of threads by a thread that does not know that the round before is
  complete might count for that round.

Suppose that another execution first differs at some wait or arrival. All before is alike, so the
knowledge there is; by the above it counts for, or passes on, the same phase. So the executions
have the same events and the same order between them: a race, a deadlock, or neither in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.kernel.async_ops import (
    Arrive,
    ArriveExpect,
    BulkCommit,
    BulkLoad,
    BulkStore,
    BulkWait,
    ClusterArrive,
    ClusterWait,
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
from tilewright.kernel.ops import AsyncCommit, AsyncCopy, AsyncWait, Barrier, Loop, When
from tilewright.kernel.scopes import WARPGROUP_WARPS
from tilewright.lower.obligations.async_accesses import Accesses
from tilewright.lower.obligations.async_barriers import Barriers
from tilewright.lower.obligations.async_skeleton import Skeleton
from tilewright.lower.obligations.async_state import (
    Does,
    Event,
    FaultError,
    Frame,
    Pool,
    State,
    Unit,
    Warpgroup,
)
from tilewright.lower.obligations.async_steps import (
    BoxStep,
    DecodeStep,
    IfStep,
    LoopStep,
    MatrixStep,
    PlainStep,
    RemoteStep,
    Step,
)
from tilewright.lower.obligations.async_values import (
    Cell,
    Env,
    OpenError,
    Value,
    collapsed,
)
from tilewright.lower.obligations.async_words import Words
from tilewright.poly.results import Kind

_REGISTER_FILE = 1 << 16  # registers of a multiprocessor
_REGISTER_STEP = 8
_MOST_WORK = 800_000  # steps of one execution
_LOOKS = 8  # at accesses, which take as long as a step

_LANDING = (Does.LOAD, Does.REMOTE)  # what another agent writes to a block's memory
_WIDE = WarpgroupMma | WarpgroupFence | WarpgroupCommit | WarpgroupWait | SetRegisters


class Run:
    """One execution. `first` is the number of the cluster's first block."""

    def __init__(self, skeleton: Skeleton, first: int, known: Mapping[str, int]) -> None:
        self.skeleton = skeleton
        kernel = skeleton.kernel
        self.size = kernel.warp_size
        self.words = Words(kernel, first)
        self.full = (1 << self.size) - 1
        self.state = self._start(first, known)
        self.accesses = Accesses(self.state, skeleton.memory, self.words, skeleton.taken)
        self.barriers = Barriers(self.state, kernel, self.words)
        self.steps = 0
        self.whole: set[str] = set()  # counters of loops of which every turn was executed

    @property
    def work(self) -> int:
        """How much was done, in steps."""
        return self.steps + self.accesses.looks // _LOOKS

    def _start(self, first: int, known: Mapping[str, int]) -> State:
        skeleton = self.skeleton
        kernel = skeleton.kernel
        units: list[Unit] = []
        for block in range(kernel.cluster):
            for warp in range(kernel.warps):
                env = skeleton.env(first + block, warp)
                env.update(known)
                frame = Frame(skeleton.body, env, self.full)
                touched = {r.name: -1 for r in kernel.registers}
                made = Unit(len(units), block, warp, [frame], self.full, touched=touched)
                units.append(made)
        groups = [
            Warpgroup(number, block, tuple(units[block * kernel.warps + w] for w in warps))
            for block in range(kernel.cluster)
            for number, warps in enumerate(
                range(at, min(at + WARPGROUP_WARPS, kernel.warps))
                for at in range(0, kernel.warps, WARPGROUP_WARPS)
            )
        ]
        each = min(_REGISTER_FILE // kernel.threads, skeleton.target.registers_per_thread)
        launched = each // _REGISTER_STEP * _REGISTER_STEP
        return State(units, groups, [Pool(launched) for _ in range(kernel.cluster)])

    def run(self, after_round: Callable[[Run], None] | None = None) -> None:
        """Execute to the end. FaultError where there is a fault, OpenError where that is open.

        In a round each unit goes on until it waits, or begins a further turn of a loop;
        `after_round` is called then.
        """
        while any(unit.frames for unit in self.state.units):
            moved = False
            for unit in self.state.units:
                unit.paused = False
            for group in self.state.groups:
                while self._advance(group):
                    moved = True
            if not moved:
                raise self.barriers.deadlock()
            if after_round is not None:
                after_round(self)

    def _advance(self, group: Warpgroup) -> bool:
        """Let each warp of a group go on until it waits or pauses; whether one did."""
        moved = False
        for unit in group.units:
            unit.reading = None
            while unit.frames and not unit.paused and self._step(unit):
                moved = True
        return moved

    # ------------------------------------------------------------ control

    def _step(self, unit: Unit) -> bool:
        """Execute the unit's next step; False where it has to wait."""
        self.steps += 1
        if self.work > _MOST_WORK:
            raise OpenError("the execution takes too long to look at")
        frame = unit.frames[-1]
        if frame.at == len(frame.body):
            self._leave(unit, frame)
            return True
        step = frame.body[frame.at]
        match step:
            case PlainStep():
                self._plain(unit, step, frame)
            case IfStep():
                inner = frame.mask & step.condition(frame.env)
                frame.at += 1
                if inner:
                    unit.frames.append(Frame(step.body, Env(frame.env), inner))
                return True
            case LoopStep():
                return self._enter(unit, step, frame)
            case DecodeStep():
                decode(step, frame.env)
            case _:
                unit.reading = None
                if not self._other(unit, step, frame):
                    return False
                if isinstance(step.statement, _WIDE):
                    return True
        frame.at += 1
        return True

    def _enter(self, unit: Unit, step: LoopStep, frame: Frame) -> bool:
        extent = step.values["extent"].active(frame.env, frame.mask, "the extent of a loop")
        frame.at += 1
        if extent > 0:
            env = Env(frame.env)
            env[step.var] = 0
            s = step.statement
            unrolled = isinstance(s, Loop) and s.unroll
            unit.frames.append(
                Frame(step.body, env, frame.mask, 0, step, 0, extent, unrolled=unrolled)
            )
        else:
            self.whole.add(step.var)
        return True

    def _leave(self, unit: Unit, frame: Frame) -> None:
        if frame.loop is not None and frame.value + 1 < frame.extent:
            frame.value += 1
            frame.at = 0
            env = Env(unit.frames[-2].env)
            env[frame.loop.var] = frame.value
            frame.env = env
            unit.paused = not frame.unrolled
            return
        if frame.loop is not None and not frame.jumped:
            self.whole.add(frame.loop.var)
        unit.frames.pop()
        if not unit.frames:
            self._end(unit)

    def _plain(self, unit: Unit, step: PlainStep, frame: Frame) -> None:
        if isinstance(step.statement, AsyncCopy):
            self.accesses.copy(unit, step, frame.env, frame.mask)
        else:
            group = self._group(unit)
            self.accesses.plain(unit, step, frame.env, frame.mask, group)

    def _group(self, unit: Unit) -> Warpgroup:
        per_block = -(-self.skeleton.kernel.warps // WARPGROUP_WARPS)
        return self.state.groups[unit.block * per_block + unit.warp // WARPGROUP_WARPS]

    # ------------------------------------------------------------ other statements

    def _other(self, unit: Unit, step: Step, frame: Frame) -> bool:
        env, mask = frame.env, frame.mask
        s = step.statement
        match s:
            case PhaseWait():
                return self.barriers.wait(unit, step, env, mask)
            case Arrive() | ArriveExpect():
                self.barriers.arrive(unit, step, env, mask)
            case Barrier() | NamedBarrier():
                return self.barriers.meet(unit, step, env, mask)
            case ClusterArrive():
                self.barriers.cluster_arrive(unit, step, env, mask)
            case ClusterWait():
                return self.barriers.cluster_wait(unit, step, env, mask)
            case InitPhases(phases):
                self.barriers.begin(unit, step, phases)
            case BulkLoad() | BulkStore() if isinstance(step, BoxStep):
                self._bulk(unit, step, env, mask)
            case RemoteStore() if isinstance(step, RemoteStep):
                (phase,) = self.barriers.of_load(unit, step, env, mask)
                self.accesses.remote(unit, step, env, mask, phase)
                self.barriers.settle(phase, step)
            case When():
                raise OpenError("a condition that is data stands around asynchronous statements")
            case _ if isinstance(s, _WIDE):
                return self._wide(unit, step, frame)
            case _:
                self._grouped(unit, step, mask)
        return True

    def _grouped(self, unit: Unit, step: Step, mask: int) -> None:
        """Groups of copies, and fences."""
        match step.statement:
            case BulkCommit():
                for lane, groups in unit.stores.items():
                    if lane & mask:
                        groups.commit()
            case BulkWait(pending):
                for lane, groups in unit.stores.items():
                    if lane & mask:
                        for event in groups.covered(pending):
                            unit.learn(lane, event.bit)
            case ProxyFence():
                self._proxy_fence(unit, mask)
            case AsyncCommit():
                self._commit_copies(unit, mask)
            case AsyncWait(pending):
                self._await_copies(unit, pending, mask)
            case _:
                raise OpenError(f"{step.title} is not modelled")

    def _bulk(self, unit: Unit, step: BoxStep, env: Env, mask: int) -> None:
        if isinstance(step.statement, BulkStore):
            self.accesses.store(unit, step, env, mask)
            return
        phases = self.barriers.of_load(unit, step, env, mask)
        self.accesses.load(unit, step, env, mask, phases)
        for phase in phases:
            self.barriers.settle(phase, step)

    def _proxy_fence(self, unit: Unit, mask: int) -> None:
        covered = [e for e in unit.unfenced if not e.lanes & ~mask]
        if covered:
            fence = self.state.event(Does.MARK, unit.number)
            for event in covered:
                event.fence = fence
            unit.unfenced = [e for e in unit.unfenced if e.fence is None]
            unit.learn(mask, fence.bit)

    def _commit_copies(self, unit: Unit, mask: int) -> None:
        if any(e.lanes & ~mask for e in unit.copies.open):
            raise OpenError("lanes of a warp commit their copies apart")
        unit.copies.commit()

    def _await_copies(self, unit: Unit, pending: int, mask: int) -> None:
        for event in unit.copies.covered(pending):
            if event.lanes & ~mask:
                raise OpenError("lanes of a warp wait for their copies apart")
            # From here on it is as if its lanes had written the elements.
            event.does = Does.WRITE
            unit.dirty.append(event)
            unit.unfenced.append(event)

    # ------------------------------------------------------------ whole warpgroups

    def _wide(self, unit: Unit, step: Step, frame: Frame) -> bool:
        """A statement that the four warps of a warpgroup execute together."""
        group = self._group(unit)
        if frame.mask != self.full or len(group.units) < WARPGROUP_WARPS:
            raise FaultError(
                Kind.BARRIER, step.title,
                f"only a part of {self.words.unit(unit)} reaches {step.title}, which a whole "
                "warpgroup executes together",
                step, (self.words.where(step, frame.env),),
            )  # fmt: skip
        if unit.warp not in group.here:
            group.here[unit.warp] = (step, *[f.value for f in unit.frames])
            unit.why = f"waits for the other warps of warpgroup {group.number}"
        if len(group.here) < WARPGROUP_WARPS or len(set(group.here.values())) > 1:
            return False
        if not self._together(group, step, frame.env):
            return False
        group.here = {}
        for own in group.units:
            own.converge()
            own.frames[-1].at += 1
        return True

    def _together(self, group: Warpgroup, step: Step, env: Env) -> bool:
        match step.statement:
            case WarpgroupMma() if isinstance(step, MatrixStep):
                self.accesses.matrix(group, step, env)
            case WarpgroupFence():
                for unit in group.units:
                    unit.touched = {}
            case WarpgroupCommit():
                group.matrix.commit()
            case WarpgroupWait(pending):
                for event in group.matrix.covered(pending):
                    for unit in group.units:
                        unit.know |= event.bit | event.given
            case SetRegisters():
                return self._set_registers(group, step, step.statement)
            case _:
                raise OpenError(f"{step.title} is not modelled")
        return True

    def _set_registers(self, group: Warpgroup, step: Step, s: SetRegisters) -> bool:
        pool = self.state.pools[group.block]
        have = pool.counts.get(group.number, pool.launched)
        more = s.count - have
        # How many it has at the launch is up to the compiler, within the share of the file.
        settled = group.number in pool.counts
        if (more > 0 and not s.grow) or (more < 0 and s.grow and settled):
            raise FaultError(
                Kind.DEADLOCK, "registers",
                f"warpgroup {group.number} of {self.words.block(group.block)} has {have} registers "
                f"a thread and {'grows' if s.grow else 'shrinks'} to {s.count}",
                step,
            )  # fmt: skip
        needed = more * WARPGROUP_WARPS * self.size
        if needed > pool.free:
            for unit in group.units:
                unit.why = f"waits for {needed} registers, {pool.free} are free"
            return False
        pool.free -= needed
        pool.counts[group.number] = s.count
        return True

    # ------------------------------------------------------------ the end

    def _end(self, unit: Unit) -> None:
        """Nothing of the warp's own may be under way, nor of the block's when its last ends."""
        for groups in unit.stores.values():
            for event in groups.all():
                raise self._undrained(unit, event, "reads")
        for event in self._group(unit).matrix.all():
            raise self._undrained(unit, event, "uses")
        block = [u for u in self.state.units if u.block == unit.block]
        if not any(u.frames for u in block):
            known = 0
            for own in block:
                known |= own.releases(own.full)
            for log in (g for (b, _), g in self.state.logs.items() if b == unit.block):
                for event in log.events:
                    if event.does in _LANDING and not event.bit & known:
                        raise self._undrained(unit, event, "writes to")
            self.barriers.check_visits(unit.block, known)

    def _undrained(self, unit: Unit, event: Event, doing: str) -> FaultError:
        what = "a warpgroup" if event.does is Does.MATRIX else self.words.block(unit.block)
        buffer = event.prints[0].buffer
        return FaultError(
            Kind.DRAIN, buffer,
            f"{what} ends while a {event.does.value} still {doing} its shared memory ({buffer})",
            event.step, (self.words.note(event),),
        )  # fmt: skip


def decode(step: DecodeStep, env: Env) -> None:
    """Bind the digits that are needed and can be told."""
    try:
        source = step.values["source"](env)
    except OpenError:
        return
    for name, below, extent in step.digits:
        try:
            env[name] = _digit(source, below, extent, env, step, name)
        except OpenError:
            env.pop(name, None)


def _digit(
    source: Value, below: tuple[Cell, ...], extent: Cell | None, env: Env, step: DecodeStep,
    name: str,
) -> Value:  # fmt: skip
    steps = 1
    for cell in below:
        steps *= cell.number(env, "the extent of a digit")
    whole = None if extent is None else extent.number(env, "the extent of a digit")
    key = (name, source, steps, whole)
    found = step.kept.get(key)
    if found is None:
        if isinstance(source, int):
            found = source // steps if whole is None else source // steps % whole
        else:
            each = (v // steps for v in source.values)
            found = collapsed(v if whole is None else v % whole for v in each)
        step.kept[key] = found
    return found
