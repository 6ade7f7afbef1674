"""Rules about transaction barriers, bulk copies, warpgroup instructions and roles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import prod

from tilewright.kernel.async_ops import (
    PHASE_BYTES,
    Arrive,
    ArriveExpect,
    BulkLoad,
    BulkStore,
    BulkWait,
    InitPhases,
    NamedBarrier,
    RemoteStore,
    SetRegisters,
    TensorMap,
    TileRef,
    WarpgroupMma,
    WarpgroupWait,
)
from tilewright.kernel.fault import Fault, Rule, View
from tilewright.kernel.operands import describe, swizzle_bytes
from tilewright.kernel.ops import MemRef, Mode, Shared, Tensor
from tilewright.kernel.ranges import divisor, interval
from tilewright.kernel.refs import RegRef
from tilewright.kernel.scopes import WARPGROUP_WARPS, Scope, phase_ref
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Layout, Place
from tilewright.target.model import MmaAtom, Source
from tilewright.target.model import Scope as AtomScope

_MAX_ARRIVALS = (1 << 20) - 1
_BOX = 256  # elements along one axis of a box, at most
_RANK = 5
_NAMED = 15  # barriers with a name
_REMOTE_BYTES = (4, 8, 16)  # that a thread stores in another block at once
_ROW_ALIGN = 16  # bytes; where the rows of a box begin in the tensor
_COPY_ALIGN = 128  # bytes; where a box that is not swizzled begins

# ---------------------------------------------------------------- transaction barriers


def _phases(view: View) -> Iterator[Fault]:
    kernel = view.kernel
    spans = [
        *((b.name, b.offset, b.offset + b.elements * b.dtype.bytes) for b in kernel.shared),
        *((p.name, p.offset, p.offset + p.count * PHASE_BYTES) for p in kernel.phases),
    ]
    for phases in kernel.phases:
        if phases.count < 1 or not 1 <= phases.arrivals <= _MAX_ARRIVALS:
            found = f"{phases.count} barriers of {phases.arrivals} arrivals"
            yield Fault(f"{phases.name} has {found}", span=phases.span)
        if phases.offset < 0 or phases.offset % PHASE_BYTES:
            yield Fault(f"{phases.name} starts at byte {phases.offset}", span=phases.span)
        end = phases.offset + phases.count * PHASE_BYTES
        if end > view.target.shared_bytes:
            limit = f"at most {view.target.shared_bytes} bytes on {view.target.name}"
            yield Fault(f"{phases.name} ends at byte {end}", span=phases.span, expected=limit)
    names = {phases.name for phases in kernel.phases}
    for (a, a0, a1), (b, b0, b1) in combinations(spans, 2):
        if names & {a, b} and a0 < b1 and b0 < a1:
            yield Fault(f"{a} and {b} overlap: bytes {a0}..{a1} and {b0}..{b1}")
    yield from _initialised(view)


def _initialised(view: View) -> Iterator[Fault]:
    """Once each, at the top of the kernel, before anything uses it."""
    top = {id(statement) for statement in view.kernel.body}
    done: set[str] = set()
    for _, statement in view.statements:
        if isinstance(statement, InitPhases):
            for name in statement.phases:
                if view.kernel.phase_array(name) is None:
                    yield Fault(f"no phases {name} are declared", statement)
                if name in done:
                    yield Fault(f"{name} is initialised twice", statement)
                done.add(name)
            if id(statement) not in top:
                yield Fault("phases are initialised inside a loop or guard", statement)
        phase = phase_ref(statement)
        if phase is not None and phase.name not in done:
            declared = view.kernel.phase_array(phase.name) is not None
            found = f"{phase.name} is used before it is initialised"
            text = found if declared else f"no phases {phase.name} are declared"
            yield Fault(text, statement, mend="init it at the top, then a barrier")


def _phase_uses(view: View) -> Iterator[Fault]:
    cluster = view.kernel.cluster
    for scope, statement in view.statements:
        phase = phase_ref(statement)
        array = None if phase is None else view.kernel.phase_array(phase.name)
        if phase is not None and array is not None:
            found = interval(phase.index, scope.ranges)
            if not found.within(0, array.count - 1):
                text = f"{phase.name} is indexed {found.low}..{found.high}"
                yield Fault(text, statement, expected=f"0..{array.count - 1}")
        match statement:
            case ArriveExpect(size=size) if not 0 < size <= _MAX_ARRIVALS or size % 16:
                yield Fault(f"{size} bytes are expected", statement, expected="a multiple of 16")
            case Arrive(block=Expr() as block) | RemoteStore(block=block):
                if not interval(block, scope.ranges).within(0, cluster - 1):
                    text = f"block {block} of a cluster of {cluster}"
                    yield Fault(text, statement, expected=f"0..{cluster - 1}")
            case BulkLoad(multicast=Expr() as mask):
                if not interval(mask, scope.ranges).within(1, (1 << cluster) - 1):
                    text = f"the mask {mask} for a cluster of {cluster}"
                    yield Fault(text, statement, expected=f"1..{(1 << cluster) - 1}")
            case _:
                pass


# ---------------------------------------------------------------- bulk copies


def _maps(view: View) -> Iterator[Fault]:
    for declared in view.kernel.maps:
        tensor = view.kernel.tensor(declared.tensor)
        if tensor is None:
            yield Fault(f"map {declared.name}: no tensor {declared.tensor} is declared")
            continue
        for text in _map_faults(view, declared, tensor):
            yield Fault(f"map {declared.name}: {text}", span=declared.span)


def _map_faults(view: View, declared: TensorMap, tensor: Tensor) -> Iterator[str]:
    rank, size, swizzles = len(tensor.shape), tensor.dtype.bytes, view.target.bulk_swizzles
    if declared.swizzle not in swizzles:
        listed = ", ".join(map(str, swizzles)) or "no copy engine"
        yield f"a swizzle of {declared.swizzle} bytes; {view.target.name} has {listed}"
    if sorted(declared.order) != list(range(rank)) or not 1 <= rank <= _RANK:
        yield f"axes {list(declared.order)} of a tensor of {rank} axes"
        return
    if len(declared.box) != rank or not all(1 <= n <= _BOX for n in declared.box):
        yield f"a box {list(declared.box)} of a tensor of {rank} axes, each 1 to {_BOX} long"
        return
    row = declared.box[-1] * size
    if row % 16 or (declared.swizzle and row > declared.swizzle):
        limit = f" up to {declared.swizzle}" if declared.swizzle else ""
        yield f"rows of {row} bytes, not a multiple of 16{limit}"
    *outer, last = (tensor.strides[axis] for axis in declared.order)
    if last != Expr.of(1):
        yield f"the last axis has the stride {last}"
    for stride in outer:
        known = divisor(stride, view.multiples) * size
        if known % 16:
            yield f"a stride of {stride} elements is no multiple of 16 bytes"
    if tensor.align % 16:
        yield f"{tensor.name} is aligned to {tensor.align} bytes, not 16"


def _bulk(view: View) -> Iterator[Fault]:
    for scope, statement in view.statements:
        match statement:
            case BulkLoad(map=name, coordinates=at, dst=ref):
                wrong, what = Mode.OUT, "read"
            case BulkStore(map=name, coordinates=at, src=ref):
                wrong, what = Mode.IN, "written"
            case _:
                continue
        declared = view.kernel.tensor_map(name)
        if declared is None:
            yield Fault(f"no map {name} is declared", statement)
            continue
        tensor, buffer = view.memory[declared.tensor], view.memory[ref.name]
        if len(at) != len(declared.box):
            yield Fault(f"{name} has {len(declared.box)} axes, indexed by {len(at)}", statement)
        elif (step := divisor(at[-1], view.multiples) * tensor.dtype.bytes) % _ROW_ALIGN:
            text = f"rows of {name} may begin at any multiple of {step} bytes"
            yield Fault(text, statement, expected=f"multiples of {_ROW_ALIGN} bytes")
        if isinstance(tensor, Tensor) and tensor.mode is wrong:
            found = f"{tensor.name} is {what}, but declared {wrong.value}"
            yield Fault(found, statement, mend="declare it inout")
        if not isinstance(buffer, Shared):
            yield Fault(f"{ref.name} is not a shared buffer", statement)
            continue
        if buffer.dtype != tensor.dtype:
            found = f"{ref.name} holds {buffer.dtype}, {tensor.name} {tensor.dtype}"
            yield Fault(found, statement)
        yield from (Fault(text, statement) for text in _place(declared, buffer, ref, scope))


def _place(declared: TensorMap, buffer: Shared, ref: MemRef, scope: Scope) -> Iterator[str]:
    """Why the box does not lie in the buffer as the copy engine writes it."""
    swizzle = swizzle_bytes(buffer)
    if swizzle != declared.swizzle:
        kind = "another swizzle" if swizzle is None else f"a swizzle of {swizzle} bytes"
        yield f"{buffer.name} has {kind}, {declared.name} one of {declared.swizzle}"
    if buffer.pitch or buffer.shape[-1] != declared.box[-1]:
        yield f"rows of {buffer.name} are not rows of {declared.box[-1]} elements, densely"
    size = buffer.dtype.bytes
    align = 8 * declared.swizzle or _COPY_ALIGN
    steps = zip(ref.index, buffer.strides, strict=True)
    places = [buffer.offset, *(divisor(index, {}) * stride * size for index, stride in steps)]
    if any(place % align for place in places):
        yield f"the box does not begin at a multiple of {align} bytes in {buffer.name}"
    box = prod(declared.box)
    whole = sum(
        (index * stride for index, stride in zip(ref.index, buffer.strides, strict=True)),
        Expr.of(0),
    )
    if not interval(whole, scope.ranges).within(0, buffer.elements - box):
        yield f"a box of {box} elements may pass the end of {buffer.name}"


# ---------------------------------------------------------------- stores to other blocks


def _remote(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        if not isinstance(statement, RemoteStore):
            continue
        name, digits = statement.dst.name, {name for name, _ in statement.over}
        buffer = view.memory[name]
        if not isinstance(buffer, Shared):
            yield Fault(f"{name} is not a shared buffer", statement)
            continue
        if view.target.max_cluster < 2:
            yield Fault(f"{view.target.name} has no clusters", statement)
        size = statement.width * buffer.dtype.bytes
        if size not in _REMOTE_BYTES:
            listed = ", ".join(map(str, _REMOTE_BYTES))
            yield Fault(f"stores {size} bytes together", statement, expected=listed)
        elif any(place % size for place in _places(buffer, statement.dst)):
            found = f"{name} is not indexed in steps of {size} bytes"
            yield Fault(found, statement, mend="use a narrower store")
        if buffer.swizzle is not None and buffer.swizzle.bits:
            yield Fault(f"{name} is swizzled", statement)
        if digits & (statement.block.variables() | statement.phase.index.variables()):
            yield Fault("its instances go to several blocks or phases", statement)
        if view.types[statement.src.name] != buffer.dtype:
            found = f"{view.types[statement.src.name]} where {buffer.dtype} is needed"
            yield Fault(found, statement, mend="cast it")


def _places(buffer: Shared, ref: MemRef) -> Iterator[int]:
    """Bytes: where the buffer begins, and what each index adds in steps of."""
    yield buffer.offset
    for index, stride in zip(ref.index, buffer.strides, strict=True):
        yield divisor(index, {}) * stride * buffer.dtype.bytes


# ---------------------------------------------------------------- warpgroup instructions


def _warpgroup(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        if not isinstance(statement, WarpgroupMma):
            continue
        atom = view.target.atom(statement.atom)
        if atom is None or atom.scope is not AtomScope.WARPGROUP:
            found = f"{view.target.name} has no warpgroup atom {statement.atom}"
            near = [a.name for a in view.target.mma_atoms if a.scope is AtomScope.WARPGROUP][:3]
            expected = f"such as {', '.join(near)}" if near else "a target that has some"
            yield Fault(found, statement, expected=expected)
            continue
        yield from (Fault(text, statement) for text in _operands(view, statement, atom))


def _operands(view: View, mma: WarpgroupMma, atom: MmaAtom) -> Iterator[str]:
    yield from _in_registers("d", mma.d, atom.d)
    if isinstance(mma.a, RegRef) is not (atom.a_source is Source.REGISTER):
        place = "registers" if atom.a_source is Source.REGISTER else "shared memory"
        yield f"{atom.name} takes a from {place}"
        return
    if view.fragments[mma.d.name].dtype != atom.d_dtype:
        yield f"d is {mma.d.name} of {view.fragments[mma.d.name].dtype}, not {atom.d_dtype}"
    if isinstance(mma.a, RegRef):
        if view.fragments[mma.a.name].dtype != atom.a_dtype:
            yield f"a is {mma.a.name} of {view.fragments[mma.a.name].dtype}, not {atom.a_dtype}"
        yield from _in_registers("a", mma.a, atom.a)
    else:
        yield from _in_memory(view, mma.a, (atom.m, atom.k), atom)
    yield from _in_memory(view, mma.b, (atom.n, atom.k), atom)


def _in_registers(which: str, ref: RegRef, layout: Layout) -> Iterator[str]:
    count = layout.count(Place.REGISTER)
    if divisor(ref.index[-1], {}) % count:
        yield f"{which} takes {count} registers, but {ref.name} is not indexed in such steps"


def _in_memory(view: View, ref: TileRef, shape: tuple[int, int], atom: MmaAtom) -> Iterator[str]:
    buffer = view.memory[ref.name]
    if not isinstance(buffer, Shared):
        yield f"{ref.name} is not a shared buffer"
        return
    if buffer.dtype != atom.a_dtype:
        yield f"{ref.name} holds {buffer.dtype}, {atom.name} takes {atom.a_dtype}"
        return
    form = describe(buffer, ref, *shape)
    if isinstance(form, str):
        yield form
        return
    size = buffer.dtype.bytes
    outer = ref.depth if form.across else ref.rows
    if buffer.offset % form.stride:
        yield f"{ref.name} does not begin at a multiple of {form.stride} bytes"
    for axis, (index, stride) in enumerate(zip(ref.index, buffer.strides, strict=True)):
        last = axis == len(buffer.shape) - 1
        step = 16 if last else form.stride
        if divisor(index, {}) * stride * size % step:
            unit = 8 if axis == outer else step
            yield f"axis {axis} of {ref.name} is not indexed in steps of {unit}"


# ---------------------------------------------------------------- roles and waits


def _roles(view: View) -> Iterator[Fault]:
    kernel = view.kernel
    for scope, statement in view.statements:
        match statement:
            case BulkWait(pending=pending) | WarpgroupWait(pending=pending) if pending < 0:
                yield Fault(f"waits until {pending} groups are pending", statement)
            case SetRegisters(count=count):
                if count % 8 or not 24 <= count <= 256:
                    expected = "a multiple of 8 from 24 to 256"
                    yield Fault(f"{count} registers", statement, expected=expected)
                if kernel.warps % WARPGROUP_WARPS:
                    yield Fault(f"{kernel.warps} warps are not whole warpgroups", statement)
            case NamedBarrier(barrier=barrier, threads=threads):
                found = interval(barrier, scope.ranges)
                if not found.within(1, _NAMED):
                    text = f"barrier {found.low}..{found.high}"
                    yield Fault(text, statement, expected=f"1..{_NAMED}")
                if threads % kernel.warp_size or not 0 < threads <= kernel.threads:
                    text = f"a barrier of {threads} of {kernel.threads} threads"
                    yield Fault(text, statement, expected="whole warps of the block")
            case _:
                pass


ASYNC: tuple[Rule, ...] = (
    Rule("phases", "transaction barriers lie apart and are initialised once, first", _phases),
    Rule("phase-uses", "a transaction barrier, a block, a mask is one of those there", _phase_uses),
    Rule("maps", "a tensor map is one that the copy engine can follow", _maps),
    Rule("bulk", "a box lies in shared memory as the copy engine moves it", _bulk),
    Rule("remote", "a store to another block moves 4, 8 or 16 aligned bytes", _remote),
    Rule("warpgroup", "a warpgroup instruction exists, on operands that it can read", _warpgroup),
    Rule("roles", "registers, named barriers and pending groups are possible numbers", _roles),
)
