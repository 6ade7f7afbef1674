"""Products with warp roles on the simulator: orders, types, open sizes, clusters, turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.base.diagnostics import TilewrightError
from tilewright.base.dtypes import DType
from tilewright.codegen.sim import simulate
from tilewright.driver.compile import Compilation, Specialisation, compile_program
from tilewright.kernel.async_ops import BulkStore, NamedBarrier, WarpgroupMma
from tilewright.kernel.ops import Body, If, Loop, walk
from tilewright.kernel.rewrite import with_body
from tilewright.lower.obligations import verify
from tilewright.poly.prove import Refuted
from tilewright.target.nvidia import SM_90A

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
TILE_M, TILE_N, TILE_K = tw.sym.TILE_M, tw.sym.TILE_N, tw.sym.TILE_K
NUMPY = {
    tw.bf16: ml_dtypes.bfloat16, tw.f16: np.float16, tw.f32: np.float32,
    tw.f8e4m3: ml_dtypes.float8_e4m3fn,
}  # fmt: skip
FEW = replace(SM_90A, multiprocessors=4)  # so that blocks of a small problem have several turns


def program(
    dtype: DType, out: DType, stored: str = "MK NK MN", **hardware: Any
) -> tw.TileKernel:  # fmt: skip
    """``c = a * b``, each tensor stored with the axes in the order given."""
    axes = {"M": M, "N": N, "K": K}
    a, b, c = ([axes[x] for x in word] for word in stored.split())

    def gemm(a, b, c):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        value = total if out is tw.f32 else tw.cast(total, out)
        tw.write(value, c)

    gemm.__annotations__ = {
        "a": tw.Memory[(*a, tw.GLOBAL, dtype)],
        "b": tw.Memory[(*b, tw.GLOBAL, dtype)],
        "c": tw.Memory[(*c, tw.GLOBAL, out)],
    }
    constraints = [
        tw.WorkgroupConstraint(M, TILE_M, 0),
        tw.WorkgroupConstraint(N, TILE_N, 1),
        tw.TilingConstraint(K, TILE_K),
        *([tw.HardwareConstraint(**hardware)] if hardware else []),
    ]
    return tw.kernel(constraints)(gemm)


def check(
    kernel: tw.TileKernel,
    sizes: tuple[int, int, int],
    tile: tuple[int, int, int],
    *,
    target: Any = SM_90A,
    dynamic: bool = False,
) -> Compilation:
    """Compile, run on integers that the types hold exactly, and compare every element."""
    names = dict(zip(("M", "N", "K"), sizes, strict=True))
    tiles = dict(zip(("TILE_M", "TILE_N", "TILE_K"), tile, strict=True))
    multiples = {"M": 8, "N": 8, "K": 8} if dynamic else {}
    given = Specialisation(target, tiles | ({} if dynamic else names), multiples=multiples)
    compiled = compile_program(kernel.program, given)
    assert compiled.plan.roles is not None
    assert not [o for o in compiled.obligations if isinstance(o.result, Refuted)]
    memories = kernel.program.memories
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, order in (("a", "MK"), ("b", "NK")):
        shape = [names[x] for x in order]
        values[name] = rng.integers(-4, 5, shape).astype(np.float32)
        stored = memories[name].axes == tuple(order)
        held = values[name] if stored else values[name].T
        arrays[name] = np.ascontiguousarray(held.astype(NUMPY[memories[name].dtype]))
    out = NUMPY[memories["c"].dtype]
    across = memories["c"].axes == ("N", "M")
    shape = (names["N"], names["M"]) if across else (names["M"], names["N"])
    arrays["c"] = np.full(shape, np.nan, out)
    symbols = names if dynamic else {}
    simulate(compiled.kernel, target, arrays, symbols)
    wanted = (values["a"] @ values["b"].T).astype(out)
    np.testing.assert_array_equal(arrays["c"], wanted.T if across else wanted)
    return compiled


@pytest.mark.parametrize("a", ["MK", "KM"])
@pytest.mark.parametrize("b", ["NK", "KN"])
@pytest.mark.parametrize("c", ["MN", "NM"])
def test_every_order_of_storage(a: str, b: str, c: str) -> None:
    compiled = check(program(tw.bf16, tw.bf16, f"{a} {b} {c}"), (256, 256, 192), (128, 128, 64))
    assert any(isinstance(s, BulkStore) for s in walk(compiled.kernel.body))


CASES = {
    "f16 to f32": (tw.f16, tw.f32, (256, 256, 320), (128, 128, 64)),
    "e4m3": (tw.f8e4m3, tw.bf16, (128, 128, 256), (128, 128, 128)),
    "ragged in all axes": (tw.bf16, tw.bf16, (200, 304, 136), (128, 256, 64)),
    "rows that the copy engine cannot store": (tw.bf16, tw.bf16, (72, 300, 72), (64, 256, 64)),
    "16 rows and 104 columns": (tw.bf16, tw.bf16, (16, 104, 128), (128, 104, 64)),
    "rows not a multiple of 16": (tw.bf16, tw.bf16, (77, 128, 64), (64, 128, 64)),
    "192 by 192": (tw.bf16, tw.bf16, (384, 200, 128), (192, 192, 64)),
    "few rows, which become columns": (tw.bf16, tw.bf16, (16, 256, 256), (16, 128, 64)),
    "two strips of rows": (tw.bf16, tw.bf16, (256, 128, 128), (256, 128, 64)),
    "two panels of terms": (tw.bf16, tw.bf16, (128, 128, 256), (128, 128, 128)),
    "one step": (tw.bf16, tw.bf16, (128, 128, 40), (128, 128, 64)),
    "64-byte rows": (tw.bf16, tw.bf16, (128, 128, 96), (128, 128, 32)),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes_and_types(case: str) -> None:
    dtype, out, sizes, tile = CASES[case]
    check(program(dtype, out), sizes, tile)


def test_open_sizes() -> None:
    check(program(tw.bf16, tw.bf16), (200, 304, 136), (128, 128, 64), dynamic=True)


HARDWARE = {
    "persistent": {},
    "clusters of 2": {"cluster": 2},
    "clusters of 4": {"cluster": 4},
    "turns": {"pingpong": True, "stages": 2},
    "turns in clusters": {"pingpong": True, "cluster": 2, "stages": 3},
}


@pytest.mark.parametrize("how", HARDWARE)
@pytest.mark.parametrize("steps", [1, 5])
def test_blocks_with_several_tiles(how: str, steps: int) -> None:
    """Rings whose slots go round more than once in a tile, and tiles that do not fill turns."""
    kernel = program(tw.bf16, tw.bf16, **HARDWARE[how])
    compiled = check(kernel, (256, 512, 64 * steps), (64, 128, 64), target=FEW)
    roles = compiled.plan.roles
    assert roles is not None
    assert roles.pingpong == ("turns" in how)
    assert compiled.kernel.cluster == HARDWARE[how].get("cluster", 1)
    shared = [s for s in walk(compiled.kernel.body) if getattr(s, "multicast", None) is not None]
    assert len(shared) == ("clusters" in how)
    handed = [s for s in walk(compiled.kernel.body) if isinstance(s, NamedBarrier) and s.arrive]
    assert bool(handed) == roles.pingpong


def test_turns_without_an_order_are_refuted() -> None:
    """A phase's parity tells rounds apart only for who is at most one round behind."""

    def unordered(body: Body) -> Body:
        kept = [
            with_body(s, unordered(s.body)) if isinstance(s, If | Loop) else s
            for s in body
            if not (isinstance(s, NamedBarrier) and s.threads == 256)
        ]
        return tuple(s for s in kept if not isinstance(s, If | Loop) or s.body)

    kernel = program(tw.bf16, tw.bf16, pingpong=True, stages=2)
    sizes = {"M": 256, "N": 512, "K": 320, "TILE_M": 64, "TILE_N": 128, "TILE_K": 64}
    right = compile_program(kernel.program, Specialisation(FEW, sizes)).kernel
    wrong = replace(right, body=unordered(right.body))
    refuted = [o for o in verify(wrong, FEW) if isinstance(o.result, Refuted)]
    assert refuted
    arrays = {
        "a": np.ones((256, 320), ml_dtypes.bfloat16), "b": np.ones((512, 320), ml_dtypes.bfloat16),
        "c": np.zeros((256, 512), ml_dtypes.bfloat16),
    }  # fmt: skip
    with pytest.raises(TilewrightError):
        simulate(wrong, FEW, arrays, {})


def test_four_by_nine_tiles_in_groups() -> None:
    """A group of 8 does not divide 4 or 9 tiles: the policy takes one that leaves no turn empty."""
    check(program(tw.bf16, tw.bf16), (256, 1152, 64 * 3), (64, 128, 64), target=FEW)


def test_holes_in_the_order_are_not_given_roles() -> None:
    def grouped(s: Any) -> Any:
        made = s.split("M", 64).split("N", 128).split("K", 64)
        return made.swizzle("M.outer", "N.outer", 8).persistent(4)

    kernel = tw.kernel()(program(tw.bf16, tw.bf16).program.function)
    sizes = {"M": 256, "N": 1152, "K": 192}
    compiled = compile_program(kernel.program, Specialisation(FEW, sizes, schedule=grouped))
    assert compiled.plan.roles is None
    (note,) = compiled.plan.notes
    assert note == "no warp roles: 8 does not divide the tiles of M: turns are empty"
    assert not any(isinstance(s, WarpgroupMma) for s in walk(compiled.kernel.body))


def test_more_than_two_to_the_29_elements() -> None:
    """Coordinates count elements of one axis, so no offset leaves 32 bits."""
    kernel = program(tw.bf16, tw.bf16)
    sizes = {"M": 1 << 15, "N": 1 << 15, "K": 1 << 14}
    tiles = {"TILE_M": 128, "TILE_N": 256, "TILE_K": 64}
    compiled = compile_program(kernel.program, Specialisation(SM_90A, sizes | tiles))
    assert compiled.plan.roles is not None
    assert not [o for o in compiled.obligations if isinstance(o.result, Refuted)]


def shared_out(columns: int) -> tw.TileKernel:
    """A tile of 16 rows for twelve warps side by side: 384 threads."""
    kernel = program(tw.f16, tw.f32)
    constraints = [
        tw.WorkgroupConstraint(M, 16, 0),
        tw.WorkgroupConstraint(N, columns, 1),
        tw.HardwareConstraint(waves_per_block=(1, 12)),
    ]
    return tw.kernel(constraints)(kernel.program.function)


def test_sixteen_rows_and_104_columns_for_384_threads() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (rows, 64)).astype(np.float16) for rows in (16, 104))
    with pytest.raises(TilewrightError) as caught:
        shared_out(104)(a, b, np.zeros((16, 104), np.float32))
    assert "the tile of 104 elements of N is not a multiple of 12" in str(caught.value)
    c = np.full((16, 104), np.nan, np.float32)
    shared_out(192)(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_roles_that_cannot_be_are_refused() -> None:
    kernel = program(tw.bf16, tw.bf16, specialize=True)
    sizes = {"M": 128, "N": 128, "K": 100, "TILE_M": 128, "TILE_N": 128, "TILE_K": 64}
    with pytest.raises(TilewrightError) as caught:
        compile_program(kernel.program, Specialisation(SM_90A, sizes))
    text = str(caught.value)
    assert "warps cannot have roles: rows of a do not start at multiples of 16 bytes" in text
    assert "mend: leave specialize out" in text


def test_clusters_that_do_not_fit_are_refused() -> None:
    kernel = program(tw.bf16, tw.bf16, cluster=4)
    sizes = {"M": 384, "N": 384, "K": 128, "TILE_M": 128, "TILE_N": 128, "TILE_K": 64}
    with pytest.raises(TilewrightError, match="do not make clusters of 4"):
        compile_program(kernel.program, Specialisation(SM_90A, sizes))
