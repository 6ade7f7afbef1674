"""Timing of ours and a peer, run by run in turn, so that the card's drift hits both alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Comparison:
    """Medians in microseconds. `ratio` is above one where ours is faster."""

    name: str
    ours: float
    peer: float
    error: float
    work: float  # operations or bytes of one run
    unit: str  # what work / microseconds * 1e-6 counts

    @property
    def ratio(self) -> float:
        return self.peer / self.ours

    def row(self) -> str:
        """A row of the results' table."""
        ours, peer = (self.work / t * 1e-6 for t in (self.ours, self.peer))
        return (
            f"| {self.name} | {self.ours:.1f} | {ours:.3g} {self.unit} | {peer:.3g} {self.unit} "
            f"| {self.ratio:.3f} | {self.error:.1e} |"
        )


HEADER = "| case | ours, µs | ours | peer | ratio | error |\n|---|---|---|---|---|---|"


def in_turn(
    ours: Callable[[], object], peer: Callable[[], object], repeats: int = 30, warmup: int = 3
) -> tuple[float, float]:
    """Median microseconds of both, with the L2 cache flushed before each run."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(repeats)]
    for _ in range(warmup):
        ours()
        peer()
    for a, b, c, d in events:
        flush.zero_()
        a.record()
        ours()
        b.record()
        flush.zero_()
        c.record()
        peer()
        d.record()
    torch.cuda.synchronize()
    return (
        median(a.elapsed_time(b) for a, b, _, _ in events) * 1e3,
        median(c.elapsed_time(d) for _, _, c, d in events) * 1e3,
    )


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference over the norm of the reference."""
    wanted = wanted.double()
    return float((found.double() - wanted).norm() / wanted.norm())
