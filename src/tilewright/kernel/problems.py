"""One launch of a kernel for each of several problems, every one with arguments of its own.

The kernel is that of one problem, proved for all sizes that it leaves open; its code does not grow
with the list. A launch has the blocks of the first problem, then those of the second, and so on:
the number of a block tells which problem it works on, and its number among that problem's blocks
takes the place of ``block``. Blocks of different problems share nothing but the device: what one
writes, no other may touch, which the launch checks.

Parameters are one table: for each problem a row of what a launch of the kernel alone would get,
then where each problem's blocks start. Rows that are not used start after all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.diagnostics import CallError, CoverageError
from tilewright.base.rounding import round_up
from tilewright.base.spans import Span
from tilewright.kernel.declared import Interface, Mode, block_count
from tilewright.poly.concatenation import concatenation_fault, starts_of
from tilewright.poly.results import Assumed, Kind, Obligation, Proved, Refuted

PARAMETER_BYTES = 32_764  # that a kernel of sm_70 and newer takes
START_BYTES = 4
NEVER = 2**31 - 1  # where the blocks of unused rows start
MAP_BYTES, MAP_ALIGN = 128, 64


@dataclass(frozen=True, slots=True)
class Row:
    """Where each argument of one problem lies in its row: pointers, maps, symbols, scalars.

    Offsets and the distance of rows are bytes (see `laid_out`).
    """

    offsets: tuple[int, ...]
    stride: int

    @staticmethod
    def of(kernel: Interface) -> Row:
        """The order is that of the kernel's parameters."""
        sizes = (
            *(8 for _ in kernel.tensors), *(MAP_BYTES for _ in kernel.maps),
            *(4 for _ in kernel.symbols), *(s.dtype.bytes for s in kernel.scalars),
        )  # fmt: skip
        offsets, end = laid_out(sizes)
        return Row(offsets, round_up(end, MAP_ALIGN if kernel.maps else 8))

    @property
    def most(self) -> int:
        """How many problems one launch takes."""
        found = PARAMETER_BYTES // (self.stride + START_BYTES)
        while self.bytes_for(found) > PARAMETER_BYTES:
            found -= 1
        return found

    def bytes_for(self, room: int) -> int:
        """The bytes of a table with room for so many problems."""
        return round_up(self.starts_at(room) + starts_in(room) * START_BYTES, MAP_ALIGN)

    def starts_at(self, room: int) -> int:
        """Where the starts begin."""
        return room * self.stride

    def room(self, count: int, name: str, span: Span | None = None) -> int:
        """Room for a list: the next power of two, or all there is. CallError where it is longer."""
        if count > self.most:
            raise CallError(
                f"{name} is launched for {count} problems at once",
                span=span,
                expected=f"at most {self.most}: each takes {self.stride} bytes of a launch's "
                f"{PARAMETER_BYTES} bytes of parameters",
                mend=f"call it for {self.most} problems at a time",
            )
        return min(starts_in(count), self.most)


def starts_in(room: int) -> int:
    """How many starts a table has: a power of two, so that a block finds its own by halving."""
    return 1 << (room - 1).bit_length()


def laid_out(sizes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Where arguments of so many bytes lie one after the other, and where the last one ends.

    Each is aligned to its size, maps to 64 bytes.
    """
    offsets: list[int] = []
    end = 0
    for size in sizes:
        end = round_up(end, min(size, MAP_ALIGN))
        offsets.append(end)
        end += size
    return tuple(offsets), end


def starts(blocks: Sequence[int], room: int) -> tuple[int, ...]:
    """Where the blocks of each problem start, and those of unused rows."""
    return (*starts_of(blocks), *[NEVER] * (starts_in(room) - len(blocks)))


def checked_starts(kernel: Interface, blocks: Sequence[int], room: int) -> tuple[int, ...]:
    """The starts of a launch for problems with so many blocks.

    CallError where there are too many blocks; CoverageError, with a block, where the starts do
    not tell the problems apart.
    """
    total = sum(blocks)
    if total >= NEVER:
        raise CallError(
            f"{kernel.name} would be launched with {total} blocks",
            expected=f"less than {NEVER}",
            mend="call it for fewer problems at a time",
        )
    found = starts(blocks, room)
    fault = _fault(kernel, found[: len(blocks)], blocks, total)
    if fault is not None:
        raise CoverageError(
            fault,
            expected="each block of each problem run once",
            mend="report this: it is a fault of tilewright",
        )
    return found


def _fault(
    kernel: Interface, starts: Sequence[int], blocks: Sequence[int], total: int
) -> str | None:
    """Why a launch's blocks are not those of the problems; clusters stay within one."""
    broken = next((i for i, count in enumerate(blocks) if count % kernel.cluster), None)
    if broken is not None:
        return (
            f"the {blocks[broken]} blocks of problem {broken} are no clusters of {kernel.cluster}"
        )
    fault = concatenation_fault(starts, blocks, total)
    return None if fault is None else fault.replace("grid", "problem")


def joining(
    kernel: Interface, starts: Sequence[int], blocks: Sequence[int], total: int
) -> tuple[Obligation, ...]:
    """What running a kernel for each problem of a list needs besides the kernel's own proofs.

    `blocks` are those of each problem, `total` those of the launch.
    """
    fault = _fault(kernel, starts, blocks, total)
    done = Proved(f"{total} blocks are those of {len(blocks)} problems, each once")
    result = done if fault is None else Refuted(fault)
    apart = Assumed("what one problem writes is its own: a launch checks that, or makes it so")
    return (
        Obligation(Kind.DECODE, "block", result, None, f"the problems of {kernel.name}"),
        *(
            Obligation(Kind.COVERAGE, t.name, apart, t.span, f"the problems of {kernel.name}")
            for t in kernel.tensors if t.mode is not Mode.IN
        ),
    )  # fmt: skip


def joined(kernel: Interface, symbols: Sequence[Mapping[str, int]]) -> tuple[Obligation, ...]:
    """`joining` for one launch of the kernel for each of these sizes."""
    blocks = [block_count(kernel, own) for own in symbols]
    return joining(kernel, starts_of(blocks), blocks, sum(blocks))
