"""Loops that the author wrote, their pipelines, and effects in program order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tilewright.graph import ops
from tilewright.graph.ops import Op
from tilewright.kernel.ops import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    If,
    MemRef,
    Shared,
    Swizzle,
)  # fmt: skip
from tilewright.lower.access import (
    contiguous,
    global_access,
    load_global,
    store_global,
    store_shared,
    vectorise,
    widest,
)  # fmt: skip
from tilewright.lower.builder import Builder
from tilewright.lower.bulk import store_bulk
from tilewright.lower.carried import advance, carry, remember_params
from tilewright.lower.dependencies import (
    default_layout,
    natural_layout,
    runs_backwards,
    scan_directions,
    scope_depth,
)  # fmt: skip
from tilewright.lower.panel_reads import bring_for
from tilewright.lower.parts import emit_in_parts
from tilewright.lower.role_loops import emit_pipeline
from tilewright.lower.stream import emit_streamed
from tilewright.lower.values import (
    allocated,
    block_start,
    buffer_order,
    demand,
    expression,
    remembered,
)  # fmt: skip
from tilewright.mapping.layouts import Tiled, blocked
from tilewright.poly.expr import Expr, less
from tilewright.schedule.plan import Staging


def emit_effects(b: Builder, body: Sequence[Op]) -> None:
    """Emit the writes of a body, in order, with whatever they need."""
    position = 0
    while position < len(body):
        op = body[position]
        position += 1
        match op:
            case ops.WriteOp():
                group = [op]
                while position < len(body) and _joins(b, group, body[position]):
                    group.append(body[position])  # type: ignore[arg-type]
                    position += 1
                _emit_writes(b, group)
            case ops.ReadOp() if op.memory in b.written and b.graph.uses.get(op.id):
                _settle(b, op)
            case ops.Iterate() if _has_effects(op.body):
                emit_iterate(b, op)
            case ops.Conditional():
                condition = expression(b, op.condition, b.place(_scalar(b).layout), _scalar(b))
                with b.guarded((), condition, op.span):
                    emit_effects(b, op.body)
            case _:
                pass


def _scalar(b: Builder) -> Tiled:
    return default_layout(b, ())


def _has_effects(body: Sequence[Op]) -> bool:
    return any(isinstance(op, ops.WriteOp) for op in ops.walk(tuple(body)))


def _settle(b: Builder, op: ops.ReadOp) -> None:
    """Read a memory that the kernel also writes now, where the program reads it."""
    if all(not b.is_serial(a) or a in b.enclosing[op.id] for a in op.type.axes):
        demand(b, op.id, default_layout(b, op.type.axes))


def _joins(b: Builder, group: list[ops.WriteOp], op: Op) -> bool:
    """Whether a write shares the loops of the writes before it."""
    if not isinstance(op, ops.WriteOp) or op.memory in {g.memory for g in group}:
        return False
    return _write_loops(b, op) == _write_loops(b, group[0])


def _write_loops(b: Builder, op: ops.WriteOp) -> list[tuple[str, bool]]:
    """The loops that a write needs and whether they run backwards; along a scan the innermost."""
    axes = [a for a in op.type.axes if b.is_serial(a) and a not in b.enclosing[op.id]]
    axes.sort(key=lambda a: bool(scan_directions(b, a, (op.value,))))
    return [(a, runs_backwards(b, a, (op.value,))) for a in axes]


def _emit_writes(b: Builder, group: Sequence[ops.WriteOp]) -> None:
    with ExitStack() as stack:
        for axis, backwards in _write_loops(b, group[0]):
            stack.enter_context(b.loop(axis, group[0].span, backwards=backwards))
        for op in group:
            _emit_write(b, op)


def _emit_write(b: Builder, op: ops.WriteOp) -> None:
    memory = b.graph.memory(op.memory)
    natural = natural_layout(b, op.value)
    value_axes = b.graph.by_id[op.value].type.axes
    staged = b.plan.staging.get(op.id) is Staging.SHARED
    if natural is None or staged or set(value_axes) != set(op.type.axes):
        first = None if memory.allocated else contiguous(b.tensors[op.memory], op.type.axes)
        natural = default_layout(b, op.type.axes, first)
    brought = None
    if not memory.allocated and set(value_axes) == set(op.type.axes):
        brought = bring_for(b, op, natural)
    with b.aside() as making:
        if set(value_axes) == set(op.type.axes):
            value = demand(b, op.value, natural)
        else:
            placed = b.place(natural.layout)
            source = expression(b, op.value, placed, natural)
            value = b.fragment(f"v{op.id}_spread", op.type.dtype, natural, op.span)
            b.emit(Assign(placed.over, value.ref(placed.registers()), source, op.span))
    if memory.allocated:
        for statement in making:
            b.emit(statement)
    else:
        if not store_bulk(b, op, value, making, brought):
            store_global(b, op, value)
        return
    offsets = {a: b.base(a) - block_start(b, a) for a in op.type.axes}
    store_shared(b, allocated(b, memory), op.type.axes, (), value, offsets=offsets, span=op.span)


# ---------------------------------------------------------------- iterate


def emit_iterate(b: Builder, op: ops.Iterate) -> None:
    """The loop, once: carried values in fragments of their own, staged reads in a pipeline."""
    results = [
        r for r in b.graph.by_id.values() if isinstance(r, ops.Result) and r.iterate == op.id
    ]
    if results and remembered(b, results[0].id, None) is not None:
        return
    roles = b.plan.roles
    if roles is not None and roles.loop == op.id:
        if roles.stream is not None:
            made = (emit_streamed(b, op, roles),)
        elif roles.parts > 1:
            made = (emit_in_parts(b, op, roles),)
        else:
            made = emit_pipeline(b, op, roles)
        for result in results:
            b.scopes[-1].memo[result.id, None] = made[result.position]
        return
    with b.at(scope_depth(b, op) if not _has_effects(op.body) else len(b.scopes) - 1):
        carried = [carry(b, op, i) for i in range(len(op.inits))]
        staged = [
            r for r in op.body
            if isinstance(r, ops.ReadOp) and b.plan.staging.get(r.id) is Staging.SHARED
            and op.axis in r.type.axes
            and all(not b.is_serial(a) or b.is_open(a) or a == op.axis for a in r.type.axes)
        ]  # fmt: skip
        stages = b.plan.stages if b.target.async_copy_bytes else 1
        rings = {r.id: _ring(b, r, stages) for r in staged}
        _prologue(b, op, staged, rings, stages)
        with b.loop(op.axis, op.span) as step:
            _refill(b, op, staged, rings, step, stages)
            for r in staged:
                b.rings[r.id] = (rings[r.id], step % stages)
            remember_params(b, op, carried)
            emit_effects(b, op.body)
            advance(b, op, carried)
        for r in staged:
            del b.rings[r.id]
        if staged and stages > 1:
            b.emit(AsyncWait(0))
        for result in results:
            b.scopes[-1].memo[result.id, None] = carried[result.position]


# ---------------------------------------------------------------- staged reads


def _ring(b: Builder, op: ops.ReadOp, stages: int) -> Shared:
    """Shared memory for `stages` tiles of a read, swizzled against bank conflicts."""
    axes = buffer_order(b, op)
    shape = (stages, *(b.plan.axes[a].tile for a in axes))
    swizzle = conflict_free(shape[-1], op.type.dtype.bytes)
    return b.buffer(
        f"{op.memory}_tile", op.type.dtype, shape, swizzle=swizzle, managed=stages > 1,
        span=op.span,
    )  # fmt: skip


def conflict_free(row: int, size: int) -> Swizzle | None:
    """XOR the 16-byte chunk of a row with the row's number, modulo the 128 bytes of all banks."""
    chunk = max(1, 16 // size)
    if row & (row - 1) or row <= chunk:
        return None
    row_bits, base = row.bit_length() - 1, chunk.bit_length() - 1
    bits = min(3, row_bits - base)
    line = (128 // size).bit_length() - 1
    return Swizzle(bits, base, max(row_bits, line) - base)


def _prologue(
    b: Builder, op: ops.Iterate, staged: Sequence[ops.ReadOp], rings: dict[int, Shared], stages: int
) -> None:
    if not staged or stages == 1:
        return
    if b.persistent or any(scope.axis is not None for scope in b.scopes):
        b.emit(Barrier("the previous run of the loop has read its last tiles"))
    for stage in range(stages - 1):
        _copy_step(b, op, staged, rings, Expr.of(stage), stages)


def _refill(
    b: Builder, op: ops.Iterate, staged: Sequence[ops.ReadOp], rings: dict[int, Shared],
    step: Expr, stages: int,
) -> None:  # fmt: skip
    """Wait for this step's tiles, then start copying those of step + stages - 1.

    The slot that is refilled was last read one step ago, and the barrier has passed since.
    """
    if not staged:
        return
    if stages == 1:
        for r in staged:
            _copy_tile(b, op, r, rings[r.id], step, stages)
        return
    b.emit(AsyncWait(stages - 2))
    b.emit(Barrier("this step's tiles have landed; last step's have been read"))
    _copy_step(b, op, staged, rings, step + (stages - 1), stages)


def _copy_step(
    b: Builder, op: ops.Iterate, staged: Sequence[ops.ReadOp], rings: dict[int, Shared],
    step: Expr, stages: int,
) -> None:  # fmt: skip
    """Start the copies of one step, if the loop has such a step, as one group."""
    guard = (less(step, b.plan.axes[op.axis].steps),)
    with b.guarded(guard, None, op.span):
        for r in staged:
            _copy_tile(b, op, r, rings[r.id], step, stages)
    b.emit(AsyncCommit())


def _copy_tile(
    b: Builder, op: ops.Iterate, read: ops.ReadOp, ring: Shared, step: Expr, stages: int
) -> None:
    """Copy one step's tile of a read to its slot, asynchronously where the target can."""
    axes = buffer_order(b, read)
    tensor = b.tensors[read.memory]
    axis = contiguous(tensor, axes)
    elements = b.target.vector_bytes // read.type.dtype.bytes
    tiled = blocked(b.plan, list(reversed(axes)), elements, flat=True)
    shift = {op.axis: (step - b.open_step(op.axis)) * b.plan.axes[op.axis].tile}
    limit = widest(b, tensor, read.type.axes, axis, read.elements_per_thread) if axis else 1
    vector = vectorise(b.place(tiled.layout), tiled.inner, read.type.axes, axis, limit)
    slot = step % stages
    if stages > 1 and vector.width * read.type.dtype.bytes in b.target.async_copy_bytes:
        index = tuple(vector.placed.position(a) for a in axes)
        source, guard = global_access(b, read.type.axes, vector.placed, shift)
        copy = AsyncCopy(
            vector.over, MemRef(ring.name, (slot, *index)), MemRef(read.memory, source),
            vector.width, -1, vector.axis, guard, span=read.span,
        )  # fmt: skip
        replica = vector.placed.first_replica()
        b.emit(If(replica, (copy,)) if replica else copy)
        return
    part = load_global(b, read, tiled, shift=shift)
    store_shared(b, ring, axes, (slot,), part, span=read.span, note="staged")
