"""`@tw.kernel`: a tile program that compiles itself to its arguments and runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
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
    from tilewright.driver.compile import Rewrites, Specialisation
    from tilewright.driver.compiled import CompiledKernel
    from tilewright.driver.grouped import GroupedKernel
    from tilewright.driver.launch import KnownCalls, SimulationResult, Started
    from tilewright.driver.tuning.config import Config
    from tilewright.driver.tuning.report import TunedKernel

Bindings = Mapping[Size, int | Space] | Mapping[str, int | Space]
Transform = Callable[[Schedule], Schedule]


class TileKernel:
    """A tile program. Calling it compiles once per specialisation and runs."""

    def __init__(
        self,
        source: Program,
        bindings: Mapping[str, int | Space],
        dynamic: frozenset[str],
        schedule: Transform | None = None,
    ) -> None:
        self.program = source
        self.bindings = bindings
        self.dynamic = dynamic
        self.schedule = schedule
        self._compiled: dict[object, CompiledKernel] = {}
        self._grouped: dict[object, GroupedKernel] = {}
        self._known: KnownCalls | None = None
        update_wrapper(self, source.function)

    def compile(
        self,
        target: str | None = None,
        bindings: Bindings | None = None,
        *,
        strides: Mapping[str, tuple[int, ...]] | None = None,
        alignments: Mapping[str, int] | None = None,
        multiples: Mapping[str, int] | None = None,
        schedule: Transform | None = None,
        rewrites: Rewrites | None = None,
    ) -> CompiledKernel:
        """Compile for a target (`sm_90a`, `gfx942`). Sizes that nothing binds stay dynamic.

        `strides` are in elements, `alignments` in bytes, both by argument name; `multiples`
        states what dynamic sizes are multiples of. They are checked at every call. `schedule`
        takes a `Schedule` and returns it transformed: splits, merges, places.
        """
        from tilewright.driver.compile import compile_program
        from tilewright.driver.compiled import CompiledKernel

        specialisation = self.specialisation(
            target, bindings, strides, alignments, multiples, schedule
        )
        return CompiledKernel(self.program, compile_program(self.program, specialisation, rewrites))

    def specialisation(
        self,
        target: str | None = None,
        bindings: Bindings | None = None,
        strides: Mapping[str, tuple[int, ...]] | None = None,
        alignments: Mapping[str, int] | None = None,
        multiples: Mapping[str, int] | None = None,
        schedule: Transform | None = None,
    ) -> Specialisation:
        """What `compile` fixes for these arguments."""
        from tilewright.driver.compile import Specialisation

        values = {**self.bindings, **bound_values(bindings or {})}
        return Specialisation(
            target=target_named(target) if target else self.default_target(),
            sizes={n: v for n, v in values.items() if isinstance(v, int)},
            spaces={n: v for n, v in values.items() if isinstance(v, Space)},
            strides=strides or {},
            alignments=alignments or {},
            multiples=multiples or {},
            schedule=schedule or self.schedule,
        )

    def __call__(self, *arguments: Any, **named: Any) -> SimulationResult | None:
        """Bind sizes and strides from the arguments, compile if new, and run in place."""
        known = self._known
        if known is not None and not named and known.start(arguments):
            return None
        call, compiled = self._compiled_for(arguments, named)
        result = compiled.launcher.run(call)
        if not named:
            self._remember(arguments, compiled.launcher.started(call))
        return result

    def bind(self, *arguments: Any, **named: Any) -> Callable[[], SimulationResult | None]:
        """Compile if new, and fix the arguments: ``launch = gemm.bind(a, b, c); launch()``.

        Tensors are checked once, here, and kept alive. A launch then costs about a microsecond
        of Python; it takes the address of a CUDA stream, by default the current one.
        """
        call, compiled = self._compiled_for(arguments, named)
        return compiled.launcher.bind(call)

    def grouped(self, problems: Sequence[Sequence[Any]]) -> tuple[SimulationResult, ...] | None:
        """Run several problems in one launch: ``gemm.grouped([(a0, b0, c0), (a1, b1, c1)])``.

        Each has tensors, sizes and scalars of its own; one kernel, compiled once per
        specialisation, serves all. What one problem writes, no other may read or write.
        CallError where that is so, and for more problems than a launch takes.
        """
        kernel, calls = self._grouped_for(problems)
        return kernel.run(calls)

    def bind_grouped(
        self, problems: Sequence[Sequence[Any]]
    ) -> Callable[[], tuple[SimulationResult, ...] | None]:
        """Compile if new, and fix all problems: ``launch = gemm.bind_grouped([..]); launch()``."""
        kernel, calls = self._grouped_for(problems)
        return kernel.bound(calls)

    def compile_grouped(
        self, problems: Sequence[Sequence[Any]], target: str | None = None
    ) -> GroupedKernel:
        """The kernel that `grouped` would run for such problems, for inspection."""
        return self._grouped_for(problems, target)[0]

    def _grouped_for(
        self, problems: Sequence[Sequence[Any]], target: str | None = None
    ) -> tuple[GroupedKernel, tuple[Call, ...]]:
        from tilewright.driver.grouped import compile_problems, read_problems, specialisation_of
        from tilewright.driver.launch import device_target

        calls = read_problems(self.program, problems)
        key = (target, calls[0].device, tuple(call.key for call in calls))
        found = self._grouped.get(key)
        if found is None:
            name = target or device_target(calls[0].device) or self.default_target().name
            given = specialisation_of(
                self.program, calls, self.bindings, self.dynamic, target_named(name), self.schedule
            )
            # Other lists with the same open sizes take the tiles of the first one.
            alike = self._grouped.get(given.key)
            found = alike or compile_problems(self.program, given)
            self._grouped[given.key] = self._grouped[key] = found
        return found, calls

    def _compiled_for(
        self, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Call, CompiledKernel]:
        from tilewright.driver.call import read_call

        call = read_call(self.program, arguments, named)
        key = (call.device, call.key)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self.specialised(call)
        return call, compiled

    def _remember(self, arguments: Sequence[Any], started: Started | None) -> None:
        from tilewright.driver.launch import KnownCalls

        if self._known is None:
            self._known = KnownCalls()
        self._known.add(arguments, started)

    def tune(
        self,
        *arguments: Any,
        configs: Sequence[Config] | None = None,
        top: int | None = None,
        reference: Callable[..., Any] | None = None,
        tolerance: float | None = None,
        **named: Any,
    ) -> TunedKernel:
        """Find the fastest config for these arguments, which are left as they are.

        Without configs those are tried that the model suggests, which it can for a matrix product
        whose tile sizes are symbols. The analytic model ranks the configs; the `top` best are
        measured on the tensors' device, and their outputs compared with those of `reference`,
        called with the same arguments, or else of the first config that compiles. `tolerance` is
        relative to an output's largest magnitude. Nothing is measured for NumPy arrays.
        TuningError where no config works.
        """
        from tilewright.driver.call import read_call
        from tilewright.driver.tuning.options import Options
        from tilewright.driver.tuning.tile import tune

        call = read_call(self.program, arguments, named)
        return tune(self, configs, call, Options.of(top, reference, tolerance))

    def specialised(self, call: Call) -> CompiledKernel:
        """The compiled kernel for a call's sizes, strides, alignments and device."""
        from tilewright.driver.launch import device_target
        from tilewright.driver.specialisation import open_multiple

        sizes = call.axis_sizes(self.bindings)
        fixed = {a: n for a, n in sizes.items() if a not in self.dynamic}
        open_sizes = {a: open_multiple(n) for a, n in sizes.items() if a in self.dynamic}
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
    schedule: Transform | None = None,
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
        return TileKernel(source, values, axis_symbols(dynamic, source), schedule)

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
