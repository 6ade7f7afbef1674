"""What a simulation counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class SharedTraffic:
    """Accesses to one shared buffer, over all blocks.

    A wavefront serves 32 banks of 4 bytes, one word each. `ideal_wavefronts` is the least
    number for accesses of these widths, `wavefronts` what the addresses need.
    """

    name: str
    read_bytes: int
    written_bytes: int
    wavefronts: int
    ideal_wavefronts: int


@dataclass(frozen=True, slots=True)
class SimReport:
    """Counts over all blocks. Bytes are what threads ask for, before any cache.

    `barriers` counts arrivals of whole blocks. `findings` are remarks that are no errors.
    """

    blocks: int
    threads: int
    global_read_bytes: int
    global_written_bytes: int
    barriers: int
    shared: tuple[SharedTraffic, ...]
    findings: tuple[Diagnostic, ...]

    @property
    def wavefronts(self) -> int:
        return sum(buffer.wavefronts for buffer in self.shared)

    @property
    def ideal_wavefronts(self) -> int:
        return sum(buffer.ideal_wavefronts for buffer in self.shared)


@dataclass(slots=True)
class BufferTally:
    """`SharedTraffic` in the making."""

    read_bytes: int = 0
    written_bytes: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0


@dataclass(slots=True)
class Tally:
    """`SimReport` in the making."""

    global_read_bytes: int = 0
    global_written_bytes: int = 0
    barriers: int = 0
    shared: dict[str, BufferTally] = field(default_factory=dict[str, BufferTally])
    findings: dict[str, Diagnostic] = field(default_factory=dict[str, Diagnostic])

    def report(self, blocks: int, threads: int) -> SimReport:
        return SimReport(
            blocks,
            threads,
            self.global_read_bytes,
            self.global_written_bytes,
            self.barriers,
            tuple(
                SharedTraffic(name, b.read_bytes, b.written_bytes, b.wavefronts, b.ideal_wavefronts)
                for name, b in self.shared.items()
            ),
            tuple(self.findings.values()),
        )
