"""Errors that a user can cause: a typed class, a code, the source line with a caret, and a mend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.base.spans import Span


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding, ready to print.

    `message` says what is wrong, `expected` what would be right, `mend` how to get there.
    `notes` carries further lines, for example a witness element or the places that disagree.
    """

    code: str
    message: str
    span: Span | None = None
    expected: str = ""
    mend: str = ""
    notes: tuple[str, ...] = ()


def render(diagnostic: Diagnostic) -> str:
    """Format a diagnostic with the user's line and a caret under the blamed columns."""
    lines = [f"error[{diagnostic.code}]: {diagnostic.message}"]
    span = diagnostic.span
    if span is not None:
        number = str(span.line)
        pad = " " * len(number)
        lines.append(f"{pad}--> {span.file}:{span.line}:{span.column + 1}")
        source = span.source()
        if source:
            width = max(1, min(span.end, len(source)) - span.column)
            # Tabs stay tabs, so that the caret stands right at any tab width.
            indent = "".join("\t" if c == "\t" else " " for c in source[: span.column])
            lines.append(f"{pad} |")
            lines.append(f"{number} | {source}")
            lines.append(f"{pad} | {indent}{'^' * width}")
    if diagnostic.expected:
        lines.append(f"  expected: {diagnostic.expected}")
    lines.extend(f"  note: {note}" for note in diagnostic.notes)
    if diagnostic.mend:
        lines.append(f"  mend: {diagnostic.mend}")
    return "\n".join(lines)


class TilewrightError(Exception):
    """The base of every error that a user can cause. `code` is stable and documented."""

    code: ClassVar[str] = "TW000"

    def __init__(
        self,
        message: str,
        *,
        span: Span | None = None,
        expected: str = "",
        mend: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        self.diagnostic = Diagnostic(self.code, message, span, expected, mend, notes)
        super().__init__(render(self.diagnostic))

    def at(self, span: Span | None) -> TilewrightError:
        """The same error, blaming `span` where it blames no line that can be shown."""
        found = self.diagnostic
        shown = found.span is not None and found.span.source()
        return _rebuild(type(self), found if shown else replace(found, span=span))

    def noted(self, note: str) -> TilewrightError:
        """The same error with one more note."""
        return _rebuild(type(self), replace(self.diagnostic, notes=(*self.diagnostic.notes, note)))

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is pickled by its arguments: those would be the rendered text alone.
        return _rebuild, (type(self), self.diagnostic)


def _rebuild(kind: type[TilewrightError], diagnostic: Diagnostic) -> TilewrightError:
    return kind(
        diagnostic.message,
        span=diagnostic.span,
        expected=diagnostic.expected,
        mend=diagnostic.mend,
        notes=diagnostic.notes,
    )


class UndefinedSymbolError(TilewrightError):
    """A symbol that nothing binds, where a number is needed."""

    code = "TW101"


class ShapeError(TilewrightError):
    """Axes or extents that do not fit, while tracing or at a call."""

    code = "TW102"


class DTypeError(TilewrightError):
    """An element type that does not fit, while tracing or at a call."""

    code = "TW103"


class ConstraintError(TilewrightError):
    """Constraints that contradict each other or the program."""

    code = "TW104"


class TraceError(TilewrightError):
    """A program that cannot be traced to a tile graph."""

    code = "TW105"


class AtomError(TilewrightError):
    """An instruction that the target lacks, or that does not divide the tile."""

    code = "TW201"


class ResourceError(TilewrightError):
    """More shared memory, registers or threads than the target has."""

    code = "TW202"


class UnsupportedError(TilewrightError):
    """A construct that is well formed but that this version cannot compile."""

    code = "TW203"


class CoverageError(TilewrightError):
    """Elements of an output that are never written, or written more than once."""

    code = "TW301"


class BoundsError(TilewrightError):
    """An access outside its tensor."""

    code = "TW302"


class ReductionError(TilewrightError):
    """Terms of a reduction that are missing or counted more than once."""

    code = "TW303"


class UnwrittenReadError(TilewrightError):
    """A read of memory that nothing has written."""

    code = "TW304"


class RaceError(TilewrightError):
    """Two threads that access one element with no order between them, one of them writing.

    One of the two may be the copy engine or the matrix unit; then registers can be the element.
    """

    code = "TW305"


class BarrierError(TilewrightError):
    """A barrier that not every thread reaches, a phase that ends too early, or never."""

    code = "TW306"


class IndexWidthError(TilewrightError):
    """An index that can pass the width of the machine integer that holds it."""

    code = "TW307"


class ElementError(TilewrightError):
    """A register that holds another element than the one it is used as."""

    code = "TW308"


class LegalityError(TilewrightError):
    """Kernel IR that breaks a rule of the IR. It names the statement and the rule."""

    code = "TW401"


class KernelTextError(TilewrightError):
    """Text that is not kernel IR, or not a tile graph. It names the line, the column and what was
    expected there."""

    code = "TW402"


class CallError(TilewrightError):
    """Arguments of a call that do not fit the kernel (count, device, rank, strides)."""

    code = "TW501"


class ToolchainError(TilewrightError):
    """A compiler or driver that is missing or that failed."""

    code = "TW502"


class TuningError(TilewrightError):
    """Configs of which none compiles, or none computes what the program means."""

    code = "TW503"


class AccuracyError(TilewrightError):
    """A config whose result is not that of the reference, or that leaves elements unwritten."""

    code = "TW504"
