"""Shorthands of the proof tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from proof_kernels import TOY, rewrite

from tilewright.kernel.ops import Kernel, Statement
from tilewright.lower.obligations import verify
from tilewright.poly.prove import Kind, Obligation, Refuted, Result
from tilewright.target.model import Target


def results(
    kernel: Kernel, kind: Kind, subject: str | None = None, target: Target = TOY
) -> list[Result]:
    """How the obligations of a kind (about a subject) ended."""
    found = [o for o in verify(kernel, target) if o.kind is kind]
    return [o.result for o in found if subject is None or o.subject == subject]


def refuted(kernel: Kernel, kind: Kind, target: Target = TOY) -> Refuted:
    """The first refuted obligation of a kind; fails where there is none."""
    found = [r for r in results(kernel, kind, target=target) if isinstance(r, Refuted)]
    assert found, f"no {kind.value} obligation was refuted"
    return found[0]


def others(kernel: Kernel, kind: Kind, target: Target = TOY) -> list[Obligation]:
    """Refuted obligations of the other kinds."""
    found = verify(kernel, target)
    return [o for o in found if o.kind is not kind and isinstance(o.result, Refuted)]


def edit(
    kernel: Kernel, which: type[Statement] | Callable[[Statement], bool], **fields: Any
) -> Kernel:
    """The kernel with fields of the chosen statements replaced."""

    def change(s: Statement) -> Statement:
        chosen = isinstance(s, which) if isinstance(which, type) else which(s)
        return replace(s, **fields) if chosen else s

    return rewrite(kernel, change)


def drop(kernel: Kernel, which: type[Statement] | Callable[[Statement], bool]) -> Kernel:
    """The kernel without the chosen statements."""

    def change(s: Statement) -> Statement | tuple[Statement, ...]:
        chosen = isinstance(s, which) if isinstance(which, type) else which(s)
        return () if chosen else s

    return rewrite(kernel, change)
