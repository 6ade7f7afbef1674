"""Several problems in one launch: ``gemm.grouped([(a0, b0, c0), (a1, b1, c1)])``.

Problems have tensors and sizes of their own. One kernel serves them all: axes along which they
differ are open in it, so it is proved for every size, and its code does not grow with the list.
Each block works on a tile of one problem (see `kernel.problems`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tilewright.base.diagnostics import CallError, TilewrightError
from tilewright.base.spaces import Space
from tilewright.base.spans import here
from tilewright.driver.call import Call, bind_symbols, read_call
from tilewright.driver.compile import Compilation, compile_program
from tilewright.driver.launch import caller_of, device_target, remember
from tilewright.driver.loaded import Loaded
from tilewright.driver.overlaps import refuse_shared
from tilewright.driver.specialisation import Example, Specialisation, open_multiple
from tilewright.kernel.problems import Row, joined
from tilewright.lang.constraints import WorkgroupConstraint
from tilewright.lang.program import Program
from tilewright.runtime.arguments import dense_strides
from tilewright.runtime.cuda_driver import current_stream
from tilewright.runtime.launch import bound_arguments
from tilewright.runtime.launch_problems import ProblemsLaunch

if TYPE_CHECKING:
    from tilewright.codegen.sim import SimReport as SimulationResult
    from tilewright.kernel.declared import Interface
    from tilewright.kernel.ops import Kernel
    from tilewright.poly.results import Obligation
    from tilewright.schedule.schedule import Schedule
    from tilewright.target.model import Target

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def read_problems(program: Program, problems: object) -> tuple[Call, ...]:
    """Look at each problem's arguments. Errors are those of a call, and say which problem."""
    several = isinstance(problems, list | tuple)
    if not several or not problems:
        raise CallError(
            f"{program.name} is called for "
            + ("no problems" if several else f"a {type(problems).__name__}"),
            span=here(),
            expected=f"a list of problems, each with its {', '.join(program.arguments)}",
            mend="pass a list with a tuple of arguments for each problem",
        )
    calls: list[Call] = []
    given = cast("Sequence[object]", problems)
    for number, arguments in enumerate(given):
        if not isinstance(arguments, tuple | list):
            raise CallError(
                f"problem {number} is a {type(arguments).__name__}",
                span=here(),
                expected=f"a tuple of {', '.join(program.arguments)}",
                mend="pass a list with a tuple of arguments for each problem",
            )
        own = cast("Sequence[Any]", arguments)
        calls.append(_of_problem(number, given, lambda _, own=own: read_call(program, own)))
    apart = next((i for i, call in enumerate(calls) if call.device != calls[0].device), None)
    if apart is not None:
        raise CallError(
            f"problem {apart} is on {calls[apart].device}, problem 0 on {calls[0].device}",
            span=here(),
            expected="all problems of a launch on one device",
            mend=f"move its tensors to {calls[0].device}",
        )
    return tuple(calls)


def specialisation_of(
    program: Program, calls: Sequence[Call], bindings: Mapping[str, int | Space],
    dynamic: frozenset[str], target: Target,
    schedule: Callable[[Schedule], Schedule] | None = None,
) -> Specialisation:  # fmt: skip
    """What one kernel for all the problems fixes: the sizes that they share, but for one axis.

    That one keeps the number of tiles open: blocks then have a tile each (see `pipeline`).
    """
    sizes = [_of_problem(i, calls, lambda c: c.axis_sizes(bindings)) for i in range(len(calls))]
    shared = {a: n for a, n in sizes[0].items() if all(own[a] == n for own in sizes)}
    fixed = {a: n for a, n in shared.items() if a not in dynamic}
    if len(fixed) == len(sizes[0]) and fixed:
        del fixed[_tiled(program, fixed)]
    largest = max(sizes, key=lambda own: prod(own.values()))
    bound = {**bindings, **fixed}
    return Specialisation(
        target=target,
        sizes={n: v for n, v in bound.items() if isinstance(v, int)},
        spaces={n: v for n, v in bound.items() if isinstance(v, Space)},
        strides=_shared_strides(calls),
        alignments={
            name: min(min(16, call.tensors[name].alignment) for call in calls)
            for name in calls[0].tensors
        },
        multiples={
            a: open_multiple(*(own[a] for own in sizes)) for a in sizes[0] if a not in fixed
        },
        schedule=schedule,
        example=Example(largest, len(calls)),
    )  # fmt: skip


def _tiled(program: Program, axes: Mapping[str, int]) -> str:
    """An axis that blocks divide; any other one where the program does not say."""
    named = (c.axis.name for c in program.constraints if isinstance(c, WorkgroupConstraint))
    return next((axis for axis in named if axis in axes), next(iter(axes)))


def _shared_strides(calls: Sequence[Call]) -> dict[str, tuple[int, ...]]:
    """Of tensors that are not dense, the strides that all problems have."""
    found: dict[str, tuple[int, ...]] = {}
    for name, first in calls[0].tensors.items():
        views = [call.tensors[name] for call in calls]
        dense = all(view.strides == dense_strides(view.shape) for view in views)
        if not dense and all(view.strides == first.strides for view in views):
            found[name] = first.strides
    return found


class GroupedKernel:
    """A kernel compiled for lists of problems. Call it with a list of argument tuples."""

    def __init__(self, source: Program, compilation: Compilation) -> None:
        self.program = source
        self.compilation = compilation
        self._kernels: dict[int, Loaded] = {}
        self._launches: dict[object, ProblemsLaunch] = {}

    @property
    def target(self) -> Target:
        return self.compilation.specialisation.target

    @property
    def kernel(self) -> Kernel:
        """The kernel of one problem."""
        return self.compilation.kernel

    @property
    def ir(self) -> str:
        """The kernel IR of one problem as text."""
        return self.compilation.ir

    @property
    def most(self) -> int:
        """How many problems a launch takes."""
        return Row.of(self.compilation.interface).most

    def source(self, count: int) -> str:
        """The generated source for lists of so many problems. CallError where they are too many."""
        from tilewright.codegen import emit

        room = Row.of(self.compilation.interface).room(count, self.program.name, here())
        return emit(self.kernel, self.target, room)

    def explain(self) -> str:
        """Digits, places, layouts, inserted moves and barriers with reasons, and the proofs."""
        from tilewright.driver.explain import explain

        return explain(self.compilation)

    def proofs(self, problems: object) -> tuple[Obligation, ...]:
        """The kernel's obligations, which hold for all sizes, and those of joining the problems."""
        kernel = self.compilation.interface
        calls = read_problems(self.program, problems)
        own = joined(kernel, [bind_symbols(kernel, call) for call in calls])
        return (*self.compilation.obligations, *own)

    def __call__(self, problems: object) -> tuple[SimulationResult, ...] | None:
        """Run all problems in one launch; NumPy arrays run on the target's simulator.

        Outputs are written in place. A simulated run returns a report for each problem.
        """
        return self.run(read_problems(self.program, problems))

    def bind(self, problems: object) -> Callable[[], tuple[SimulationResult, ...] | None]:
        """The launch with its arguments fixed. Tensors are checked here, and kept alive."""
        return self.bound(read_problems(self.program, problems))

    def run(self, calls: Sequence[Call]) -> tuple[SimulationResult, ...] | None:
        if calls[0].device.kind == "cpu":
            return self._simulated(calls)
        self._refuse_shared(calls)
        launch = self._launch(calls)
        launch(current_stream(calls[0].device.index), *_pointers(calls))
        return None

    def bound(self, calls: Sequence[Call]) -> Callable[[], tuple[SimulationResult, ...] | None]:
        if calls[0].device.kind == "cpu":
            return lambda: self._simulated(calls)
        self._refuse_shared(calls)
        return self._launch(calls).fixed(caller_of(calls), *_pointers(calls))

    def _simulated(self, calls: Sequence[Call]) -> tuple[SimulationResult, ...]:
        """Each problem's blocks by themselves: those of different problems share nothing."""
        from tilewright.codegen.sim import simulate

        kernel = self.compilation.interface
        Row.of(kernel).room(len(calls), self.program.name, here())
        bound = [_bound_symbols(kernel, calls, i) for i in range(len(calls))]
        self._refuse_shared(calls)
        reports: list[SimulationResult] = []
        for call, symbols in zip(calls, bound, strict=True):
            arguments: dict[str, Any] = {n: v.array() for n, v in call.tensors.items()}
            arguments.update(call.scalars)
            reports.append(simulate(self.kernel, self.target, arguments, symbols))
        return tuple(reports)

    def _refuse_shared(self, calls: Sequence[Call]) -> None:
        views = [tuple(call.tensors.values()) for call in calls]
        refuse_shared(self.compilation.interface.tensors, views)

    def _launch(self, calls: Sequence[Call]) -> ProblemsLaunch:
        device = calls[0].device
        key = (device.index, *(_key(call) for call in calls))
        found = self._launches.get(key)
        if found is None:
            kernel = self.compilation.interface
            wanted = device_target(device)
            if wanted != self.target.name:
                raise CallError(
                    f"the kernel is compiled for {self.target.name}, the tensors are on a {wanted} "
                    "device",
                    span=self.program.span,
                    expected=f"tensors on a {self.target.name} device, or NumPy arrays",
                )
            room = Row.of(kernel).room(len(calls), self.program.name, here())
            bound = [
                bound_arguments(kernel, _bound_symbols(kernel, calls, i), call.scalars)
                for i, call in enumerate(calls)
            ]
            found = ProblemsLaunch(self._loaded(room).module(device), kernel, room, bound)
            remember(self._launches, key, found)
        return found

    def _loaded(self, room: int) -> Loaded:
        """The kernel for a table with so much room."""
        if room not in self._kernels:
            interface = self.compilation.interface
            self._kernels[room] = Loaded(interface, self.target, lambda: self.source(room))
        return self._kernels[room]


def compile_problems(program: Program, given: Specialisation) -> GroupedKernel:
    """One kernel for all lists that the specialisation suits."""
    return GroupedKernel(program, compile_program(program, given))


def _pointers(calls: Sequence[Call]) -> list[int]:
    return [view.pointer for call in calls for view in call.tensors.values()]


def _key(call: Call) -> object:
    """What a problem's row depends on, but for its pointers."""
    alike = tuple(view.pointer % 16 for view in call.tensors.values())
    return call.key, alike, *map(repr, call.scalars.values())


def _bound_symbols(kernel: Interface, calls: Sequence[Call], number: int) -> dict[str, int]:
    return _of_problem(number, calls, lambda call: bind_symbols(kernel, call))


def _of_problem(number: int, problems: Sequence[_Given], make: Callable[[_Given], _Made]) -> _Made:
    """What `make` makes of one problem; its errors say which one it is."""
    try:
        return make(problems[number])
    except TilewrightError as error:
        raise error.noted(f"in problem {number} of {len(problems)}") from None
