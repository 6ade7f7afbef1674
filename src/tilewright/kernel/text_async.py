"""Text of the asynchronous statements (see `kernel.text`)."""

from __future__ import annotations

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
    Phases,
    PhaseWait,
    ProxyFence,
    RemoteStore,
    SetRegisters,
    TensorMap,
    TileRef,
    WarpgroupCommit,
    WarpgroupFence,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.declared import Exchange
from tilewright.kernel.phrases import (
    show_expr,
    show_guard,
    show_list,
    show_over,
    show_reduces,
    show_ref,
)
from tilewright.kernel.refs import RegRef


def show_phases(phases: Phases) -> str:
    return f"phases {phases.name}: {phases.count} arrivals {phases.arrivals} at {phases.offset}"


def show_map(tensor_map: TensorMap) -> str:
    axes = f" axes {list(tensor_map.axes)}" if tensor_map.axes else ""
    swizzle = f" swizzle {tensor_map.swizzle}" if tensor_map.swizzle else ""
    return f"map {tensor_map.name}: {tensor_map.tensor} box {list(tensor_map.box)}{swizzle}{axes}"


def show_exchange(exchange: Exchange) -> str:
    return f"exchange {exchange.name}: {exchange.dtype} count {exchange.count}"


def show_async(statement: AsyncStatement) -> str:
    """One line, without the note."""
    match statement:
        case InitPhases(phases):
            return f"init {', '.join(phases)}"
        case Arrive(phase, block):
            where = "" if block is None else f" in block {show_expr(block)}"
            return f"arrive {_phase(phase)}{where}"
        case ArriveExpect(phase, size):
            return f"arrive {_phase(phase)} expect {size}"
        case PhaseWait(phase, parity):
            return f"wait {_phase(phase)} parity {show_expr(parity)}"
        case BulkLoad() | BulkStore():
            return show_over(statement.over) + _copy(statement)
        case ProxyFence():
            return "proxy fence"
        case RemoteStore():
            return show_over(statement.over) + _remote(statement)
        case WarpgroupMma():
            return _mma(statement)
        case SetRegisters(count, grow):
            return f"registers {'grow' if grow else 'shrink'} {count}"
        case NamedBarrier(barrier, threads, arrive):
            return f"named {'arrive' if arrive else 'barrier'} {show_expr(barrier)} of {threads}"
        case ClusterArrive():
            return "cluster arrive"
        case ClusterWait():
            return "cluster wait"
        case Deposit() | Announce() | Await() | Collect():
            return _exchanged(statement)
        case _:
            return _group(statement)


def _group(
    statement: BulkCommit | BulkWait | WarpgroupFence | WarpgroupCommit | WarpgroupWait,
) -> str:
    match statement:
        case BulkCommit():
            return "bulk commit"
        case BulkWait(pending, read):
            return f"bulk wait {pending}{' read' if read else ''}"
        case WarpgroupFence():
            return "warpgroup fence"
        case WarpgroupCommit():
            return "warpgroup commit"
        case WarpgroupWait(pending):
            return f"warpgroup wait {pending}"


def _exchanged(statement: Deposit | Announce | Await | Collect) -> str:
    name = statement.exchange
    match statement:
        case Deposit(over, _, index, src, width):
            return f"{show_over(over)}deposit {width} {name}[{show_expr(index)}] = {show_ref(src)}"
        case Announce():
            return f"announce {name}"
        case Await(_, block):
            return f"await {name} of block {show_expr(block)}"
        case Collect(over, dst, _, index, block, width):
            source = f"{name}[{show_expr(index)}] of block {show_expr(block)}"
            return f"{show_over(over)}collect {width} {show_ref(dst)} = {source}"


def _phase(ref: PhaseRef) -> str:
    return f"{ref.name}[{show_expr(ref.index)}]"


def _copy(statement: BulkLoad | BulkStore) -> str:
    box = f"{statement.map}{show_list(statement.coordinates)}"
    if isinstance(statement, BulkStore):
        return f"bulk store {box} = {show_ref(statement.src)}"
    mask = statement.multicast
    ranks = "" if mask is None else f" multicast {show_expr(mask)}"
    return f"bulk load {show_ref(statement.dst)} = {box} signals {_phase(statement.phase)}{ranks}"


def _remote(store: RemoteStore) -> str:
    where = f"{show_ref(store.dst)} in block {show_expr(store.block)}"
    value = f"{show_ref(store.src)} signals {_phase(store.phase)}"
    return f"remote store {store.width} {where} = {value}"


def _mma(mma: WarpgroupMma) -> str:
    left = show_ref(mma.a) if isinstance(mma.a, RegRef) else _tile(mma.a)
    guard = f" if {show_guard(mma.accumulate)}" if mma.accumulate else ""
    product = f"{show_ref(mma.d)} += {left} * {_tile(mma.b)}{show_reduces(mma.reduces)}"
    return f"{show_over(mma.over)}warpgroup mma {mma.atom} {product}{guard}"


def _tile(ref: TileRef) -> str:
    axes = [ref.rows, ref.depth, *([ref.panel] if ref.panel >= 0 else [])]
    return f"{ref.name}{show_list(ref.index)}({', '.join(map(str, axes))})"
