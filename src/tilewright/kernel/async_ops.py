"""Kernel IR for asynchronous machinery: transaction barriers, bulk copies, warpgroup MMA, roles.

Three agents work beside the threads of a block. The *copy engine* moves boxes of tensors
(`BulkLoad`, `BulkStore`); the *matrix unit* of a warpgroup executes `WarpgroupMma`. Both read
and write shared memory through the asynchronous proxy: what a thread wrote there by `Store` is
visible to them only after that thread's `ProxyFence` and a barrier, and what they did is visible
to a thread only after the wait that covers it. Roles are `If` statements on a decoded digit.

A *phase* of a transaction barrier ends when its pending arrivals and its pending bytes are both
zero; the barrier then begins the next phase with `arrivals` pending arrivals again. The first
phase has number 0; a phase's *parity* is its number modulo 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.spans import Span
from tilewright.kernel.declared import PHASE_BYTES as PHASE_BYTES  # noqa: PLC0414
from tilewright.kernel.declared import Phases as Phases  # noqa: PLC0414
from tilewright.kernel.declared import TensorMap as TensorMap  # noqa: PLC0414
from tilewright.kernel.refs import MemRef, Over, ReducedAxis, RegRef
from tilewright.poly.expr import Expr, Guard

# ---------------------------------------------------------------- references


@dataclass(frozen=True, slots=True)
class PhaseRef:
    """One transaction barrier of an array of phases: 0 <= index < count."""

    name: str
    index: Expr


@dataclass(frozen=True, slots=True)
class TileRef:
    """A matrix operand in shared memory. Element (r, k) is at `index` moved by r on axis `rows`
    and by k on axis `depth` of the buffer; r counts m of operand a and n of operand b.

    One of the two axes is the buffer's last (`depth`: the operand is K-major). Where a
    coordinate passes the extent of the last axis it goes on at its beginning, one further on
    axis `panel`; -1 says that none does.
    """

    name: str
    index: tuple[Expr, ...]
    rows: int
    depth: int
    panel: int = -1


# ---------------------------------------------------------------- transaction barriers


@dataclass(frozen=True, slots=True)
class InitPhases:
    """Begin phase 0 of every barrier of the arrays named. All threads of the block execute it.

    One thread does it; the others, the copy engine and the cluster's other blocks may use the
    barriers after the next `Barrier` (other blocks: after the next `ClusterWait`).
    """

    phases: tuple[str, ...]
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Arrive:
    """Each thread that executes it arrives once: one pending arrival less.

    It releases what the thread did before to who waits for the phase. With `block`, it arrives
    at the barrier of the cluster's block of that rank, and says there that matrix instructions
    and reads are done; plain writes it does not release to other blocks (a cluster barrier does).
    """

    phase: PhaseRef
    block: Expr | None = None
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ArriveExpect:
    """`size` pending bytes more in the current phase, then an arrival. One thread for each phase
    executes it."""

    phase: PhaseRef
    size: int
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PhaseWait:
    """Each thread waits until the phase of this parity is over, then sees what it covers.

    `parity` is taken modulo 2. It passes at once where the current phase has the other parity:
    on a new barrier a wait for parity 1 passes, a wait for parity 0 waits for phase 0. It
    acquires what the arriving threads released and what the copies wrote that completed on it.
    """

    phase: PhaseRef
    parity: Expr
    span: Span | None = None
    note: str = ""


# ---------------------------------------------------------------- bulk copies


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """Start the copy of the map's box at `coordinates` to shared memory from `dst` on.

    Each thread that executes it starts one copy per instance, so one elected thread does.
    Elements outside the tensor become zeros. On completion the box's whole size in bytes is
    taken off the pending bytes of `phase`, and who waits for that phase sees the elements.
    With `multicast`, a mask of ranks in the cluster: written at the same place, and signalled,
    in each of these blocks.
    """

    over: Over
    dst: MemRef
    map: str
    coordinates: tuple[Expr, ...]
    phase: PhaseRef
    multicast: Expr | None = None
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class BulkStore:
    """Start the copy of shared memory from `src` on to the map's box at `coordinates`.

    One elected thread executes it. Elements outside the tensor are dropped.
    """

    over: Over
    map: str
    coordinates: tuple[Expr, ...]
    src: MemRef
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class BulkCommit:
    """Close this thread's group of the bulk stores since its last commit."""


@dataclass(frozen=True, slots=True)
class BulkWait:
    """Wait until at most `pending` of this thread's newest groups of bulk stores are incomplete.

    With `read`, until they no longer read shared memory; their writes may still be under way.
    """

    pending: int
    read: bool = False


@dataclass(frozen=True, slots=True)
class ProxyFence:
    """This thread's accesses of shared memory before it come before those of copy engine and
    matrix unit that a later barrier orders after it."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """Start storing registers to the shared memory of the cluster's block of rank `block`.

    Per instance and thread: elements ``dst[.., j] = src[.., j]``, j < width, of 4, 8 or 16 bytes
    together. The registers are read at once. When the elements have landed, their bytes are taken
    off the pending bytes of `phase` in that block, and who waits there for that phase sees them.
    It goes through the threads' own proxy. That block must not end before they have landed.
    """

    over: Over
    dst: MemRef
    src: RegRef
    width: int
    block: Expr
    phase: PhaseRef
    span: Span | None = None
    note: str = ""


# ---------------------------------------------------------------- exchanges between blocks


@dataclass(frozen=True, slots=True)
class Deposit:
    """Leave registers in the block's part of an exchange, for the same thread of another block.

    Per instance: elements ``exchange[index + j] = src[.., j]``, j < width, 16 bytes together.
    """

    over: Over
    exchange: str
    index: Expr
    src: RegRef
    width: int
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Announce:
    """Each warp says that what it has deposited may be collected: once in a launch."""

    exchange: str
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Await:
    """Each warp waits until the same warp of the grid's block `block` has announced its deposit,
    and takes the announcement back."""

    exchange: str
    block: Expr
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Collect:
    """Take what the same thread of the grid's block `block` has deposited, after an `Await` for
    that block in the same body. The mirror of `Deposit`."""

    over: Over
    dst: RegRef
    exchange: str
    index: Expr
    block: Expr
    width: int
    span: Span | None = None
    note: str = ""


# ---------------------------------------------------------------- warpgroup matrix instructions


@dataclass(frozen=True, slots=True)
class WarpgroupMma:
    """Start ``d += a * b`` for each instance: a warpgroup atom, with a in registers or shared.

    The four warps of a warpgroup execute it together. Until a `WarpgroupWait` covers it, its
    registers of d are not to be read or written, those of a not to be written, and its shared
    memory not to be overwritten; instructions on the same d follow one another in order.
    Where `accumulate` fails, ``d = a * b``. The last axis of d and of a in registers is the
    atom's. `reduces` is as in `Mma`.
    """

    over: Over
    atom: str
    d: RegRef
    a: RegRef | TileRef
    b: TileRef
    accumulate: Guard = ()
    reduces: tuple[ReducedAxis, ...] = ()
    span: Span | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class WarpgroupFence:
    """Order the warpgroup's register accesses before the matrix instructions that follow.

    Needed before the first of them and wherever a thread has accessed their registers since.
    """


@dataclass(frozen=True, slots=True)
class WarpgroupCommit:
    """Close the warpgroup's group of matrix instructions since its last commit."""


@dataclass(frozen=True, slots=True)
class WarpgroupWait:
    """Wait until at most `pending` of the warpgroup's newest groups are incomplete."""

    pending: int


# ---------------------------------------------------------------- roles


@dataclass(frozen=True, slots=True)
class SetRegisters:
    """Give (or take, where it is fewer) each thread of the warpgroup `count` registers.

    `grow` says which; a warpgroup that grows waits until others have given back enough.
    """

    count: int
    grow: bool


@dataclass(frozen=True, slots=True)
class NamedBarrier:
    """A barrier of `threads` threads, whole warps; they see what the others wrote before.

    `barrier` (1 to 15, 0 is `Barrier`'s) names it. With `arrive`, the thread does not wait.
    """

    barrier: Expr
    threads: int
    arrive: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClusterArrive:
    """Arrive at the cluster's barrier, releasing what the thread did before."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class ClusterWait:
    """Wait until every thread of every block of the cluster arrived, and see what they did."""


AsyncStatement = (
    InitPhases | Arrive | ArriveExpect | PhaseWait
    | BulkLoad | BulkStore | BulkCommit | BulkWait | ProxyFence | RemoteStore
    | WarpgroupMma | WarpgroupFence | WarpgroupCommit | WarpgroupWait
    | SetRegisters | NamedBarrier | ClusterArrive | ClusterWait
    | Deposit | Announce | Await | Collect
)  # fmt: skip
