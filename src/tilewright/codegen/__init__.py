"""Back ends that print: a target names the printer that serves it."""

from __future__ import annotations

from typing import Protocol

from tilewright.base.diagnostics import UnsupportedError
from tilewright.codegen.cuda import print_cuda
from tilewright.codegen.hip import print_hip
from tilewright.kernel.ops import Kernel
from tilewright.target.model import Target


class Printer(Protocol):
    """Prints a kernel; with `room`, one whose launch is for so many problems."""

    def __call__(self, kernel: Kernel, target: Target, room: int = 0) -> str: ...


PRINTERS: dict[str, Printer] = {"cuda": print_cuda, "hip": print_hip}


def emit(kernel: Kernel, target: Target, room: int = 0) -> str:
    """The source text of `kernel` for `target`, by the printer that the target names.

    With `room`, its launches are for lists of up to so many problems (see `kernel.problems`).
    UnsupportedError where the target's printer is unknown, or lacks something that the kernel
    uses; AtomError where the target lacks an instruction.
    """
    printer = PRINTERS.get(target.printer)
    if printer is None:
        raise UnsupportedError(
            f"no back end prints {target.printer!r}, which {target.name} asks for",
            expected=f"one of {', '.join(PRINTERS)}",
        )
    return printer(kernel, target, room)


__all__ = ["PRINTERS", "emit", "print_cuda", "print_hip"]
