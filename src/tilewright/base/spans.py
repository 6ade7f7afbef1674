"""Source spans: where in the user's file a construct was written."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_PACKAGE_ROOT = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of one source line. Lines count from 1, columns from 0; ``end`` is exclusive."""

    file: str
    line: int
    column: int
    end: int

    def source(self) -> str:
        """The text of the line, without its newline; empty where the file cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")


def frame_span(frame: FrameType) -> Span:
    """The span of the call that `frame` is executing."""
    code = frame.f_code
    positions = list(code.co_positions())
    line, end_line, column, end = positions[frame.f_lasti // 2]
    if line is None or column is None or end is None:
        return Span(code.co_filename, frame.f_lineno, 0, 0)
    if end_line != line:
        end = len(linecache.getline(code.co_filename, line).rstrip("\n"))
    return Span(code.co_filename, line, column, end)


def user_span(frame: FrameType | None) -> Span | None:
    """The span of the innermost frame, from `frame` outwards, that is not tilewright's own."""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE_ROOT):
            return frame_span(frame)
        frame = frame.f_back
    return None
