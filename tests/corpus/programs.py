"""Tile programs that exercise the language, each with sizes to run it at.

They are run on the simulator of every target and, where there is one, on the device, and
compared with the reference interpreter of the tile graph.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tilewright as tw
from tilewright import TileKernel

sym = tw.sym
B, H, M, N, K, K1, K2, D = sym.B, sym.H, sym.M, sym.N, sym.K, sym.K1, sym.K2, sym.D
G = tw.GLOBAL


@dataclass(frozen=True)
class Case:
    """A kernel, and bindings of all its axes (as numbers). `dynamic` axes stay open."""

    name: str
    make: Callable[[], TileKernel]
    sizes: tuple[Mapping[str, int], ...]
    targets: tuple[str, ...] = ("sm_90a", "gfx942")
    dynamic: tuple[str, ...] = ()
    strides: Mapping[str, Callable[[Mapping[str, int]], tuple[int, ...]]] = field(
        default_factory=dict
    )


CASES: list[Case] = []


def case(*sizes: Mapping[str, int], targets=("sm_90a", "gfx942"), dynamic=(), name=""):
    """Add the kernel that the decorated factory makes."""

    def add(make):
        CASES.append(Case(name or make.__name__, make, sizes, targets, dynamic))
        return make

    return add


def sizes(*values: tuple[int, ...], axes: str):
    return tuple(dict(zip(axes.split(), v, strict=True)) for v in values)


# ---------------------------------------------------------------- chained products


@case(*sizes((16, 32, 16, 16), (1, 1, 1, 1), (17, 33, 5, 70), (100, 90, 130, 40), axes="M N K1 K2"))
def chained_gemm():
    @tw.kernel([tw.WorkgroupConstraint(K2, K2, 0)])
    def chained_gemm(
        q: tw.Memory[M, K1, G, tw.f16],
        k: tw.Memory[K2, K1, G, tw.f16],
        do: tw.Memory[N, M, G, tw.f16],
        dv: tw.Memory[K2, N, G, tw.f32],
    ):
        s = tw.mma(tw.read(q), tw.read(k), tw.Register[M, K2, tw.f32](0.0))
        s = tw.cast(tw.permute(s, target_shape=[K2, M]), tw.f16)
        tw.write(tw.mma(s, tw.read(do), tw.Register[K2, N, tw.f32](0.0)), dv)

    return chained_gemm


@case(*sizes((20, 30, 40, 50), (64, 64, 64, 64), axes="M N K1 K2"))
def chained_gemm_blocks():
    @tw.kernel([tw.WorkgroupConstraint(K2, 32, 0), tw.WorkgroupConstraint(N, 32, 1)])
    def chained_gemm_blocks(
        q: tw.Memory[M, K1, G, tw.bf16],
        k: tw.Memory[K2, K1, G, tw.bf16],
        do: tw.Memory[M, N, G, tw.bf16],
        dv: tw.Memory[K2, N, G, tw.bf16],
    ):
        s = tw.cast(tw.mma(tw.read(q), tw.read(k)), tw.bf16)
        tw.write(tw.cast(tw.mma(s, tw.read(do)), tw.bf16), dv)

    return chained_gemm_blocks


# ---------------------------------------------------------------- products

GEMM_SIZES = sizes((128, 128, 64), (130, 70, 50), (1, 1, 1), (100, 257, 99), (65, 40, 8),
                   axes="M N K")  # fmt: skip


def gemm_factory(lhs: tuple, rhs: tuple, dtype, block=(64, 64, 32), out=None):
    out = out or tw.f32

    def make():
        @tw.kernel(
            [
                tw.WorkgroupConstraint(M, block[0], 0),
                tw.WorkgroupConstraint(N, block[1], 1),
                tw.TilingConstraint(K, block[2]),
                tw.WaveConstraint(M, block[0] // 2),
                tw.WaveConstraint(N, block[1] // 2),
            ]
        )
        def gemm(
            a: tw.Memory[(*lhs, G, dtype)],
            b: tw.Memory[(*rhs, G, dtype)],
            c: tw.Memory[M, N, G, out],
        ):
            zero = tw.Register[M, N, tw.f32](0.0)

            @tw.iterate(K, init_args=[zero])
            def total(acc):
                return tw.mma(tw.read(a), tw.read(b), acc)

            tw.write(total if out == tw.f32 else tw.cast(total, out), c)

        return gemm

    return make


for _a in ((M, K), (K, M)):
    for _b in ((N, K), (K, N)):
        for _t in (tw.f16, tw.bf16):
            _name = f"gemm_{_a[0]}{_a[1]}_{_b[0]}{_b[1]}_{_t.name}".lower()
            case(*GEMM_SIZES, name=_name)(gemm_factory(_a, _b, _t))
case(*GEMM_SIZES[:2], name="gemm_128")(gemm_factory((M, K), (N, K), tw.f16, (128, 128, 32), tw.f16))
case(*GEMM_SIZES, name="gemm_dynamic", dynamic=("M", "N", "K"))(
    gemm_factory((M, K), (N, K), tw.f16)
)
case(*GEMM_SIZES[:3], name="gemm_f32")(gemm_factory((M, K), (N, K), tw.f32, (16, 32, 8)))


@case(*sizes((40, 48, 64), (33, 17, 70), axes="M N K"))
def gemm_i8():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0), tw.WorkgroupConstraint(N, 32, 1)])
    def gemm_i8(
        a: tw.Memory[M, K, G, tw.i8], b: tw.Memory[N, K, G, tw.i8], c: tw.Memory[M, N, G, tw.i32]
    ):
        tw.write(tw.mma(tw.read(a), tw.read(b)), c)

    return gemm_i8


@case(*sizes((3, 40, 48, 64), (2, 33, 17, 20), axes="B M N K"))
def gemm_batched():
    @tw.kernel(
        [
            tw.WorkgroupConstraint(M, 32, 0),
            tw.WorkgroupConstraint(N, 32, 1),
            tw.WorkgroupConstraint(B, 1, 2),
            tw.TilingConstraint(K, 32),
        ]
    )
    def gemm_batched(
        a: tw.Memory[B, M, K, G, tw.f16],
        b: tw.Memory[B, N, K, G, tw.f16],
        c: tw.Memory[B, M, N, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[B, M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total, c)

    return gemm_batched


@case(*sizes((3, 40, 48, 64), axes="B M N K"))
def gemm_batch_unplaced():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0)])
    def gemm_batch_unplaced(
        a: tw.Memory[B, M, K, G, tw.f16],
        b: tw.Memory[N, K, G, tw.f16],
        c: tw.Memory[B, M, N, G, tw.f32],
    ):
        tw.write(tw.mma(tw.read(a), tw.read(b)), c)

    return gemm_batch_unplaced


@case(*sizes((64, 64, 64), (70, 33, 50), axes="M N K"))
def gemm_epilogue():
    @tw.kernel(
        [
            tw.WorkgroupConstraint(M, 64, 0),
            tw.WorkgroupConstraint(N, 64, 1),
            tw.TilingConstraint(K, 32),
            tw.HardwareConstraint(waves_per_block=(2, 1, 1)),
        ]
    )
    def gemm_epilogue(
        a: tw.Memory[M, K, G, tw.f16],
        b: tw.Memory[N, K, G, tw.f16],
        bias: tw.Memory[N, G, tw.f32],
        res: tw.Memory[M, N, G, tw.f16],
        c: tw.Memory[M, N, G, tw.f16],
        sums: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        x = total + tw.read(bias)
        gelu = x * 0.5 * (tw.erf(x * 0.7071067811865476) + 1.0)
        tw.write(x, sums)
        tw.write(tw.cast(gelu + tw.cast(tw.read(res), tw.f32), tw.f16), c)

    return gemm_epilogue


@case(*sizes((40, 64), (33, 1), (7, 200), axes="M K"))
def matrix_vector():
    @tw.kernel([tw.WorkgroupConstraint(M, 16, 0)])
    def matrix_vector(
        a: tw.Memory[M, K, G, tw.f32], x: tw.Memory[K, G, tw.f32], y: tw.Memory[M, G, tw.f32]
    ):
        tw.write(tw.mma(tw.read(a), tw.read(x)), y)

    return matrix_vector


@case(*sizes((64, 64, 32), (50, 90, 40), axes="M N K"))
def gemm_shared_space():
    space = sym.ADDRESS_SPACE

    @tw.kernel(
        [
            tw.WorkgroupConstraint(M, 32, 0),
            tw.WorkgroupConstraint(N, 32, 1),
            tw.TilingConstraint(K, 16),
        ],
        bindings={space: tw.SHARED_ADDRESS_SPACE},
    )
    def gemm_shared_space(
        a: tw.Memory[M, K, space, tw.f16],
        b: tw.Memory[N, K, space, tw.f16],
        c: tw.Memory[M, N, tw.GLOBAL_ADDRESS_SPACE, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a, elements_per_thread=4), tw.read(b, elements_per_thread=4), acc)

        tw.write(total, c, elements_per_thread=4)

    return gemm_shared_space


# ---------------------------------------------------------------- rows and columns

ROWS = sizes((5, 33), (3, 1024), (2, 5000), (1, 1), axes="M N")


@case(*ROWS)
def softmax():
    @tw.kernel([tw.WorkgroupConstraint(M, 1, 0)])
    def softmax(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32]):
        v = tw.read(x)
        e = tw.exp(v - tw.max(v, dim=N))
        tw.write(e / tw.sum(e, dim=N), y)

    return softmax


@case(*ROWS, dynamic=("N",), name="softmax_dynamic")
@case(*ROWS)
def softmax_online():
    @tw.kernel([tw.WorkgroupConstraint(M, 4, 0), tw.TilingConstraint(N, 256)])
    def softmax_online(x: tw.Memory[M, N, G, tw.f16], y: tw.Memory[M, N, G, tw.f16]):
        low = tw.Register[M, tw.f32](float("-inf"))
        zero = tw.Register[M, tw.f32](0.0)

        @tw.iterate(N, init_args=[low, zero])
        def stats(m_prev, s_prev):
            v = tw.cast(tw.read(x), tw.f32)
            m = tw.max(v, m_prev, dim=N)
            s = tw.sum(tw.exp2(v - m), s_prev * tw.exp2(m_prev - m), dim=N)
            return m, s

        m, s = stats

        @tw.iterate(N)
        def _():
            v = tw.cast(tw.read(x), tw.f32)
            tw.write(tw.cast(tw.exp2(v - m) / s, tw.f16), y)

    return softmax_online


@case(*ROWS)
def rmsnorm():
    @tw.kernel([tw.WorkgroupConstraint(M, 1, 0)])
    def rmsnorm(
        x: tw.Memory[M, N, G, tw.bf16],
        w: tw.Memory[N, G, tw.bf16],
        eps: tw.f32,
        y: tw.Memory[M, N, G, tw.bf16],
    ):
        v = tw.cast(tw.read(x), tw.f32)
        mean = tw.sum(v * v, dim=N) / tw.extent(N, tw.f32)
        scaled = v * tw.rsqrt(mean + tw.abs(eps) + 0.001) * tw.cast(tw.read(w), tw.f32)
        tw.write(tw.cast(scaled, tw.bf16), y)

    return rmsnorm


@case(*sizes((33, 5), (300, 70), (1, 1), (1000, 3), axes="M N"))
def column_sums():
    @tw.kernel([tw.WorkgroupConstraint(N, 64, 0)])
    def column_sums(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[N, G, tw.f32]):
        tw.write(tw.sum(tw.read(x), dim=M), y)

    return column_sums


@case(*ROWS)
def row_extremes():
    @tw.kernel([tw.WorkgroupConstraint(M, 2, 0), tw.HardwareConstraint(waves_per_block=(2,))])
    def row_extremes(
        x: tw.Memory[M, N, G, tw.i32], hi: tw.Memory[M, G, tw.i32], lo: tw.Memory[M, G, tw.i32]
    ):
        v = tw.read(x)
        tw.write(tw.max(v, dim=N), hi)
        tw.write(tw.min(v, dim=N), lo)

    return row_extremes


@case(*sizes((4, 5, 33), (2, 3, 200), axes="B M N"))
def middle_sum():
    @tw.kernel([tw.WorkgroupConstraint(B, 1, 0)])
    def middle_sum(x: tw.Memory[B, M, N, G, tw.f16], y: tw.Memory[B, N, G, tw.f16]):
        tw.write(tw.sum(tw.read(x), dim=M), y)

    return middle_sum


@case(*sizes((40, 50), (7, 3), axes="M N"))
def total_sum():
    @tw.kernel()
    def total_sum(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[D, G, tw.f32]):
        whole = tw.sum(tw.sum(tw.read(x), dim=N), dim=M)
        tw.write(tw.broadcast(whole, target_shape=[D]), y)

    return total_sum


# ---------------------------------------------------------------- elementwise and movement


@case(*sizes((33, 5), (64, 64), (100, 130), (1, 1), (1, 77), axes="M N"))
def transpose():
    @tw.kernel([tw.WorkgroupConstraint(M, 64, 0), tw.WorkgroupConstraint(N, 64, 1)])
    def transpose(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[N, M, G, tw.f32]):
        tw.write(tw.permute(tw.read(x), target_shape=[N, M]), y)

    return transpose


@case(*sizes((33,), (4096,), (1,), (777,), axes="N"))
def unary():
    @tw.kernel([tw.WorkgroupConstraint(N, 256, 0)])
    def unary(x: tw.Memory[N, G, tw.f32], y: tw.Memory[N, G, tw.f32], z: tw.Memory[N, G, tw.f32]):
        v = tw.read(x)
        a = tw.abs(v) + 0.5
        s = tw.exp(v) + tw.exp2(v) + tw.log(a) + tw.log2(a) + tw.sqrt(a) + tw.rsqrt(a)
        s = s + tw.reciprocal(a) + tw.tanh(v) + tw.sin(v) + tw.cos(v) + tw.erf(v)
        tw.write(s, y)
        r = tw.floor(v) * 100.0 + tw.ceil(v) * 10.0 + tw.round(v)
        tw.write(tw.select(v > 0.0, r, tw.maximum(tw.minimum(-v, 0.5), v**2.0)), z)

    return unary


@case(*sizes((33,), (300,), axes="N"))
def integers():
    @tw.kernel([tw.WorkgroupConstraint(N, 64, 0)])
    def integers(
        x: tw.Memory[N, G, tw.i32], y: tw.Memory[N, G, tw.i64], b: tw.Memory[N, G, tw.boolean]
    ):
        v = tw.read(x)
        i = tw.self_index(N)
        mixed = (v // 3) * 7 + v % 5 + (v & 6) - (v | 1) + (v ^ i)
        tw.write(tw.cast(mixed, tw.i64), y)
        tw.write((v > i) & ~(v == 3), b)

    return integers


@case(*sizes((70,), (256,), axes="N"))
def casts():
    @tw.kernel([tw.WorkgroupConstraint(N, 64, 0)])
    def casts(
        x: tw.Memory[N, G, tw.f32],
        h: tw.Memory[N, G, tw.f16],
        b: tw.Memory[N, G, tw.bf16],
        i: tw.Memory[N, G, tw.i8],
        d: tw.Memory[N, G, tw.f64],
    ):
        v = tw.read(x)
        tw.write(tw.cast(v, tw.f16), h)
        tw.write(tw.cast(v, tw.bf16), b)
        tw.write(tw.cast(v * 10.0, tw.i8), i)
        tw.write(tw.cast(v, tw.f64) * 2.0, d)

    return casts


@case(*sizes((70,), (256,), axes="N"), targets=("sm_90a",))
def fp8_storage():
    @tw.kernel([tw.WorkgroupConstraint(N, 64, 0)])
    def fp8_storage(
        x: tw.Memory[N, G, tw.f8e4m3], y: tw.Memory[N, G, tw.f8e5m2], z: tw.Memory[N, G, tw.f8e4m3]
    ):
        v = tw.cast(tw.read(x), tw.f32)
        tw.write(tw.cast(v * 1.5, tw.f8e5m2), y)
        tw.write(tw.cast(v * 1.25, tw.f8e4m3), z)

    return fp8_storage


@case(*sizes((33, 40), (5, 130), axes="M N"))
def outer_and_index():
    @tw.kernel([tw.WorkgroupConstraint(M, 16, 0), tw.WorkgroupConstraint(N, 32, 1)])
    def outer_and_index(
        x: tw.Memory[M, G, tw.f32], y: tw.Memory[N, G, tw.f32], z: tw.Memory[M, N, G, tw.f32]
    ):
        causal = tw.self_index(N) <= tw.self_index(M)
        tw.write(tw.select(causal, tw.read(x) * tw.read(y), float("-inf")), z)

    return outer_and_index


@case(*sizes((3, 4, 5, 6), (2, 3, 9, 20), axes="B H M N"))
def four_axes():
    @tw.kernel(
        [
            tw.WorkgroupConstraint(B, 1, 0),
            tw.WorkgroupConstraint(H, 2, 1),
            tw.WorkgroupConstraint(M, 4, 2),
            tw.WorkgroupConstraint(N, 8, 3),
        ]
    )
    def four_axes(x: tw.Memory[B, H, M, N, G, tw.f32], y: tw.Memory[N, B, M, H, G, tw.f32]):
        tw.write(tw.permute(tw.read(x), target_shape=[N, B, M, H]) + 1.0, y)

    return four_axes


@case(*sizes((20, 24), axes="M N"))
def shared_buffer():
    @tw.kernel([tw.WorkgroupConstraint(M, 16, 0), tw.WorkgroupConstraint(N, 16, 1)])
    def shared_buffer(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[N, M, G, tw.f32]):
        tile = tw.allocate([M, N], tw.f32)
        tw.write(tw.read(x) * 2.0, tile)
        tw.write(tw.permute(tw.read(tile), target_shape=[N, M]), y)

    return shared_buffer


@case(*sizes((20, 24), (64, 100), axes="M N"))
def untouched_constraints():
    @tw.kernel()
    def untouched_constraints(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32]):
        tw.write(tw.read(x) + 1.0, y)

    return untouched_constraints


@case(*sizes((6, 20, 120), (3, 33, 99), axes="M N K"))
def merge_axes():
    @tw.kernel([tw.WorkgroupConstraint(K, 64, 0)])
    def merge_axes(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[K, G, tw.f32]):
        tw.write(tw.reshape(tw.read(x) * 2.0, target_shape=[K]), y)

    return merge_axes


@case(*sizes((5, 6, 20, 120), (4, 3, 33, 99), axes="B M N K"))
def split_axis_and_reduce():
    @tw.kernel([tw.WorkgroupConstraint(B, 1, 0)])
    def split_axis_and_reduce(
        x: tw.Memory[B, K, G, tw.f16], y: tw.Memory[B, M, G, tw.f16], z: tw.Memory[M, N, G, tw.i32]
    ):
        v = tw.reshape(tw.cast(tw.read(x), tw.f32), target_shape=[B, M, N])
        tw.write(tw.cast(tw.sum(v, dim=N), tw.f16), y)
        tw.write(tw.reshape(tw.self_index(K), target_shape=[M, N]), z)

    return split_axis_and_reduce


@case(*sizes((20, 24, 40), (33, 7, 50), axes="M N K"))
def nested_loops():
    @tw.kernel(
        [
            tw.WorkgroupConstraint(M, 16, 0),
            tw.TilingConstraint(K, 16),
            tw.TilingConstraint(N, 8),
        ]
    )
    def nested_loops(
        a: tw.Memory[M, K, G, tw.f16],
        b: tw.Memory[N, K, G, tw.f16],
        y: tw.Memory[M, G, tw.f32],
        z: tw.Memory[M, N, G, tw.f32],
    ):
        @tw.iterate(N, init_args=[tw.Register[M, tw.f32](0.0)])
        def outer(best):
            @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
            def inner(acc):
                return tw.mma(tw.read(a), tw.read(b), acc)

            tw.write(inner, z)
            return tw.max(inner, best, dim=N)

        tw.write(outer, y)

    return nested_loops


@case(*sizes((20, 24), axes="M N"))
def swapped_carries():
    @tw.kernel([tw.TilingConstraint(N, 8)])
    def swapped_carries(
        x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, G, tw.f32], z: tw.Memory[M, G, tw.f32]
    ):
        @tw.iterate(N, init_args=[tw.Register[M, tw.f32](1.0), tw.Register[M, tw.f32](2.0)])
        def both(p, q):
            s = tw.sum(tw.read(x), dim=N)
            return q, p + s

        tw.write(both[0], y)
        tw.write(both[1], z)

    return swapped_carries


@case(*sizes((20, 24), (1, 1), axes="M N"))
def guarded_write():
    @tw.kernel([tw.WorkgroupConstraint(M, 8, 0)])
    def guarded_write(x: tw.Memory[M, N, G, tw.f32], flag: tw.i32, y: tw.Memory[M, N, G, tw.f32]):
        tile = tw.allocate([M, N], tw.f32)
        tw.write(tw.read(x), tile)

        @tw.conditional(flag > 0)
        def _():
            tw.write(tw.read(x) * 2.0, tile)

        tw.write(tw.read(tile) + 1.0, y)

    return guarded_write


@case(*sizes((70, 30), (140, 12), axes="M N"))
def product_spread_over_its_terms():
    @tw.kernel()
    def product_spread_over_its_terms(
        x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32], z: tw.Memory[M, N, G, tw.f32]
    ):
        total = tw.mma(tw.read(x), tw.read(y), tw.Register[N, tw.f32](0.0))
        tw.write(tw.broadcast(total, target_shape=[M, N]), z)

    return product_spread_over_its_terms


@case(*sizes((70, 5000), (300, 4100), axes="M N"))
def carried_and_written_over_its_loop():
    @tw.kernel([tw.TilingConstraint(M, 16)])
    def carried_and_written_over_its_loop(
        x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32]
    ):
        @tw.iterate(M, init_args=[tw.Register[N, tw.f32](0.0)])
        def total(acc):
            return tw.sum(tw.read(x), acc, dim=M)

        tw.write(total + tw.read(x), y)

    return carried_and_written_over_its_loop


# ---------------------------------------------------------------- attention


@case(*sizes((32, 64, 16, 16), (50, 70, 32, 20), axes="M N K D"))
def attention():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0), tw.TilingConstraint(N, 32)])
    def attention(
        q: tw.Memory[M, K, G, tw.f16],
        k: tw.Memory[N, K, G, tw.f16],
        v: tw.Memory[N, D, G, tw.f16],
        o: tw.Memory[M, D, G, tw.f32],
    ):
        low = tw.Register[M, tw.f32](float("-inf"))
        zero = tw.Register[M, tw.f32](0.0)
        out = tw.Register[M, D, tw.f32](0.0)

        @tw.iterate(N, init_args=[low, zero, out])
        def state(m_prev, s_prev, acc):
            s = tw.mma(tw.read(q), tw.read(k), tw.Register[M, N, tw.f32](0.0))
            inside = tw.self_index(N) < tw.extent(N)
            s = tw.select(inside, s * 0.25, float("-inf"))
            m = tw.max(s, m_prev, dim=N)
            p = tw.exp(s - m)
            scale = tw.exp(m_prev - m)
            total = tw.sum(p, s_prev * scale, dim=N)
            return m, total, tw.mma(tw.cast(p, tw.f16), tw.read(v), acc * scale)

        _, total, acc = state
        tw.write(acc / total, o)

    return attention


# ---------------------------------------------------------------- indices that are data

V, T = sym.V, sym.T


@case(*sizes((9, 33, 5), (6, 64, 128), (4, 1, 1), (7, 50, 96), axes="V T D"))
@case(*sizes((9, 33, 5), (6, 64, 128), axes="V T D"), dynamic=("V", "T"), name="embedding_dynamic")
@case(*sizes((5, 20, 33), axes="V T D"), dynamic=("V", "T", "D"), name="embedding_all_dynamic")
def embedding():
    @tw.kernel([tw.WorkgroupConstraint(T, 16, 0)])
    def embedding(
        table: tw.Memory[V, D, G, tw.f16],
        tokens: tw.Memory[T, G, tw.i64],
        y: tw.Memory[T, D, G, tw.f16],
    ):
        tw.write(tw.gather(table, V, tw.read(tokens)), y)

    return embedding


@case(*sizes((9, 33, 40), (3, 5, 7), axes="V M N"))
def take_along_axis():
    @tw.kernel([tw.WorkgroupConstraint(M, 16, 0), tw.WorkgroupConstraint(N, 32, 1)])
    def take_along_axis(
        x: tw.Memory[M, V, G, tw.f32],
        at: tw.Memory[M, N, G, tw.i32],
        y: tw.Memory[M, N, G, tw.f32],
    ):
        tw.write(tw.gather(x, V, tw.read(at)), y)

    return take_along_axis


@case(*sizes((12, 33, 7), (9, 5, 300), axes="N M D"))
def permute_within_rows():
    @tw.kernel([tw.WorkgroupConstraint(M, 8, 0)])
    def permute_within_rows(
        x: tw.Memory[M, N, G, tw.i32],
        at: tw.Memory[N, M, G, tw.i16],
        y: tw.Memory[N, M, G, tw.i32],
    ):
        tw.write(tw.gather(tw.read(x) * 3, N, tw.read(at)), y)

    return permute_within_rows


@case(*sizes((9, 33, 40), (3, 130, 16), axes="V M D"))
def gather_in_a_chain():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0)])
    def gather_in_a_chain(
        x: tw.Memory[V, D, G, tw.f16],
        w: tw.Memory[D, G, tw.f32],
        at: tw.Memory[M, G, tw.i32],
        y: tw.Memory[M, D, G, tw.f32],
        s: tw.Memory[M, G, tw.f32],
    ):
        v = tw.exp(tw.cast(tw.read(x), tw.f32) * tw.read(w)) + 1.0
        picked = tw.gather(v, V, tw.read(at) // 2 + 1) * 2.0
        tw.write(picked, y)
        tw.write(tw.sum(picked, dim=D), s)

    return gather_in_a_chain


@case(*sizes((9, 6, 33), (40, 3, 1), axes="V K M"))
def gather_of_a_gather():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0)])
    def gather_of_a_gather(
        x: tw.Memory[V, G, tw.f32],
        first: tw.Memory[K, G, tw.i64],
        at: tw.Memory[M, G, tw.i32],
        y: tw.Memory[M, G, tw.f32],
    ):
        tw.write(tw.gather(tw.gather(x, V, tw.read(first)), K, tw.read(at)), y)

    return gather_of_a_gather


@case(*sizes((9, 6, 33), (4, 3, 1), axes="V K M"))
def gather_on_two_axes():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0)])
    def gather_on_two_axes(
        x: tw.Memory[V, K, G, tw.f32],
        row: tw.Memory[M, G, tw.i64],
        column: tw.Memory[M, G, tw.i32],
        y: tw.Memory[M, G, tw.f32],
    ):
        tw.write(tw.gather(tw.gather(x, V, tw.read(row)), K, tw.read(column)), y)

    return gather_on_two_axes


@case(*sizes((3, 4, 12, 33), (2, 9, 18, 5), axes="B N K M"))
def gather_of_a_reshape():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0)])
    def gather_of_a_reshape(
        x: tw.Memory[B, N, G, tw.f32],
        w: tw.Memory[K, G, tw.f32],
        at: tw.Memory[M, G, tw.i32],
        y: tw.Memory[M, G, tw.f32],
    ):
        flat = tw.reshape(tw.read(x) + 1.0, target_shape=[K]) * tw.read(w)
        tw.write(tw.gather(flat, K, tw.abs(tw.read(at))), y)

    return gather_of_a_reshape


@case(*sizes((9, 40, 33, 16), axes="V M N K"))
def gathered_operand():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0), tw.WorkgroupConstraint(N, 32, 1)])
    def gathered_operand(
        table: tw.Memory[V, K, G, tw.f16],
        at: tw.Memory[M, G, tw.i32],
        b: tw.Memory[N, K, G, tw.f16],
        c: tw.Memory[M, N, G, tw.f32],
    ):
        tw.write(tw.mma(tw.gather(table, V, tw.read(at)), tw.read(b)), c)

    return gathered_operand


# ---------------------------------------------------------------- scans

SCANS = sizes((5, 33), (3, 1024), (2, 5000), (1, 1), (9, 4096), axes="M N")


def scan_rows(name: str, how, dtype=tw.f32, block: int = 1):
    def make():
        @tw.kernel([tw.WorkgroupConstraint(M, block, 0)])
        def scan_rows(x: tw.Memory[M, N, G, dtype], y: tw.Memory[M, N, G, dtype]):
            tw.write(how(tw.read(x)), y)

        return scan_rows

    return make


for _name, _how, _dtype in (
    ("cumsum", lambda v: tw.cumsum(v, dim=N), tw.f32),
    ("cumsum_exclusive", lambda v: tw.cumsum(v, dim=N, exclusive=True), tw.f16),
    ("cumsum_reverse", lambda v: tw.cumsum(v + 1.0, dim=N, reverse=True), tw.bf16),
    (
        "cummax_reverse_exclusive",
        lambda v: tw.cummax(v, dim=N, reverse=True, exclusive=True),
        tw.i16,
    ),
    ("cummin", lambda v: tw.cummin(v, dim=N), tw.f64),
    ("cumsum_i8", lambda v: tw.cumsum(v, dim=N), tw.i8),
    ("cumprod", lambda v: tw.cumprod(v * 0.1 + 1.0, dim=N), tw.f32),
):
    case(*SCANS, name=_name)(scan_rows(_name, _how, _dtype))
    case(*SCANS[1:3], name=f"{_name}_blocks")(scan_rows(_name, _how, _dtype, 4))
case(*SCANS, name="cumsum_dynamic", dynamic=("M", "N"))(
    scan_rows("cumsum_dynamic", lambda v: tw.cumsum(v, dim=N))
)
case(*SCANS, name="cumsum_reverse_dynamic", dynamic=("N",))(
    scan_rows("cumsum_reverse_dynamic", lambda v: tw.cumsum(v, dim=N, reverse=True, exclusive=True))
)


@case(*sizes((33, 5), (300, 70), (1, 1), (1000, 3), (5000, 40), axes="M N"))
def column_scans():
    @tw.kernel([tw.WorkgroupConstraint(N, 32, 0)])
    def column_scans(
        x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32], z: tw.Memory[N, M, G, tw.f32]
    ):
        v = tw.read(x)
        tw.write(tw.cumsum(v, dim=M), y)
        tw.write(tw.cummax(v, dim=M, reverse=True), z)

    return column_scans


@case(*sizes((4, 33, 20), (2, 200, 70), (1, 5000, 3), axes="B M N"))
def middle_scan():
    @tw.kernel([tw.WorkgroupConstraint(B, 1, 0), tw.WorkgroupConstraint(N, 8, 1)])
    def middle_scan(x: tw.Memory[B, M, N, G, tw.f16], y: tw.Memory[B, M, N, G, tw.f16]):
        v = tw.cast(tw.read(x), tw.f32)
        tw.write(tw.cast(tw.cumsum(tw.exp(v), dim=M) * 0.5, tw.f16), y)

    return middle_scan


@case(*sizes((5, 33), (2, 5000), (1, 1), axes="M N"))
def largest_prefix():
    @tw.kernel([tw.WorkgroupConstraint(M, 2, 0)])
    def largest_prefix(
        x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, G, tw.f32], z: tw.Memory[M, N, G, tw.f32]
    ):
        s = tw.cumsum(tw.read(x), dim=N)
        best = tw.max(s, dim=N)
        tw.write(best, y)
        tw.write(s - best, z)

    return largest_prefix


@case(*sizes((20, 40), (33, 70), axes="M N"))
def scan_of_tiles():
    @tw.kernel([tw.WorkgroupConstraint(M, 16, 0), tw.TilingConstraint(N, 16)])
    def scan_of_tiles(x: tw.Memory[M, N, G, tw.f32], y: tw.Memory[M, N, G, tw.f32]):
        @tw.iterate(N)
        def _():
            tw.write(tw.cumsum(tw.read(x), dim=N, reverse=True), y)

    return scan_of_tiles


@case(*sizes((40, 48, 64), (33, 17, 70), axes="M N K"))
def scan_of_a_product():
    @tw.kernel([tw.WorkgroupConstraint(M, 32, 0)])
    def scan_of_a_product(
        a: tw.Memory[M, K, G, tw.f16], b: tw.Memory[N, K, G, tw.f16], c: tw.Memory[M, N, G, tw.f32]
    ):
        tw.write(tw.cumsum(tw.mma(tw.read(a), tw.read(b)), dim=N), c)

    return scan_of_a_product


@case(*sizes((9, 300, 70), (5, 40, 33), axes="V M N"))
def gathered_scan():
    @tw.kernel([tw.WorkgroupConstraint(M, 4, 0)])
    def gathered_scan(
        x: tw.Memory[V, N, G, tw.f32], at: tw.Memory[M, G, tw.i32], y: tw.Memory[M, N, G, tw.f32]
    ):
        tw.write(tw.cumsum(tw.gather(x, V, tw.read(at)), dim=N), y)

    return gathered_scan
