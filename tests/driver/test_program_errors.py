"""Programs that do not fit the target, combine across blocks, or do not write outputs once."""

from __future__ import annotations

import pytest
from refusals import Refusal, Refusals, above_carets, check_refusal, name_of

import tilewright as tw
from tilewright.base.diagnostics import (
    CoverageError,
    RaceError,
    ReductionError,
    ResourceError,
    ShapeError,
    UnwrittenReadError,
)

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
G, f16, f32 = tw.GLOBAL, tw.f16, tw.f32
Row, Tile = tw.Memory[M, G, f32], tw.Memory[M, N, G, f32]
Lhs, Rhs, Out = tw.Memory[M, K, G, f16], tw.Memory[N, K, G, f16], tw.Memory[M, N, G, f32]

REFUSALS = Refusals()
refused = REFUSALS.add


def gemm(target: str, *constraints: object) -> None:
    """Compile a matrix product of any sizes under these constraints."""

    @tw.kernel(list(constraints))  # type: ignore[arg-type]
    def gemm(a: Lhs, b: Rhs, c: Out):
        @tw.iterate(K, init_args=[tw.Register[M, N, f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total, c)

    gemm.compile(target, {M: 512, N: 512, K: 512})


# ---------------------------------------------------------------- resources


@refused(
    ResourceError,
    "transpose needs 262144 bytes of shared memory",
    at="def transpose(x: Tile, y: tw.Memory[N, M, G, f32]):",
    expected="at most 232448 bytes on sm_90a",
    mend="use smaller tiles or fewer pipeline stages",
    notes=("buffer0: 262144 bytes",),
)
def shared_memory_beyond_the_target():
    @tw.kernel([tw.WorkgroupConstraint(M, 256, 0), tw.WorkgroupConstraint(N, 256, 1)])
    def transpose(x: Tile, y: tw.Memory[N, M, G, f32]):
        buffer = tw.allocate([M, N], f32)
        tw.write(tw.read(x), buffer)
        tw.write(tw.permute(tw.read(buffer), [N, M]), y)

    transpose.compile("sm_90a", {M: 512, N: 512})


@refused(
    ResourceError,
    "gemm needs 360608 bytes of shared memory",
    at="def gemm(a: Lhs, b: Rhs, c: Out):",
    expected="at most 232448 bytes on sm_90a",
    mend="use smaller tiles or fewer pipeline stages",
    notes=("a_ring: 163840 bytes", "b_ring: 163840 bytes", "c_panels: 32768 bytes"),
)
def pipeline_beyond_the_shared_memory():
    gemm(
        "sm_90a",
        tw.WorkgroupConstraint(M, 128, 0),
        tw.WorkgroupConstraint(N, 128, 1),
        tw.TilingConstraint(K, 64),
        tw.HardwareConstraint(stages=10),
    )


@refused(
    ResourceError,
    "the buffer needs the whole axis M, whose size is not known",
    at="tw.allocate([M], f32)",
    expected="a size that is known when compiling",
    mend="bind M, or give it a WorkgroupConstraint",
)
def buffer_of_an_open_axis():
    @tw.kernel()
    def copy(x: Row, y: Row):
        buffer = tw.allocate([M], f32)
        tw.write(tw.read(x), buffer)
        tw.write(tw.read(buffer), y)

    copy.compile("sm_90a")


@refused(
    ShapeError,
    "a buffer cannot be allocated in global memory",
    at="tw.allocate([M], f32, tw.GLOBAL)",
    expected="tw.SHARED",
    mend="pass a global tensor as an argument instead",
)
def buffer_in_global_memory():
    @tw.kernel()
    def copy(x: Row, y: Row):
        tw.write(tw.read(x), tw.allocate([M], f32, tw.GLOBAL))

    copy.compile("sm_90a")


@refused(
    ResourceError,
    "a value needs 2048 registers of a thread: its tile is M=256, N=256",
    at="tw.Register[M, N, f32](0.0)",
    expected="at most 255 on sm_90a",
    mend="use smaller tiles or more warps",
)
def registers_beyond_the_target():
    gemm(
        "sm_90a",
        tw.WorkgroupConstraint(M, 256, 0),
        tw.WorkgroupConstraint(N, 256, 1),
        tw.WaveConstraint(M, 256),
        tw.WaveConstraint(N, 256),
    )


# ---------------------------------------------------------------- reductions, reads and writes

ACROSS = (
    "the whole of N in one block; of a product's terms the blocks of a cluster can have a share "
    "each (split_k)"
)


@refused(
    ReductionError,
    "a sum runs along N, which is given to blocks",
    at="tw.sum(tw.read(x), dim=N)",
    expected=ACROSS,
    mend="remove the WorkgroupConstraint on N, or make the whole axis its tile",
    notes=("N is given to blocks in tiles of 32 at ",),
)
def sum_across_blocks():
    @tw.kernel([tw.WorkgroupConstraint(N, 32, 0)])
    def row_sum(x: Tile, y: Row):
        tw.write(tw.sum(tw.read(x), dim=N), y)

    row_sum.compile("sm_90a")


@refused(
    ReductionError,
    "a maximum runs along N, which is given to blocks",
    at="tw.max(tw.read(x), dim=N)",
    expected=ACROSS,
    mend="remove the WorkgroupConstraint on N",
)
def maximum_across_blocks():
    @tw.kernel([tw.WorkgroupConstraint(N, 32, 0)])
    def row_max(x: Tile, y: Row):
        tw.write(tw.max(tw.read(x), dim=N), y)

    row_max.compile("sm_90a", {M: 33, N: 33})


@refused(
    ReductionError,
    "the sum of a matrix product runs along K, which is given to blocks",
    at="tw.mma(tw.read(a), tw.read(b))",
    expected="the whole of K in one block",
    mend="remove the WorkgroupConstraint on K",
)
def product_across_blocks():
    @tw.kernel([tw.WorkgroupConstraint(K, 32, 0)])
    def gemm(a: Lhs, b: Rhs, c: Out):
        tw.write(tw.mma(tw.read(a), tw.read(b)), c)

    gemm.compile("gfx942")


@refused(
    ReductionError,
    "a loop that carries values runs along K, which is given to blocks",
    at="tw.iterate(K, init_args=[tw.Register[M, N, f32](0.0)])",
    expected="the whole of K in one block",
    mend="remove the WorkgroupConstraint on K",
)
def loop_across_blocks():
    gemm("sm_90a", tw.WorkgroupConstraint(K, 32, 0))


@refused(
    CoverageError,
    "y is written twice",
    at="tw.write(tw.read(x) + 1.0, y)",
    expected="one write that covers the tensor",
    mend="combine the values with tw.select, or write to a second tensor",
    notes=("the first write is at ",),
)
def output_written_twice():
    @tw.kernel()
    def twice(x: Row, y: Row):
        tw.write(tw.read(x), y)
        tw.write(tw.read(x) + 1.0, y)

    twice.compile("sm_90a")


@refused(
    CoverageError,
    "y[0] is written more than once",
    at="tw.write(tw.sum(tw.read(x), dim=N), y)",
    expected="every element of an output written exactly once",
    mend="place or loop over every digit of the output, and guard digits that replicate",
    notes=("by n_step = 0 and again by n_step = 1, the rest alike",),
)
def output_written_in_every_step():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def row_sum(x: Tile, y: Row):
        @tw.iterate(N)
        def _():
            tw.write(tw.sum(tw.read(x), dim=N), y)

    row_sum.compile("sm_90a", {M: 32, N: 32})


@refused(
    CoverageError,
    "nothing writes no tensor",
    at="def nothing(x: Row, y: Row):",
    expected="a tw.write to at least one argument",
    mend="write the result: tw.write(value, output)",
)
def program_that_writes_nothing():
    @tw.kernel()
    def nothing(x: Row, y: Row):
        tw.write(tw.read(x), tw.allocate([M], f32))

    nothing.compile("sm_90a", {M: 32})


@refused(
    UnwrittenReadError,
    "buffer0 is read, but nothing has been written to it",
    at="tw.read(buffer)",
    expected="a tw.write to the buffer before it is read",
    mend="write the buffer first",
)
def buffer_read_before_it_is_written():
    @tw.kernel()
    def copy(x: Row, y: Row):
        buffer = tw.allocate([M], f32)
        tw.write(tw.read(buffer), y)
        tw.write(tw.read(x), buffer)

    copy.compile("sm_90a", {M: 32})


@pytest.mark.parametrize("refusal", REFUSALS, ids=name_of)
def test_refused_with_its_line_and_its_mend(refusal: Refusal) -> None:
    check_refusal(refusal)


def test_an_output_that_another_block_reads_is_a_race() -> None:
    @tw.kernel([tw.WorkgroupConstraint(N, 32, 0)])
    def scaled(x: Tile, w: Row, scale: Row, y: Tile):
        tw.write(tw.read(w) * 2.0, scale)
        tw.write(tw.read(x) * tw.read(scale), y)

    with pytest.raises(RaceError, match=r"scale\[0\] is written by .* and read by ") as caught:
        scaled.compile("sm_90a", {M: 64, N: 64})
    assert above_carets(str(caught.value)) == "tw.read(scale)"


# ---------------------------------------------------------------- what is not an error


def test_a_loop_over_an_axis_of_blocks_may_write() -> None:
    @tw.kernel([tw.WorkgroupConstraint(M, 64, 0), tw.TilingConstraint(M, 32)])
    def copy(x: Row, y: Row):
        @tw.iterate(M)
        def _():
            tw.write(tw.read(x), y)

    assert "written exactly once" in copy.compile("sm_90a", {M: 200}).proof_report()


def test_one_block_may_reduce_the_axis_that_it_has_whole() -> None:
    @tw.kernel([tw.WorkgroupConstraint(N, 64, 0)])
    def row_sum(x: Tile, y: Row):
        tw.write(tw.sum(tw.read(x), dim=N), y)

    assert (
        "each of 50 terms is counted once"
        in row_sum.compile("sm_90a", {M: 8, N: 50}).proof_report()
    )


def test_warps_share_rows_that_blocks_have_one_at_a_time() -> None:
    @tw.kernel([tw.WorkgroupConstraint(M, 1, 0), tw.HardwareConstraint(waves_per_block=(4, 1, 1))])
    def row_sum(x: Tile, y: Row):
        tw.write(tw.sum(tw.read(x), dim=N), y)

    compiled = row_sum.compile("sm_90a", {M: 5, N: 1000})
    assert "block: 4 warps of 32 lanes" in compiled.explain()
    assert "the partial results of all warps combined, each once" in compiled.proof_report()


def test_three_warps_have_equal_shares() -> None:
    @tw.kernel([tw.WorkgroupConstraint(M, 96, 0), tw.WaveConstraint(M, 32)])
    def copy(x: Row, y: Row):
        tw.write(tw.read(x), y)

    assert "warp:3->32M" in copy.compile("gfx942", {M: 500}).explain()
