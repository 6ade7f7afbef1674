"""Kernels with roles, bulk copies and warpgroup instructions, shared with the simulator's tests."""

from __future__ import annotations

import sys
from pathlib import Path

from tilewright.kernel.ops import Kernel
from tilewright.lower.obligations.async_proof import KINDS, synchronisation
from tilewright.poly.results import Kind, Obligation, Refuted
from tilewright.target.nvidia import SM_90A

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "sim"), str(ROOT / "tests" / "kernel")]


def prove(kernel: Kernel) -> tuple[Obligation, ...]:
    return synchronisation(kernel, SM_90A)


def ends(obligations: tuple[Obligation, ...]) -> dict[str, set[str]]:
    """The kinds that end in each way."""
    found: dict[str, set[str]] = {}
    for o in obligations:
        found.setdefault(type(o.result).__name__, set()).add(o.kind.value)
    return found


def is_proved(kernel: Kernel) -> bool:
    """Whether every kind is proved, none left out."""
    found = ends(prove(kernel))
    return found == {"Proved": {k.value for k in KINDS}}


def fault(kernel: Kernel) -> tuple[Kind, str, str]:
    """The one refuted obligation: its kind, its message, and its notes."""
    refuted = [o for o in prove(kernel) if isinstance(o.result, Refuted)]
    assert len(refuted) == 1, ends(prove(kernel))
    result = refuted[0].result
    assert isinstance(result, Refuted)
    return refuted[0].kind, result.message, "\n".join(result.notes)
