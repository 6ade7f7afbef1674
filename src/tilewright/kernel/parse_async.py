"""Reads the text of the asynchronous statements (see `kernel.text_async`)."""

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
from tilewright.kernel.refs import Over, ReducedAxis, RegRef
from tilewright.kernel.scan import Line
from tilewright.poly.expr import Expr

ASYNC_WORDS = frozenset(
    "init arrive wait bulk remote proxy warpgroup registers named cluster deposit announce await "
    "collect".split()
)


def read_async(line: Line, word: str, over: Over) -> AsyncStatement:
    """The statement whose first word, one of `ASYNC_WORDS`, was read."""
    match word:
        case "init":
            names = [line.name()]
            while line.accept(","):
                names.append(line.name())
            return InitPhases(tuple(names))
        case "arrive":
            return _arrive(line)
        case "wait":
            phase = _phase(line)
            return PhaseWait(phase, line.after("parity").expr(), note=line.note)
        case "bulk":
            return _bulk(line, over)
        case "remote":
            return _remote(line, over)
        case "proxy":
            line.expect("fence")
            return ProxyFence(line.note)
        case "warpgroup":
            return _warpgroup(line, over)
        case "registers":
            grow = _either(line, "grow", "shrink")
            return SetRegisters(line.integer(), grow)
        case "named":
            arrive = _either(line, "arrive", "barrier")
            barrier = line.expr()
            return NamedBarrier(barrier, line.after("of").integer(), arrive, line.note)
        case "deposit" | "announce" | "await" | "collect":
            return _exchanged(line, word, over)
        case _:
            arrive = _either(line, "arrive", "wait")
            return ClusterArrive(line.note) if arrive else ClusterWait()


def _either(line: Line, yes: str, no: str) -> bool:
    """Whether `yes` stands here; the other word where not."""
    if line.accept(yes):
        return True
    if not line.accept(no):
        line.fail(f"'{yes}' or '{no}'")
    return False


def _arrive(line: Line) -> Arrive | ArriveExpect:
    phase = _phase(line)
    if line.accept("expect"):
        return ArriveExpect(phase, line.integer(), note=line.note)
    block = line.after("block").expr() if line.accept("in") else None
    return Arrive(phase, block, note=line.note)


def _bulk(line: Line, over: Over) -> AsyncStatement:
    if line.accept("commit"):
        return BulkCommit()
    if line.accept("wait"):
        return BulkWait(line.integer(), line.accept("read"))
    if line.accept("store"):
        name, coordinates = line.name(), line.expressions()
        return BulkStore(over, name, coordinates, line.after("=").memory(), note=line.note)
    dst = line.after("load").memory()
    name, coordinates = line.after("=").name(), line.expressions()
    phase = _phase(line.after("signals"))
    ranks = line.expr() if line.accept("multicast") else None
    return BulkLoad(over, dst, name, coordinates, phase, ranks, note=line.note)


def _remote(line: Line, over: Over) -> RemoteStore:
    width = line.after("store").integer()
    dst = line.memory()
    block = line.after("in").after("block").expr()
    src = line.after("=").regs()
    return RemoteStore(over, dst, src, width, block, _phase(line.after("signals")), note=line.note)


def _exchanged(line: Line, word: str, over: Over) -> AsyncStatement:
    match word:
        case "deposit":
            width = line.integer()
            name, index = _element(line)
            return Deposit(over, name, index, line.after("=").regs(), width, note=line.note)
        case "announce":
            return Announce(line.name(), note=line.note)
        case "await":
            name = line.name()
            return Await(name, line.after("of").after("block").expr(), note=line.note)
        case _:
            width = line.integer()
            dst = line.regs()
            name, index = _element(line.after("="))
            block = line.after("of").after("block").expr()
            return Collect(over, dst, name, index, block, width, note=line.note)


def _element(line: Line) -> tuple[str, Expr]:
    name = line.name()
    index = line.after("[").expr()
    line.expect("]")
    return name, index


def _warpgroup(line: Line, over: Over) -> AsyncStatement:
    if line.accept("fence"):
        return WarpgroupFence()
    if line.accept("commit"):
        return WarpgroupCommit()
    if line.accept("wait"):
        return WarpgroupWait(line.integer())
    atom, d = line.after("mma").name(), line.regs()
    left = line.after("+=").regs()
    a = _tile(line, left) if line.peek() == "(" else left
    b = _tile(line, line.after("*").regs())
    reduces = read_reduces(line)
    accumulate = line.guard() if line.accept("if") else ()
    return WarpgroupMma(over, atom, d, a, b, accumulate, reduces, note=line.note)


def _tile(line: Line, ref: RegRef) -> TileRef:
    rows = line.after("(").integer()
    depth = line.after(",").integer()
    panel = line.integer() if line.accept(",") else -1
    line.expect(")")
    return TileRef(ref.name, ref.index, rows, depth, panel)


def _phase(line: Line) -> PhaseRef:
    return PhaseRef(*_element(line))


def read_reduces(line: Line) -> tuple[ReducedAxis, ...]:
    """The reduced axes of a matrix instruction or a reduction."""
    result: list[ReducedAxis] = []
    while line.accept("," if result else "reduces"):
        axis = line.name()
        coordinate = line.after("[").expr()
        extent = line.after("]").after("of").expr()
        result.append(ReducedAxis(axis, extent, coordinate))
    return tuple(result)
