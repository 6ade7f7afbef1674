"""Rules about declarations, names, scopes and references."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from math import prod

from tilewright.kernel.async_ops import (
    ClusterArrive,
    ClusterWait,
    Collect,
    Deposit,
    InitPhases,
    RemoteStore,
    WarpgroupMma,
)
from tilewright.kernel.fault import Fault, Rule, View
from tilewright.kernel.ops import (
    AsyncCopy,
    Barrier,
    DataIndex,
    Decode,
    Load,
    Loop,
    MemRef,
    Mma,
    Mode,
    RegRef,
    ScalarValue,
    Shared,
    Statement,
    Store,
    Tensor,
    When,
    children,
)
from tilewright.kernel.ranges import interval
from tilewright.kernel.scopes import (
    COUNTERS,
    Level,
    Origin,
    expressions,
    guard_expressions,
    is_warp_wide,
    is_warpgroup_wide,
    memory_refs,
    read_fragments,
    unrolled_digits,
    value_expressions,
    values_in,
    written_fragment,
)
from tilewright.kernel.text import show_expr
from tilewright.poly.expr import Expr
from tilewright.poly.layout import Place

_NAME = re.compile(r"[A-Za-z_][\w.]*")
_RESERVED = {*COUNTERS, "true", "false", "inf", "nan"}


# ---------------------------------------------------------------- declarations


def _names(view: View) -> Iterator[Fault]:
    k = view.kernel
    declared = [
        *k.symbols, *k.tensors, *k.scalars, *k.shared, *k.registers, *k.phases, *k.maps,
        *k.exchanges,
    ]  # fmt: skip
    seen: set[str] = set()
    for name in (d.name for d in declared):
        if not _NAME.fullmatch(name):
            yield Fault(f"{name!r} is not a name", expected="letters, digits, '_' and '.'")
        if name in _RESERVED:
            yield Fault(f"{name} means something already", mend="choose another name")
        if name in seen:
            yield Fault(f"{name} is declared twice", mend="rename one of the two")
        seen.add(name)


def _shapes(view: View) -> Iterator[Fault]:
    for symbol in view.kernel.symbols:
        if symbol.low < 0 or symbol.multiple < 1:
            yield Fault(f"symbol {symbol.name}: low {symbol.low}, multiple {symbol.multiple}")
    for tensor in view.kernel.tensors:
        if len(tensor.shape) != len(tensor.strides):
            found = f"{len(tensor.shape)} extents and {len(tensor.strides)} strides"
            yield Fault(f"tensor {tensor.name} has {found}", span=tensor.span)
        if not _power_of_two(tensor.align) or tensor.align % tensor.dtype.bytes:
            found = f"aligned to {tensor.align} bytes, of {tensor.dtype.bytes}-byte elements"
            yield Fault(f"tensor {tensor.name} is {found}", span=tensor.span)
        if tensor.index_bits not in (32, 64):
            yield Fault(f"tensor {tensor.name} has {tensor.index_bits} index bits")
    for declared in (*view.kernel.shared, *view.kernel.registers):
        if not declared.shape or min(declared.shape) < 1:
            yield Fault(f"{declared.name} has the shape {list(declared.shape)}")
    for buffer in view.kernel.shared:
        if buffer.pitch and buffer.pitch < buffer.shape[-1]:
            found = f"pitch {buffer.pitch} under rows of {buffer.shape[-1]} elements"
            yield Fault(f"shared {buffer.name} has {found}", span=buffer.span)
    if not view.kernel.grid:
        yield Fault("the grid has no axis", mend="give it one of extent 1")


def _sizes(view: View) -> Iterator[Fault]:
    kernel = view.kernel
    known = {symbol.name for symbol in kernel.symbols}
    places: list[tuple[str, tuple[Expr, ...]]] = [
        ("the grid", kernel.grid),
        ("a contract", tuple(guard_expressions(kernel.contracts))),
        *((f"tensor {t.name}", (*t.shape, *t.strides)) for t in kernel.tensors),
    ]
    for place, sizes in places:
        unknown = sorted({name for size in sizes for name in size.variables()} - known)
        if unknown:
            yield Fault(f"{place} depends on {', '.join(unknown)}", mend="declare a symbol")


def _target(view: View) -> Iterator[Fault]:
    kernel, target = view.kernel, view.target
    if kernel.target != target.name:
        yield Fault(f"the kernel is for {kernel.target}, checked for {target.name}")
    if kernel.warp_size != target.warp_size:
        yield Fault(f"warps of {kernel.warp_size} lanes; {target.name} has {target.warp_size}")
    if not 1 <= kernel.cluster <= target.max_cluster:
        yield Fault(
            f"clusters of {kernel.cluster} blocks",
            expected=f"1 to {target.max_cluster} on {target.name}",
            mend="use smaller clusters, or none",
        )


def _threads(view: View) -> Iterator[Fault]:
    kernel, target = view.kernel, view.target
    if not kernel.warps >= 1 or kernel.threads > target.max_threads:
        yield Fault(
            f"{kernel.warps} warps of {kernel.warp_size} lanes are {kernel.threads} threads",
            expected=f"1 to {target.max_threads} threads on {target.name}",
            mend="use fewer warps",
        )


def _end(buffer: Shared) -> int:
    return buffer.offset + buffer.elements * buffer.dtype.bytes


def _shared_memory(view: View) -> Iterator[Fault]:
    for buffer in view.kernel.shared:
        if buffer.offset < 0 or buffer.offset % buffer.dtype.bytes:
            yield Fault(f"{buffer.name} starts at byte {buffer.offset}", span=buffer.span)
        if _end(buffer) > view.target.shared_bytes:
            yield Fault(
                f"{buffer.name} ends at byte {_end(buffer)}",
                span=buffer.span,
                expected=f"at most {view.target.shared_bytes} bytes on {view.target.name}",
                mend="use smaller tiles or fewer stages",
            )
    for a, b in combinations(view.kernel.shared, 2):
        if a.offset < _end(b) and b.offset < _end(a):
            spans = f"{a.offset}..{_end(a)} and {b.offset}..{_end(b)}"
            yield Fault(f"{a.name} and {b.name} overlap: bytes {spans}", span=b.span)


def _swizzles(view: View) -> Iterator[Fault]:
    for buffer in view.kernel.shared:
        swizzle = buffer.swizzle
        if swizzle is None:
            continue
        text = f"swizzle({swizzle.bits}, {swizzle.base}, {swizzle.shift}) of {buffer.name}"
        if min(swizzle.bits, swizzle.base) < 0 or swizzle.shift < swizzle.bits:
            yield Fault(f"{text} is no permutation", span=buffer.span, expected="shift >= bits")
        elif buffer.elements % (1 << (swizzle.base + swizzle.bits)):
            yield Fault(
                f"{text} leaves the buffer of {buffer.elements} elements",
                span=buffer.span,
                expected=f"a multiple of {1 << (swizzle.base + swizzle.bits)} elements",
            )


# ---------------------------------------------------------------- variables


def _bound(statement: Statement) -> Iterator[str]:
    match statement:
        case Decode(_, digits):
            yield from (name for name, _ in digits)
        case Loop(var) | DataIndex(var):
            yield var
        case _:
            yield from (name for name, _ in unrolled_digits(statement))


def _binding(view: View) -> Iterator[Fault]:
    pending = [(view.kernel.body, {symbol.name for symbol in view.kernel.symbols})]
    while pending:
        body, taken = pending.pop()
        for statement in body:
            new = list(_bound(statement))
            for name in new:
                if not _NAME.fullmatch(name) or name in _RESERVED:
                    yield Fault(f"{name!r} cannot name a variable", statement)
                if name in taken or new.count(name) > 1:
                    yield Fault(f"{name} is bound already", statement, mend="rename one")
            for name, extent in unrolled_digits(statement):
                if extent < 1:
                    yield Fault(f"{name} has the extent {extent}", statement)
            if isinstance(statement, Decode | DataIndex):
                taken.update(new)
            inner = children(statement)
            if inner:
                pending.append((inner, taken | set(new)))


def _scope(view: View) -> Iterator[Fault]:
    for scope, statement in view.statements:
        used = {name for expr in expressions(statement) for name in expr.variables()}
        allowed = set(scope.variables)
        counters = used & set(COUNTERS)
        if counters:
            yield Fault(
                f"{min(counters)} is used as a variable",
                statement,
                mend="decode it to digits first",
            )
        if isinstance(statement, Decode):
            used |= statement.source.variables() - set(COUNTERS)
        for name in sorted(used - allowed - counters):
            yield Fault(f"{name} is not in scope", statement)


def _decodes(view: View) -> Iterator[Fault]:
    kernel = view.kernel
    counts = {"thread": kernel.threads, "warp": kernel.warps, "lane": kernel.warp_size}
    if all(extent.is_const for extent in kernel.grid):
        counts["block"] = prod(extent.const for extent in kernel.grid)
    for _, statement in view.statements:
        if not isinstance(statement, Decode):
            continue
        extents = [extent for _, extent in statement.digits]
        if not extents:
            yield Fault("no digits", statement)
        if any(extent.is_const and extent.const < 1 for extent in extents):
            yield Fault("a digit of extent 0", statement)
        count = counts.get(show_expr(statement.source))
        box = prod(extent.const for extent in extents if extent.is_const)
        if count is not None and all(e.is_const for e in extents) and box != count:
            found = f"{show_expr(statement.source)} takes {count} values, its digits {box}"
            yield Fault(found, statement)


# ---------------------------------------------------------------- references


def _references(view: View) -> Iterator[Fault]:
    scalars = {scalar.name for scalar in view.kernel.scalars}
    for _, statement in view.statements:
        written = written_fragment(statement)
        refs = [*read_fragments(statement), *([written] if written is not None else [])]
        for ref in refs:
            fragment = view.fragments.get(ref.name)
            yield from _arity(ref, fragment and fragment.shape, "fragment", statement)
        for ref in memory_refs(statement):
            memory = view.memory.get(ref.name)
            shape = memory and memory.shape
            yield from _arity(ref, shape, "tensor or shared buffer", statement)
        if isinstance(statement, AsyncCopy):
            if not isinstance(view.memory.get(statement.dst.name), Shared):
                yield Fault(f"{statement.dst.name} is not a shared buffer", statement)
            if not isinstance(view.memory.get(statement.src.name), Tensor):
                yield Fault(f"{statement.src.name} is not a tensor", statement)
        for value in values_in(statement):
            if isinstance(value, ScalarValue) and value.name not in scalars:
                yield Fault(f"no scalar {value.name} is declared", statement)


def _arity(
    ref: RegRef | MemRef, shape: tuple[object, ...] | None, kind: str, statement: Statement
) -> Iterator[Fault]:
    if shape is None:
        yield Fault(f"no {kind} {ref.name} is declared", statement)
    elif len(shape) != len(ref.index):
        yield Fault(f"{ref.name} has {len(shape)} axes, indexed by {len(ref.index)}", statement)


def _modes(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        match statement:
            case Store(dst=MemRef(name)):
                wrong, what = Mode.IN, "written"
            case Load(src=MemRef(name)) | AsyncCopy(src=MemRef(name)):
                wrong, what = Mode.OUT, "read"
            case _:
                continue
        memory = view.memory[name]
        if isinstance(memory, Tensor) and memory.mode is wrong:
            found = f"{name} is {what}, but declared {wrong.value}"
            yield Fault(found, statement, mend="declare it inout")


def _register_index(view: View) -> Iterator[Fault]:
    for scope, statement in view.statements:
        written = written_fragment(statement)
        for ref in (*read_fragments(statement), *([written] if written is not None else [])):
            names = sorted({name for index in ref.index for name in index.variables()})
            for name in names:
                origin = scope.variables[name].origin
                if origin is not Origin.UNROLLED:
                    found = f"{ref.name} is indexed by {name}, a {origin.value}"
                    yield Fault(found, statement, mend=f"unroll {name}")


def _register_bounds(view: View) -> Iterator[Fault]:
    for scope, statement in view.statements:
        written = written_fragment(statement)
        for ref in (*read_fragments(statement), *([written] if written is not None else [])):
            fragment = view.fragments[ref.name]
            last = len(ref.index) - 1
            for axis, (index, extent) in enumerate(zip(ref.index, fragment.shape, strict=True)):
                found = interval(index, scope.ranges)
                vector = _run(view, statement, ref) if axis == last else 1
                if not found.within(0, extent - vector):
                    high = "?" if found.high is None else found.high + vector - 1
                    text = f"axis {axis} of {ref.name} is indexed {found.low}..{high}"
                    yield Fault(text, statement, expected=f"0..{extent - 1}")


def _run(view: View, statement: Statement, ref: RegRef) -> int:
    """How many registers along the last axis the statement takes from `ref` on."""
    match statement:
        case Load():
            return statement.width if ref is statement.dst else 1
        case Store() | RemoteStore() | Deposit() | Collect():
            return statement.width
        case Mma() | WarpgroupMma():
            atom = view.target.atom(statement.atom)
            if atom is None:  # the rule on atoms reports it
                return 1
            layouts = ((statement.d, atom.d), (statement.a, atom.a), (statement.b, atom.b))
            return next(
                layout.count(Place.REGISTER) for operand, layout in layouts if operand is ref
            )
        case _:
            return 1


# ---------------------------------------------------------------- convergence


def _convergence(view: View) -> Iterator[Fault]:
    for scope, statement in view.statements:
        match statement:
            case Loop():
                if scope.level(iter((statement.extent,))) > Level.BLOCK:
                    yield Fault("the extent differs between threads of a block", statement)
            case When():
                exprs = (e for v in values_in(statement) for e in value_expressions(v))
                if scope.level(exprs) > Level.BLOCK:
                    yield Fault("the condition differs between threads of a block", statement)
            case Barrier():
                if scope.divergence > Level.BLOCK:
                    yield Fault(
                        "a barrier under a guard that not every thread of the block passes",
                        statement,
                        mend="move the barrier out of the guard",
                    )
            case _ if is_warpgroup_wide(statement):
                if scope.divergence > Level.WARPGROUP:
                    found = "a warpgroup's operation under a guard that not all its warps pass"
                    yield Fault(found, statement, mend="guard with a digit of whole warpgroups")
            case InitPhases() | ClusterArrive() | ClusterWait():
                if scope.divergence > Level.BLOCK:
                    found = "what the whole block does, under a guard that not every thread passes"
                    yield Fault(found, statement, mend="move it out of the guard")
            case _:
                if is_warp_wide(statement) and scope.divergence > Level.WARP:
                    found = "a warp-wide operation under a guard that not every lane passes"
                    yield Fault(found, statement, mend="guard what it computes from, or its use")


def _unrolled(view: View) -> Iterator[Fault]:
    for _, statement in view.statements:
        if isinstance(statement, Loop) and statement.unroll and not statement.extent.is_const:
            yield Fault(f"the extent is {show_expr(statement.extent)}", statement)


def _power_of_two(number: int) -> bool:
    return number >= 1 and number & (number - 1) == 0


STRUCTURE: tuple[Rule, ...] = (
    Rule("names", "every declared name is spelled well and declared once", _names),
    Rule("shapes", "declared shapes, strides and alignments are possible", _shapes),
    Rule("sizes", "grid, contracts, shapes and strides depend on symbols alone", _sizes),
    Rule("target", "the kernel's target and warp size are those it is compiled for", _target),
    Rule("threads", "a block has as many threads as the target allows", _threads),
    Rule("shared-memory", "shared buffers are aligned, apart, and fit the target", _shared_memory),
    Rule("swizzle", "a swizzle permutes its buffer", _swizzles),
    Rule("binding", "a variable is bound once on a path, digits have positive extents", _binding),
    Rule("scope", "every variable is in scope; counters occur as sources of decodes", _scope),
    Rule("decode", "the digits of a counter take exactly its values", _decodes),
    Rule("references", "references name what is declared, with an index per axis", _references),
    Rule("modes", "an in tensor is not written, an out tensor not read", _modes),
    Rule(
        "register-index", "registers are indexed by unrolled digits and constants", _register_index
    ),
    Rule("register-bounds", "register indices stay within their fragment", _register_bounds),
    Rule("unroll", "an unrolled loop has a constant extent", _unrolled),
    Rule("convergence", "threads that must act together reach a statement together", _convergence),
)
