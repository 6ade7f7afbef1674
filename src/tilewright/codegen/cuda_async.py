"""CUDA texts of the asynchronous statements: transaction barriers, bulk copies, warpgroup MMA."""

from __future__ import annotations

import re
from math import prod

from tilewright.base.diagnostics import AtomError, UnsupportedError
from tilewright.base.dtypes import DType
from tilewright.codegen.access import AccessPrinter
from tilewright.codegen.dialect import call, stored_type
from tilewright.codegen.index import bare
from tilewright.codegen.prelude import FUNCTION
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
    PhaseRef,
    PhaseWait,
    ProxyFence,
    RemoteStore,
    SetRegisters,
    TileRef,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.declared import exchange_flags
from tilewright.kernel.operands import Descriptor, describe
from tilewright.kernel.ops import walk
from tilewright.kernel.refs import RegRef
from tilewright.poly.layout import Place
from tilewright.target.model import MmaAtom, Source

_MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # swizzle bytes -> the descriptor's swizzle mode


def _ptx(text: str) -> list[str]:
    return [f'asm volatile("{text}" ::: "memory");']


def print_async(statement: AsyncStatement, access: AccessPrinter) -> list[str]:
    """The lines of one instance, in the scope of `access`."""
    text = access.index.text
    match statement:
        case InitPhases(phases):
            return _init(phases, access)
        case Arrive(phase, block):
            if block is None:
                return call("tw_arrive", _phase(phase, access))
            return call("tw_arrive_in_block", _phase(phase, access), text(block))
        case ArriveExpect(phase, size):
            return call("tw_arrive_expect", _phase(phase, access), str(size))
        case PhaseWait(phase, parity):
            name = "tw_phase_wait_cluster" if _is_remote(phase, access) else "tw_phase_wait"
            return call(name, _phase(phase, access), text(parity % 2))
        case BulkLoad() | BulkStore():
            return _copy(statement, access)
        case RemoteStore():
            return _remote(statement, access)
        case Deposit() | Announce() | Await() | Collect():
            return _exchanged(statement, access)
        case WarpgroupMma():
            return _mma(statement, access)
        case WarpgroupWait(0):
            return [*call("tw_wait_products"), *_hold(access)]
        case WarpgroupWait(pending):
            return [*_ptx(f"wgmma.wait_group.sync.aligned {pending};"), *_hold(access)]
        case WarpgroupFence():
            return [*_hold(access), *_ptx("wgmma.fence.sync.aligned;")]
        case NamedBarrier(barrier, threads, arrive):
            opcode = "bar.arrive" if arrive else "bar.sync"
            operands = f'"r"({text(barrier)}), "n"({threads})'
            return [f'asm volatile("{opcode} %0, %1;" :: {operands} : "memory");']
        case _:
            return _ptx(_plain(statement))


def _plain(
    statement: BulkCommit | BulkWait | ProxyFence | WarpgroupCommit | SetRegisters
    | ClusterArrive | ClusterWait,
) -> str:  # fmt: skip
    """The instruction of a statement without operands."""
    match statement:
        case BulkCommit():
            return "cp.async.bulk.commit_group;"
        case BulkWait(pending, read):
            return f"cp.async.bulk.wait_group{'.read' if read else ''} {pending};"
        case ProxyFence():
            return "fence.proxy.async.shared::cta;"
        case WarpgroupCommit():
            return "wgmma.commit_group.sync.aligned;"
        case SetRegisters(count, grow):
            return f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32 {count};"
        case ClusterArrive():
            return "barrier.cluster.arrive.release;"
        case ClusterWait():
            return "barrier.cluster.wait.acquire;"


def _phase(ref: PhaseRef, access: AccessPrinter) -> str:
    name = access.names.memory[ref.name]
    index = access.index.text(ref.index)
    return name if index == "0" else f"{name} + {index}"


def _init(phases: tuple[str, ...], access: AccessPrinter) -> list[str]:
    lines: list[str] = []
    for name in phases:
        array = access.kernel.phase_array(name)
        if array is not None:
            at = f"{access.names.memory[name]} + i"
            lines.append(
                f"for (int i = 0; i < {array.count}; ++i) tw_phase_init({at}, {array.arrivals});"
            )
    # The engine reads a map before its first copy: fetching the maps meanwhile hides that.
    fetched = [f"tw_prefetch_map({access.names.memory[m.name]});" for m in access.kernel.maps]
    return [
        f"if ({access.names.variables['thread']} == 0) {{",
        *(f"  {line}" for line in (*fetched, *lines)),
        *(f"  {line}" for line in _ptx("fence.mbarrier_init.release.cluster;")),
        "}",
    ]


def _copy(statement: BulkLoad | BulkStore, access: AccessPrinter) -> list[str]:
    box = access.names.memory[statement.map]
    rank = len(statement.coordinates)
    coordinates = [access.index.text(c) for c in statement.coordinates]
    if isinstance(statement, BulkStore):
        place = access.unswizzled(statement.src)
        return call(f"tw_bulk_store_{rank}d", box, place, *coordinates)
    place, phase = access.unswizzled(statement.dst), _phase(statement.phase, access)
    if statement.multicast is None:
        return call(f"tw_bulk_load_{rank}d", place, box, phase, *coordinates)
    ranks = access.index.text(statement.multicast)
    return call(f"tw_bulk_load_{rank}d_multicast", place, box, phase, *coordinates, ranks)


def _is_remote(phase: PhaseRef, access: AccessPrinter) -> bool:
    """Whether other blocks' stores end the phases of the array."""
    stores = (s for s in walk(access.kernel.body) if isinstance(s, RemoteStore))
    return any(s.phase.name == phase.name for s in stores)


def _remote(store: RemoteStore, access: AccessPrinter) -> list[str]:
    size = access.dtype(store.dst).bytes
    words = [
        f"*(unsigned*)&{access.register(_later(store.src, i))}"
        for i in range(0, store.width, 4 // size)
    ]
    block, phase = access.index.text(store.block), _phase(store.phase, access)
    return call(f"tw_remote_store_{4 * len(words)}", access.unswizzled(store.dst), block, phase,
                *words)  # fmt: skip


def _exchanged(s: Deposit | Announce | Await | Collect, access: AccessPrinter) -> list[str]:
    """Flags of warps, then pieces ``[block, piece, thread]``: a warp's lie side by side."""
    kernel, name = access.kernel, access.names.memory[s.exchange]
    block, thread, warp, lane = (
        access.names.variables[c] for c in ("block", "thread", "warp", "lane")
    )
    other = access.index.operand(s.block) if isinstance(s, Await | Collect) else block
    if isinstance(s, Announce | Await):
        function = "tw_announce" if isinstance(s, Announce) else "tw_await"
        return call(function, f"(unsigned*){name} + ({other} * {kernel.warps} + {warp})", lane)
    declared = kernel.exchange(s.exchange)
    count = 0 if declared is None else declared.count // s.width
    piece = access.index.operand(s.index // s.width)
    first = exchange_flags(prod(e.const for e in kernel.grid), kernel.warps)
    place = f"({other} * {count} + {piece}) * {kernel.threads} + {thread}"
    pointer = f"(int4*)({name} + {first}) + ({place})"
    ref = s.src if isinstance(s, Deposit) else s.dst
    registers = f"*(int4*)&{access.register(ref)}"
    if isinstance(s, Deposit):
        return call("tw_deposit", pointer, registers)
    return [f"{registers} = tw_collect({pointer});"]


def _later(ref: RegRef, elements: int) -> RegRef:
    return RegRef(ref.name, (*ref.index[:-1], ref.index[-1] + elements))


def _hold(access: AccessPrinter) -> list[str]:
    """Keep the compiler from moving accesses of accumulators over the line that follows."""
    names = dict.fromkeys(s.d.name for s in walk(access.kernel.body) if isinstance(s, WarpgroupMma))
    return [f"tw_hold({access.names.registers[name]});" for name in names]


# ---------------------------------------------------------------- matrix instructions


def _descriptor(access: AccessPrinter, ref: TileRef, rows: int, depth: int) -> Descriptor:
    buffer = access.kernel.shared_buffer(ref.name)
    found = "it is not in shared memory" if buffer is None else describe(buffer, ref, rows, depth)
    if isinstance(found, str):
        raise UnsupportedError(
            f"no matrix descriptor describes {ref.name}: {found}",
            expected="rows as long as a swizzle of 32, 64 or 128 bytes",
            mend="use panels of such rows",
        )
    return found


def warpgroup_function(atom: MmaAtom) -> tuple[str, str]:
    """Name and text of ``void name<a across, b across>(d, a, b, int accumulate)``."""
    name = "tw_" + re.sub(r"\W", "_", atom.name)
    count = atom.d.count(Place.REGISTER)
    in_registers = atom.a_source is Source.REGISTER
    words = atom.a.count(Place.REGISTER) * atom.a_dtype.bits // 32 if in_registers else 1
    numbers = [f"%{i}" for i in range(count + words + 2)]
    d = "{" + ", ".join(numbers[:count]) + "}"
    a = "{" + ", ".join(numbers[count : count + words]) + "}" if in_registers else numbers[count]
    b, predicate = numbers[-2:]
    flags = _flags(atom.a_dtype, count + words + 2, in_registers=in_registers)
    constraint, kind = "f" if atom.d_dtype.is_float else "r", stored_type(atom.d_dtype)
    outputs = ", ".join(f'"+{constraint}"(d[{i}])' for i in range(count))
    if in_registers:
        inputs = ", ".join(f'"r"(((const unsigned*)a)[{i}])' for i in range(words))
        parameter = f"const {stored_type(atom.a_dtype)}* a"
    else:
        inputs, parameter = '"l"(a)', "unsigned long long a"
    across = ', "n"(across_a)' if not in_registers and atom.a_dtype.bits == 16 else ""
    across += ', "n"(across_b)' if atom.a_dtype.bits == 16 else ""
    head = f"{FUNCTION} void {name}(\n    {kind}* d, {parameter}, unsigned long long b, int more)"
    return name, "\n".join(
        (
            "template <int across_a, int across_b>",
            f"{head} {{",
            f'  asm volatile("{{\\n.reg .pred more;\\nsetp.ne.b32 more, {predicate}, 0;\\n"',
            f'      "{atom.emit} {d}, {a}, {b}, more{flags};\\n}}"',
            f"      : {outputs}",
            f'      : {inputs}, "l"(b), "r"(more){across});',
            "}",
        )
    )


def _flags(dtype: DType, first: int, *, in_registers: bool) -> str:
    """Signs of the operands, and for 16-bit types which of those in shared memory are across."""
    if not dtype.is_float:
        return ""
    if dtype.bits != 16:
        return ", 1, 1"
    if in_registers:
        return f", 1, 1, %{first}"
    return f", 1, 1, %{first}, %{first + 1}"


def _mma(mma: WarpgroupMma, access: AccessPrinter) -> list[str]:
    atom = access.target.atom(mma.atom)
    if atom is None:
        raise AtomError(f"{access.target.name} has no instruction {mma.atom}", span=mma.span)
    name, _ = warpgroup_function(atom)
    across_a = 0
    if isinstance(mma.a, RegRef):
        a = f"&{access.register(mma.a)}"
    else:
        form = _descriptor(access, mma.a, atom.m, atom.k)
        a, across_a = _described(mma.a, form, access), int(form.across)
    form = _descriptor(access, mma.b, atom.n, atom.k)
    b = _described(mma.b, form, access)
    guard = access.index.guard(mma.accumulate)
    more = f"({bare(guard)}) ? 1 : 0" if guard else "1"
    function = f"{name}<{across_a}, {int(form.across)}>"
    return call(function, f"&{access.register(mma.d)}", a, b, more)


def _described(ref: TileRef, form: Descriptor, access: AccessPrinter) -> str:
    strides = f"{form.leading}, {form.stride}, {_MODES[form.swizzle]}"
    return f"tw_matrix_descriptor<{strides}>({', '.join(access.in_units(ref, 16))})"
