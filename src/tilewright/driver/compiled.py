"""A compiled kernel: its intermediates, its proofs, and the way to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tilewright.driver.compile import Compilation
from tilewright.lang.program import Program
from tilewright.target.model import Target

if TYPE_CHECKING:
    from tilewright.driver.call import Call
    from tilewright.driver.launch import KnownCalls, Launcher, SimulationResult
    from tilewright.poly.results import Obligation


class CompiledKernel:
    """A kernel for one specialisation. Call it with the program's arguments, in order."""

    def __init__(self, source: Program, compilation: Compilation) -> None:
        self.program = source
        self.compilation = compilation

    @property
    def target(self) -> Target:
        return self.compilation.specialisation.target

    @property
    def source(self) -> str:
        """The generated source: CUDA C++ or HIP."""
        return self.compilation.source

    @property
    def ir(self) -> str:
        """The kernel IR as text."""
        return self.compilation.ir

    @property
    def graph(self) -> str:
        """The tile graph as text: what the program says, before any schedule."""
        from tilewright.graph.text import print_graph

        return print_graph(self.compilation.graph)

    @property
    def proofs(self) -> tuple[Obligation, ...]:
        """Every obligation with its result."""
        return self.compilation.obligations

    def proof_report(self) -> str:
        """The obligations in words, with a count of each kind of result."""
        from tilewright.lower.obligations import report

        return report(self.proofs)

    def explain(self) -> str:
        """Digits, places, layouts, inserted moves and barriers with reasons, and the proofs."""
        from tilewright.driver.explain import explain

        return explain(self.compilation)

    @cached_property
    def launcher(self) -> Launcher:
        from tilewright.driver.launch import Launcher  # compiling alone needs no more

        return Launcher(self.compilation)

    @cached_property
    def _known(self) -> KnownCalls:
        from tilewright.driver.launch import KnownCalls

        return KnownCalls(self.launcher.grain)

    def __call__(self, *arguments: Any, **named: Any) -> SimulationResult | None:
        """Run on the tensors' device; NumPy arrays run on the target's simulator.

        Outputs are written in place. A simulated run returns its report.
        """
        if not named and self._known.start(arguments):
            return None
        call = self._read(arguments, named)
        result = self.launcher.run(call)
        if not named:
            self._known.add(arguments, self.launcher.started(call))
        return result

    def bind(self, *arguments: Any, **named: Any) -> Callable[[], SimulationResult | None]:
        """The call with these arguments fixed: ``launch = kernel.bind(a, b, c); launch()``.

        Tensors are checked once, here, and kept alive. A launch then costs about a microsecond
        of Python; it takes the address of a CUDA stream, by default the current one.
        """
        return self.launcher.bind(self._read(arguments, named))

    def _read(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Call:
        from tilewright.driver.call import read_call

        return read_call(self.program, arguments, named)
