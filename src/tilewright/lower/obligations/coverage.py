"""Every element of an output is written exactly once; of an in-out tensor at most once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.kernel.ops import Mode
from tilewright.lower.obligations.accesses import Access, shape_of
from tilewright.lower.obligations.scope import Program
from tilewright.poly.prove import Kind, Obligation, Refuted, prove_at_most_once, prove_exactly_once


def coverage(program: Program, found: Sequence[Access]) -> Iterator[Obligation]:
    """One obligation for each output tensor, over all its stores together."""
    for tensor in program.kernel.tensors:
        if tensor.mode is Mode.IN:
            continue
        writes = [a for a in found if a.writes and a.ref.name == tensor.name]
        pieces = [a.piece(program) for a in writes]
        span = next((a.span for a in writes if a.span), tensor.span)
        shape = shape_of(tensor)
        if tensor.mode is Mode.OUT:
            result = prove_exactly_once(program.world, pieces, shape, tensor.name)
        else:
            result = prove_at_most_once(program.world, pieces, tensor.name)
        if isinstance(result, Refuted) and not pieces:
            result = Refuted(f"{tensor.name} is never written", result.witness, result.notes)
        statement = ", ".join(a.label for a in writes) or "no store"
        yield Obligation(Kind.COVERAGE, tensor.name, result, span, statement)
