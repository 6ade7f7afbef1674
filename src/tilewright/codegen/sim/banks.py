"""Shared memory banks: how many wavefronts the accesses of warps take."""

from __future__ import annotations

import numpy as np

from tilewright.codegen.sim.numeric import BoolArray, IntArray

BANKS = 32
_WORD = 4  # bytes
_WAVEFRONT = BANKS * _WORD
_VECTOR = 16  # the widest access of one lane, in bytes
_IDLE = -1


def wavefronts(
    at: IntArray,
    mask: BoolArray | None,
    *,
    element_bytes: int,
    first_byte: int,
    warp_size: int,
    whole_warp: bool,
) -> tuple[int, int]:
    """Wavefronts needed and wavefronts at best.

    `at[*instances, width, threads, blocks]` are element offsets; `mask` broadcasts to them.
    A warp goes in phases of so many lanes as ask for 128 bytes; a phase takes as many
    wavefronts as its busiest bank has different words. With `whole_warp` (a matrix load, whose
    tiles are 128 bytes over all lanes) the whole warp is one phase.
    """
    if mask is not None:
        at = np.where(mask, at, _IDLE)
    lane_bytes = at.shape[-3] * element_bytes
    words = _words(at, element_bytes, first_byte)
    pieces = 1
    if not whole_warp and lane_bytes > _VECTOR and lane_bytes % _VECTOR == 0:
        pieces = lane_bytes // _VECTOR
    lanes = warp_size if whole_warp else _lanes(lane_bytes // pieces, warp_size)
    width, threads, blocks = words.shape[-3:]
    split = words.reshape(-1, pieces, width // pieces, threads // lanes, lanes, blocks)
    phases = np.moveaxis(split, (0, 1, 3, 5), (0, 1, 2, 3)).reshape(-1, width // pieces * lanes)
    return _count(phases)


def _words(at: IntArray, element_bytes: int, first_byte: int) -> IntArray:
    """Numbers of the 4-byte words, -1 where nobody asks; 8-byte elements have two each."""
    idle = at < 0
    words = (at * element_bytes + first_byte) // _WORD
    words = np.where(idle, _IDLE, words)
    if element_bytes <= _WORD:
        return words
    second = np.where(idle, _IDLE, words + 1)
    pairs = np.stack([words, second], axis=-3)
    return pairs.reshape(*at.shape[:-3], 2 * at.shape[-3], *at.shape[-2:])


def _lanes(lane_bytes: int, warp_size: int) -> int:
    """Lanes of one phase: as many as fill a wavefront, a power of two."""
    rounded = 1 << (max(lane_bytes, _WORD) - 1).bit_length()
    return max(1, min(warp_size, _WAVEFRONT // rounded))


def _count(phases: IntArray) -> tuple[int, int]:
    ordered = np.sort(phases, axis=1)
    different = np.ones(ordered.shape, np.bool_)
    different[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    different &= ordered != _IDLE
    rows = np.arange(len(ordered))[:, None] * BANKS
    slots = (rows + ordered % BANKS)[different]
    load = np.bincount(slots, minlength=len(ordered) * BANKS).reshape(-1, BANKS).max(axis=1)
    return int(load.sum()), int(np.count_nonzero(load))
