"""Memory spaces."""

from __future__ import annotations

from enum import Enum


class Space(Enum):
    """Where a buffer lives: device memory, one block's shared memory, or a thread's registers."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTER = "register"
