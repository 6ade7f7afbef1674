"""Source spans: where in the user's file a construct was written."""

from __future__ import annotations

import ast
import inspect
import linecache
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of one source line.

    Lines count from 1, columns from 0 in characters; ``end`` is exclusive.
    """

    file: str
    line: int
    column: int
    end: int

    def source(self) -> str:
        """The text of the line, without its newline; empty where the file cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")


def frame_span(frame: FrameType) -> Span:
    """The span of the call that `frame` is executing.

    A call over several lines is cut after its first; the whole line is blamed where the
    interpreter keeps no columns (``-X no_debug_ranges``).
    """
    code = frame.f_code
    here = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    line, end_line, first, last = here
    if line is None:
        line = frame.f_lineno
    text = linecache.getline(code.co_filename, line, frame.f_globals).rstrip()
    column = len(text) - len(text.lstrip()) if first is None else _characters(text, first)
    end = len(text) if last is None or end_line != line else _characters(text, last)
    return Span(code.co_filename, line, column, max(end, column))


def parameter_spans(code: CodeType) -> Mapping[str, Span]:
    """Where a function's parameters are declared; empty where its source cannot be read."""
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    # An indented block is parsed under a condition, so that its columns are those of the file.
    head = "if True:\n" if lines and lines[0][0].isspace() else "\n"
    try:
        tree = ast.parse(head + "".join(inspect.getblock(lines)))
    except (SyntaxError, tokenize.TokenError):
        return {}
    found = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == code.co_name)
    function = next(found, None)
    if function is None:
        return {}
    spans: dict[str, Span] = {}
    for arg in (a for a in ast.walk(function.args) if isinstance(a, ast.arg)):
        text = lines[arg.lineno - 2].rstrip("\n")
        column = _characters(text, arg.col_offset)
        whole = arg.end_lineno == arg.lineno and arg.end_col_offset is not None
        end = _characters(text, arg.end_col_offset or 0) if whole else len(text)
        spans[arg.arg] = Span(code.co_filename, code.co_firstlineno + arg.lineno - 2, column, end)
    return spans


def _characters(text: str, offset: int) -> int:
    """How many characters the first `offset` bytes of the UTF-8 text hold."""
    return len(text.encode()[:offset].decode(errors="ignore")) if text else offset


def here() -> Span | None:
    """The span of the user's line that is running now: see `user_span`."""
    return user_span(inspect.currentframe())


def user_span(frame: FrameType | None, *, outwards: bool = True) -> Span | None:
    """The span of the innermost frame, from `frame` outwards, that is not tilewright's own.

    Without `outwards`, only `frame` itself is looked at.
    """
    while frame is not None:
        # By module, not by file: the methods that dataclasses generate have no file.
        if str(frame.f_globals.get("__name__")).partition(".")[0] != _PACKAGE:
            return frame_span(frame)
        frame = frame.f_back if outwards else None
    return None
