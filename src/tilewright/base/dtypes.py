"""Element types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How the bits of an element are read."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `name` is how programs and the kernel IR spell it."""

    name: str
    kind: Kind
    bits: int

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    def __repr__(self) -> str:
        return self.name


f64 = DType("f64", Kind.FLOAT, 64)
f32 = DType("f32", Kind.FLOAT, 32)
f16 = DType("f16", Kind.FLOAT, 16)
bf16 = DType("bf16", Kind.FLOAT, 16)
f8e4m3 = DType("f8e4m3", Kind.FLOAT, 8)
f8e5m2 = DType("f8e5m2", Kind.FLOAT, 8)
# CDNA 3 has fp8 formats of its own: no negative zero, one NaN, a bias larger by one.
f8e4m3fnuz = DType("f8e4m3fnuz", Kind.FLOAT, 8)
f8e5m2fnuz = DType("f8e5m2fnuz", Kind.FLOAT, 8)
i64 = DType("i64", Kind.INT, 64)
i32 = DType("i32", Kind.INT, 32)
i16 = DType("i16", Kind.INT, 16)
i8 = DType("i8", Kind.INT, 8)
boolean = DType("bool", Kind.BOOL, 8)

ALL_DTYPES = (
    f64, f32, f16, bf16, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, i64, i32, i16, i8, boolean,
)  # fmt: skip


def dtype_named(name: str) -> DType:
    """The element type spelled `name`; KeyError where there is none."""
    return {dtype.name: dtype for dtype in ALL_DTYPES}[name]
