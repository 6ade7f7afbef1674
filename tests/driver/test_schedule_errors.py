"""Constraints that contradict each other, the program or the target; unfit instructions."""

from __future__ import annotations

import pytest
from refusals import Refusal, Refusals, check_refusal, name_of

import tilewright as tw
from tilewright.base.diagnostics import (
    AtomError,
    ConstraintError,
    ShapeError,
    UnsupportedError,
)

M, N, K, D, BLOCK = tw.sym.M, tw.sym.N, tw.sym.K, tw.sym.D, tw.sym.BLOCK
G, f16, f32 = tw.GLOBAL, tw.f16, tw.f32
Row, Tile = tw.Memory[M, G, f32], tw.Memory[M, N, G, f32]
Lhs, Rhs, Out = tw.Memory[M, K, G, f16], tw.Memory[N, K, G, f16], tw.Memory[M, N, G, f32]
F16, BF16 = tw.MMAType.F32_16x16x16_F16, tw.MMAType.F32_16x16x16_BF16

REFUSALS = Refusals()
refused = REFUSALS.add


def copy(*constraints: object, sizes: dict[object, int] | None = None) -> None:
    """Compile a copy of a tile under these constraints."""

    @tw.kernel(list(constraints))  # type: ignore[arg-type]
    def copy(x: Tile, y: Tile):
        tw.write(tw.read(x), y)

    copy.compile("sm_90a", {M: 64, N: 64, **(sizes or {})})


def gemm(target: str, *constraints: object) -> None:
    """Compile a matrix product of any sizes under these constraints."""

    @tw.kernel(list(constraints))  # type: ignore[arg-type]
    def gemm(a: Lhs, b: Rhs, c: Out):
        @tw.iterate(K, init_args=[tw.Register[M, N, f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total, c)

    gemm.compile(target, {M: 512, N: 512, K: 512})


# ---------------------------------------------------------------- constraints


@refused(
    ConstraintError,
    "the axis M has two WorkgroupConstraints",
    at="tw.WorkgroupConstraint(M, 32, 1)",
    expected="at most one of a kind",
    mend="remove one of them",
    notes=("the first is at ",),
)
def two_constraints_on_one_axis():
    copy(
        tw.WorkgroupConstraint(M, 64, 0),
        tw.WorkgroupConstraint(M, 32, 1),
    )


@refused(
    ConstraintError,
    "the kernel has two HardwareConstraints",
    at="tw.HardwareConstraint(stages=2)",
    expected="at most one of a kind",
    mend="remove one of them",
)
def two_hardware_constraints():
    copy(tw.HardwareConstraint(), tw.HardwareConstraint(stages=2))


@refused(
    ConstraintError,
    "M and N both have block dimension 0",
    at="tw.WorkgroupConstraint(N, 16, 0)",
    expected="a dimension of its own for each axis; there may be more than three",
    mend="give N another number, for example 1",
)
def two_axes_on_one_dimension():
    copy(tw.WorkgroupConstraint(M, 16, 0), tw.WorkgroupConstraint(N, 16, 0))


@refused(
    ConstraintError,
    "no tensor of copy has the axis D",
    at="tw.WorkgroupConstraint(D, 16, 0)",
    expected="one of M, N",
    mend="remove the constraint, or name an axis of the program",
)
def constraint_on_an_unknown_axis():
    copy(tw.WorkgroupConstraint(D, 16, 0))


@refused(
    ShapeError,
    "'M' is not an axis",
    at='tw.TilingConstraint("M", 16)',
    expected="a symbol, for example tw.sym.M",
    mend="name the axis with a symbol",
)
def constraint_on_text():
    tw.TilingConstraint("M", 16)  # type: ignore[arg-type]


@refused(
    ConstraintError,
    "the tile of M is 0",
    at="tw.WorkgroupConstraint(M, 0, 0)",
    expected="a positive number of elements, or an expression of symbols",
    mend="give a whole number, or a symbol that the bindings set",
)
def tile_of_nothing():
    tw.WorkgroupConstraint(M, 0, 0)


@refused(
    ConstraintError,
    "the tile of M is 0",
    at="tw.WorkgroupConstraint(M, BLOCK - 32, 0)",
    expected="a tile of at least one element",
    mend="check the symbols in the tile size and their bindings",
)
def tile_that_becomes_nothing():
    copy(tw.WorkgroupConstraint(M, BLOCK - 32, 0), sizes={BLOCK: 32})


@refused(
    ConstraintError,
    "(BLOCK / 3) is 16 / 3, which is not whole",
    at="tw.WaveConstraint(M, BLOCK / 3)",
    expected="a division without a remainder",
    mend="bind sizes that divide, or round down with //",
)
def share_that_is_not_whole():
    copy(
        tw.WorkgroupConstraint(M, BLOCK, 0),
        tw.WaveConstraint(M, BLOCK / 3),
        sizes={BLOCK: 16},
    )


@refused(
    ConstraintError,
    "the block dimension of M is -1",
    at="tw.WorkgroupConstraint(M, 16, -1)",
    expected="a number from 0",
    mend="number the dimensions 0, 1, 2, ..",
)
def negative_dimension():
    tw.WorkgroupConstraint(M, 16, -1)


@refused(
    ConstraintError,
    "waves_per_block is (2, 0, 1)",
    at="tw.HardwareConstraint(waves_per_block=(2, 0, 1))",
    expected="a tuple of positive numbers, one for each block dimension",
    mend="for example waves_per_block=(2, 2, 1)",
)
def no_waves():
    tw.HardwareConstraint(waves_per_block=(2, 0, 1))


@refused(
    ConstraintError,
    "stages is 0",
    at="tw.HardwareConstraint(stages=0)",
    expected="a positive number of pipeline stages",
    mend="leave stages out to have it chosen",
)
def no_stages():
    tw.HardwareConstraint(stages=0)


@refused(
    ConstraintError,
    "threads_per_wave is 64, but a warp of sm_90a has 32 lanes",
    at="tw.HardwareConstraint(threads_per_wave=64)",
    expected="threads_per_wave=32, or none",
    mend="leave threads_per_wave out to take the target's",
)
def width_of_another_target():
    copy(tw.HardwareConstraint(threads_per_wave=64))


@refused(
    ConstraintError,
    "waves_per_block asks for 2 warps along block dimension 1, which no axis has",
    at="tw.HardwareConstraint(waves_per_block=(1, 2, 1))",
    expected="warps along dimensions that a WorkgroupConstraint gives to an axis",
    mend="write 1 in place 1 of waves_per_block",
)
def waves_along_no_axis():
    gemm(
        "sm_90a",
        tw.WorkgroupConstraint(M, 32, 0),
        tw.HardwareConstraint(waves_per_block=(1, 2, 1)),
    )


@refused(
    ConstraintError,
    "a warp's 48 elements of M do not divide the block's 64",
    at="tw.WaveConstraint(M, 48)",
    expected="a wave tile that divides the workgroup tile",
    mend="give M a WorkgroupConstraint whose tile is a multiple of 48",
)
def wave_tile_that_does_not_divide():
    copy(tw.WorkgroupConstraint(M, 64, 0), tw.WaveConstraint(M, 48))


@refused(
    ConstraintError,
    "M has 2 warps by its WaveConstraint and 4 by waves_per_block",
    at="tw.HardwareConstraint(waves_per_block=(4,))",
    expected="one number of warps per axis",
    mend="leave waves_per_block out",
)
def waves_in_two_ways():
    copy(
        tw.WorkgroupConstraint(M, 64, 0),
        tw.WaveConstraint(M, 32),
        tw.HardwareConstraint(waves_per_block=(4,)),
    )


@refused(
    ConstraintError,
    "64 warps of 32 lanes in a block",
    at="tw.WaveConstraint(M, 1)",
    expected="at most 1024 threads on sm_90a",
    mend="use larger wave tiles or smaller workgroup tiles",
)
def too_many_threads():
    copy(tw.WorkgroupConstraint(M, 64, 0), tw.WaveConstraint(M, 1))


# ---------------------------------------------------------------- instructions


@refused(
    AtomError,
    "sm_90a has no instruction F32_16x16x16_F16",
    at="tw.HardwareConstraint(mma_type=F16)",
    expected="for f16 into f32 on sm_90a: mma.sync.m16n8k16.f32.f16, mma.sync.m16n8k8.f32.f16",
    mend="leave mma_type out to have it chosen",
)
def instruction_of_another_target():
    gemm("sm_90a", tw.HardwareConstraint(mma_type=F16))


@refused(
    AtomError,
    "F32_16x16x16_BF16 multiplies bf16 into f32, not f16 into f32",
    at="tw.HardwareConstraint(mma_type=BF16)",
    expected="for f16 into f32 on gfx942: F32_16x16x16_F16, F32_32x32x8_F16",
    mend="leave mma_type out to have it chosen",
)
def instruction_of_another_type():
    gemm("gfx942", tw.HardwareConstraint(mma_type=BF16))


@refused(
    AtomError,
    "gfx942 has no instruction F32_8x8x8",
    at='tw.mma(tw.read(a), tw.read(b), mma_type="F32_8x8x8")',
    expected="for f16 into f32 on gfx942: F32_16x16x16_F16",
    mend="leave mma_type out to have it chosen",
)
def instruction_of_no_target():
    @tw.kernel()
    def gemm(a: Lhs, b: Rhs, c: Out):
        tw.write(tw.mma(tw.read(a), tw.read(b), mma_type="F32_8x8x8"), c)

    gemm.compile("gfx942")


@refused(
    AtomError,
    "F32_16x16x16_F16 multiplies matrices, and an operand over K is a vector",
    at="tw.mma(tw.read(a), tw.read(x), mma_type=F16)",
    expected="in each operand an axis that the other lacks",
    mend="leave mma_type out",
)
def instruction_for_a_vector():
    @tw.kernel()
    def matrix_vector(a: Lhs, x: tw.Memory[K, G, f16], y: Row):
        tw.write(tw.mma(tw.read(a), tw.read(x), mma_type=F16), y)

    matrix_vector.compile("gfx942")


@refused(
    AtomError,
    "the tile of 24 elements of M is not a multiple of 16",
    at="tw.WorkgroupConstraint(M, 24, 0)",
    expected="a multiple of 16: F32_16x16x16_F16 takes 16 of M",
    mend="use a tile of 32",
)
def tile_that_the_instruction_does_not_divide():
    gemm("gfx942", tw.WorkgroupConstraint(M, 24, 0), tw.HardwareConstraint(mma_type=F16))


@refused(
    AtomError,
    "the tile of 24 elements of K is not a multiple of 16",
    at="tw.TilingConstraint(K, 24)",
    expected="a multiple of 16: F32_16x16x16_F16 takes 16 of K",
    mend="use a tile of 32",
)
def step_that_the_instruction_does_not_divide():
    gemm("gfx942", tw.TilingConstraint(K, 24), tw.HardwareConstraint(mma_type=F16))


@refused(
    AtomError,
    "the tile of 32 elements of M is not a multiple of 64",
    at="tw.WorkgroupConstraint(M, 32, 0)",
    expected="a multiple of 64: F32_16x16x16_F16 takes 16 of M, for each of 4 warps",
    mend="use a tile of 64",
)
def tile_that_the_warps_do_not_divide():
    gemm(
        "gfx942",
        tw.WorkgroupConstraint(M, 32, 0),
        tw.HardwareConstraint(mma_type=F16, waves_per_block=(4,)),
    )


@refused(
    UnsupportedError,
    "there is no target 'sm_70'",
    at="",
    expected="one of sm_90a, gfx942, gfx950",
    mend="name one of them",
)
def unknown_target():
    gemm("sm_70")


@pytest.mark.parametrize("refusal", REFUSALS, ids=name_of)
def test_refused_with_its_line_and_its_mend(refusal: Refusal) -> None:
    check_refusal(refusal)


def test_the_kernel_wide_instruction_leaves_vectors_alone() -> None:
    @tw.kernel([tw.HardwareConstraint(mma_type=F16)])
    def both(a: Lhs, b: Rhs, x: tw.Memory[K, G, f16], c: Out, y: Row):
        tw.write(tw.mma(tw.read(a), tw.read(b)), c)
        tw.write(tw.mma(tw.read(a), tw.read(x)), y)

    compiled = both.compile("gfx942", {M: 16, N: 16, K: 16})
    assert compiled.ir.count("mma F32_16x16x16_F16") == 1
