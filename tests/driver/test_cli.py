"""The command line on the examples, on files with a fault, and on places that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.graph.text import parse_graph
from tilewright.kernel.text import parse_kernel

EXAMPLES = Path(__file__).parents[2] / "examples"
CHAINED = str(EXAMPLES / "chained_gemm.py")
GEMM = str(EXAMPLES / "gemm.py")

TWO = """
import numpy

import tilewright as tw

M, N, BLOCK = tw.sym.M, tw.sym.N, tw.sym.BLOCK
Tile = tw.Memory[M, N, tw.GLOBAL, tw.f32]


@tw.kernel([tw.WorkgroupConstraint(M, BLOCK, 0)], bindings={BLOCK: 16})
def copy(x: Tile, y: Tile):
    tw.write(tw.read(x), y)


@tw.kernel()
def row_sum(x: Tile, y: tw.Memory[M, tw.GLOBAL, tw.f32]):
    tw.write(tw.sum(tw.read(x), dim=N), y)
"""
WRONG = """
import tilewright as tw

M, N = tw.sym.M, tw.sym.N


@tw.kernel()
def row_sum(x: tw.Memory[M, N, tw.GLOBAL, tw.f32], y: tw.Memory[M, tw.GLOBAL, tw.f32]):
    tw.write(tw.read(x), y)
"""


@pytest.fixture
def two(tmp_path: Path) -> str:
    (tmp_path / "numpy_like.py").write_text(TWO, encoding="utf-8")
    return str(tmp_path / "numpy_like.py")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints that fails: all of it to stderr."""
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err


# ---------------------------------------------------------------- what works


@pytest.mark.parametrize("target", ["gfx942", "sm_90a", "sim"])
def test_run(capsys: pytest.CaptureFixture[str], target: str) -> None:
    out = printed(capsys, "run", CHAINED, "--target", target)
    assert out.startswith("chained_gemm on ")
    assert "sizes M=16, K1=16, K2=16, N=32" in out
    assert "  dv: right: the largest error is " in out
    assert "all 512 elements of dv are written exactly once" in out
    assert "compiled and proved in " in out or "proved earlier, read from the cache in " in out


def test_run_on_the_simulator_names_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert "on the simulator of gfx942," in printed(capsys, "run", CHAINED, "--target", "gfx942")
    assert "on the simulator of sm_90a," in printed(capsys, "run", CHAINED, "--target", "sim")


def test_run_with_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [f"--size={item}" for item in ("M=70", "N=33", "K=40", "BLOCK_M=32", "BLOCK_N=32")]
    out = printed(capsys, "run", GEMM, *sizes, "--target", "sim", "--seed", "3")
    assert "sizes M=70, K=40, N=33" in out
    assert "  c: right" in out


def test_run_all_kernels_of_a_file_or_one(capsys: pytest.CaptureFixture[str], two: str) -> None:
    out = printed(capsys, "run", two, "--target", "sim", "--size", "M=20")
    assert "copy on " in out
    assert "row_sum on " in out
    assert out.count("sizes M=20, N=48") == 2
    out = printed(capsys, "run", f"{two}:row_sum", "--target", "sim")
    assert "copy on " not in out
    assert "row_sum on " in out


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "explain", CHAINED, "--target", "gfx942")
    titles = [line for line in out.splitlines() if line and line[0] != " "]
    assert titles[0] == "chained_gemm for gfx942"
    for title in ("program", "digits and places", "layouts", "inserted", "proofs"):
        assert title in titles
    assert "N = tile[32], of 32: nobody placed it: its whole extent is unrolled" in out
    assert "F32_16x16x16_F16" in out


def test_explain_says_why_a_barrier_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "explain", GEMM, "--target", "gfx942")
    assert "barrier: a_tile" in out or "barrier: " in out
    assert "a_tile: f16[" in out


def test_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    out = printed(capsys, "check", GEMM)
    assert " 0 refuted, 0 assumed, 0 unknown" in out
    assert "all elements of c are written exactly once" in out
    assert "proved in " in out
    again = printed(capsys, "check", GEMM)
    assert again.splitlines()[:-1] == out.splitlines()[:-1]
    assert "proved earlier, read from the cache in " in again


def test_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert "mma.sync" in printed(capsys, "source", CHAINED, "--target", "sm_90a")
    assert "mfma" in printed(capsys, "source", CHAINED, "--target", "gfx942")


def test_source_as_kernel_ir_and_as_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = parse_kernel(printed(capsys, "source", CHAINED, "--ir", "--target", "gfx942"))
    assert (kernel.name, kernel.target, kernel.warp_size) == ("chained_gemm", "gfx942", 64)
    graph = parse_graph(printed(capsys, "source", CHAINED, "--graph"))
    assert list(graph.axes) == ["M", "K1", "K2", "N"]


def test_a_file_imports_from_its_folder_and_shadows_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "beside_it.py").write_text("FACTOR = 3.0\n", encoding="utf-8")
    source = TWO.replace("import numpy\n", "import json\nfrom beside_it import FACTOR\n")
    path = tmp_path / "json.py"  # the name of a module of Python
    path.write_text(source.replace("tw.read(x), y", "tw.read(x) * FACTOR, y"), encoding="utf-8")
    assert "copy on " in printed(capsys, "run", f"{path}:copy", "--target", "sim")
    import json

    assert json.loads("[1]") == [1]


# ---------------------------------------------------------------- what fails


def test_a_wrong_kernel(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG, encoding="utf-8")
    for command in ("run", "explain", "check", "source"):
        error = refused(capsys, command, str(path))
        assert error.startswith("error[TW102]: the value has axes ['M', 'N'], the memory ['M']\n")
        assert f"--> {path}:9:5" in error
        assert "9 |     tw.write(tw.read(x), y)\n  |     ^^^^^^^^^^^^^^^^^^^^^^^\n" in error
        assert "mend: reduce the value along N first" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "error[TW501]: nowhere.py is not a file"),
        (["nowhere.py:copy"], "error[TW501]: nowhere.py is not a file"),
        ([str(EXAMPLES)], "is not a file"),
        ([f"{GEMM}:nothing"], "has no kernel nothing"),
        ([__file__], "has no kernel\n  expected: a function marked @tw.kernel"),
        ([GEMM, "--target", "sm_70"], "error[TW203]: there is no target 'sm_70'"),
        ([GEMM, "--size", "M"], "error[TW501]: --size M\n  expected: AXIS=N, for example M=128"),
        ([GEMM, "--size", "M=many"], "error[TW501]: --size M=many"),
        ([GEMM, "--size", "Q=4"], "--size Q=4: there is no Q\n  expected: one of BLOCK_K"),
        ([GEMM, "--size", "M=0"], "error[TW102]: the axis M is bound to 0 elements"),
    ],
    ids=lambda v: " ".join(Path(a).name for a in v) if isinstance(v, list) else "",
)
def test_places_and_names_that_do_not_exist(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    for command in ("run", "check"):
        assert message in refused(capsys, command, *arguments)


def test_a_file_that_python_does_not_load(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import tilewright as tw\nx = \n", encoding="utf-8")
    error = refused(capsys, "check", str(path))
    assert "broken.py cannot be loaded: SyntaxError: invalid syntax" in error
    path.write_text("import not_a_module_of_anyone\n", encoding="utf-8")
    assert "ModuleNotFoundError: No module named" in refused(capsys, "check", str(path))
    text = tmp_path / "notes.txt"
    text.write_text("", encoding="utf-8")
    assert "is not a Python file" in refused(capsys, "check", str(text))


def test_wrong_results_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.driver.trial.tolerance", lambda *_: -1.0)
    assert main(["run", CHAINED, "--target", "sim"]) == 1
    assert "  dv: WRONG: the largest error is" in capsys.readouterr().out


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compile", GEMM])
    assert stopped.value.code == 2
    assert "invalid choice: 'compile'" in capsys.readouterr().err


def test_a_product_without_constraints_runs_with_roles(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--target", "sm_90a", "--size", "M=128", "--size", "N=96", "--size", "K=72")
    place = str(EXAMPLES / "product.py")
    assert "c: right" in printed(capsys, "run", place, *sizes)
    assert "wgmma.mma_async" in printed(capsys, "source", place, *sizes)
