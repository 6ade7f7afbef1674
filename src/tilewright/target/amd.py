"""AMD targets. Layouts follow AMD's matrix instruction calculator; names are Wave's `MMAType`.

Rows of a and columns of b are the lane's low digit. Its high digit and the registers count k,
each lane holding consecutive k. In d the lane's low digit counts columns, and four consecutive
registers count rows, interleaved with the lane's high digit.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dtypes import DType, bf16, f8e4m3, f8e4m3fnuz, f16, f32, i8, i32
from tilewright.target.digits import lane, over_mk, over_mn, over_nk, register
from tilewright.target.model import MmaAtom, Target


def _atom(name: str, side: int, k: int, ab: DType, d: DType, emit: str, run: int = 0) -> MmaAtom:
    """An MFMA row: m = n = side, one wave of 64 lanes.

    `run` is how many consecutive k a lane holds before the next lane's run begins (0: all of
    its k). The hardware sums over k, so any assignment that a and b share computes the same;
    a run of 4 makes a permuted accumulator the next operand.
    """
    high = 64 // side
    per_lane = k // high
    run = run or per_lane
    k_digits = (register(per_lane // run, "k", high * run), register(run, "k"))
    a = over_mk(side, k, lane(high, "k", run), lane(side, "m"), *k_digits)
    b = over_nk(side, k, lane(high, "k", run), lane(side, "n"), *k_digits)
    rows = over_mn(
        side, side, lane(high, "m", 4), lane(side, "n"),
        register(side // (4 * high), "m", 4 * high), register(4, "m"),
    )  # fmt: skip
    return MmaAtom(name, side, side, k, ab, ab, d, a, b, rows, f"__builtin_amdgcn_mfma_{emit}")


_CDNA2_ATOMS = (
    _atom("F32_16x16x16_F16", 16, 16, f16, f32, "f32_16x16x16f16"),
    _atom("F32_32x32x8_F16", 32, 8, f16, f32, "f32_32x32x8f16"),
    _atom("F32_16x16x16_BF16", 16, 16, bf16, f32, "f32_16x16x16bf16_1k"),
    _atom("F32_32x32x8_BF16", 32, 8, bf16, f32, "f32_32x32x8bf16_1k"),
    _atom("F32_16x16x4_F32", 16, 4, f32, f32, "f32_16x16x4f32"),
    _atom("F32_32x32x2_F32", 32, 2, f32, f32, "f32_32x32x2f32"),
)
_CDNA3_INTEGER_ATOMS = (
    _atom("I32_16x16x32_I8", 16, 32, i8, i32, "i32_16x16x32_i8"),
    _atom("I32_32x32x16_I8", 32, 16, i8, i32, "i32_32x32x16_i8"),
)


def _fp8_atoms(fp8: DType) -> tuple[MmaAtom, ...]:
    # One instruction, two meanings: CDNA 3 reads fnuz bytes, CDNA 4 the OCP format.
    return (
        _atom("F32_16x16x32_F8", 16, 32, fp8, f32, "f32_16x16x32_fp8_fp8"),
        _atom("F32_32x32x16_F8", 32, 16, fp8, f32, "f32_32x32x16_fp8_fp8"),
        _atom("F32_16x16x32_K4_F8", 16, 32, fp8, f32, "f32_16x16x32_fp8_fp8", run=4),
        _atom("F32_32x32x16_K4_F8", 32, 16, fp8, f32, "f32_32x32x16_fp8_fp8", run=4),
    )


_CDNA4_ATOMS = (
    _atom("F32_16x16x32_F16", 16, 32, f16, f32, "f32_16x16x32_f16"),
    _atom("F32_32x32x16_F16", 32, 16, f16, f32, "f32_32x32x16_f16"),
    _atom("F32_16x16x32_BF16", 16, 32, bf16, f32, "f32_16x16x32_bf16"),
    _atom("F32_32x32x16_BF16", 32, 16, bf16, f32, "f32_32x32x16_bf16"),
)

GFX942 = Target(
    name="gfx942",
    printer="hip",
    warp_size=64,
    max_threads=1024,
    shared_bytes=64 * 1024,
    registers_per_thread=512,
    multiprocessors=304,
    vector_bytes=16,
    async_copy_bytes=(),
    mma_atoms=_CDNA2_ATOMS + _fp8_atoms(f8e4m3fnuz) + _CDNA3_INTEGER_ATOMS,
    matrix_loads=(),
)

GFX950 = replace(
    GFX942,
    name="gfx950",
    shared_bytes=160 * 1024,
    multiprocessors=256,
    mma_atoms=_CDNA2_ATOMS + _fp8_atoms(f8e4m3) + _CDNA3_INTEGER_ATOMS + _CDNA4_ATOMS,
)
