"""`@tw.autotune`: when it measures, what it keeps, and what it keeps it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_bench import HostBench

import tilewright as tw
from tilewright.base.diagnostics import CallError, TuningError
from tilewright.driver.tuning.autotune import AutotunedKernel
from tilewright.driver.tuning.options import Options
from tilewright.driver.tuning.suggest import PLAIN, suggested
from tilewright.runtime.cache import DiskCache
from tilewright.schedule.model import Problem, candidates, rank
from tilewright.target.amd import GFX942
from tilewright.target.nvidia import SM_90A

M, N = tw.sym.M, tw.sym.N
BLOCK_M, BLOCK_N = tw.sym.BLOCK_M, tw.sym.BLOCK_N
CONFIGS = [tw.Config({BLOCK_M: m, BLOCK_N: n}) for m, n in ((4, 32), (8, 64), (16, 32))]


def made(
    bench: HostBench | None, folder: Path, configs: Sequence[tw.Config] = tuple(CONFIGS),
    key: Sequence[Any] | None = None, scale: float = 2.0, enabled: bool = True,
    options: Options | None = None,
) -> AutotunedKernel:  # fmt: skip
    chosen = options or Options()
    chosen = replace(chosen, bench=lambda device: bench, cache=lambda: DiskCache(folder))

    @tw.autotune(configs, key, enabled=enabled, options=chosen)
    @tw.kernel([tw.WorkgroupConstraint(M, BLOCK_M, 0), tw.WorkgroupConstraint(N, BLOCK_N, 1)])
    def scaled(x: tw.Memory[M, N, tw.GLOBAL, tw.f32], y: tw.Memory[M, N, tw.GLOBAL, tw.f32]):
        tw.write(tw.read(x) * scale, y)

    return scaled


def arrays(m: int = 16, n: int = 64) -> tuple[Any, Any]:
    x = np.arange(m * n, dtype=np.float32).reshape(m, n)
    return x, np.zeros_like(x)


def second_is_best(turn: int) -> float:
    return 1e-5 if turn % 4 in (1, 3) else 9e-5


def chosen(kernel: AutotunedKernel, x: Any, y: Any) -> dict[str, int]:
    """The tiles of the kernel that serves a call."""
    from tilewright.driver.call import read_call

    sizes = kernel.specialised(read_call(kernel.program, (x, y))).compilation.specialisation.sizes
    return {name: sizes[name] for name in ("BLOCK_M", "BLOCK_N")}


def test_the_first_call_measures_and_later_ones_do_not(tmp_path: Path) -> None:
    bench = HostBench(second_is_best)
    kernel = made(bench, tmp_path)
    x, y = arrays()
    kernel(x, y)
    assert (y == 2 * x).all()
    assert bench.timed == 4  # three, and the best one again
    assert chosen(kernel, x, y) == {"BLOCK_M": 8, "BLOCK_N": 64}
    kernel(x, np.empty_like(y))
    assert bench.timed == 4
    assert len(kernel.reports) == 1
    assert kernel.reports[0].best is CONFIGS[1]


def test_the_winner_is_kept_on_disk(tmp_path: Path) -> None:
    made(HostBench(second_is_best), tmp_path)(*arrays())
    later = HostBench()
    kernel = made(later, tmp_path)
    x, y = arrays()
    kernel(x, y)
    assert (y == 2 * x).all()
    assert later.timed == 0
    assert kernel.reports == []
    assert chosen(kernel, x, y) == {"BLOCK_M": 8, "BLOCK_N": 64}


@pytest.mark.parametrize(
    "change",
    [
        lambda bench, folder: made(bench, folder, scale=3.0),
        lambda bench, folder: made(bench, folder, configs=CONFIGS[:2]),
        lambda bench, folder: made(bench, folder, configs=CONFIGS[::-1]),
        lambda bench, folder: made(replace(bench, name="another bench"), folder),
        lambda bench, folder: made(bench, folder, options=Options(top=2)),
    ],
    ids=["program", "fewer configs", "other order", "device", "top"],
)
def test_whatever_may_change_the_winner_is_measured_anew(
    change: Callable[[HostBench, Path], AutotunedKernel], tmp_path: Path
) -> None:
    made(HostBench(), tmp_path)(*arrays())
    kernel = change(HostBench(), tmp_path)
    kernel(*arrays())
    assert len(kernel.reports) == 1


def test_a_key_selects_by_the_sizes_that_it_names(tmp_path: Path) -> None:
    bench = HostBench()
    kernel = made(bench, tmp_path, key=[N])
    kernel(*arrays(16, 64))
    kernel(*arrays(32, 64))
    assert len(kernel.reports) == 1
    kernel(*arrays(16, 128))
    assert len(kernel.reports) == 2
    x, _ = arrays(16, 128)
    across = np.zeros((64, 16), np.float32).T
    kernel(x[:, :64], across)  # other strides
    assert len(kernel.reports) == 3
    assert (across == 2 * x[:, :64]).all()


def test_a_damaged_entry_is_measured_anew(tmp_path: Path) -> None:
    made(HostBench(), tmp_path)(*arrays())
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    kernel = made(HostBench(), tmp_path)
    kernel(*arrays())
    assert len(kernel.reports) == 1


def test_measuring_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = HostBench(second_is_best)
    x, y = arrays()
    off = made(bench, tmp_path, enabled=False)
    off(x, y)
    assert (y == 2 * x).all()
    assert chosen(off, x, y) == {"BLOCK_M": 4, "BLOCK_N": 32}
    monkeypatch.setenv("TILEWRIGHT_AUTOTUNE", "0")
    made(bench, tmp_path)(x, y)
    assert bench.timed == 0
    assert not list(tmp_path.rglob("*"))
    monkeypatch.setenv("TILEWRIGHT_AUTOTUNE", "1")
    made(bench, tmp_path)(x, y)
    assert bench.timed == 4


def test_without_a_device_nothing_is_measured(tmp_path: Path) -> None:
    kernel = made(None, tmp_path)
    x, y = arrays()
    kernel(x, y)
    assert (y == 2 * x).all()
    assert kernel.reports[0].where == "no device"
    assert not list(tmp_path.rglob("*"))


def test_configs_that_do_not_compile_are_passed_over(tmp_path: Path) -> None:
    configs = [tw.Config({BLOCK_M: 0, BLOCK_N: 32}), *CONFIGS]
    for bench in (None, HostBench()):
        kernel = made(bench, tmp_path, configs)
        x, y = arrays()
        kernel(x, y)
        assert (y == 2 * x).all()
        assert kernel.reports[0].rows[-1].failure is not None
    with pytest.raises(TuningError, match="the only config of scaled does not work"):
        made(None, tmp_path, configs[:1])(*arrays())
    with pytest.raises(TuningError, match="BLOCK_M=0, BLOCK_N=32: TW104 the tile of M is 0"):
        made(None, tmp_path, configs[:1]).compile("sm_90a")


def test_a_wrong_config_is_reported(tmp_path: Path) -> None:
    wrong = Options(reference=lambda x, y: x * 2.5, tolerance=0.01)
    with pytest.raises(TuningError, match="none of the 3 configs of scaled works"):
        made(HostBench(), tmp_path, options=wrong)(*arrays())
    loose = Options(reference=lambda x, y: x * 2.5, tolerance=0.21)
    made(HostBench(), tmp_path, options=loose)(*arrays())


def test_it_compiles_and_tunes_like_a_kernel(tmp_path: Path) -> None:
    kernel = made(None, tmp_path, [tw.Config({BLOCK_M: 0, BLOCK_N: 32}), *CONFIGS])
    assert kernel.compile("gfx942").compilation.specialisation.sizes["BLOCK_M"] == 4
    assert kernel.tune(*arrays()).best is CONFIGS[0]
    assert kernel.tune(*arrays(), configs=CONFIGS[1:]).best is CONFIGS[1]
    assert kernel.__name__ == "scaled"


def test_the_decorator_is_checked(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="the key names K, which is no axis of scaled's tensors"):
        made(None, tmp_path, key=[tw.sym.K])
    with pytest.raises(CallError, match=r"@tw\.autotune is given no configs"):
        made(None, tmp_path, [])
    with pytest.raises(CallError, match=r"@tw\.autotune is put on a function"):
        tw.autotune(CONFIGS)(lambda x: None)  # type: ignore[arg-type]


BLOCK_K, K = tw.sym.BLOCK_K, tw.sym.K


@tw.autotune()
@tw.kernel(
    [
        tw.WorkgroupConstraint(M, BLOCK_M, 0),
        tw.WorkgroupConstraint(N, BLOCK_N, 1),
        tw.TilingConstraint(K, BLOCK_K),
    ]
)
def product(
    a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
    b: tw.Memory[N, K, tw.GLOBAL, tw.f16],
    c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
):
    @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
    def total(acc):
        return tw.mma(tw.read(a), tw.read(b), acc)

    tw.write(total, c)


def test_configs_are_suggested_for_a_product() -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((n, 64)).astype(np.float16) for n in (96, 80))
    c = np.zeros((96, 80), np.float32)
    product(a, b, c)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-2)
    report = product.reports[0]
    assert len(report.rows) > 8
    assert report.best is report.rows[0].config
    assert set(report.best.symbols) == {"BLOCK_M", "BLOCK_N", "BLOCK_K"}


def test_the_suggested_configs_are_what_the_model_ranks_first() -> None:
    compiled = product.compile("sm_90a", {M: 8192, N: 8192, K: 8192})
    configs = suggested(product, {"M": 8192, "N": 8192, "K": 8192}, SM_90A)
    sizes = compiled.compilation.specialisation.sizes
    assert {n: sizes[n] for n in configs[0].symbols} == configs[0].symbols
    problem = Problem(8192, 8192, 8192, result_bytes=4)
    best = rank(problem, candidates(problem, SM_90A), SM_90A)[:20]
    tiles = {(r.candidate.tile_m, r.candidate.tile_n, r.candidate.tile_k) for r in best}
    wide = {t for t in tiles if t[1] % 32 == 0}
    assert wide
    assert wide <= {tuple(config.symbols.values()) for config in configs}


def test_a_target_without_figures_gets_plain_tiles() -> None:
    configs = suggested(product, {"M": 512, "N": 512, "K": 512}, GFX942)
    assert {tuple(c.symbols.values()) for c in configs} == set(PLAIN)


def test_splits_are_suggested_where_tiles_are_few() -> None:
    configs = suggested(product, {"M": 256, "N": 256, "K": 16384}, SM_90A)
    split = [c for c in configs if "split_k" in c.hardware]
    assert split
    assert all(c.hardware["split_k"] in (2, 3, 4, 6, 8) for c in split)
    sizes = {M: 256, N: 256, K: 16384}
    plan = product.compile("sm_90a", sizes).compilation.plan
    assert plan.roles is not None
    tuned = tw.TileKernel(product.program, {}, frozenset()).tune(
        np.zeros((256, 16384), np.float16), np.zeros((256, 16384), np.float16),
        np.zeros((256, 256), np.float32), configs=split,
    )  # fmt: skip
    assert tuned.best is split[0]


def test_nothing_is_suggested_for_what_is_no_product(tmp_path: Path) -> None:
    kernel = made(None, tmp_path)
    plain = tw.TileKernel(kernel.program, {}, frozenset())
    with pytest.raises(CallError, match=r"suggested for scaled: it has 0 matrix products"):
        plain.tune(*arrays())
    constraints = tuple(c for c in product.program.constraints if not hasattr(c, "dim"))
    fixed = tw.TileKernel(replace(product.program, constraints=constraints), {}, frozenset())
    with pytest.raises(CallError, match="no symbol is the tile size of M and N"):
        fixed.tune(*(np.ones((32, 32), t) for t in (np.float16, np.float16, np.float32)))
