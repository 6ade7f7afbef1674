"""What is around each statement: loops, guards, conditions and decoded digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from tilewright.base.diagnostics import AtomError
from tilewright.kernel.async_ops import WarpgroupMma
from tilewright.kernel.ops import Body, Decode, If, Kernel, Loop, Mma, Statement, When, walk
from tilewright.poly.expr import Guard
from tilewright.poly.sets import Parameter, World
from tilewright.target.model import Target

BUILTINS = ("block", "thread", "warp", "lane")


@dataclass(frozen=True, slots=True)
class Frame:
    """The surroundings of a statement, outermost first.

    `path` holds the statement's position in each body; `around[i]` is the statement entered at
    ``path[: i + 1]``. Each decode goes with the path of the body that it stands in.
    """

    path: tuple[int, ...] = ()
    around: tuple[Loop | If | When, ...] = ()
    decodes: tuple[tuple[tuple[int, ...], Decode], ...] = ()

    def common(self, other: Frame) -> tuple[Loop | If | When, ...]:
        """The statements around both."""
        pairs = zip(self.around, other.around, self.path, other.path, strict=False)
        same = takewhile(lambda pair: pair[0] is pair[1] and pair[2] == pair[3], pairs)
        return tuple(pair[0] for pair in same)

    def common_loops(self, other: Frame) -> tuple[Loop, ...]:
        """The loops around both, outermost first."""
        return tuple(s for s in self.common(other) if isinstance(s, Loop))

    @property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(s for s in self.around if isinstance(s, Loop))

    @property
    def guard(self) -> Guard:
        return tuple(c for s in self.around if isinstance(s, If) for c in s.guard)

    @property
    def conditions(self) -> tuple[When, ...]:
        return tuple(s for s in self.around if isinstance(s, When))


@dataclass(frozen=True, slots=True)
class Site:
    """One statement, where it stands."""

    statement: Statement
    frame: Frame


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel with what the proofs need of it, computed once."""

    kernel: Kernel
    target: Target
    world: World
    sites: tuple[Site, ...]

    @staticmethod
    def of(kernel: Kernel, target: Target) -> Program:
        for statement in walk(kernel.body):
            if isinstance(statement, Mma | WarpgroupMma) and target.atom(statement.atom) is None:
                raise AtomError(
                    f"{target.name} has no atom {statement.atom}",
                    span=statement.span,
                    expected=f"one of the {len(target.mma_atoms)} atoms of {target.name}",
                    mend="compile the kernel for the target that it was lowered for",
                )
        parameters = tuple(Parameter(s.name, s.low, s.multiple) for s in kernel.symbols)
        world = World(parameters, kernel.contracts)
        return Program(kernel, target, world, tuple(_sites(kernel.body, Frame())))


def _sites(body: Body, frame: Frame) -> Iterator[Site]:
    decodes = frame.decodes
    for position, statement in enumerate(body):
        here = replace(frame, path=(*frame.path, position), decodes=decodes)
        yield Site(statement, here)
        match statement:
            case Decode():
                decodes = (*decodes, (frame.path, statement))
            case Loop() | If() | When():
                inner = replace(here, around=(*frame.around, statement))
                yield from _sites(statement.body, inner)
            case _:
                pass
