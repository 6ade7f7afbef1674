"""How long a matrix product takes under a plan, predicted from the target's figures.

The time is that of the slowest resource, plus a part of the others: the multiprocessors, which
work through tiles in turns, and device memory, whose traffic depends on the order of the tiles.
Within a tile the slowest of the tensor cores, shared memory, the L2 cache and the latency of
copies sets the pace of the main loop. It is meant to rank plans, and to say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, prod

from tilewright.base.diagnostics import UnsupportedError
from tilewright.base.rounding import round_up
from tilewright.schedule.boxes import ROW_BYTES
from tilewright.schedule.owners import owners_of
from tilewright.target.model import Machine, MatrixRate, Scope, Target

BARRIER_BYTES = 1024  # of shared memory, kept for barriers and alignment
PANEL = 64  # columns of the result that go out together
PANEL_BYTES = 2 * ROW_BYTES  # of each row of the result on its way out: two panels
SUM_BYTES = 4  # of an element of a partial sum
LEAST_STAGES = 2
MOST_STAGES = 8
PRODUCER_REGISTERS = 40  # of each thread of the producing warpgroup
WORKING_REGISTERS = 32  # of a consumer's thread, beside accumulators: addresses and scratch
MOST_ACCUMULATORS = 200  # registers of a thread
WARPGROUP = 128  # threads
ATOM_ROWS = 64  # of a warpgroup's instruction
ATOM_COLUMNS = 8  # its columns are a multiple of them,
WIDEST = 256  # up to so many
MOST_SWAPPED = 64  # rows of a problem whose roles may be swapped
ROWS = ((128, 2), (256, 2), (64, 1), (128, 1), (192, 3), (256, 4))  # of a tile, with consumers
SPLITS = (1, 2, 3, 4, 6, 8, 16)
GROUPS = (1, 2, 4, 8, 12, 16)  # rows of tiles that are visited together
L2_SHARE = 0.6  # of the L2 cache that operands keep for themselves
MOST_SHARERS = 16  # blocks that share tiles' steps: each is proved by itself
MOST_TURNS = 4  # of blocks through whole tiles, for sharing steps to matter
SHARED_STEPS = 0.95  # of the steps that blocks with whole tiles have, at the most
OVERLAP_LOSS = 0.1  # of the time of what is not the slowest
NARROW_LOSS = 1.5  # of copies of rows that are shorter than the swizzle's
SCATTERED_LOSS = 1.5  # of copies where no two blocks have the same terms at the same time
CLUSTER_LOSS = 1.01  # blocks of a cluster wait for each other


@dataclass(frozen=True, slots=True)
class Problem:
    """``c[m, n] = sum over k of a[m, k] * b[n, k]``, `batch` times. Bytes are of one element."""

    m: int
    n: int
    k: int
    batch: int = 1
    operand_bytes: int = 2
    result_bytes: int = 2

    @property
    def operations(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan of a product, in numbers.

    Tiles count elements: `tile_m` rows and `tile_n` columns of the instruction, `tile_k` terms of
    a step. Rows are the problem's m, or where `swapped` its n. `consumers` are the warpgroups that
    multiply, `cluster` blocks share the larger operand's tile, and `group` rows of tiles are
    visited together. `split_k` blocks of a cluster share the terms of a tile: each that owns a
    part of the columns gets the others' sums of it. With ``stream = (tiles, blocks)`` each so many
    blocks share the steps of so many tiles, through global memory. In `pingpong` each consumer has
    tiles of its own, and its epilogue runs while the other one multiplies.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    consumers: int
    cluster: int = 1
    persistent: bool = False
    group: int = 8
    split_k: int = 1
    swapped: bool = False
    scope: Scope = Scope.WARPGROUP
    pingpong: bool = False
    stream: tuple[int, int] | None = None

    @property
    def threads(self) -> int:
        """Threads of a block: warpgroup instructions come with a warpgroup that only copies."""
        return WARPGROUP * (self.consumers + (self.scope is Scope.WARPGROUP))

    def shared_bytes(self, problem: Problem) -> int:
        """The stages' slots, the result on its way out, others' sums, and the barriers."""
        whole = self.tile_m * self.tile_n * problem.result_bytes
        out = min(whole, self.tile_m * PANEL_BYTES) * (self.consumers if self.pingpong else 1)
        return self.stages * self.stage_bytes(problem) + out + self.exchanged + BARRIER_BYTES

    @property
    def accumulators(self) -> int:
        """Registers of a consumer's thread for its part of the tile."""
        sharing = 1 if self.pingpong else self.consumers
        return self.tile_m * self.tile_n // (WARPGROUP * sharing)

    @property
    def exchanged(self) -> int:
        """Bytes of sums that a block gets from those that share its tile."""
        return self.tile_m * self.tile_n // self.owners * SUM_BYTES * (self.split_k - 1)

    @property
    def owners(self) -> int:
        """Of the blocks that share a tile's terms, those that get a part of its columns."""
        return owners_of(self.tile_n, self.split_k)

    def stage_bytes(self, problem: Problem) -> int:
        """Of both operands' tiles."""
        return (self.tile_m + self.tile_n) * self.tile_k * problem.operand_bytes

    def __str__(self) -> str:
        parts = [f"{self.tile_m}x{self.tile_n}x{self.tile_k}", f"{self.stages} stages"]
        parts.append(f"{self.consumers} consumer{'s' * (self.consumers > 1)}")
        parts += [f"clusters of {self.cluster}"] * (self.cluster > 1)
        parts += ["persistent"] * self.persistent
        parts.append(f"groups of {self.group}")
        parts += [f"split {self.split_k}"] * (self.split_k > 1)
        parts += [f"{self.stream[0]} tiles by {self.stream[1]} blocks"] if self.stream else []
        parts += ["swapped"] * self.swapped
        parts += ["ping-pong"] * self.pingpong
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its predicted time in seconds, and in words what bounds it."""

    candidate: Candidate
    seconds: float
    bound: str
    reason: str


def rank(
    problem: Problem, candidates: Iterable[Candidate], target: Target
) -> tuple[Ranked, ...]:  # fmt: skip
    """The candidates, the fastest first. UnsupportedError where the target has no figures."""
    ranked = (predict(problem, candidate, target) for candidate in candidates)
    return tuple(sorted(ranked, key=lambda r: r.seconds))


def predict(problem: Problem, candidate: Candidate, target: Target) -> Ranked:
    """One candidate's time. UnsupportedError where the target has no figures for the product."""
    machine, rate = _figures(problem, target)
    case = _Case(problem, candidate, machine, rate, target.multiprocessors)
    limit, busy = case.busy()
    moved = case.moved()
    memory = machine.memory_latency + moved / machine.memory_bandwidth
    bound = limit if busy >= memory else "memory"
    slow, fast = max(busy, memory), min(busy, memory)
    seconds = machine.launch_latency + slow + OVERLAP_LOSS * fast
    filled = case.tiles / (case.turns * case.multiprocessors)
    reason = (
        f"{candidate}: {seconds * 1e6:.1f} µs, bound by {bound}; {case.tiles} tiles in "
        f"{case.turns} turn{'s' * (case.turns > 1)}, {filled:.0%} filled, {busy * 1e6:.1f} µs; "
        f"{moved / 1e6:.1f} MB of memory in {memory * 1e6:.1f} µs"
    )
    return Ranked(candidate, seconds, bound, reason)


def _figures(problem: Problem, target: Target) -> tuple[Machine, MatrixRate]:
    machine = target.machine
    rate = machine.rate(8 * problem.operand_bytes) if machine else None
    if machine is None or rate is None:
        raise UnsupportedError(
            f"nothing is known of how fast {target.name} multiplies elements of "
            f"{problem.operand_bytes} bytes",
            expected="a target with figures for the operands' type",
            mend="give the tiles by hand, or measure them",
        )
    return machine, rate


@dataclass(frozen=True)
class _Case:
    """One candidate on one machine. Times are seconds."""

    problem: Problem
    candidate: Candidate
    machine: Machine
    rate: MatrixRate
    multiprocessors: int

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Tiles along the instruction's rows and columns, of one batch."""
        problem, candidate = self.problem, self.candidate
        down, across = (problem.n, problem.m) if candidate.swapped else (problem.m, problem.n)
        return ceil(down / candidate.tile_m), ceil(across / candidate.tile_n)

    @cached_property
    def tiles(self) -> int:
        """What blocks do, one after the other: batches and splits included."""
        return prod(self.grid) * self.problem.batch * self.candidate.split_k

    @cached_property
    def turns(self) -> int:
        """Tiles of the busiest multiprocessor."""
        if self.candidate.stream is not None:
            return ceil(self.steps / self.whole)
        together = self.candidate.cluster * self.candidate.split_k
        return ceil(self.tiles / self.machine.seats(together, self.multiprocessors))

    @cached_property
    def resident(self) -> int:
        """Blocks that one multiprocessor runs side by side."""
        candidate, machine = self.candidate, self.machine
        if candidate.persistent:
            return 1
        each = candidate.accumulators + WORKING_REGISTERS
        words = candidate.consumers * WARPGROUP * each
        words += (candidate.threads - candidate.consumers * WARPGROUP) * PRODUCER_REGISTERS
        most = min(
            machine.shared_bytes // candidate.shared_bytes(self.problem),
            machine.registers // words,
            machine.threads // candidate.threads,
            self.turns,
        )
        return max(1, most)

    @cached_property
    def steps(self) -> int:
        """Steps of a tile's main loop, or of a block's share of several tiles."""
        if self.candidate.stream is not None:
            return steps_each(self.candidate.stream, self.whole)
        return ceil(ceil(self.problem.k / self.candidate.tile_k) / self.candidate.split_k)

    @property
    def whole(self) -> int:
        """Steps of a tile."""
        return ceil(self.problem.k / self.candidate.tile_k)

    def busy(self) -> tuple[str, float]:
        """What sets the pace of the main loop, and the time of the busiest multiprocessor."""
        candidate, machine = self.candidate, self.machine
        pace = self._pace()
        limit = max(pace, key=lambda name: pace[name])
        main, start = self.steps * pace[limit], machine.memory_latency
        end = self._end()
        if candidate.pingpong:  # a consumer is back after its own end and the other's main loop
            each = max(main, (main + end) / candidate.consumers)
            return limit, start + self.turns * each + end
        if candidate.stream is not None:
            return limit, start + main + self._ends(end)
        if candidate.persistent:  # the next tile's copies run during this one's end
            return limit, start + self.turns * (main + end)
        return limit, self.turns * (main + (start + end) / self.resident)

    def _end(self) -> float:
        """From a tile's last product until its result is on its way."""
        candidate, machine = self.candidate, self.machine
        columns = round_up(candidate.tile_n // candidate.owners, PANEL)  # whole panels are stored
        stored = candidate.tile_m * columns * self.problem.result_bytes
        seconds = machine.tile_latency + stored / self._fetching
        if candidate.split_k > 1:  # all wait for all, twice: the sums are there, and are read
            seconds += 2 * machine.tile_latency + candidate.exchanged / self._fetching
        return seconds

    def _ends(self, end: float) -> float:
        """Of the tiles that a block owns, and of the sums that it leaves and takes."""
        candidate, tile = self.candidate, self.candidate.tile_m * self.candidate.tile_n
        moved = self.machine.tile_latency + tile * SUM_BYTES / self._fetching
        owned, sharers = ceil(self.steps / self.whole), ceil(self.whole / self.steps)
        alone = candidate.stream is not None and candidate.stream[1] == 1
        return owned * end + (0 if alone else (1 + sharers) * moved)

    def _pace(self) -> dict[str, float]:
        """What each part of a multiprocessor needs for one step of a tile."""
        candidate, machine = self.candidate, self.machine
        tile_m, tile_n = candidate.tile_m, candidate.tile_n
        width = candidate.tile_k * self.problem.operand_bytes
        # Where few multiprocessors work, the card stays below its power limit.
        active = min(self.tiles, self.multiprocessors)
        speed = min(self.rate.peak / self.multiprocessors, self.rate.held / active)
        if candidate.scope is Scope.WARP:
            speed *= machine.warp_share
        side_by_side = min(2, candidate.consumers) * self.resident
        waiting = machine.step_latency / side_by_side
        product = 2.0 * tile_m * tile_n * candidate.tile_k / speed
        # Every instruction reads its rows of one operand, and all of the other one's tile.
        reads = ceil(tile_m / ATOM_ROWS) * (ATOM_ROWS + tile_n) * width
        writes = (tile_m + tile_n) * width
        fetched = (min(tile_m, tile_n) + max(tile_m, tile_n) / candidate.cluster) * width
        fetched *= NARROW_LOSS if width < ROW_BYTES else 1
        if candidate.stream is not None and candidate.stream[0] > 1:
            fetched *= SCATTERED_LOSS
        # Warpgroups give a step back when the next one's products have started: half a step late.
        late = 0.5 if candidate.scope is Scope.WARPGROUP else 0.0
        ahead = max(0.5, candidate.stages - 1 - late) * self.resident
        return {
            "tensor cores": (product + waiting) * (CLUSTER_LOSS if candidate.cluster > 1 else 1),
            "shared memory": (reads + writes) / machine.shared_bandwidth,
            "the L2 cache": fetched / self._fetching,
            # Where all of a tile's steps have slots, nothing waits for one.
            "latency": machine.memory_latency / ahead if self.steps > candidate.stages else 0.0,
        }

    @property
    def _fetching(self) -> float:
        """A multiprocessor's share of the L2 cache's bandwidth."""
        return self.machine.l2_bandwidth / self.multiprocessors

    def moved(self) -> float:
        """Bytes between device memory and the L2 cache.

        Tiles that run side by side form a rectangle, whose operands are read once. What the
        cache holds of them is not read again.
        """
        problem, candidate = self.problem, self.candidate
        rows, columns = self.grid
        size = problem.k * problem.operand_bytes
        once = (problem.m + problem.n) * size
        written = problem.m * problem.n * problem.result_bytes
        read = float(once)
        if once > L2_SHARE * self.machine.l2_bytes:
            together = max(1, self.multiprocessors * self.resident // candidate.split_k)
            group = min(candidate.group, rows)
            across = min(columns, ceil(together / group))
            down = min(rows, group * max(1, together // (group * across)))
            rectangle = down * candidate.tile_m + across * candidate.tile_n
            waves = max(1.0, rows * columns / (down * across))
            every = rows * columns * (candidate.tile_m + candidate.tile_n) * size
            read = min(max(once, waves * rectangle * size), every)
        return problem.batch * (read + written)


# ---------------------------------------------------------------- candidates


def candidates(
    problem: Problem, target: Target, *, pingpong: bool = False
) -> tuple[Candidate, ...]:  # fmt: skip
    """Every sensible plan of a product by warpgroup instructions; on request in `pingpong` too.

    UnsupportedError where the target has no such instruction, or no figures for the product.
    """
    machine, _ = _figures(problem, target)
    bits = 8 * problem.operand_bytes
    atoms = (a for a in target.mma_atoms if a.scope is Scope.WARPGROUP and a.a_dtype.bits == bits)
    if next(atoms, None) is None:
        raise UnsupportedError(
            f"{target.name} has no warpgroup instruction for operands of "
            f"{problem.operand_bytes} bytes",
            expected="operands that such an instruction takes",
            mend="give the tiles by hand",
        )
    found: list[Candidate] = []
    for shape in _shapes(problem, machine, pingpong):
        found += _arranged(problem, shape, target, machine)
    return tuple(found)


def _shapes(problem: Problem, machine: Machine, pingpong: bool) -> Iterator[Candidate]:
    """Tiles whose accumulators fit a block, without stages."""
    for swapped in (False, True) if problem.m <= MOST_SWAPPED else (False,):
        down, across = (problem.n, problem.m) if swapped else (problem.m, problem.n)
        most = min(MOST_SWAPPED if swapped else WIDEST, round_up(across, ATOM_COLUMNS))
        for (tile_m, consumers), tile_n in product(ROWS, range(most, 0, -ATOM_COLUMNS)):
            if tile_m > round_up(down, ATOM_ROWS):
                continue
            terms = ROW_BYTES // problem.operand_bytes
            shape = Candidate(tile_m, tile_n, terms, 0, consumers, swapped=swapped)
            if shape.accumulators <= accumulators(consumers, machine):
                yield shape
            alone = replace(shape, consumers=2, pingpong=True)
            if pingpong and consumers == 1 and alone.accumulators <= accumulators(2, machine):
                yield alone


def accumulators(consumers: int, machine: Machine) -> int:
    """Registers of each consumer's thread that are free for accumulators.

    The assembler gives no thread more than its share of the block's, though a consumer may take
    more from the warpgroup that copies: wider tiles spill, or are refused.
    """
    threads = WARPGROUP * (consumers + 1)
    each = machine.registers // threads // 8 * 8  # registers are dealt out by eights
    return min(MOST_ACCUMULATORS, each - WORKING_REGISTERS)


def _arranged(
    problem: Problem, shape: Candidate, target: Target, machine: Machine
) -> Iterator[Candidate]:
    """A tile with the orders, clusters and splits that make sense for how many tiles there are."""
    down, across = (problem.n, problem.m) if shape.swapped else (problem.m, problem.n)
    rows, columns = ceil(down / shape.tile_m), ceil(across / shape.tile_n)
    tiles = rows * columns * problem.batch
    steps = ceil(problem.k / shape.tile_k)
    group = raster_group(shape.tile_m, shape.tile_n, rows, target.multiprocessors)
    # The operand with the larger tile is the one that neighbours share.
    neighbours = rows if shape.tile_n >= shape.tile_m else columns
    for split in SPLITS:
        room = machine.seats(split, target.multiprocessors)
        if split > 1 and (tiles * split > room or steps < 2 * split):
            continue
        made = _staged(problem, replace(shape, group=group, split_k=split), target)
        if made is None or split > target.max_cluster:
            continue
        if made.pingpong and (split > 1 or tiles <= target.multiprocessors):
            continue
        turns = (False, True) if tiles > target.multiprocessors else (False,)
        for persistent in (True,) if made.pingpong else turns:
            shared = split == 1 and neighbours > 1 and target.max_cluster > 1
            for cluster in (1, 2) if shared else (1,):
                yield replace(made, cluster=cluster, persistent=persistent)
    yield from _streamed(problem, replace(shape, group=group), tiles, steps, target)


def _streamed(
    problem: Problem, shape: Candidate, tiles: int, steps: int, target: Target
) -> Iterator[Candidate]:
    """The tile with its steps shared out, where that leaves a block clearly fewer of them."""
    made = None if shape.pingpong else _staged(problem, shape, target)
    whole = ceil(tiles / target.multiprocessors) * steps
    best = shares(tiles, steps, target.multiprocessors)
    if made is not None and best is not None and steps_each(best, steps) < SHARED_STEPS * whole:
        yield replace(made, stream=best)


def shares(tiles: int, steps: int, blocks: int) -> tuple[int, int] | None:
    """How many tiles which number of blocks shares, so that each of `blocks` has the fewest steps.

    None where there are so many tiles that sharing cannot matter.
    """
    if tiles > MOST_TURNS * blocks:
        return None
    found = (
        (count, sharers)
        for sharers in range(1, MOST_SHARERS + 1)
        if (groups := blocks // sharers)
        for count in (ceil(tiles / groups),)
    )
    return min(found, key=lambda s: (steps_each(s, steps), s[1]))


def steps_each(shared: tuple[int, int], steps: int) -> int:
    """Steps of each block of a group; a tile has `steps`."""
    tiles, blocks = shared
    return ceil(tiles * steps / blocks)


def _staged(problem: Problem, shape: Candidate, target: Target) -> Candidate | None:
    """With as many stages as there is room for; None where there is too little."""
    room = target.shared_bytes - replace(shape, stages=0).shared_bytes(problem)
    stages = min(MOST_STAGES, room // shape.stage_bytes(problem))
    return replace(shape, stages=stages) if stages >= LEAST_STAGES else None


def raster_group(tile_m: int, tile_n: int, rows: int, blocks: int) -> int:
    """How many rows of tiles to visit together, so that `blocks` tiles read the least."""
    sensible = [g for g in GROUPS if g <= rows]
    return min(sensible, key=lambda g: read_together(g, tile_m, tile_n, blocks))


def read_together(group: int, along: int, across: int, blocks: int) -> int:
    """Rows and columns that `blocks` tiles read, `group` of them side by side at a time.

    `along` and `across` are a tile's elements on the side where they neighbour and on the other.
    """
    return group * along + ceil(blocks / group) * across
