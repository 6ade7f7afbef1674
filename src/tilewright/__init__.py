"""tilewright: GPU tile kernels, distributed over the machine and proved gap-free.

Everything that a kernel author names is here::

    import tilewright as tw

    M, N = tw.sym.M, tw.sym.N

    @tw.kernel([tw.WorkgroupConstraint(M, 64, 0)])
    def double(x: tw.Memory[M, N, tw.GLOBAL, tw.f32], y: tw.Memory[M, N, tw.GLOBAL, tw.f32]):
        tw.write(tw.read(x) * 2.0, y)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.base.diagnostics import TilewrightError
from tilewright.base.dtypes import (
    DType,
    bf16,
    boolean,
    f8e4m3,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
)  # fmt: skip
from tilewright.base.spaces import Space
from tilewright.driver.kernel import TileKernel, kernel
from tilewright.lang.constraints import (
    HardwareConstraint,
    MMAType,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
)  # fmt: skip
from tilewright.lang.functions import (
    abs,
    allocate,
    broadcast,
    cast,
    ceil,
    conditional,
    cos,
    cummax,
    cummin,
    cumprod,
    cumsum,
    erf,
    exp,
    exp2,
    extent,
    floor,
    gather,
    iterate,
    log,
    log2,
    max,
    maximum,
    min,
    minimum,
    mma,
    permute,
    prod,
    read,
    reciprocal,
    reshape,
    round,
    rsqrt,
    select,
    self_index,
    sin,
    sqrt,
    sum,
    tanh,
    write,
)  # fmt: skip
from tilewright.lang.groups import group_of, per_group
from tilewright.lang.symbols import sym
from tilewright.lang.types import Memory, Register
from tilewright.schedule.schedule import Schedule

GLOBAL = GLOBAL_ADDRESS_SPACE = Space.GLOBAL
SHARED = SHARED_ADDRESS_SPACE = Space.SHARED
wave = kernel  # the same decorator under the name that Wave's users know

if TYPE_CHECKING:
    from tilewright.driver.compiled import CompiledKernel
    from tilewright.driver.fusion import FusionDefinition
    from tilewright.driver.tuning.autotune import autotune
    from tilewright.driver.tuning.config import Config
    from tilewright.driver.tuning.report import Tuned


def __getattr__(name: str) -> Any:
    """What compiling and running need is imported when it is first named."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


_LATER = {
    "CompiledKernel": "tilewright.driver.compiled",
    "Config": "tilewright.driver.tuning.config",
    "FusionDefinition": "tilewright.driver.fusion",
    "Tuned": "tilewright.driver.tuning.report",
    "autotune": "tilewright.driver.tuning.autotune",
}

__all__ = [
    "CompiledKernel", "Config", "DType", "FusionDefinition", "GLOBAL", "GLOBAL_ADDRESS_SPACE",
    "HardwareConstraint", "MMAType", "Memory", "Register", "SHARED", "SHARED_ADDRESS_SPACE",
    "Schedule", "Space", "TileKernel", "TilewrightError", "TilingConstraint", "Tuned",
    "WaveConstraint", "WorkgroupConstraint", "abs", "allocate", "autotune", "bf16", "boolean",
    "broadcast", "cast", "ceil", "conditional", "cos", "cummax", "cummin", "cumprod", "cumsum",
    "erf", "exp", "exp2", "extent", "f16", "f32", "f64", "f8e4m3", "f8e4m3fnuz", "f8e5m2",
    "f8e5m2fnuz", "floor", "gather", "group_of", "i16", "i32", "i64", "i8", "iterate", "kernel",
    "log", "log2", "max", "maximum", "min", "minimum", "mma", "per_group", "permute", "prod",
    "read", "reciprocal", "reshape", "round", "rsqrt", "select", "self_index", "sin", "sqrt", "sum",
    "sym", "tanh", "wave", "write",
]  # fmt: skip
