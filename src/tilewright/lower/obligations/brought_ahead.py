"""Panels that are brought before their turn: a place in shared memory holds several in one loop.

A load in an unrolled loop that starts the copy of a later turn's panel writes another place than
the one that is read in its turn, and the loop's first turns read what was loaded before it. With
the loop taken apart each place is plain, and so is which load was the last one there.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernel.async_ops import BulkLoad
from tilewright.kernel.ops import DataIndex, Decode, Load
from tilewright.kernel.passes import simplify
from tilewright.kernel.rewrite import unrolled
from tilewright.lower.obligations.scope import Program, Site


def taken_apart(program: Program) -> Program:
    """The program without the unrolled loops in which panels are brought for later turns.

    Loops that decode digits stay: their copies would give them the same names.
    """
    counters: set[str] = set()
    for name in {b.name for b in program.kernel.shared}:
        loads = [
            _unrolled(site) for site in program.sites
            if isinstance(site.statement, BulkLoad) and site.statement.dst.name == name
        ]  # fmt: skip
        readers = [
            _unrolled(site) for site in program.sites
            if isinstance(site.statement, Load) and site.statement.src.name == name
        ]  # fmt: skip
        if len(loads) > 1:
            counters |= set[str]().union(*loads) & set[str]().union(*readers)
    counters -= {
        x.var for site in program.sites if isinstance(site.statement, Decode | DataIndex)
        for x in site.frame.loops
    }  # fmt: skip
    if not counters:
        return program
    body = unrolled(program.kernel.body, counters)
    return Program.of(simplify(replace(program.kernel, body=body)), program.target)


def _unrolled(site: Site) -> set[str]:
    """The counters of the unrolled loops around it."""
    return {loop.var for loop in site.frame.loops if loop.unroll}
