"""Whether what the lowered program stores is made of what the tile program asks for.

The other obligations read the kernel alone: an operation that a statement leaves out for some
elements, or that no statement does, they may not miss. Here each stored element has to depend on
the tensors that the program computes it from, on the terms of each axis that it sums, and on as
many elementwise operations of each kind. That these come in the right order, with the right
elements, is for the other obligations to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.spans import Span
from tilewright.graph import ops
from tilewright.graph.ops import Graph, Op
from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import Kernel, Mma, Reduce, walk
from tilewright.lower.obligations.contributions import (
    Contribution,
    Contributions,
    Stored,
    contributions,
)
from tilewright.lower.obligations.data import data_indices
from tilewright.poly.results import Kind, Obligation, Proved, Refuted, Witness
from tilewright.target.model import Target

_MOST_TURNS = 3
_ORDER = ("terms", "tensor", "op")  # in which what is missing is looked for
_COMBINED = {"add": "sum", "mul": "product", "max": "maximum", "min": "minimum"}


def made(graph: Graph, kernel: Kernel, target: Target) -> Iterator[Obligation]:
    """One obligation for all sums of the program, and one for each tensor that it writes."""
    yield from _sums(graph, kernel)
    asked = _asked(graph, by_data=bool(data_indices(kernel)))
    judged = _judged(kernel, target, asked)
    for tensor in asked:
        own = [(one, lack) for one, lack in judged if one.tensor == tensor]
        lack = next((lack for _, lack in own if lack is not None), None)
        if lack is not None:
            span = lack.asked or lack.stored.source.span
            yield Obligation(lack.kind, tensor, lack.refuted(), span, "what is stored")
        elif own:
            sums = any(what[0] == "terms" for write in asked[tensor] for what in write)
            kind = Kind.REDUCTION if sums else Kind.ELEMENT
            yield Obligation(kind, tensor, Proved(), own[0][0].source.span, "what is stored")


def _judged(
    kernel: Kernel, target: Target, asked: Mapping[str, Sequence[Asked]]
) -> list[tuple[Stored, _Lack | None]]:
    """What is stored and what each lacks, after as many turns as it takes for none to lack any."""
    judged: list[tuple[Stored, _Lack | None]] = []
    for turns in range(1, _MOST_TURNS + 1):
        found = contributions(kernel, target, turns)
        judged = [(one, _lack(found, one, asked)) for one in found.stored]
        if all(lack is None for _, lack in judged):
            break
    return judged


def _sums(graph: Graph, kernel: Kernel) -> Iterator[Obligation]:
    """One obligation, where what is written needs sums or products of terms."""
    writes = [o.id for o in ops.walk(graph.body) if isinstance(o, ops.WriteOp | ops.Conditional)]
    needed = _needed(graph, writes, ops.operands)
    asked = next((op for op in needed if isinstance(op, ops.Contract | ops.ReduceOp)), None)
    if asked is None:
        return
    counted = any(isinstance(s, Mma | WarpgroupMma | Reduce) for s in walk(kernel.body))
    axis = asked.axis if isinstance(asked, ops.ReduceOp) else asked.contracted[-1]
    result = Proved() if counted else Refuted(f"no term of {axis} is ever counted")
    yield Obligation(Kind.REDUCTION, axis, result, asked.span, "sums of the program")


# ---------------------------------------------------------------- what is asked for

Asked = Mapping[Contribution, tuple[int, Span | None]]  # how often at least, and by which line


def _asked(graph: Graph, *, by_data: bool) -> dict[str, list[Asked]]:
    """For each tensor, what each write of it is made of."""
    writes = [op for op in ops.walk(graph.body) if isinstance(op, ops.WriteOp)]
    written = {op.memory for op in writes}
    found: dict[str, list[Asked]] = {}
    for op in writes:
        if not graph.memory(op.memory).allocated:
            found.setdefault(op.memory, []).append(_of_write(graph, op, written, by_data=by_data))
    return found


def _of_write(graph: Graph, write: ops.WriteOp, written: set[str], *, by_data: bool) -> Asked:
    counts: Counter[Contribution] = Counter()
    spans: dict[Contribution, Span | None] = {}
    for op in _needed(graph, [write.value], _certain_by_data if by_data else _certain):
        if isinstance(op, ops.Elementwise) and _begins_sum(graph, op):
            continue
        for what in _contributions(op, written, by_data=by_data):
            if what[0] != "tensor" or not counts[what]:
                counts[what] += 1
            spans[what] = op.span
    first = sorted(counts, key=lambda what: _ORDER.index(what[0]))
    return {what: (counts[what], spans[what]) for what in first}


def _begins_sum(graph: Graph, op: ops.Elementwise) -> bool:
    """Whether a reduction by the same operation may begin with what it is combined with:
    ``x + sum(y)`` is then no addition of its own."""
    for number in op.args:
        part = graph.by_id[number]
        while isinstance(part, ops.View | ops.CastOp):
            part = graph.by_id[part.value]
        match part:
            case ops.ReduceOp(name=name) if name == op.name:
                return True
            case ops.Contract() if op.name == "add":
                return True
            case _:
                pass
    return False


def _contributions(op: Op, written: set[str], *, by_data: bool) -> Iterator[Contribution]:
    match op:
        case ops.ReadOp(memory=memory) if memory not in written:
            yield "tensor", memory
        case ops.Elementwise(name="select") if by_data:
            pass
        case ops.Elementwise(name=name):
            yield "op", name
        case ops.Contract(contracted=axes):
            yield "terms", "add", *axes, *_joined(axes)
        case ops.ReduceOp(name=name, axis=axis):
            yield "terms", name, axis
        case _:
            pass


def _joined(axes: Sequence[str]) -> list[str]:
    """Names of two axes as one. An instruction that sums over several axes names the innermost
    one alone, or that one and the loop's as one axis."""
    return [f"{one}_{two}" for one in axes for two in axes if one != two]


def _needed(
    graph: Graph, values: Sequence[int], follow: Callable[[Op], Sequence[int]]
) -> Iterator[Op]:
    """The operations that these values depend on, by way of the operands to `follow`."""
    carried = {
        number: (one.inits[i], one.results[i])
        for one in ops.walk(graph.body)
        if isinstance(one, ops.Iterate)
        for i, number in enumerate(one.params)
    }
    pending, seen = list(values), set[int]()
    while pending:
        number = pending.pop()
        if number in seen:
            continue
        seen.add(number)
        op = graph.by_id[number]
        yield op
        match op:
            case ops.Param():
                pending += carried[number]
            case ops.Result(iterate=iterate, position=position):
                loop = graph.by_id[iterate]
                if isinstance(loop, ops.Iterate):
                    pending += (loop.inits[position], loop.results[position])
            case _:
                pending += follow(op)


def _certain(op: Op) -> Sequence[int]:
    """The operands on which each element depends in the kernel too: no index of a gather; none
    where all that a statement makes may be an identity or a fill."""
    match op:
        case ops.Gather(value=value):
            return (value,)
        case ops.Scan(exclusive=True) | ops.Remap(fill=int() | float()):
            return ()
        case _:
            return ops.operands(op)


def _certain_by_data(op: Op) -> Sequence[int]:
    """The same where data says where tiles begin: which elements a tile has may be the choice."""
    match op:
        case ops.Elementwise(name="select", args=(_, *chosen)):
            return chosen
        case _:
            return _certain(op)


# ---------------------------------------------------------------- what is there


@dataclass(frozen=True, slots=True)
class _Lack:
    """An element that is stored without one of the contributions asked for."""

    stored: Stored
    what: Contribution
    times: int
    of: int
    asked: Span | None

    @property
    def kind(self) -> Kind:
        return Kind.REDUCTION if self.what[0] == "terms" else Kind.ELEMENT

    def refuted(self) -> Refuted:
        one, source = self.stored, self.stored.source
        match self.what:
            case ("terms", op, *axes):
                plain = [axis for axis in axes if axis not in _joined(axes)]
                part = f"{_COMBINED.get(op, op)} over {', '.join(plain)}"
            case ("op", name):
                part = f"operation {name}"
            case _:
                part = " ".join(self.what)
        missing = f"the {part}" if self.of == 1 else f"{part}, {self.of - self.times} of {self.of}"
        at = ", ".join(f"{n} = {v}" for n, v in source.at)
        return Refuted(
            f"{one.tensor} is stored from {one.register}, which lacks {missing}",
            Witness(source.element, (), (source.at,)),
            (f"at {at}",) if at else (),
        )


def _lack(found: Contributions, one: Stored, asked: Mapping[str, Sequence[Asked]]) -> _Lack | None:
    """What an element lacks of each of the writes that may be meant, of the first one."""
    lacks: list[_Lack] = []
    for write in asked.get(one.tensor, ()):
        lack = _first(found, one, write)
        if lack is None:
            return None
        lacks.append(lack)
    return lacks[0] if lacks else None


def _first(found: Contributions, one: Stored, write: Asked) -> _Lack | None:
    for what, (of, span) in write.items():
        times = found.count(one, what)
        if times < of:
            return _Lack(one, what, times, of, span)
    return None
