"""`@tw.kernel`: a tile program that compiles itself to its arguments and runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from math import gcd
from typing import TYPE_CHECKING, Any, cast

from tilewright.base.diagnostics import CallError
from tilewright.base.spaces import Space
from tilewright.base.spans import here
from tilewright.driver.assumptions import axis_symbols, bound_values
from tilewright.lang.constraints import Constraint, HardwareConstraint, MMAType
from tilewright.lang.program import Program, caller_scope, program
from tilewright.lang.symbols import Size
from tilewright.schedule.schedule import Schedule
from tilewright.target import ALL_TARGETS, target_named
from tilewright.target.model import Target

if TYPE_CHECKING:
    # A program that is only defined needs no compiler: that keeps `import tilewright` quick.
    from tilewright.driver.call import Call
    from tilewright.driver.compile import Rewrites
    from tilewright.driver.compiled import CompiledKernel
    from tilewright.driver.launch import SimulationResult

Bindings = Mapping[Size, int | Space] | Mapping[str, int | Space]
SPECIALISED_DIVISOR = 16  # dynamic sizes are specialised on their common divisor with this


class TileKernel:
    """A tile program. Calling it compiles once per specialisation and runs."""

    def __init__(
        self, source: Program, bindings: Mapping[str, int | Space], dynamic: frozenset[str]
    ) -> None:
        self.program = source
        self.bindings = bindings
        self.dynamic = dynamic
        self._compiled: dict[object, CompiledKernel] = {}
        update_wrapper(self, source.function)

    def compile(
        self,
        target: str | None = None,
        bindings: Bindings | None = None,
        *,
        strides: Mapping[str, tuple[int, ...]] | None = None,
        alignments: Mapping[str, int] | None = None,
        multiples: Mapping[str, int] | None = None,
        schedule: Callable[[Schedule], Schedule] | None = None,
        rewrites: Rewrites | None = None,
    ) -> CompiledKernel:
        """Compile for a target (`sm_90a`, `gfx942`). Sizes that nothing binds stay dynamic.

        `strides` are in elements, `alignments` in bytes, both by argument name; `multiples`
        states what dynamic sizes are multiples of. They are checked at every call. `schedule`
        takes a `Schedule` and returns it transformed: splits, merges, places.
        """
        from tilewright.driver.compile import Specialisation, compile_program
        from tilewright.driver.compiled import CompiledKernel

        values = {**self.bindings, **bound_values(bindings or {})}
        specialisation = Specialisation(
            target=target_named(target) if target else self.default_target(),
            sizes={n: v for n, v in values.items() if isinstance(v, int)},
            spaces={n: v for n, v in values.items() if isinstance(v, Space)},
            strides=strides or {},
            alignments=alignments or {},
            multiples=multiples or {},
            schedule=schedule,
        )
        return CompiledKernel(self.program, compile_program(self.program, specialisation, rewrites))

    def __call__(self, *arguments: Any, **named: Any) -> SimulationResult | None:
        """Bind sizes and strides from the arguments, compile if new, and run in place."""
        from tilewright.driver.call import read_call

        call = read_call(self.program, arguments, named)
        key = (call.device, call.key)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._specialise(call)
            self._compiled[key] = compiled
        return compiled.launcher.run(call)

    def _specialise(self, call: Call) -> CompiledKernel:
        from tilewright.driver.launch import device_target

        sizes = call.axis_sizes(self.bindings)
        fixed = {a: n for a, n in sizes.items() if a not in self.dynamic}
        open_sizes = {a: gcd(n, SPECIALISED_DIVISOR) for a, n in sizes.items() if a in self.dynamic}
        alignments = {n: min(16, v.alignment) for n, v in call.tensors.items()}
        target = device_target(call.device) or self.default_target().name
        if not open_sizes:
            strides = {n: v.strides for n, v in call.tensors.items()}
            return self.compile(target, fixed, strides=strides, alignments=alignments)
        # Other sizes with the same divisors need no other kernel.
        key = (target, *fixed.items(), *open_sizes.items(), *alignments.items())
        if key not in self._compiled:
            self._compiled[key] = self.compile(
                target, fixed, alignments=alignments, multiples=open_sizes
            )
        return self._compiled[key]

    def default_target(self) -> Target:
        """TILEWRIGHT_TARGET, else the first target that the constraints fit."""
        named = os.environ.get("TILEWRIGHT_TARGET")
        if named:
            return target_named(named)
        hardware = next(
            (c for c in self.program.constraints if isinstance(c, HardwareConstraint)),
            HardwareConstraint(),
        )
        return next((t for t in ALL_TARGETS if _fits(t, hardware)), ALL_TARGETS[0])


def _fits(target: Target, hardware: HardwareConstraint) -> bool:
    mma = hardware.mma_type
    name = mma.value if isinstance(mma, MMAType) else mma
    width = hardware.threads_per_wave in (None, target.warp_size)
    return width and (name is None or target.atom(name) is not None)


def kernel(
    constraints: Sequence[Constraint] = (),
    *,
    bindings: Bindings | None = None,
    dynamic: Sequence[Size | str] = (),
) -> Callable[[Callable[..., None]], TileKernel]:
    """Mark a function as a tile program.

    `bindings` gives symbols their values (sizes, tile sizes, memory spaces). Axes named in
    `dynamic` stay open when the kernel is called, so one compilation serves all their sizes.
    """
    _check_constraints(constraints)
    scope = caller_scope(1)
    values = bound_values(bindings or {})

    def mark(function: Callable[..., None]) -> TileKernel:
        source = program(function, constraints, scope)
        return TileKernel(source, values, axis_symbols(dynamic, source))

    return mark


def _check_constraints(constraints: object) -> None:
    if callable(constraints):
        raise CallError(
            "@tw.kernel is used without parentheses",
            span=here(),
            expected="@tw.kernel() or @tw.kernel([constraints])",
            mend="write @tw.kernel()",
        )
    several = isinstance(constraints, list | tuple)
    for constraint in cast("Sequence[object]", constraints) if several else [constraints]:
        if not several or not isinstance(constraint, Constraint):
            raise CallError(
                f"@tw.kernel is given a {type(constraint).__name__}",
                span=here(),
                expected="a list of WorkgroupConstraint, TilingConstraint, WaveConstraint and "
                "HardwareConstraint",
                mend="put the constraints in a list",
            )
