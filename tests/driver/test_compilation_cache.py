"""Compilations on disk: what is read back, when it is not, what a later process does without."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import linecache
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.base.diagnostics import CoverageError
from tilewright.base.spans import Span
from tilewright.driver import cache_key, pipeline
from tilewright.driver.cache_key import NoKeyError, spelled
from tilewright.driver.compile import Rewrites
from tilewright.driver.compiled import CompiledKernel
from tilewright.driver.kept import Entry, Kept, Proven
from tilewright.kernel.ops import walk
from tilewright.kernel.parse_declared import parse_declarations
from tilewright.poly.results import Kind, Obligation, Refuted
from tilewright.runtime.cache import DiskCache
from tilewright.target.nvidia import SM_90A

M, N, K = tw.sym.M, tw.sym.N, tw.sym.K
SIZES = {"M": 64, "N": 64, "K": 64}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder. Sources that change while the tests run do not count."""
    monkeypatch.setattr(cache_key, "LOADED_AT", math.inf)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that the pipeline has lowered and proved so far, by name."""
    names: list[str] = []
    real = pipeline.made

    def counted(request: Any, *rest: Any) -> Any:
        names.append(request.graph.name)
        return real(request, *rest)

    monkeypatch.setattr(pipeline, "made", counted)
    return names


def product(scale: float = 1.0, stages: int = 2, tile: int = 32) -> tw.TileKernel:
    @tw.kernel(
        [
            tw.WorkgroupConstraint(M, 32, 0),
            tw.WorkgroupConstraint(N, tile, 1),
            tw.TilingConstraint(K, 32),
            tw.HardwareConstraint(stages=stages),
        ]
    )
    def gemm(
        a: tw.Memory[M, K, tw.GLOBAL, tw.f16],
        b: tw.Memory[N, K, tw.GLOBAL, tw.f16],
        c: tw.Memory[M, N, tw.GLOBAL, tw.f32],
    ):
        @tw.iterate(K, init_args=[tw.Register[M, N, tw.f32](0.0)])
        def total(acc):
            return tw.mma(tw.read(a), tw.read(b), acc)

        tw.write(total * scale, c)

    return gemm


def files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def same(one: CompiledKernel, other: CompiledKernel) -> bool:
    """Whether two compilations are alike in all that they hold, spans included."""
    parts: list[Callable[[CompiledKernel], object]] = [
        lambda k: repr(k.compilation.kernel),
        lambda k: k.proofs,
        lambda k: k.source,
        lambda k: k.ir,
        lambda k: k.explain(),
        lambda k: repr(k.compilation.plan),
    ]
    return all(part(one) == part(other) for part in parts)


# ---------------------------------------------------------------- what is read back


def test_a_kept_compilation_is_the_same(folder: Path, made: list[str]) -> None:
    first, second = (product().compile("sm_90a", SIZES) for _ in range(2))
    assert made == ["gemm"]
    assert isinstance(second.compilation.outcome, Kept)
    assert any(getattr(s, "span", None) for s in walk(second.compilation.kernel.body))
    assert same(first, second)


def corpus() -> list[Any]:
    path = Path(__file__).parents[1] / "corpus" / "programs.py"
    spec = importlib.util.spec_from_file_location("kept_programs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.CASES


@pytest.mark.parametrize("case", corpus()[::6], ids=lambda case: case.name)
def test_every_kind_of_program_is_kept(case: Any, folder: Path, made: list[str]) -> None:
    size = {**({"D": 1} if "D" not in case.sizes[0] else {}), **case.sizes[0]}
    fixed = {a: n for a, n in size.items() if a not in case.dynamic}
    first, second = (case.make().compile(case.targets[-1], fixed) for _ in range(2))
    assert len(made) == 1
    assert same(first, second)
    declared = parse_declarations(second.ir)
    kernel = first.compilation.kernel
    for name in ("threads", "shared_bytes", "symbols", "grid", "contracts", "maps", "scalars"):
        assert getattr(declared, name) == getattr(kernel, name)
    assert second.compilation.interface.tensors == kernel.tensors


def test_a_kept_kernel_computes(folder: Path) -> None:
    product().compile("sm_90a", SIZES)
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    c = np.full((64, 64), np.nan, np.float32)
    product().compile("sm_90a", SIZES)(a, b, c)
    np.testing.assert_allclose(
        c, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-3, atol=1e-3
    )


def test_fusions_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fusion() -> tw.FusionDefinition:
        with tw.FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], dtype=tw.f32)
            fd.add_output(fd.ops.softmax(x * 2.0, dim=1))
        return fd

    array = np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32)
    (first,) = fusion().execute([array])
    one = fusion().compile([array]).kernels
    monkeypatch.setattr("tilewright.driver.fused_lowering.proven", None)
    other = fusion()
    (second,) = other.execute([array])
    np.testing.assert_array_equal(first, second)
    two = other.compile([array]).kernels
    assert [k.source for k in one] == [k.source for k in two]
    assert [k.explain() for k in one] == [k.explain() for k in two]
    assert [k.proofs for k in one] == [k.proofs for k in two]


WARM = """
import sys
import numpy
import tilewright as tw
M, N = tw.sym.M, tw.sym.N

@tw.kernel([tw.WorkgroupConstraint(M, 16, 0)])
def double(x: tw.Memory[M, N, tw.GLOBAL, tw.f32], y: tw.Memory[M, N, tw.GLOBAL, tw.f32]):
    tw.write(tw.read(x) * 2.0, y)

compiled = double.compile("sm_90a", {M: 64, N: 64})
text = compiled.source
compiled.compilation.interface, compiled.proofs
heavy = ("islpy", "tilewright.lower", "tilewright.mapping", "tilewright.codegen",
         "tilewright.kernel.ops", "tilewright.poly.sets", "cuda")
print([m for m in heavy if m in sys.modules])
print(len(compiled.proofs), hash(text) != 0)
print(text)
"""


def run(script: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(script)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process imported, and the rest of what it printed."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    imported, _, rest = output.partition("\n")
    return imported, rest


def test_a_later_process_imports_no_prover(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "warm.py"
    script.write_text(WARM)
    cold, text = finished(run(script))
    assert "islpy" in cold
    assert finished(run(script)) == ("[]", text)


def test_processes_may_share_a_folder(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "warm.py"
    script.write_text(WARM)
    together = [finished(process)[1] for process in [run(script) for _ in range(3)]]
    assert len(set(together)) == 1
    assert finished(run(script)) == ("[]", together[0])
    assert not [p for p in files(folder) if p.name.endswith(".part")]


# ---------------------------------------------------------------- what is made anew

CHANGES: dict[str, Callable[[], CompiledKernel]] = {
    "size": lambda: product().compile("sm_90a", {**SIZES, "M": 128}),
    "open size": lambda: product().compile("sm_90a", {"N": 64, "K": 64}),
    "strides": lambda: product().compile("sm_90a", SIZES, strides={"a": (72, 1)}),
    "alignment": lambda: product().compile("sm_90a", SIZES, alignments={"a": 4}),
    "multiple": lambda: product().compile("sm_90a", {"N": 64, "K": 64}, multiples={"M": 16}),
    "target": lambda: product().compile("gfx942", SIZES),
    "closed-over value": lambda: product(2.0).compile("sm_90a", SIZES),
    "constraint": lambda: product(stages=3).compile("sm_90a", SIZES),
    "tile": lambda: product(tile=64).compile("sm_90a", SIZES),
    "schedule": lambda: unconstrained(2).compile("sm_90a", SIZES),
    "other schedule": lambda: unconstrained(4).compile("sm_90a", SIZES),
}


def unconstrained(warps: int) -> Any:
    def split(s: tw.Schedule) -> tw.Schedule:
        s = s.split("M", 64, "mo", "mi").split("N", 32, "no", "ni").split("K", 32, "ko", "ki")
        return s.split("mi", 64 // warps, "mw", "mii").parallelize("mw", "warp")

    kernel = product()
    bare = tw.kernel()(kernel.program.function)

    class Scheduled:
        @staticmethod
        def compile(*arguments: Any) -> CompiledKernel:
            return bare.compile(*arguments, schedule=split)

    return Scheduled


def test_whatever_changes_the_kernel_is_another_entry(
    folder: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    product().compile("sm_90a", SIZES)
    for change in CHANGES.values():
        change()
    assert len(made) == 1 + len(CHANGES)
    kept = [change() for change in CHANGES.values()]
    assert len(made) == 1 + len(CHANGES)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    for compiled, change in zip(kept, CHANGES.values(), strict=True):
        assert same(change(), compiled)
    assert len(made) == 1 + 2 * len(CHANGES)


def test_a_line_moved_is_another_entry(folder: Path, made: list[str], tmp_path: Path) -> None:
    body = WARM.partition("compiled =")[0]
    lines: list[int] = []
    for blank in (0, 3, 0):
        path = tmp_path / "moved.py"
        path.write_text("\n" * blank + body)
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location("moved", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        compiled = module.double.compile("sm_90a", {"M": 64, "N": 64})
        lines.append(compiled.compilation.interface.tensors[0].span.line)
    assert lines[1] == lines[0] + 3
    assert lines[2] == lines[0]
    assert made == ["double", "double"]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text", "older"])
def test_a_damaged_entry_is_made_anew(damage: str, folder: Path, made: list[str]) -> None:
    first = product().compile("sm_90a", SIZES)
    first.source  # noqa: B018 - kept as well
    for path in files(folder):
        data = path.read_bytes()
        digest = hashlib.sha256
        path.write_bytes(
            {
                "empty": b"",
                "cut": data[: len(data) // 2],
                "flipped": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
                "text": digest(b"no record").digest() + b"no record",
                "older": digest(b'{"ir": ""}').digest() + b'{"ir": ""}',
            }[damage]
        )
    second = product().compile("sm_90a", SIZES)
    assert made == ["gemm", "gemm"]
    assert second.compilation.kernel == first.compilation.kernel
    if damage not in ("text", "older"):  # those are whole, as far as a source can tell
        assert second.source == first.source
    assert same(product().compile("sm_90a", SIZES), second)
    assert len(made) == 2


def test_a_refuted_kernel_is_refused_each_time(
    folder: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Obligation(Kind.COVERAGE, "c", Refuted("row 3 of c is never written"))
    monkeypatch.setattr(pipeline, "verify", lambda *_: (fault,))
    for _ in range(2):
        with pytest.raises(CoverageError, match="row 3 of c is never written"):
            product().compile("sm_90a", SIZES)
    assert made == ["gemm", "gemm"]
    assert files(folder) == []


def test_an_entry_takes_no_refuted_kernel(folder: Path) -> None:
    kernel = product().compile("sm_90a", SIZES).compilation.kernel
    entry = Entry(DiskCache(folder / "other"), "0" * 64)
    fault = Obligation(Kind.RACE, "s", Refuted("two threads write s[0]"))
    entry.keep(Proven(kernel, (fault,)))
    assert entry.outcome() is None
    entry.keep(Proven(kernel, ()))
    kept = entry.outcome()
    assert kept is not None
    assert kept.kernel == kernel


def test_asynchronous_kernels_are_kept_whole(folder: Path) -> None:
    from benchmarks.hopper_gemm import Plan, gemm

    kernel = gemm(Plan(512, 512, 512))
    here = Span("a.py", 3, 4, 9)
    kernel = replace(
        kernel,
        maps=tuple(replace(m, span=here) for m in kernel.maps),
        phases=tuple(replace(p, span=replace(here, line=n)) for n, p in enumerate(kernel.phases)),
    )
    entry = Entry(DiskCache(folder), "1" * 64)
    entry.keep(Proven(kernel, ()))
    kept = entry.outcome()
    assert kept is not None
    assert repr(kept.kernel) == repr(kernel)
    assert kept.interface.maps == tuple(replace(m, span=None) for m in kernel.maps)
    assert kept.interface.shared_bytes == kernel.shared_bytes


def test_an_entry_takes_no_kernel_that_its_text_does_not_say(folder: Path) -> None:
    kernel = product().compile("sm_90a", SIZES).compilation.kernel
    entry = Entry(DiskCache(folder / "other"), "0" * 64)
    odd = replace(kernel, tensors=(replace(kernel.tensors[0], align=np.int64(16)),))  # type: ignore[arg-type]
    entry.keep(Proven(odd, ()))
    assert entry.outcome() is None


@pytest.mark.parametrize("way", ["off", "dump", "rewrites", "sources"])
def test_the_cache_is_left_alone(
    way: str, folder: Path, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrites = None
    match way:
        case "off":
            monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
        case "dump":
            monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "dump"))
        case "sources":
            monkeypatch.setattr(cache_key, "LOADED_AT", 0.0)
            cache_key.compiler_identity.cache_clear()
        case _:
            rewrites = Rewrites()
    for _ in range(2):
        product().compile("sm_90a", SIZES, rewrites=rewrites).source  # noqa: B018
    assert made == ["gemm", "gemm"]
    assert files(folder) == []


# ---------------------------------------------------------------- names

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(width=16) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | st.frozensets(st.text(max_size=2), max_size=3)
    ),
    max_leaves=8,
)


@given(plain, plain)
def test_spellings_are_equal_for_equal_values_only(one: object, other: object) -> None:
    assert (tuple(spelled(one)) == tuple(spelled(other))) == (repr_of(one) == repr_of(other))


def repr_of(value: object) -> str:
    """A representation in which the order of sets does not count, made another way."""
    if isinstance(value, frozenset):
        return f"frozenset({json.dumps(sorted(value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(repr_of, value))};)"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {repr_of(v)}" for k, v in value.items()) + "}"
    return repr(value)


class Colour(Enum):
    RED = 1


def test_what_has_no_spelling() -> None:
    assert list(spelled(Colour.RED)) == ["Colour.RED"]
    for value in (len, object(), np.float32(1.0), np.float64(1.0), (1, len)):
        with pytest.raises(NoKeyError, match="has no spelling"):
            list(spelled(value))


def test_another_target_of_the_same_name_is_another_entry(folder: Path) -> None:
    odd = replace(SM_90A, registers_per_thread=128)
    assert cache_key.compilation_key(odd) != cache_key.compilation_key(SM_90A)
    assert cache_key.compilation_key(replace(SM_90A)) != cache_key.compilation_key(odd)
