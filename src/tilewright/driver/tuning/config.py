"""A config: one way to fill in what a program leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from tilewright.base.diagnostics import CallError
from tilewright.base.spaces import Space
from tilewright.base.spans import Span, here
from tilewright.driver.assumptions import bound_values
from tilewright.lang.constraints import Constraint, HardwareConstraint
from tilewright.lang.program import Program, named_sizes
from tilewright.lang.symbols import Size
from tilewright.lang.types import MemoryType

if TYPE_CHECKING:
    from tilewright.driver.kernel import TileKernel

OPTIONS = tuple(f.name for f in fields(HardwareConstraint) if f.name != "span")


@dataclass(frozen=True, init=False)
class Config:
    """Values of symbols, a schedule, and options of `HardwareConstraint` (`stages=4`).

    The schedule takes a `Schedule` and returns it transformed; that of a fusion gets an empty
    `fd.sched` and calls its methods.
    What a config leaves out stays as the program has it. CallError for a symbol that is bound to
    no number and no memory space, and for an option that there is not.
    """

    symbols: Mapping[str, int | Space]
    schedule: Callable[[Any], Any] | None
    hardware: Mapping[str, Any]
    span: Span | None = field(compare=False)

    def __init__(
        self,
        symbols: Mapping[Size, int | Space] | Mapping[str, int | Space] | None = None,
        schedule: Callable[[Any], Any] | None = None,
        **hardware: Any,
    ) -> None:
        unknown = [name for name in hardware if name not in OPTIONS]
        if unknown:
            raise CallError(
                f"a config has no option {unknown[0]}",
                span=here(),
                expected=f"options among {', '.join(OPTIONS)}",
                mend="name an option of HardwareConstraint, or bind a symbol",
            )
        HardwareConstraint(**hardware)  # refuses values that no constraint may have
        for name, value in (
            ("symbols", bound_values(symbols or {})),
            ("schedule", schedule),
            ("hardware", hardware),
            ("span", here()),
        ):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        parts = [f"{n}={v.name if isinstance(v, Space) else v}" for n, v in self.symbols.items()]
        parts += [f"{name}={value}" for name, value in self.hardware.items()]
        if self.schedule is not None:
            parts.append(f"schedule {getattr(self.schedule, '__name__', self.schedule)}")
        return ", ".join(parts) or "as the program says"


def variant(kernel: TileKernel, config: Config) -> TileKernel:
    """The kernel with a config filled in. CallError for a symbol that the program does not use."""
    from tilewright.driver.kernel import TileKernel

    _check_symbols(kernel, config)
    constraints = _with_options(kernel.program.constraints, config)
    return TileKernel(
        replace(kernel.program, constraints=constraints),
        {**kernel.bindings, **config.symbols},
        kernel.dynamic,
        config.schedule or kernel.schedule,
    )


def _check_symbols(kernel: TileKernel, config: Config) -> None:
    program = kernel.program
    known = (named_sizes(program) | _spaces(program) | kernel.bindings.keys()) - {*program.axes()}
    for name in config.symbols:
        if name in program.axes():
            raise CallError(
                f"a config binds {name}, an axis of {program.name}",
                span=config.span,
                expected="symbols that the tensors' shapes leave open, for example tile sizes",
                mend=f"leave {name} out: its size comes from the tensors",
            )
        if name not in known:
            raise CallError(
                f"a config binds {name}, which {program.name} does not use",
                span=config.span,
                expected=f"symbols among {', '.join(sorted(known))}" if known else "no symbols",
                mend="use the names of the constraints' tile sizes",
            )


def _spaces(program: Program) -> set[str]:
    kinds = (kind for kind in program.arguments.values() if isinstance(kind, MemoryType))
    return {str(kind.space) for kind in kinds if isinstance(kind.space, Size)}


def _with_options(constraints: Sequence[Constraint], config: Config) -> tuple[Constraint, ...]:
    if not config.hardware:
        return tuple(constraints)
    given = [c for c in constraints if isinstance(c, HardwareConstraint)]
    rest = [c for c in constraints if not isinstance(c, HardwareConstraint)]
    start = given[0] if given else HardwareConstraint(span=config.span)
    return (*rest, replace(start, **config.hardware), *given[1:])
