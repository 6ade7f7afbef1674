"""Launches for several problems at once: their arguments in one table (see `kernel.problems`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tilewright.kernel.declared import Interface
from tilewright.kernel.problems import Row, checked_starts
from tilewright.runtime.cuda_driver import Module
from tilewright.runtime.graphs import BoundCall
from tilewright.runtime.launch import (
    HEAD,
    STREAM,
    Bound,
    Caller,
    Frames,
    ParameterBlock,
    Starter,
    fixed_start,
    write_configuration,
)
from tilewright.runtime.tensor_maps import Maps

_TABLE = (0,)  # the one parameter, and where it lies


class ProblemsLaunch:
    """A launch with everything fixed but the problems' pointers and the stream.

    Threads may share it.
    """

    __slots__ = ("_count", "_frames", "_maps", "_places", "_starter", "_template")

    def __init__(
        self, module: Module, kernel: Interface, room: int, problems: Sequence[Bound]
    ) -> None:
        block, row = ParameterBlock.of(kernel), Row.of(kernel)
        self._count = len(kernel.tensors)
        first = self._count + len(kernel.maps)
        self._places = [HEAD + i * row.stride for i in range(len(problems))]
        template = bytearray(HEAD + row.bytes_for(room))
        blocks = [problem.blocks for problem in problems]
        write_configuration(template, kernel, sum(blocks))
        for place, problem in zip(self._places, problems, strict=True):
            fixed = zip(block.formats[first:], row.offsets[first:], problem.values, strict=True)
            for code, offset, value in fixed:
                struct.pack_into(code, template, place + offset, value)
        begins = checked_starts(kernel, blocks, room)
        struct.pack_into(f"{len(begins)}i", template, HEAD + row.starts_at(room), *begins)
        self._maps = [
            Maps(problem.encoders, place + row.offsets[self._count]) if problem.encoders else None
            for place, problem in zip(self._places, problems, strict=True)
        ]
        self._template = bytes(template)
        self._frames = Frames(self._template, _TABLE)
        self._starter = Starter(module)

    def __call__(self, stream: int, *pointers: int) -> None:
        """Start the kernel on `stream`, given all pointers, problem by problem. ToolchainError
        where it fails."""
        frame = self._frames.own
        struct.pack_into("P", frame.buffer, STREAM, stream)
        self._write(frame.buffer, pointers)
        self._starter.start(frame)

    def fixed(self, caller: Caller, *pointers: int) -> BoundCall:
        """The launch with its pointers fixed too: it takes the stream."""
        template = bytearray(self._template)
        self._write(template, pointers)
        return fixed_start(self._starter, bytes(template), _TABLE, caller)

    def _write(self, buffer: Any, pointers: Sequence[int]) -> None:
        form, count = f"{self._count}P", self._count
        for number, (place, maps) in enumerate(zip(self._places, self._maps, strict=True)):
            own = pointers[number * count : (number + 1) * count]
            struct.pack_into(form, buffer, place, *own)
            if maps is not None:
                maps.write(buffer, own)
