"""Turns of two roles: which load of a producer a consumer's read belongs to.

Producer and consumer go through loops of their own. Where these correspond one to one, each with
the same number of turns, the n-th time that one role comes by is the n-th time of the other, and
both are the same turn: the loops' counters are equal, and so are all digits decoded from them.
That the consumer waits for the load of that turn is the business of the proofs of phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.kernel.async_ops import BulkLoad, RemoteStore
from tilewright.kernel.ops import Decode, Kernel, Loop
from tilewright.lower.obligations.scope import BUILTINS, Frame, Program, Site
from tilewright.poly.expr import Expr, Guard, equal
from tilewright.poly.lemmas import radix
from tilewright.poly.sets import Dim

Names = Mapping[str, Expr | int | str]
WRITER = "'"  # of names that are the writing thread's own


@dataclass(frozen=True, slots=True)
class Turns:
    """`names` are loop counters and digits of the writer with the reader's of the same value.

    `peers` are the digits of the writing block's rank in its cluster, where one block of the
    cluster writes for others; `copies` are the guards, one of which the reader's block fulfils.
    A store to another block goes `to` the rank that is the reader's `rank`.
    """

    names: Mapping[str, str]
    peers: tuple[str, ...] = ()
    copies: tuple[Guard, ...] = ((),)
    to: Expr | None = None  # in the writer's names
    rank: Expr | None = None  # in the reader's

    def of_block(self, kernel: Kernel, frame: Frame) -> dict[str, str]:
        """The names that the block alone determines, in any turn."""
        known = {"block", *(s.name for s in kernel.symbols)}
        for _, decode in frame.decodes:
            if decode.source.variables() <= known:
                known |= {n for n, _ in decode.digits}
        return {a: b for a, b in self.names.items() if a in known}


def apart(program: Program, one: Site, two: Site) -> bool:
    """Whether no thread comes to both statements: the guards around them exclude each other."""
    shared = [d for _, d in one.frame.decodes if any(d is e for _, e in two.frame.decodes)]
    dims = {n: Dim(n, e) for d in shared if str(d.source) in BUILTINS for n, e in d.digits}
    dims = {n: d for n, d in dims.items() if d.extent.is_const}
    both = (*one.frame.guard, *two.frame.guard)
    guard = tuple(c for c in both if c.expr.variables() <= dims.keys())
    used = {n for c in guard for n in c.expr.variables()}
    return program.world.is_empty([d for n, d in dims.items() if n in used], guard)


def turns(program: Program, read: Site, write: Site) -> Turns | str:
    """How the writer's turns are the reader's; a reason where they do not correspond."""
    conditions = {id(c) for c in read.frame.conditions}
    if any(id(c) not in conditions for c in write.frame.conditions):
        return "conditions that are data decide whether the load runs"
    mine, theirs = read.frame.loops, write.frame.loops
    while len(mine) > len(theirs) and mine[-1].unroll:  # the parts of one turn
        mine = mine[:-1]
    if len(mine) != len(theirs):
        return f"{_count(mine)} around the read, {_count(theirs)} around the load"
    names: dict[str, str] = {}
    waiting = [d for _, d in write.frame.decodes]
    known = [d for _, d in read.frame.decodes]
    alike = {"block", *(s.name for s in program.kernel.symbols)}
    _pair_decodes(waiting, known, names, alike)
    for ours, other in zip(mine, theirs, strict=True):
        turn, extent = ours.var, ours.extent
        if other.extent.substitute(names) != extent and (shared := _shared_out(read, ours)):
            turn, extent = shared
        if other.extent.substitute(names) != extent:
            return f"the loop over {other.var} has {other.extent} turns, {ours.var} {ours.extent}"
        names[other.var] = turn
        _pair_decodes(waiting, known, names, alike)
    load = write.statement
    if not isinstance(load, BulkLoad) or load.multicast is None:
        return Turns(names)
    return _peers(program.kernel, write.frame, load.multicast, names)


def _shared_out(read: Site, rounds: Loop) -> tuple[str, Expr] | None:
    """The turn of readers that share turns out, each with one in a round: ``turn = round * n + i``.

    Its extent is what a guard around the read leaves of it.
    """
    frame = read.frame
    for _, decode in frame.decodes:
        if len(decode.digits) != 1 or rounds.var not in decode.source.variables():
            continue
        ((turn, extent),) = decode.digits
        others = decode.source.variables() - {rounds.var}
        count = dict(decode.source.terms).get(rounds.var, 0)
        if decode.source != Expr.of(rounds.var) * count + (next(iter(others)) if others else 0):
            continue
        ends = [c.expr + turn + 1 for c in frame.guard if not c.equality]
        whole = [e for e in ends if e.is_const and extent.is_const and e.const <= extent.const]
        return turn, min(whole, key=lambda e: e.const) if whole else extent
    return None


def _count(loops: Sequence[Loop]) -> str:
    return f"{len(loops)} loop{'' if len(loops) == 1 else 's'}"


def _pair_decodes(
    waiting: Sequence[Decode], known: Sequence[Decode], names: dict[str, str], alike: set[str]
) -> None:
    """Add the digits of decodes that write the same number in digits of the same extents.

    Only numbers that the block and its turns determine count: a thread's own differ.
    """
    for decode in waiting:
        if any(n in names for n, _ in decode.digits):
            continue
        if not decode.source.variables() <= alike | names.keys():
            continue
        source = decode.source.substitute(names)
        extents = [e.substitute(names) for _, e in decode.digits]
        same = next(
            (d for d in known if d.source == source and [e for _, e in d.digits] == extents), None
        )
        if same is not None:
            pairs = zip(decode.digits, same.digits, strict=True)
            names.update({a: b for (a, _), (b, _) in pairs})


def sent(program: Program, read: Site, store: Site) -> Turns | str:
    """How what other blocks of the cluster store belongs to a read: all run the same statements,
    each block its stores before its reads."""
    statement = store.statement
    ranks = rank_digits(program.kernel, store.frame)
    rank = None if ranks is None else radix(ranks)
    if ranks is None or rank is None or not isinstance(statement, RemoteStore):
        return "no digits of the block are its rank in the cluster"
    if store.frame.path >= read.frame.path:
        return "the store to another block stands after the read"
    if store.frame.conditions:
        return "conditions that are data decide whether the store runs"
    names = {loop.var: loop.var for loop in store.frame.common_loops(read.frame)}
    alike = {"block", *(s.name for s in program.kernel.symbols)}
    _pair_decodes(
        [d for _, d in store.frame.decodes], [d for _, d in read.frame.decodes], names, alike
    )
    peers = tuple(n for n, _ in ranks)
    kept = {a: b for a, b in names.items() if a not in peers}
    return Turns(kept, peers, to=statement.block, rank=rank)


def rank_digits(kernel: Kernel, frame: Frame) -> tuple[tuple[str, Expr], ...] | None:
    """The block's last digits, that write its rank in its cluster."""
    for decode in (d for _, d in frame.decodes if str(d.source) == "block"):
        for count in range(len(decode.digits) + 1):
            digits = decode.digits[len(decode.digits) - count :]
            sizes = [e.const for _, e in digits if e.is_const]
            if len(sizes) == count and prod(sizes) == kernel.cluster:
                return digits
    return None


def _peers(kernel: Kernel, frame: Frame, mask: Expr, names: dict[str, str]) -> Turns | str:
    """The turns of a load that one block does for all of the cluster that are in the mask."""
    if not mask.is_const:
        return f"the blocks {mask} of the cluster that get the box are not numbers"
    digits = rank_digits(kernel, frame)
    rank = None if digits is None else radix(digits)
    if digits is None or rank is None:
        return "no digits of the block are its rank in the cluster"
    full = mask.const == (1 << kernel.cluster) - 1
    numbers = [b for b in range(kernel.cluster) if mask.const >> b & 1]
    copies = ((),) if full else tuple((equal(rank, b),) for b in numbers)
    peers = tuple(n for n, _ in digits)
    return Turns({a: b for a, b in names.items() if a not in peers}, peers, copies)
