"""Whether elements share addresses: the proofs take distinct elements to be distinct memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.diagnostics import CallError
from tilewright.base.spans import Span
from tilewright.kernel.declared import Interface, Mode, Tensor
from tilewright.runtime.arguments import TensorView

SEARCH_LIMIT = 100_000  # steps of the search for a common address of two strided tensors


def may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may have one address, by the sufficient test that strides nest."""
    reach = 0
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def refuse_overlap(tensor: Tensor, shape: Sequence[int], strides: Sequence[int]) -> None:
    """CallError where an output's strides may put two of its elements at one address."""
    if tensor.mode is not Mode.IN and may_overlap(shape, strides):
        raise CallError(
            f"elements of {tensor.name} share memory: its strides are {tuple(strides)}",
            span=tensor.span,
            expected="a written tensor whose elements have addresses of their own",
            mend="pass a contiguous tensor and copy it afterwards",
        )


def refuse_known_overlap(tensor: Tensor) -> None:
    """CallError where an output's elements share addresses for every size that is still open."""
    known = [
        (n.const if n.is_const else 2, s.const)
        for n, s in zip(tensor.shape, tensor.strides, strict=True)
        if s.is_const and (n.is_const or s.const == 0)
    ]
    refuse_overlap(tensor, [n for n, _ in known], [s for _, s in known])


@dataclass(frozen=True)
class Footprint:
    """The bytes around its pointer that each tensor of a call may touch, for one set of shapes."""

    reach: tuple[tuple[int, int], ...]
    pairs: tuple[tuple[int, int], ...]  # a written tensor and another one
    names: tuple[str, ...]
    spans: tuple[Span | None, ...]

    @staticmethod
    def of(kernel: Interface, views: Sequence[TensorView]) -> Footprint:
        written = [i for i, t in enumerate(kernel.tensors) if t.mode is not Mode.IN]
        pairs = [
            (i, j)
            for i in written
            for j in range(len(views))
            if j != i and (j not in written or i < j)
        ]
        return Footprint(
            tuple(_reach(v) for v in views),
            tuple(pairs),
            tuple(t.name for t in kernel.tensors),
            tuple(t.span for t in kernel.tensors),
        )

    def near(self) -> tuple[tuple[int, int, int, int], ...]:
        """Pairs i, j whose bytes meet only where ``low < pointer[i] - pointer[j] < high``."""
        return tuple(
            (i, j, self.reach[j][0] - self.reach[i][1], self.reach[j][1] - self.reach[i][0])
            for i, j in self.pairs
        )

    def check(self, views: Sequence[TensorView]) -> None:
        """CallError where a written tensor shares memory with another argument."""
        for i, j in self.pairs:
            one, other = views[i], views[j]
            (low, high), (start, end) = self.reach[i], self.reach[j]
            if (
                one.pointer + low < other.pointer + end
                and other.pointer + start < one.pointer + high
                and _share(one, other)
            ):
                raise CallError(
                    f"{self.names[i]} and {self.names[j]} share memory, "
                    f"and {self.names[i]} is written",
                    span=self.spans[i],
                    expected="written tensors with memory of their own",
                    mend="pass a copy; to update a tensor in place, read and write one argument",
                )


def refuse_shared(tensors: Sequence[Tensor], problems: Sequence[Sequence[TensorView]]) -> None:
    """CallError where a tensor that one problem writes shares memory with any other tensor.

    Of all tensors, in the order in which they begin, each is compared with those that reach it.
    """
    ranges: list[tuple[int, int, int, int]] = []
    for number, views in enumerate(problems):
        for position, view in enumerate(views):
            low, high = _reach(view)
            ranges.append((view.pointer + low, view.pointer + high, number, position))
    reaching: list[tuple[int, int, int]] = []
    for start, end, number, position in sorted(ranges):
        reaching = [r for r in reaching if r[0] > start]
        for _, other, place in reaching:
            pair = sorted(((number, position), (other, place)), key=lambda p: _is_read(tensors, p))
            if not _is_read(tensors, pair[0]) and _share(*(problems[i][j] for i, j in pair)):
                one, two = (f"{tensors[j].name} of problem {i}" for i, j in pair)
                raise CallError(
                    f"{one} and {two} share memory, and {one} is written",
                    span=tensors[pair[0][1]].span,
                    expected="written tensors with memory of their own",
                    mend="pass a copy, or make two calls where one problem needs another's results",
                )
        reaching.append((end, number, position))


def _is_read(tensors: Sequence[Tensor], place: tuple[int, int]) -> bool:
    """Whether a problem only reads a tensor."""
    return tensors[place[1]].mode is Mode.IN


def _reach(view: TensorView) -> tuple[int, int]:
    """The first and the end of the bytes that a tensor touches, relative to its pointer."""
    size = view.dtype.bytes
    steps = [s * (n - 1) * size for s, n in zip(view.strides, view.shape, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + size


def _share(one: TensorView, other: TensorView) -> bool:
    """Whether two tensors whose byte ranges meet have a byte in common."""
    try:
        return bool(np.shares_memory(_ghost(one), _ghost(other), SEARCH_LIMIT))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


@dataclass(frozen=True, slots=True)
class _Ghost:
    """An address range as NumPy's array interface tells it; nobody reads its memory."""

    __array_interface__: dict[str, object]


def _ghost(view: TensorView) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    size = view.dtype.bytes
    facts: dict[str, object] = {
        "version": 3,
        "data": (view.pointer, True),
        "shape": view.shape,
        "strides": tuple(s * size for s in view.strides),
        "typestr": f"|V{size}",
    }
    return np.asarray(_Ghost(facts))
