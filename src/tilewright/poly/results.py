"""Obligations and how they end: Proved, Refuted, Assumed or Unknown. The words never blur."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.base.spans import Span
from tilewright.poly.expr import Guard


@dataclass(frozen=True, slots=True)
class Witness:
    """One concrete case that shows a fault.

    `element` holds tensor coordinates (empty where the fault is not about an element),
    `symbols` the sizes at which it happens, `instances` the digits of each statement instance.
    """

    element: tuple[int, ...] = ()
    symbols: tuple[tuple[str, int], ...] = ()
    instances: tuple[tuple[tuple[str, int], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Proved:
    """It holds for all sizes that the stated facts admit. `note` says what, for readers."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Refuted:
    """It does not hold. `message` says how, `notes` give the witness in words."""

    message: str
    witness: Witness = Witness()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assumed:
    """It holds under a contract. `check` is the contract as a guard, where it can be one."""

    contract: str
    check: Guard = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """It could not be decided."""

    reason: str


Result = Proved | Refuted | Assumed | Unknown


class Kind(Enum):
    """What an obligation is about."""

    COVERAGE = "coverage"
    BOUNDS = "bounds"
    ALIGNMENT = "alignment"
    REDUCTION = "reduction"
    UNWRITTEN = "unwritten read"
    RACE = "race"
    BARRIER = "barrier"
    PHASE = "phase"
    RELEASE = "release"
    PROXY = "proxy"
    FLIGHT = "registers in flight"
    DRAIN = "drain"
    DEADLOCK = "deadlock"
    INDEX_WIDTH = "index width"
    DECODE = "decode"
    ELEMENT = "element"


@dataclass(frozen=True, slots=True)
class Obligation:
    """One thing that a kernel has to satisfy, and how it ended.

    `subject` names the tensor, buffer, fragment or counter; `statement` says where in the
    kernel, for readers.
    """

    kind: Kind
    subject: str
    result: Result
    span: Span | None = None
    statement: str = ""
