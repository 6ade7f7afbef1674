"""The machines that kernels are compiled for."""

from __future__ import annotations

from tilewright.base.diagnostics import UnsupportedError
from tilewright.target.amd import GFX942, GFX950
from tilewright.target.model import Target
from tilewright.target.nvidia import SM_90A

ALL_TARGETS: tuple[Target, ...] = (SM_90A, GFX942, GFX950)


def target_named(name: str) -> Target:
    """The target spelled `name`. UnsupportedError, naming the alternatives, where there is none."""
    for target in ALL_TARGETS:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in ALL_TARGETS)
    raise UnsupportedError(
        f"there is no target {name!r}",
        expected=f"one of {names}",
        mend=f"name one of them, for example target={ALL_TARGETS[0].name!r}",
    )
