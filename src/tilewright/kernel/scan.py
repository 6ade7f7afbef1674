"""The phrases that every statement of the text form of kernel IR shares."""

from __future__ import annotations

from tilewright.kernel.refs import MemRef, RegRef
from tilewright.poly import scan
from tilewright.poly.scan import DTYPES

__all__ = ["DTYPES", "Line"]


class Line(scan.Line):
    """A line of kernel IR."""

    def regs(self) -> RegRef:
        return RegRef(self.name(), self.expressions())

    def memory(self) -> MemRef:
        return MemRef(self.name(), self.expressions())
