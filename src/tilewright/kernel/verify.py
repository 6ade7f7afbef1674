"""The legality table of the kernel IR: what every pass may rely on and must leave so."""

from __future__ import annotations

from tilewright.base.diagnostics import LegalityError
from tilewright.kernel.fault import Fault, Rule, View
from tilewright.kernel.ops import Kernel
from tilewright.kernel.rules_async import ASYNC
from tilewright.kernel.rules_exchange import EXCHANGE
from tilewright.kernel.rules_memory import MEMORY
from tilewright.kernel.rules_structure import STRUCTURE
from tilewright.kernel.rules_values import VALUES
from tilewright.kernel.text import show_statement
from tilewright.target.model import Target

RULES: tuple[Rule, ...] = STRUCTURE + VALUES + MEMORY + ASYNC + EXCHANGE


def check(kernel: Kernel, target: Target) -> None:
    """Raise LegalityError for the first breach of a rule, naming the rule and the statement."""
    view = View(kernel, target)
    for rule in RULES:
        for fault in rule.find(view):
            raise _error(rule, fault, view)


def _error(rule: Rule, fault: Fault, view: View) -> LegalityError:
    statement = fault.statement
    where = "" if statement is None else show_statement(statement, view.types)
    return LegalityError(
        f"{rule.name}: {fault.message}",
        span=fault.span or getattr(statement, "span", None),
        expected=fault.expected or rule.states,
        mend=fault.mend,
        notes=(
            f"in kernel {view.kernel.name}: {where}" if where else f"kernel {view.kernel.name}",
        ),
    )
