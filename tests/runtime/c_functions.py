"""Python functions behind C ones, as `ctypes` calls those of a library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


def c_function(call: Callable[..., int], count: int, holding: bool = False) -> Any:
    """A C function of `count` words that `call` gets whole. `ctypes` knows nothing of its
    parameters; `holding` makes it keep the interpreter's lock, as `PyDLL` does."""
    made = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * count)(call)
    kind = (ctypes.PYFUNCTYPE if holding else ctypes.CFUNCTYPE)(ctypes.c_int)
    bare = kind(ctypes.cast(made, ctypes.c_void_p).value)
    bare.made = made  # the code behind the address lives as long
    return bare
